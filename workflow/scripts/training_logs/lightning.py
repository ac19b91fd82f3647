"""Read logs of Lightning's ThroughputMonitor: metrics.csv of CSVLogger, or one JSON object per line.

``train/time`` (or ``train|time``, ``time/train``) is the cumulative time of training. ``train/batches`` and
``train/samples`` are cumulative counts of one device. Step times are differences between rows. Most cells of
such a table are empty.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from training_logs.log import Log, LogError, Step, StepCollector, decimal, drop_unknown
from training_logs.rows import Row, read_rows

TIMES = ("train/time", "train|time", "time/train")


@dataclass(frozen=True)
class _Count:
    """The cumulative counts in a row: optimizer steps, seconds, batches and samples of one device."""

    index: int
    seconds: float
    batches: float | None
    samples: float | None


def read(lines: Iterable[str]) -> Log:
    """Return the steps and facts of a table of metrics.

    Raises:
        LogError: If fewer than two rows have a time of training.
    """
    counts: list[_Count] = []
    columns: dict[str, None] = {}
    for _, row in read_rows(lines):
        columns |= dict.fromkeys(map(str, row))
        index, seconds = _first(row, ("step",)), _first(row, TIMES)
        if seconds is not None and seconds > 0 and index is not None and 0 <= index < 1e15:
            batches, samples = (
                _first(row, (f"train/{name}", f"train|{name}")) for name in ("batches", "samples")
            )
            counts.append(_Count(int(index), seconds, batches, samples))
    collector = StepCollector()
    for earlier, later in pairwise(counts):
        gap = later.index - earlier.index
        if gap < 1 or later.seconds <= earlier.seconds:
            collector.restart(later.index)
        else:
            collector.add(Step(later.index, (later.seconds - earlier.seconds) / gap, n_steps=gap))
    if not len(collector):
        problem = f"has no two times of training in the columns {', '.join(list(columns)[:20])}"
        raise LogError(0, problem, "rows of ThroughputMonitor with step and train/time")
    facts: dict[str, str | int | float | None] = {
        "framework": "lightning",
        "accumulation": _ratio(counts, "batches", "index"),
        "local_batch": _ratio(counts, "samples", "batches"),
        "restarts": collector.restarts,
    }
    return Log(collector.steps(), drop_unknown(facts))


def _first(row: Row, names: Iterable[str]) -> float | None:
    return next((number for name in names if (number := decimal(row.get(name))) is not None), None)


def _ratio(counts: list[_Count], above: str, below: str) -> int | None:
    """Return the ratio of the increases of two counts; None if it is unknown or not whole."""
    first, last = counts[0], counts[-1]
    values = [getattr(count, name) for name in (above, below) for count in (first, last)]
    if None in values or values[3] <= values[2]:
        return None
    ratio = (values[1] - values[0]) / (values[3] - values[2])
    return round(ratio) if 1 <= ratio < 1e12 and abs(ratio - round(ratio)) < 0.01 else None
