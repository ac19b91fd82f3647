"""Summarize the quality of a study's data in one line of marks: what was checked, and the outcome."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis import checks, conditions
from analysis.measured import missing_cells
from analysis.tables import Table
from common.notes import Note
from common.text import number_of
from plan.decisions import BY_CHANCE, NO, NOT_ASKED
from report.material import Material
from report.twelve_rules import MET, NOT_MET, Rule, Verdict

GOOD, BAD, UNKNOWN = "good", "bad", "unknown"
SIGNS = {GOOD: "✓", BAD: "✗", UNKNOWN: "?"}


@dataclass(frozen=True)
class Mark:
    """The outcome of one check: `outcome` is a key of SIGNS, `link` the part of the page with details."""

    name: Note
    outcome: str
    detail: str
    link: str

    @property
    def sign(self) -> str:
        """Return the sign of the outcome, which needs no colour."""
        return SIGNS[self.outcome]


def marks(material: Material, verdicts: Sequence[tuple[Rule, Verdict]]) -> Iterator[Mark]:
    """Yield all marks in the order of the page; `verdicts` are those of the twelve rules."""
    ok, runs = material.ok, material.runs
    yield Mark(
        Note(
            "runs-succeeded",
            f"{len(ok):,} of {number_of(len(runs), 'run')} succeeded",
            succeeded=len(ok),
            runs=len(runs),
        ),
        GOOD if len(ok) == len(runs) else BAD,
        conditions.shortfall_note(runs),
        "failures",
    )
    if missing := missing_cells(runs):
        name = Note("cells-missing", f"{number_of(len(missing), 'cell')} missing", cells=missing)
        yield Mark(name, BAD, conditions.join_names(missing), "failures")
    if "precision" in material.tables:
        yield _precision_mark(material.tables["precision"].table)
    if "checks" in material.tables:
        for assumption, holds, detail in checks.judge_assumptions(material.data("checks")):
            name = Note("assumption", assumption, assumption=assumption)
            yield Mark(name, UNKNOWN if holds is None else GOOD if holds else BAD, detail, "table-checks")
    if ok["other_cpu_share"].notna().any():
        disturbed = int((ok["other_cpu_share"] > conditions.NOTABLE_OTHER_SHARE).sum())
        detail = (
            f"during {disturbed} of {len(ok)} runs they used more than "
            f"{100 * conditions.NOTABLE_OTHER_SHARE:g} %"
        )
        name = Note("other-programs", "no other processes", disturbed=disturbed, runs=len(ok))
        yield Mark(name, BAD if disturbed else GOOD, detail, "environment")
    if ok["steal_share"].notna().any():
        affected = int((ok["steal_share"] > conditions.NOTABLE_STEAL_SHARE).sum())
        detail = f"{affected} of {len(ok)} runs lost more than {100 * conditions.NOTABLE_STEAL_SHARE:g} %"
        name = Note("cpu-steal", "no CPU steal", disturbed=affected, runs=len(ok))
        yield Mark(name, BAD if affected else GOOD, detail, "environment")
    outcomes = [verdict.outcome for _, verdict in verdicts]
    met, applicable = outcomes.count(MET), outcomes.count(MET) + outcomes.count(NOT_MET)
    name = Note(
        "rules-met", f"{met} of {applicable} rules of benchmarking met", met=met, applicable=applicable
    )
    yield Mark(name, GOOD if met == applicable else BAD, "", "rules")


def _precision_mark(table: Table) -> Mark:
    """Return whether the cells reached the precision target."""
    targeted = table.display[table.data["reached"] != NOT_ASKED]
    imprecise, chance = (
        targeted.loc[targeted["reached"] == reached, "cell"].tolist() for reached in (NO, BY_CHANCE)
    )
    parts = [
        f"{word}: {conditions.join_names(cells, '; ')}"
        for word, cells in (("not", imprecise), ("perhaps by chance", chance))
        if cells
    ]
    return Mark(
        Note(
            "cells-precise",
            (
                f"{len(targeted) - len(imprecise)} of {number_of(len(targeted), 'cell')} within the "
                "precision target"
            ),
            cells=len(targeted),
            wide=imprecise,
            by_chance=chance,
        ),
        BAD if imprecise else UNKNOWN if chance else GOOD,
        ". ".join(parts),
        "table-precision",
    )
