"""Search for fast strategies: a program for the Python of the planner's environment, which has numba.

It reads JSON with these keys from stdin:

    graph                 models.graph.Graph.to_json
    batch                 samples
    precision             one of topology.NUMBER_BYTES
    topology              strategies.topology.Topology.to_json
    numbers_of_parameter  as in problem.pose
    gradients             one of problem.GRADIENTS
    bucket_bytes          as in models.layout.Layout
    costs                 null, or strategies.costs.MeasuredCost of all parts
    starts                names of starts.all_strategies; starts.SMALL are added if none fits in memory
    restarts              of each method from each start
    proposals             of each restart
    seed                  every restart of every search has its own, derived from this one
    whole                 whether each proposal is simulated completely

It prints a JSON list of answers. An answer is the fastest restart of a search, or if none fits in memory, the
one that lacks the least:

    method                 null for a start itself
    start                  its name
    parts                  {layer: {"degrees", "devices"}}
    seconds                of a step; null: not enough memory
    sent_activation_bytes  of a step, as gradient_bytes
    memory_bytes           of the fullest device
    weight_bytes           of these: weights, their gradients and the optimizer's state
    ended                  how many proposals ended where (END_NAMES)
    wall_s                 time of the search
    progress               at most MAX_PROGRESS_STEPS pairs: proposals, seconds of the fastest strategy so far
    restarts               seconds of each restart's strategy

One restart per processor runs at a time.
"""

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from models.graph import BYTES, from_json
from models.soap import Degrees, Space, divide
from models.strategy import Strategy
from strategies import engine, starts
from strategies.costs import PartCost, measured_costs, roofline
from strategies.problem import PICOSECONDS, Posed, pose
from strategies.topology import NUMBER_BYTES, Topology, topology_from_json

METROPOLIS, ANNEALING = "metropolis", "annealing"
MAX_PROGRESS_STEPS = 100
END_NAMES = ("before", "forward", "backward", "accepted")  # In the order of engine.BEFORE to ACCEPTED.
HOT_SHARE, COLD_SHARE = 0.05, 0.001  # First and last temperature as shares of a data-parallel step.
STEADY_SHARE = 0.01  # Temperature of Metropolis-Hastings, as a share of the same step.
SCHEDULES = {METROPOLIS: (STEADY_SHARE, STEADY_SHARE), ANNEALING: (HOT_SHARE, COLD_SHARE)}


def cost_on(topology: Topology, numbers_of_parameter: int) -> Callable[[Space, int, Degrees], PartCost]:
    """Return the roofline cost on a topology's devices; an update reads and writes each kept number."""
    return partial(roofline, device=topology.device, update_bytes=2 * BYTES * numbers_of_parameter)


def build_problem(job: Mapping[str, Any]) -> Posed:
    """Return the problem of a job."""
    topology, n_numbers = topology_from_json(job["topology"]), job["numbers_of_parameter"]
    cost = measured_costs(job["costs"]) if job["costs"] else cost_on(topology, n_numbers)
    space = divide(from_json(job["graph"]), job["batch"], NUMBER_BYTES[job["precision"]])
    return pose(
        space,
        topology,
        cost,
        numbers_of_parameter=n_numbers,
        gradients=job["gradients"],
        bucket_bytes=tuple(job["bucket_bytes"]),
    )


def step_seconds(posed: Posed, strategy: Strategy) -> float:
    """Return the time of a step, infinite if the devices lack the memory."""
    state = posed.state(strategy)
    step_ps = engine.simulate_strategy(posed.arrays, state)
    return math.inf if state.excess[0] else step_ps / PICOSECONDS


def describe_strategy(posed: Posed, strategy: Strategy) -> dict[str, Any]:
    """Return a strategy's parts, step time, bytes sent and memory."""
    state = posed.state(strategy)
    step_ps = engine.simulate_strategy(posed.arrays, state)
    sent_activation_bytes, gradient_bytes = engine.sent_bytes(posed.arrays, state)
    fullest, weight_bytes = state.used_bytes.argmax(), np.zeros_like(state.used_bytes)
    for layer in set(posed.arrays.owner.tolist()):
        engine.add_weights(posed.arrays, state, layer, 1, weight_bytes)
    return {
        "parts": {name: asdict(part) for name, part in strategy.items()},
        "seconds": None if state.excess[0] else step_ps / PICOSECONDS,
        "sent_activation_bytes": int(sent_activation_bytes),
        "gradient_bytes": int(gradient_bytes),
        "memory_bytes": int(state.used_bytes[fullest]),
        "weight_bytes": int(weight_bytes[fullest]),
    }


def run_search(
    posed: Posed, strategy: Strategy, method: str, proposals: int, seed: int, full: bool = False
) -> tuple[Strategy, dict[str, Any]]:
    """Search from one strategy; return the fastest one that fits into memory, and the facts of the search.

    If none fits, it is the one that lacks the least memory.

    Args:
        posed: The problem.
        strategy: The start.
        method: METROPOLIS or ANNEALING.
        proposals: Number of proposals.
        seed: Of random numbers.
        full: Simulate each proposal completely.
    """
    data_parallel_ps = engine.simulate_strategy(posed.arrays, posed.state(starts.data_parallel(posed)))
    hot, cold = (share * data_parallel_ps for share in SCHEDULES[method])
    state = posed.state(strategy)
    fastest = np.zeros_like(state.config), np.zeros_like(state.device)
    fastest_ps = np.zeros(proposals, np.int64)  # The fastest step up to each proposal.
    started = time.perf_counter()
    start_ps = engine.simulate_strategy(posed.arrays, state)
    engine.search(
        posed.arrays,
        state,
        posed.groups,
        method == ANNEALING,
        (hot, cold),
        seed,
        full,
        start_ps,
        fastest,
        fastest_ps,
    )
    wall = time.perf_counter() - started
    end_counts = dict(zip(END_NAMES, state.end_counts.tolist(), strict=True))
    steps = np.unique(np.geomspace(1, proposals, MAX_PROGRESS_STEPS).astype(int))
    seconds = [None if ps == engine.NEVER else float(ps / PICOSECONDS) for ps in fastest_ps[steps - 1]]
    progress = list(zip(steps.tolist(), seconds, strict=True))
    return posed.strategy(*fastest), {"ended": end_counts, "wall_s": wall, "progress": progress}


@dataclass(frozen=True)
class Restart:
    """One run of a method from a start, with a seed of its own."""

    posed: Posed
    method: str
    start: str
    strategy: Strategy
    proposals: int
    seed: int
    full: bool

    def run(self) -> dict[str, Any]:
        """Return the answer of this restart alone."""
        fastest, facts = run_search(
            self.posed, self.strategy, self.method, self.proposals, self.seed, self.full
        )
        answer = describe_strategy(self.posed, fastest)
        return {"method": self.method, "start": self.start, **answer, **facts}


def sort_key(answer: Mapping[str, Any]) -> tuple[float, int]:
    """Return the sort key of an answer: seconds, then memory; the best answer is first."""
    return answer["seconds"] or math.inf, answer["memory_bytes"]


def run_job(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the starts, and the fastest strategy of each method from each start."""
    posed, proposals, seed = build_problem(job), job["proposals"], job["seed"]
    strategies = starts.all_strategies(posed, seed)
    names = list(job["starts"])
    if all(math.isinf(step_seconds(posed, strategies[name])) for name in names):
        names += [name for name in starts.SMALL if name not in names]
    for name in names:
        yield {"method": None, "start": name, **describe_strategy(posed, strategies[name])}
    searches = list(itertools.product(SCHEDULES, names))
    seeds = np.random.SeedSequence(seed).generate_state(len(searches) * job["restarts"]).tolist()
    restarts = [
        Restart(posed, method, name, strategies[name], proposals, seeds.pop(0), job["whole"])
        for method, name in searches
        for _ in range(job["restarts"])
    ]
    replace(restarts[0], proposals=1).run()  # Compile everything before time is measured.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # Compiled searches run without the GIL.
        answers = list(pool.map(Restart.run, restarts))
    for first in range(0, len(answers), job["restarts"]):
        group = answers[first : first + job["restarts"]]
        best = min(group, key=sort_key)
        yield best | {"restarts": [answer["seconds"] for answer in group]}


if __name__ == "__main__":
    json.dump(list(run_job(json.load(sys.stdin))), sys.stdout)
