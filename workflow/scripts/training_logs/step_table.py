"""Read tables of steps, with a time in each row: CSV, a JSON list, or one JSON object per line.

Without a column of times, times are differences of a column of clocks. Columns are found by their usual
names, or by names that the caller gives. The unit of a time is the end of its column's name, such as
``step_ms``, or else the caller's default.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from training_logs.log import (
    Log,
    LogError,
    Step,
    StepCollector,
    decimal,
    drop_unknown,
    is_thousands,
    unix_time,
)
from training_logs.rows import Row, read_rows

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}
# End of a column's name -> a name of UNITS.
UNIT_NAMES = {
    **{name: name for name in UNITS},
    "sec": "s", "secs": "s", "seconds": "s", "msec": "ms", "millis": "ms", "milliseconds": "ms", "usec": "us",
    "microseconds": "us", "minutes": "min", "hours": "h",
}  # fmt: skip
STATISTICS = ("max", "mean", "avg", "median", "std", "p95")  # in such company, `min` means a minimum
_UNIT = re.compile(rf".*[^a-z]({'|'.join(UNIT_NAMES)})[\])]?", re.DOTALL)
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "seconds": (
        "seconds", "step_time_s", "step_seconds", "step_s", "step_time", "step_time_ms", "step_ms",
        "iteration_time", "iteration_time_s", "iteration_time_ms", "iter_time", "iter_time_ms", "batch_time",
        "time_per_step",
        "time_per_iteration", "train_step_time", "train_step_timing in s", "dt_ms",
        "elapsed_ms", "time_ms", "step_us",
    ),
    "index": ("step", "global_step", "iteration", "iter", "trainer/global_step", "_step"),
    "samples": ("samples", "global_batch", "global_batch_size", "n_samples"),
    "tokens": ("tokens", "n_tokens"),
    "loss": ("loss", "train_loss", "train/loss", "reduced_train_loss", "lm loss"),
    "clock": ("timestamp", "wall_time", "wall time", "_timestamp", "datetime", "date", "time"),
}  # fmt: skip


def read(lines: Iterable[str], columns: Mapping[str, str] | None = None, unit: str = "s") -> Log:
    """Return the steps of a table.

    Args:
        lines: The lines of the file.
        columns: Unusual column names of `seconds`, `index`, `samples`, `tokens`, `loss` or `clock`.
        unit: The unit of times whose column name has none (a name of `UNITS`).

    Raises:
        LogError: If the table lacks a named column, has no times, or has a time that is not above 0.
    """
    names: dict[str, str] | None = None
    collector, clocks = StepCollector(), False
    for place, (number, row) in enumerate(read_rows(lines), 1):
        if names is None or not {"seconds", "clock"} & set(names):
            names = find_columns(row, columns or {}, number)
            clocks = "seconds" not in names
        if step := _step(row, names, place, number, unit, clocks):
            collector.add(step)
    if not len(collector):
        raise LogError(
            0, "has no row with a time", f"a column such as {', '.join(USUAL_NAMES['seconds'][:3])}"
        )
    steps = _steps_from_clocks(collector.steps()) if clocks else collector.steps()
    if not steps:
        raise LogError(0, "has no two increasing clocks", "a time for each step")
    return Log(steps, drop_unknown({"restarts": collector.restarts, "started_at": steps[0].started_at}))


def find_columns(row: Row, columns: Mapping[str, str], number: int = 0) -> dict[str, str]:
    """Return the column of each value in a row: the one in `columns`, or one with a usual name.

    Raises:
        LogError: If the row lacks a column of `columns`.
    """
    by_lower = {str(name).strip().lower(): name for name in reversed(list(row))}
    for column in columns.values():
        if column not in row:
            raise LogError(
                number, f"has no column {column!r}", f"one of {', '.join(map(str, list(row)[:20]))}"
            )
    usual_columns = {
        value: next((by_lower[name] for name in usual if name in by_lower), None)
        for value, usual in USUAL_NAMES.items()
    }
    return {value: name for value, name in {**usual_columns, **columns}.items() if name is not None}


def unit_of(column: str, unit: str, header: Iterable[str] = ()) -> float:
    """Return the seconds of the unit at the end of a column's name, such as step_ms or t(ms), or of `unit`.

    The end `min` means minutes, unless `header` has the same name with another statistic, such as `max`.
    """
    name = column.strip().lower()
    match = _UNIT.fullmatch(name)
    stem = name.removesuffix("min")
    is_minimum = stem != name and any(stem + end in map(str.lower, header) for end in STATISTICS)
    return UNITS[UNIT_NAMES[match[1]] if match and not is_minimum else unit]


def _step(row: Row, names: dict[str, str], place: int, number: int, unit: str, clocks: bool) -> Step | None:
    seconds, clock = 0.0, _clock(row.get(names.get("clock", "")))
    if not clocks:
        time = decimal(row.get(names["seconds"]))
        if time is None and is_thousands(str(row.get(names["seconds"]))):
            problem = f"{names['seconds']} is {row[names['seconds']]}"
            raise LogError(number, problem, "a number without a separator of thousands")
        if time is None:
            return None
        seconds = time * unit_of(names["seconds"], unit, row)
        if not 0 < seconds < float("inf"):
            problem = f"{names['seconds']} is {row[names['seconds']]}"
            raise LogError(number, problem, "a time above 0")
    elif clock is None:
        return None
    index, samples, tokens, loss = (
        decimal(row.get(names.get(name, ""))) for name in ("index", "samples", "tokens", "loss")
    )
    return Step(
        int(index) if index is not None and 0 <= index < 1e15 else place,
        seconds,
        samples=samples if samples and samples > 0 else None,
        tokens=tokens if tokens and tokens > 0 else None,
        loss=loss,
        started_at=clock,
    )


def _clock(value: object) -> float | None:
    number = decimal(value)
    return number if number is not None else unix_time(value) if isinstance(value, str) else None


def _steps_from_clocks(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps except the first of each segment, timed by differences between their clocks."""
    timed = []
    for earlier, later in pairwise(steps):
        begin, end = earlier.started_at, later.started_at
        if earlier.segment == later.segment and begin is not None and end is not None and end > begin:
            timed.append(replace(later, seconds=(end - begin) / later.n_steps, started_at=begin))
    return tuple(timed)
