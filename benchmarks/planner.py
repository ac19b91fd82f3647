"""Measure how fast strategies are simulated: `make bench-strategies`.

It restarts itself with the Python that has numba. First it times full simulations of data parallelism on 8
devices, as the artifact of Jia et al. (2019) was timed: 0.24, 0.9 and 1.8 ms for AlexNet, NMT and ResNet-101.
Then it times Metropolis-Hastings proposals from a good strategy, each simulated fully, and incrementally
until it cannot be accepted any more. --large adds searches of two models on 1,024 devices.
"""

import statistics
import sys
import time
from collections.abc import Mapping

from strategies import engine, search, starts
from strategies.problem import Posed
from strategies.topology import LinkTier
from support.planned_models import by_planner, posed

ARTIFACT_MS = {"alexnet": 0.24, "rnn-translation": 0.9, "resnet-101": 1.8}
ROUNDS = 5
SEARCHED = 20_000  # proposals, after which a strategy is a good one
LARGE = {"alexnet": 1024, "resnet-101": 1024}


def on_devices(name: str, devices: int) -> Posed:
    """Return a model's problem on `devices` devices, four per node."""
    return posed(name, 8 * devices, LinkTier(4, 4e9, 5e-6), LinkTier(devices // 4, 1e9, 1e-5))


def full(name: str) -> None:
    """Time a full simulation on 8 devices."""
    problem = on_devices(name, 8)
    state = problem.state(starts.data_parallel(problem))
    engine.simulate_strategy(problem.arrays, state)
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(100):
            engine.simulate_strategy(problem.arrays, state)
        times.append(10 * (time.perf_counter() - began))
    took = statistics.median(times)
    print(
        f"{name}, 8 devices: {took:.3f} ms a full simulation, {ARTIFACT_MS[name] / took:.1f} times the "
        "artifact's rate"
    )


def shares(ended: Mapping[str, int], proposals: int) -> str:
    """Return where proposals ended, in per cent."""
    return ", ".join(f"{100 * count / proposals:.0f} % {ending}" for ending, count in ended.items())


def delta(name: str, devices: int, proposals: int) -> None:
    """Time a proposal, simulated fully and incrementally."""
    problem = on_devices(name, devices)
    begin, _ = search.run_search(problem, starts.data_parallel(problem), search.ANNEALING, SEARCHED, 1)
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for all_simulated, seen in times.items():
            _, summary = search.run_search(problem, begin, search.METROPOLIS, proposals, 1, all_simulated)
            seen.append(1e6 * summary["wall_s"] / proposals)
    full_us, change_us = (statistics.median(times[way]) for way in (True, False))
    print(
        f"{name}, {devices} devices: {full_us:.1f} us a proposal with all simulated, {change_us:.1f} us with "
        f"the change alone: {full_us / change_us:.1f} times; {shares(summary['ended'], proposals)}"
    )


def large(name: str, devices: int, proposals: int = SEARCHED) -> None:
    """Time the construction of a problem, and searches from data parallelism."""
    began = time.perf_counter()
    problem = on_devices(name, devices)
    print(f"{name}, {devices:,} devices: posed in {time.perf_counter() - began:.0f} s")
    for method in search.SCHEDULES:
        _, summary = search.run_search(problem, starts.data_parallel(problem), method, proposals, 1)
        print(
            f"  {method}: {proposals:,} proposals in {summary['wall_s']:.1f} s; "
            f"{shares(summary['ended'], proposals)}"
        )


def main() -> None:
    """Time all models."""
    for name in ARTIFACT_MS:
        full(name)
    for name, devices, proposals in (
        ("alexnet", 8, 5000),
        ("rnn-translation", 8, 5000),
        ("resnet-101", 8, 5000),
        ("resnet-101", 64, 2000),
    ):
        delta(name, devices, proposals)
    if "--large" in sys.argv:
        for name, devices in LARGE.items():
            large(name, devices)


if __name__ == "__main__":
    by_planner()
    main()
