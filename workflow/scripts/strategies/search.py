"""Search for fast strategies: a program for the Python of the planner's environment, which has numba.

stdin: JSON with the keys "graph" (`models.graph.Graph.to_json`), "batch" (samples), "topology"
(`strategies.topology.Topology.to_json`), "numbers_of_parameter", "gradients" (one of `problem.GRADIENTS`),
"costs" (null, or `strategies.costs.Measured` of all parts), "proposals" (of each search), "seed", "starts"
(names of `starts.all_strategies`), and "whole" (whether each proposal is simulated completely).

stdout: a JSON list of objects with "method" (null for a start itself), "start", "parts" ({layer: {"degrees",
"devices"}}), "seconds" of a step (null: not enough memory), "sent_activation_bytes" and "gradient_bytes" of a
step, "memory_bytes" of the device that needs most. A search also has "ended" (how many proposals ended where:
END_NAMES), "wall_s", and "progress": at most MAX_PROGRESS_STEPS pairs of proposals and seconds of the fastest
strategy so far.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from models.graph import BYTES, from_json
from models.soap import Degrees, Space, divide
from models.strategy import Strategy
from strategies import engine, starts
from strategies.costs import Cost, measured_costs, roofline
from strategies.problem import PICOSECONDS, Posed, pose
from strategies.topology import Topology, topology_from_json

METROPOLIS, ANNEALING = "metropolis", "annealing"
MAX_PROGRESS_STEPS = 100
END_NAMES = ("before", "forward", "backward", "accepted")  # in the order of engine.BEFORE to ACCEPTED
HOT_SHARE, COLD_SHARE = 0.05, 0.001  # temperatures as shares of a data-parallel step
STEADY_SHARE = 0.01  # temperature of Metropolis-Hastings
SCHEDULES = {METROPOLIS: (STEADY_SHARE, STEADY_SHARE), ANNEALING: (HOT_SHARE, COLD_SHARE)}


def cost_on(topology: Topology, numbers_of_parameter: int) -> Callable[[Space, int, Degrees], Cost]:
    """Return the roofline cost on a topology's devices; an update reads and writes each kept number."""
    return partial(roofline, device=topology.device, update_bytes=2 * BYTES * numbers_of_parameter)


def build_problem(job: Mapping[str, Any]) -> Posed:
    """Return the problem of a job."""
    topology, n_numbers = topology_from_json(job["topology"]), job["numbers_of_parameter"]
    cost = measured_costs(job["costs"]) if job["costs"] else cost_on(topology, n_numbers)
    space = divide(from_json(job["graph"]), job["batch"])
    return pose(space, topology, cost, numbers_of_parameter=n_numbers, gradients=job["gradients"])


def step_seconds(posed: Posed, strategy: Strategy) -> float:
    """Return the time of a step, infinite if the devices lack the memory."""
    time = engine.simulate_strategy(posed.arrays, posed.state(strategy))
    return math.inf if time == engine.NEVER else time / PICOSECONDS


def describe_strategy(posed: Posed, strategy: Strategy) -> dict[str, Any]:
    """Return a strategy's parts, step time, bytes sent and memory."""
    state = posed.state(strategy)
    time = engine.simulate_strategy(posed.arrays, state)
    sent_activation_bytes, gradient_bytes = engine.sent_bytes(posed.arrays, state)
    return {
        "parts": {name: asdict(part) for name, part in strategy.items()},
        "seconds": None if time == engine.NEVER else time / PICOSECONDS,
        "sent_activation_bytes": int(sent_activation_bytes),
        "gradient_bytes": int(gradient_bytes),
        "memory_bytes": int(state.used_bytes.max()),
    }


def run_search(
    posed: Posed, strategy: Strategy, method: str, proposals: int, seed: int, full: bool = False
) -> tuple[Strategy, dict[str, Any]]:
    """Search from one strategy; return the fastest one seen, and the facts of the search.

    Args:
        posed: The problem.
        strategy: The start.
        method: METROPOLIS or ANNEALING.
        proposals: Number of proposals.
        seed: Of random numbers.
        full: Simulate each proposal completely.
    """
    base_s = step_seconds(posed, starts.data_parallel(posed))
    scale = PICOSECONDS * (base_s if math.isfinite(base_s) else 1.0)
    hot, cold = (share * scale for share in SCHEDULES[method])
    state = posed.state(strategy)
    best, device, costs = (
        np.zeros_like(state.config),
        np.zeros_like(state.device),
        np.zeros(proposals, np.int64),
    )
    started = time.perf_counter()
    cost, best_strategy = engine.simulate_strategy(posed.arrays, state), (best, device)
    engine.search(
        posed.arrays,
        state,
        posed.groups,
        method == ANNEALING,
        (hot, cold),
        seed,
        full,
        cost,
        best_strategy,
        costs,
    )
    wall = time.perf_counter() - started
    end_counts = dict(zip(END_NAMES, state.end_counts.tolist(), strict=True))
    steps = np.unique(np.geomspace(1, proposals, MAX_PROGRESS_STEPS).astype(int))
    seconds = [None if cost == engine.NEVER else float(cost / PICOSECONDS) for cost in costs[steps - 1]]
    progress = list(zip(steps.tolist(), seconds, strict=True))
    return posed.strategy(best, device), {"ended": end_counts, "wall_s": wall, "progress": progress}


def run_job(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the starts, and the fastest strategy of each method from each start."""
    posed, proposals, seed = build_problem(job), job["proposals"], job["seed"]
    start_strategies = {
        name: strategy
        for name, strategy in starts.all_strategies(posed, seed).items()
        if name in job["starts"]
    }
    for name, strategy in start_strategies.items():
        yield {"method": None, "start": name, **describe_strategy(posed, strategy)}
    run_search(
        posed, next(iter(start_strategies.values())), METROPOLIS, 1, seed
    )  # Compile everything before time is measured.
    for method in SCHEDULES:
        for name, strategy in start_strategies.items():
            fastest, facts = run_search(posed, strategy, method, proposals, seed, job["whole"])
            yield {"method": method, "start": name, **describe_strategy(posed, fastest), **facts}


if __name__ == "__main__":
    json.dump(list(run_job(json.load(sys.stdin))), sys.stdout)
