"""Write the sources of a study's paper, results/<study>/paper/, all but main.tex, which its author owns.

    preamble.tex                packages and commands; the study's title and question
    methods.tex, threats.tex, reproducibility.tex    text
    results.tex, tables.tex     the answer, the paper's figures and tables, each in figures/ and tables/
    supplement.tex              a document of its own, with all other figures and tables
    references.bib              bibliography

Figures and tables are copies, so the folder can be moved elsewhere.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from analysis import conditions, tables
from analysis.answers import NOTE, Answer, answer_sentences
from analysis.measured import read_timing_runs, varying
from common.errors import InputError
from common.files import write_text, written_whole
from common.options import run_program
from common.tables import read_results, read_table
from declared.datasets import load_dataset
from declared.site import load_site
from declared.study import Study, load_study
from report import content
from report.anonymous import anonymizer, scrub_sources
from report.latex import figure, first_sentence, references, see, to_latex
from report.methods import Facts, factor_table, framework_table, methods, reproducibility, threats

GENERATED_HEADER = "% Overwritten by every `snakemake paper`: to change this text, copy it into main.tex.\n"
# Graphics are scaled to the line width, and to a height that leaves room for long captions.
PREAMBLE = r"""\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{mathptmx}
\usepackage{courier}
\usepackage[a4paper,textwidth=6.9in,textheight=9.7in]{geometry}
\usepackage{array,booktabs,graphicx,longtable,pdflscape}
\usepackage[font=footnotesize,labelfont=bf]{caption}
\usepackage[hidelinks]{hyperref}
\emergencystretch=3em
\renewcommand{\topfraction}{0.95}
\renewcommand{\floatpagefraction}{0.7}
\renewcommand{\textfraction}{0.05}
\makeatletter
\renewcommand{\fps@table}{!htp}
% Tables that float stay before those that do not.
\newcommand{\floatsfirst}{\ifx\@deferlist\@empty\else\clearpage\fi}
\makeatother
\newsavebox{\ringsidebox}
\newcommand{\fitgraphics}[1]{%
  \sbox{\ringsidebox}{\includegraphics{#1}}%
  \ifdim\wd\ringsidebox>\linewidth \sbox{\ringsidebox}{\resizebox{\linewidth}{!}{\usebox{\ringsidebox}}}\fi
  \ifdim\ht\ringsidebox>0.66\textheight
    \sbox{\ringsidebox}{\resizebox{!}{0.66\textheight}{\usebox{\ringsidebox}}}\fi
  \usebox{\ringsidebox}}
\newcommand{\tobewritten}[1]{\par\medskip\noindent\fbox{%
  \parbox{\dimexpr\linewidth-2\fboxsep-2\fboxrule}{\textbf{To be written:} #1}}\par\medskip}
"""

NO_AUTHORS = "TODO: name the authors"
NO_SUPPLEMENT = "All figures and tables of the study are in its paper.\n"
SUPPLEMENT = r"""\documentclass[10pt]{article}
\input{preamble}
\renewcommand{\thefigure}{S\arabic{figure}}
\renewcommand{\thetable}{S\arabic{table}}
\title{Supplement: \studytitle}
\author{\studyauthors}
\date{}

\begin{document}
\maketitle

%s
\end{document}
"""


@dataclass(frozen=True)
class Selection:
    """Figures with captions, and tables of a study, each in order."""

    captions: Mapping[str, str]
    tables: Sequence[str]

    def select(self, figures: Sequence[str], tables: Sequence[str]) -> "Selection":
        """Return those of these names, in their order."""
        return Selection(
            {name: self.captions[name] for name in figures if name in self.captions},
            [name for name in tables if name in self.tables],
        )

    def remainder(self, paper: "Selection") -> "Selection":
        """Return those that are not in the other selection."""
        return self.select(
            [name for name in self.captions if name not in paper.captions],
            [name for name in self.tables if name not in paper.tables],
        )


def generated_files(
    facts: Facts,
    paper: Selection,
    supplement: Selection,
    answer: Answer,
    notes: Mapping[str, str],
) -> dict[str, str]:
    """Return the contents of the generated files by name; `notes` are printed apart from captions."""
    facts = replace(facts, paper_tables=paper.tables, supplement_tables=supplement.tables)
    commands = {"title": facts.study.title, "question": facts.study.question}
    return {
        "preamble.tex": PREAMBLE
        + "".join(
            rf"\newcommand{{\study{name}}}{{{to_latex(value)}}}" + "\n" for name, value in commands.items()
        )
        + rf"\newcommand{{\studyauthors}}{{{author_names(facts.study)}}}"
        + "\n",
        "methods.tex": methods(facts) + factor_table(facts) + framework_table(facts),
        "results.tex": results(facts, paper.captions, answer),
        "tables.tex": input_tables(paper.tables),
        "threats.tex": threats(facts),
        "reproducibility.tex": reproducibility(facts),
        "supplement.tex": SUPPLEMENT
        % (
            show_figures(supplement.captions) + input_tables(supplement.tables) + caption_notes(notes)
            or NO_SUPPLEMENT
        ),
        **{
            f"figures/{name}.tex": figure(name, caption)
            for name, caption in {**paper.captions, **supplement.captions}.items()
        },
    }


def author_names(study: Study) -> str:
    """Return the authors for the title, or a reminder to name them."""
    names = [
        to_latex(f"{author.given_names} {author.family_names}")
        + (rf"\\{to_latex(author.affiliation)}" if author.affiliation else "")
        for author in study.authors
    ]
    return r" \and ".join(names) or NO_AUTHORS


def results(facts: Facts, captions: Mapping[str, str], answer: Answer) -> str:
    """Return the answer in sentences, then the figures, each after the sentence that it shows."""
    lines = [
        *map(to_latex, answer.opening),
        to_latex(conditions.usable_runs_note(facts.runs))
        + facts.see("cells", " Means of all cells are in ", "."),
        *([to_latex(NOTE)] if varying(facts.runs) else []),
        *map(to_latex, answer.further),
    ]
    return "\n\n".join(lines) + "\n\n" + show_figures(captions)


def show_figures(captions: Mapping[str, str]) -> str:
    """Return figures, each after the sentence that it shows."""
    parts = [
        f"{see('fig', name)}: {to_latex(first_sentence(caption))}.\n\n\\input{{figures/{name}}}\\floatsfirst"
        for name, caption in captions.items()
    ]
    return "\n\n".join([*parts, "\\clearpage\n"]) if parts else ""


def caption_notes(notes: Mapping[str, str]) -> str:
    """Return the notes of captions in a section of their own, a paragraph per figure and table.

    Empty without notes.
    """
    paragraphs = [rf"\paragraph{{{to_latex(name)}}} {to_latex(note)}" for name, note in notes.items()]
    return "\n\n".join([r"\section*{Notes on figures and tables}", *paragraphs, ""]) if paragraphs else ""


def input_tables(names: Sequence[str]) -> str:
    """Return commands that input all tables of these names."""
    return "".join(f"\\input{{tables/{name}}}\\floatsfirst\n" for name in names)


def site_name(runs: pd.DataFrame, configured: str) -> str:
    """Return the name of the site that the runs recorded, else the configured one."""
    names = runs["site"].dropna().unique()
    return str(names[0]) if len(names) == 1 else configured


def copy_file(source: Path, target: Path) -> None:
    """Copy `source` to the file `target`, whole or not at all."""
    with written_whole(target) as partial:
        shutil.copyfile(source, partial)


def write_sources(facts: Facts, figures: Sequence[Path], all_tables: Sequence[Path], out: Path) -> None:
    """Write all generated files into `out`; `figures` and `all_tables` are files without their suffixes."""
    paragraphs_of = {
        stem.name: Path(f"{stem}.caption.md").read_text(encoding="utf-8").strip().split("\n\n")
        for stem in figures
    }
    captions = {name: below.rstrip(".") + "." for name, (below, *_) in paragraphs_of.items()}
    tables_by_name = {stem.name: tables.read(stem) for stem in all_tables}
    selection = Selection(
        {name: caption for name, caption in captions.items() if not content.why_not_drawn(caption)},
        [name for name, table in tables_by_name.items() if not content.why_empty(table)],
    )
    choice = facts.study.paper
    paper = selection.select(choice.chosen_figures(facts.study.drawn()), choice.chosen_tables())
    data = {
        name: tables_by_name[name].data if name in tables_by_name else pd.DataFrame()
        for name in ("effects", "anova")
    }
    answer = answer_sentences(facts.runs, data["effects"], data["anova"], facts.study.answer)
    notes = {
        name: apart[0] for name, (_, *apart) in paragraphs_of.items() if apart and name in selection.captions
    }
    notes |= {
        f"table {name}": " ".join(tables_by_name[name].notes_elsewhere)
        for name in selection.tables
        if tables_by_name[name].notes_elsewhere
    }
    for name, content_of in generated_files(facts, paper, selection.remainder(paper), answer, notes).items():
        write_text(out / name, GENERATED_HEADER + content_of)
    for stem in figures:
        if stem.name not in selection.captions:  # Snakemake expects a file for each
            write_text(
                out / "figures" / f"{stem.name}.tex",
                f"{GENERATED_HEADER}% {captions[stem.name].replace(chr(10), ' ')}\n",
            )
        copy_file(Path(f"{stem}.pdf"), out / "figures" / f"{stem.name}.pdf")
    for stem in all_tables:
        copy_file(Path(f"{stem}.tex"), out / "tables" / f"{stem.name}.tex")
    datasets = {}
    for name in dict.fromkeys(facts.runs["dataset"]):
        try:
            datasets[name] = load_dataset(name)
        except InputError:  # a data set of another checkout, which methods.tex states
            continue
    write_text(out / "references.bib", references(datasets))


def main(
    *,
    study: str,
    site: str,
    runs: Path,
    network: Sequence[Path] = (),
    figures: Sequence[Path] = (),
    tables: Sequence[Path] = (),
    out: Path,
) -> None:
    """Make the sources of a study's paper, all but main.tex.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/, where the records name none
        runs: runs.csv of the study
        network: network.csv, where there is one
        figures: files without their suffix
        tables: files without their suffix
        out: the paper's folder
    """
    measured = read_timing_runs(runs)
    try:
        site_of_runs = load_site(site_name(measured, site))
    except InputError:  # the site of published tables may be unknown here
        site_of_runs = None
    checks = [Path(f"{stem}.csv") for stem in tables if stem.name == "checks"]
    facts = Facts(
        study=load_study(study),
        site=site_of_runs,
        runs=measured,
        network=read_table(network[0], "network") if network else None,
        checks=read_results(checks[0]) if checks else None,
        paper_tables=[stem.name for stem in tables],
    )
    write_sources(facts, figures, tables, out)
    names = anonymizer(facts.study, facts.site, facts.runs)
    if names.active:
        scrub_sources(out, figures, names)


if __name__ == "__main__":
    sys.exit(run_program(main))
