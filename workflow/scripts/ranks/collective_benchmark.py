"""Run one collective benchmark, as one of its ranks.

A launcher starts `python -m ranks.collective_benchmark ATTEMPT_FOLDER` in the framework's environment. Rank 0
writes result.json, the measured part of collective_benchmark.json, into the attempt's folder.

All ranks run one collective with float32 messages of growing size, by the framework's own library. A first
pass in ascending order checks results and estimates times. Rounds follow: each has every size once, in random
order, with several repetitions. A repetition begins with a barrier. Each rank measures the time from the end
of the barrier until it has the result and its device is idle; the slowest rank counts. The time therefore
includes the skew of the barrier, tens of microseconds on most networks.
"""

import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context, from_environment, interfaces
from ranks.worker.load import Load
from ranks.worker.node import sent_bytes
from ranks.worker.process import adapter_of, as_rank, leave_measurement

N_ROUNDS = 5
MAX_REPETITIONS = 20  # limit for one size in one round
SIZE_BUDGET_S = 1.2  # time of all repetitions of one size
MAX_COLLECTIVE_S = 3.0  # Sizes that would take longer are left out.
GROWTH = 4  # factor of the time from one size to the next
ITEM_BYTES = 4
# Collectives with messages that are not divided into shares of ranks.
WHOLE_MESSAGE_COLLECTIVES = ("all_reduce", "point_to_point")


def elements_of(collective: str, size: int, ranks: int) -> int:
    """Return the number of elements of a message of `size` bytes, rounded up to equal shares of all ranks."""
    elements = size // ITEM_BYTES
    return elements if collective in WHOLE_MESSAGE_COLLECTIVES else -(-elements // ranks) * ranks


def message(elements: int, ranks: int) -> np.ndarray:
    """Return the common part of all ranks' messages, float32 [elements]; rank r adds r + 1.

    Values are integers, so that sums over ranks are exact. Shares of different ranks have different values.
    """
    position = np.arange(elements)
    return (position % 8 + position // -(-elements // ranks)).astype(np.float32)


def loaded(collective: str, elements: int, rank: int, ranks: int) -> np.ndarray:
    """Return the message that a rank loads for a collective; `expected` is the result."""
    values = message(elements, ranks) + np.float32(rank + 1)
    return values[: elements // ranks] if collective == "all_gather" else values


def expected(collective: str, elements: int, rank: int, ranks: int) -> np.ndarray:
    """Return a rank's expected result of the collective."""
    common, mine = (
        message(elements, ranks),
        slice(rank * (elements // ranks), (rank + 1) * (elements // ranks)),
    )
    total = ranks * common + np.float32(ranks * (ranks + 1) // 2)
    rank_summands = np.repeat(np.arange(1, ranks + 1, dtype=np.float32), elements // ranks)
    results = {
        "all_reduce": lambda: total,
        "all_gather": lambda: np.tile(common[: elements // ranks], ranks) + rank_summands,
        "reduce_scatter": lambda: total[mine],
        "all_to_all": lambda: np.tile(common[mine], ranks) + rank_summands,
        "point_to_point": lambda: common + np.float32((rank - 1) % ranks + 1),
    }
    return results[collective]()


def check(result: np.ndarray, collective: str, elements: int, rank: int, ranks: int) -> None:
    """Raise ArithmeticError if `result` is not the result of the collective on the `loaded` message."""
    right = expected(collective, elements, rank, ranks)
    if result.shape != right.shape:
        raise ArithmeticError(
            f"{collective} over {ranks} ranks gives rank {rank} an array {result.shape}, "
            f"expected {right.shape}"
        )
    mismatches = np.flatnonzero(result != right)
    if len(mismatches):
        first = mismatches[0]
        raise ArithmeticError(
            f"{collective} of {ITEM_BYTES * elements} bytes over {ranks} ranks is wrong "
            f"in {len(mismatches)} of {len(result)} elements "
            f"on rank {rank}: element {first} is {result[first]:g}, expected {right[first]:g}"
        )


def repetitions(one_s: float) -> int:
    """Return the number of repetitions per round of a collective that takes `one_s` seconds."""
    return min(MAX_REPETITIONS, max(1, int(SIZE_BUDGET_S / N_ROUNDS / one_s)))


def timed(context: Context, collectives: Collectives, count: int) -> list[float]:
    """Return the times of `count` collectives on the loaded message, in s, each of the slowest rank."""
    seconds, collective = [], context.spec["collective"]
    for _ in range(count):
        context.group.barrier()
        released = time.perf_counter()
        collectives.do(collective)
        seconds.append(time.perf_counter() - released)
    return [max(times) for times in zip(*context.group.all_gather(seconds), strict=True)]


def load_zeros(context: Context, collectives: Collectives, size: int) -> None:
    """Load zeros as the message, so that repeated sums in place never overflow."""
    collective = context.spec["collective"]
    elements = elements_of(collective, size, context.ranks)
    collectives.load(np.zeros_like(loaded(collective, elements, context.rank, context.ranks)))


def estimated(context: Context, collectives: Collectives, sizes: list[int]) -> dict[int, float]:
    """Check the results of all sizes (in bytes) that are fast enough, and return the seconds of each."""
    seconds: dict[int, float] = {}
    collective, rank, ranks = context.spec["collective"], context.rank, context.ranks
    for size in sizes:
        if seconds and GROWTH * max(seconds.values()) > MAX_COLLECTIVE_S:
            break
        elements = elements_of(collective, size, ranks)
        collectives.load(loaded(collective, elements, rank, ranks))
        collectives.do(collective)
        check(collectives.result(), collective, elements, rank, ranks)
        load_zeros(context, collectives, size)
        seconds[size] = timed(context, collectives, 1)[0]
    return seconds


def measure_sizes(context: Context, collectives: Collectives) -> list[dict[str, Any]]:
    """Measure all sizes of the spec, and return `bytes` and `rounds` of each: seconds of all repetitions."""
    one_s = estimated(context, collectives, context.spec["sizes"])
    rounds: dict[int, list[list[float]]] = {size: [] for size in one_s}
    order = random.Random(context.spec["seed"])  # noqa: S311 (the same on every rank)
    for _ in range(N_ROUNDS):
        for size in order.sample(list(one_s), len(one_s)):
            load_zeros(context, collectives, size)
            collectives.do(context.spec["collective"])
            rounds[size].append(timed(context, collectives, repetitions(one_s[size])))
    return [{"bytes": size, "rounds": times} for size, times in rounds.items()]


def message_bytes(sizes: list[dict[str, Any]]) -> int:
    """Return the bytes of all messages of a collective benchmark, with warm-up and checks."""
    calls = {row["bytes"]: 2 + sum(1 + len(times) for times in row["rounds"]) for row in sizes}
    return sum(size * count for size, count in calls.items())


def run(folder: Path) -> None:
    """Run the collective benchmark; rank 0 writes result.json at the end."""
    context = from_environment(folder)
    collectives: Collectives = adapter_of(context).collectives(context)
    names = interfaces(context.spec)
    context.group.barrier()
    before, load = sent_bytes(names), Load(context.group)
    sizes = measure_sizes(context, collectives)
    after = sent_bytes(names)
    sent = None if before is None or after is None else after - before
    measured = {
        "transport": collectives.transport, "message_bytes": message_bytes(sizes), "sizes": sizes
    }  # fmt: skip
    leave_measurement(context, load, collectives.device, measured, sent_bytes=sent)


if __name__ == "__main__":
    as_rank(run)
