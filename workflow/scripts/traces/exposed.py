"""Table `exposed`: the exposed share of communication by traces, and its share by times (analysis.shares).

T(n) - T(1) is the total cost of more ranks: exposed communication, and slower computation on each rank.
Traces show both. If the two shares differ, slower computation explains the difference if it is as large.
"""

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis import intervals, shares, tables
from analysis.intervals import Estimate, columns, estimate_of
from analysis.records import cell_levels, timing_runs
from analysis.speedup import one_device_cells_by_local_batch
from common.notes import Note
from traces import cells, cost
from traces.cells import STEP, Measured
from traces.steps import WAIT

TITLE = "Communication by traces and by times, as shares of the step"
AGREE, SLOWER, FASTER = "agree", "computing is slower", "computing is faster"
COST, OPEN, UNKNOWN = "tracing changes the epoch", "not explained", "unclear"
MEANINGS = {
    AGREE: "the exposed share and the share by times agree within their intervals",
    SLOWER: "they agree after correction for computation that is slower than on one rank",
    FASTER: "they agree after correction for computation that is faster than on one rank",
    COST: "they differ, because tracing changes the epoch time (table tracing)",
    OPEN: "they differ, and the phases do not explain why",
    UNKNOWN: "it is unknown whether they agree, without replicates or a cell on one device",
}
BY_TIMES = Note(
    "by-times",
    "By times: T(n) − T(1) over T(n), of untraced runs if there are any. Slower computing: additional time "
    "of a step's phases except waiting, compared with one rank (from shared caches, memory and cores, or a "
    "busy network), over the step. Exposed and slower together should equal the share by times.",
)
NO_COMMUNICATION = Note(
    "no-traced-communication", "No traced cell on several devices has traced communication."
)


def summarize(measured: Measured, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each cell on several devices, with a verdict.

    Columns: exposed, slower and their sum (computed run by run, because they are not independent) as shares
    of the step, and the share by times, each with its interval. `runs` has all runs of the study.
    """
    if not measured.order:
        return pd.DataFrame(columns=["cell", "verdict"])
    by_times, untraced = shares.epoch_shares(timing_runs(runs)), cost.untraced_cells(runs)
    ratios = cost.build_rows(runs).set_index("cell")
    n_devices = cell_levels(measured.runs).set_index("cell")["n_devices"]
    baselines = one_device_cells_by_local_batch(measured.runs)
    exposed, steps = measured.estimates("communication", "share"), measured.wide("step", "step_s")
    cell_of_run = measured.cell_of.reindex(steps.index)
    computing = steps[STEP] - steps.get(WAIT, 0.0)
    exposed_s = measured.wide("communication", "step_s").get("exposed", pd.Series(dtype=float))
    is_parallel = cell_of_run.map(n_devices).gt(1).to_numpy()
    # One device does not communicate: what is traced there is not exposed communication.
    spent = computing + exposed_s.reindex(steps.index).fillna(0.0).where(is_parallel, 0.0)
    computing_by_cell, spent_by_cell = (
        {cell: seconds[cell_of_run == cell].to_numpy(float) for cell in measured.order}
        for seconds in (computing, spent)
    )
    rows: list[dict[str, Any]] = []
    for cell in measured.order:
        if n_devices[cell] <= 1 or (cell, "exposed") not in exposed.index:
            continue
        exposed_share = cells.estimate(exposed.loc[(cell, "exposed")])
        step_s = float(steps.loc[cell_of_run == cell, STEP].mean())
        slower, together = (
            cells.estimate(
                intervals.difference_intervals(
                    intervals.welch(by_cell, [cell], [baselines.get(cell, "")])
                ).iloc[0],
                1 / step_s,
            )
            for by_cell in (computing_by_cell, spent_by_cell)
        )
        by_times_share = Estimate(math.nan)
        if (timed_cell := untraced.get(cell, cell)) in by_times.index:
            by_times_share = estimate_of(by_times.loc[timed_cell], "communication")
        ratio = ratios.loc[cell] if cell in ratios.index else None
        rows.append(
            {
                "cell": cell,
                "timed_cell": timed_cell,
                "alone_cell": baselines.get(cell),
                "n": exposed_share.n,
                **columns("exposed", exposed_share),
                **columns("slower", slower),
                **columns("together", together),
                **columns("by_times", by_times_share),
                "verdict": verdict(exposed_share, slower, together, by_times_share, ratio),
            }
        )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", "verdict"])


def verdict(
    exposed_share: Estimate,
    slower: Estimate,
    together: Estimate,
    by_times_share: Estimate,
    ratio: pd.Series | None,
) -> str:
    """Return whether the exposed share and the share by times agree within their intervals, or else why not.

    Tracing is the reason only if its cost is at least as large as the gap.
    """
    if math.isnan(by_times_share.value) or (math.isnan(exposed_share.low) and math.isnan(by_times_share.low)):
        return UNKNOWN
    if _overlap(exposed_share, by_times_share):
        return AGREE
    if _overlap(together, by_times_share):
        return SLOWER if slower.value > 0 else FASTER
    if ratio is not None and not ratio["ratio_low"] <= 1 <= ratio["ratio_high"]:
        gap = max(exposed_share.low - by_times_share.high, by_times_share.low - exposed_share.high)
        if gap <= max(abs(ratio["ratio_low"] - 1), abs(ratio["ratio_high"] - 1)):
            return COST
    return (
        UNKNOWN if any(math.isnan(share.low) for share in (exposed_share, together, by_times_share)) else OPEN
    )


def _overlap(first: Estimate, second: Estimate) -> bool:
    """Return whether two intervals overlap; a number without an interval counts as a point."""
    pair = (first, second)
    low = [end.value if math.isnan(end.low) else end.low for end in pair]
    high = [end.value if math.isnan(end.high) else end.high for end in pair]
    return bool(max(low) <= min(high))


def table(measured: Measured, runs: pd.DataFrame) -> tables.Table:
    """Return the table of exposed communication; `runs` has all runs of the study."""
    data = summarize(measured, runs)
    if data.empty:
        table = cells.empty_table(TITLE, measured)
        return replace(table, notes=[NO_COMMUNICATION, *table.notes[1:]])
    texts = {
        "exposed (%)": tables.interval_texts(data, "exposed", 100),
        "slower computing (%)": tables.interval_texts(data, "slower", 100),
        "together (%)": tables.interval_texts(data, "together", 100),
        "by times (%)": tables.interval_texts(data, "by_times", 100),
        "verdict": data["verdict"].tolist(),
    }
    notes = [BY_TIMES, _verdict_note(data)]
    remark = "The interval is in brackets."
    return cells.cell_table(TITLE, measured, data, remark, texts, notes, ["verdict"])


def _verdict_note(data: pd.DataFrame) -> Note:
    """Count the verdicts in words; the fact `cells` has the numbers."""
    counts = data["verdict"].value_counts()
    parts = [f"in {counts[name]} {meaning}" for name, meaning in MEANINGS.items() if name in counts]
    cells_of = {str(name): int(count) for name, count in counts.items()}
    return Note("verdicts", f"Of {len(data)} cells: {'; '.join(parts)}.", cells=cells_of)
