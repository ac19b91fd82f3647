"""What a library's own profiler tells of a few steps (`trace: full`): events of Chrome's Trace Event Format, in `operators-<rank>.json`.

Their times are microseconds of the rank's own clock (time.monotonic), as long as the rank has them (RAW); runs/phases.py then
puts them on the clock of phases.csv.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

RAW = "profile-{}.json"
CLOCK = "ringside clock"  # what a profiler is shown, to tell its clock by
LOOKS = 5  # at two clocks

Event = dict[str, Any]


class Profiler(Protocol):
    """What watches a few steps of one rank."""

    def start(self) -> None:
        """Begin to watch."""

    def stop(self) -> None:
        """Watch no more; quickly, since an epoch is under way."""

    def events(self) -> Iterable[Event]:
        """What it saw, in microseconds of time.monotonic, once it has stopped."""


def write(profilers: Sequence[Profiler], file: Path) -> None:
    """Write what they saw, if there is one."""
    if profilers:
        seen = [event for profiler in profilers for event in profiler.events()]
        file.write_text(json.dumps({"traceEvents": seen}, separators=(",", ":")))


def show_clock(annotated: Callable[[str], AbstractContextManager[Any]]) -> float:
    """Show a profiler the CLOCK, twice, since the first one takes longer; when it began the second, in s of time.monotonic."""
    for _ in range(2):
        shown = time.monotonic()
        with annotated(CLOCK):
            pass
    return shown


def moved(events: Sequence[Event], shown: float) -> list[Event]:
    """Events with times in microseconds of a profiler's clock on that of this process, by the CLOCK that it was shown last."""
    ahead = max(event["ts"] for event in events if event.get("name") == CLOCK) - 1e6 * shown
    return [{**event, "ts": event["ts"] - ahead} if "ts" in event else event for event in events]


def unix_ahead() -> float:
    """By how many seconds time.time() is ahead of time.monotonic() now: of several looks the quickest, to about a microsecond."""
    looks = []
    for _ in range(LOOKS):
        before, unix, after = time.monotonic(), time.time(), time.monotonic()
        looks.append((after - before, unix - (before + after) / 2))
    return min(looks)[1]
