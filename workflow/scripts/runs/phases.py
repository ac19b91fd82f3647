"""phases.csv of an attempt: the phases of all ranks, on one clock. Made of what each rank wrote (runs/worker/phases.py).

Beside it, where `trace` is full, operators-<rank>.json (Chrome's Trace Event Format): what the libraries' profilers saw of a
few steps. `ts` is on the clock of phases.csv, too, in microseconds; `process_start_ns` is when the rank's process was started.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.files import written_whole
from runs.worker.operators import RAW
from runs.worker.phases import COLUMNS

OPERATORS = "operators-{}.json"
INTERVALS = ("rank", *COLUMNS)
TABLE = "phases.csv"
CLOCKS = "clocks.csv"


def put_together(folder: Path) -> float | None:
    """Write phases.csv of all ranks' tables, which go; return the largest error of a clock in s, None where nobody traced.

    Times are in s from the start of the first process. Between two comparisons a clock is taken to drift evenly.
    """
    parts = {int(file.stem.removeprefix("phases-")): file for file in folder.glob("phases-*.csv")}
    if not parts:
        return None
    clocks = pd.read_csv(folder / CLOCKS)
    told = {rank: pd.read_csv(file, dtype={"phase": str}) for rank, file in sorted(parts.items())}
    for rank, mine in told.items():
        for name in ("start", "end"):
            mine[name] = aligned(mine[name], clocks[clocks["rank"] == rank])
    zero = min(mine["start"].min() for mine in told.values())
    for rank in told:
        _put_operators(folder, rank, clocks[clocks["rank"] == rank], zero, told[rank]["start"].min())
    phases = pd.concat([mine.assign(rank=rank) for rank, mine in told.items()], ignore_index=True)
    phases[["start", "end"]] -= zero
    phases = phases.sort_values(["rank", "start"], kind="stable")
    write_intervals(folder / TABLE, phases)
    for file in parts.values():
        file.unlink()
    return float(clocks["error_s"].max())


def aligned(times: Any, clock: pd.DataFrame) -> Any:
    """A rank's own times in s on rank 0's clock, by what the rank's rows of clocks.csv say."""
    return times - np.interp(times, clock["at"] + clock["offset_s"], clock["offset_s"])


def _put_operators(folder: Path, rank: int, clock: pd.DataFrame, zero: float, started: float) -> None:
    """Write what a rank's profilers saw, if there were any, in microseconds from `zero` on rank 0's clock. `started`: the process."""
    raw = folder / RAW.format(rank)
    if not raw.exists():
        return
    events = json.loads(raw.read_text())["traceEvents"]
    stamped = [event for event in events if event["ph"] != "M"]
    times = np.array([event["ts"] for event in stamped], float) / 1e6
    for event, time in zip(stamped, aligned(times, clock) - zero, strict=True):
        event["ts"] = round(1e6 * time, 3)
    about = {"displayTimeUnit": "ms", "process_start_ns": round(1e9 * (started - zero))}
    with written_whole(folder / OPERATORS.format(rank)) as partial:
        partial.write_text(json.dumps({**about, "traceEvents": events}, separators=(",", ":")))
    raw.unlink()


def write_intervals(table: Path, intervals: pd.DataFrame) -> None:
    """Write a table of phases, INTERVALS with times to 0.1 us, whole or not at all."""
    with written_whole(table) as partial:
        intervals.to_csv(partial, index=False, columns=list(INTERVALS), float_format="%.7f", lineterminator="\n")
