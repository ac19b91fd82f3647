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

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from analysis.answers import Answer
from analysis.evidence import Evidence
from analysis.records import Records, currency_of
from analysis.responses import with_response
from analysis.tables import PAGE_ROWS, Table, fits_float, is_landscape, latex, read
from common.errors import InputError
from common.files import write_text, written_whole
from common.notes import Note
from common.options import run_program
from common.tables import read_results, read_table
from common.text import split_sentences
from declared.datasets import find_dataset
from declared.figure_specs import FigureSpec, from_json
from declared.paper import DEFAULT_CLASS
from declared.responses import RESPONSES, Response
from declared.site import load_site
from declared.study import load_study
from report import content, document
from report.anonymous import build_anonymizer, scrub_sources
from report.answer import answer_question, gather_evidence
from report.checkout import State
from report.drafts import draft_texts
from report.facts import MEANS, Facts
from report.findings import find_effect_note, refer_to_figure, state_finding
from report.latex import cited, figure, link_names, references, to_latex
from report.methods import (
    constant_table,
    framework_table,
    methods,
    reproducibility,
    supplement_methods,
    varied_factor_table,
)
from report.results import arrange_sections, write_results
from report.threats import threats

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
SUPPLEMENT = r"""\documentclass[10pt]{article}
%s
\usepackage{multicol}
%s
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
BIBLIOGRAPHY = "\\bibliographystyle{unsrt}\n\\bibliography{references}\n"


@dataclass(frozen=True)
class Selection:
    """Figures with captions, and tables of a study, each in order."""

    captions: Mapping[str, str]
    tables: Sequence[str]

    def select(self, figures: Sequence[str], tables: Sequence[str]) -> "Selection":
        """Return the figures and tables with these names, in the order of the names."""
        return Selection(
            {name: self.captions[name] for name in figures if name in self.captions},
            [name for name in tables if name in self.tables],
        )

    @property
    def labels(self) -> list[str]:
        """Return the labels of figures and tables in LaTeX."""
        return [f"fig:{name}" for name in self.captions] + [f"tab:{name}" for name in self.tables]

    def remainder(self, paper: "Selection") -> "Selection":
        """Return the figures and tables that are not in the paper."""
        return self.select(
            [name for name in self.captions if name not in paper.captions],
            [name for name in self.tables if name not in paper.tables],
        )


@dataclass(frozen=True)
class Contents:
    """What a paper and its supplement show besides their text.

    Attributes:
        paper: Figures and tables of the paper.
        supplement: Figures and tables of its supplement.
        long: Names of tables that are too long to float.
        landscape: Names of the long tables that are wider than a page.
        means: The paper's short table of means of cells; None without one.
        specs: Specs of the paper's figures, by name.
        findings: Sentences on what figures of the paper show, with FIGURE_REFERENCE, by name.
        endnotes: Endnotes of figures and tables, by label.
        paper_numbers: What the paper's figures and tables are called, such as `Figure 2`, by label.
        supplement_numbers: What those of the supplement are called, such as `Table S3`, by label.
    """

    paper: Selection
    supplement: Selection
    long: Sequence[str] = ()
    landscape: Sequence[str] = ()
    means: Table | None = None
    specs: Mapping[str, FigureSpec] = field(default_factory=dict)
    findings: Mapping[str, Note] = field(default_factory=dict)
    endnotes: Mapping[str, str] = field(default_factory=dict)
    paper_numbers: Mapping[str, str] = field(default_factory=dict)
    supplement_numbers: Mapping[str, str] = field(default_factory=dict)


def generated_files(facts: Facts, contents: Contents, answer: Answer) -> dict[str, str]:
    """Return the contents of the generated files by name."""
    paper, supplement = contents.paper, contents.supplement
    tables_elsewhere = {
        label.removeprefix("tab:"): name
        for label, name in contents.supplement_numbers.items()
        if label.startswith("tab:")
    }
    facts = replace(
        facts,
        paper_tables=[*paper.tables, *([MEANS] if contents.means else [])],
        supplement_tables=tables_elsewhere,
    )
    name = facts.study.paper.class_name
    notes = {
        label: cited(to_latex(note))
        for label, note in contents.endnotes.items()
        if label in supplement.labels
    }
    return {
        "options.tex": document.options(name, facts.anonymous),
        "preamble.tex": document.preamble(facts.study, name, facts.anonymous),
        "methods.tex": "".join(introduction_tables(facts)) + methods(facts),
        "results.tex": write_results(facts, contents.specs, contents.findings, answer),
        "tables.tex": (latex(contents.means, f"tab:{MEANS}") if contents.means else "")
        + input_tables(paper.tables, contents.long),
        "threats.tex": threats(facts),
        "reproducibility.tex": reproducibility(facts),
        "supplement.tex": SUPPLEMENT
        % (
            document.preamble(facts.study, DEFAULT_CLASS, facts.anonymous),
            document.NOTHING_FLOATS,
            show_supplement(contents, notes, constant_table(facts), supplement_methods(facts)),
        ),
        **{
            f"figures/{name}.tex": figure(name, caption, notes.get(f"fig:{name}", ""))
            for part in (paper, supplement)
            for name, caption in drop_shared_endings(part.captions).items()
        },
    }


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


def number_paper(contents: Contents, answer: Answer, n_tables: int) -> dict[str, str]:
    """Return what the paper's figures and tables are called in it, such as `Figure 2`, by label.

    Args:
        contents: What paper and supplement show.
        answer: The answer, which decides on the order of figures.
        n_tables: Number of tables before those of the study.
    """
    preamble, sections = arrange_sections(contents.specs, answer)
    figures = [name for section in (preamble, *sections.values()) for name in section.figures]
    tables = sorted(contents.paper.tables, key=lambda name: name in contents.long)
    numbers = {f"fig:{name}": f"Figure {number}" for number, name in enumerate(figures, 1)}
    return numbers | {f"tab:{name}": f"Table {number}" for number, name in enumerate(tables, n_tables + 1)}


def number_supplement(contents: Contents, has_constants: bool) -> dict[str, str]:
    """Return what the supplement's figures and tables are called, such as `Table S3`, by label.

    The order is that of `show_supplement`.
    """
    upright, wide = supplement_tables(contents)
    tables = [*(["constants"] if has_constants else []), *upright, *wide]
    numbers = {
        f"fig:{name}": f"Figure S{number}" for number, name in enumerate(contents.supplement.captions, 1)
    }
    return numbers | {f"tab:{name}": f"Table S{number}" for number, name in enumerate(tables, 1)}


def supplement_tables(contents: Contents) -> tuple[list[str], list[str]]:
    """Return the names of the supplement's upright tables, and of those wider than a page."""
    upright, wide = (
        [name for name in contents.supplement.tables if (name in contents.landscape) == is_wide]
        for is_wide in (False, True)
    )
    return upright, wide


def show_supplement(contents: Contents, notes: Mapping[str, str], constants: str, table_methods: str) -> str:
    """Return figures and tables with their endnotes, notes on those of the paper, and references.

    Args:
        contents: What paper and supplement show.
        notes: Endnotes of the supplement's figures and tables in LaTeX, by label.
        constants: The table of constant factors.
        table_methods: How tables are computed that only the supplement has.
    """
    figures = "".join(f"\\input{{figures/{name}}}\n" for name in contents.supplement.captions)
    upright, wide = (
        "".join(f"\\input{{tables/{name}}}\n" + _table_note(notes.get(f"tab:{name}", "")) for name in names)
        for names in supplement_tables(contents)
    )
    parts = [
        f"{{\\centering\n{figures}\\par}}\n" if figures else "",
        constants,
        upright,
        "" if figures or upright or wide else NO_SUPPLEMENT,
        f"\\begin{{sideways}}\n{wide}\\end{{sideways}}\n" if wide else "",
        table_methods.replace(r"\subsection{", r"\section*{"),
        paper_notes(contents.endnotes, contents.paper_numbers),
        BIBLIOGRAPHY,
    ]
    return "\n".join(filter(None, parts))


def _table_note(note: str) -> str:
    return f"\\tablenote{{{note}}}\n" if note else ""


def paper_notes(endnotes: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    """Return the section of endnotes on figures and tables of the paper; "" without any.

    Args:
        endnotes: Endnotes by label, such as tab:cells.
        numbers: What the paper's figures and tables are called in it, by label.
    """
    paragraphs = [
        rf"\paragraph{{{name} of the paper}} " + cited(to_latex(endnotes[label]))
        for label, name in numbers.items()
        if label in endnotes
    ]
    if not paragraphs:
        return ""
    heading = r"\section*{Notes on figures and tables of the paper}"
    return "\n\n".join([heading, r"\begin{multicols}{2}\small", *paragraphs, r"\end{multicols}", ""])


def input_tables(names: Sequence[str], long: Sequence[str]) -> str:
    """Return commands that input tables: first the floating ones, then those in `long`."""
    floats, long_tables = (
        [f"\\input{{tables/{name}}}\n" for name in names if (name in long) == is_long]
        for is_long in (False, True)
    )
    return "".join([*floats, *(["\\longtables{\\floatsfirst\n", *long_tables, "}\n"] if long_tables else [])])


def means_table(cells: Table, response: Response) -> Table:
    """Return the table of cells with the columns for a paper: factors, runs and main responses."""
    names, needed = list(cells.display), {response.label, *MEANS_COLUMNS}
    columns = [*names[: names.index("n") + 1], *(name for name in names if name in needed)]
    return replace(cells, display=cells.display[columns], notes=cells.notes[-1:])


def choose_contents(facts: Facts, selection: Selection, tables_by_name: Mapping[str, Table]) -> Contents:
    """Return the figures and tables of the paper and of its supplement.

    Unless the study names the paper's tables, it has the tables that fit on a part of a page, and the main
    columns of `cells`.
    """
    choice = facts.study.paper
    figures = choice.chosen_figures(drawn_specs(facts, selection))
    chosen = [name for name in choice.chosen_tables() if name in selection.tables]
    means = None
    if choice.tables is None:
        if "cells" in chosen:
            chosen.remove("cells")
            response = RESPONSES[facts.study.response].with_currency(currency_of(facts.runs))
            short = means_table(tables_by_name["cells"], response)
            means = short if fits_float(short, MAX_FLOAT_ROWS) else None
        chosen = [name for name in chosen if fits_float(tables_by_name[name], MAX_FLOAT_ROWS)]
    paper = selection.select(figures, chosen)
    long = [name for name in selection.tables if not fits_float(tables_by_name[name], PAGE_ROWS)]
    landscape = [name for name in long if is_landscape(tables_by_name[name])]
    by_name = {spec.name: spec for spec in drawn_specs(facts, paper)}
    specs = {name: by_name[name] for name in paper.captions}
    return Contents(paper, selection.remainder(paper), long, landscape, means, specs)


def drawn_specs(facts: Facts, selection: Selection) -> list[FigureSpec]:
    """Return the specs of selected figures, in the order of the study."""
    return [spec for spec in facts.figure_specs if spec.name in selection.captions]


def assign_findings(
    facts: Facts, paper: Selection, evidence: Evidence, answer: Answer
) -> tuple[dict[str, Note], Answer]:
    """Return findings of the paper's figures, by name, and the answer.

    A figure of an effect in the answer has no finding; the answer's sentence refers to it instead.
    """
    findings: dict[str, Note] = {}
    for spec in drawn_specs(facts, paper):
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


@dataclass(frozen=True)
class StageOutputs:
    """The figures and tables of a study, as its figures and tables stages wrote them.

    Attributes:
        captions: Captions of all figures, by name.
        tables: All printed tables, by name.
        endnotes: Endnotes of figures and tables with content, by label such as tab:cells.
        selection: The figures and tables with content.
    """

    captions: Mapping[str, str]
    tables: Mapping[str, Table]
    endnotes: Mapping[str, str]
    selection: Selection


def read_outputs(figures: Sequence[Path], tables: Sequence[Path]) -> StageOutputs:
    """Read captions, tables and their endnotes; the paths have no suffixes."""
    paragraphs = {
        stem.name: Path(f"{stem}.caption.md").read_text(encoding="utf-8").strip().split("\n\n")
        for stem in figures
    }
    captions = {name: below.rstrip(".") + "." for name, (below, *_) in paragraphs.items()}
    tables_by_name = {stem.name: read(stem) for stem in tables}
    selection = Selection(
        {name: caption for name, caption in captions.items() if not content.why_not_drawn(caption)},
        [name for name, table in tables_by_name.items() if not content.why_empty(table)],
    )
    endnotes = {f"fig:{name}": " ".join(paragraphs[name][1:]) for name in selection.captions}
    endnotes |= {f"tab:{name}": " ".join(tables_by_name[name].endnotes) for name in selection.tables}
    with_text = {label: note for label, note in endnotes.items() if note}
    return StageOutputs(captions, tables_by_name, with_text, selection)


def compose(facts: Facts, outputs: StageOutputs) -> tuple[dict[str, str], Contents]:
    """Return the contents of the generated files by name, and what paper and supplement show."""
    contents = choose_contents(facts, outputs.selection, outputs.tables)
    values = {name: table.data for name, table in outputs.tables.items()}
    evidence = gather_evidence(facts.study, facts.runs, values, facts.load_epochs)
    answer = answer_question(facts.study, evidence)
    drafts = draft_texts(facts, answer, evidence)
    findings, answer = assign_findings(facts, contents.paper, evidence, answer)
    contents = replace(
        contents,
        findings=findings,
        endnotes=outputs.endnotes,
        paper_numbers=number_paper(contents, answer, len(introduction_tables(facts)) + bool(contents.means)),
        supplement_numbers=number_supplement(contents, bool(constant_table(facts))),
    )
    facts = replace(facts, recovers=any(note.code == "recovered" for note in answer.main))
    return generated_files(facts, contents, answer) | drafts, contents


def write_sources(facts: Facts, figures: Sequence[Path], all_tables: Sequence[Path], out: Path) -> None:
    """Write all generated files into `out`, and copy figures and tables there.

    Args:
        facts: The facts of the study.
        figures: The study's figures, without suffixes.
        all_tables: The study's printed tables, without suffixes.
        out: The paper's folder.

    Raises:
        InputError: If main.tex has another LaTeX class than the study's paper.
    """
    document.check_class(out / "main.tex", facts.study.paper.class_name)
    outputs = read_outputs(figures, all_tables)
    files, contents = compose(facts, outputs)
    _write_texts(files, contents, out)
    _copy_figures(figures, outputs, out / "figures")
    _copy_tables(all_tables, contents, out / "tables")
    datasets = {name: find_dataset(name) for name in facts.runs["dataset"].unique()}
    write_text(out / "references.bib", references({name: entry for name, entry in datasets.items() if entry}))


def _write_texts(files: Mapping[str, str], contents: Contents, out: Path) -> None:
    """Write texts, with references to the figures and tables of the document that each belongs to."""
    in_supplement = {"supplement.tex", *(f"figures/{name}.tex" for name in contents.supplement.captions)}
    for name, text in files.items():
        write_text(out / name, GENERATED_HEADER + _refer(text, contents, name in in_supplement))


def _refer(text: str, contents: Contents, in_supplement: bool) -> str:
    """Return text with references to figures and tables, and names for those of the other document."""
    if in_supplement:
        elsewhere = {label: f"{name} of the paper" for label, name in contents.paper_numbers.items()}
        return link_names(text, contents.supplement.labels, elsewhere)
    return link_names(text, contents.paper.labels, contents.supplement_numbers)


def _copy_figures(figures: Sequence[Path], outputs: StageOutputs, folder: Path) -> None:
    """Copy all figures, and write a comment in place of the LaTeX of those without content."""
    for stem in figures:
        if stem.name not in outputs.selection.captions:  # Snakemake expects a file for each
            caption = outputs.captions[stem.name].replace("\n", " ")
            write_text(folder / f"{stem.name}.tex", f"{GENERATED_HEADER}% {caption}\n")
        with written_whole(folder / f"{stem.name}.pdf") as partial:
            shutil.copyfile(f"{stem}.pdf", partial)


def _copy_tables(tables: Sequence[Path], contents: Contents, folder: Path) -> None:
    """Copy all tables, with references to the figures and tables of their document."""
    for stem in tables:
        text = cited(Path(f"{stem}.tex").read_text(encoding="utf-8"))
        write_text(
            folder / f"{stem.name}.tex", _refer(text, contents, stem.name in contents.supplement.tables)
        )


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
        paper_tables=[stem.name for stem in tables],
    )
    write_sources(facts, stems, tables, out)
    anonymizer = build_anonymizer(facts.study, facts.site, facts.runs, tables)
    if anonymizer.active:
        scrub_sources(out, stems, anonymizer)


if __name__ == "__main__":
    sys.exit(run_program(main))
