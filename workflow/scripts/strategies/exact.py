"""The fastest of all strategies of a small model, by branch and bound.

For a model whose layers each take what the one before makes, on devices with links of one level. Layers are decided in their order. A bound of
those that are decided is the time of a step in which they take what they take, with all their messages and gradients, and each layer behind them
takes its least time, with no messages at all; for a whole strategy it is its time. What is not below the fastest time known is not followed.
Devices that are not used yet are alike: the first of them stands for all.

Each part may be on any device: this is the whole space that `search` draws from.
"""

import numpy as np

from strategies import engine
from strategies.engine import NEVER, Ints, Problem, State, compiled
from strategies.problem import Posed, Strategy


@compiled
def bound(problem: Problem, state: State, layer: int, rest: Ints, before: Ints, limit: int) -> int:
    """A bound of all strategies that begin as the one in `state` does, up to a layer; NEVER where it is not below `limit`. `before` [L + 1, R]:
    when resources are free before each layer, of which the next one is written; `rest` [L]: the least time of all layers behind."""
    engine.copy(state.now, before[layer])
    engine.fill(state.left, 0)
    engine.fill(state.links_left, 0)
    engine.fill(state.known, 0)
    engine.forward_layer(problem, state, layer, 0, NEVER)
    engine.copy(before[layer + 1], state.now)
    for part in range(problem.parts[state.config[layer]]):
        end = state.base[1, layer, part] + rest[layer]
        if end + problem.backward[state.config[layer]] >= limit:
            return NEVER
        state.back[layer, part] = end
    for place in range(layer):
        engine.fill(state.back[place], 0)
    engine.fill(state.synced, 0)
    engine.fill(state.updates, 0)
    for place in range(layer, -1, -1):
        if not engine.backward_layer(problem, state, place, 0, limit - 1):
            return NEVER
        shared = problem.shard_bytes[state.config[place]] > 0 and problem.owner[place] == place
        if shared and not engine.synchronize(problem, state, place, limit - 1):
            return NEVER
    end = 0
    for device in range(len(state.synced)):
        end = max(end, max(state.now[device], state.synced[device]) + state.updates[device])
    return end if end < limit else NEVER


@compiled
def place_next(state: State, layer: int, parts: int, used: int) -> int:
    """The next placement of a layer's parts, of which the last changes fastest, where `used` devices have parts of layers before; how many
    then have: 0 where there is no other."""
    devices = len(state.used)
    for part in range(parts - 1, -1, -1):
        most = used
        for earlier in range(part):
            most = max(most, state.device[layer, earlier] + 1)
        if state.device[layer, part] < min(most, devices - 1):
            state.device[layer, part] += 1
            engine.fill(state.device[layer, part + 1 : parts], 0)
            for one in range(part + 1):
                used = max(used, state.device[layer, one] + 1)
            return max(used, 1)
    return 0


@compiled
def descend(
    problem: Problem, state: State, rest: Ints, before: Ints, used: Ints, best: tuple[Ints, Ints], told: Ints
) -> None:
    """Follow all strategies that may be faster than `told` [0], depth first; the fastest into `best`; `told` [1:] counts bounds and prefixes."""
    layers, layer = len(problem.shape), 0
    state.config[0] = problem.first_config[0] - 1
    fresh = True  # whether the layer's next configuration is to be taken
    while layer >= 0:
        found = 0
        if not fresh:
            found = place_next(state, layer, problem.parts[state.config[layer]], used[layer])
        if found == 0:
            state.config[layer] += 1
            if state.config[layer] == problem.first_config[layer + 1]:
                layer -= 1
                fresh = False
                continue
            engine.fill(state.device[layer], 0)
            found = max(used[layer], 1)
        fresh = False
        told[1] += 1
        time = bound(problem, state, layer, rest, before, told[0])
        if time == NEVER:
            continue
        told[2] += 1
        if layer + 1 < layers:
            used[layer + 1] = found
            layer += 1
            state.config[layer] = problem.first_config[layer] - 1
            fresh = True
            continue
        told[0] = time
        for place in range(layers):
            best[0][place] = state.config[place]
            engine.copy(best[1][place], state.device[place])


def fastest(posed: Posed, known: Strategy) -> tuple[Strategy, dict[str, int]]:
    """The fastest of all strategies, `known` where none is faster: with its `picoseconds`, and how many `bounds` were made, of which `followed` were
    below the fastest time that was known. ValueError where a model or devices are of another kind."""
    problem, space = posed.arrays, posed.space
    if [(edge.source, edge.target) for edge in space.edges] != [(at, at + 1) for at in range(len(space.layers) - 1)]:
        raise ValueError(f"{space.model}: a layer takes what others than the one before it make")
    if any(need.dimension is not None and need.stride > need.kernel for edge in space.edges for need in edge.needed):
        raise ValueError(f"{space.model}: a layer does not take all that the one before it makes")
    if len(posed.topology.levels) > 1:
        raise ValueError("devices have links of several levels; expected one")
    if problem.bucket_bytes[0]:
        raise ValueError("sums of gradients wait for each other; expected bucket_bytes 0")
    state = posed.state(known)
    told = np.array([engine.start(problem, state), 0, 0], np.int64)
    best = state.config.copy(), state.device.copy()
    least = [
        int((problem.forward + problem.backward)[problem.first_config[at] : problem.first_config[at + 1]].min())
        for at in range(len(space.layers))
    ]
    rest = np.array([sum(least[at + 1 :]) for at in range(len(space.layers))], np.int64)
    for name in ("local", "head", "offset", "foot", "back_offset", "tail_back"):
        getattr(state, name)[:] = 0
    state.head[:] = state.foot[:] = np.arange(len(space.layers))
    before = np.zeros((len(space.layers) + 1, len(state.now)), np.int64)
    descend(problem, state, rest, before, np.zeros(len(space.layers) + 1, np.int64), best, told)
    return posed.strategy(*best), {"picoseconds": int(told[0]), "bounds": int(told[1]), "followed": int(told[2])}
