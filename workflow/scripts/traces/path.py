"""Table `critical_path`: the critical path through a step, over ranks.

It consists of the phases of the last rank that only waits for communication, this communication, and what the
rank that ends the step last does after it.
"""

import math

import pandas as pd

from analysis import intervals, tables
from analysis.intervals import Estimate, columns
from common.notes import Note
from ranks.worker.phases import COMMUNICATION
from traces import cells
from traces.cells import PHASES, STEP, Measured

TITLE = "The critical path through a training step, over ranks"
ORDER = ("data", "forward", "backward", COMMUNICATION, "metrics", "optimizer")
PATH = Note(
    "path",
    "The path goes through the rank that is the last to only wait for the step's last all-reduce, until "
    "then; through this all-reduce; and through the rank that ends the step last. All other phases have "
    "slack.",
)


def path_parts(measured: Measured) -> list[str]:
    """Return the parts of the paths, in order."""
    by_run = measured.by_run
    return cells.in_order(by_run.loc[by_run["scope"] == "path", "phase"], ORDER)


def summarize(measured: Measured) -> pd.DataFrame:
    """Return a row for each cell.

    Columns: n, seconds in a step of each part and of the whole path with their intervals, and the share of
    communication.
    """
    seconds, names = measured.estimates("path", "step_s"), path_parts(measured)
    path_s = measured.wide("path", "step_s").sum(axis=1)
    cell_of_run = measured.cell_of.reindex(path_s.index)
    total = intervals.means(path_s[cell_of_run.notna()], cell_of_run.dropna(), minimum=0.0)
    rows = []
    for cell in measured.order:
        if cell not in total.index:
            continue
        parts = {name: cells.estimate(seconds.loc[(cell, name)]) for name in names}
        allreduce = parts.get(COMMUNICATION, Estimate(0.0)).value
        rows.append(
            {
                "cell": cell,
                "n": int(total.at[cell, "n"]),
                **{key: value for name in names for key, value in columns(f"{name}_s", parts[name]).items()},
                **columns(f"{STEP}_s", cells.estimate(total.loc[cell])),
                "communication_share": allreduce / total.at[cell, "value"]
                if total.at[cell, "value"]
                else math.nan,
            }
        )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", "n"])


def table(measured: Measured) -> tables.Table:
    """Return the table."""
    data = summarize(measured)
    if data.empty:
        return cells.empty_table(TITLE, measured)
    texts = {
        **{
            f"{PHASES.get(name, name)} (ms)": tables.interval_texts(data, f"{name}_s", 1e3)
            for name in path_parts(measured)
        },
        "whole path (ms)": tables.interval_texts(data, f"{STEP}_s", 1e3),
        "communication (%)": [tables.percent(share) for share in data["communication_share"]],
    }
    return cells.cell_table(TITLE, measured, data, "The interval over runs is in brackets.", texts, [PATH])
