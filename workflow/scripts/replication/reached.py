"""Report which cells have reached the interval target of a study."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import conditions, tables
from analysis.level_words import cell_words
from analysis.records import cell_levels, read_runs, successful, timing_runs
from common.notes import Note
from common.options import run_program
from common.run_status import NO_RECORD_STATUSES
from common.tables import read_results
from common.text import number_of
from declared.replicates import Replicates
from plan.decisions import BY_CHANCE, NO, NOT_ASKED, REACHED
from replication.stopping import judge_cells

TITLE = "Interval target, and the intervals reached"


def target_note(runs: pd.DataFrame, rule: Replicates) -> str:
    """Return a note on the cells that missed the interval target; "" if there is no target."""
    if not rule.adaptive or runs.empty:
        return ""
    return _target_note(runs, rule, _sort_like_tables(judge_cells(runs, rule), runs))


def _target_note(runs: pd.DataFrame, rule: Replicates, verdicts: pd.DataFrame) -> Note:
    words = cell_words(timing_runs(runs))
    n = successful(timing_runs(runs)).groupby("cell").size()
    ends = [int(n.min()), int(n.max())] if len(n) else [0]
    cells = {
        reached: [words[cell] for cell in verdicts.index[verdicts["reached"] == reached]]
        for reached in REACHED
    }
    n_asked, is_open = len(verdicts) - len(cells[NOT_ASKED]), _has_open_cells(runs, verdicts, rule)
    text = (
        f"Replicates are chosen by an interval target: a cell has {rule.words} (n = "
        f"{' to '.join(dict.fromkeys(map(str, ends)))}). This is {'so far ' * is_open}"
    )
    text += (
        f"not reached by {len(cells[NO])} of {number_of(n_asked, 'cell')}: "
        f"{conditions.join_names(cells[NO], '; ')}"
        if cells[NO]
        else f"reached by {number_of(n_asked, 'cell')}"
    )
    if cells[BY_CHANCE]:
        text += f"; by {number_of(len(cells[BY_CHANCE]), 'cell')} perhaps by chance"
    return Note(
        "chosen-by-precision",
        f"{text}.",
        goes_on=is_open,
        n=ends,
        asked=n_asked,
        not_reached=cells[NO],
        by_chance=cells[BY_CHANCE],
        not_asked=cells[NOT_ASKED],
    )


def _has_open_cells(runs: pd.DataFrame, verdicts: pd.DataFrame, rule: Replicates) -> bool:
    """Return whether any cell will get more runs."""
    last = runs.loc[~runs["status"].isin(NO_RECORD_STATUSES), "block"].max()
    return bool(last < rule.at_least or (last < rule.at_most and verdicts["refine"].any()))


def table(runs: pd.DataFrame, rule: Replicates) -> tables.Table:
    """Return the table of the interval target and the half width that each cell reached."""
    verdicts, words = _sort_like_tables(judge_cells(runs, rule), runs), cell_words(timing_runs(runs))
    data = pd.DataFrame(
        {
            "cell": verdicts.index,
            "n": verdicts["n"].to_numpy(),
            "half_width": verdicts["half_width"].to_numpy(),
            "wanted": rule.until,
            "reached": verdicts["reached"].to_numpy(),
            "goes_on": _has_open_cells(runs, verdicts, rule),
        }
    )
    columns = pd.DataFrame(
        {
            "cell": [words[cell] for cell in verdicts.index],
            "n": data["n"].astype(str),
            "half width (%)": [_percent(half) for half in data["half_width"]],
            "wanted (%)": _percent(rule.until or 0.0),
            "reached": data["reached"],
        }
    )
    quantity = (
        "the cell's widest ratio, relative to the ratio, among the ratios that the study asks for; cells in "
        "no such ratio are not asked"
        if rule.contrasts
        else "the cell's mean epoch time, relative to the mean"
    )
    text = (
        f"Half width: half of the 95 % interval of {quantity}. Intervals are those of the other tables; a "
        "dash means no interval. Perhaps by chance: the interval is narrow enough, but the spread of runs is "
        "not known well enough."
    )
    notes = [Note("half-width", text, ratios=bool(rule.contrasts)), _target_note(runs, rule, verdicts)]
    return tables.Table(TITLE, data, columns, notes, ["cell", "reached"])


def caption_note(table_csv: Path) -> Note:
    """Return a short form of `target_note` for the caption of a figure, from the CSV of the table."""
    rows = read_results(table_csv)
    target, rows = rows["wanted"].iloc[0], rows[rows["reached"] != NOT_ASKED]
    counts, is_open = rows["reached"].value_counts(), bool(rows["goes_on"].any())
    n_missed, n_chance = int(counts.get(NO, 0)), int(counts.get(BY_CHANCE, 0))
    reached = f"{len(rows) - n_missed} of {number_of(len(rows), 'cell')} reach it{' so far' * is_open}"
    text = f"Runs are chosen by an interval target (half intervals of {100 * target:g} %): {reached}"
    text += f", {n_chance} perhaps by chance" if n_chance else ""
    facts = {"wanted": float(target), "asked": len(rows), "not_reached": n_missed, "by_chance": n_chance}
    return Note("chosen-by-precision", f"{text}.", goes_on=is_open, **facts)


def _sort_like_tables(verdicts: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that are timed, in the order of tables."""
    return verdicts.loc[cell_levels(timing_runs(runs))["cell"].tolist()]


def _percent(share: float) -> str:
    return tables.DASH if pd.isna(share) else f"{100 * share:.3g}"


def parse_rule(rule_json: str) -> Replicates:
    """Return the stopping rule from the JSON of `plan.decisions.rule_fields`."""
    raw: Mapping[str, Any] = json.loads(rule_json)
    contrasts = {name: tuple(levels) for name, levels in raw["contrasts"].items()}
    return Replicates(raw["at_least"], raw["at_most"], raw["until"], contrasts)


def main(*, runs: Path, rule: str, out: Path) -> None:
    """Write the table of the interval target and the half width that each cell reached.

    Args:
        runs: runs.csv of the study
        rule: the study's key replicates, as JSON
        out: files to write, without their suffix
    """
    tables.write(table(read_runs(runs), parse_rule(rule)), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
