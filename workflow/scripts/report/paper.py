"""The sources of a study's paper, made anew from its records: results/<study>/paper/, all but main.tex, which is its author's.

    preamble.tex                what the other files need; the study's title and question
    methods.tex, threats.tex, reproducibility.tex    text
    results.tex, tables.tex     the answer, the paper's figures and tables; figures/ and tables/ have each by itself
    supplement.tex              a document of its own, with all other figures and tables
    references.bib              what is cited

The figures and tables are copies, so that the folder can be taken elsewhere as it is.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from analysis import tables
from analysis.answers import NOTE, Sentence, answer_sentences, split_opening
from analysis.measured import read_timed
from common.errors import InputError
from common.files import write_text, written_whole
from common.options import run_program
from common.tables import read_table
from common.text import number_of
from declared.datasets import load_dataset
from declared.site import load_site
from declared.study import Study, load_study
from report import content
from report.latex import figure, first_sentence, references, see, text
from report.methods import Facts, factor_table, framework_table, methods, reproducibility, threats

MADE = "% Written again by every `snakemake paper`: to change this text, copy it into main.tex.\n"
# TeX fits what is too large, whoever drew it; long captions leave that much of a page to their figure.
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
\newcommand{\floatsfirst}{\ifx\@deferlist\@empty\else\clearpage\fi} % tables that float stay before those that do not
\makeatother
\newsavebox{\ringsidebox}
\newcommand{\fitgraphics}[1]{%
  \sbox{\ringsidebox}{\includegraphics{#1}}%
  \ifdim\wd\ringsidebox>\linewidth \sbox{\ringsidebox}{\resizebox{\linewidth}{!}{\usebox{\ringsidebox}}}\fi
  \ifdim\ht\ringsidebox>0.66\textheight \sbox{\ringsidebox}{\resizebox{!}{0.66\textheight}{\usebox{\ringsidebox}}}\fi
  \usebox{\ringsidebox}}
\newcommand{\tobewritten}[1]{\par\medskip\noindent\fbox{%
  \parbox{\dimexpr\linewidth-2\fboxsep-2\fboxrule}{\textbf{To be written:} #1}}\par\medskip}
"""

NO_AUTHORS = "TODO: name the authors"
NOTHING_MORE = "All figures and tables of the study are in its paper.\n"
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
class Shown:
    """A part of what a study shows: figures with their captions, and tables, each in its order."""

    captions: Mapping[str, str]
    tables: Sequence[str]

    def only(self, figures: Sequence[str], tables: Sequence[str]) -> "Shown":
        """Those of these names, in their order."""
        return Shown(
            {name: self.captions[name] for name in figures if name in self.captions},
            [name for name in tables if name in self.tables],
        )

    def others(self, than: "Shown") -> "Shown":
        """All that are not in the other part."""
        return self.only(
            [name for name in self.captions if name not in than.captions],
            [name for name in self.tables if name not in than.tables],
        )


def texts(
    facts: Facts, paper: Shown, supplement: Shown, answer: Sequence[Sentence], notes: Mapping[str, str]
) -> dict[str, str]:
    """The generated files that are not copies: name -> content. `notes`: what is to be said of figures apart from their captions."""
    facts = replace(facts, shown=paper.tables, beside=supplement.tables)
    said = {"title": facts.study.title, "question": facts.study.question}
    return {
        "preamble.tex": PREAMBLE
        + "".join(rf"\newcommand{{\study{name}}}{{{text(value)}}}" + "\n" for name, value in said.items())
        + rf"\newcommand{{\studyauthors}}{{{authors(facts.study)}}}"
        + "\n",
        "methods.tex": methods(facts) + factor_table(facts) + framework_table(facts),
        "results.tex": results(facts, paper.captions, answer),
        "tables.tex": inputs(paper.tables),
        "threats.tex": threats(facts),
        "reproducibility.tex": reproducibility(facts),
        "supplement.tex": SUPPLEMENT
        % (figures_shown(supplement.captions) + inputs(supplement.tables) + notes_of(notes) or NOTHING_MORE),
        **{
            f"figures/{name}.tex": figure(name, caption)
            for name, caption in {**paper.captions, **supplement.captions}.items()
        },
    }


def authors(study: Study) -> str:
    """The authors of a study as a title has them; without any, what is to be done."""
    named = [
        text(f"{one.given_names} {one.family_names}") + (rf"\\{text(one.affiliation)}" if one.affiliation else "")
        for one in study.authors
    ]
    return r" \and ".join(named) or NO_AUTHORS


def results(facts: Facts, captions: Mapping[str, str], answer: Sequence[Sentence]) -> str:
    """The answer in sentences, then the figures, each with the sentence that it shows."""
    done, planned = len(facts.ok), number_of(len(facts.runs), "run")
    first, more = ([_said(one) for one in some] for some in split_opening(answer))
    lines = [
        *first,
        *([text(NOTE)] if any(one.subject for one in answer) else []),
        f"{done:,} of {planned} succeeded{facts.see('cells', '; the means of all cells are in ', '')}.",
        *more,
    ]
    return "\n\n".join(lines) + "\n\n" + figures_shown(captions)


def _said(one: Sentence) -> str:
    return rf"\textbf{{{text(one.subject)}}}: {text(one.text)}" if one.subject else text(one.text)


def figures_shown(captions: Mapping[str, str]) -> str:
    """Figures, each after the sentence that it shows."""
    parts = [
        f"{see('fig', name)}: {text(first_sentence(said))}.\n\n\\input{{figures/{name}}}\\floatsfirst"
        for name, said in captions.items()
    ]
    return "\n\n".join([*parts, "\\clearpage\n"]) if parts else ""


def notes_of(notes: Mapping[str, str]) -> str:
    """What captions leave out, in a section of its own: a paragraph for each figure and table. Empty without notes."""
    said = [rf"\paragraph{{{text(name)}}} {text(note)}" for name, note in notes.items()]
    return "\n\n".join([r"\section*{Notes on figures and tables}", *said, ""]) if said else ""


def inputs(names: Sequence[str]) -> str:
    """All tables of these names."""
    return "".join(f"\\input{{tables/{name}}}\\floatsfirst\n" for name in names)


def site_of(runs: pd.DataFrame, configured: str) -> str:
    """The site where the runs were made, by their records, whatever is configured."""
    named = runs["site"].dropna().unique()
    return str(named[0]) if len(named) == 1 else configured


def copied(source: Path, target: Path) -> None:
    """`source` as the file `target`, whole or not at all."""
    with written_whole(target) as partial:
        shutil.copyfile(source, partial)


def write(facts: Facts, figures: Sequence[Path], all_tables: Sequence[Path], out: Path) -> None:
    """Write all generated files into `out`; `figures` and `all_tables` are files without their suffixes."""
    said = {stem.name: Path(f"{stem}.caption.md").read_text(encoding="utf-8").strip().split("\n\n") for stem in figures}
    captions = {name: below.rstrip(".") + "." for name, (below, *_) in said.items()}
    made = {stem.name: tables.read(stem) for stem in all_tables}
    every = Shown(
        {name: caption for name, caption in captions.items() if not content.why_not_drawn(caption)},
        [name for name, table in made.items() if not content.why_empty(table)],
    )
    choice = facts.study.paper
    paper = every.only(choice.chosen_figures(facts.study.drawn()), choice.chosen_tables())
    data = {name: made[name].data if name in made else pd.DataFrame() for name in ("effects", "anova")}
    answer = answer_sentences(facts.runs, data["effects"], data["anova"])
    notes = {name: apart[0] for name, (_, *apart) in said.items() if apart and name in every.captions}
    notes |= {f"table {name}": " ".join(made[name].apart) for name in every.tables if made[name].apart}
    for name, content_of in texts(facts, paper, every.others(paper), answer, notes).items():
        write_text(out / name, MADE + content_of)
    for stem in figures:
        if stem.name not in every.captions:  # Snakemake is promised a file for each
            write_text(out / "figures" / f"{stem.name}.tex", f"{MADE}% {captions[stem.name].replace(chr(10), ' ')}\n")
        copied(Path(f"{stem}.pdf"), out / "figures" / f"{stem.name}.pdf")
    for stem in all_tables:
        copied(Path(f"{stem}.tex"), out / "tables" / f"{stem.name}.tex")
    known = {}
    for name in dict.fromkeys(facts.runs["dataset"]):
        try:
            known[name] = load_dataset(name)
        except InputError:  # a data set of another checkout: methods.tex says so
            continue
    write_text(out / "references.bib", references(known))


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
    measured = read_timed(runs)
    try:
        there = load_site(site_of(measured, site))
    except InputError:  # of published tables the site's file may be elsewhere
        there = None
    checks = [Path(f"{stem}.csv") for stem in tables if stem.name == "checks"]
    facts = Facts(
        study=load_study(study),
        site=there,
        runs=measured,
        network=read_table(network[0], "network") if network else None,
        checks=pd.read_csv(checks[0]) if checks else None,
        shown=[stem.name for stem in tables],
    )
    write(facts, figures, tables, out)


if __name__ == "__main__":
    sys.exit(run_program(main))
