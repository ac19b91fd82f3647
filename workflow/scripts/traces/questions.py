"""What-if questions: each changes one thing in chains of traced steps (traces.replay).

`Question.assumes` and the docstring of each function state what it assumes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from traces.replay import FINISH, AllReduce, Alone, Chain, Messages, Operation, Step, Work

SAMPLE_PHASES = ("data", "forward", "backward", "metrics")  # grow with the batch size
OPTIMIZER = "optimizer"
NAMES = (
    "links",
    "16 bits",
    "hidden",
    "accumulation",
    "batch",
    "balanced",
    "data",
)  # of questions, in the order of tables

Retime = Callable[[AllReduce, int], AllReduce]  # changes the k-th all-reduce of a step
MIN_SPEED = 0.05  # an all-reduce that ends during computation has progressed


@dataclass(frozen=True)
class Question:
    """A change of traced steps whose effect a replay shows.

    Attributes:
        name: One of NAMES.
        text: The change in words.
        assumes: Its assumptions.
        change: The function that changes a chain.
        samples: Samples of a step after the change over those before.
        group_size: Number of consecutive steps that only make sense together.
        factor: The factor by which the study can have measured the answer.
        level: The level of this factor.
    """

    name: str
    text: str
    assumes: str
    change: Callable[[Chain], Chain]
    samples: float = 1.0
    group_size: int = 1
    factor: str | None = None
    level: int | None = None

    def ratio(self, chains: Sequence[Chain]) -> float:
        """Return the time per sample after the change over that before; NaN without steps."""
        used = group_steps(chains, self.group_size)
        before, after = (sum(chain.seconds() for chain in part) for part in (used, map(self.change, used)))
        return after / self.samples / before if before else float("nan")


def group_steps(chains: Sequence[Chain], count: int) -> list[Chain]:
    """Return chains whose numbers of steps are multiples of `count`, without the remaining steps.

    If every chain is shorter, all steps are joined to one chain.
    """
    if count > 1 and chains and max(len(chain.steps) for chain in chains) < count:
        chains = [replace(chains[0], steps=tuple(step for chain in chains for step in chain.steps))]
    usable = [(chain, len(chain.steps) // count * count) for chain in chains]
    return [replace(chain, steps=chain.steps[:n_steps]) for chain, n_steps in usable if n_steps]


def change_each_step(change: Callable[[Step], Step]) -> Callable[[Chain], Chain]:
    """Return a change of a chain that applies `change` to each of its steps."""
    return lambda chain: replace(chain, steps=tuple(change(step) for step in chain.steps))


def change_messages(retime: Retime) -> Callable[[Chain], Chain]:
    """Return a change of a chain that applies `retime` to each of its all-reduces."""

    def retime_step(step: Step) -> Step:
        moved = tuple(retime(allreduce, k) for k, allreduce in enumerate(step.allreduces))
        return replace(step, allreduces=moved)

    return change_each_step(retime_step)


def scale_moving(share: float) -> Retime:
    """Return a change of an all-reduce that multiplies its moving time by `share`."""
    return lambda allreduce, _: replace(
        allreduce, moving=share * allreduce.moving, least_s=share * allreduce.least_s
    )


def retime_by_law(before: Messages, after: Messages, limited_by_processors: bool = False) -> Retime:
    """Return a change of an all-reduce by the law of the network.

    Moving time beyond the law was not caused by the network, so it stays. Messages faster than the law, such
    as bursts, change by the ratio of the law.

    Args:
        before: Times by the law before the change.
        after: Times by the law after it.
        limited_by_processors: During computation, processors move no more bytes a second than before, even on
            faster links.
    """

    def retime(allreduce: AllReduce, k: int) -> AllReduce:
        before_s, after_s = (
            (messages.occupied if allreduce.behind else messages.seconds)[k] for messages in (before, after)
        )
        by_network, ratio = np.minimum(allreduce.moving, before_s), after_s / before_s
        return replace(
            allreduce,
            moving=by_network * ratio + (allreduce.moving - by_network),
            least_s=allreduce.least_s * after.seconds[k] / before.seconds[k],
            speed=allreduce.speed * min(ratio, 1.0) if limited_by_processors else allreduce.speed,
        )

    return retime


def speed_during_computation(chains: Sequence[Chain], alone: Alone) -> float:
    """Return the speed of all-reduces during computation relative to that while all ranks wait.

    The speed is the time by the law over the overlapped time, between MIN_SPEED and 1; 1 without overlap.
    """
    law_s = overlapped_s = 0.0
    for chain in chains:
        for step, overlaps in zip(chain.steps, chain.overlaps(), strict=True):
            law = alone(len(step.allreduces))
            for k, (allreduce, overlap) in enumerate(zip(step.allreduces, overlaps, strict=True)):
                moving_s = float(allreduce.moving.max())
                if (overlapped_part := min(overlap, moving_s)) > 0:
                    by_law = (law.occupied if allreduce.behind else law.seconds)[k]
                    law_s += by_law - (moving_s - overlapped_part)
                    overlapped_s += overlapped_part
    return float(np.clip(law_s / overlapped_s, MIN_SPEED, 1.0)) if overlapped_s else 1.0


def retime_work(step: Step, seconds: Callable[[int, Work], float]) -> Step:
    """Return the step with new times of work; `seconds` returns the time of a rank's work."""

    def retime(rank: int, operation: Operation) -> Operation:
        if isinstance(operation, Work):
            return replace(operation, seconds=seconds(rank, operation))
        return operation

    ranks = tuple(
        tuple(retime(rank, operation) for operation in operations)
        for rank, operations in enumerate(step.ranks)
    )
    return replace(step, ranks=ranks)


def links(faster: float, retime: Retime, **answer: Any) -> Question:
    """Ask for links `faster` times as fast; `retime` keeps latency and CPU time per byte."""
    text = f"links {faster:g} times as fast" if faster > 1 else f"links {1 / faster:g} times as slow"
    return Question(
        "links",
        text,
        "latency stays; during computation, processors move no more bytes a second than now",
        change_messages(retime),
        **answer,
    )


def half_the_bytes(retime: Retime) -> Question:
    """Ask for gradients in 16 bits: messages of half the size, without cost of conversion."""
    return Question("16 bits", "gradients in 16 bits", "converting costs nothing", change_messages(retime))


def hidden() -> Question:
    """Ask for communication whose bytes take no time; ranks still wait for the slowest one."""
    return Question(
        "hidden",
        "communication fully overlapped",
        "ranks still wait for the slowest",
        change_messages(scale_moving(0.0)),
    )


def balanced(chains: Sequence[Chain]) -> Question:
    """Ask for balanced ranks: the slowest over all steps works as long as the median of the others."""
    totals = total_work(chains)
    slowest = int(totals.argmax())
    other_totals = np.delete(totals, slowest)
    share = min(1.0, float(np.median(other_totals) / totals[slowest])) if len(other_totals) else 1.0
    return Question(
        "balanced",
        "slowest rank as fast as the median of the others",
        "all of its work shrinks equally",
        change_each_step(
            lambda step: retime_work(
                step, lambda rank, work: work.seconds * (share if rank == slowest else 1.0)
            )
        ),
    )


def no_data() -> Question:
    """Ask for batches that are ready when a rank requests them."""
    return Question(
        "data",
        "no waiting for data",
        "the work of preparing data disappears",
        change_each_step(
            lambda step: retime_work(step, lambda _, work: 0.0 if work.phase == "data" else work.seconds)
        ),
    )


def accumulated(every: int, batch_s: float | None, chains: Sequence[Chain], **answer: Any) -> Question:
    """Ask for one all-reduce and one update for the gradients of `every` batches.

    A batch without an all-reduce is not slowed down by one. `batch_s` is its time on one device, update
    included; if it is None, work stays as traced. Ranks differ as traced.
    """
    work_ratio = 1.0
    if batch_s is not None and chains:
        ranks = [operations for chain in chains for step in chain.steps for operations in step.ranks]
        work = [operation for operations in ranks for operation in operations if isinstance(operation, Work)]
        batch_work_s = sum(operation.seconds for operation in work if _is_batch_work(operation))
        updates_s = sum(operation.seconds for operation in work if operation.phase == OPTIMIZER)
        work_ratio = max(batch_s * len(ranks) - updates_s, 0.0) / batch_work_s

    def change(chain: Chain) -> Chain:
        steps = [
            step if number % every == 0 else skip_allreduce(step, work_ratio)
            for number, step in enumerate(chain.steps, start=1)
        ]
        return replace(chain, steps=tuple(steps))

    return Question(
        "accumulation",
        f"an all-reduce every {every} batches",
        "work of a batch stays"
        if batch_s is None
        else "a batch without an all-reduce takes as long as on one device",
        change,
        group_size=every,
        **answer,
    )


def skip_allreduce(step: Step, work_ratio: float = 1.0) -> Step:
    """Return a batch that only accumulates gradients: no all-reduce, no update, work times `work_ratio`."""
    work = [filter(_is_batch_work, operations) for operations in step.ranks]
    ranks = (tuple(replace(item, seconds=work_ratio * item.seconds) for item in items) for items in work)
    return Step(tuple(ranks), ())


def _is_batch_work(operation: Operation) -> TypeGuard[Work]:
    return isinstance(operation, Work) and operation.phase not in (OPTIMIZER, FINISH)


def batch(times: float, grows: float, measured: bool, **answer: Any) -> Question:
    """Ask for a batch `times` as large, whose work grows by the factor `grows` in SAMPLE_PHASES.

    If `measured`, cells on one device show how all work of a rank grows. Otherwise it grows with the samples.
    """

    def change(step: Step) -> Step:
        shares = [_sample_phase_growth(operations, grows, measured) for operations in step.ranks]
        return retime_work(
            step, lambda rank, work: work.seconds * (shares[rank] if work.phase in SAMPLE_PHASES else 1.0)
        )

    return Question(
        "batch",
        f"batch {times:g} times as large" if times > 1 else f"batch {1 / times:g} times as small",
        f"work of a batch grows by {grows:.2f}, as on one node"
        if measured
        else "work grows with the samples",
        change_each_step(change),
        samples=times,
        **answer,
    )


def _sample_phase_growth(operations: Sequence[Operation], grows: float, measured: bool) -> float:
    """Return how SAMPLE_PHASES grow if all work of a rank grows by `grows`."""
    work = [work_item for work_item in operations if isinstance(work_item, Work)]
    sample_s = sum(work_item.seconds for work_item in work if work_item.phase in SAMPLE_PHASES)
    if not measured or not sample_s:
        return grows
    total_s = sum(work_item.seconds for work_item in work)
    return max(1 + (grows - 1) * total_s / sample_s, 0.0)


def total_work(chains: Sequence[Chain]) -> np.ndarray:
    """Return the work of each rank in all steps in seconds, [ranks]."""
    per_step = [
        [
            sum(operation.seconds for operation in operations if isinstance(operation, Work))
            for operations in step.ranks
        ]
        for chain in chains
        for step in chain.steps
    ]
    return np.array(per_step).sum(axis=0)
