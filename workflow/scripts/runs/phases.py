"""Merge the phases of all ranks (ranks/worker/phases.py) into phases.csv, on one clock.

With a full trace, operators-<rank>.json (Chrome's Trace Event Format) holds the events of the library's
profiler in a few steps. Its `ts` is on the clock of phases.csv, in microseconds; `process_start_ns` is the
start of the rank's process.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.errors import InputError
from common.files import display_path, written_whole
from common.notes import Note
from ranks.worker.operators import RAW
from ranks.worker.phases import CLOCKS as CLOCK_COLUMNS
from ranks.worker.phases import COLUMNS, COMMUNICATION, MAX_TRACED_STEPS

if TYPE_CHECKING:
    import pandas as pd  # Importing it takes half of a supervisor's start, and only traced runs need it.

OPERATORS = "operators-{}.json"
INTERVALS = ("rank", *COLUMNS)
TABLE = "phases.csv"
CLOCKS = "clocks.csv"
PARTS = "phases-*.csv"
WAIT, BARRIER, BETWEEN = "wait", "barrier", "between"
#: All phases of a rank, in order: before its first epoch, in a step, after the steps of an epoch.
START = ("interpreter", "rendezvous", "import", "join", "speeds", "build", BARRIER, BETWEEN)
STEP = ("data", "forward", "backward", WAIT, "metrics", "optimizer")
EPOCH = (BARRIER, "validation", BETWEEN)
NAMES = frozenset((*START, *STEP, *EPOCH, COMMUNICATION))
_TYPES = {"rank": "int64", "epoch": "int64", "step": "int64", "start": "float64", "end": "float64"}


def merge_phases(attempt_folder: Path) -> float | None:
    """Merge the ranks' tables into phases.csv and remove them; return the largest clock error in s, or None.

    Times are in s from the start of the first process. Clocks are assumed to drift linearly between two
    comparisons. If a table is unreadable, the tables are kept and phases.csv is not written, which
    `damage_reason` reports.
    """
    parts = {int(file.stem.removeprefix("phases-")): file for file in attempt_folder.glob(PARTS)}
    try:
        return _merge_parts(attempt_folder, parts) if parts else None
    except (ValueError, KeyError, FileNotFoundError):
        return None


def _merge_parts(attempt_folder: Path, parts: dict[int, Path]) -> float:
    import pandas as pd

    clocks = _read_clocks(attempt_folder / CLOCKS)
    tables = {rank: pd.read_csv(file, dtype={"phase": str}) for rank, file in sorted(parts.items())}
    for rank, table in tables.items():
        for name in ("start", "end"):
            table[name] = align_times(table[name].to_numpy(), clocks[clocks["rank"] == rank])
    zero = min(table["start"].min() for table in tables.values())
    for rank, table in tables.items():
        _write_operators(attempt_folder, rank, clocks[clocks["rank"] == rank], zero, table["start"].min())
    phases = pd.concat([table.assign(rank=rank) for rank, table in tables.items()], ignore_index=True)
    phases[["start", "end"]] -= zero
    phases = phases.sort_values(["rank", "start"], kind="stable")
    write_intervals(attempt_folder / TABLE, phases)
    for file in parts.values():
        file.unlink()
    return float(clocks["error_s"].max())


def align_times(times: NDArray[np.float64], clock: pd.DataFrame) -> NDArray[np.float64]:
    """Convert a rank's times in s to rank 0's clock, by the rank's rows of clocks.csv."""
    return times - np.interp(times, clock["at"] + clock["offset_s"], clock["offset_s"])


def _write_operators(
    attempt_folder: Path, rank: int, clock: pd.DataFrame, zero: float, started: float
) -> None:
    """Write the events of a rank's profiler, if any, in microseconds from `zero` on rank 0's clock."""
    raw = attempt_folder / RAW.format(rank)
    if not raw.exists():
        return
    events = json.loads(raw.read_text())["traceEvents"]
    stamped = [event for event in events if event["ph"] != "M"]
    times = np.array([event["ts"] for event in stamped], float) / 1e6
    for event, time in zip(stamped, align_times(times, clock) - zero, strict=True):
        event["ts"] = round(1e6 * time, 3)
    header = {"displayTimeUnit": "ms", "process_start_ns": round(1e9 * (started - zero))}
    with written_whole(attempt_folder / OPERATORS.format(rank)) as partial:
        partial.write_text(json.dumps({**header, "traceEvents": events}, separators=(",", ":")))
    raw.unlink()


def read_intervals(table: Path) -> pd.DataFrame:
    """Return a table of phases with the columns INTERVALS, phase as a category.

    Raises:
        InputError: If the file is not such a table, or an interval ends before it starts.
    """
    try:
        return _parse_intervals(table)
    except (OSError, ValueError, OverflowError) as error:
        reason = _unusable_reason(error)
        raise InputError(reason.code, reason, file=display_path(table), hint="repeat the run") from None


def _parse_intervals(table: Path) -> pd.DataFrame:
    """Implement `read_intervals`, except that errors are OSError, ValueError or OverflowError."""
    import pandas as pd

    try:
        intervals = pd.read_csv(table, dtype={**_TYPES, "phase": "category"}, usecols=list(INTERVALS))[
            list(INTERVALS)
        ]
    except (ValueError, OverflowError) as error:
        text = f"cannot be read: {_one_line(error)}; expected {','.join(INTERVALS)}"
        raise ValueError(Note("broken-file", text)) from None
    ends = intervals[["start", "end"]].to_numpy()
    is_bad = ~np.isfinite(ends).all(axis=1) | (ends[:, 1] < ends[:, 0])
    if is_bad.any():
        line = 2 + int(is_bad.argmax())
        text = f"line {line}: start or end is missing or not finite, or it ends before it starts"
        raise ValueError(Note("bad-interval", text, line=line))
    return intervals


def _read_clocks(table: Path) -> pd.DataFrame:
    """Return the comparisons of the ranks' clocks (CLOCK_COLUMNS).

    Raises:
        ValueError: If a number is missing or not finite.
    """
    import pandas as pd

    clocks = pd.read_csv(table, dtype={"rank": "int64"}, usecols=list(CLOCK_COLUMNS))
    if clocks.empty or not np.isfinite(clocks.to_numpy(float)).all():
        raise ValueError(Note("not-finite", "a number is missing or not finite"))
    return clocks


def _unusable_reason(error: Exception) -> Note:
    """Return why a table cannot be used: a Note of this module, or the message of a library."""
    note = error.args[0] if error.args else None
    return note if isinstance(note, Note) else Note("broken-file", _one_line(error))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def damage_reason(attempt_folder: Path, ranks: int, epochs: int, steps: int) -> Note | None:
    """Return why the trace of an attempt is incomplete, or None. An incomplete trace does not count.

    A trace is complete if clocks were compared, and all ranks have the same phases in all epochs except
    waiting.

    Args:
        attempt_folder: The attempt's folder.
        ranks: Number of ranks.
        epochs: Number of epochs.
        steps: Number of steps of an epoch.
    """
    for name, check in ((TABLE, _damaged_phases), (CLOCKS, _damaged_clocks)):
        try:
            reason = check(attempt_folder / name, ranks, epochs, steps)
        except FileNotFoundError:
            parts = sorted(file.name for file in attempt_folder.glob(PARTS)) if name == TABLE else []
            text = f"is missing; {', '.join(parts)} could not be merged" if parts else "is missing"
            reason = Note("missing-file", text, parts=parts)
        except (OSError, ValueError, OverflowError) as error:
            reason = _unusable_reason(error)
        if reason:
            return Note(reason.code, f"{name}: {reason}", file=name, **reason.facts)
    return None


def _damaged_phases(table: Path, ranks: int, epochs: int, steps: int) -> Note | None:
    intervals = _parse_intervals(table)
    if reason := _wrong_ranks(intervals["rank"], ranks):
        return reason
    unknown = sorted(
        {name if isinstance(name, str) else "nothing" for name in intervals["phase"].unique()} - NAMES
    )
    if unknown:
        text = f"has a phase {unknown[0]!r}, expected one of {', '.join(sorted(NAMES))}"
        return Note("unknown-phase", text, phase=unknown[0])
    for name, count in (("epoch", epochs), ("step", steps)):
        outside = intervals.loc[(intervals[name] < 0) | (intervals[name] > count), name]
        if len(outside):
            text = f"has {name} {outside.iloc[0]}; the run has {count}"
            return Note(f"unknown-{name}", text, got=int(outside.iloc[0]), most=count)
    if missing := set(range(ranks)) - set(intervals.loc[intervals["epoch"] == 0, "rank"]):
        return Note("start-missing", f"the start of rank {min(missing)} is missing", rank=min(missing))
    return _missing_phase(intervals, ranks, epochs, steps)


def _missing_phase(intervals: pd.DataFrame, ranks: int, epochs: int, steps: int) -> Note | None:
    """Return the first phase that is missing for a rank in an epoch, or None.

    The phases of the first traced steps and those after the steps are checked.
    """
    import pandas as pd

    traced = range(1, steps + 1, -(-steps // MAX_TRACED_STEPS) or 1)
    required = (
        (intervals["epoch"] > 0)
        & ~intervals["phase"].isin((WAIT, COMMUNICATION, BETWEEN))
        & intervals["step"].isin((0, *traced))
    )
    phases = intervals.loc[required, ["rank", "epoch", "step", "phase"]].drop_duplicates()
    phases = phases.astype({"phase": str})
    parts = phases[["step", "phase"]].drop_duplicates()
    if absent := set(traced) - set(parts["step"]):
        return Note("step-missing", f"lacks step {min(absent)} of all epochs", step=min(absent))
    pairs = list(itertools.product(range(ranks), range(1, epochs + 1)))
    expected = pd.DataFrame(pairs, columns=["rank", "epoch"]).merge(parts, how="cross")
    missing = expected.merge(phases, how="left", indicator="found").query("found == 'left_only'")
    if missing.empty:
        return None
    rank, epoch, step, phase = missing[["rank", "epoch", "step", "phase"]].iloc[0]
    text = f"lacks {phase} of rank {rank} in epoch {epoch}" + (f", step {step}" if step else "")
    facts = {"rank": int(rank), "epoch": int(epoch), "step": int(step) or None}
    return Note("phase-missing", text, phase=phase, **facts)


def _damaged_clocks(table: Path, ranks: int, _epochs: int, _steps: int) -> Note | None:
    return _wrong_ranks(_read_clocks(table)["rank"], ranks)


def _wrong_ranks(column: pd.Series, ranks: int) -> Note | None:
    """Return a rank that the table lacks, or that the run does not have; None if the ranks are right."""
    actual, expected = set(column), set(range(ranks))
    if missing := expected - actual:
        return Note("rank-missing", f"lacks rank {min(missing)}", rank=min(missing))
    if not actual - expected:
        return None
    return Note(
        "unknown-rank", f"has rank {max(actual)}; the run has {ranks}", got=int(max(actual)), most=ranks
    )


def write_intervals(table: Path, intervals: pd.DataFrame) -> None:
    """Write a table of phases with the columns INTERVALS, times to 0.1 us, completely or not at all."""
    with written_whole(table) as partial:
        intervals.to_csv(
            partial, index=False, columns=list(INTERVALS), float_format="%.7f", lineterminator="\n"
        )
