"""Read the file of LBANN's callback `timeline`, which each rank writes at its end.

For every step, it has the times of each layer's passes and of each weight's update. A line is
`fp-LAYER:begin:end`, `bp-LAYER:...` or `opt-WEIGHTS:...`, in s since training began on all ranks, with six
digits. Lines of one name are in the order of steps (LBANN v0.104, src/callbacks/timeline.cpp). Validation and
communication of gradients are not included; `bp` and `opt` contain the wait for gradients.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from ranks.frameworks.lbann.output import UnreadableError
from ranks.worker.operators import Event

FILE = "timeline.m0.{}.txt"  # file of a rank; there is one trainer, m0
PARTS = {"fp": "forward", "bp": "backward", "opt": "optimizer"}
_LINE = re.compile(r"(?P<part>fp|bp|opt)-(?P<name>.+):(?P<begin>[0-9.e+-]+):(?P<end>[0-9.e+-]+)\n")

Times = dict[tuple[str, str], list[tuple[float, float]]]  # intervals by part and name, step by step


def read(file: Path) -> Times:
    """Return the times in a file.

    Raises:
        UnreadableError: If layers and weights have different numbers of steps.
    """
    times: Times = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        match = _LINE.fullmatch(line)
        if not match:
            raise UnreadableError(f"LBANN's timeline has an unknown line: {line[:100]!r}")
        times[PARTS[match["part"]], match["name"]].append((float(match["begin"]), float(match["end"])))
    if {part for part, _ in times} != set(PARTS.values()) or len(
        {len(intervals) for intervals in times.values()}
    ) != 1:
        raise UnreadableError("LBANN's timeline has different numbers of steps of layers and weights")
    return times


def phases(
    times: Times, first: Mapping[int, int]
) -> Iterator[tuple[int, int, list[tuple[str, float, float]]]]:
    """Yield the phases of every step, by epoch and step.

    `first` has for each epoch, from 1, the number of its first step, from 0.

    A phase lasts until the next one begins. The time before the first layer is `data`, except in an epoch's
    first step, where it includes validation. The time between layers and weights is `metrics`.
    """
    ends = 0.0
    epochs = {number: epoch for epoch, number in first.items()}
    epoch = 0
    for number in range(len(next(iter(times.values())))):
        epoch = epochs.get(number, epoch)
        spans = {}
        for part in PARTS.values():
            intervals = [steps[number] for (kind, _), steps in times.items() if kind == part]
            spans[part] = min(begin for begin, _ in intervals), max(end for _, end in intervals)
        forward, (backward, computed), (update, done) = (
            spans["forward"][0],
            spans["backward"],
            spans["optimizer"],
        )
        step = [("data", ends, forward)] if number not in epochs else []
        step += [("forward", forward, backward), ("backward", backward, computed)]
        step += [("metrics", computed, update), ("optimizer", update, done)]
        yield epoch, number - first[epoch] + 1, step
        ends = done


class Layers:
    """The timeline of a few steps as events (ranks/worker/operators.py).

    Each part is a thread with its layers. `zero` is the start of training in s.
    """

    def __init__(self, times: Times, steps: range, zero: float) -> None:
        self._times, self._steps, self._zero = times, steps, zero

    def start(self) -> None:
        """Start profiling. LBANN has recorded all steps."""

    def stop(self) -> None:
        """Stop profiling quickly, since an epoch is being timed."""

    def events(self) -> Iterator[Event]:
        """Return the events, in microseconds of time.monotonic, after the profiler has stopped."""
        for thread, part in enumerate(PARTS.values()):
            place = {"pid": "LBANN", "tid": thread}
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": part}}
            for (kind, name), steps in self._times.items():
                for begin, end in (steps[number] for number in self._steps if kind == part):
                    began_us = 1e6 * (self._zero + begin)
                    yield {"ph": "X", "name": name, **place, "ts": began_us, "dur": 1e6 * (end - begin)}
