"""Operators of a few steps from a library's own profiler (`trace: full`), in `operators-<rank>.json`.

The file holds events of Chrome's Trace Event Format. A rank writes their times, in microseconds of its clock
(time.monotonic), into the file RAW; runs/phases.py converts them to the clock of phases.csv.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

RAW = "profile-{}.json"
CLOCK = "ringside clock"  # name of the event that aligns a profiler's clock with the rank's
N_CLOCK_READINGS = 5

Event = dict[str, Any]


class Profiler(Protocol):
    """A profiler of a few steps of one rank."""

    def start(self) -> None:
        """Start profiling."""

    def stop(self) -> None:
        """Stop profiling quickly, since an epoch is being timed."""

    def events(self) -> Iterable[Event]:
        """Return the events, in microseconds of time.monotonic, after the profiler has stopped."""


def write(profilers: Sequence[Profiler], file: Path) -> None:
    """Write the events of all profilers to `file`; without profilers, write no file."""
    if profilers:
        events = [event for profiler in profilers for event in profiler.events()]
        file.write_text(json.dumps({"traceEvents": events}, separators=(",", ":")))


def show_clock(annotated: Callable[[str], AbstractContextManager[Any]]) -> float:
    """Let a profiler record the event CLOCK, and return when the event began, in s of time.monotonic.

    It is recorded twice, and only the second one counts, since the first one takes longer.
    """
    for _ in range(2):
        shown_at = time.monotonic()
        with annotated(CLOCK):
            pass
    return shown_at


def moved(events: Sequence[Event], shown_at: float) -> list[Event]:
    """Return events with times converted from a profiler's clock to time.monotonic, both in microseconds.

    The last event CLOCK, which began at `shown_at` (s of time.monotonic), aligns the two clocks.
    """
    ahead = max(event["ts"] for event in events if event.get("name") == CLOCK) - 1e6 * shown_at
    return [{**event, "ts": event["ts"] - ahead} if "ts" in event else event for event in events]


def unix_ahead() -> float:
    """Return how far time.time() is ahead of time.monotonic() in s, to about a microsecond.

    The fastest of several readings counts.
    """
    readings = []
    for _ in range(N_CLOCK_READINGS):
        before, unix, after = time.monotonic(), time.time(), time.monotonic()
        readings.append((after - before, unix - (before + after) / 2))
    return min(readings)[1]
