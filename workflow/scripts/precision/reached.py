"""How precise the cells of a study became, where it says a precision in place of a number of replicates."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import conditions, tables
from analysis.measured import cell_words, cells, read_runs, successful, timed
from common.notes import Note
from common.options import run_program
from common.text import number_of
from declared.study import Replicates
from plan.decisions import BY_CHANCE, NO, NOT_ASKED, REACHED
from precision.stopping import looks

TITLE = "Precision that was wanted and reached"


def said(runs: pd.DataFrame, rule: Replicates) -> str:
    """That replicates were chosen by precision, and which cells did not reach it; nothing where their number is fixed."""
    return "" if not rule.adaptive or runs.empty else _told(runs, rule, _in_order(looks(runs, rule), runs))


def _told(runs: pd.DataFrame, rule: Replicates, found: pd.DataFrame) -> Note:
    words = cell_words(timed(runs))
    n = successful(timed(runs)).groupby("cell").size()
    ends = [int(n.min()), int(n.max())] if len(n) else [0]
    each = " to ".join(dict.fromkeys(map(str, ends)))
    cells = {reached: [words[cell] for cell in found.index[found["reached"] == reached]] for reached in REACHED}
    asked = len(found) - len(cells[NOT_ASKED])
    if cells[NO]:
        told = f"not reached by {len(cells[NO])} of {number_of(asked, 'cell')}: {conditions.named(cells[NO], '; ')}"
    else:
        told = "reached by all cells" + (" in such ratios" if cells[NOT_ASKED] else "")
    if cells[BY_CHANCE]:
        told += f"; by {number_of(len(cells[BY_CHANCE]), 'cell')} perhaps by chance"
    goes_on = _goes_on(runs, found, rule)
    are, was = ("are", "is so far") if goes_on else ("were", "was")
    return Note(
        "chosen-by-precision",
        f"Replicates {are} chosen by precision: a cell has {rule.words} (n = {each}). This {was} {told}.",
        goes_on=goes_on,
        n=ends,
        asked=asked,
        not_reached=cells[NO],
        by_chance=cells[BY_CHANCE],
        not_asked=cells[NOT_ASKED],
    )


def _goes_on(runs: pd.DataFrame, found: pd.DataFrame, rule: Replicates) -> bool:
    """Whether cells get more runs after those that are there."""
    last = runs.loc[runs["status"] != "missing", "block"].max()
    return bool(last < rule.at_least or (last < rule.at_most and found["refine"].any()))


def table(runs: pd.DataFrame, rule: Replicates) -> tables.Table:
    """A row per cell: what it was to reach, and what it reached."""
    found, words = _in_order(looks(runs, rule), runs), cell_words(timed(runs))
    data = pd.DataFrame(
        {
            "cell": found.index,
            "n": found["n"].to_numpy(),
            "half_width": found["half_width"].to_numpy(),
            "wanted": rule.until,
            "reached": found["reached"].to_numpy(),
            "goes_on": _goes_on(runs, found, rule),
        }
    )
    shown = pd.DataFrame(
        {
            "cell": [words[cell] for cell in found.index],
            "n": data["n"].astype(str),
            "half width (%)": [_percent(half) for half in data["half_width"]],
            "wanted (%)": _percent(rule.until or 0.0),
            "reached": data["reached"],
        }
    )
    half = (
        "Half width: half of the 95 % interval of a ratio, relative to the ratio; of all ratios of the cell with others that the study asks for, the "
        "widest"
        if rule.contrasts
        else "Half width: half of the 95 % interval of the cell's mean epoch time, relative to the mean"
    )
    text = f"{half}. Intervals are those of the other tables; a dash where there is none."
    notes = [Note("half-width", text, ratios=bool(rule.contrasts)), _told(runs, rule, found)]
    if (data["reached"] == BY_CHANCE).any():
        text = "Perhaps by chance: the interval is narrow enough, but too little is known of how far runs spread."
        notes.append(Note("by-chance", text))
    if (data["reached"] == NOT_ASKED).any():
        notes.append(Note("not-asked", "Not asked: the cell is in no ratio that the study asks for."))
    return tables.Table(TITLE, data, shown, notes, ["cell", "reached"])


def in_few_words(table_csv: Path) -> Note:
    """Return what `said` says, for the caption of a figure, from the CSV of the table."""
    rows = pd.read_csv(table_csv)
    wanted, rows = rows["wanted"].iloc[0], rows[rows["reached"] != NOT_ASKED]
    counts, goes_on = rows["reached"].value_counts(), bool(rows["goes_on"].any())
    others, chance = int(counts.get(NO, 0)), int(counts.get(BY_CHANCE, 0))
    verb = "have not reached" if goes_on else "did not reach"
    short = (
        f"{others} of {number_of(len(rows), 'cell')} {verb} it"
        if others
        else f"all cells {'have ' * goes_on}reached it"
    )
    short += f", {chance} perhaps by chance" if chance else ""
    head = f"The number of runs {'is' if goes_on else 'was'} chosen by precision (half intervals of {100 * wanted:g} %)"
    text = f"{head}: {'so far ' * goes_on}{short}."
    facts = {"wanted": float(wanted), "asked": len(rows), "not_reached": others, "by_chance": chance}
    return Note("chosen-by-precision", text, goes_on=goes_on, **facts)


def _in_order(found: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The cells that are timed, in the order of tables."""
    return found.loc[cells(timed(runs))["cell"].tolist()]


def _percent(share: float) -> str:
    return tables.DASH if pd.isna(share) else f"{100 * share:.3g}"


def _rule(written: str) -> Replicates:
    """The rule as a decision has it (plan.decisions.rule_of)."""
    told: Mapping[str, Any] = json.loads(written)
    contrasts = {name: tuple(levels) for name, levels in told["contrasts"].items()}
    return Replicates(told["at_least"], told["at_most"], told["until"], contrasts)


def main(*, runs: Path, rule: str, out: Path) -> None:
    """Write the table of the precision that was wanted and reached.

    Args:
        runs: runs.csv of the study
        rule: the study's key replicates, as JSON
        out: files to write, without their suffix
    """
    tables.write(table(read_runs(runs), _rule(rule)), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
