"""Summarize the quality of a study's data in a line of marks, each the outcome of a check."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import checks, conditions
from analysis.records import missing_cells, out_of_memory_cells, successful
from analysis.tables import Table, number
from common.notes import Note
from common.text import number_of
from plan.decisions import BY_CHANCE, NO, NOT_ASKED
from report.material import Material, column
from report.twelve_rules import MET, NOT_MET, Rule, Verdict

MIN_SESSION_RUNS = 10  # fewer show no difference between sessions unless it is large
GOOD, BAD, UNKNOWN = "good", "bad", "unknown"
SIGNS = {GOOD: "✓", BAD: "✗", UNKNOWN: "?"}


APPROXIMATE = "intervals and p values are approximate"
UNBIASED = (
    "changes over time widen intervals but favour no cell on average, because runs are in random order "
    "within blocks"
)
REPEATED_LATER = "repeated runs were measured later, outside this order"
# What a failed check means for the answer, by the code of its mark, or by the assumption.
CONSEQUENCES = {
    "runs-usable": "unusable runs are in no mean",
    "cells-measured": "cells without data are in no comparison",
    "cells-precise": "differences smaller than the intervals stay open",
    checks.NORMAL: APPROXIMATE,
    checks.EQUAL_SPREAD: APPROXIMATE,
    checks.INDEPENDENT: APPROXIMATE,
    checks.NO_OUTLIERS: "outliers count in the means",
    checks.NO_DRIFT: UNBIASED,
    checks.BLOCKS_ALIKE: UNBIASED,
    checks.SESSIONS_ALIKE: UNBIASED,
    "other-cpu-share": "load on the machine can explain small differences",
    "steal-share": "load on the machine can explain small differences",
    "rules-met": "read which rules are not met before you quote it",
}


@dataclass(frozen=True)
class Mark:
    """The outcome of a check: `outcome` is a key of SIGNS, `link` the anchor of the details on the page."""

    name: Note
    outcome: str
    detail: str
    link: str

    @property
    def sign(self) -> str:
        """The sign of the outcome, which readers can tell apart without colour."""
        return SIGNS[self.outcome]


def marks(material: Material, verdicts: Sequence[tuple[Rule, Verdict]]) -> Iterator[Mark]:
    """Yield all marks in the order of the page, given the verdicts on the twelve rules."""
    runs = material.every_run
    if emulated := conditions.emulated_nodes_note(runs):
        name = Note("nodes-emulated", "nodes emulated on one machine", **emulated.facts)
        yield Mark(name, UNKNOWN, emulated, "environment")
    yield usable_mark(runs)
    yield cells_mark(material.runs)
    if "replication" in material.tables:
        yield target_mark(material.tables["replication"].table)
    if "checks" in material.tables:
        sizes = successful(runs).groupby("session").size()
        yield from assumption_marks(material.data("checks"), int(sizes.min()) if len(sizes) > 1 else None)
    yield from load_marks(runs)
    yield rules_mark(verdicts)


def consequences(marks: Sequence[Mark]) -> Note:
    """Return one sentence that says what the failed checks mean for the answer."""
    failed = [str(mark.name.facts.get("assumption", mark.name.code)) for mark in marks if mark.outcome == BAD]
    meanings = list(dict.fromkeys(CONSEQUENCES[name] for name in failed))
    if UNBIASED in meanings and any(mark.name.facts.get("repeated") for mark in marks):
        meanings.insert(meanings.index(UNBIASED) + 1, REPEATED_LATER)
    text = f"For the answer this means: {'; '.join(meanings)}." if failed else "No check limits the answer."
    return Note("consequences", text, failed=failed)


def usable_mark(runs: pd.DataFrame) -> Mark:
    """Return whether all runs of the design are usable."""
    usable = conditions.usable_runs_note(runs)
    n, n_runs, causes = (usable.facts[name] for name in ("usable", "runs", "causes"))
    text = f"all {n_runs:,} runs usable" if n_runs > 1 else "the only run is usable"
    if causes:
        why = (
            next(iter(causes))
            if len(causes) == 1
            else ", ".join(f"{count} {name}" for name, count in causes.items())
        )
        text = f"{n_runs - n:,} of {number_of(n_runs, 'run')} not usable: {why}"
    return Mark(Note("runs-usable", text, **usable.facts), BAD if causes else GOOD, usable, "failures")


def cells_mark(runs: pd.DataFrame) -> Mark:
    """Return whether every cell has a usable run or ran out of memory, which is a result too."""
    missing, ran_out, n_cells = missing_cells(runs), out_of_memory_cells(runs), runs["cell"].nunique()
    text = "every cell has data or ran out of memory" if ran_out else "every cell has data"
    if missing:
        text = f"{len(missing)} of {number_of(n_cells, 'cell')} without data"
    detail = conditions.join_names(missing or ran_out) or number_of(n_cells, "cell")
    note = Note("cells-measured", text, cells=missing, out_of_memory=ran_out)
    return Mark(note, BAD if missing else GOOD, detail, "failures")


def target_mark(table: Table) -> Mark:
    """Return whether the cells reached the interval target."""
    targeted = table.display[table.data["reached"] != NOT_ASKED]
    imprecise, chance = (
        targeted.loc[targeted["reached"] == reached, "cell"].tolist() for reached in (NO, BY_CHANCE)
    )
    parts = [
        f"{word}: {conditions.join_names(cells, '; ')}"
        for word, cells in (("not", imprecise), ("perhaps by chance", chance))
        if cells
    ]
    cells = number_of(len(targeted), "cell")
    text = f"all {cells} within the interval target"
    if imprecise:
        text = f"{len(imprecise)} of {cells} outside the interval target"
    elif chance:
        text = f"{len(chance)} of {cells} perhaps precise by chance"
    return Mark(
        Note("cells-precise", text, cells=len(targeted), wide=imprecise, by_chance=chance),
        BAD if imprecise else UNKNOWN if chance else GOOD,
        ". ".join(parts),
        "table-replication",
    )


def assumption_marks(data: pd.DataFrame, n_smallest_session: int | None = None) -> Iterator[Mark]:
    """Yield a mark for each assumption that the table of checks judges, and one for all others.

    Args:
        data: The table of checks.
        n_smallest_session: Usable runs of the smallest of several sessions.
    """
    unknown = []
    sizes = dict(zip(data["assumption"], column(data, "size_percent"), strict=True))
    for assumption, holds, detail in checks.judge_assumptions(data):
        if detail.startswith(checks.DOUBTFUL):
            name = Note("assumption", f"{assumption}: doubtful", assumption=assumption)
            yield Mark(name, UNKNOWN, detail, "table-checks")
            continue
        is_small = n_smallest_session is not None and n_smallest_session < MIN_SESSION_RUNS
        if holds is None or (assumption == checks.SESSIONS_ALIKE and is_small and holds):
            unknown.append((assumption, f"a session has only {n_smallest_session} runs" if holds else detail))
            continue
        good, bad = _assumption_words(
            assumption, sizes[assumption], int((data["assumption"] == checks.OUTLIER).sum())
        )
        name = Note("assumption", good if holds else bad, assumption=assumption)
        yield Mark(name, GOOD if holds else BAD, detail, "table-checks")
    if unknown:
        names = "; ".join(assumption for assumption, _ in unknown)
        text = f"{number_of(len(unknown), 'assumption')} not judged: {names}"
        name = Note("assumptions-not-judged", text, assumptions=[assumption for assumption, _ in unknown])
        detail = ". ".join(f"{assumption}: {verdict}" for assumption, verdict in unknown)
        yield Mark(name, UNKNOWN, detail, "table-checks")


def _assumption_words(assumption: str, size_percent: float, n_outliers: int) -> tuple[str, str]:
    """Return the words for an assumption that holds, and the words if it does not.

    Args:
        assumption: Its name in the table of checks.
        size_percent: Size of the deviation in per cent; NaN without one.
        n_outliers: Number of outliers.
    """
    size = f" by {number(abs(size_percent), 2)} %" if pd.notna(size_percent) else ""
    change = "slower" if size_percent > 0 else "faster"
    return {
        checks.NORMAL: ("no evidence against normality", "residuals not normal"),
        checks.EQUAL_SPREAD: ("equal spread in all cells", "spread differs between cells"),
        checks.NO_DRIFT: ("no drift seen", f"drift: runs get {change}"),
        checks.BLOCKS_ALIKE: ("no difference between blocks seen", f"blocks differ{size}"),
        checks.SESSIONS_ALIKE: ("no difference between sessions seen", f"sessions differ{size}"),
        checks.INDEPENDENT: ("runs independent of the one before", "runs depend on the one before"),
        checks.NO_OUTLIERS: ("no outliers", number_of(n_outliers, "outlier")),
    }[assumption]


def load_marks(runs: pd.DataFrame) -> Iterator[Mark]:
    """Yield whether other processes or a hypervisor took CPU time from usable runs."""
    for name, limit, cause in (
        ("other_cpu_share", conditions.NOTABLE_OTHER_SHARE, "background load"),
        ("steal_share", conditions.NOTABLE_STEAL_SHARE, "CPU steal"),
    ):
        shares = successful(runs)[name].dropna()
        if shares.empty:
            continue
        n_affected = int((shares > limit).sum())
        text = f"{cause} below {100 * limit:g} % in all usable runs"
        if n_affected:
            text = (
                f"{cause} above {100 * limit:g} % in {n_affected} of {number_of(len(shares), 'usable run')}"
            )
        note = Note(name.replace("_", "-"), text, affected=n_affected, runs=len(shares))
        yield Mark(note, BAD if n_affected else GOOD, "", "environment")


def rules_mark(verdicts: Sequence[tuple[Rule, Verdict]]) -> Mark:
    """Return whether all rules of benchmarking that apply are met."""
    met = [rule.name for rule, verdict in verdicts if verdict.outcome == MET]
    unmet = [rule.name for rule, verdict in verdicts if verdict.outcome == NOT_MET]
    n = len(met) + len(unmet)
    text = (
        f"{len(unmet)} of {n} rules of benchmarking not met"
        if unmet
        else f"all {n} rules of benchmarking met"
    )
    return Mark(
        Note("rules-met", text, met=len(met), applicable=n), BAD if unmet else GOOD, "; ".join(unmet), "rules"
    )
