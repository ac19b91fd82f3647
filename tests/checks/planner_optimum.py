"""What `make optimum-test` runs, by the planner's Python: what searches find, against the fastest of all
strategies of two small models on four devices.

All of them: each layer with any configuration, each part on any device. Branch and bound finds the fastest
(`strategies.exact`). Annealing has to find LeNet-5's, and to come within CLOSE of the language model's.
"""

import time

from models.graph import Graph
from models.named import graph
from models.soap import divide
from strategies import exact, search, starts
from strategies.problem import Posed, pose
from strategies.topology import Device, Level, Topology
from support.planned_models import by_planner

DEVICE = Device(
    flops=6.36e12, memory_bytes_s=7.32e11, memory_bytes=1.6e10, launch_s=1e-5
)  # of config/topologies/p100
FOUR = Topology(DEVICE, (Level(4, 2e10, 5e-6),))
PROPOSALS = 200_000
CLOSE = 1.001
MODELS = {
    "lenet-5": (graph("lenet-5", (28, 28, 1), 10), 256, 1.0),
    "rnn-lm": (graph("rnn-lm", (4,), 1000, 1000, "next"), 64, CLOSE),
}


def strategies(made: Posed) -> float:
    """How many there are."""
    problem, count = made.arrays, 1.0
    for first, end in zip(problem.first_config, problem.first_config[1:], strict=False):
        count *= float(sum(made.topology.devices ** int(parts) for parts in problem.parts[first:end]))
    return count


def check(of: Graph, batch: int, close: float) -> None:
    """Both, told; SystemExit where the search does not come close."""
    made = pose(divide(of, batch), FOUR, search.cost_on(FOUR, 4), bucket_bytes=0)
    found = {}
    for method in search.SCHEDULES:
        for start, strategy in starts.all_strategies(made, 1).items():
            best, told = search.run_search(made, strategy, method, PROPOSALS, 1)
            found[method, start] = search.step_seconds(made, best), best
            print(
                f"{made.space.model}: {1e6 * found[method, start][0]:.3f} us by {method} from {start}, "
                f"{told['wall_s']:.1f} s"
            )
    began = time.perf_counter()
    known = min(found.values(), key=lambda one: one[0])[1]
    fastest, told = exact.find_fastest(made, known)
    least = search.step_seconds(made, fastest)
    print(
        f"{made.space.model}: {1e6 * least:.3f} us is the least of {strategies(made):.1e} strategies, "
        f"{told['bounds']:,} bounds, {time.perf_counter() - began:.1f} s"
    )
    worst = max(seconds for (method, _), (seconds, _) in found.items() if method == search.ANNEALING)
    if not least <= worst <= close * least:
        raise SystemExit(
            f"{made.space.model}: annealing found {1e6 * worst:.3f} us, the least is {1e6 * least:.3f} us"
        )


if __name__ == "__main__":
    by_planner()
    for of, batch, close in MODELS.values():
        check(of, batch, close)
