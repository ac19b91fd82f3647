"""Simulation of a step, compiled by numba where it is installed, and plain Python where it is not.

A rank computes its parts in the order of the program: layers forward, then backward, parts of a layer in their order. A message leaves when
what it carries is made, and when the links that it takes are free of messages before it in that order. Nothing else decides about times, so
that a step is one pass over layers, and what a change of a layer leaves as it was is all before this layer's forward pass.

Times are integers of picoseconds: sums of them are exact, whoever makes them in which order.
"""

from typing import Any, NamedTuple

import numpy as np

try:
    from numba import njit
except ImportError:

    def njit(function: Any = None, **_: Any) -> Any:
        """Without numba a function is what it was."""
        return function or (lambda inner: inner)


DIMENSIONS = 4
EVERY = 8  # layers between two of which what a simulation has reached is kept
NEVER = 2**62
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Problem(NamedTuple):
    """What a search needs of layers (L), their configurations (C), edges by target (E), levels of links (K) and devices (D); arrays of int64."""

    shape: Any  # [L, 4] of a layer's output
    first_config: Any  # [L + 1] the layer's first configuration
    first_edge: Any  # [L + 1] the first edge of which the layer is the target
    degrees: Any  # [C, 4] parts in each dimension
    chunk: Any  # [C, 4] their sizes
    parts: Any  # [C] all of them
    forward: Any  # [C] picoseconds of a part
    backward: Any  # [C]
    update: Any  # [C]
    memory: Any  # [C] bytes that a part needs on its device
    shard_bytes: Any  # [C] of the gradients of a part
    shards: Any  # [C] unlike shares of the weights: part p has (p // shard_stride) % shards
    shard_stride: Any  # [C]
    source: Any  # [E] a layer
    of: Any  # [E, 4] this and what follows as in models.soap.Needed; -1: fixed
    stride: Any  # [E, 4]
    padding: Any  # [E, 4]
    kernel: Any  # [E, 4]
    low: Any  # [E, 4]
    high: Any  # [E, 4]
    same: Any  # [E, 4] whether a dimension is needed as it is made
    element_bytes: Any  # [E]
    first_only: Any  # [E]
    always: Any  # [E] whether each part of the target needs one of the source
    first_user: Any  # [L + 1] the first of `user`
    user: Any  # [E] the layers that take what one makes
    chain_stride: Any  # [C] from a part to the next one along a chain
    chain_degree: Any  # [C] how many follow each other; 1: no chain
    state_bytes: Any  # [C] from one to the next
    sharer: Any  # [L] a later layer that has its weights, too, or -1
    owner: Any  # [L] the layer with which its gradients are summed: itself, or an earlier one that has its weights
    unit: Any  # [K, D] what of a device is on the links of level K
    level_of: Any  # [D, D] the level between two devices
    latency: Any  # [K] picoseconds
    per_byte: Any  # [K] picoseconds, float64
    link: Any  # [K, 2] the first resource of a level's outgoing and of its incoming links
    resources: Any  # [1] how many: devices, then links
    memory_limit: Any  # [1] bytes of a device


class State(NamedTuple):
    """Where a simulation is kept: P the most parts of a layer, R resources. The first place of [2, ...] is what was accepted last, the second a trial."""

    config: Any  # [L] the strategy: configurations
    device: Any  # [L, P] and the devices of parts
    ends: Any  # [2, L, P] of forward passes
    back: Any  # [2, L, P] when gradients are there, then the ends of backward passes
    free: Any  # [2, L // EVERY + 1, R] when resources are free before each EVERYth layer's forward pass
    work: Any  # [2, L // EVERY + 1, D] computation that a device then still has
    used: Any  # [D] bytes
    tail: Any  # [L] least time from the first end of a layer's forward pass to that of the step
    tail_back: Any  # [L] the same from any end of its backward pass
    local: Any  # [L] whether all that its parts take is made where they are
    saved_local: Any  # [L] what it was before a proposal
    parts_of: Any  # [P] what `overlaps` found: parts
    bytes_of: Any  # [P] and how much of each
    first: Any  # [4] where a part begins
    now: Any  # [R] when resources are free
    left: Any  # [D] computation that a device still has
    stamp: Any  # [D] whether a device has a shard
    synced: Any  # [D] when its last sum of gradients ends
    updates: Any  # [D] how long its updates take
    links: Any  # [R] how long sums of gradients take a link in a step
    saved_links: Any  # [R] before a proposal
    links_left: Any  # [R] what of it is still to come
    member: Any  # [D] devices of a ring
    out: Any  # [D] links from each to the next
    into: Any  # [D]
    change: Any  # [D] of work, by a proposal
    grown: Any  # [D] of bytes
    saved: Any  # [L] configurations before a proposal
    saved_device: Any  # [L, P] and devices


def state_of(problem: Problem) -> State:
    """Room for the simulation of any strategy."""
    layers, devices = len(problem.shape), problem.level_of.shape[0]
    parts, resources = int(problem.parts.max()), int(problem.resources[0])
    sizes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("config", "tail", "tail_back", "local", "saved_local", "saved"), (layers,)),
        **dict.fromkeys(("device", "saved_device"), (layers, parts)),
        **dict.fromkeys(("ends", "back"), (2, layers, parts)),
        "free": (2, layers // EVERY + 1, resources),
        "work": (2, layers // EVERY + 1, devices),
        **dict.fromkeys(("parts_of", "bytes_of"), (parts,)),
        "first": (DIMENSIONS,),
        **dict.fromkeys(("now", "links", "saved_links", "links_left"), (resources,)),
        **dict.fromkeys(
            ("used", "left", "stamp", "synced", "updates", "change", "grown", "member", "out", "into"), (devices,)
        ),
    }
    return State(**{name: np.zeros(size, np.int64) for name, size in sizes.items()})


@njit(cache=True, error_model="numpy", inline="always")
def overlaps(problem: Problem, state: State, edge: int, target: int, part: int) -> int:
    """How many parts of an edge's source have what a part of its target needs; `parts_of` says which, `bytes_of` how much."""
    source = problem.source[edge]
    of_target, of_source = state.config[target], state.config[source]
    chain, degree = problem.chain_stride[of_target], problem.chain_degree[of_target]
    if problem.first_only[edge] and degree > 1 and (part // chain) % degree > 0:
        return 0
    at = part
    first = state.first
    for dimension in range(DIMENSIONS - 1, -1, -1):
        degree = problem.degrees[of_target, dimension]
        first[dimension] = 0
        if degree > 1:
            first[dimension] = at % degree * problem.chunk[of_target, dimension]
            at //= degree
    found = 1
    state.parts_of[0] = 0
    state.bytes_of[0] = problem.element_bytes[edge]
    for dimension in range(DIMENSIONS):
        of = problem.of[edge, dimension]
        low = problem.low[edge, dimension]
        high = problem.high[edge, dimension]
        if of >= 0:
            step = problem.stride[edge, dimension]
            low = step * first[of] - problem.padding[edge, dimension]
            high = low + step * (problem.chunk[of_target, of] - 1) + problem.kernel[edge, dimension]
        low = max(low, 0)
        high = min(high, problem.shape[source, dimension])
        if low >= high:
            return 0
        degree, chunk = problem.degrees[of_source, dimension], problem.chunk[of_source, dimension]
        if degree == 1:
            for i in range(found):
                state.bytes_of[i] *= high - low
            continue
        begin, end = low // chunk, (high - 1) // chunk
        count = end - begin + 1
        # every part found so far, times the places of this dimension; from behind, so that nothing is overwritten
        for i in range(found - 1, -1, -1):
            base, size = state.parts_of[i], state.bytes_of[i]
            for j in range(count - 1, -1, -1):
                there = begin + j
                state.parts_of[i * count + j] = base * degree + there
                state.bytes_of[i * count + j] = size * (min(high, (there + 1) * chunk) - max(low, there * chunk))
        found *= count
    return found


@njit(cache=True, error_model="numpy", inline="always")
def is_alike(problem: Problem, state: State, edge: int, target: int) -> bool:
    """Whether each part of an edge's target needs the part of its source with the same number, and no other."""
    of_target, of_source = state.config[target], state.config[problem.source[edge]]
    if problem.first_only[edge]:
        return False
    for dimension in range(DIMENSIONS):
        degree = problem.degrees[of_source, dimension]
        if degree != problem.degrees[of_target, dimension] or (degree > 1 and not problem.same[edge, dimension]):
            return False
    return True


@njit(cache=True, error_model="numpy")
def find_local(problem: Problem, state: State, layer: int) -> None:
    """Find out whether all that a layer's parts take is made on their own devices. Then it is there when these come to the layer, since a
    device computes in the order of the program."""
    config = state.config[layer]
    chain, degree = problem.chain_stride[config], problem.chain_degree[config]
    state.local[layer] = 0
    for part in range(problem.parts[config]):
        device = state.device[layer, part]
        if degree > 1 and (part // chain) % degree > 0 and state.device[layer, part - chain] != device:
            return
    for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
        source = problem.source[edge]
        alike = is_alike(problem, state, edge, layer)
        for part in range(problem.parts[config]):
            device = state.device[layer, part]
            if alike:
                if state.device[source, part] != device:
                    return
                continue
            for i in range(overlaps(problem, state, edge, layer, part)):
                if state.device[source, state.parts_of[i]] != device:
                    return
    state.local[layer] = 1


@njit(cache=True, error_model="numpy", inline="always")
def arrival(problem: Problem, now: Ints, sender: int, receiver: int, size: int, ready: int) -> int:
    """When a message is there. Its links are taken for as long as its bytes take; its latency comes behind."""
    if sender == receiver:
        return ready
    level = problem.level_of[sender, receiver]
    out = problem.link[level, 0] + problem.unit[level, sender]
    into = problem.link[level, 1] + problem.unit[level, receiver]
    start = max(ready, now[out], now[into])
    end = start + max(1, int(size * problem.per_byte[level]))
    now[out] = end
    now[into] = end
    return end + problem.latency[level]


@njit(cache=True, error_model="numpy", inline="always")
def ring(problem: Problem, state: State, size: int) -> tuple[int, int]:
    """A ring of the devices that are stamped, in the order of their numbers, into `member`, and the links between them, into `out` and `into`: how
    many devices, and how long they take to sum so many bytes. In 2 (k - 1) steps each hands a k-th to the next. Takes the stamps away."""
    count, slowest = 0, 0
    for device in range(len(state.stamp)):
        if state.stamp[device]:
            state.stamp[device] = 0
            state.member[count] = device
            count += 1
    chunk = size / count
    for place in range(count):
        sender, receiver = state.member[place], state.member[(place + 1) % count]
        level = problem.level_of[sender, receiver]
        state.out[place] = problem.link[level, 0] + problem.unit[level, sender]
        state.into[place] = problem.link[level, 1] + problem.unit[level, receiver]
        slowest = max(slowest, problem.latency[level] + max(1, int(chunk * problem.per_byte[level])))
    return count, 2 * (count - 1) * slowest


@njit(cache=True, error_model="numpy", inline="always")
def bounds(problem: Problem, state: State) -> None:
    """Make `tail` and `tail_back` of the strategy: sums of computation along the model, where every part needs one of the layer before."""
    layers = len(problem.shape)
    for layer in range(layers):
        state.tail_back[layer] = 0
        for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
            if problem.always[edge]:
                source = problem.source[edge]
                after = problem.backward[state.config[source]] + state.tail_back[source]
                state.tail_back[layer] = max(state.tail_back[layer], after)
        state.tail[layer] = problem.backward[state.config[layer]] + state.tail_back[layer]
    for layer in range(layers - 1, -1, -1):
        after = problem.forward[state.config[layer]] + state.tail[layer]
        for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
            if problem.always[edge]:
                source = problem.source[edge]
                state.tail[source] = max(state.tail[source], after)


@njit(cache=True, error_model="numpy", inline="always")
def forward(problem: Problem, state: State, layer: int, begin: int, limit: int) -> bool:
    """The forward passes of a layer's parts; whether the step can still end by `limit`. Layers before `begin` are as accepted."""
    config = state.config[layer]
    chain, degree = problem.chain_stride[config], problem.chain_degree[config]
    now, ends, local = state.now, state.ends, state.local[layer]
    earliest = NEVER
    for part in range(problem.parts[config]):
        device = state.device[layer, part]
        ready = 0
        if not local and degree > 1 and (part // chain) % degree > 0:
            before = part - chain
            made = ends[1, layer, before]
            ready = arrival(problem, now, state.device[layer, before], device, problem.state_bytes[config], made)
        for edge in range(
            problem.first_edge[layer], problem.first_edge[layer] if local else problem.first_edge[layer + 1]
        ):
            source = problem.source[edge]
            side = 1 if source >= begin else 0
            for i in range(overlaps(problem, state, edge, layer, part)):
                sender = state.device[source, state.parts_of[i]]
                made = ends[side, source, state.parts_of[i]]
                ready = max(ready, arrival(problem, now, sender, device, state.bytes_of[i], made))
        end = max(ready, now[device]) + problem.forward[config]
        now[device] = end
        ends[1, layer, part] = end
        state.back[1, layer, part] = end
        state.left[device] -= problem.forward[config]
        earliest = min(earliest, end)
        if end + state.left[device] > limit:
            return False
    return earliest + state.tail[layer] <= limit


@njit(cache=True, error_model="numpy", inline="always")
def backward(problem: Problem, state: State, layer: int, limit: int) -> bool:
    """The backward passes of a layer's parts, the last one first; whether the step can still end by `limit`."""
    config = state.config[layer]
    chain, degree = problem.chain_stride[config], problem.chain_degree[config]
    now, back = state.now, state.back
    for part in range(problem.parts[config] - 1, -1, -1):
        device = state.device[layer, part]
        end = max(back[1, layer, part], now[device]) + problem.backward[config]
        now[device] = end
        back[1, layer, part] = end
        state.left[device] -= problem.backward[config]
        if end + max(state.left[device], state.tail_back[layer]) > limit:
            return False
        if state.local[layer]:
            continue
        if degree > 1 and (part // chain) % degree > 0:
            before = part - chain
            there = arrival(problem, now, device, state.device[layer, before], problem.state_bytes[config], end)
            back[1, layer, before] = max(back[1, layer, before], there)
        for edge in range(problem.first_edge[layer + 1] - 1, problem.first_edge[layer] - 1, -1):
            source = problem.source[edge]
            for i in range(overlaps(problem, state, edge, layer, part)):
                p = state.parts_of[i]
                there = arrival(problem, now, device, state.device[source, p], state.bytes_of[i], end)
                back[1, source, p] = max(back[1, source, p], there)
    return True


@njit(cache=True, error_model="numpy", inline="always")
def stamp_parts(state: State, layer: int, parts: tuple[int, int]) -> int:
    """Stamp the devices of a layer's parts from the first up to the end: when the last of them has its gradients."""
    ready = 0
    for part in range(parts[0], parts[1]):
        ready = max(ready, state.back[1, layer, part])
        state.stamp[state.device[layer, part]] = 1
    return ready


@njit(cache=True, error_model="numpy", inline="always")
def gather(problem: Problem, state: State, layer: int, shard: int) -> int:
    """Stamp the devices that have one shard of a layer's weights: when the last one has its gradients."""
    config, sharer = state.config[layer], problem.sharer[layer]
    shards, stride = problem.shards[config], problem.shard_stride[config]
    ready = 0
    for base in range(shard * stride, problem.parts[config], shards * stride):
        ready = max(ready, stamp_parts(state, layer, (base, base + stride)))
    if sharer >= 0:
        ready = max(ready, stamp_parts(state, sharer, (0, problem.parts[state.config[sharer]])))
    return ready


@njit(cache=True, error_model="numpy", inline="always")
def synchronize(problem: Problem, state: State, layer: int, limit: int) -> bool:
    """Sum the gradients of a layer's weights among the devices that have the same ones, which then update them; of weights that two layers
    share at the first one. Whether the step can still end by `limit`."""
    config, now = state.config[layer], state.now
    size = problem.shard_bytes[config]
    for shard in range(problem.shards[config] if size and problem.owner[layer] == layer else 0):
        start = gather(problem, state, layer, shard)
        count, takes = ring(problem, state, size)
        for place in range(count if takes else 0):
            start = max(start, now[state.out[place]], now[state.into[place]])
        end = start + takes
        for place in range(count):
            device = state.member[place]
            state.updates[device] += problem.update[config]
            if takes:
                now[state.out[place]] = end
                now[state.into[place]] = end
                state.synced[device] = max(state.synced[device], end)
                state.links_left[state.out[place]] -= takes
                state.links_left[state.into[place]] -= takes
                if end + max(state.links_left[state.out[place]], state.links_left[state.into[place]]) > limit:
                    return False
    return True


@njit(cache=True, error_model="numpy", inline="always")
def add_links(problem: Problem, state: State, layer: int, sign: int) -> None:
    """Add the time that sums of a layer's gradients take to that of the links that they take, or take it away."""
    config = state.config[layer]
    size = problem.shard_bytes[config]
    for shard in range(problem.shards[config] if size else 0):
        gather(problem, state, layer, shard)
        count, takes = ring(problem, state, size)
        for place in range(count if takes else 0):
            state.links[state.out[place]] += sign * takes
            state.links[state.into[place]] += sign * takes


@njit(cache=True, error_model="numpy")
def simulate(problem: Problem, state: State, begin: int, limit: int) -> int:
    """Time of a step of the strategy in `state`, in picoseconds; NEVER where it is more than `limit`. The trial of `state` is written, from
    the layer `begin` on, a multiple of EVERY: all before are as accepted. `left` has to be the work of all devices from there."""
    layers, devices = len(problem.shape), problem.level_of.shape[0]
    bounds(problem, state)
    state.now[:] = state.free[0, begin // EVERY]
    for layer in range(begin, layers):
        if layer % EVERY == 0:
            state.free[1, layer // EVERY] = state.now
            state.work[1, layer // EVERY] = state.left
        if not forward(problem, state, layer, begin, limit):
            return NEVER
    for layer in range(begin):
        for part in range(problem.parts[state.config[layer]]):
            state.back[1, layer, part] = state.ends[0, layer, part]
    state.synced[:] = 0
    state.updates[:] = 0
    state.links_left[:] = state.links
    for layer in range(layers - 1, -1, -1):
        if not backward(problem, state, layer, limit):
            return NEVER
        if not synchronize(problem, state, layer, limit):
            return NEVER
    end = 0
    for device in range(devices):
        end = max(end, max(state.now[device], state.synced[device]) + state.updates[device])
    return end if end <= limit else NEVER


@njit(cache=True, error_model="numpy", inline="always")
def add_work(problem: Problem, state: State, layer: int, sign: int) -> None:
    """Add what a layer computes and keeps to its devices' `change` and `grown`, or take it away."""
    config = state.config[layer]
    time = sign * (problem.forward[config] + problem.backward[config])
    for part in range(problem.parts[config]):
        device = state.device[layer, part]
        state.change[device] += time
        state.grown[device] += sign * problem.memory[config]


@njit(cache=True, error_model="numpy")
def start(problem: Problem, state: State) -> int:
    """Simulate the strategy in `state` whole, and accept it: its time, NEVER where its devices do not have the memory."""
    state.links[:] = 0
    state.change[:] = 0
    state.grown[:] = 0
    for layer in range(len(problem.shape)):
        add_work(problem, state, layer, 1)
        find_local(problem, state, layer)
        if problem.owner[layer] == layer:
            add_links(problem, state, layer, 1)
    state.used[:] = state.grown
    state.left[:] = state.change
    state.free[0, 0] = 0
    time = simulate(problem, state, 0, NEVER)
    accept(problem, state, 0)
    return time if state.used.max() <= problem.memory_limit[0] else NEVER


@njit(cache=True, error_model="numpy", inline="always")
def accept(problem: Problem, state: State, begin: int) -> None:
    """What was tried is the strategy from now on."""
    state.ends[0, begin:] = state.ends[1, begin:]
    state.back[0] = state.back[1]
    state.free[0, begin // EVERY :] = state.free[1, begin // EVERY :]
    state.work[0, begin // EVERY :] = state.work[1, begin // EVERY :]


@njit(cache=True, error_model="numpy")
def attempt(
    problem: Problem, state: State, changed: Ints, config: int, devices: Ints, limit: int, from_the_start: bool
) -> int:
    """Give the `changed` layers a configuration and devices: the time of a step if it is at most `limit`, and then it is accepted; else
    NEVER, and all is as before. `from_the_start`: simulate all of it, not from the first changed layer on."""
    state.change[:] = 0
    state.grown[:] = 0
    state.saved_local[:] = state.local
    state.saved_links[:] = state.links
    begin = changed[0]
    for layer in changed:
        add_work(problem, state, layer, -1)
        add_links(problem, state, problem.owner[layer], -1)
        state.saved[layer] = state.config[layer]
        state.saved_device[layer] = state.device[layer]
        begin = min(begin, layer)
        state.config[layer] = problem.first_config[layer] + config
        state.device[layer, : len(devices)] = devices
        add_work(problem, state, layer, 1)
        add_links(problem, state, problem.owner[layer], 1)
    fits = (state.used + state.grown).max() <= problem.memory_limit[0]
    for layer in changed if fits else changed[:0]:
        find_local(problem, state, layer)
        for i in range(problem.first_user[layer], problem.first_user[layer + 1]):
            find_local(problem, state, problem.user[i])
    if from_the_start:
        begin = 0
        for layer in range(len(problem.shape)):
            find_local(problem, state, layer)
    begin -= begin % EVERY
    time = NEVER
    if fits:
        state.left[:] = state.work[0, begin // EVERY] + state.change
        time = simulate(problem, state, begin, limit)
    if time == NEVER:
        for layer in changed:
            state.config[layer] = state.saved[layer]
            state.device[layer] = state.saved_device[layer]
        state.local[:] = state.saved_local
        state.links[:] = state.saved_links
        return NEVER
    accept(problem, state, begin)
    state.used[:] += state.grown
    for place in range(begin // EVERY):
        state.work[0, place] += state.change
    return time


@njit(cache=True, error_model="numpy")
def draw(random: Ints, below: int) -> int:
    """A random integer from 0 to `below` - 1; `random` [1] is the state: Knuth's linear congruences, of which the upper 32 bits are used."""
    random[0] = (int(random[0]) * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
    return (int(random[0]) >> 31) * below >> 32


@njit(cache=True, error_model="numpy")
def place(problem: Problem, random: Ints, parts: int, structured: bool, devices: Ints) -> None:
    """Put so many parts on random devices, into `devices`: each anywhere; or, half of the time or where `structured`, one after the other
    from a random device on, next to each other or spread out. Where `structured`, some devices may get several."""
    count = problem.level_of.shape[0]
    if not structured and draw(random, 2):
        for part in range(parts):
            devices[part] = draw(random, count)
        return
    first, stride, spread = draw(random, count), 1, min(parts, count)
    if structured and draw(random, 4) == 0:
        spread = 1 + draw(random, spread)
    if draw(random, 2):
        stride = count // spread
    if structured:
        first -= first % (spread * stride)
        first += draw(random, stride)
    for part in range(parts):
        devices[part] = (first + part * spread // parts * stride) % count


@njit(cache=True, error_model="numpy")
def propose(
    problem: Problem, state: State, group: Ints, structured: bool, random: Ints, changed: Ints, devices: Ints
) -> tuple[int, int]:
    """Draw a proposal: into `changed` which layers, into `devices` where their parts are. How many layers, and their configuration.

    `structured`: half of the proposals are of all layers of a `group`, and a third copies what a neighbour has.
    """
    layers = len(problem.shape)
    layer = draw(random, layers)
    changed[0], count = layer, 1
    if structured and draw(random, 2):
        count = 0
        for other in range(layers):
            if group[other] == group[layer]:
                changed[count] = other
                count += 1
    first, end = problem.first_config[layer], problem.first_config[layer + 1]
    if structured and draw(random, 3) == 0:
        neighbour = (layer + 1 if draw(random, 2) else layer - 1 + layers) % layers
        like = state.config[neighbour]
        for config in range(first, end):
            if (problem.degrees[config] == problem.degrees[like]).all():
                devices[: problem.parts[like]] = state.device[neighbour, : problem.parts[like]]
                return count, config - first
    config = draw(random, end - first)
    place(problem, random, problem.parts[first + config], structured, devices)
    return count, config


@njit(cache=True, error_model="numpy")
def search(
    problem: Problem,
    state: State,
    group: Ints,
    structured: bool,
    schedule: tuple[float, float],
    seed: int,
    from_the_start: bool,
    best: tuple[Ints, Ints],
    costs: Ints,
) -> int:
    """Metropolis-Hastings from the strategy in `state`: each proposal gives a random layer a random configuration and devices, and is
    taken with probability min(1, exp((before - after) / temperature)), both in picoseconds. The temperature falls geometrically, from
    the first to the second of the `schedule`. `structured`: see `propose`.

    `best` (config [L], device [L, P]): the fastest strategy seen; `costs` [proposals]: its time after each. How many were taken.
    """
    proposals, random = len(costs), np.zeros(1, np.int64)
    random[0] = seed
    for _ in range(4):
        draw(random, 2)
    devices, changed = np.zeros(state.device.shape[1], np.int64), np.zeros(len(problem.shape), np.int64)
    cost = start(problem, state)
    least, taken, temperature = cost, 0, schedule[0]
    best[0][:] = state.config
    best[1][:] = state.device
    ratio = (schedule[1] / schedule[0]) ** (1 / max(1, proposals - 1))
    for step in range(proposals):
        count, config = propose(problem, state, group, structured, random, changed, devices)
        limit = NEVER - 1
        if cost < NEVER:
            u = (draw(random, 1 << 30) + 1) / (1 << 30)
            limit = int(cost - temperature * np.log(u))
        parts = problem.parts[problem.first_config[changed[0]] + config]
        time = attempt(problem, state, changed[:count], config, devices[:parts], limit, from_the_start)
        if time < NEVER:
            cost = time
            taken += 1
            if cost < least:
                least = cost
                best[0][:] = state.config
                best[1][:] = state.device
        costs[step] = least
        temperature *= ratio
    return taken


@njit(cache=True, error_model="numpy")
def sent(problem: Problem, state: State) -> tuple[int, int]:
    """Bytes that devices send in a step of the strategy in `state`: of outputs and of their gradients, and of the gradients of weights, by rings."""
    exchanged = gradients = 0
    for layer in range(len(problem.shape)):
        config = state.config[layer]
        chain, degree = problem.chain_stride[config], problem.chain_degree[config]
        for part in range(problem.parts[config]):
            device = state.device[layer, part]
            if degree > 1 and (part // chain) % degree > 0 and state.device[layer, part - chain] != device:
                exchanged += problem.state_bytes[config]
            for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
                for i in range(overlaps(problem, state, edge, layer, part)):
                    if state.device[problem.source[edge], state.parts_of[i]] != device:
                        exchanged += state.bytes_of[i]
        size = problem.shard_bytes[config]
        if size == 0 or problem.owner[layer] != layer:
            continue
        for shard in range(problem.shards[config]):
            gather(problem, state, layer, shard)
            gradients += 2 * (ring(problem, state, size)[0] - 1) * size
    return 2 * exchanged, gradients
