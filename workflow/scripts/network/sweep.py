"""One rank of one sweep: `python -m network.sweep ATTEMPT_FOLDER`, started by a launcher, in the framework's environment.

All ranks sum float32 messages of growing size by the framework's own library. A first pass, sizes ascending, checks the
sums and estimates how long one takes. Then come rounds: each has every size once, in an order of its own, and of every
size some repetitions. A repetition is opened by our own barrier; each rank's clock runs from its release until the sum is
there and the device idle; the repetition's time is the slowest rank's. So it holds what the barrier lets the ranks start
apart, tens of microseconds on most networks.

Rank 0 leaves sweep.json's measured part, result.json, in the attempt's folder, whole or not at all.
"""

import platform
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from runs.worker.context import Context, from_environment
from runs.worker.load import Load
from runs.worker.node import machine, sent_bytes
from runs.worker.process import adapter_of, as_rank, host, leave_result, versions
from runs.worker.reducer import Reducer

ROUNDS = 5
MOST_REPETITIONS = 20  # of one size in one round
BUDGET_S = 1.2  # for the repetitions of one size in all rounds
LONGEST_S = 3.0  # a size whose single sum would take longer is left out, and so are all above it
GROWTH = 4
ITEM_BYTES = 4


def summands(elements: int, rank: int) -> np.ndarray:
    """One rank's part of a sum that is known, float32 [elements]: small whole numbers, all sums of which are exact."""
    return (np.arange(elements, dtype=np.float32) % 8) + (rank + 1)


def check_sum(found: np.ndarray, ranks: int) -> None:
    """ArithmeticError where `found` is not the sum of the `summands` of so many ranks."""
    expected = ranks * (np.arange(len(found), dtype=np.float32) % 8) + ranks * (ranks + 1) // 2
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        first = wrong[0]
        raise ArithmeticError(
            f"all-reduce of {found.nbytes} bytes over {ranks} ranks is wrong in {len(wrong)} of {len(found)} "
            f"elements: element {first} is {found[first]:g}, expected {expected[first]:g}"
        )


def repetitions(one_s: float) -> int:
    """Repetitions in one round of a size whose single sum takes `one_s` seconds."""
    return min(MOST_REPETITIONS, max(1, int(BUDGET_S / ROUNDS / one_s)))


def timed(context: Context, reducer: Reducer, count: int) -> list[float]:
    """Times of `count` sums of what is loaded, in seconds: the slowest rank's, the same list on every rank."""
    own = []
    for _ in range(count):
        context.group.barrier()
        released = time.perf_counter()
        reducer.reduce()
        own.append(time.perf_counter() - released)
    return [max(times) for times in zip(*context.group.all_gather(own), strict=True)]


def estimated(context: Context, reducer: Reducer, sizes: list[int]) -> dict[int, float]:
    """Size in bytes -> seconds of one sum, for the sizes that can be measured in time; every sum is checked."""
    found: dict[int, float] = {}
    for size in sizes:
        if found and GROWTH * max(found.values()) > LONGEST_S:
            break
        elements = size // ITEM_BYTES
        reducer.load(summands(elements, context.rank))
        reducer.reduce()
        check_sum(reducer.result(), context.ranks)
        reducer.load(np.zeros(elements, np.float32))
        found[size] = timed(context, reducer, 1)[0]
    return found


def sweep(context: Context, reducer: Reducer) -> list[dict[str, Any]]:
    """Measure all sizes of the spec: per size `bytes` and `rounds`, a list of the repetitions' seconds for every round."""
    one_s = estimated(context, reducer, context.spec["sizes"])
    rounds: dict[int, list[list[float]]] = {size: [] for size in one_s}
    order = random.Random(context.spec["seed"])  # noqa: S311 (the same on every rank, and in every repetition of a sweep)
    for _ in range(ROUNDS):
        for size in order.sample(list(one_s), len(one_s)):
            reducer.load(np.zeros(size // ITEM_BYTES, np.float32))  # a sum in place of zeros stays in range for ever
            reducer.reduce()
            rounds[size].append(timed(context, reducer, repetitions(one_s[size])))
    return [{"bytes": size, "rounds": times} for size, times in rounds.items()]


def summed_bytes(sizes: list[dict[str, Any]]) -> int:
    """Bytes of all messages of a sweep that were summed, warm-up and checks included."""
    calls = {row["bytes"]: 2 + sum(1 + len(times) for times in row["rounds"]) for row in sizes}
    return sum(size * count for size, count in calls.items())


def run(folder: Path) -> None:
    """Sweep; rank 0 leaves result.json, written last."""
    context = from_environment(folder)
    reducer: Reducer = adapter_of(context).all_reducer(context)
    interface = context.spec["interface"]
    context.group.barrier()
    before, load = sent_bytes(interface), Load(context.group)
    sizes = sweep(context, reducer)
    foreign_cpu_share, _ = load.shares()
    after = sent_bytes(interface)
    sent = None if before is None or after is None else after - before
    mine = {"host": host(), "machine": machine(), "device": reducer.device, "sent_bytes": sent}
    result = {
        "transport": reducer.transport,
        "ranks": context.group.all_gather(mine),
        "foreign_cpu_share": foreign_cpu_share,
        "summed_bytes": summed_bytes(sizes),
        "sizes": sizes,
        "python_version": platform.python_version(),
        "library_version": versions(context.job["modules"]),
    }
    leave_result(context, result)


if __name__ == "__main__":
    as_rank(run)
