"""Find the fastest of all strategies of a small model, by branch and bound.

The model is a chain of layers, on devices with links of one level. Layers are decided in order. The lower
bound of the decided layers is the time of a step with all their messages and gradients, in which every later
layer takes its least time without messages; for a complete strategy it is its time. A prefix whose bound is
not below the fastest known time is abandoned. Unused devices are interchangeable: the first one stands for
all.

Each part may be on any device: this is the whole space that `search` draws from.
"""

import numpy as np

from strategies import engine
from strategies.engine import NEVER, Ints, Problem, State, compiled
from strategies.problem import Posed, Strategy


@compiled
def lower_bound(
    problem: Problem, state: State, layer: int, min_rest: Ints, free_before: Ints, limit: int
) -> int:
    """Return a lower bound for strategies that begin like the one in `state`, NEVER if not below `limit`.

    Args:
        problem: The problem.
        state: The strategy up to `layer`.
        layer: The last decided layer.
        min_rest: [L] least time of all layers after each.
        free_before: [L + 1, R] when resources are free before each layer; the item of the next one is set.
        limit: In ps.
    """
    engine.copy(state.free_at, free_before[layer])
    engine.fill(state.work_left, 0)
    engine.fill(state.link_time_left, 0)
    engine.fill(state.cached, 0)
    engine.forward_layer(problem, state, layer, 0, NEVER)
    engine.copy(free_before[layer + 1], state.free_at)
    for part in range(problem.parts[state.config[layer]]):
        end = state.forward_end[1, layer, part] + min_rest[layer]
        if end + problem.backward[state.config[layer]] >= limit:
            return NEVER
        state.back_end[layer, part] = end
    for place in range(layer):
        engine.fill(state.back_end[place], 0)
    engine.fill(state.synced_at, 0)
    engine.fill(state.updates, 0)
    for place in range(layer, -1, -1):
        if not engine.backward_layer(problem, state, place, 0, limit - 1):
            return NEVER
        shared = problem.shard_bytes[state.config[place]] > 0 and problem.owner[place] == place
        if shared and not engine.synchronize(problem, state, place, limit - 1):
            return NEVER
    end = 0
    for device in range(len(state.synced_at)):
        end = max(end, max(state.free_at[device], state.synced_at[device]) + state.updates[device])
    return end if end < limit else NEVER


@compiled
def next_placement(state: State, layer: int, parts: int, used: int) -> int:
    """Move to the next placement of a layer's parts, in which the last part changes fastest.

    Returns the number of devices used then, of which earlier layers use `used`; 0 if there is no other
    placement.
    """
    devices = len(state.used_bytes)
    for part in range(parts - 1, -1, -1):
        n_candidates = used
        for earlier in range(part):
            n_candidates = max(n_candidates, state.device[layer, earlier] + 1)
        if state.device[layer, part] < min(n_candidates, devices - 1):
            state.device[layer, part] += 1
            engine.fill(state.device[layer, part + 1 : parts], 0)
            for index in range(part + 1):
                used = max(used, state.device[layer, index] + 1)
            return max(used, 1)
    return 0


@compiled
def descend(
    problem: Problem,
    state: State,
    min_rest: Ints,
    free_before: Ints,
    used: Ints,
    best: tuple[Ints, Ints],
    counts: Ints,
) -> None:
    """Visit all strategies that can be faster than `counts[0]`, depth first; set `best` to the fastest.

    `counts` [3] is the fastest time in ps, the number of bounds, and the number of prefixes that were
    followed.
    """
    layers, layer = len(problem.shape), 0
    state.config[0] = problem.first_config[0] - 1
    fresh = True  # whether to go on with the next configuration of the layer
    while layer >= 0:
        n_used = 0
        if not fresh:
            n_used = next_placement(state, layer, problem.parts[state.config[layer]], used[layer])
        if n_used == 0:
            state.config[layer] += 1
            if state.config[layer] == problem.first_config[layer + 1]:
                layer -= 1
                fresh = False
                continue
            engine.fill(state.device[layer], 0)
            n_used = max(used[layer], 1)
        fresh = False
        counts[1] += 1
        time = lower_bound(problem, state, layer, min_rest, free_before, counts[0])
        if time == NEVER:
            continue
        counts[2] += 1
        if layer + 1 < layers:
            used[layer + 1] = n_used
            layer += 1
            state.config[layer] = problem.first_config[layer] - 1
            fresh = True
            continue
        counts[0] = time
        for place in range(layers):
            best[0][place] = state.config[place]
            engine.copy(best[1][place], state.device[place])


def find_fastest(posed: Posed, incumbent: Strategy) -> tuple[Strategy, dict[str, int]]:
    """Return the fastest of all strategies, or `incumbent` if none is faster, and counts.

    The counts are `picoseconds` of a step, number of `bounds`, and how many prefixes were `followed`.

    Raises:
        ValueError: If the model is not a chain, or devices have links of several levels.
    """
    problem, space = posed.arrays, posed.space
    if [(edge.source, edge.target) for edge in space.edges] != [
        (index, index + 1) for index in range(len(space.layers) - 1)
    ]:
        raise ValueError(f"{space.model}: a layer takes what others than the one before it make")
    if any(
        need.dimension is not None and need.stride > need.kernel
        for edge in space.edges
        for need in edge.needed
    ):
        raise ValueError(f"{space.model}: a layer does not take all that the one before it makes")
    if len(posed.topology.tiers) > 1:
        raise ValueError("devices have links of several levels; expected one")
    if problem.bucket_bytes.any():
        raise ValueError("sums of gradients wait for each other; expected bucket_bytes 0")
    state = posed.state(incumbent)
    counts = np.array([engine.simulate_strategy(problem, state), 0, 0], np.int64)
    best = state.config.copy(), state.device.copy()
    min_times = [
        int(
            (problem.forward + problem.backward)[
                problem.first_config[index] : problem.first_config[index + 1]
            ].min()
        )
        for index in range(len(space.layers))
    ]
    min_rest = np.array([sum(min_times[index + 1 :]) for index in range(len(space.layers))], np.int64)
    for name in ("local", "head", "offset", "foot", "back_offset", "tail_back"):
        getattr(state, name)[:] = 0
    state.head[:] = state.foot[:] = np.arange(len(space.layers))
    free_before = np.zeros((len(space.layers) + 1, len(state.free_at)), np.int64)
    descend(problem, state, min_rest, free_before, np.zeros(len(space.layers) + 1, np.int64), best, counts)
    return posed.strategy(*best), {
        "picoseconds": int(counts[0]),
        "bounds": int(counts[1]),
        "followed": int(counts[2]),
    }
