"""Compare incremental with full simulations of random proposals, over all models.

python planner_properties.py PROPOSALS, with the planner's Python: PROPOSALS are those of all models together.
Prints how many were accepted, and exits with status 1 at the first difference.
"""

import itertools
import sys

import numpy as np

from strategies import engine, starts
from strategies.engine import Ints, Problem, State, compiled
from strategies.problem import GRADIENTS, Posed
from strategies.topology import LinkTier
from support.planned_models import divisible_models, posed

DEVICES = 16
LEVELS = (LinkTier(4, 2e10, 5e-6), LinkTier(4, 1e10, 1e-5, ring_latency_s=3e-5, ring_channels=2))


def attempt_change(
    problem: Problem, state: State, changed: Ints, config: int, devices: Ints, limit: int, full: bool
) -> int:
    """Return `try_change` of layers to one of their configurations and devices."""
    state.changed[: len(changed)] = changed
    state.chosen[: len(changed)] = problem.first_config[changed] + config
    state.proposed[: len(devices)] = devices
    return engine.try_change(problem, state, len(changed), full, limit)


@compiled
def copy_timeline(problem: Problem, state: State, forward_ends: Ints, backward_ends: Ints) -> None:
    """Copy the ends of forward and backward passes [L, P] of the strategy that the last call accepted."""
    for layer in range(len(problem.shape)):
        for part in range(problem.parts[state.config[layer]]):
            forward_ends[layer, part] = (
                state.forward_end[0, state.head[0, layer], part] + state.offset[0, layer]
            )
            backward_ends[layer, part] = state.back_end[state.foot[layer], part] + state.back_offset[layer]


def timeline(posed_model: Posed, state: State) -> tuple[Ints, Ints]:
    """Return the ends of forward and backward passes of all parts."""
    ends, back = np.zeros_like(state.device), np.zeros_like(state.device)
    copy_timeline(posed_model.arrays, state, ends, back)
    return ends, back


def check(posed_model: Posed, proposals: int, seed: int) -> int:
    """Check that random changes end as in full simulations; return how many were accepted."""
    problem, rng = posed_model.arrays, np.random.default_rng(seed)
    state, full_state = (
        posed_model.state(starts.data_parallel(posed_model)),
        posed_model.state(starts.data_parallel(posed_model)),
    )
    cost, n_accepted = engine.simulate_strategy(problem, state), 0
    for _ in range(proposals):
        layer = int(rng.integers(len(problem.shape)))
        config = int(rng.integers(problem.first_config[layer + 1] - problem.first_config[layer]))
        parts = int(problem.parts[problem.first_config[layer] + config])
        devices = rng.integers(DEVICES, size=parts)
        limit = int(cost * rng.choice([1.0, 1.02, 1.1, 3.0]))
        full_state.config[:], full_state.device[:] = state.config, state.device
        full_state.config[layer] = problem.first_config[layer] + config
        full_state.device[layer, :parts] = devices
        expected = engine.simulate_strategy(problem, full_state)
        time = attempt_change(problem, state, np.array([layer], np.int64), config, devices, limit, False)
        if time != (expected if expected <= limit else engine.NEVER):
            raise SystemExit(
                f"{posed_model.space.model}: {time} by the change, {expected} by all, limit {limit}"
            )
        if time == engine.NEVER:
            continue
        cost, n_accepted = time, n_accepted + 1
        for by_change, by_all in zip(
            timeline(posed_model, state), timeline(posed_model, full_state), strict=True
        ):
            if not np.array_equal(by_change, by_all):
                raise SystemExit(f"{posed_model.space.model}: a layer ends otherwise by the change")
        if not np.array_equal(state.used_bytes, full_state.used_bytes):
            raise SystemExit(f"{posed_model.space.model}: devices need another memory by the change")
    return n_accepted


def main() -> None:
    """Check all models with all kinds of gradient synchronization."""
    ways = list(itertools.product(divisible_models(), GRADIENTS))
    n_proposals = -(-int(sys.argv[1]) // len(ways))
    n_accepted = sum(
        check(posed(name, 64, *LEVELS, gradients=way), n_proposals, seed)
        for seed, (name, way) in enumerate(ways)
    )
    compiled = bool(getattr(engine.try_change, "signatures", ()))
    print(f"{n_proposals * len(ways)} proposals, {n_accepted} taken, no difference; compiled: {compiled}")


if __name__ == "__main__":
    main()
