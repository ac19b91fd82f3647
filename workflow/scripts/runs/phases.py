"""phases.csv of an attempt: the phases of all ranks, on one clock. Made of what each rank wrote (ranks/worker/phases.py).

Beside it, where `trace` is full, operators-<rank>.json (Chrome's Trace Event Format): what the libraries' profilers saw of a
few steps. `ts` is on the clock of phases.csv, too, in microseconds; `process_start_ns` is when the rank's process was started.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.errors import InputError
from common.files import shown, written_whole
from common.notes import Note
from ranks.worker.operators import RAW
from ranks.worker.phases import CLOCKS as CLOCK_COLUMNS
from ranks.worker.phases import COLUMNS, EXCHANGE, MOST_STEPS

if TYPE_CHECKING:
    import pandas as pd  # Importing it takes half of a supervisor's start, and only traced runs need it.

OPERATORS = "operators-{}.json"
INTERVALS = ("rank", *COLUMNS)
TABLE = "phases.csv"
CLOCKS = "clocks.csv"
PARTS = "phases-*.csv"
WAIT, BARRIER, BETWEEN = "wait", "barrier", "between"
#: all phases that a rank may tell, in the order in which it goes through them: before its first epoch, in a step, after an epoch's steps
START = ("interpreter", "rendezvous", "import", "join", "speeds", "build", BARRIER, BETWEEN)
STEP = ("data", "forward", "backward", WAIT, "metrics", "optimizer")
EPOCH = (BARRIER, "validation", BETWEEN)
NAMES = frozenset((*START, *STEP, *EPOCH, EXCHANGE))
_TYPES = {"rank": "int64", "epoch": "int64", "step": "int64", "start": "float64", "end": "float64"}


def put_together(folder: Path) -> float | None:
    """Write phases.csv of all ranks' tables, which go; return the largest error of a clock in s, None where nobody traced.

    Times are in s from the start of the first process. Between two comparisons a clock is taken to drift evenly. What cannot be
    read stays as it is, and there is no phases.csv (`damage` says so).
    """
    parts = {int(file.stem.removeprefix("phases-")): file for file in folder.glob(PARTS)}
    try:
        return _put_together(folder, parts) if parts else None
    except (ValueError, KeyError, FileNotFoundError):
        return None


def _put_together(folder: Path, parts: dict[int, Path]) -> float:
    import pandas as pd

    clocks = _clocks(folder / CLOCKS)
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


def read_intervals(table: Path) -> pd.DataFrame:
    """A table of phases: INTERVALS, phase as a category. InputError where it is none, or an interval ends before it begins."""
    try:
        return _intervals(table)
    except (OSError, ValueError, OverflowError) as error:
        said = _reason(error)
        raise InputError(said.code, said, file=shown(table), hint="repeat the run") from None


def _intervals(table: Path) -> pd.DataFrame:
    """See `read_intervals`; OSError, ValueError and OverflowError instead."""
    import pandas as pd

    try:
        found = pd.read_csv(table, dtype={**_TYPES, "phase": "category"}, usecols=list(INTERVALS))[list(INTERVALS)]
    except (ValueError, OverflowError) as error:
        text = f"cannot be read: {_one_line(error)}; expected {','.join(INTERVALS)}"
        raise ValueError(Note("broken-file", text)) from None
    ends = found[["start", "end"]].to_numpy()
    wrong = ~np.isfinite(ends).all(axis=1) | (ends[:, 1] < ends[:, 0])
    if wrong.any():
        line = 2 + int(wrong.argmax())
        text = f"line {line}: start or end is missing or not finite, or it ends before it starts"
        raise ValueError(Note("bad-interval", text, line=line))
    return found


def _clocks(table: Path) -> pd.DataFrame:
    """What the ranks' clocks were found to be: CLOCK_COLUMNS. ValueError where a number is missing or not finite."""
    import pandas as pd

    found = pd.read_csv(table, dtype={"rank": "int64"}, usecols=list(CLOCK_COLUMNS))
    if found.empty or not np.isfinite(found.to_numpy(float)).all():
        raise ValueError(Note("not-finite", "a number is missing or not finite"))
    return found


def _reason(error: Exception) -> Note:
    """Return why a table cannot be used: as it was found here, or as who could not read it says."""
    said = error.args[0] if error.args else None
    return said if isinstance(said, Note) else Note("broken-file", _one_line(error))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def damage(attempt: Path, ranks: int, epochs: int, steps: int) -> Note | None:
    """Why what an attempt kept of its phases is not that of its run, file first; None where it is. `steps`: of an epoch.

    A run has phases where all of its ranks tell all of its epochs, on clocks that were compared: what one rank did in one epoch, waiting
    aside, each rank did in each. Else it counts as one without.
    """
    for name, wrong in ((TABLE, _damaged_phases), (CLOCKS, _damaged_clocks)):
        try:
            said = wrong(attempt / name, ranks, epochs, steps)
        except FileNotFoundError:
            parts = sorted(file.name for file in attempt.glob(PARTS)) if name == TABLE else []
            text = f"is not there; {', '.join(parts)} could not be put together" if parts else "is not there"
            said = Note("missing-file", text, parts=parts)
        except (OSError, ValueError, OverflowError) as error:
            said = _reason(error)
        if said:
            return Note(said.code, f"{name}: {said}", file=name, **said.facts)
    return None


def _damaged_phases(table: Path, ranks: int, epochs: int, steps: int) -> Note | None:
    found = _intervals(table)
    if said := _other_ranks(found["rank"], ranks):
        return said
    unknown = sorted({name if isinstance(name, str) else "nothing" for name in found["phase"].unique()} - NAMES)
    if unknown:
        text = f"tells of a phase {unknown[0]!r}, expected one of {', '.join(sorted(NAMES))}"
        return Note("unknown-phase", text, phase=unknown[0])
    for name, most in (("epoch", epochs), ("step", steps)):
        outside = found.loc[(found[name] < 0) | (found[name] > most), name]
        if len(outside):
            text = f"tells of {name} {outside.iloc[0]}; the run has {most}"
            return Note(f"unknown-{name}", text, got=int(outside.iloc[0]), most=most)
    if lacking := set(range(ranks)) - set(found.loc[found["epoch"] == 0, "rank"]):
        return Note("start-missing", f"rank {min(lacking)} does not tell its start", rank=min(lacking))
    return _other_epochs(found, ranks, epochs, steps)


def _other_epochs(found: pd.DataFrame, ranks: int, epochs: int, steps: int) -> Note | None:
    """Whether a rank lacks a part of an epoch: a phase of a traced step, or what follows the steps."""
    traced = range(1, steps + 1, -(-steps // MOST_STEPS) or 1)
    kept = (found["epoch"] > 0) & ~found["phase"].isin((WAIT, EXCHANGE, BETWEEN)) & found["step"].isin((0, *traced))
    told = found.loc[kept, ["rank", "epoch", "step", "phase"]].drop_duplicates()
    parts = told[["step", "phase"]].drop_duplicates()
    if absent := set(traced) - set(parts["step"]):
        return Note("step-missing", f"lacks step {min(absent)} of all epochs", step=min(absent))
    counts = told.groupby(["rank", "epoch"]).size()
    for rank in range(ranks):
        for epoch in range(1, epochs + 1):
            if counts.get((rank, epoch), 0) < len(parts):
                own = told[(told["rank"] == rank) & (told["epoch"] == epoch)]
                lacking = _pairs(parts) - _pairs(own)
                step, phase = min(
                    lacking, key=lambda part: (part[0] or steps + 1, [*STEP, *EPOCH, part[1]].index(part[1]))
                )
                text = f"lacks {phase} of rank {rank} in epoch {epoch}" + (f", step {step}" if step else "")
                return Note("phase-missing", text, phase=phase, rank=rank, epoch=epoch, step=step or None)
    return None


def _pairs(parts: pd.DataFrame) -> set[tuple[int, str]]:
    return set(zip(parts["step"], parts["phase"].astype(str), strict=True))


def _damaged_clocks(table: Path, ranks: int, epochs: int, steps: int) -> Note | None:
    return _other_ranks(_clocks(table)["rank"], ranks)


def _other_ranks(found: pd.Series, ranks: int) -> Note | None:
    """Whether the ranks of a table are others than those of its run."""
    told, wanted = set(found), set(range(ranks))
    if lacking := wanted - told:
        return Note("rank-missing", f"lacks rank {min(lacking)}", rank=min(lacking))
    if not told - wanted:
        return None
    return Note("unknown-rank", f"tells of rank {max(told)}; the run has {ranks}", got=int(max(told)), most=ranks)


def write_intervals(table: Path, intervals: pd.DataFrame) -> None:
    """Write a table of phases, INTERVALS with times to 0.1 us, whole or not at all."""
    with written_whole(table) as partial:
        intervals.to_csv(partial, index=False, columns=list(INTERVALS), float_format="%.7f", lineterminator="\n")
