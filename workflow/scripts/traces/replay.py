"""Replay traced steps with other durations: each rank's operations in order, and what they wait for.

A step is a graph as in Daydream (Zhu, Phanishayee & Pekhimenko, ATC 2020), over all ranks at once as in dPRO
(Hu et al., MLSys 2022). It has three kinds of nodes:

* Work, in the order of each rank's main thread, split where gradients are handed over.
* All-reduces. The k-th one moves bytes once the last rank has handed it over and earlier ones have left the
  network.
* Waiting, which ends with the all-reduces that it waits for.

Durations are the traced ones, so an unchanged step takes its measured time. A question (traces.questions)
changes durations or the graph.

All-reduces that were under way at the same time shared the network. They are replayed one after the other,
each for its part of the total. A rank that waits for all of them sees no difference. During computation an
all-reduce can progress more slowly, because both need processors (`speed`).

Consecutive steps are one chain: each rank begins a step when it has ended the one before.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ranks.worker.phases import COMMUNICATION

WAIT = "wait"
FINISH = "finish"  # the rest of a wait after its last all-reduce, such as copying gradients


@dataclass(frozen=True)
class Work:
    """A rank computes for this time."""

    phase: str
    seconds: float


@dataclass(frozen=True)
class HandOver:
    """A rank hands over an all-reduce and continues at once.

    The hand-over happens `lag_s` from now, or `lag_s` after the end of all-reduce `after`, if that is later.
    """

    allreduce: int
    lag_s: float = 0.0
    after: int | None = None


@dataclass(frozen=True)
class Wait:
    """A rank waits until these all-reduces have ended."""

    allreduces: tuple[int, ...]


Operation = Work | HandOver | Wait


@dataclass(frozen=True)
class AllReduce:
    """The k-th all-reduce of a step, over all ranks.

    Attributes:
        moving: How long bytes move until each rank has the result, s [ranks], while no rank computes.
        behind: Whether it shared the network with earlier ones.
        least_s: Minimum time from the last hand-over to its end, even on an idle network.
        speed: Its speed while a rank computes, relative to that while all wait.
    """

    moving: np.ndarray
    behind: bool = False
    least_s: float = 0.0
    speed: float = 1.0

    def ends(self, handed_over: float, free: float, computing: float) -> np.ndarray:
        """Return when each rank has the result, s [ranks].

        Args:
            handed_over: When the last rank hands it over.
            free: When earlier all-reduces have left the network.
            computing: When the last rank ends its computation.
        """
        start = max(handed_over, free)
        overlap = max(computing - start, 0.0)
        moved = self.speed * overlap
        duration = np.where(self.moving <= moved, self.moving / self.speed, overlap + self.moving - moved)
        return np.maximum(start + duration, handed_over + self.least_s)


@dataclass(frozen=True)
class Step:
    """A step: operations of each rank in order, and the all-reduces that they refer to by index."""

    ranks: tuple[tuple[Operation, ...], ...]
    allreduces: tuple[AllReduce, ...]


@dataclass(frozen=True)
class Chain:
    """Consecutive steps.

    Attributes:
        starts: When each rank begins, s [ranks].
        steps: The steps.
        measured_s: Their measured time, mean over ranks.
    """

    starts: np.ndarray
    steps: tuple[Step, ...]
    measured_s: float

    def seconds(self) -> float:
        """Return the replayed time to the end of each rank's last step, mean over ranks.

        Means of chains add up to the time of all steps, whichever rank is ahead.
        """
        now = self.starts
        for step in self.steps:
            now, _ = play(step, now)
        return float(now.mean() - self.starts.mean())

    def overlaps(self) -> list[np.ndarray]:
        """Return how long a rank computes during each all-reduce of each replayed step, s [allreduces]."""
        overlaps, now = [], self.starts
        for step in self.steps:
            now, overlap = play(step, now)
            overlaps.append(overlap)
        return overlaps

    def slowed(self, speed: float) -> "Chain":
        """Return a chain of the same duration with all-reduces of this speed during computation.

        Moving times become shorter, because part of the traced time was slow.
        """
        steps = []
        for step, overlaps in zip(self.steps, self.overlaps(), strict=True):
            allreduces = tuple(
                replace(
                    allreduce,
                    speed=speed,
                    moving=allreduce.moving - (1 - speed) * np.minimum(overlap, allreduce.moving),
                )
                for allreduce, overlap in zip(step.allreduces, overlaps, strict=True)
            )
            steps.append(replace(step, allreduces=allreduces))
        return replace(self, steps=tuple(steps))


def play(step: Step, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return when each rank ends a step, and how long a rank computes during each all-reduce.

    Args:
        step: The step.
        starts: When each rank begins it, s [ranks].

    Returns:
        Ends, s [ranks], and overlaps, s [allreduces].
    """
    ranks, count = len(step.ranks), len(step.allreduces)
    now = np.array(starts, float)
    handed_over = np.full((count, ranks), np.nan)
    ended = np.full((count, ranks), np.nan)
    overlap = np.zeros(count)
    # Hand-overs after an all-reduce whose end is not known yet.
    delayed: list[tuple[int, HandOver, float]] = []
    next_operation = [0] * ranks
    while True:
        moved = False
        for rank, operations in enumerate(step.ranks):
            while next_operation[rank] < len(operations):
                match operations[next_operation[rank]]:
                    case Work(seconds=seconds):
                        now[rank] += seconds
                    case Wait(allreduces=awaited):
                        ends = ended[list(awaited), rank]
                        if np.isnan(ends).any():
                            break
                        now[rank] = max(now[rank], *ends)
                    case HandOver(allreduce=number) as give if give.after is None:
                        handed_over[number, rank] = now[rank] + give.lag_s
                    case HandOver() as give:
                        delayed.append((rank, give, now[rank]))
                next_operation[rank] += 1
                moved = True
        for rank, give, since in delayed:
            handed_over[give.allreduce, rank] = np.maximum(since, ended[give.after, rank] + give.lag_s)
        for number, allreduce in enumerate(step.allreduces):
            free = ended[number - 1].max() if number else -np.inf
            if np.isnan(ended[number, 0]) and not np.isnan([*handed_over[number], free]).any():
                last = handed_over[number].max()
                computing = now.max()  # Every rank waits now, or has ended the step.
                overlap[number] = max(computing - max(last, free), 0.0)
                ended[number] = allreduce.ends(last, free, computing)
                moved = True
        if not moved:
            return now, overlap


@dataclass(frozen=True)
class Messages:
    """Times of messages that are alone on the network.

    Attributes:
        seconds: Time of each, s [messages].
        occupied: The part of it in which no other message can progress, s [messages].
    """

    seconds: np.ndarray
    occupied: np.ndarray


Alone = Callable[[int], Messages]


def equal_messages(count: int) -> Messages:
    """Return the times of messages that share the network equally, if the benchmark gives none."""
    return Messages(np.zeros(count), np.ones(count))


def build_chains(steps: pd.DataFrame, alone: Alone = equal_messages) -> list[Chain]:
    """Return the traced steps of one run as chains.

    Steps are left out if a rank lacks them, or if ranks have different numbers of all-reduces.

    Args:
        steps: rank, epoch, step, phase, start, end (runs.phases).
        alone: Returns the times of a number of all-reduces, each alone on the network.
    """
    ranks = steps["rank"].nunique()
    chains: list[Chain] = []
    parts: list[tuple[Step, np.ndarray, np.ndarray]] = []
    before = (0, 0)
    for (epoch, number), rows in steps.groupby(["epoch", "step"], sort=True):
        traced_step = _build_step(rows, ranks, alone)
        if parts and (traced_step is None or before != (epoch, number - 1)):
            chains.append(_join_steps(parts))
            parts = []
        if traced_step is not None:
            parts.append(traced_step)
        before = (epoch, number)
    return [*chains, _join_steps(parts)] if parts else chains


def _join_steps(parts: Sequence[tuple[Step, np.ndarray, np.ndarray]]) -> Chain:
    starts = parts[0][1]
    return Chain(starts, tuple(step for step, _, _ in parts), float(parts[-1][2].mean() - starts.mean()))


def _build_step(rows: pd.DataFrame, ranks: int, alone: Alone) -> tuple[Step, np.ndarray, np.ndarray] | None:
    """Return a step and when its ranks began and ended it, s [ranks]; None if it is incomplete."""
    is_communication = rows["phase"] == COMMUNICATION
    main = [
        part[["phase", "start", "end"]]
        for _, part in rows[~is_communication].sort_values("start").groupby("rank")
    ]
    allreduces = [
        part[["start", "end"]].to_numpy()
        for _, part in rows[is_communication].sort_values("start").groupby("rank")
    ]
    if len(main) < ranks or len({len(part) for part in allreduces}) > 1 or len(allreduces) not in (0, ranks):
        return None
    times = (
        np.stack(allreduces, axis=1) if allreduces else np.empty((0, ranks, 2))
    )  # [allreduces, ranks, start and end]
    operations = tuple(
        tuple(_rank_operations(list(part.itertuples(index=False, name=None)), times[:, rank]))
        for rank, part in enumerate(main)
    )
    starts = np.array([part["start"].iloc[0] for part in main])
    ends = np.array([part["end"].iloc[-1] for part in main])
    return Step(operations, tuple(_serialize_allreduces(times, alone(len(times))))), starts, ends


def _serialize_allreduces(times: np.ndarray, alone: Messages) -> Iterator[AllReduce]:
    """Yield the all-reduces of a step, with those that shared the network put one after the other.

    Args:
        times: Start and end, [allreduces, ranks, 2].
        alone: Times of the messages if they are alone on the network.
    """
    last, ends = times[:, :, 0].max(axis=1), times[:, :, 1]
    free = -np.inf
    first = 0
    while first < len(times):
        # Group all-reduces that start before all earlier ones of the group have ended.
        after = first + 1
        while after < len(times) and last[after] < ends[first:after].max():
            after += 1
        all_ended = ends[first:after].max(axis=0)
        occupied = alone.occupied[first:after]
        shares = occupied / occupied.sum() * max(all_ended.min() - max(last[first], free), 0.0)
        for number in range(first, after):
            start = max(last[number], free)
            remaining = np.maximum(all_ended - start, 0.0)
            moving = remaining if number == after - 1 else np.minimum(shares[number - first], remaining)
            behind = number > first
            least_s = (
                min(float(alone.seconds[number]), float(all_ended.min()) - last[number]) if behind else 0.0
            )
            yield AllReduce(moving, behind, max(least_s, 0.0))
            free = start + moving.max()
        first = after


def _rank_operations(phases: Sequence[tuple[str, float, float]], times: np.ndarray) -> Iterator[Operation]:
    """Yield the operations of a rank in a step.

    Args:
        phases: Name, start and end of its phases in order.
        times: Start and end of its all-reduces in order, [allreduces, 2].
    """
    number = 0
    for position, (phase, start, end) in enumerate(phases, start=1):
        now = start
        while number < len(times) and (times[number, 0] < end or position == len(phases)):
            if phase == WAIT:
                yield _hand_over_while_waiting(number, times, start)
            else:
                handed_over = min(max(times[number, 0], now), end)
                if handed_over > now:
                    yield Work(phase, handed_over - now)
                    now = handed_over
                yield HandOver(number)
            number += 1
        if phase == WAIT:
            ended = tuple(n for n in range(number) if times[n, 1] <= end)
            if ended:
                yield Wait(ended)
            yield Work(FINISH, end - max([start, *(times[n, 1] for n in ended)]))
        else:
            yield Work(phase, end - now)


def _hand_over_while_waiting(number: int, times: np.ndarray, start: float) -> HandOver:
    """Return a hand-over by a thread of the library while the rank waits.

    Its delay counts from the end of the latest all-reduce in this wait, or from the begin of the wait.
    """
    handed_over = times[number, 0]
    ended = [n for n in range(number) if start < times[n, 1] <= handed_over]
    if ended:
        latest = max(ended, key=lambda n: float(times[n, 1]))
        return HandOver(number, handed_over - times[latest, 1], latest)
    return HandOver(number, max(handed_over - start, 0.0))
