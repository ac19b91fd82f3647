"""Write the sources of a study's paper in results/<study>/paper/, except main.tex, which its author writes.

    options.tex                 options of the LaTeX class
    preamble.tex                packages and commands; the study's title, question and authors
    methods.tex, threats.tex, reproducibility.tex    text
    abstract.tex, discussion.tex, conclusion.tex     drafts, marked as such (report/drafts.py)
    results.tex, tables.tex     the answer, and the figures and tables of figures/ and tables/
    supplement.tex              a separate document with all other figures and tables
    references.bib              bibliography

Figures and tables are copies, so that the folder can be moved elsewhere.
"""

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis import tables
from analysis.answers import Answer
from analysis.evidence import Evidence
from analysis.records import Records, currency_of
from analysis.responses import with_response
from analysis.tables import PAGE_ROWS, Table, fits_float, is_landscape
from common.errors import InputError
from common.files import write_text, written_whole
from common.notes import Note
from common.options import run_program
from common.tables import read_results, read_table
from common.text import end_sentence, first_sentence, split_sentences
from declared.datasets import find_dataset
from declared.figure_specs import FigureSpec, from_json
from declared.paper import DEFAULT_CLASS
from declared.responses import RESPONSES, Response
from declared.site import load_site
from declared.study import load_study
from figures.captions import Caption, read_caption
from report import content, document
from report.anonymous import build_anonymizer, scrub_sources
from report.answer import answer_question, gather_evidence
from report.checkout import State
from report.drafts import draft_texts
from report.facts import MEANS, Facts
from report.findings import find_effect_note, refer_to_figure, state_finding
from report.latex import cited, figure_environment, link_names, references, see, to_latex
from report.methods import (
    constant_table,
    framework_table,
    varied_factor_table,
    write_methods,
    write_reproducibility,
)
from report.results import arrange_sections, write_results
from report.threats import write_threats

GENERATED_HEADER = "% Overwritten by every `./ringside paper`: to change this text, copy it into main.tex.\n"
MAX_FLOAT_ROWS = (
    40  # Tables with more lines are in the supplement, unless the study names the paper's tables.
)
MEANS_COLUMNS = (
    "epoch time (s)",
    "throughput (samples/s)",
    "throughput (tokens/s)",
    "validation accuracy (%)",
)
ENDING_HOLDS = "This also holds for all other figures unless they say otherwise."
NO_SUPPLEMENT = "All figures and tables of the study are in its paper.\n"
# Pages of floats begin at the top, so that no page has a figure in its middle. Tables that are all across the
# page share the last pages; LaTeX would give narrow ones a page of their own.
SUPPLEMENT = r"""\documentclass[10pt,twocolumn]{article}
%s
\usepackage{multicol}
\makeatletter
\setlength{\@fptop}{0pt}\setlength{\@fpsep}{14pt}\setlength{\@dblfptop}{0pt}\setlength{\@dblfpsep}{14pt}
\makeatother
\renewcommand{\dblfloatpagefraction}{0.9}
\newcommand{\tablesacross}{\renewenvironment{table}{\begin{table*}}{\end{table*}}}
\newenvironment{sideways}{\landscape\begingroup\def\landscape{}\def\endlandscape{}}{\endgroup\endlandscape}
\renewcommand{\thefigure}{S\arabic{figure}}
\renewcommand{\thetable}{S\arabic{table}}
\title{Supplement: \studytitle}
\author{\studyauthors}
\date{}

\begin{document}
\maketitle
\footnotesize
%s
\end{document}
"""
_PDF_WIDTH = re.compile(rb"/MediaBox \[ ?0 0 ([\d.]+)")  # in points
BIBLIOGRAPHY = "\\bibliographystyle{unsrt}\n\\bibliography{references}\n"


@dataclass(frozen=True)
class Floats:
    """Figures and tables with content, of a study or of one of its documents, each in order.

    Attributes:
        captions: Captions of figures by name.
        tables: Tables by name.
    """

    captions: Mapping[str, Caption]
    tables: Mapping[str, Table]

    def select(self, figures: Sequence[str], names: Sequence[str]) -> "Floats":
        """Return the figures and tables with these names, in the order of the names."""
        return Floats(
            {name: self.captions[name] for name in figures if name in self.captions},
            {name: self.tables[name] for name in names if name in self.tables},
        )

    def exclude(self, paper: "Floats") -> "Floats":
        """Return the figures and tables that are not in the paper."""
        return self.select(
            [name for name in self.captions if name not in paper.captions],
            [name for name in self.tables if name not in paper.tables],
        )

    @property
    def labels(self) -> list[str]:
        """Return the labels of figures and tables in LaTeX."""
        return [f"fig:{name}" for name in self.captions] + [f"tab:{name}" for name in self.tables]

    @property
    def endnotes(self) -> dict[str, str]:
        """Return the endnotes of figures and tables that have some, by label."""
        notes = {f"fig:{name}": caption.endnotes for name, caption in self.captions.items()}
        notes |= {f"tab:{name}": table.endnotes for name, table in self.tables.items()}
        return {label: " ".join(texts) for label, texts in notes.items() if texts}

    @property
    def titles(self) -> dict[str, str]:
        """Return what figures and tables show, in a few words, by label."""
        titles = {
            f"fig:{name}": first_sentence(caption).partition(":")[0]
            for name, caption in self.captions.items()
        }
        return titles | {f"tab:{name}": table.title for name, table in self.tables.items()}

    @cached_property
    def long(self) -> list[str]:
        """Return the names of tables that are too long to float."""
        return [name for name, table in self.tables.items() if not fits_float(table, PAGE_ROWS)]

    @cached_property
    def wide(self) -> list[str]:
        """Return the names of the long tables that are wider than a page."""
        return [name for name in self.long if is_landscape(self.tables[name])]


@dataclass(frozen=True)
class PaperContents:
    """What a paper and its supplement show besides their text.

    Attributes:
        paper: Figures and tables of the paper.
        supplement: Figures and tables of its supplement.
        means: The paper's short table of means of cells; None without one.
        specs: Specs of the paper's figures, by name.
        paper_numbers: What the paper's figures and tables are called, such as `Figure 2`, by label.
        supplement_numbers: What those of the supplement are called, such as `Table S3`, by label.
    """

    paper: Floats
    supplement: Floats
    means: Table | None = None
    specs: Mapping[str, FigureSpec] = field(default_factory=dict)
    paper_numbers: Mapping[str, str] = field(default_factory=dict)
    supplement_numbers: Mapping[str, str] = field(default_factory=dict)


def generated_files(
    facts: Facts, contents: PaperContents, findings: Mapping[str, Note], answer: Answer
) -> dict[str, str]:
    """Return the texts of the generated files by name, with references to figures and tables.

    Args:
        facts: The facts of the study.
        contents: What paper and supplement show.
        findings: Sentences on what figures of the paper show, with FIGURE_REFERENCE, by name.
        answer: The answer to the study's question.
    """
    paper, supplement = contents.paper, contents.supplement
    class_name = facts.study.paper.class_name
    means = tables.latex(contents.means, f"tab:{MEANS}") if contents.means else ""
    texts = {
        "options.tex": document.options(class_name, facts.anonymous),
        "preamble.tex": document.preamble(facts.study, class_name, facts.anonymous),
        "methods.tex": "".join(introduction_tables(facts)) + write_methods(facts),
        "results.tex": write_results(facts, contents.specs, findings, answer),
        "tables.tex": means + input_tables(paper),
        "threats.tex": write_threats(facts),
        "reproducibility.tex": write_reproducibility(facts),
    }
    captions = drop_shared_endings(
        {
            name: end_sentence(" ".join(caption.below))
            for name, caption in (*paper.captions.items(), *supplement.captions.items())
        }
    )
    environments = {
        f"figures/{name}.tex": figure_environment(name, caption) for name, caption in captions.items()
    }
    texts |= {name: environments[name] for name in (f"figures/{figure}.tex" for figure in paper.captions)}
    linked = {name: link(text, contents) for name, text in texts.items()}
    named = set(re.findall(r"(?:Figure|Table)~S\d+", "".join(linked.values())))
    unnamed = {
        label: number
        for label, number in contents.supplement_numbers.items()
        if label in supplement.titles and number.replace(" ", "~") not in named
    }
    if unnamed:
        entries = [f"{_begin_small(supplement.titles[label])} ({unnamed[label]})" for label in unnamed]
        linked["methods.tex"] += "\n" + facts.sentence("supplement-rest", entries=entries) + "\n"
    preamble = document.preamble(facts.study, DEFAULT_CLASS, facts.anonymous)
    body = show_supplement(contents, constant_table(facts))
    in_supplement = {"supplement.tex": SUPPLEMENT % (preamble, body)}
    in_supplement |= {name: text for name, text in environments.items() if name not in texts}
    return linked | {name: link(text, contents, True) for name, text in in_supplement.items()}


def _begin_small(title: str) -> str:
    return title if title[1:2].isupper() else f"{title[:1].lower()}{title[1:]}"


def drop_shared_endings(captions: Mapping[str, str]) -> dict[str, str]:
    """Drop from each later caption the closing sentences that it shares with the first one.

    Such sentences, for example on the number of runs per cell, hold for most figures of a study. If one was
    dropped, the first caption says so.
    """
    split = {name: split_sentences(caption) for name, caption in captions.items()}
    first, *later = split or [""]
    shortened = dict(captions)
    for name in later:
        n_common = 0
        for sentence, shared in zip(reversed(split[name][1:]), reversed(split[first]), strict=False):
            if sentence != shared:
                break
            n_common += 1
        if n_common:
            shortened[name] = " ".join(split[name][:-n_common])
            shortened[first] = f"{captions[first]} {ENDING_HOLDS}"
    return shortened


def introduction_tables(facts: Facts) -> list[str]:
    """Return the tables of the section on methods in LaTeX."""
    return list(filter(None, (varied_factor_table(facts), framework_table(facts))))


def number_paper(contents: PaperContents, answer: Answer, n_tables: int) -> dict[str, str]:
    """Return what the paper's figures and tables are called in it, such as `Figure 2`, by label.

    Args:
        contents: What paper and supplement show.
        answer: The answer, which decides on the order of figures.
        n_tables: Number of tables before those of the study.
    """
    preamble, sections = arrange_sections(contents.specs, answer)
    figures = [name for section in (preamble, *sections.values()) for name in section.figures]
    names = sorted(contents.paper.tables, key=lambda name: name in contents.paper.long)
    numbers = {f"fig:{name}": f"Figure {number}" for number, name in enumerate(figures, 1)}
    return numbers | {f"tab:{name}": f"Table {number}" for number, name in enumerate(names, n_tables + 1)}


def number_supplement(supplement: Floats, has_constants: bool) -> dict[str, str]:
    """Return what the supplement's figures and tables are called, such as `Table S3`, by label.

    The order is that of `show_supplement`.
    """
    floating, long, wide = _parts(supplement)
    names = [*(["constants"] if has_constants else []), *floating, *long, *wide]
    numbers = {f"fig:{name}": f"Figure S{number}" for number, name in enumerate(supplement.captions, 1)}
    return numbers | {f"tab:{name}": f"Table S{number}" for number, name in enumerate(names, 1)}


def _parts(supplement: Floats) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the supplement's tables that float, of the long ones, and of those in landscape."""
    floating = [name for name in supplement.tables if name not in supplement.long]
    return floating, [name for name in supplement.long if name not in supplement.wide], supplement.wide


def show_supplement(contents: PaperContents, constants: str) -> str:
    """Return figures and tables with their endnotes, notes on those of the paper, and references.

    Notes come before the long tables, so that text fills the pages around the figures and tables that float.

    Args:
        contents: What paper and supplement show.
        constants: The table of constant factors.
    """
    supplement = contents.supplement
    floating, long, wide = _parts(supplement)
    notes = {
        label: _note_paragraph(see(*label.split(":")), note) for label, note in supplement.endnotes.items()
    }
    parts = [
        constants,
        "\\tablesacross\n",
        *(f"{_input('figures', [name])}{notes.get(f'fig:{name}', '')}" for name in supplement.captions),
        *(f"{_input('tables', [name])}{notes.get(f'tab:{name}', '')}" for name in floating),
        *(notes.get(f"tab:{name}", "") for name in (*long, *wide)),
        "" if supplement.labels else NO_SUPPLEMENT,
        "\\clearpage\n\\onecolumn\n" + _input("tables", long),
        "\\begin{multicols}{2}",
        paper_notes(contents.paper.endnotes, contents.paper_numbers),
        BIBLIOGRAPHY + "\\end{multicols}\n",
        f"\\begin{{sideways}}\n{_input('tables', wide)}\\end{{sideways}}\n" if wide else "",
    ]
    return "\n".join(filter(None, parts))


def _note_paragraph(name: str, note: str) -> str:
    return rf"\par\smallskip\noindent\textbf{{{name}.}} {cited(to_latex(note))}" + "\n"


def _input(folder: str, names: Sequence[str]) -> str:
    """Return the commands that input these figures or tables."""
    return "".join(f"\\input{{{folder}/{name}}}\n" for name in names)


def paper_notes(endnotes: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    """Return the section of endnotes on figures and tables of the paper; "" without any.

    Args:
        endnotes: Endnotes by label, such as tab:cells.
        numbers: What the paper's figures and tables are called in it, by label.
    """
    paragraphs = [
        _note_paragraph(f"{name} of the paper", endnotes[label])
        for label, name in numbers.items()
        if label in endnotes
    ]
    heading = r"\section*{Notes on figures and tables of the paper}"
    return "\n".join([heading, *paragraphs]) if paragraphs else ""


def input_tables(paper: Floats) -> str:
    """Return commands that input tables: first the floating ones, then the long ones."""
    floating = [name for name in paper.tables if name not in paper.long]
    long = f"\\longtables{{\\floatsfirst\n{_input('tables', paper.long)}}}\n" if paper.long else ""
    return _input("tables", floating) + long


def means_table(cells: Table, response: Response) -> Table:
    """Return the table of cells with the columns for a paper: factors, runs and main responses."""
    names, needed = list(cells.display), {response.label, *MEANS_COLUMNS}
    columns = [*names[: names.index("n") + 1], *(name for name in names if name in needed)]
    return replace(cells, display=cells.display[columns], notes=cells.notes[-1:])


def choose_contents(facts: Facts, floats: Floats) -> PaperContents:
    """Return the figures and tables of the paper and of its supplement.

    Unless the study names the paper's tables, it has the tables that fit on a part of a page, and the main
    columns of `cells`.
    """
    choice = facts.study.paper
    drawn = {spec.name: spec for spec in facts.figure_specs if spec.name in floats.captions}
    chosen = [name for name in choice.chosen_tables() if name in floats.tables]
    means = None
    if choice.tables is None:
        if "cells" in chosen:
            chosen.remove("cells")
            response = RESPONSES[facts.study.response].with_currency(currency_of(facts.runs))
            short = means_table(floats.tables["cells"], response)
            means = short if fits_float(short, MAX_FLOAT_ROWS) else None
        chosen = [name for name in chosen if fits_float(floats.tables[name], MAX_FLOAT_ROWS)]
    paper = floats.select(choice.chosen_figures(list(drawn.values())), chosen)
    specs = {name: drawn[name] for name in paper.captions}
    return PaperContents(paper, floats.exclude(paper), means, specs)


def assign_findings(
    specs: Sequence[FigureSpec], evidence: Evidence, answer: Answer
) -> tuple[dict[str, Note], Answer]:
    """Return findings of the paper's figures, by name, and the answer.

    A figure of an effect in the answer has no finding; the answer's sentence refers to it instead.
    """
    findings: dict[str, Note] = {}
    for spec in specs:
        notes = [note for note in (*answer.main, *answer.further) if "figure" not in note.facts]
        if effect := find_effect_note(spec, notes, evidence.response):
            referring = refer_to_figure(effect, spec.name)
            main, further = (
                [referring if note is effect else note for note in part]
                for part in (answer.main, answer.further)
            )
            answer = answer._replace(main=main, further=further)
        elif finding := state_finding(spec, evidence):
            findings[spec.name] = finding
    return findings, answer


def compose(
    facts: Facts, floats: Floats, values: Mapping[str, pd.DataFrame]
) -> tuple[dict[str, str], PaperContents]:
    """Return the texts of the generated files by name, and what paper and supplement show."""
    contents = choose_contents(facts, floats)
    evidence = gather_evidence(facts.study, facts.runs, values, facts.load_epochs)
    answer = answer_question(facts.study, evidence)
    findings, referring = assign_findings(list(contents.specs.values()), evidence, answer)
    contents = replace(
        contents,
        paper_numbers=number_paper(
            contents, referring, len(introduction_tables(facts)) + bool(contents.means)
        ),
        supplement_numbers=number_supplement(contents.supplement, bool(constant_table(facts))),
    )
    facts = replace(
        facts,
        paper_labels=[*contents.paper.labels, *([f"tab:{MEANS}"] if contents.means else [])],
        supplement_numbers=contents.supplement_numbers,
        recovers=any(note.code == "recovered" for note in answer.main),
    )
    files = generated_files(facts, contents, findings, referring)
    drafts = draft_texts(facts, answer, evidence)
    return files | {name: link(text, contents) for name, text in drafts.items()}, contents


def write_sources(facts: Facts, figure_stems: Sequence[Path], table_stems: Sequence[Path], out: Path) -> None:
    """Write all generated files into `out`, and copy figures and tables there.

    Args:
        facts: The facts of the study.
        figure_stems: The study's figures, without suffixes.
        table_stems: The study's printed tables, without suffixes.
        out: The paper's folder.

    Raises:
        InputError: If main.tex has another LaTeX class than the study's paper.
    """
    document.check_class(out / "main.tex", facts.study.paper.class_name)
    # LaTeX keeps figures in order: a narrow one after wide ones would wait for them and leave a column empty.
    captions = {stem.name: read_caption(stem) for stem in sorted(figure_stems, key=_is_wide)}
    read_tables = {stem.name: tables.read(stem) for stem in table_stems}
    floats = Floats(
        {name: caption for name, caption in captions.items() if not content.why_not_drawn(caption)},
        {name: table for name, table in read_tables.items() if not content.why_empty(table)},
    )
    values = {name: table.data for name, table in read_tables.items()}
    files, contents = compose(facts, floats, values)
    # Snakemake expects a file for each figure.
    files |= {
        f"figures/{name}.tex": f"% {' '.join(caption.split())}\n"
        for name, caption in captions.items()
        if name not in floats.captions
    }
    for name, text in files.items():
        write_text(out / name, GENERATED_HEADER + text)
    for stem in figure_stems:
        with written_whole(out / "figures" / f"{stem.name}.pdf") as partial:
            shutil.copyfile(f"{stem}.pdf", partial)
    for stem in table_stems:
        text = cited(Path(f"{stem}.tex").read_text(encoding="utf-8"))
        in_supplement = stem.name in contents.supplement.tables
        write_text(out / "tables" / f"{stem.name}.tex", link(text, contents, in_supplement))
    datasets = {name: find_dataset(name) for name in facts.runs["dataset"].unique()}
    write_text(out / "references.bib", references({name: entry for name, entry in datasets.items() if entry}))


def _is_wide(figure: Path) -> bool:
    """Return whether a figure, without its suffix, is wider than a column of the page."""
    width = _PDF_WIDTH.search(Path(f"{figure}.pdf").read_bytes())
    return not width or float(width[1]) > 1.1 * tables.COLUMN_PT


def link(text: str, contents: PaperContents, in_supplement: bool = False) -> str:
    """Return text with references to figures and tables, and names for those of the other document."""
    if in_supplement:
        elsewhere = {label: f"{name} of the paper" for label, name in contents.paper_numbers.items()}
        return link_names(text, contents.supplement.labels, elsewhere)
    return link_names(text, contents.paper.labels, contents.supplement_numbers)


def main(
    *,
    study: str,
    site: str,
    runs: Path,
    epochs: Path,
    network: Sequence[Path] = (),
    figures: Sequence[str] = (),
    figure_folder: Path = Path(),
    tables: Sequence[Path] = (),
    checkout: str,
    out: Path,
) -> None:
    """Make the sources of a study's paper, except main.tex.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/, used if the records name none
        runs: runs.csv of the study
        epochs: epochs.csv of the study
        network: network.csv, if it exists
        figures: specs of the figures, as JSON
        figure_folder: the folder of their files
        tables: files without their suffix
        checkout: the state of the checkout (report.checkout), as JSON
        out: the paper's folder
    """
    study_of_paper, records = load_study(study), Records(runs, epochs)
    response, target = RESPONSES[study_of_paper.response], study_of_paper.target_accuracy
    measured = with_response(records.runs, response, lambda: records.epochs, target)
    specs = list(map(from_json, figures))
    stems = [figure_folder / spec.name for spec in specs]
    site_names = measured["site"].dropna().unique()
    try:
        site_of_runs = (
            None if study_of_paper.imported else load_site(site_names[0] if len(site_names) == 1 else site)
        )
    except InputError:  # published tables can name a site that is unknown here
        site_of_runs = None
    checks = [Path(f"{stem}.csv") for stem in tables if stem.name == "checks"]
    facts = Facts(
        study=study_of_paper,
        site=site_of_runs,
        runs=measured,
        network=read_table(network[0], "network") if network else None,
        checks=read_results(checks[0]) if checks else None,
        figure_specs=specs,
        load_epochs=lambda: records.epochs,
        state=State.from_json(checkout),
    )
    write_sources(facts, stems, tables, out)
    anonymizer = build_anonymizer(facts.study, facts.site, facts.runs, tables)
    if anonymizer.active:
        scrub_sources(out, stems, anonymizer)


if __name__ == "__main__":
    sys.exit(run_program(main))
