"""Simulation of a step, compiled by numba where it is installed, and plain Python where it is not.

A rank computes its parts in the order of the program: layers forward, then backward, parts of a layer in their order. A message leaves when
what it carries is made, and when the links that it takes are free of messages before it in that order. Nothing else decides about times, so
that a step is one pass over layers, and what a change of a layer leaves as it was is all before this layer's forward pass.

A layer is local where all that its parts take is made on their own devices: then it is there when these come to the layer. Local layers
behind each other with one part on each of the same devices are a run: their ends differ from those of its first layer by the same time for
all parts, so that a run costs as much as a layer. So do, backward, the layers of a run up to one of which another device needs something.

Times are integers of picoseconds: sums of them are exact, whoever makes them in which order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

try:
    from numba import njit

    # nothing here allocates: without numba's runtime, looking at an array counts no references
    OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}
    compiled: Callable[[Any], Any] = njit(**OPTIONS)
    inlined: Callable[[Any], Any] = njit(inline="always", **OPTIONS)
    # compiled by itself, then inlined by LLVM: one function of all pieces would take it a minute
    piece: Callable[[Any], Any] = njit(forceinline=True, **OPTIONS)
except ImportError:

    def compiled(function: Any) -> Any:
        """Without numba a function is what it was."""
        return function

    inlined = piece = compiled


DIMENSIONS = 4
EVERY = 8  # of so many layers, the first that begins a run is one before which what a simulation has reached is kept
NEVER = 2**62
ROOM = 2**19  # for overlaps of edges that are kept
BEFORE, FORWARD, BACKWARD, TAKEN = range(4)  # where a proposal ended
# of sums that wait to begin as one: of how many bytes, since when their gradients are there, how long they take links at least, and updates
# behind them devices; then the set of devices whose ring is known, and how many they are
SIZE, READY, LEAST, UPDATE, SET, COUNT = range(6)
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
    level_of: Any  # [D, D] the level between two devices
    latency: Any  # [K] picoseconds
    per_byte: Any  # [K] picoseconds, float64
    burst: Any  # [K] picoseconds of bytes that a link lets through at once after a pause
    ring_latency: Any  # [K] picoseconds of each step of a ring, beside its bytes
    ring_hold: Any  # [K] and for how many of them it takes its links
    ring_per_byte: Any  # [K] likewise, float64
    bucket_bytes: Any  # [1] sums of the same devices that follow each other are one, up to so many bytes
    token: Any  # [D] a random number of each device; the exclusive or of some tells their set (Zobrist)
    handling: Any  # [2] picoseconds that a device computes nothing for a message that it sends, and that it receives
    handling_per_byte: Any  # [2] likewise, float64
    handles: Any  # [1] whether one of these is not 0
    out_link: Any  # [K, D] the resource that a message of a level takes out of a device
    in_link: Any  # [K, D] and into it
    resources: Any  # [1] how many: devices, then links
    memory_limit: Any  # [1] bytes of a device
    as_messages: Any  # [1] whether gradients go to one owner of the weights, and weights back, in place of rings


class State(NamedTuple):
    """Where a simulation is kept: P the most parts of a layer, R resources. The first place of [2, ...] is what was accepted last, the second a trial."""

    config: Any  # [L] the strategy: configurations
    device: Any  # [L, P] and the devices of parts
    local: Any  # [L] whether all that its parts take is made where they are
    alone: Any  # [L] whether each of its parts has a device of its own
    follows: Any  # [L] whether these are those of the layer before it
    base: Any  # [2, L, P] ends of forward passes of the first layer of a run
    head: Any  # [2, L] the first layer of the run
    offset: Any  # [2, L] from its ends to those of the layer
    back: Any  # [L, P] when gradients are there, then the ends of backward passes of the last layer of a run
    foot: Any  # [L] the last layer of the run, as far as it is one backward
    back_offset: Any  # [L] from its ends to those of the layer
    mark: Any  # [2, L // EVERY + 1] the layers before which the next two are kept; -1: none
    free: Any  # [2, L // EVERY + 1, R] when resources are free before the layer's forward pass
    work: Any  # [2, L // EVERY + 1, D] computation that a device then still has
    summed: Any  # [L] the set of devices that sum a layer's gradients; 0: each has all of its own; below 0: there are several sets
    used: Any  # [D] bytes
    bytes: Any  # [D] of a strategy that is looked at whole
    tail: Any  # [L] least time from the first end of a layer's forward pass to that of the step, of what was accepted
    tail_back: Any  # [L] the same from any end of its backward pass
    owed: Any  # [2, L // EVERY + 1, R] how long messages of gradients will take links, because of the layers before it
    known: Any  # [E] whether what `overlaps` finds for an edge of the accepted strategy is kept
    list_of: Any  # [E, P + 1] where it begins, for each part of the target
    parts_of: Any  # [ROOM + P] what `overlaps` found: parts
    bytes_of: Any  # [ROOM + P] and how much of each
    at: Any  # [3] where it found the last; how much of the room is taken; and how much was when all were kept
    first: Any  # [4] where a part begins
    now: Any  # [R] when resources are free
    left: Any  # [D] computation that a device still has
    stamp: Any  # [D] whether a device has a shard
    since: Any  # [D] when it has the gradients of it
    member: Any  # [D] the devices that have it
    out: Any  # [D] links from each to the next of a ring
    into: Any  # [D]
    bucket: Any  # [6] sums that wait, to be one
    crossed: Any  # [K] whether a ring has links of a level
    synced: Any  # [D] when the last gradients or weights of a device are there
    updates: Any  # [D] how long its updates take
    links: Any  # [R] how long exchanges of gradients take a link in a step
    links_left: Any  # [R] what of it, and of messages of gradients, is still to come
    change: Any  # [D] of work, by a proposal
    grown: Any  # [D] of bytes
    saved: Any  # [L] configurations before a proposal
    saved_device: Any  # [L, P] and devices
    saved_local: Any  # [L]
    saved_alone: Any  # [L]
    saved_follows: Any  # [L]
    saved_links: Any  # [R]
    saved_summed: Any  # [L]
    saved_known: Any  # [E]
    random: Any  # [2] the state of random numbers
    changed: Any  # [L] layers of a proposal
    chosen: Any  # [L] their configurations
    listed: Any  # [L] layers that are looked at
    seen: Any  # [L] whether one is among them
    proposed: Any  # [P] devices of their parts
    ended: Any  # [4] how many proposals ended BEFORE a simulation, in its FORWARD or BACKWARD passes, or were TAKEN


def state_of(problem: Problem) -> State:
    """Room for the simulation of any strategy."""
    edges = len(problem.source)
    layers, devices, levels = len(problem.shape), problem.level_of.shape[0], len(problem.latency)
    parts, resources, marks = int(problem.parts.max()), int(problem.resources[0]), layers // EVERY + 1
    by_layer = "config local alone follows foot back_offset tail tail_back summed saved saved_summed saved_local saved_alone saved_follows changed chosen listed seen"
    by_device = "used bytes left stamp since member out into synced updates change grown"
    sizes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(by_layer.split(), (layers,)),
        **dict.fromkeys(("device", "saved_device", "back"), (layers, parts)),
        "base": (2, layers, parts),
        **dict.fromkeys(("head", "offset"), (2, layers)),
        "mark": (2, marks),
        "free": (2, marks, resources),
        "work": (2, marks, devices),
        "owed": (2, marks, resources),
        **dict.fromkeys(("known", "saved_known"), (edges,)),
        "list_of": (edges, parts + 1),
        **dict.fromkeys(("parts_of", "bytes_of"), (ROOM + parts,)),
        "at": (3,),
        "proposed": (parts,),
        "first": (DIMENSIONS,),
        **dict.fromkeys(("now", "links", "saved_links", "links_left"), (resources,)),
        **dict.fromkeys(by_device.split(), (devices,)),
        "crossed": (levels,),
        "bucket": (6,),
        "random": (2,),
        "ended": (4,),
    }
    return State(**{name: np.zeros(size, np.int64) for name, size in sizes.items()})


@inlined
def copy(to: Ints, of: Ints) -> None:
    """Copy a row of numbers to the first places of another one, as far as it has as many."""
    for place in range(min(len(to), len(of))):
        to[place] = of[place]


@inlined
def fill(to: Ints, value: int) -> None:
    """Set all numbers of a row."""
    for place in range(len(to)):
        to[place] = value


@inlined
def overlaps(problem: Problem, state: State, edge: int, target: int, part: int) -> int:
    """How many parts of an edge's source have what a part of its target needs; from the first place of `at` on `parts_of` says which, and
    `bytes_of` how much."""
    if state.known[edge]:
        state.at[0] = state.list_of[edge, part]
        return state.list_of[edge, part + 1] - state.list_of[edge, part]
    state.at[0] = ROOM
    source = problem.source[edge]
    of_target, of_source = state.config[target], state.config[source]
    chain, degree = problem.chain_stride[of_target], problem.chain_degree[of_target]
    if problem.first_only[edge] and degree > 1 and (part // chain) % degree > 0:
        return 0
    at = part
    first, parts_of, bytes_of = state.first, state.parts_of[ROOM:], state.bytes_of[ROOM:]
    for dimension in range(DIMENSIONS - 1, -1, -1):
        degree = problem.degrees[of_target, dimension]
        first[dimension] = 0
        if degree > 1:
            first[dimension] = at % degree * problem.chunk[of_target, dimension]
            at //= degree
    found = 1
    parts_of[0] = 0
    bytes_of[0] = problem.element_bytes[edge]
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
                bytes_of[i] *= high - low
            continue
        begin, end = low // chunk, (high - 1) // chunk
        count = end - begin + 1
        # every part found so far, times the places of this dimension; from behind, so that nothing is overwritten
        for i in range(found - 1, -1, -1):
            base, size = parts_of[i], bytes_of[i]
            for j in range(count - 1, -1, -1):
                there = begin + j
                parts_of[i * count + j] = base * degree + there
                bytes_of[i * count + j] = size * (min(high, (there + 1) * chunk) - max(low, there * chunk))
        found *= count
    return found


@inlined
def keep(problem: Problem, state: State, edge: int, target: int) -> None:
    """Keep what `overlaps` finds for an edge, where there is room for so much."""
    at = state.at[1]
    if at + problem.parts[state.config[target]] * problem.parts[state.config[problem.source[edge]]] > ROOM:
        return
    for part in range(problem.parts[state.config[target]]):
        state.list_of[edge, part] = at
        found = overlaps(problem, state, edge, target, part)
        for i in range(found):
            state.parts_of[at] = state.parts_of[ROOM + i]
            state.bytes_of[at] = state.bytes_of[ROOM + i]
            at += 1
        state.list_of[edge, part + 1] = at
    state.at[1] = at
    state.known[edge] = 1


@inlined
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


@piece
def is_local(problem: Problem, state: State, layer: int) -> bool:
    """Whether all that a layer's parts take is made on their own devices."""
    config = state.config[layer]
    chain, degree = problem.chain_stride[config], problem.chain_degree[config]
    if degree > 1:
        for part in range(problem.parts[config]):
            if (part // chain) % degree > 0 and state.device[layer, part - chain] != state.device[layer, part]:
                return False
    for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
        source = problem.source[edge]
        alike = is_alike(problem, state, edge, layer)
        for part in range(problem.parts[config]):
            device = state.device[layer, part]
            if alike:
                if state.device[source, part] != device:
                    return False
                continue
            for i in range(overlaps(problem, state, edge, layer, part)):
                if state.device[source, state.parts_of[state.at[0] + i]] != device:
                    return False
    return True


@inlined
def is_alone(problem: Problem, state: State, layer: int) -> bool:
    """Whether each of a layer's parts has a device of its own."""
    parts, stamped, once = problem.parts[state.config[layer]], 0, True
    for part in range(parts):
        device = state.device[layer, part]
        if state.stamp[device]:
            once = False
            break
        state.stamp[device] = 1
        stamped += 1
    for part in range(stamped):
        state.stamp[state.device[layer, part]] = 0
    return once


@inlined
def is_following(problem: Problem, state: State, layer: int) -> bool:
    """Whether a layer's parts, each alone, have the devices of those of the layer before it."""
    if layer == 0 or not state.alone[layer]:
        return False
    parts = problem.parts[state.config[layer]]
    if parts != problem.parts[state.config[layer - 1]]:
        return False
    for part in range(parts):
        if state.device[layer, part] != state.device[layer - 1, part]:
            return False
    return parts > 0


@inlined
def arrival(problem: Problem, state: State, sender: int, receiver: int, size: int, ready: int, forwards: bool) -> int:
    """When a message is there. Each of its two links is taken for as long as its bytes take, less what it lets through at once; bytes that wait for the
    second one do not keep the first. Its latency comes behind. Beside that both devices handle it. What it carries forwards has gradients
    that will come back."""
    if sender == receiver:
        return ready
    now, left, level = state.now, state.links_left, problem.level_of[sender, receiver]
    out = problem.out_link[level, sender]
    into = problem.in_link[level, receiver]
    takes = max(1, int(size * problem.per_byte[level]))
    now[out] = max(ready - problem.burst[level], now[out]) + takes
    gone = max(now[out], ready)
    now[into] = max(gone - takes - problem.burst[level], now[into]) + takes
    now[sender] += problem.handling[0] + int(size * problem.handling_per_byte[0])
    now[receiver] += problem.handling[1] + int(size * problem.handling_per_byte[1])
    if forwards:
        left[problem.out_link[level, receiver]] += takes
        left[problem.in_link[level, sender]] += takes
    else:
        left[out] -= takes
        left[into] -= takes
    return max(gone, now[into]) + problem.latency[level]


@inlined
def overdue(problem: Problem, state: State, sender: int, receiver: int) -> int:
    """The earliest time by which the links between two devices can have carried all that is left."""
    level = problem.level_of[sender, receiver]
    out = problem.out_link[level, sender]
    into = problem.in_link[level, receiver]
    return max(state.now[out] + state.links_left[out], state.now[into] + state.links_left[into])


@inlined
def ring_of(problem: Problem, state: State, count: int) -> None:
    """Make a ring of `member`, in the order of their numbers: the links between them into `out` and `into`, and `crossed`."""
    member = state.member
    for i in range(1, count):
        device, at = member[i], i
        while at > 0 and member[at - 1] > device:
            member[at] = member[at - 1]
            at -= 1
        member[at] = device
    fill(state.crossed, 0)
    for place in range(count if count > 1 else 0):
        sender, receiver = member[place], member[place + 1 if place + 1 < count else 0]
        level = problem.level_of[sender, receiver]
        state.crossed[level] = 1
        state.out[place] = problem.out_link[level, sender]
        state.into[place] = problem.in_link[level, receiver]


@inlined
def ring_least(problem: Problem, state: State, count: int, size: int) -> int:
    """How long a ring takes its links to sum so many bytes, at least, whatever goes with them."""
    slowest, chunk = 0, size / count
    for level in range(len(state.crossed)):
        if state.crossed[level]:
            slowest = max(slowest, int(chunk * problem.ring_per_byte[level]) - 1)
    return 2 * (count - 1) * slowest


@inlined
def ring_step(takes: int, latency: int, burst: int) -> int:
    """How long a step of a ring takes: its bytes behind its latency, or, as far as its links let them through at once, at the same time."""
    return max(latency, takes + latency - min(latency, burst))


@inlined
def ring_time(problem: Problem, state: State, count: int, size: int, latency: Ints) -> int:
    """How long a ring that sums so many bytes takes, or takes its links, by the `latency` of levels. In 2 (k - 1) steps each device hands a
    k-th to the next."""
    slowest, chunk = 0, size / count
    for level in range(len(state.crossed)):
        if state.crossed[level]:
            takes = max(1, int(chunk * problem.ring_per_byte[level]))
            slowest = max(slowest, ring_step(takes, latency[level], problem.burst[level]))
    return 2 * (count - 1) * slowest


@inlined
def ring_burst(problem: Problem, state: State) -> int:
    """How much all links of a ring let through at once."""
    least = NEVER
    for level in range(len(state.crossed)):
        if state.crossed[level]:
            least = min(least, problem.burst[level])
    return least


@inlined
def ring_handling(problem: Problem, count: int, size: int) -> int:
    """How long a sum around a ring keeps each device from computing."""
    handling, per_byte = problem.handling, problem.handling_per_byte
    return 2 * (count - 1) * (handling[0] + handling[1] + int(size / count * (per_byte[0] + per_byte[1])))


@inlined
def gather(problem: Problem, state: State, layer: int, shard: int) -> int:
    """The devices that have one shard of a layer's weights, into `member`, in the order of parts, and when each has its gradients, into
    `since`: how many devices."""
    config, sharer, count = state.config[layer], problem.sharer[layer], 0
    state.bucket[SET] = 0
    shards, stride = problem.shards[config], problem.shard_stride[config]
    for whose in range(2):
        user, begin, step, run = layer, shard * stride, shards * stride, stride
        if whose:
            if sharer < 0:
                break
            user, begin, step, run = sharer, 0, 1, 1
        foot, offset = state.foot[user], state.back_offset[user]
        for base in range(begin, problem.parts[state.config[user]], step):
            for part in range(base, base + run):
                device, time = state.device[user, part], state.back[foot, part] + offset
                if state.stamp[device]:
                    state.since[device] = max(state.since[device], time)
                else:
                    state.stamp[device] = 1
                    state.since[device] = time
                    state.member[count] = device
                    count += 1
    for place in range(count):
        state.stamp[state.member[place]] = 0
    return count


@inlined
def add_message(problem: Problem, links: Ints, sender: int, receiver: int, size: int, sign: int) -> None:
    """Add the time that a message takes its links, or take it away."""
    level = problem.level_of[sender, receiver]
    takes = sign * max(1, int(size * problem.per_byte[level]))
    links[problem.out_link[level, sender]] += takes
    links[problem.in_link[level, receiver]] += takes


@piece
def add_links(problem: Problem, state: State, layer: int, sign: int) -> None:
    """Add the time that the exchange of a layer's gradients takes links, at least, to `links`, or take it away; and find out who sums them."""
    config = state.config[layer]
    size = problem.shard_bytes[config]
    state.summed[layer] = 0
    for shard in range(problem.shards[config] if size else 0):
        count = gather(problem, state, layer, shard)
        if count == 1:
            continue
        state.summed[layer] = -1
        if problem.shards[config] == 1 and problem.sharer[layer] < 0 and not problem.as_messages[0]:
            state.summed[layer] = 0
            for place in range(count):
                state.summed[layer] ^= problem.token[state.member[place]]
        if problem.as_messages[0]:
            for place in range(1, count):
                add_message(problem, state.links, state.member[place], state.member[0], size, sign)
                add_message(problem, state.links, state.member[0], state.member[place], size, sign)
            continue
        ring_of(problem, state, count)
        takes = sign * ring_least(problem, state, count, size)
        for place in range(count):
            state.links[state.out[place]] += takes
            state.links[state.into[place]] += takes


@inlined
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


@piece
def forward_layer(problem: Problem, state: State, layer: int, begin: int, limit: int) -> bool:
    """The forward passes of the parts of a layer; whether the step can still end by `limit`. Layers before `begin` are as accepted."""
    config, now = state.config[layer], state.now
    time = problem.forward[config]
    chain, degree = problem.chain_stride[config], problem.chain_degree[config]
    local = state.local[layer]
    for part in range(problem.parts[config]):
        device = state.device[layer, part]
        ready = now[device]
        if not local:
            latest = limit - state.left[device]
            if degree > 1 and (part // chain) % degree > 0:
                before = part - chain
                sender, size, made = (
                    state.device[layer, before],
                    problem.state_bytes[config],
                    state.base[1, layer, before],
                )
                ready = max(ready, arrival(problem, state, sender, device, size, made, True))
            for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
                source = problem.source[edge]
                side = 1 if source >= begin else 0
                head, offset = state.head[side, source], state.offset[side, source]
                found = overlaps(problem, state, edge, layer, part)
                for i in range(state.at[0], state.at[0] + found):
                    p = state.parts_of[i]
                    sender, made = state.device[source, p], state.base[side, head, p] + offset
                    ready = max(ready, arrival(problem, state, sender, device, state.bytes_of[i], made, True))
                    if ready > latest:
                        return False
        end = max(ready, now[device]) + time
        now[device] = end
        state.base[1, layer, part] = end
        state.left[device] -= time
    return True


@piece
def forward(problem: Problem, state: State, begin: int, slack: int, limit: int) -> bool:
    """All forward passes from the layer `begin` on; whether the step can still end by `limit`. `slack`: by how much a bound of `tail` may be too
    high."""
    layers, now, left, earliest = len(problem.shape), state.now, state.left, NEVER
    for mark in range(begin // EVERY, state.mark.shape[1]):
        state.mark[1, mark] = -1
    layer = begin
    while layer < layers:
        mark = layer // EVERY
        if state.mark[1, mark] < 0:
            state.mark[1, mark] = layer
            copy(state.free[1, mark], now)
            copy(state.work[1, mark], left)
            copy(state.owed[1, mark], state.links_left)
        if not forward_layer(problem, state, layer, begin, limit):
            return False
        head, offset = layer, 0
        state.head[1, head] = head
        state.offset[1, head] = 0
        layer += 1
        while layer < layers and state.follows[layer] and state.local[layer]:
            offset += problem.forward[state.config[layer]]
            state.head[1, layer] = head
            state.offset[1, layer] = offset
            layer += 1
        earliest = NEVER
        for part in range(problem.parts[state.config[head]]):
            device = state.device[head, part]
            now[device] += offset
            left[device] -= offset
            earliest = min(earliest, state.base[1, head, part])
            if now[device] + left[device] > limit:
                return False
        earliest += offset
        if earliest + state.tail[layer - 1] - slack > limit:
            return False
    earliest += problem.backward[state.config[layers - 1]]
    most = 0
    for level in range(len(problem.burst)):
        most = max(most, problem.burst[level])
    earliest -= 2 * most
    for resource in range(len(now)):
        state.links_left[resource] += state.links[resource]
        if state.links_left[resource] and max(now[resource], earliest) + state.links_left[resource] > limit:
            return False
    return True


@inlined
def send_back(problem: Problem, state: State, layer: int, part: int, end: int, slack: int, limit: int) -> bool:
    """Send the gradients that a part has made by `end` to the parts that made what it took; whether the step can still end by `limit`."""
    config, back = state.config[layer], state.back
    device = state.device[layer, part]
    chain, degree = problem.chain_stride[config], problem.chain_degree[config]
    if degree > 1 and (part // chain) % degree > 0:
        before = part - chain
        receiver, size = state.device[layer, before], problem.state_bytes[config]
        back[layer, before] = max(back[layer, before], arrival(problem, state, device, receiver, size, end, False))
    for edge in range(problem.first_edge[layer + 1] - 1, problem.first_edge[layer] - 1, -1):
        source = problem.source[edge]
        latest = limit - problem.backward[state.config[source]] - state.tail_back[source] + slack
        found = overlaps(problem, state, edge, layer, part)
        for i in range(state.at[0], state.at[0] + found):
            p = state.parts_of[i]
            receiver = state.device[source, p]
            there = arrival(problem, state, device, receiver, state.bytes_of[i], end, False)
            back[source, p] = max(back[source, p], there)
            if there > latest or overdue(problem, state, device, receiver) > limit:
                return False
    return True


@inlined
def to_owner(problem: Problem, state: State, count: int, size: int, update: int, limit: int) -> bool:
    """Send the gradients of all members to the first one, which updates the weights and sends them back; whether the step can still end by
    `limit`."""
    member, owner = state.member, state.member[0]
    ready = state.since[owner]
    for place in range(1, count):
        ready = max(ready, arrival(problem, state, member[place], owner, size, state.since[member[place]], False))
    ready += update
    state.synced[owner] = max(state.synced[owner], ready)
    for place in range(1, count):
        there = arrival(problem, state, owner, member[place], size, ready, False)
        state.synced[member[place]] = max(state.synced[member[place]], there)
        if max(there, overdue(problem, state, owner, member[place])) > limit:
            return False
    return True


@inlined
def around(problem: Problem, state: State, count: int, size: int, ready: int, least: int, limit: int) -> bool:
    """Sum the `ready` gradients of all members around their ring, of which `least` was among `links`; whether the step can still end by `limit`."""
    now, out, into, left = state.now, state.out, state.into, state.links_left
    holds = ring_time(problem, state, count, size, problem.ring_hold)
    takes = ring_time(problem, state, count, size, problem.ring_latency)
    start = ready - min(least, ring_burst(problem, state))
    for place in range(count):
        start = max(start, now[out[place]], now[into[place]])
    end, handled = start + holds, ring_handling(problem, count, size)
    there = max(start + max(takes, holds), ready + ring_time(problem, state, count, 0, problem.ring_latency))
    for place in range(count):
        device = state.member[place]
        state.synced[device] = max(state.synced[device], there)
        now[device] += handled
        now[out[place]] = end
        now[into[place]] = end
        left[out[place]] -= least
        left[into[place]] -= least
        if max(there, end + max(left[out[place]], left[into[place]])) > limit:
            return False
    return True


@piece
def synchronize(problem: Problem, state: State, layer: int, limit: int) -> bool:
    """Exchange the gradients of a layer's weights among the devices that have the same ones; of weights that two layers share at the first
    one. Whether the step can still end by `limit`."""
    config = state.config[layer]
    size, update = problem.shard_bytes[config], problem.update[config]
    for shard in range(problem.shards[config]):
        count, ready = gather(problem, state, layer, shard), 0
        if count > 1 and problem.as_messages[0]:
            if not to_owner(problem, state, count, size, update, limit):
                return False
            continue
        for place in range(count):
            state.updates[state.member[place]] += update
            ready = max(ready, state.since[state.member[place]])
        if count > 1:
            ring_of(problem, state, count)
            if not around(problem, state, count, size, ready, ring_least(problem, state, count, size), limit):
                return False
    return True


@inlined
def is_asked(problem: Problem, state: State, layer: int) -> bool:
    """Whether a message may bring gradients to a layer."""
    if not state.local[layer] and problem.chain_degree[state.config[layer]] > 1:
        return True
    for i in range(problem.first_user[layer], problem.first_user[layer + 1]):
        if not state.local[problem.user[i]]:
            return True
    return False


@piece
def backward_layer(problem: Problem, state: State, layer: int, slack: int, limit: int) -> bool:
    """The backward passes of a layer's parts, the last one first, and the messages behind them; whether the step can still end by `limit`. Of a
    layer that is not the last one of its run, messages alone."""
    now, left, back = state.now, state.left, state.back
    config, foot, offset = state.config[layer], state.foot[layer], state.back_offset[layer]
    time, asked = problem.backward[config], is_asked(problem, state, layer)
    for part in range(problem.parts[config] - 1, -1, -1):
        device = state.device[layer, part]
        if layer == foot:
            end = max(now[device], back[layer, part] if asked else 0) + time
            now[device] = end
            back[layer, part] = end
            left[device] -= time
            if end + max(left[device], state.tail_back[layer] - slack) > limit:
                return False
        end = back[foot, part] + offset
        if not state.local[layer] and not send_back(problem, state, layer, part, end, slack, limit):
            return False
    return True


@inlined
def add_sum(problem: Problem, state: State, layer: int, ready: int) -> None:
    """Let the sum of a layer's gradients, which are `ready`, wait with those of the layers before it in a backward pass."""
    bucket, config = state.bucket, state.config[layer]
    if bucket[SET] != state.summed[layer]:
        count = gather(problem, state, layer, 0)
        ring_of(problem, state, count)
        bucket[SET] = state.summed[layer]
        bucket[COUNT] = count
    size = problem.shard_bytes[config]
    bucket[SIZE] += size
    bucket[READY] = max(bucket[READY], ready)
    bucket[LEAST] += ring_least(problem, state, bucket[COUNT], size)
    bucket[UPDATE] += problem.update[config]


@inlined
def is_last(problem: Problem, state: State, layer: int) -> bool:
    """Whether sums that wait are to begin: they have enough bytes, or other devices sum the gradients of the next layer that has some."""
    if state.bucket[SIZE] >= problem.bucket_bytes[0]:
        return True
    below = layer - 1
    while below >= 0 and state.summed[below] == 0:
        below -= 1
    return below < 0 or state.summed[below] != state.summed[layer]


@inlined
def begin_sums(problem: Problem, state: State, limit: int) -> bool:
    """Sum what waits around the ring that is known; whether the step can still end by `limit`."""
    bucket = state.bucket
    for place in range(bucket[COUNT]):
        state.updates[state.member[place]] += bucket[UPDATE]
    done = around(problem, state, bucket[COUNT], bucket[SIZE], bucket[READY], bucket[LEAST], limit)
    bucket[SIZE] = bucket[READY] = bucket[LEAST] = bucket[UPDATE] = 0
    return done


@inlined
def end_run(problem: Problem, state: State, layer: int, offset: int, slack: int, limit: int) -> bool:
    """Let the devices of a run compute for so long behind its last layer, up to `layer`, its first; whether the step can still end by `limit`."""
    now, left = state.now, state.left
    for part in range(problem.parts[state.config[layer]] if offset else 0):
        device = state.device[layer, part]
        now[device] += offset
        left[device] -= offset
        if now[device] + max(left[device], state.tail_back[layer] - slack) > limit:
            return False
    return True


@piece
def backward(problem: Problem, state: State, slack: int, limit: int) -> bool:
    """All backward passes, and exchanges of gradients; whether the step can still end by `limit`. `slack`: as of `forward`."""
    layer, latest = len(problem.shape) - 1, 0
    foot, offset, computed = layer, 0, 0
    fill(state.bucket, 0)
    while layer >= 0:
        config, heard, summed = state.config[layer], layer == foot or not state.local[layer], state.summed[layer]
        parts = problem.parts[config]
        size = problem.shard_bytes[config] if problem.owner[layer] == layer else 0
        state.foot[layer] = foot
        state.back_offset[layer] = offset
        if heard and not backward_layer(problem, state, layer, slack, limit):
            return False
        if layer == foot:
            latest = 0
            for part in range(parts):
                latest = max(latest, state.back[layer, part])
        if size > 0 and summed <= 0 and not synchronize(problem, state, layer, limit):
            return False
        if size > 0 and summed > 0:
            add_sum(problem, state, layer, latest + offset)
            if is_last(problem, state, layer):
                offset += ring_handling(problem, state.bucket[COUNT], state.bucket[SIZE])
                if not begin_sums(problem, state, limit):
                    return False
        goes_on = size == 0 or summed >= 0 or not problem.handles[0]
        if goes_on and state.follows[layer] and state.local[layer] and not is_asked(problem, state, layer - 1):
            layer -= 1
            offset += problem.backward[state.config[layer]]
            computed += problem.backward[state.config[layer]]
            continue
        if not end_run(problem, state, layer, computed, slack, limit):
            return False
        layer -= 1
        foot, offset, computed = layer, 0, 0
    return True


@inlined
def simulate(problem: Problem, state: State, mark: int, slack: int, limit: int) -> int:
    """Time of a step of the strategy in `state`, in picoseconds; NEVER where it is more than `limit`, and then `ended` says where that was
    seen. The trial of `state` is written, from this `mark` on: all before it is as accepted. `left` has to be the work of all devices from there."""
    begin = state.mark[0, mark]
    copy(state.now, state.free[0, mark])
    copy(state.links_left, state.owed[0, mark])
    if not forward(problem, state, begin, slack, limit):
        state.ended[FORWARD] += 1
        return NEVER
    for layer in range(len(problem.shape)):
        if not state.local[layer]:
            if problem.chain_degree[state.config[layer]] > 1:
                fill(state.back[layer], 0)
            for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
                fill(state.back[problem.source[edge]], 0)
    fill(state.synced, 0)
    fill(state.updates, 0)
    end = NEVER
    if backward(problem, state, slack, limit):
        end = 0
        for device in range(len(state.synced)):
            end = max(end, max(state.now[device], state.synced[device]) + state.updates[device])
    if end > limit or end == NEVER:
        state.ended[BACKWARD] += 1
        return NEVER
    return end


@piece
def accept(problem: Problem, state: State, mark: int) -> None:
    """What was tried is the strategy from now on."""
    for layer in range(state.mark[0, mark], len(problem.shape)):
        head = state.head[1, layer]
        state.head[0, layer] = head
        state.offset[0, layer] = state.offset[1, layer]
        for part in range(problem.parts[state.config[layer]] if head == layer else 0):
            state.base[0, layer, part] = state.base[1, layer, part]
    for place in range(mark, state.mark.shape[1]):
        state.mark[0, place] = state.mark[1, place]
        if state.mark[1, place] >= 0:
            copy(state.free[0, place], state.free[1, place])
            copy(state.work[0, place], state.work[1, place])
            copy(state.owed[0, place], state.owed[1, place])
    bounds(problem, state)


@piece
def keep_all(problem: Problem, state: State) -> None:
    """`keep` what is new of the strategy; all of it anew where half of the room was taken since that was done last."""
    if state.at[1] - state.at[2] > ROOM // 2:
        state.at[1] = state.at[2] = 0
        fill(state.known, 0)
    for layer in range(len(problem.shape)):
        if not state.local[layer]:
            for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
                if not state.known[edge]:
                    keep(problem, state, edge, layer)
    if state.at[2] == 0:
        state.at[2] = state.at[1]


@inlined
def add_work(problem: Problem, config: int, devices: Ints, sign: int, work: Ints, held: Ints) -> None:
    """Add what a layer of a configuration computes and keeps to `work` and `held` of its devices, or take it away."""
    time = sign * (problem.forward[config] + problem.backward[config])
    memory = sign * problem.memory[config]
    for part in range(problem.parts[config]):
        work[devices[part]] += time
        held[devices[part]] += memory


@inlined
def change(problem: Problem, state: State, i: int) -> None:
    """Give one of the `changed` layers what was `chosen` and the `proposed` devices."""
    layer = state.changed[i]
    state.saved[layer] = state.config[layer]
    copy(state.saved_device[layer], state.device[layer])
    state.config[layer] = state.chosen[i]
    copy(state.device[layer], state.proposed)
    for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
        state.known[edge] = 0
    for at in range(problem.first_user[layer], problem.first_user[layer + 1]):
        user = problem.user[at]
        for edge in range(problem.first_edge[user], problem.first_edge[user + 1]):
            state.known[edge] = state.known[edge] and problem.source[edge] != layer


@piece
def change_all(problem: Problem, state: State, count: int, whole: bool) -> None:
    """`change` the `changed` layers, and `links` with them, one after the other; where `whole`, make `links`, `left` and `bytes` of all layers."""
    layers = len(problem.shape)
    if whole:
        for i in range(count):
            change(problem, state, i)
        fill(state.known, 0)
        fill(state.links, 0)
        fill(state.left, 0)
        fill(state.bytes, 0)
        for layer in range(layers):
            add_work(problem, state.config[layer], state.device[layer], 1, state.left, state.bytes)
    for i in range(layers if whole else 2 * count):
        layer, sign = (i, 1) if whole else (state.changed[i // 2], 2 * (i % 2) - 1)
        if not whole and sign > 0:
            change(problem, state, i // 2)
        if not whole or problem.owner[layer] == layer:
            add_links(problem, state, problem.owner[layer], sign)


@inlined
def listed(problem: Problem, state: State, count: int, whole: bool) -> int:
    """Into `listed` the `changed` layers and those that take what these make, each once, or all where `whole`; how many."""
    layers, found = len(problem.shape), 0
    for i in range(layers if whole else count):
        layer = i if whole else state.changed[i]
        first = problem.first_user[layer]
        for at in range(first - 1, first if whole else problem.first_user[layer + 1]):
            one = layer if at < first else problem.user[at]
            if not state.seen[one]:
                state.seen[one] = 1
                state.listed[found] = one
                found += 1
    for i in range(found):
        state.seen[state.listed[i]] = 0
    return found


@piece
def look(problem: Problem, state: State, count: int) -> None:
    """Find out what is `local`, `alone`, and `follows` among the `listed` layers and those behind them."""
    for i in range(count):
        layer = state.listed[i]
        state.local[layer] = is_local(problem, state, layer)
        state.alone[layer] = is_alone(problem, state, layer)
    for i in range(2 * count):
        layer = state.listed[i // 2] + i % 2
        if layer < len(problem.shape):
            state.follows[layer] = is_following(problem, state, layer)


@inlined
def weigh(problem: Problem, state: State, count: int) -> int:
    """Make `change` and `grown` of a proposal: by how much it can shorten sums of computation along the model, at most."""
    fill(state.change, 0)
    fill(state.grown, 0)
    slack = 0
    for i in range(count):
        layer = state.changed[i]
        before, after = state.config[layer], state.chosen[i]
        add_work(problem, before, state.device[layer], -1, state.change, state.grown)
        add_work(problem, after, state.proposed, 1, state.change, state.grown)
        gained = problem.forward[before] + problem.backward[before] - problem.forward[after] - problem.backward[after]
        slack += max(0, gained)
    return slack


@inlined
def can_end(problem: Problem, state: State, mark: int, limit: int) -> bool:
    """Whether all devices have the memory for what is `grown`, and can end their work with its `change` by `limit`."""
    for device in range(len(state.used)):
        if state.used[device] + state.grown[device] > problem.memory_limit[0]:
            return False
        if state.free[0, mark, device] + state.work[0, mark, device] + state.change[device] > limit:
            return False
    return True


@inlined
def mark_before(state: State, count: int) -> int:
    """The last mark that is not behind a `changed` layer."""
    begin = NEVER
    for i in range(count):
        begin = min(begin, state.changed[i])
    mark = begin // EVERY
    while state.mark[0, mark] < 0 or state.mark[0, mark] > begin:
        mark -= 1
    return mark


@compiled
def try_change(problem: Problem, state: State, count: int, whole: bool, limit: int) -> int:
    """Give the `changed` layers what was `chosen` and the `proposed` devices: the time of a step if it is at most `limit`, and then it is
    accepted; else NEVER, and all is as before. `whole`: look at all of the strategy, and simulate all of it, whatever the limit."""
    slack = weigh(problem, state, count)
    mark = 0 if whole else mark_before(state, count)
    if count and not can_end(problem, state, mark, NEVER if whole else limit):
        state.ended[BEFORE] += 1
        return NEVER
    copy(state.saved_local, state.local)
    copy(state.saved_alone, state.alone)
    copy(state.saved_follows, state.follows)
    copy(state.saved_links, state.links)
    copy(state.saved_summed, state.summed)
    copy(state.saved_known, state.known)
    change_all(problem, state, count, whole)
    if not whole:
        for device in range(len(state.left)):
            state.left[device] = state.work[0, mark, device] + state.change[device]
    look(problem, state, listed(problem, state, count, whole))
    time = simulate(problem, state, mark, slack, NEVER if whole else limit)
    if time > limit or time == NEVER:
        for i in range(count):
            layer = state.changed[i]
            state.config[layer] = state.saved[layer]
            copy(state.device[layer], state.saved_device[layer])
        copy(state.local, state.saved_local)
        copy(state.alone, state.saved_alone)
        copy(state.follows, state.saved_follows)
        copy(state.links, state.saved_links)
        copy(state.summed, state.saved_summed)
        copy(state.known, state.saved_known)
        return NEVER
    state.ended[TAKEN] += 1
    accept(problem, state, mark)
    if not whole:
        keep_all(problem, state)
    for device in range(len(state.used)):
        state.used[device] += state.grown[device]
    for place in range(mark):
        for device in range(len(state.used) if state.mark[0, place] >= 0 else 0):
            state.work[0, place, device] += state.change[device]
    return time


def start(problem: Problem, state: State) -> int:
    """Simulate the strategy in `state` whole, and accept it: its time, NEVER where its devices do not have the memory."""
    state.free[0, 0] = state.owed[0, 0] = state.mark[0, 0] = 0
    state.at[1] = state.at[2] = 0
    time = try_change(problem, state, 0, True, NEVER)
    state.used[:] = state.bytes
    return time if state.used.max() <= problem.memory_limit[0] else NEVER


def attempt(problem: Problem, state: State, changed: Ints, config: int, devices: Ints, limit: int, whole: bool) -> int:
    """`try_change` of some layers to one of their configurations and devices."""
    state.changed[: len(changed)] = changed
    state.chosen[: len(changed)] = problem.first_config[changed] + config
    state.proposed[: len(devices)] = devices
    return try_change(problem, state, len(changed), whole, limit)


@compiled
def timeline(problem: Problem, state: State, ends: Ints, back: Ints) -> None:
    """When parts end their forward passes and their backward passes, both [L, P], of the strategy that was accepted by the last call."""
    for layer in range(len(problem.shape)):
        for part in range(problem.parts[state.config[layer]]):
            ends[layer, part] = state.base[0, state.head[0, layer], part] + state.offset[0, layer]
            back[layer, part] = state.back[state.foot[layer], part] + state.back_offset[layer]


@inlined
def draw(random: Ints, below: int) -> int:
    """A random integer from 0 to `below` - 1, at most 2**31; `random` [2] is the state. L'Ecuyer (CACM 1988): two congruences, and no product of
    more than 63 bits."""
    random[0] = random[0] * 40014 % 2147483563
    random[1] = random[1] * 40692 % 2147483399
    return (random[0] + random[1]) % 2147483563 * below // 2147483563


@inlined
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


@inlined
def has_degrees(problem: Problem, config: int, like: int) -> bool:
    """Whether two configurations cut alike."""
    for dimension in range(DIMENSIONS):
        if problem.degrees[config, dimension] != problem.degrees[like, dimension]:
            return False
    return True


@inlined
def config_like(problem: Problem, layer: int, like: int) -> int:
    """The configuration of a layer that cuts as another layer's; -1 where there is none."""
    for config in range(problem.first_config[layer], problem.first_config[layer + 1]):
        if has_degrees(problem, config, like):
            return config
    return -1


@inlined
def is_same(problem: Problem, state: State, layer: int) -> bool:
    """Whether a layer is cut as the one before it, on the same devices, each part alone."""
    return state.follows[layer] and has_degrees(problem, state.config[layer], state.config[layer - 1])


@inlined
def choose(problem: Problem, state: State, group: Ints, layer: int, which: int) -> int:
    """Into `changed` the layers that change with one: those next to each other that are the same (0), all of its `group` (1), or itself alone;
    how many."""
    layers, first, count = len(problem.shape), layer, 0
    while which == 0 and is_same(problem, state, first):
        first -= 1
    for other in range(0 if which == 1 else first, layers):
        if which == 0 and other > layer and not is_same(problem, state, other):
            break
        if which == 1 and group[other] != group[layer]:
            continue
        state.changed[count] = other
        count += 1
        if which > 1:
            break
    return count


@piece
def propose(problem: Problem, state: State, group: Ints, structured: bool) -> int:
    """Draw a proposal: into `changed` which layers, into `chosen` their configurations, into `proposed` where their parts are. How many layers.

    `structured`: a third of the proposals are of all layers of a `group`, a third of all next to each other that are the same, and a third copies
    what a neighbour has.
    """
    layers, random = len(problem.shape), state.random
    layer = draw(random, layers)
    count = choose(problem, state, group, layer, draw(random, 3) if structured else 2)
    first = problem.first_config[layer]
    config = -1
    if structured and draw(random, 3) == 0:
        neighbour = (layer + 1 if draw(random, 2) else layer - 1 + layers) % layers
        config = config_like(problem, layer, state.config[neighbour])
        if config >= 0:
            copy(state.proposed, state.device[neighbour])
    if config < 0:
        config = first + draw(random, problem.first_config[layer + 1] - first)
        place(problem, random, problem.parts[config], structured, state.proposed)
    kept = 0
    for i in range(count):
        like = config_like(problem, state.changed[i], config)
        if like >= 0:
            state.changed[kept] = state.changed[i]
            state.chosen[kept] = like
            kept += 1
    return kept


@compiled
def search(
    problem: Problem,
    state: State,
    group: Ints,
    structured: bool,
    schedule: tuple[float, float],
    seed: int,
    whole: bool,
    cost: int,
    best: tuple[Ints, Ints],
    costs: Ints,
) -> int:
    """Metropolis-Hastings from the strategy in `state`, which was accepted with a `cost`: each proposal gives a random layer a random configuration and devices, and is
    taken with probability min(1, exp((before - after) / temperature)), both in picoseconds. The temperature falls geometrically, from
    the first to the second of the `schedule`. `structured`: see `propose`; `whole`: see `try_change`.

    `best` (config [L], device [L, P]): the fastest strategy seen; `costs` [proposals]: its time after each; `ended` of the state is counted
    anew. Its time.
    """
    proposals, layers = len(costs), len(problem.shape)
    state.random[0] = state.random[1] = 1 + seed % 2147483398
    for _ in range(4):
        draw(state.random, 2)
    least, temperature = cost, schedule[0]
    fill(state.ended, 0)
    for layer in range(layers):
        best[0][layer] = state.config[layer]
        copy(best[1][layer], state.device[layer])
    ratio = (schedule[1] / schedule[0]) ** (1 / max(1, proposals - 1))
    for step in range(proposals):
        count = propose(problem, state, group, structured)
        limit = NEVER - 1
        if cost < NEVER:
            u = (draw(state.random, 1 << 30) + 1) / (1 << 30)
            limit = int(cost - temperature * np.log(u))
        time = try_change(problem, state, count, whole, limit)
        if time < NEVER:
            cost = time
            if cost < least:
                least = cost
                for layer in range(layers):
                    best[0][layer] = state.config[layer]
                    copy(best[1][layer], state.device[layer])
        costs[step] = least
        temperature *= ratio
    return least


@compiled
def sent(problem: Problem, state: State) -> tuple[int, int]:
    """Bytes that devices send in a step of the strategy in `state`: of outputs and of their gradients, and of the gradients of weights."""
    exchanged = gradients = 0
    for layer in range(len(problem.shape)):
        config = state.config[layer]
        chain, degree = problem.chain_stride[config], problem.chain_degree[config]
        for part in range(problem.parts[config]):
            device = state.device[layer, part]
            if degree > 1 and (part // chain) % degree > 0 and state.device[layer, part - chain] != device:
                exchanged += problem.state_bytes[config]
            for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
                found = overlaps(problem, state, edge, layer, part)
                for i in range(state.at[0], state.at[0] + found):
                    if state.device[problem.source[edge], state.parts_of[i]] != device:
                        exchanged += state.bytes_of[i]
        size = problem.shard_bytes[config]
        if size == 0 or problem.owner[layer] != layer:
            continue
        for shard in range(problem.shards[config]):
            # a ring of k devices sends each byte 2 (k - 1) times, and so does an owner with k - 1 others
            gradients += 2 * (gather(problem, state, layer, shard) - 1) * size
    return 2 * exchanged, gradients
