"""Some steps of every traced run, as they were -> replay_steps.csv, from which they are replayed on any machine (prediction.what_if).

Blocks of steps that follow each other, spread evenly over the timed epochs. Runs have equal parts of MOST_ROWS, but each has one block at
least: of many runs, or many ranks, the table is longer.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from common.options import run_program
from common.schemas import schema
from common.tables import read_table, write_table
from common.text import number_of
from runs.phases import TABLE
from traces.timeline import read_intervals, told

BLOCK = 8  # steps
DIGITS = 6  # of times in s
MOST_ROWS = 8000  # of the table, where one block of every run is not more; below 1 MB then


def kept(intervals: pd.DataFrame, warm_up: int, most: int) -> pd.DataFrame:
    """The intervals of some steps: `most` rows about, one block at least. `warm_up`: epochs that do not count."""
    timed = intervals[(intervals["step"] > 0) & (intervals["epoch"] > warm_up)]
    numbers = timed[["epoch", "step"]].drop_duplicates().sort_values(["epoch", "step"])
    if numbers.empty:
        return timed
    blocks = max(1, int(most / (len(timed) / len(numbers)) / BLOCK))
    all_blocks = -(-len(numbers) // BLOCK)
    chosen = np.unique(np.linspace(0, all_blocks - 1, min(blocks, all_blocks)).round().astype(int))
    wanted = numbers[np.isin(np.arange(len(numbers)) // BLOCK, chosen)]
    return timed.merge(wanted, on=["epoch", "step"]).sort_values(["rank", "start"], kind="stable")


def gather(runs: pd.DataFrame, records: Path) -> pd.DataFrame:
    """replay_steps.csv of the successful traced ones of `runs`, in their order, whose records are in `records`.

    Runs without phases are left out. InputError where a table has been broken since runs.csv was made.
    """
    wanted = told(runs, records)
    parts = [
        kept(read_intervals(folder / TABLE), int(run["warmup_epochs"]), MOST_ROWS // len(wanted)).assign(
            run_id=run["run_id"]
        )
        for run, folder in wanted
    ]
    columns = list(schema("replay_steps")["properties"])
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    table = table.reindex(columns=columns)
    first = table.groupby("run_id")["start"].transform("min")
    for name in ("start", "end"):
        table[name] = (table[name] - first).astype(float).round(DIGITS)
    return table.drop_duplicates()


def main(*, runs: Path, records: Path, out: Path) -> None:
    """Keep some steps of every traced run of a study.

    Args:
        runs: runs.csv of the study
        records: where the records of its runs are
        out: replay_steps.csv
    """
    table = gather(read_table(runs, "runs"), records)
    write_table(table, "replay_steps", out)
    steps = len(table[["run_id", "epoch", "step"]].drop_duplicates())
    print(f"{number_of(steps, 'step')} of {number_of(table['run_id'].nunique(), 'traced run')} kept for the replay")


if __name__ == "__main__":
    sys.exit(run_program(main))
