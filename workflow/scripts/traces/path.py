"""Table of the critical path through a step, over ranks: what the last rank to have nothing left but the exchange did until then,
the exchange, and what the rank that ends the step last did after it."""

import math

import pandas as pd

from analysis import conditions, intervals, tables
from analysis.intervals import Estimate, columns
from analysis.measured import title
from common.notes import Note
from ranks.worker.phases import EXCHANGE
from traces import cells
from traces.cells import PHASES, STEP, Measured

TITLE = "The critical path through a training step, over ranks"
ORDER = ("data", "forward", "backward", EXCHANGE, "metrics", "optimizer")
WORDS = {**PHASES, EXCHANGE: "exchange"}
HOW = Note(
    "path",
    "The path goes through the rank that is last to have nothing left but the step's last exchange, until then; through this exchange; and "
    "through the rank that ends the step last. What is on no path has time to spare.",
)


def phases(measured: Measured) -> list[str]:
    """The parts of the paths, in their order."""
    mine = measured.by_run
    return cells.in_order(mine.loc[mine["scope"] == "path", "phase"], ORDER)


def summarize(measured: Measured) -> pd.DataFrame:
    """One row per cell: n, of each part of the path and of the whole path seconds in a step with their interval, and of the exchange
    its share."""
    seconds, names = measured.estimates("path", "step_s"), phases(measured)
    whole = measured.wide("path", "step_s").sum(axis=1)
    own = measured.cell_of.reindex(whole.index)
    total = intervals.means(whole[own.notna()], own.dropna(), minimum=0.0)
    rows = []
    for cell in measured.order:
        if cell not in total.index:
            continue
        found = {name: cells.estimate(seconds.loc[(cell, name)]) for name in names}
        exchange = found.get(EXCHANGE, Estimate(0.0)).value
        rows.append(
            {
                "cell": cell,
                "n": int(total.at[cell, "n"]),
                **{key: value for name in names for key, value in columns(f"{name}_s", found[name]).items()},
                **columns(f"{STEP}_s", cells.estimate(total.loc[cell])),
                "exchange_share": exchange / total.at[cell, "value"] if total.at[cell, "value"] else math.nan,
            }
        )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", "n"])


def table(measured: Measured) -> tables.Table:
    """The table."""
    data = summarize(measured)
    if data.empty:
        return cells.nothing(TITLE, measured)
    shown = cells.levels(measured.runs, data["cell"])
    texts = {
        **{f"{WORDS.get(name, name)} (ms)": cells.texts(data, f"{name}_s", 1e3) for name in phases(measured)},
        "whole path (ms)": cells.texts(data, f"{STEP}_s", 1e3),
        "exchange (%)": [tables.percent(share) for share in data["exchange_share"]],
    }
    notes = [
        cells.runs_behind(measured, "In brackets the interval over runs."),
        HOW,
        *measured.notes,
        conditions.setting_note(measured.runs),
    ]
    words = [title(name) for name in ("framework", "model", "dataset")]
    return tables.Table(TITLE, cells.with_factors(measured.runs, data), pd.DataFrame({**shown, **texts}), notes, words)
