"""Keep some steps of every traced run in replay_steps.csv, so that prediction.what_if needs no records.

The steps are in blocks of consecutive ones, spread evenly over the timed epochs. Runs get equal parts of
MAX_ROWS, but at least one block each, so the table of many runs or ranks is longer.
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
from traces.timeline import read_intervals, traced_attempts

BLOCK_STEPS = 8
DIGITS = 6  # of times in s
MAX_ROWS = 8000  # keeps the table below 1 MB


def select_steps(intervals: pd.DataFrame, warm_up: int, max_rows: int) -> pd.DataFrame:
    """Return the intervals of selected steps: about `max_rows` rows, at least one block.

    Args:
        intervals: The run's intervals.
        warm_up: Number of warm-up epochs; their steps are left out.
        max_rows: Target number of rows.
    """
    timed = intervals[(intervals["step"] > 0) & (intervals["epoch"] > warm_up)]
    numbers = timed[["epoch", "step"]].drop_duplicates().sort_values(["epoch", "step"])
    if numbers.empty:
        return timed
    blocks = max(1, int(max_rows / (len(timed) / len(numbers)) / BLOCK_STEPS))
    all_blocks = -(-len(numbers) // BLOCK_STEPS)
    chosen = np.unique(np.linspace(0, all_blocks - 1, min(blocks, all_blocks)).round().astype(int))
    selected = numbers[np.isin(np.arange(len(numbers)) // BLOCK_STEPS, chosen)]
    return timed.merge(selected, on=["epoch", "step"]).sort_values(["rank", "start"], kind="stable")


def gather(runs: pd.DataFrame, records: Path) -> pd.DataFrame:
    """Return replay_steps.csv of the successful traced runs that have phases, in their order.

    Raises:
        InputError: If a table was damaged after runs.csv was written.
    """
    attempts = traced_attempts(runs, records)
    parts = [
        select_steps(
            read_intervals(folder / TABLE), int(run["warmup_epochs"]), MAX_ROWS // len(attempts)
        ).assign(run_id=run["run_id"])
        for run, folder in attempts
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
    print(
        f"{number_of(steps, 'step')} of {number_of(table['run_id'].nunique(), 'traced run')} kept for the "
        "replay"
    )


if __name__ == "__main__":
    sys.exit(run_program(main))
