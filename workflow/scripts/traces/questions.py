"""What if: one thing of a traced training changed. Each question is a small function from chains of steps to chains (traces.replay).

What each one assumes stands in its docstring and in `Question.assumes`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from traces.replay import FINISH, Alone, Chain, Exchange, Messages, Operation, Step, Work

OF_SAMPLES = ("data", "forward", "backward", "metrics")  # work that grows with the samples of a batch
OPTIMIZER = "optimizer"
NAMES = ("links", "16 bits", "hidden", "accumulation", "batch", "balanced", "data")  # of questions, as they are shown

Retime = Callable[[Exchange, int], Exchange]  # the k-th exchange of a step, as it is now
LEAST_BESIDE = 0.05  # an exchange that ends beside computing has got on


@dataclass(frozen=True)
class Question:
    """One change. `samples`: those of a step over those before; `grouped`: steps that only make sense together; `factor` and `level`:
    where the study may have the answer by experiment."""

    name: str
    text: str
    assumes: str
    change: Callable[[Chain], Chain]
    samples: float = 1.0
    grouped: int = 1
    factor: str | None = None
    level: Any = None

    def ratio(self, chains: Sequence[Chain]) -> float:
        """Time of a sample after the change over that before; NaN for no steps."""
        used = grouped(chains, self.grouped)
        before = sum(chain.seconds() for chain in used)
        return sum(self.change(chain).seconds() for chain in used) / self.samples / before if before else float("nan")


def grouped(chains: Sequence[Chain], count: int) -> list[Chain]:
    """Chains whose steps are a multiple of `count`: what is left over is left out; where every chain is shorter, their steps are
    joined, as if they had followed each other."""
    if count > 1 and chains and max(len(chain.steps) for chain in chains) < count:
        chains = [replace(chains[0], steps=tuple(step for chain in chains for step in chain.steps))]
    whole = [(chain, len(chain.steps) // count * count) for chain in chains]
    return [replace(chain, steps=chain.steps[:kept]) for chain, kept in whole if kept]


def each_step(change: Callable[[Step], Step]) -> Callable[[Chain], Chain]:
    """A change of every step by itself."""
    return lambda chain: replace(chain, steps=tuple(change(step) for step in chain.steps))


def moved(step: Step, retime: Retime) -> Step:
    """Other times of moving bytes."""
    return replace(step, exchanges=tuple(retime(exchange, k) for k, exchange in enumerate(step.exchanges)))


def scaled(share: float) -> Retime:
    """All that moves takes a share of its time."""
    return lambda exchange, k: replace(exchange, moving=share * exchange.moving, least_s=share * exchange.least_s)


def by_law(before: Messages, after: Messages, beside: bool = False) -> Retime:
    """Moving times where messages took and take so long by the network's law.

    What an exchange took longer than the law says was no matter of the network, and stays. One that was faster, as bursts are,
    keeps its share. `beside`: beside computing no more bytes get on than before, however fast the links are, since processors move them.
    """

    def retime(exchange: Exchange, k: int) -> Exchange:
        was, is_now = ((of.occupied if exchange.behind else of.seconds)[k] for of in (before, after))
        within, shorter = np.minimum(exchange.moving, was), is_now / was
        return replace(
            exchange,
            moving=within * shorter + (exchange.moving - within),
            least_s=exchange.least_s * after.seconds[k] / before.seconds[k],
            beside=exchange.beside * min(shorter, 1.0) if beside else exchange.beside,
        )

    return retime


def speed_beside(chains: Sequence[Chain], alone: Alone) -> float:
    """The speed of exchanges while a rank computes, as a share of that while all wait: what of the law's time was moved in that time.

    Chains as `traces.replay.chains` makes them; LEAST_BESIDE to 1, 1 where nothing overlaps.
    """
    moved = overlapped = 0.0
    for chain in chains:
        for step, overlaps in zip(chain.steps, chain.overlaps(), strict=True):
            law = alone(len(step.exchanges))
            for k, (exchange, overlap) in enumerate(zip(step.exchanges, overlaps, strict=True)):
                longest = float(exchange.moving.max())
                together = min(overlap, longest)
                moved += (law.occupied if exchange.behind else law.seconds)[k] * (together > 0) - (
                    longest - together
                ) * (together > 0)
                overlapped += together
    return float(np.clip(moved / overlapped, LEAST_BESIDE, 1.0)) if overlapped else 1.0


def worked(step: Step, seconds: Callable[[int, Work], float]) -> Step:
    """Other times of work, by rank and work."""

    def other(rank: int, operation: Operation) -> Operation:
        return replace(operation, seconds=seconds(rank, operation)) if isinstance(operation, Work) else operation

    ranks = tuple(tuple(other(rank, one) for one in own) for rank, own in enumerate(step.ranks))
    return replace(step, ranks=ranks)


def links(faster: float, retime: Retime, **answer: Any) -> Question:
    """Links `faster` times as fast: `retime` by a law (`by_law`), in which latency and what processors need for a byte stay."""
    text = f"links {faster:g} times as fast" if faster > 1 else f"links {1 / faster:g} times as slow"
    return Question(
        "links",
        text,
        "latency stays; beside computing, processors move no more bytes a second than now",
        each_step(lambda step: moved(step, retime)),
        **answer,
    )


def half_the_bytes(retime: Retime) -> Question:
    """Gradients in 16 bits: messages of half the size. Converting them costs nothing here."""
    return Question(
        "16 bits", "gradients in 16 bits", "converting costs nothing", each_step(lambda step: moved(step, retime))
    )


def hidden() -> Question:
    """Moving bytes costs no time; ranks still wait for the slowest one."""
    return Question(
        "hidden",
        "exchange fully hidden",
        "ranks still wait for the slowest",
        each_step(lambda step: moved(step, scaled(0.0))),
    )


def balanced(chains: Sequence[Chain]) -> Question:
    """The rank that works longest in all steps together works as long as the median of the others."""
    totals = work_of(chains)
    slowest = int(totals.argmax())
    others = np.delete(totals, slowest)
    share = min(1.0, float(np.median(others) / totals[slowest])) if len(others) else 1.0
    return Question(
        "balanced",
        "slowest rank as fast as the median of the others",
        "all of its work shrinks alike",
        each_step(lambda step: worked(step, lambda rank, work: work.seconds * (share if rank == slowest else 1.0))),
    )


def no_data() -> Question:
    """Batches are there when they are asked for."""
    return Question(
        "data",
        "no waiting for data",
        "the work of preparing data disappears",
        each_step(lambda step: worked(step, lambda rank, work: 0.0 if work.phase == "data" else work.seconds)),
    )


def accumulated(every: int, batch_s: float | None, chains: Sequence[Chain], **answer: Any) -> Question:
    """Gradients of `every` batches are added up before one exchange and one update.

    A batch without an exchange is not slowed down by one beside it. Cells on one replica say how long it takes with its update, `batch_s`;
    without them its work stays as it is. Either way ranks scatter as they were traced.
    """
    undisturbed = 1.0
    if batch_s is not None and chains:
        every_work = [one for chain in chains for step in chain.steps for own in step.ranks for one in own]
        added = sum(one.seconds for one in every_work if _is_of_batch(one))
        updates = sum(one.seconds for one in every_work if isinstance(one, Work) and one.phase == OPTIMIZER)
        batches = sum(len(step.ranks) for chain in chains for step in chain.steps)
        undisturbed = max(batch_s * batches - updates, 0.0) / added

    def change(chain: Chain) -> Chain:
        steps = [
            step if place % every == 0 else unexchanged(step, undisturbed)
            for place, step in enumerate(chain.steps, start=1)
        ]
        return replace(chain, steps=tuple(steps))

    return Question(
        "accumulation",
        f"an exchange every {every} batches",
        "work of a batch stays" if batch_s is None else "a batch without an exchange takes as long as on one replica",
        change,
        grouped=every,
        **answer,
    )


def unexchanged(step: Step, undisturbed: float = 1.0) -> Step:
    """A batch whose gradients are only added up: no exchange, no update; its work `undisturbed` times as long."""
    kept = [
        tuple(replace(one, seconds=undisturbed * one.seconds) for one in own if _is_of_batch(one)) for own in step.ranks
    ]
    return Step(tuple(kept), ())


def _is_of_batch(operation: Operation) -> TypeGuard[Work]:
    return isinstance(operation, Work) and operation.phase not in (OPTIMIZER, FINISH)


def batch(times: float, grows: float, measured: bool, **answer: Any) -> Question:
    """A batch `times` as large, whose work (all of a rank's in a step) is `grows` times as long: of single-replica cells,
    or `measured` false, as many times as it has samples. What it grows by, the phases of samples grow by."""

    def change(step: Step) -> Step:
        shares = [_share(own, grows, measured) for own in step.ranks]
        return worked(step, lambda rank, work: work.seconds * (shares[rank] if work.phase in OF_SAMPLES else 1.0))

    return Question(
        "batch",
        f"batch {times:g} times as large" if times > 1 else f"batch {1 / times:g} times as small",
        f"work of a batch grows by {grows:.2f}, as on one node" if measured else "work grows with the samples",
        each_step(change),
        samples=times,
        **answer,
    )


def _share(own: Sequence[Operation], grows: float, measured: bool) -> float:
    """By how much the phases of samples grow, where all work of a rank grows by `grows`."""
    work = [one for one in own if isinstance(one, Work)]
    of_samples = sum(one.seconds for one in work if one.phase in OF_SAMPLES)
    if not measured or not of_samples:
        return grows
    every = sum(one.seconds for one in work)
    return max(1 + (grows - 1) * every / of_samples, 0.0)


def work_of(chains: Sequence[Chain]) -> np.ndarray:
    """Seconds that each rank works in all steps, [ranks]."""
    per_step = [
        [sum(one.seconds for one in own if isinstance(one, Work)) for own in step.ranks]
        for chain in chains
        for step in chain.steps
    ]
    return np.array(per_step).sum(axis=0)
