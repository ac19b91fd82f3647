"""Replay of traced steps: what each rank does in its order, and what waits for what, played again with other durations.

A step is a graph as in Daydream (Zhu, Phanishayee & Pekhimenko, ATC 2020), here over all ranks at once as in dPRO (Hu et al.,
MLSys 2022): work in the order of each rank's main thread, cut where gradients are handed over; the k-th exchange of a step, which moves bytes
from when the last rank has handed it over and those before it have left the network; waiting, which ends with the exchanges
that it waited for. Durations are those that were traced. Played as it is, a step takes the time that it took; a question
(traces.questions) changes durations or the graph.

Exchanges that were under way at once shared the network. They are played one after the other, each for its part of the time that they
took together; a rank that waits for all of them does not see the difference. While ranks compute, an exchange may get on more slowly than
when they wait for it, since both need processors (`beside`).

Steps that follow each other are one chain: where a rank ends a step is where it begins the next one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ranks.worker.phases import EXCHANGE

WAIT = "wait"
FINISH = "finish"  # what a rank still does in a wait when its last exchange has ended, such as copying gradients


@dataclass(frozen=True)
class Work:
    """A rank computes for so long."""

    phase: str
    seconds: float


@dataclass(frozen=True)
class Give:
    """A rank hands over an exchange, `lag_s` from now, or from the end of the exchange `after` if that is later; it goes on at once."""

    exchange: int
    lag_s: float = 0.0
    after: int | None = None


@dataclass(frozen=True)
class Wait:
    """A rank waits until these exchanges have ended."""

    exchanges: tuple[int, ...]


Operation = Work | Give | Wait


@dataclass(frozen=True)
class Exchange:
    """All ranks' k-th exchange: how long its bytes move until each rank has them, s [ranks], when no rank computes.

    `behind`: it shared the network with those before it. `least_s`: from when the last rank has handed it over until it has ended, however
    free the network is. `beside`: its speed while a rank computes, as a share of that while all wait.
    """

    moving: np.ndarray
    behind: bool = False
    least_s: float = 0.0
    beside: float = 1.0

    def ends(self, given: float, free: float, computing: float) -> np.ndarray:
        """When each rank has it, s [ranks]: handed over by the last rank at `given`, the network `free`, a rank `computing` until then."""
        begins = max(given, free)
        overlap = max(computing - begins, 0.0)
        moved = self.beside * overlap
        lasts = np.where(self.moving <= moved, self.moving / self.beside, overlap + self.moving - moved)
        return np.maximum(begins + lasts, given + self.least_s)


@dataclass(frozen=True)
class Step:
    """A step: operations of each rank in their order, and the exchanges that they name by place."""

    ranks: tuple[tuple[Operation, ...], ...]
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True)
class Chain:
    """Steps that follow each other. `starts`: when each rank begins, s [ranks]; `measured_s`: what they took, mean over ranks."""

    starts: np.ndarray
    steps: tuple[Step, ...]
    measured_s: float

    def seconds(self) -> float:
        """How long it takes when it is played: to the end of each rank's last step, mean over ranks.

        The mean, so that the times of chains add up whichever rank is ahead of the others.
        """
        now = self.starts
        for step in self.steps:
            now, _ = play(step, now)
        return float(now.mean() - self.starts.mean())

    def overlaps(self) -> list[np.ndarray]:
        """For how long a rank computes beside each exchange of each step when it is played, s [exchanges]."""
        found, now = [], self.starts
        for step in self.steps:
            now, overlap = play(step, now)
            found.append(overlap)
        return found

    def slowed(self, beside: float) -> "Chain":
        """The same, which takes as long, of exchanges that get on at this speed beside computing: they move less than they seem to."""
        steps = []
        for step, overlaps in zip(self.steps, self.overlaps(), strict=True):
            exchanges = tuple(
                replace(one, beside=beside, moving=one.moving - (1 - beside) * np.minimum(overlap, one.moving))
                for one, overlap in zip(step.exchanges, overlaps, strict=True)
            )
            steps.append(replace(step, exchanges=exchanges))
        return replace(self, steps=tuple(steps))


def play(step: Step, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """When each rank ends a step that it begins at `starts`, s [ranks]; how long a rank computes beside each exchange, s [exchanges]."""
    ranks, count = len(step.ranks), len(step.exchanges)
    now = np.array(starts, float)
    given = np.full((count, ranks), np.nan)  # by whom, when
    ended = np.full((count, ranks), np.nan)
    overlap = np.zeros(count)
    delayed: list[tuple[int, Give, float]] = []  # handed over after another exchange whose end is not known yet
    at = [0] * ranks
    while True:
        moved = False
        for rank, operations in enumerate(step.ranks):
            while at[rank] < len(operations):
                match operations[at[rank]]:
                    case Work(seconds=seconds):
                        now[rank] += seconds
                    case Wait(exchanges=waited):
                        ends = ended[list(waited), rank]
                        if np.isnan(ends).any():
                            break
                        now[rank] = max(now[rank], *ends)
                    case Give(exchange=number) as give if give.after is None:
                        given[number, rank] = now[rank] + give.lag_s
                    case Give() as give:
                        delayed.append((rank, give, now[rank]))
                at[rank] += 1
                moved = True
        for rank, give, since in delayed:
            given[give.exchange, rank] = np.maximum(since, ended[give.after, rank] + give.lag_s)
        for number, exchange in enumerate(step.exchanges):
            free = ended[number - 1].max() if number else -np.inf
            if np.isnan(ended[number, 0]) and not np.isnan([*given[number], free]).any():
                last = given[number].max()
                computing = now.max()  # until here: every rank waits now, or has ended the step
                overlap[number] = max(computing - max(last, free), 0.0)
                ended[number] = exchange.ends(last, free, computing)
                moved = True
        if not moved:
            return now, overlap


@dataclass(frozen=True)
class Messages:
    """What the messages of an exchange take alone, s [messages], and the part of it in which no other one gets on."""

    seconds: np.ndarray
    occupied: np.ndarray


Alone = Callable[[int], Messages]


def alike(count: int) -> Messages:
    """All of so many messages share the network in equal parts; no latency is known."""
    return Messages(np.zeros(count), np.ones(count))


def chains(steps: pd.DataFrame, alone: Alone = alike) -> list[Chain]:
    """The traced steps of one run as chains. `steps`: rank, epoch, step, phase, start, end (runs.phases); `alone`: what each of
    so many exchanges of a step would take alone.

    Left out are steps that not every rank has, or in which ranks have not the same number of exchanges.
    """
    ranks = steps["rank"].nunique()
    made: list[Chain] = []
    parts: list[tuple[Step, np.ndarray, np.ndarray]] = []
    before = (0, 0)
    for (epoch, number), rows in steps.groupby(["epoch", "step"], sort=True):
        found = _step(rows, ranks, alone)
        if parts and (found is None or before != (epoch, number - 1)):
            made.append(_chain(parts))
            parts = []
        if found is not None:
            parts.append(found)
        before = (epoch, number)
    return [*made, _chain(parts)] if parts else made


def _chain(parts: Sequence[tuple[Step, np.ndarray, np.ndarray]]) -> Chain:
    starts = parts[0][1]
    return Chain(starts, tuple(step for step, _, _ in parts), float(parts[-1][2].mean() - starts.mean()))


def _step(rows: pd.DataFrame, ranks: int, alone: Alone) -> tuple[Step, np.ndarray, np.ndarray] | None:
    """A step, and when its ranks began and ended it, s [ranks]; None where it is not whole."""
    beside = rows["phase"] == EXCHANGE
    main = [own[["phase", "start", "end"]] for _, own in rows[~beside].sort_values("start").groupby("rank")]
    own_exchanges = [own[["start", "end"]].to_numpy() for _, own in rows[beside].sort_values("start").groupby("rank")]
    if len(main) < ranks or len({len(own) for own in own_exchanges}) > 1 or len(own_exchanges) not in (0, ranks):
        return None
    times = (
        np.stack(own_exchanges, axis=1) if own_exchanges else np.empty((0, ranks, 2))
    )  # [exchanges, ranks, start and end]
    operations = tuple(
        tuple(_operations(list(own.itertuples(index=False, name=None)), times[:, rank]))
        for rank, own in enumerate(main)
    )
    starts, ends = (np.array([edge(own) for own in main]) for edge in (_begin, _end))
    return Step(operations, tuple(_exchanges(times, alone(len(times))))), starts, ends


def _begin(own: pd.DataFrame) -> float:
    return float(own["start"].iloc[0])


def _end(own: pd.DataFrame) -> float:
    return float(own["end"].iloc[-1])


def _exchanges(times: np.ndarray, alone: Messages) -> Iterator[Exchange]:
    """The exchanges, one after the other. `times`: start and end [exchanges, ranks, 2]; `alone`: of as many."""
    last, ends = times[:, :, 0].max(axis=1), times[:, :, 1]
    free = -np.inf
    first = 0
    while first < len(times):
        # those that are under way before all that began earlier have ended
        after = first + 1
        while after < len(times) and last[after] < ends[first:after].max():
            after += 1
        over = ends[first:after].max(axis=0)
        occupied = alone.occupied[first:after]
        shares = occupied / occupied.sum() * max(over.min() - max(last[first], free), 0.0)
        for number in range(first, after):
            begins = max(last[number], free)
            rest = np.maximum(over - begins, 0.0)
            moving = rest if number == after - 1 else np.minimum(shares[number - first], rest)
            behind = number > first
            least_s = min(float(alone.seconds[number]), float(over.min()) - last[number]) if behind else 0.0
            yield Exchange(moving, behind, max(least_s, 0.0))
            free = begins + moving.max()
        first = after


def _operations(phases: Sequence[tuple[str, float, float]], times: np.ndarray) -> Iterator[Operation]:
    """What a rank does. `phases`: its own, in order; `times`: start and end of its exchanges in order, [exchanges, 2]."""
    number = 0
    for place, (phase, start, end) in enumerate(phases, start=1):
        at = start
        while number < len(times) and (times[number, 0] < end or place == len(phases)):
            if phase == WAIT:
                yield _given_while_waiting(number, times, start)
            else:
                given = min(max(times[number, 0], at), end)
                if given > at:
                    yield Work(phase, given - at)
                    at = given
                yield Give(number)
            number += 1
        if phase == WAIT:
            over = tuple(n for n in range(number) if times[n, 1] <= end)
            if over:
                yield Wait(over)
            yield Work(FINISH, end - max([start, *(times[n, 1] for n in over)]))
        else:
            yield Work(phase, end - at)


def _given_while_waiting(number: int, times: np.ndarray, start: float) -> Give:
    """A library's own thread hands over while the rank waits: a while after the exchange before, or after the wait began."""
    given = times[number, 0]
    over = [n for n in range(number) if start < times[n, 1] <= given]
    if over:
        latest = max(over, key=lambda n: float(times[n, 1]))
        return Give(number, given - times[latest, 1], latest)
    return Give(number, max(given - start, 0.0))
