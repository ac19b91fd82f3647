"""Table that holds the exposed share of a step, which traces see, against the share of the exchange that times tell (analysis.shares).

T(n) - T(1) is all that more ranks cost: exposed communication, and that each of them computes slower beside the others. Traces see
both. So a share that differs from the exposed one is explained where computing on n ranks takes longer than on one by as much.
"""

import math
from typing import Any

import pandas as pd

from analysis import conditions, intervals, shares, tables
from analysis.intervals import Estimate, columns
from analysis.measured import cells as design_cells
from analysis.measured import timed, title
from analysis.speedup import own_cells
from common.notes import Note
from traces import cells, cost
from traces.cells import STEP, Measured
from traces.steps import WAIT

TITLE = "The exchange by traces and by times, as shares of the step"
AGREE, SLOWER, FASTER, COST = "agree", "computing is slower", "computing is faster", "tracing changes the epoch"
OPEN, UNKNOWN = "not explained", "not to be told"
HOW = Note(
    "by-times",
    "By times: T(n) − T(1) over T(n), untraced where there are such runs. Slower computing: how much longer a step's phases other than waiting "
    "take than on one rank (shared caches, memory and cores, a busy network), over the step. Exposed and slower together should be what times tell.",
)
NOT_TOLD = Note("no-exchange-told", "No traced cell on several replicas told its exchange.")


def summarize(measured: Measured, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per cell on several replicas: exposed, slower and their sum (of each run, since they are not independent) as shares of the
    step, the share by times, each with its interval, and a verdict. `runs`: all of the study."""
    if not measured.order:
        return pd.DataFrame(columns=["cell", "verdict"])
    by_times, plain = shares.epoch_shares(timed(runs)), cost.untraced_cells(runs)
    ratios = cost.compare(runs).set_index("cell")
    replicas = design_cells(measured.runs).set_index("cell")["replicas"]
    alone = own_cells(measured.runs)
    exposed, steps = measured.estimates("exchange", "share"), measured.wide("step", "step_s")
    own = measured.cell_of.reindex(steps.index)
    computing = steps[STEP] - steps.get(WAIT, 0.0)
    parts = measured.wide("exchange", "step_s").get("exposed", pd.Series(dtype=float))
    several = own.map(replicas).gt(1).to_numpy()
    spent = computing + parts.reindex(steps.index).fillna(0.0).where(several, 0.0)  # one replica exchanges with nobody
    groups, together = (
        {cell: seconds[own == cell].to_numpy(float) for cell in measured.order} for seconds in (computing, spent)
    )
    rows: list[dict[str, Any]] = []
    for cell in measured.order:
        if replicas[cell] <= 1 or (cell, "exposed") not in exposed.index:
            continue
        seen = cells.estimate(exposed.loc[(cell, "exposed")])
        length = float(steps.loc[own == cell, STEP].mean())
        slower, both = (
            _over(intervals.difference_intervals(intervals.welch(of, [cell], [alone.get(cell, "")])).iloc[0], length)
            for of in (groups, together)
        )
        told = Estimate(math.nan)
        if (timed_cell := plain.get(cell, cell)) in by_times.index:
            row = by_times.loc[timed_cell]
            told = Estimate(row["exchange"], row["exchange_low"], row["exchange_high"], int(row["n"]))
        rows.append(
            {
                "cell": cell,
                "timed_cell": timed_cell,
                "alone_cell": alone.get(cell),
                "n": seen.n,
                **columns("exposed", seen),
                **columns("slower", slower),
                **columns("together", both),
                **columns("by_times", told),
                "verdict": verdict(seen, slower, both, told, ratios.loc[cell] if cell in ratios.index else None),
            }
        )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", "verdict"])


def verdict(seen: Estimate, slower: Estimate, both: Estimate, told: Estimate, ratio: pd.Series | None) -> str:
    """Whether exposed share and share by times agree within their intervals, else why not: tracing, only where it costs as much as lies between."""
    if math.isnan(told.value) or (math.isnan(seen.low) and math.isnan(told.low)):
        return UNKNOWN
    if _meet(seen, told):
        return AGREE
    if _meet(both, told):
        return SLOWER if slower.value > 0 else FASTER
    if ratio is not None and not ratio["ratio_low"] <= 1 <= ratio["ratio_high"]:
        gap = max(seen.low - told.high, told.low - seen.high)
        if gap <= max(abs(ratio["ratio_low"] - 1), abs(ratio["ratio_high"] - 1)):
            return COST
    return UNKNOWN if any(math.isnan(each.low) for each in (seen, both, told)) else OPEN


def _meet(one: Estimate, other: Estimate) -> bool:
    """Whether their intervals have a point in common; a number without an interval is one point."""
    both = (one, other)
    low = [end.value if math.isnan(end.low) else end.low for end in both]
    high = [end.value if math.isnan(end.high) else end.high for end in both]
    return bool(max(low) <= min(high))


def _over(difference: pd.Series, length: float) -> Estimate:
    value, low, high = (float(difference[name]) / length for name in ("value", "low", "high"))
    return Estimate(value, low, high, int(difference["n"]))


def table(measured: Measured, runs: pd.DataFrame) -> tables.Table:
    """The table."""
    data = summarize(measured, runs)
    if data.empty:
        table = cells.nothing(TITLE, measured)
        return tables.Table(
            TITLE,
            table.data,
            table.display,
            [NOT_TOLD, *table.notes[1:]],
            table.words,
        )
    shown = {
        **cells.levels(measured.runs, data["cell"]),
        "exposed (%)": cells.texts(data, "exposed", 100),
        "slower computing (%)": cells.texts(data, "slower", 100),
        "together (%)": cells.texts(data, "together", 100),
        "by times (%)": cells.texts(data, "by_times", 100),
        "verdict": data["verdict"].tolist(),
    }
    notes = [
        cells.runs_behind(measured, "In brackets the interval."),
        HOW,
        _said(data),
        *measured.notes,
        conditions.setting_note(measured.runs),
    ]
    words = [*(title(name) for name in ("framework", "model", "dataset")), "verdict"]
    return tables.Table(
        TITLE, cells.with_factors(measured.runs, data), pd.DataFrame(shown), [n for n in notes if n], words
    )


def _said(data: pd.DataFrame) -> Note:
    """Return the verdicts in words; facts: how many cells have each."""
    counts = data["verdict"].value_counts()
    meanings = {
        AGREE: "exposed share and share by times agree within their intervals",
        SLOWER: "they do once it is counted that computing is slower than on one rank",
        FASTER: "they do once it is counted that computing is faster than on one rank",
        COST: "they do not, and tracing itself changes the epoch time (table tracing)",
        OPEN: "they do not, and nothing in the phases says why",
        UNKNOWN: "it cannot be told, without replicates or a cell on one replica",
    }
    said = [f"in {counts[name]} {meaning}" for name, meaning in meanings.items() if counts.get(name)]
    cells_of = {str(name): int(count) for name, count in counts.items()}
    return Note("verdicts", f"Of {len(data)} cells: {'; '.join(said)}.", cells=cells_of)
