"""How good the data of a study are, in one line: what was looked at, whether it is as it should be, and where more is said."""

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
    """One thing that was looked at: `outcome` is a key of SIGNS, `link` the part of the page that says more."""

    name: Note
    outcome: str
    said: str
    link: str

    @property
    def sign(self) -> str:
        """Its outcome without a colour."""
        return SIGNS[self.outcome]


def marks(material: Material, verdicts: Sequence[tuple[Rule, Verdict]]) -> Iterator[Mark]:
    """All marks, in the order in which they are shown; `verdicts`: of the twelve rules."""
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
        yield _precise(material.tables["precision"].table)
    if "checks" in material.tables:
        for assumption, holds, said in checks.judge_assumptions(material.data("checks")):
            name = Note("assumption", assumption, assumption=assumption)
            yield Mark(name, UNKNOWN if holds is None else GOOD if holds else BAD, said, "table-checks")
    if ok["foreign_cpu_share"].notna().any():
        disturbed = int((ok["foreign_cpu_share"] > conditions.NOTABLE_FOREIGN_SHARE).sum())
        said = f"beside {disturbed} of {len(ok)} runs they used more than {100 * conditions.NOTABLE_FOREIGN_SHARE:g} %"
        name = Note("other-programs", "no other programs", disturbed=disturbed, runs=len(ok))
        yield Mark(name, BAD if disturbed else GOOD, said, "environment")
    if ok["steal_share"].notna().any():
        stolen = int((ok["steal_share"] > conditions.NOTABLE_STEAL_SHARE).sum())
        said = f"{stolen} of {len(ok)} runs lost more than {100 * conditions.NOTABLE_STEAL_SHARE:g} %"
        name = Note("cpu-steal", "no processor time withheld", disturbed=stolen, runs=len(ok))
        yield Mark(name, BAD if stolen else GOOD, said, "environment")
    outcomes = [verdict.outcome for _, verdict in verdicts]
    met, applicable = outcomes.count(MET), outcomes.count(MET) + outcomes.count(NOT_MET)
    name = Note("rules-met", f"{met} of {applicable} rules of benchmarking met", met=met, applicable=applicable)
    yield Mark(name, GOOD if met == applicable else BAD, "", "rules")


def _precise(table: Table) -> Mark:
    """Whether the cells became as precise as the study wants."""
    asked = table.display[table.data["reached"] != NOT_ASKED]
    wide, chance = (asked.loc[asked["reached"] == reached, "cell"].tolist() for reached in (NO, BY_CHANCE))
    said = [
        f"{word}: {conditions.join_names(cells, '; ')}"
        for word, cells in (("not", wide), ("perhaps by chance", chance))
        if cells
    ]
    return Mark(
        Note(
            "cells-precise",
            f"{len(asked) - len(wide)} of {number_of(len(asked), 'cell')} as precise as wanted",
            cells=len(asked),
            wide=wide,
            by_chance=chance,
        ),
        BAD if wide else UNKNOWN if chance else GOOD,
        ". ".join(said),
        "table-precision",
    )
