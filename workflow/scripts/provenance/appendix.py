"""Write the reproducibility appendix of a study from its records, in Markdown and LaTeX.

Sections have the order of SC's artifact description (Reproducibility Initiative): contribution, hardware,
software, data, installation and execution, time and disk, analysis.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.tables import Table, latex, markdown, number
from common.latex import latex_text
from common.text import end_sentence, format_bytes, format_duration, number_of
from datasets.identity import data_folder
from declared.datasets import find_dataset
from declared.site import Site
from plan.campaign import Campaign
from report import elsewhere, site_and_software
from report.checkout import State
from report.page_table import PageTable

HOUR_S = 3600


@dataclass(frozen=True)
class Section:
    """A heading with its paragraphs, facts (name, text), tables and commands (line, explanation)."""

    heading: str
    paragraphs: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    page_tables: Sequence[PageTable] = ()
    commands: Sequence[tuple[str, str]] = ()


ANALYSIS = Section(
    "Analysis",
    ["Captions of figures and notes of tables state the number of runs behind each number, and how intervals "
     "and tests were computed. `./ringside verify` compares every rebuilt file with the manifest."],
)  # fmt: skip


def appendix_sections(campaign: Campaign, runs: pd.DataFrame, state: State) -> Iterator[Section]:
    """Yield the sections of the appendix."""
    study, site = campaign.study, site_and_software.site_of(campaign, runs)
    ok = int((runs["status"] == "ok").sum())
    yield Section(
        "Contribution",
        [
            f"{end_sentence(study.title)} {end_sentence(study.question)}",
            f"The artifact has the records of {number_of(len(runs), 'run')} ({ok:,} ok), the figures and "
            "tables that were made from them, and the workflow. Every number in a figure or a table comes "
            "from these records; manifest.json lists the inputs of each product, with SHA-256.",
        ],
    )
    if study.imported:
        yield Section(
            "Source",
            [elsewhere.planning_note(study.imported)],
            elsewhere.facts(study.imported, runs),
            [elsewhere.accepted(study.imported), elsewhere.files(study.imported)],
        )
        yield from _rebuilding_sections(campaign, site, state)
        yield ANALYSIS
        return
    yield Section("Hardware", facts=site_and_software.facts(site, runs))
    yield Section(
        "Software",
        [
            (
                "Environments are built from locks, which list every package with its hash; each record has "
                "the versions that the run used."
            )
        ],
        page_tables=[site_and_software.software(runs), site_and_software.locks(campaign, site)],
    )
    yield Section(
        "Data",
        [
            describe_data_set(data_set)
            for data_set in site_and_software.data_sets(list(dict.fromkeys(runs["dataset"])), site, runs)
        ],
    )
    yield from _rebuilding_sections(campaign, site, state)
    yield Section(
        "Time and disk",
        facts=list(cost_facts(campaign, runs)),
        page_tables=[site_and_software.sessions(runs)],
    )
    yield ANALYSIS


def _rebuilding_sections(campaign: Campaign, site: Site | None, state: State) -> Iterator[Section]:
    """Yield the section on installing the workflow and rebuilding figures and tables."""
    execution = site_and_software.reproduction(campaign, site, "available", state)
    yield Section(
        "Installation and execution",
        [
            execution.commit,
            (
                "Linux, Python 3.11 or newer with venv, and make; everything else is installed by the "
                "project, with hashes."
            ),
        ],
        commands=[
            (
                "./remake",
                (
                    "rebuilds figures and tables from the records, without training, and compares them with "
                    "those in the archive"
                ),
            ),
            *execution.commands,
        ],
    )


def describe_data_set(data_set: site_and_software.Data) -> str:
    """Return name, facts and checksums of a data set in one sentence."""
    facts = "; ".join(f"{name}: {text}" for name, text in data_set.facts)
    checksums = (
        f" SHA-256 of what was prepared: {', '.join(f'{name} {digest}' for name, digest in data_set.sums)}."
        if data_set.sums
        else ""
    )
    return f"{data_set.title} ({data_set.name}): {facts}.{checksums}"


def cost_facts(campaign: Campaign, runs: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield name and text of each cost of the runs: time, and the disk space of folders on this machine."""
    wall_s = runs["wall_s"].fillna(0.0)
    yield "runs, one after the other", format_duration(wall_s.sum())
    yield "times their nodes", f"{number((wall_s * runs['nodes']).sum() / HOUR_S)} node hours"
    yield "longest run", f"{number(wall_s.max())} s"
    started, ended = (runs[name].dropna() for name in ("started_at", "ended_at"))
    if len(started) and len(ended):
        yield "first start, last end (UTC)", f"{started.min()}, {ended.max()}"
    datasets = [name for name in runs["dataset"].unique() if find_dataset(name)]
    folders = {"prepared data": [data_folder(campaign.site, name) for name in datasets]}
    if campaign.published_folder is None:
        folders["environments"] = [Path(stamp).parent for stamp in campaign.environments.values()]
        folders["records, with logs"] = [campaign.results / "runs", campaign.results / "network"]
    for name, paths in folders.items():
        files = [file for folder in paths for file in folder.rglob("*") if not file.is_symlink()]
        if files:
            yield name, format_bytes(sum(file.lstat().st_size for file in files if file.is_file()))


def to_markdown(title: str, parts: Sequence[Section]) -> str:
    """Return the appendix in Markdown."""
    lines = [f"# {title}: artifact description", ""]
    for part in parts:
        lines += [f"## {part.heading}", ""]
        lines += [line for paragraph in part.paragraphs for line in (paragraph, "")]
        lines += [f"* {name}: {text}" for name, text in part.facts]
        lines += [""] if part.facts else []
        lines += [line for command, does in part.commands for line in (f"    {command}", "", f"{does}.", "")]
        lines += [markdown(results_table(page_table)) for page_table in part.page_tables if page_table.rows]
    return "\n".join(lines).rstrip("\n") + "\n"


def to_latex(parts: Sequence[Section]) -> str:
    r"""Return the appendix in LaTeX for \input after \appendix; tables name the packages that they need."""
    lines = [r"\section{Artifact description}"]
    for number_, part in enumerate(parts):
        lines += [rf"\subsection{{{latex_text(part.heading)}}}"]
        lines += [latex_text(paragraph, breaks=True) + "\n" for paragraph in part.paragraphs]
        items_listed = [*part.facts, *[(command, does) for command, does in part.commands]]
        if items_listed:
            items = [
                rf"\item {latex_text(name, breaks=True)}: {latex_text(text, breaks=True)}"
                for name, text in items_listed
            ]
            lines += [r"\begin{itemize}", *items, r"\end{itemize}"]
        page_tables = [page_table for page_table in part.page_tables if page_table.rows]
        lines += [
            latex(results_table(page_table), f"tab:appendix-{number_}-{place}")
            for place, page_table in enumerate(page_tables)
        ]
    return "\n".join(lines) + "\n"


def results_table(page_table: PageTable) -> Table:
    """Return a table of the report as a table of results."""
    frame = pd.DataFrame(page_table.rows, columns=page_table.header, dtype=str)
    return Table(page_table.caption, frame, frame, page_table.notes, page_table.left)
