"""Compare searched strategies with the fastest of all strategies (`make optimum-test`, planner's Python).

For two small models on four devices, branch and bound finds the fastest of all strategies, with any
configuration of each layer and each part on any device (`support.exact_search`). Annealing has to find the
fastest one of LeNet-5, and one within a factor of CLOSE of the fastest for the language model.
"""

import itertools
import time

from models.graph import Graph
from models.named import graph
from models.soap import divide
from strategies import search, starts
from strategies.problem import Posed, pose
from strategies.topology import DeviceRates, LinkTier, Topology
from support import exact_search
from support.planned_models import by_planner

DEVICE = DeviceRates(
    flops=6.36e12, memory_bytes_s=7.32e11, memory_bytes=1.6e10, launch_s=1e-5
)  # a P100 whose products all reach 0.6 of the peak
FOUR = Topology(DEVICE, (LinkTier(4, 2e10, 5e-6),))
PROPOSALS = 200_000
CLOSE = 1.001
MODELS = {
    "lenet-5": (graph("lenet-5", (28, 28, 1), 10), 256, 1.0),
    "rnn-lm": (graph("rnn-lm", (4,), 1000, 1000, "next"), 64, CLOSE),
}


def strategies(posed: Posed) -> float:
    """Return the number of strategies of a problem."""
    problem, count = posed.arrays, 1.0
    for first, end in zip(problem.first_config, problem.first_config[1:], strict=False):
        count *= float(sum(posed.topology.devices ** int(parts) for parts in problem.parts[first:end]))
    return count


def check(model: Graph, batch: int, close: float) -> None:
    """Print the strategies of each search and the fastest one; raise SystemExit if annealing is not close."""
    posed = pose(divide(model, batch), FOUR, search.cost_on(FOUR, 4), bucket_bytes=(0, 0))
    results = {}
    begun = starts.all_strategies(posed, 1)
    for method, start in itertools.product(search.SCHEDULES, sorted(begun.keys() - set(starts.SMALL))):
        best, statistics = search.run_search(posed, begun[start], method, PROPOSALS, 1)
        results[method, start] = search.step_seconds(posed, best), best
        print(
            f"{posed.space.model}: {1e6 * results[method, start][0]:.3f} us by {method} from {start}, "
            f"{statistics['wall_s']:.1f} s"
        )
    began = time.perf_counter()
    start_at = min(results.values(), key=lambda entry: entry[0])[1]
    fastest, statistics = exact_search.find_fastest(posed, start_at)
    least = search.step_seconds(posed, fastest)
    print(
        f"{posed.space.model}: {1e6 * least:.3f} us is the least of {strategies(posed):.1e} strategies, "
        f"{statistics['bounds']:,} bounds, {time.perf_counter() - began:.1f} s"
    )
    worst = max(seconds for (method, _), (seconds, _) in results.items() if method == search.ANNEALING)
    if not least <= worst <= close * least:
        raise SystemExit(
            f"{posed.space.model}: annealing found {1e6 * worst:.3f} us, the least is {1e6 * least:.3f} us"
        )


if __name__ == "__main__":
    by_planner()
    for model, batch, close in MODELS.values():
        check(model, batch, close)
