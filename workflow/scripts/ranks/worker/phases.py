"""What a rank does when: phases of its training, as intervals of its own clock (time.monotonic, in s).

A rank is in one phase at a time, from `enter` to the next `enter`; what carries gradients works beside it (`begin`). A run
whose level of `trace` is none has `Untraced` in the place of `Phases`: the same calls, which do nothing.
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
MOST_STEPS = 500  # that are traced of an epoch
WINDOW_STEPS = 4  # that a library's own profiler watches; more, where it takes more until gradients travel
EXCHANGE = "exchange"
UNTRACED = "untraced"

Stamps = Sequence[Any]
End = Callable[..., None]


def _nothing(at: Any = None) -> None:
    """End an interval that nobody keeps."""


class Untraced:
    """Marks of a run that nobody traces."""

    #: whether the step that is under way is traced
    on = False

    def read_by(self, clock: Callable[[], Any], seconds: Callable[[Stamps], Sequence[float]]) -> None:
        """Take stamps of another clock; `seconds` tells, once an epoch is over, what they are on this rank's own.

        Numbers are seconds already.
        """

    def enter(self, phase: str, at: Any = None) -> None:
        """The phase before ends, this one begins: now, or at a stamp of the clock that comes after all others."""

    def stamp(self) -> Any:
        """Now, as the clock tells it."""

    def step(self) -> None:
        """The next training step begins; `enter` says with what."""

    def waits(self) -> Callable[[], None]:
        """The rank has nothing to do but wait; call what is returned when it goes on with the phase before.

        Who waits for a batch stays in `data`.
        """
        return _nothing

    def begin(self, phase: str = EXCHANGE) -> End:
        """Something begins beside the phases; call what is returned when it ends, from whichever thread, or with a stamp.

        The first of several calls counts.
        """
        return _nothing

    def put(self, phase: str, start: Any, end: Any) -> None:
        """Something that went on beside the phases of this step, from stamp to stamp."""

    def profile_by(self, profiler: Profiler) -> None:
        """Have a library's own profiler watch a few steps, where `trace` is full."""

    def open_epoch(self, epoch: int) -> None:
        """All ranks begin this epoch."""

    def leave_steps(self) -> None:
        """The epoch's last step has ended; what follows is no step's."""

    def close_epoch(self) -> None:
        """Write what the epoch brought: nothing is timed now."""


class Phases(Untraced):
    """Marks of a traced run, in `phases-<rank>.csv` of its folder. `steps` is the number of steps of an epoch.

    Of an epoch with more than MOST_STEPS steps every second, third, ... step is traced. Epoch 0 is what comes before training,
    step 0 what is no step's.
    """

    def __init__(self, folder: Path, rank: int, steps: int) -> None:
        self.epoch = self.number = 0
        self.every = -(-steps // MOST_STEPS)
        self.on = True
        self._file = folder / f"phases-{rank}.csv"
        self._table: TextIO | None = None
        self._clock: Callable[[], Any] = time.monotonic
        self._seconds: Callable[[Stamps], Sequence[float]] = list
        self._entered: list[tuple[int, int, str, Any]] = [(0, 0, "interpreter", process_start())]
        self._beside: list[list[Any]] = []

    def read_by(self, clock: Callable[[], Any], seconds: Callable[[Stamps], Sequence[float]]) -> None:
        """See Untraced."""
        self._clock, self._seconds = clock, seconds

    def enter(self, phase: str, at: Any = None) -> None:
        """See Untraced."""
        if self.on:
            self._entered.append((self.epoch, self.number, phase, self._clock() if at is None else at))

    def stamp(self) -> Any:
        """See Untraced."""
        return self._clock()

    def step(self) -> None:
        """See Untraced. Steps count from 1."""
        self.number += 1
        traced = (self.number - 1) % self.every == 0
        if self.on and not traced:
            self.enter(UNTRACED)
        self.on = traced

    def waits(self) -> Callable[[], None]:
        """See Untraced."""
        before = self._entered[-1][2]
        if before == "data":
            return _nothing
        self.enter("wait")
        return lambda: self.enter(before)

    def begin(self, phase: str = EXCHANGE) -> End:
        """See Untraced."""
        if not self.on:
            return _nothing
        interval = [self.epoch, self.number, phase, self._clock(), None]
        self._beside.append(interval)

        def end(at: Any = None) -> None:
            if interval[4] is None:
                interval[4] = self._clock() if at is None else at

        return end

    def put(self, phase: str, start: Any, end: Any) -> None:
        """See Untraced."""
        if self.on:
            self._beside.append([self.epoch, self.number, phase, start, end])

    def open_epoch(self, epoch: int) -> None:
        """See Untraced."""
        self.epoch, self.number, self.on = epoch, 0, True
        self.enter(UNTRACED)  # until the first step

    def leave_steps(self) -> None:
        """See Untraced."""
        self.number, self.on = 0, True
        self.enter("barrier")

    def close_epoch(self) -> None:
        """See Untraced."""
        self.enter("between")
        self._write()

    def _write(self) -> None:
        """All intervals that have ended, the one that is under way left."""
        ended = [interval for interval in self._beside if interval[4] is not None]
        self._beside = [interval for interval in self._beside if interval[4] is None]
        stamps = [stamp for *_, stamp in self._entered] + [
            stamp for interval in ended for stamp in interval[3:]
        ]
        seconds = list(self._seconds(stamps))
        # Two clocks' stamps may be in another order than what they stamp, by what the clocks are compared to.
        own = list(itertools.accumulate(seconds[: len(self._entered)], max))
        others = seconds[len(self._entered) :]
        rows = [
            (epoch, number, phase, start, end)
            for (epoch, number, phase, _), start, end in zip(self._entered, own, own[1:], strict=False)
            if phase != UNTRACED
        ]
        rows += [
            (*interval[:3], start, end)
            for interval, start, end in zip(ended, others[::2], others[1::2], strict=True)
        ]
        if self._table is None:
            self._table = open(self._file, "w", newline="")  # noqa: SIM115 (open for the whole run)
            csv.writer(self._table, lineterminator="\n").writerow(COLUMNS)
        csv.writer(self._table, lineterminator="\n").writerows(
            (*what, f"{start:.7f}", f"{end:.7f}") for *what, start, end in rows
        )
        self._table.flush()
        self._entered = [(*self._entered[-1][:3], own[-1])]


class Full(Phases):
    """Marks of a run that is traced in full: profilers watch the first steps of its `last` epoch, `watched` of them.

    They start where nothing is timed, before the epoch. When they stop, in it, no phase is under way.
    """

    def __init__(self, folder: Path, rank: int, steps: int, last: int, watched: int = WINDOW_STEPS) -> None:
        super().__init__(folder, rank, steps)
        self.last, self.watched = last, watched
        self._profilers: list[Profiler] = []
        self._watching = False
        self._events = folder / operators.RAW.format(rank)

    def profile_by(self, profiler: Profiler) -> None:
        """See Untraced."""
        self._profilers.append(profiler)

    def step(self) -> None:
        """See Untraced. All steps that are watched are traced."""
        if self._watching and self.number == self.watched:
            self.enter(UNTRACED)
            self._stop()
        super().step()
        self.on = self.on or self._watching

    def leave_steps(self) -> None:
        """See Untraced."""
        if self._watching:
            self.on = True
            self.enter(UNTRACED)
            self._stop()
        super().leave_steps()

    def close_epoch(self) -> None:
        """See Untraced."""
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


def of_run(levels: Mapping[str, Any], folder: Path, rank: int, steps: int) -> Untraced:
    """The marks of a run with these levels, of which `trace` is one; a sweep of the network has none."""
    match levels.get("trace"):
        case "full":
            return Full(folder, rank, steps, levels["epochs"], max(WINDOW_STEPS, levels["sync_every"]))
        case "phases":
            return Phases(folder, rank, steps)
    return Untraced()


def process_start(stat: Path = Path("/proc/self/stat")) -> float:
    """When this process was started, on the clock of time.monotonic, to 10 ms (proc(5): field 22, ticks since the start of the system)."""
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic() - (since_boot - ticks / os.sysconf("SC_CLK_TCK"))
