"""Phases of a rank's training: intervals of the rank's clock (time.monotonic, in s).

A rank is in one phase at a time, from one `enter` to the next. Communication of gradients overlaps with
phases (`begin`). A run with `trace: none` uses `Untraced`, whose methods do nothing, instead of `Phases`.
"""

import csv
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from ranks.worker import operators
from ranks.worker.operators import Profiler

COLUMNS = ("epoch", "step", "phase", "start", "end")
CLOCKS = ("epoch", "rank", "at", "offset_s", "error_s")
MAX_TRACED_STEPS = 500  # per epoch
# The steps that a library's own profiler records: at least one group of accumulated batches.
WINDOW_STEPS = 4
COMMUNICATION = "communication"
UNTRACED = "untraced"

Stamps = Sequence[Any]
End = Callable[..., None]


def _ignore(at: Any = None) -> None:
    """End an interval that is not recorded."""


class Untraced:
    """Phases of a run that is not traced."""

    #: whether the current step is traced
    is_traced = False

    def use_clock(self, clock: Callable[[], Any], seconds: Callable[[Stamps], Sequence[float]]) -> None:
        """Take stamps from another clock.

        Args:
            clock: Return a stamp of now.
            seconds: Convert stamps to this rank's clock, after an epoch. Stamps that are numbers are seconds
                already.
        """

    def enter(self, phase: str, at: Any = None) -> None:
        """End the current phase and start this one, now or at a stamp later than all earlier ones."""

    def stamp(self) -> Any:
        """Return a stamp of the clock."""

    def step(self) -> None:
        """Start the next training step; `enter` names its first phase."""

    def waits(self) -> Callable[[], None]:
        """Start a wait, and return the function to call when the rank continues with the previous phase.

        A rank that waits for a batch stays in phase `data`.
        """
        return _ignore

    def begin(self) -> End:
        """Start an interval of communication parallel to the phases, and return the function that ends it.

        It can be called from any thread, and with a stamp of the end. Only the first call counts.
        """
        return _ignore

    def put(self, phase: str, start: Any, end: Any) -> None:
        """Record an interval parallel to the phases of this step, from stamp to stamp."""

    def use_profiler(self, profiler: Profiler) -> None:
        """Let a library's own profiler record a few steps, with `trace: full`."""

    def open_epoch(self, epoch: int) -> None:
        """Start this epoch, on all ranks."""

    def leave_steps(self) -> None:
        """End the epoch's last step; what follows belongs to no step."""

    def close_epoch(self) -> None:
        """Write the epoch's intervals, while nothing is timed."""


class Phases(Untraced):
    """Phases of a traced run, in `phases-<rank>.csv` of its folder.

    `steps` is the number of steps of an epoch. If an epoch has more than MAX_TRACED_STEPS steps, only every
    second, third, ... step is traced. Epoch 0 is the time before training; step 0 is the time outside of
    steps.
    """

    def __init__(self, folder: Path, rank: int, steps: int) -> None:
        self.epoch = self.number = 0
        self.every = -(-steps // MAX_TRACED_STEPS)
        self.is_traced = True
        self._file = folder / f"phases-{rank}.csv"
        self._table: TextIO | None = None
        self._clock: Callable[[], Any] = time.monotonic
        self._seconds: Callable[[Stamps], Sequence[float]] = list
        self._entered: list[tuple[int, int, str, Any]] = [(0, 0, "interpreter", process_start())]
        self._parallel: list[list[Any]] = []

    def use_clock(self, clock: Callable[[], Any], seconds: Callable[[Stamps], Sequence[float]]) -> None:
        """Take stamps from another clock."""
        self._clock, self._seconds = clock, seconds

    def enter(self, phase: str, at: Any = None) -> None:
        """End the current phase and start this one, now or at a stamp later than all earlier ones."""
        if self.is_traced:
            self._entered.append((self.epoch, self.number, phase, self._clock() if at is None else at))

    def stamp(self) -> Any:
        """Return a stamp of the clock."""
        return self._clock()

    def step(self) -> None:
        """Start the next training step; `enter` names its first phase. Steps count from 1."""
        self.number += 1
        traced = (self.number - 1) % self.every == 0
        if self.is_traced and not traced:
            self.enter(UNTRACED)
        self.is_traced = traced

    def waits(self) -> Callable[[], None]:
        """Start a wait, and return the function to call when the rank continues with the previous phase."""
        before = self._entered[-1][2]
        if before == "data":
            return _ignore
        self.enter("wait")
        return lambda: self.enter(before)

    def begin(self) -> End:
        """Start an interval of communication parallel to the phases, and return the function that ends it."""
        if not self.is_traced:
            return _ignore
        interval = [self.epoch, self.number, COMMUNICATION, self._clock(), None]
        self._parallel.append(interval)

        def end(at: Any = None) -> None:
            if interval[4] is None:
                interval[4] = self._clock() if at is None else at

        return end

    def put(self, phase: str, start: Any, end: Any) -> None:
        """Record an interval parallel to the phases of this step, from stamp to stamp."""
        if self.is_traced:
            self._parallel.append([self.epoch, self.number, phase, start, end])

    def open_epoch(self, epoch: int) -> None:
        """Start this epoch, on all ranks."""
        self.epoch, self.number, self.is_traced = epoch, 0, True
        self.enter(UNTRACED)  # The first step begins later.

    def leave_steps(self) -> None:
        """End the epoch's last step; what follows belongs to no step."""
        self.number, self.is_traced = 0, True
        self.enter("barrier")

    def close_epoch(self) -> None:
        """Write the epoch's intervals, while nothing is timed."""
        self.enter("between")
        self._write()

    def _write(self) -> None:
        """Write all intervals that have ended, and keep the current one."""
        ended = [interval for interval in self._parallel if interval[4] is not None]
        self._parallel = [interval for interval in self._parallel if interval[4] is None]
        stamps = [stamp for *_, stamp in self._entered] + [
            stamp for interval in ended for stamp in interval[3:]
        ]
        seconds = list(self._seconds(stamps))
        # Stamps of two clocks may be out of order by the error of the clocks' alignment.
        times = list(itertools.accumulate(seconds[: len(self._entered)], max))
        parallel = seconds[len(self._entered) :]
        rows = [
            (epoch, number, phase, start, end)
            for (epoch, number, phase, _), start, end in zip(self._entered, times, times[1:], strict=False)
            if phase != UNTRACED
        ]
        rows += [
            (*interval[:3], start, end)
            for interval, start, end in zip(ended, parallel[::2], parallel[1::2], strict=True)
        ]
        if self._table is None:
            self._table = open(self._file, "w", newline="")  # noqa: SIM115 (open for the whole run)
            csv.writer(self._table, lineterminator="\n").writerow(COLUMNS)
        csv.writer(self._table, lineterminator="\n").writerows(
            (*fields, f"{start:.7f}", f"{end:.7f}") for *fields, start, end in rows
        )
        self._table.flush()
        self._entered = [(*self._entered[-1][:3], times[-1])]


class ProfiledPhases(Phases):
    """Phases of a run with `trace: full`: profilers record the first `watched` steps of its `last` epoch.

    Profilers start before the epoch, which is not timed. They stop within it, outside any phase.
    """

    def __init__(self, folder: Path, rank: int, steps: int, last: int, watched: int = WINDOW_STEPS) -> None:
        super().__init__(folder, rank, steps)
        self.last, self.watched = last, watched
        self._profilers: list[Profiler] = []
        self._watching = False
        self._events = folder / operators.RAW.format(rank)

    def use_profiler(self, profiler: Profiler) -> None:
        """Let a library's own profiler record a few steps, with `trace: full`."""
        self._profilers.append(profiler)

    def step(self) -> None:
        """Start the next training step; `enter` names its first phase.

        All steps that a profiler records are traced.
        """
        if self._watching and self.number == self.watched:
            self.enter(UNTRACED)
            self._stop()
        super().step()
        self.is_traced = self.is_traced or self._watching

    def leave_steps(self) -> None:
        """End the epoch's last step; what follows belongs to no step."""
        if self._watching:
            self.is_traced = True
            self.enter(UNTRACED)
            self._stop()
        super().leave_steps()

    def close_epoch(self) -> None:
        """Write the epoch's intervals, while nothing is timed."""
        super().close_epoch()
        if self.epoch == self.last:
            operators.write(self._profilers, self._events)
        elif self.epoch == self.last - 1:
            for profiler in self._profilers:
                profiler.start()
            self._watching = True

    def _stop(self) -> None:
        if self._watching:
            for profiler in self._profilers:
                profiler.stop()
        self._watching = False


def make_phases(levels: Mapping[str, Any], folder: Path, rank: int, steps: int) -> Untraced:
    """Return the recorder of phases for the level of `trace`; benchmarks have no such level and no phases."""
    match levels.get("trace"):
        case "full":
            return ProfiledPhases(
                folder, rank, steps, levels["epochs"], max(WINDOW_STEPS, levels["sync_every"])
            )
        case "phases":
            return Phases(folder, rank, steps)
    return Untraced()


def process_start() -> float:
    """Return when this process started, on the clock of time.monotonic, to 10 ms.

    proc(5): field 22 of stat, in ticks since the system started.
    """
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic() - (since_boot - ticks / os.sysconf("SC_CLK_TCK"))
