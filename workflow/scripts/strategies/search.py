"""Search for fast strategies: run by the Python of its own environment (containers/planner), which has numba; JSON in, JSON out.

stdin: {"graph": models.graph.Graph.to_json, "batch": samples, "topology": {"device": {...}, "levels": [...]} as strategies.topology has them,
"numbers_of_parameter": kept for each, "gradients": one of problem.GRADIENTS, "costs": null, or strategies.costs.Measured of all parts,
"proposals": of each search, "seed": of all, "starts": names of starts.every, "whole": whether all of each proposal is simulated}.
stdout: a list of {"method", "start", "parts": {layer: {"degrees", "devices"}}, "seconds" of a step (null: not enough memory), "exchanged_bytes"
and "gradient_bytes" of a step, "memory_bytes" of the device that needs most, and of a search "ended", how many proposals where (ENDS), "wall_s" and "progress": after how many
proposals the fastest one seen took how many seconds, at most STEPS times}. A method that is null tells of a start itself.
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
from strategies.costs import Cost, looked_up, roofline
from strategies.problem import PICOSECONDS, Posed, pose
from strategies.topology import Device, Level, Topology

METROPOLIS, ANNEALING = "metropolis", "annealing"
STEPS = 100
ENDS = ("before", "forward", "backward", "accepted")  # by the places of engine.BEFORE to TAKEN
HOT, COLD = 0.05, 0.001  # temperatures at the ends of an annealing, as shares of a data-parallel step
STEADY = 0.01  # that of Metropolis-Hastings
SCHEDULES = {METROPOLIS: (STEADY, STEADY), ANNEALING: (HOT, COLD)}


def cost_on(topology: Topology, numbers_of_parameter: int) -> Callable[[Space, int, Degrees], Cost]:
    """The cost of a part on the devices of a topology: each number that is kept is read and written by an update."""
    return partial(roofline, device=topology.device, update_bytes=2 * BYTES * numbers_of_parameter)


def posed_of(job: Mapping[str, Any]) -> Posed:
    """The problem that a job tells."""
    told, kept = job["topology"], job["numbers_of_parameter"]
    topology = Topology(Device(**told["device"]), tuple(Level(**level) for level in told["levels"]))
    cost = looked_up(job["costs"]) if job["costs"] else cost_on(topology, kept)
    space = divide(from_json(job["graph"]), job["batch"])
    return pose(space, topology, cost, numbers_of_parameter=kept, gradients=job["gradients"])


def seconds(posed: Posed, strategy: Strategy) -> float:
    """How long a step takes; infinite where its devices do not have the memory."""
    taken = engine.start(posed.arrays, posed.state(strategy))
    return math.inf if taken == engine.NEVER else taken / PICOSECONDS


def account(posed: Posed, strategy: Strategy) -> dict[str, Any]:
    """What a strategy is, takes, sends and needs."""
    state = posed.state(strategy)
    taken = engine.start(posed.arrays, state)
    exchanged, gradients = engine.sent(posed.arrays, state)
    return {
        "parts": {name: asdict(part) for name, part in strategy.items()},
        "seconds": None if taken == engine.NEVER else taken / PICOSECONDS,
        "exchanged_bytes": int(exchanged),
        "gradient_bytes": int(gradients),
        "memory_bytes": int(state.used.max()),
    }


def run(
    posed: Posed, strategy: Strategy, method: str, proposals: int, seed: int, whole: bool = False
) -> tuple[Strategy, dict[str, Any]]:
    """One search from one strategy: the fastest seen, and what is told of the search. `whole`: all of each proposal is simulated."""
    base = seconds(posed, starts.data_parallel(posed))
    scale = PICOSECONDS * (base if math.isfinite(base) else 1.0)
    hot, cold = (share * scale for share in SCHEDULES[method])
    state = posed.state(strategy)
    best, device, costs = np.zeros_like(state.config), np.zeros_like(state.device), np.zeros(proposals, np.int64)
    began = time.perf_counter()
    cost, told = engine.start(posed.arrays, state), (best, device)
    engine.search(posed.arrays, state, posed.groups, method == ANNEALING, (hot, cold), seed, whole, cost, told, costs)
    wall = time.perf_counter() - began
    ended = dict(zip(ENDS, state.ended.tolist(), strict=True))
    places = np.unique(np.geomspace(1, proposals, STEPS).astype(int))
    seen = [None if cost == engine.NEVER else float(cost / PICOSECONDS) for cost in costs[places - 1]]
    progress = list(zip(places.tolist(), seen, strict=True))
    return posed.strategy(best, device), {"ended": ended, "wall_s": wall, "progress": progress}


def answers(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The starts, and the fastest strategy of each method from each start."""
    posed, proposals, seed = posed_of(job), job["proposals"], job["seed"]
    begun = {name: strategy for name, strategy in starts.every(posed, seed).items() if name in job["starts"]}
    for name, strategy in begun.items():
        yield {"method": None, "start": name, **account(posed, strategy)}
    run(posed, next(iter(begun.values())), METROPOLIS, 1, seed)  # all is compiled before time is taken
    for method in SCHEDULES:
        for name, strategy in begun.items():
            found, told = run(posed, strategy, method, proposals, seed, job["whole"])
            yield {"method": method, "start": name, **account(posed, found), **told}


if __name__ == "__main__":
    json.dump(list(answers(json.load(sys.stdin))), sys.stdout)
