"""The reproducibility appendix of a study, in the order of the artifact description that SC asks for, filled from the records.

SC, Reproducibility Initiative: contributions; then of the artifact hardware, software, data, installation, execution, analysis,
and the time that it takes. As Markdown, and as LaTeX for an appendix of a paper.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.tables import DASH, Table, latex, markdown, number
from common.latex import latex_text
from common.text import number_of
from plan.campaign import Campaign
from provenance.account import Account
from report import setting
from report.checkout import State
from report.setting import Grid

MB, GB, HOUR_S = 1e6, 1e9, 3600


@dataclass(frozen=True)
class Section:
    """A heading with its paragraphs, facts (name, text), tables and commands (line, what it does)."""

    heading: str
    paragraphs: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    grids: Sequence[Grid] = ()
    commands: Sequence[tuple[str, str]] = ()


def sections(campaign: Campaign, runs: pd.DataFrame, cost: Account, state: State, remake: str) -> Iterator[Section]:
    """The appendix. `remake`: the command that makes figures and tables again from what the archive holds."""
    study, site = campaign.study, setting.site_of(campaign, runs)
    ok = int((runs["status"] == "ok").sum())
    yield Section(
        "Contribution",
        [
            f"{study.title}. {study.question}",
            f"The artifact has the records of {number_of(len(runs), 'run')} ({ok:,} ok), the figures and tables that were made from "
            "them, and the workflow that made everything. Every number in a figure or a table comes from these records; "
            "manifest.json lists, by SHA-256, which file was made from which.",
        ],
    )
    yield Section("Hardware", facts=setting.facts(site, runs))
    yield Section(
        "Software",
        [
            "Environments are built from the locks, which list every package with its hash; each record names the versions that it found."
        ],
        grids=[setting.software(runs), setting.locks(campaign, site, runs)],
    )
    yield Section("Data", [_data(one) for one in setting.data_sets(list(dict.fromkeys(runs["dataset"])), site, runs)])
    again = setting.again(campaign, site, "available", state)
    yield Section(
        "Installation and execution",
        [
            again.commit,
            "Linux, Python 3.11 or newer with venv, and make; everything else is installed by the project, with hashes.",
        ],
        commands=[
            (
                remake,
                "figures and tables from the records, training nothing; then compares them with those in the archive",
            ),
            *again.commands,
        ],
    )
    yield Section("Time and disk", facts=list(_costs(cost)), grids=[setting.sessions(runs)])
    yield Section(
        "Analysis",
        ["Each figure has a caption and each table has notes beside it: they say how many runs a number comes from, and how intervals "
         "and tests were computed. `./ringside verify` compares every file that was made again with the manifest."],
    )  # fmt: skip


def _data(one: setting.Data) -> str:
    said = "; ".join(f"{name}: {text}" for name, text in one.facts)
    sums = (
        f" SHA-256 of what was prepared: {', '.join(f'{name} {digest}' for name, digest in one.sums)}."
        if one.sums
        else ""
    )
    return f"{one.title} ({one.name}): {said}.{sums}"


def _costs(cost: Account) -> Iterator[tuple[str, str]]:
    yield "runs, one after the other", _hours(cost.runs_s)
    yield "times their nodes", f"{number(cost.node_s / HOUR_S)} node hours"
    yield "longest run", f"{number(cost.longest_s)} s"
    if cost.first and cost.last:
        yield "first start, last end (UTC)", f"{cost.first}, {cost.last}"
    for name, size in (
        ("prepared data", cost.data_bytes),
        ("environments", cost.environments_bytes),
        ("records, with logs", cost.records_bytes),
    ):
        yield name, f"not on the machine that made this: {DASH}" if size is None else _size(size)


def _hours(seconds: float) -> str:
    return f"{number(seconds / HOUR_S)} hours" if seconds >= HOUR_S else f"{number(seconds / 60)} minutes"


def _size(size: int) -> str:
    return f"{number(size / GB)} GB" if size >= GB else f"{number(size / MB)} MB"


def to_markdown(title: str, parts: Sequence[Section]) -> str:
    """The appendix as Markdown."""
    lines = [f"# {title}: artifact description", ""]
    for part in parts:
        lines += [f"## {part.heading}", ""]
        lines += [line for paragraph in part.paragraphs for line in (paragraph, "")]
        lines += [f"* {name}: {text}" for name, text in part.facts]
        lines += [""] if part.facts else []
        lines += [line for command, does in part.commands for line in (f"    {command}", "", f"{does}.", "")]
        lines += [markdown(_table(grid)) for grid in part.grids if grid.rows]
    return "\n".join(lines).rstrip("\n") + "\n"


def to_latex(parts: Sequence[Section]) -> str:
    r"""The appendix as LaTeX, to be read by \input after \appendix; it needs what the comment of each table names."""
    lines = [r"\section{Artifact description}"]
    for number_, part in enumerate(parts):
        lines += [rf"\subsection{{{latex_text(part.heading)}}}"]
        lines += [latex_text(paragraph, breaks=True) + "\n" for paragraph in part.paragraphs]
        listed = [*part.facts, *[(command, does) for command, does in part.commands]]
        if listed:
            items = [
                rf"\item {latex_text(name, breaks=True)}: {latex_text(text, breaks=True)}" for name, text in listed
            ]
            lines += [r"\begin{itemize}", *items, r"\end{itemize}"]
        grids = [grid for grid in part.grids if grid.rows]
        lines += [latex(_table(grid), f"tab:appendix-{number_}-{place}") for place, grid in enumerate(grids)]
    return "\n".join(lines) + "\n"


def _table(grid: Grid) -> Table:
    frame = pd.DataFrame(grid.rows, columns=grid.header, dtype=str)
    return Table(grid.caption, frame, frame, grid.notes, grid.left)
