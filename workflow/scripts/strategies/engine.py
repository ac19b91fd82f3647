"""Simulate a training step, compiled by numba where it is installed and in plain Python where it is not.

A rank computes its parts in program order: layers forward, then backward, parts of a layer in their order. A
message leaves when its content is computed and earlier messages in this order have left the links that it
uses. Nothing else affects times, so a step is one pass over the layers, and a change of a layer leaves
everything before that layer's forward pass as it was.

A layer is local if all inputs of its parts are on their own devices. Consecutive local layers with one part
on each of the same devices form a segment: their ends differ from those of its first layer by the same time
for all parts, so that a segment costs as much as a layer. Backward, a segment ends at a layer of which
another device needs gradients.

Times are integers of picoseconds, so sums are exact in any order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

try:
    from numba import njit

    # Nothing here allocates. Without numba's runtime, access to an array counts no references.
    OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "nogil": True, "_nrt": False}
    compiled: Callable[[Any], Any] = njit(**OPTIONS)
    inlined: Callable[[Any], Any] = njit(inline="always", **OPTIONS)
    # Compiled separately, then inlined by LLVM: compiling one function of all pieces takes a minute.
    piece: Callable[[Any], Any] = njit(forceinline=True, **OPTIONS)
except ImportError:

    def compiled(function: Any) -> Any:
        """Return the function itself, for want of numba."""
        return function

    inlined = piece = compiled


DIMENSIONS = 4
CHECKPOINT_LAYERS = 8  # In each 8 layers, the first that begins a segment has a checkpoint.
NEVER = 2**62
MAX_CACHED_OVERLAPS = 2**19
BEFORE, FORWARD, BACKWARD, ACCEPTED = range(4)  # Where the evaluation of a proposal ended.
# Items of a bucket: bytes, time at which gradients are complete, least link time, time of updates; then the
# set of devices whose ring is current, and their number; then how many buckets were sent before.
SIZE, READY, MIN_TIME, UPDATE, SET, COUNT, N_SENT = range(7)
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Problem(NamedTuple):
    """Arrays of a search: layers (L), configurations (C), edges by target (E), link tiers (K), devices (D).

    Integers are int64, and times are picoseconds (ps).
    """

    shape: Ints  # [L, 4] output of a layer
    first_config: Ints  # [L + 1] index of the layer's first configuration
    first_edge: Ints  # [L + 1] index of the first edge into the layer
    degrees: Ints  # [C, 4] number of parts in each dimension
    chunk: Ints  # [C, 4] size of a part in each dimension
    parts: Ints  # [C] number of parts
    forward: Ints  # [C] ps, of a part
    backward: Ints  # [C] ps, of a part
    update: Ints  # [C] ps, of a part
    memory: Ints  # [C] bytes that a part holds on its device, without its inputs and weights
    weight_bytes: Ints  # [C] bytes of a shard's weights, gradients and optimizer state
    shard_bytes: Ints  # [C] bytes of a part's gradients
    shards: Ints  # [C] number of shards of the weights: part p has shard (p // shard_stride) % shards
    shard_stride: Ints  # [C]
    source: Ints  # [E] layer
    target_dimension: Ints  # [E, 4] this and the following five as in models.soap.Needed; -1 if fixed
    stride: Ints  # [E, 4]
    padding: Ints  # [E, 4]
    kernel: Ints  # [E, 4]
    low: Ints  # [E, 4]
    high: Ints  # [E, 4]
    is_identity: Ints  # [E, 4] whether each part needs the same range of the dimension that it has
    element_bytes: Ints  # [E]
    first_only: Ints  # [E] whether only the first part of a chain needs the source
    needs_source: Ints  # [E] whether each part of the target needs one of the source
    first_user: Ints  # [L + 1] index into `user`
    user: Ints  # [E] the layers that use a layer's output
    chain_stride: Ints  # [C] from a part to the next one along a chain
    chain_degree: Ints  # [C] number of parts along a chain, 1 without a chain
    state_bytes: Ints  # [C] from a part to the next one along a chain
    sharer: Ints  # [L] a later layer with the same weights, or -1
    owner: Ints  # [L] the layer that sums its gradients: itself, or an earlier one with its weights
    tier_of: Ints  # [D, D] tier between two devices
    latency: Ints  # [K] ps
    per_byte: Floats  # [K] ps
    burst: Ints  # [K] ps of bytes that a link passes at once after a pause
    ring_latency: Ints  # [K] ps of each step of a ring, without its bytes
    ring_hold: Ints  # [K] part of `ring_latency` during which the links are occupied
    ring_per_byte: Floats  # [K] ps
    bucket_bytes: Ints  # [2] limit of the first and of all other all-reduces of consecutive sums on a set
    device_token: Ints  # [D] random numbers; the exclusive or of some identifies their set (Zobrist hashing)
    handling: Ints  # [2] ps that a device cannot compute while it sends, and receives, a message
    handling_per_byte: Floats  # [2] ps
    has_handling: Ints  # [1] whether one of these is not 0
    out_link: Ints  # [K, D] resource of a message of a tier that leaves the device
    in_link: Ints  # [K, D] resource of a message that enters it
    n_resources: Ints  # [1] devices and links
    memory_limit: Ints  # [1] bytes of a device
    as_messages: Ints  # [1] whether one owner sums gradients and sends weights back, in place of rings
    only_rings: Ints  # [1] whether all-reduces are flat rings, even where others are faster


class State(NamedTuple):
    """State of a simulation: at most P parts in a layer, R resources, M checkpoints, times in ps.

    The first item of [2, ...] belongs to the accepted strategy, the second to a trial.
    """

    config: Ints  # [L] configurations of the strategy
    device: Ints  # [L, P] devices of the parts
    local: Ints  # [L] whether all inputs of the layer are on the devices of its parts
    distinct: Ints  # [L] whether each part has a device of its own
    follows: Ints  # [L] whether it is distinct, on the devices of the layer before it
    forward_end: Ints  # [2, L, P] ends of forward passes, of the first layer of a segment
    head: Ints  # [2, L] first layer of the segment
    offset: Ints  # [2, L] from the ends of the first layer to those of this one
    back_end: Ints  # [L, P] arrival of gradients, then ends of backward passes, of a segment's last layer
    foot: Ints  # [L] last layer of the segment in the backward pass
    back_offset: Ints  # [L] from the ends of the last layer to those of this one
    checkpoint: Ints  # [2, M] the layer before which the next three are stored, -1 if there is none
    checkpoint_free_at: Ints  # [2, M, R] when resources become free, before the layer's forward pass
    checkpoint_work: Ints  # [2, M, D] computation that each device still has to do
    checkpoint_link_time: Ints  # [2, M, R] link time of gradient messages that are still to come
    device_set: Ints  # [L] token of the devices that sum its gradients; 0: no sum, negative: several sets
    used_bytes: Ints  # [D] of the accepted strategy
    strategy_bytes: Ints  # [D] of a strategy that is simulated completely
    excess: Ints  # [1] bytes by which all devices together exceed their memory
    tail: Ints  # [L] least time from the layer's first forward end to the end of the step
    tail_back: Ints  # [L] the same from any end of its backward pass
    cached: Ints  # [E] whether the overlaps of the edge are cached
    overlap_start: Ints  # [E, P + 1] where the overlaps of each part of the target begin in the next two
    overlap_parts: Ints  # [MAX_CACHED_OVERLAPS + P] parts of the source
    overlap_bytes: Ints  # [MAX_CACHED_OVERLAPS + P]
    cursor: Ints  # [3] where the last overlaps are; size of the cache; its size after it was last rebuilt
    first: Ints  # [4] where a part begins
    free_at: Ints  # [R] when resources become free
    work_left: Ints  # [D] computation that a device still has to do
    is_marked: Ints  # [D] whether a device was seen
    ready_at: Ints  # [D] when the gradients of a device are complete
    member: Ints  # [D] devices that have the same shard
    out_links: Ints  # [D] links from each member to the next one of the ring
    in_links: Ints  # [D]
    bucket: Ints  # [7] sums that wait to be one all-reduce
    hops: Ints  # [K] links of the tier between neighbours of a ring, without the one that closes it
    synced_at: Ints  # [D] when the last gradients or weights of a device arrive
    updates: Ints  # [D] time of its updates
    link_time: Ints  # [R] how long gradient all-reduces occupy a link in a step
    link_time_left: Ints  # [R] the part of it, and of gradient messages, that is still to come
    work_change: Ints  # [D] by a proposal
    memory_change: Ints  # [D] bytes, by a proposal
    saved: Ints  # [L] configurations before a proposal
    saved_device: Ints  # [L, P]
    saved_local: Ints  # [L]
    saved_distinct: Ints  # [L]
    saved_follows: Ints  # [L]
    saved_link_time: Ints  # [R]
    saved_device_set: Ints  # [L]
    saved_cached: Ints  # [E]
    random: Ints  # [2] state of the random number generator
    changed: Ints  # [L] layers of a proposal
    chosen: Ints  # [L] their new configurations
    affected: Ints  # [L] layers whose flags have to be updated
    is_affected: Ints  # [L]
    proposed: Ints  # [P] devices of their parts
    end_counts: Ints  # [4] proposals that ended BEFORE simulation, in FORWARD, in BACKWARD, or were ACCEPTED


def allocate_state(problem: Problem) -> State:
    """Return zeroed arrays for the simulation of any strategy of a problem."""
    n_edges = len(problem.source)
    n_layers, n_devices, n_tiers = len(problem.shape), problem.tier_of.shape[0], len(problem.latency)
    n_parts, n_resources, n_checkpoints = (
        int(problem.parts.max()),
        int(problem.n_resources[0]),
        n_layers // CHECKPOINT_LAYERS + 1,
    )
    layer_arrays = (
        "config local distinct follows foot back_offset tail tail_back device_set saved saved_device_set "
        "saved_local saved_distinct saved_follows changed chosen affected is_affected"
    )
    device_arrays = (
        "used_bytes strategy_bytes work_left is_marked ready_at member out_links in_links synced_at updates "
        "work_change memory_change"
    )
    sizes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(layer_arrays.split(), (n_layers,)),
        **dict.fromkeys(("device", "saved_device", "back_end"), (n_layers, n_parts)),
        "forward_end": (2, n_layers, n_parts),
        **dict.fromkeys(("head", "offset"), (2, n_layers)),
        "checkpoint": (2, n_checkpoints),
        "checkpoint_free_at": (2, n_checkpoints, n_resources),
        "checkpoint_work": (2, n_checkpoints, n_devices),
        "checkpoint_link_time": (2, n_checkpoints, n_resources),
        **dict.fromkeys(("cached", "saved_cached"), (n_edges,)),
        "overlap_start": (n_edges, n_parts + 1),
        **dict.fromkeys(("overlap_parts", "overlap_bytes"), (MAX_CACHED_OVERLAPS + n_parts,)),
        "cursor": (3,),
        "proposed": (n_parts,),
        "first": (DIMENSIONS,),
        **dict.fromkeys(("free_at", "link_time", "saved_link_time", "link_time_left"), (n_resources,)),
        **dict.fromkeys(device_arrays.split(), (n_devices,)),
        "hops": (n_tiers,),
        "bucket": (7,),
        "excess": (1,),
        "random": (2,),
        "end_counts": (4,),
    }
    return State(**{name: np.zeros(size, np.int64) for name, size in sizes.items()})


@inlined
def copy(target: Ints, source: Ints) -> None:
    """Copy `source` to `target`, up to the length of the shorter one."""
    for place in range(min(len(target), len(source))):
        target[place] = source[place]


@inlined
def fill(target: Ints, value: int) -> None:
    """Set all items of an array."""
    for place in range(len(target)):
        target[place] = value


@inlined
def locate_part(problem: Problem, config: int, part: int, first: Ints) -> None:
    """Set `first` to where a part begins in each dimension."""
    for dimension in range(DIMENSIONS - 1, -1, -1):
        degree = problem.degrees[config, dimension]
        first[dimension] = 0
        if degree > 1:
            first[dimension] = part % degree * problem.chunk[config, dimension]
            part //= degree


@inlined
def needed_range(
    problem: Problem, edge: int, dimension: int, target_config: int, first: Ints
) -> tuple[int, int]:
    """Return the range of a dimension of an edge's source that the part of its target at `first` needs."""
    target_dimension = problem.target_dimension[edge, dimension]
    low, high = problem.low[edge, dimension], problem.high[edge, dimension]
    if target_dimension >= 0:
        step = problem.stride[edge, dimension]
        low = step * first[target_dimension] - problem.padding[edge, dimension]
        high = (
            low
            + step * (problem.chunk[target_config, target_dimension] - 1)
            + problem.kernel[edge, dimension]
        )
    return max(low, 0), min(high, problem.shape[problem.source[edge], dimension])


@inlined
def follows_link(problem: Problem, config: int, part: int) -> bool:
    """Return whether a part gets the state of another one along a chain."""
    degree = problem.chain_degree[config]
    return degree > 1 and (part // problem.chain_stride[config]) % degree > 0


@inlined
def received_bytes(problem: Problem, state: State, edge: int, layer: int, part: int) -> int:
    """Return the memory of what a part needs along an edge.

    It is 0 if these are whole samples of one part on the same device. All else is assembled in memory of the
    part's own, until its backward pass.
    """
    source, config = problem.source[edge], state.config[layer]
    if problem.first_only[edge] and follows_link(problem, config, part):
        return 0
    locate_part(problem, config, part, state.first)
    size, source_part, is_view, source_config = problem.element_bytes[edge], 0, True, state.config[source]
    for dimension in range(DIMENSIONS):
        low, high = needed_range(problem, edge, dimension, config, state.first)
        if low >= high:
            return 0
        chunk = problem.chunk[source_config, dimension]
        begin = low // chunk
        size *= high - low
        source_part = source_part * problem.degrees[source_config, dimension] + begin
        if (high - 1) // chunk != begin:
            is_view = False
        if dimension > 0 and high - low != chunk and not problem.first_only[edge]:
            is_view = False
    if is_view and state.device[source, source_part] == state.device[layer, part]:
        return 0
    return size


@piece
def add_inputs(problem: Problem, state: State, layer: int, sign: int, used_bytes: Ints) -> None:
    """Add the memory of the inputs of a layer's parts to the memory of their devices, or subtract it."""
    config = state.config[layer]
    for part in range(problem.parts[config]):
        device = state.device[layer, part]
        previous = part - problem.chain_stride[config]
        if follows_link(problem, config, part) and state.device[layer, previous] != device:
            used_bytes[device] += sign * problem.state_bytes[config]
        for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
            used_bytes[device] += sign * received_bytes(problem, state, edge, layer, part)


@piece
def add_weights(problem: Problem, state: State, layer: int, sign: int, used_bytes: Ints) -> None:
    """Add or subtract the memory of a layer's weights, and of a later layer that shares them.

    A device has each shard once.
    """
    config, sharer, is_marked, member = (
        state.config[layer],
        problem.sharer[layer],
        state.is_marked,
        state.member,
    )
    if problem.weight_bytes[config] == 0:
        return
    shards, stride = problem.shards[config], problem.shard_stride[config]
    for shard in range(shards):
        count = 0
        for base in range(shard * stride, problem.parts[config], shards * stride):
            for part in range(base, base + stride):
                device = state.device[layer, part]
                if not is_marked[device]:
                    is_marked[device] = 1
                    member[count] = device
                    count += 1
                    used_bytes[device] += sign * problem.weight_bytes[config]
        for part in range(problem.parts[state.config[sharer]] if sharer >= 0 else 0):
            device = state.device[sharer, part]
            if not is_marked[device]:
                is_marked[device] = 1
                member[count] = device
                count += 1
                used_bytes[device] += sign * problem.weight_bytes[state.config[sharer]]
        for place in range(count):
            is_marked[member[place]] = 0


@inlined
def find_overlaps(problem: Problem, state: State, edge: int, target: int, part: int) -> int:
    """Return how many parts of an edge's source overlap what a part of its target needs.

    From index `cursor[0]` on, `overlap_parts` has these parts and `overlap_bytes` their bytes.
    """
    if state.cached[edge]:
        state.cursor[0] = state.overlap_start[edge, part]
        return state.overlap_start[edge, part + 1] - state.overlap_start[edge, part]
    state.cursor[0] = MAX_CACHED_OVERLAPS
    source = problem.source[edge]
    target_config, source_config = state.config[target], state.config[source]
    if problem.first_only[edge] and follows_link(problem, target_config, part):
        return 0
    first, overlap_parts, overlap_bytes = (
        state.first,
        state.overlap_parts[MAX_CACHED_OVERLAPS:],
        state.overlap_bytes[MAX_CACHED_OVERLAPS:],
    )
    locate_part(problem, target_config, part, first)
    n_overlaps = 1
    overlap_parts[0] = 0
    overlap_bytes[0] = problem.element_bytes[edge]
    for dimension in range(DIMENSIONS):
        low, high = needed_range(problem, edge, dimension, target_config, first)
        if low >= high:
            return 0
        degree, chunk = problem.degrees[source_config, dimension], problem.chunk[source_config, dimension]
        if degree == 1:
            for i in range(n_overlaps):
                overlap_bytes[i] *= high - low
            continue
        begin, end = low // chunk, (high - 1) // chunk
        count = end - begin + 1
        # Multiply the parts so far by this dimension's indices, backwards so that nothing is overwritten.
        for i in range(n_overlaps - 1, -1, -1):
            base, size = overlap_parts[i], overlap_bytes[i]
            for j in range(count - 1, -1, -1):
                index = begin + j
                overlap_parts[i * count + j] = base * degree + index
                overlap_bytes[i * count + j] = size * (
                    min(high, (index + 1) * chunk) - max(low, index * chunk)
                )
        n_overlaps *= count
    return n_overlaps


@inlined
def cache_overlaps(problem: Problem, state: State, edge: int, target: int) -> None:
    """Cache the overlaps of an edge if there is room."""
    cursor = state.cursor[1]
    if (
        cursor + problem.parts[state.config[target]] * problem.parts[state.config[problem.source[edge]]]
        > MAX_CACHED_OVERLAPS
    ):
        return
    for part in range(problem.parts[state.config[target]]):
        state.overlap_start[edge, part] = cursor
        n_overlaps = find_overlaps(problem, state, edge, target, part)
        for i in range(n_overlaps):
            state.overlap_parts[cursor] = state.overlap_parts[MAX_CACHED_OVERLAPS + i]
            state.overlap_bytes[cursor] = state.overlap_bytes[MAX_CACHED_OVERLAPS + i]
            cursor += 1
        state.overlap_start[edge, part + 1] = cursor
    state.cursor[1] = cursor
    state.cached[edge] = 1


@inlined
def is_aligned(problem: Problem, state: State, edge: int, target: int) -> bool:
    """Return whether each part of an edge's target needs exactly the source's part of the same number."""
    target_config, source_config = state.config[target], state.config[problem.source[edge]]
    if problem.first_only[edge]:
        return False
    for dimension in range(DIMENSIONS):
        degree = problem.degrees[source_config, dimension]
        if degree != problem.degrees[target_config, dimension] or (
            degree > 1 and not problem.is_identity[edge, dimension]
        ):
            return False
    return True


@piece
def is_local(problem: Problem, state: State, layer: int) -> bool:
    """Return whether all inputs of a layer's parts are on their own devices."""
    config = state.config[layer]
    chain = problem.chain_stride[config]
    for part in range(problem.parts[config] if problem.chain_degree[config] > 1 else 0):
        previous = part - chain
        if follows_link(problem, config, part) and state.device[layer, previous] != state.device[layer, part]:
            return False
    for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
        source = problem.source[edge]
        aligned = is_aligned(problem, state, edge, layer)
        for part in range(problem.parts[config]):
            device = state.device[layer, part]
            if aligned:
                if state.device[source, part] != device:
                    return False
                continue
            for i in range(find_overlaps(problem, state, edge, layer, part)):
                if state.device[source, state.overlap_parts[state.cursor[0] + i]] != device:
                    return False
    return True


@inlined
def has_distinct_devices(problem: Problem, state: State, layer: int) -> bool:
    """Return whether each part of a layer has a device of its own."""
    parts, stamped, distinct = problem.parts[state.config[layer]], 0, True
    for part in range(parts):
        device = state.device[layer, part]
        if state.is_marked[device]:
            distinct = False
            break
        state.is_marked[device] = 1
        stamped += 1
    for part in range(stamped):
        state.is_marked[state.device[layer, part]] = 0
    return distinct


@inlined
def is_following(problem: Problem, state: State, layer: int) -> bool:
    """Return whether a layer's parts, all distinct, have the devices of the layer before it."""
    if layer == 0 or not state.distinct[layer]:
        return False
    parts = problem.parts[state.config[layer]]
    if parts != problem.parts[state.config[layer - 1]]:
        return False
    for part in range(parts):
        if state.device[layer, part] != state.device[layer - 1, part]:
            return False
    return parts > 0


@inlined
def send_message(
    problem: Problem, state: State, sender: int, receiver: int, size: int, ready: int, forwards: bool
) -> int:
    """Return when a message arrives, and occupy its links and both devices.

    Each link is occupied for the time of the bytes, less its burst; bytes that wait for the second link do
    not occupy the first one. The latency is added at the end. A message sent `forwards` announces gradients
    that will come back.
    """
    if sender == receiver:
        return ready
    free_at, link_time_left, tier = state.free_at, state.link_time_left, problem.tier_of[sender, receiver]
    out_link = problem.out_link[tier, sender]
    in_link = problem.in_link[tier, receiver]
    transfer = max(1, int(size * problem.per_byte[tier]))
    free_at[out_link] = max(ready - problem.burst[tier], free_at[out_link]) + transfer
    sent_at = max(free_at[out_link], ready)
    free_at[in_link] = max(sent_at - transfer - problem.burst[tier], free_at[in_link]) + transfer
    free_at[sender] += problem.handling[0] + int(size * problem.handling_per_byte[0])
    free_at[receiver] += problem.handling[1] + int(size * problem.handling_per_byte[1])
    if forwards:
        link_time_left[problem.out_link[tier, receiver]] += transfer
        link_time_left[problem.in_link[tier, sender]] += transfer
    else:
        link_time_left[out_link] -= transfer
        link_time_left[in_link] -= transfer
    return max(sent_at, free_at[in_link]) + problem.latency[tier]


@inlined
def earliest_link_end(problem: Problem, state: State, sender: int, receiver: int) -> int:
    """Return the earliest time by which the links between two devices can have carried all that is left."""
    tier = problem.tier_of[sender, receiver]
    out_link = problem.out_link[tier, sender]
    in_link = problem.in_link[tier, receiver]
    return max(
        state.free_at[out_link] + state.link_time_left[out_link],
        state.free_at[in_link] + state.link_time_left[in_link],
    )


@inlined
def build_ring(problem: Problem, state: State, count: int) -> None:
    """Sort `member` into a ring: set its links in `out_links` and `in_links`, and `hops`."""
    member = state.member
    for i in range(1, count):
        device, index = member[i], i
        while index > 0 and member[index - 1] > device:
            member[index] = member[index - 1]
            index -= 1
        member[index] = device
    fill(state.hops, 0)
    for place in range(count if count > 1 else 0):
        sender, receiver = member[place], member[place + 1 if place + 1 < count else 0]
        tier = problem.tier_of[sender, receiver]
        state.hops[tier] += 1 if place + 1 < count else 0
        state.out_links[place] = problem.out_link[tier, sender]
        state.in_links[place] = problem.in_link[tier, receiver]


@inlined
def min_all_reduce_time(problem: Problem, state: State, count: int, size: int) -> int:
    """Return a lower bound of how long an all-reduce of `size` bytes occupies the links of its ring."""
    slowest, chunk = 0, size / count
    for tier in range(len(state.hops)):
        if state.hops[tier]:
            slowest = max(slowest, int(chunk * problem.ring_per_byte[tier]) - 1)
    ring = 2 * (count - 1) * slowest
    if problem.only_rings[0]:
        return ring
    return min(ring, max(0, hierarchical_time(problem, state, count, size, 0) - 1))


@inlined
def ring_step(transfer: int, latency: int, burst: int) -> int:
    """Return the time of a step of a ring: latency plus transfer, which overlap up to the burst."""
    return max(latency, transfer + latency - min(latency, burst))


@inlined
def ring_time(problem: Problem, state: State, count: int, size: int, latency: Ints) -> int:
    """Return how long a ring all-reduce takes, or occupies its links, with this `latency` [K] of tiers.

    Each of the 2 (k - 1) steps passes 1 / k of the bytes to the next device.
    """
    slowest, chunk = 0, size / count
    for tier in range(len(state.hops)):
        if state.hops[tier]:
            transfer = max(1, int(chunk * problem.ring_per_byte[tier]))
            slowest = max(slowest, ring_step(transfer, latency[tier], problem.burst[tier]))
    return 2 * (count - 1) * slowest


@inlined
def hierarchical_time(problem: Problem, state: State, count: int, size: int, latencies: int) -> int:
    """Return how long an all-reduce by rings of rings takes, with `latencies` (1) or without them (0).

    Gradients are reduced and scattered around a ring in each node, then summed around a ring of nodes, all
    shares at once through the nodes' links, then gathered in each node. With g devices in each of N nodes,
    these are 2 (g - 1) steps of 1 / g of the bytes, and 2 (N - 1) of 1 / N through each node's link.
    """
    below, steps_ps, per_byte = count, 0, 0.0
    for tier in range(len(state.hops)):
        above = below - state.hops[tier]
        n_units = (below + above - 1) // above
        steps_ps += latencies * 2 * (n_units - 1) * problem.ring_latency[tier]
        per_byte += 2 * (n_units - 1) / n_units * problem.ring_per_byte[tier]
        below = above
    return steps_ps + int(size * per_byte)


@inlined
def tree_time(problem: Problem, state: State, count: int, size: int) -> int:
    """Return how long an all-reduce by a double binary tree of nodes takes, a chain in each node.

    As NCCL does (Sanders, Speck & Traeff, Parallel Computing 35, 2009): bytes go up and down once, pipelined,
    and each half of them in a tree of its own, so that all links are used both ways.
    """
    below, steps_ps, slowest = count, 0, 0.0
    for tier in range(len(state.hops)):
        above = below - state.hops[tier]
        n_units, n_steps = (below + above - 1) // above, 0
        if tier == 0:
            n_steps = n_units - 1
        else:
            while 1 << n_steps < n_units:
                n_steps += 1
        steps_ps += 2 * n_steps * problem.ring_latency[tier]
        if state.hops[tier]:
            slowest = max(slowest, problem.ring_per_byte[tier])
        below = above
    return steps_ps + int(2 * size * slowest)


@inlined
def all_reduce_time(problem: Problem, state: State, count: int, size: int, latency: Ints) -> int:
    """Return `ring_time`, or the time of a hierarchical all-reduce or a tree where these are faster."""
    ring = ring_time(problem, state, count, size, latency)
    if problem.only_rings[0]:
        return ring
    hierarchical = hierarchical_time(problem, state, count, size, 1)
    return min(ring, hierarchical, tree_time(problem, state, count, size))


@inlined
def ring_burst(problem: Problem, state: State) -> int:
    """Return the smallest burst of the links of a ring."""
    smallest = NEVER
    for tier in range(len(state.hops)):
        if state.hops[tier]:
            smallest = min(smallest, problem.burst[tier])
    return smallest


@inlined
def ring_handling(problem: Problem, count: int, size: int) -> int:
    """Return how long a ring all-reduce keeps each device from computing."""
    handling, per_byte = problem.handling, problem.handling_per_byte
    return 2 * (count - 1) * (handling[0] + handling[1] + int(size / count * (per_byte[0] + per_byte[1])))


@inlined
def gather_devices(problem: Problem, state: State, layer: int, shard: int) -> int:
    """Return how many devices have a shard of a layer's weights.

    `member` gets these devices in the order of parts, `ready_at` the time at which each has its gradients.
    """
    config, sharer, count = state.config[layer], problem.sharer[layer], 0
    state.bucket[SET] = 0
    shards, stride = problem.shards[config], problem.shard_stride[config]
    for user_index in range(2):
        user, begin, step, length = layer, shard * stride, shards * stride, stride
        if user_index:
            if sharer < 0:
                break
            user, begin, step, length = sharer, 0, 1, 1
        foot, offset = state.foot[user], state.back_offset[user]
        for base in range(begin, problem.parts[state.config[user]], step):
            for part in range(base, base + length):
                device, time = state.device[user, part], state.back_end[foot, part] + offset
                if state.is_marked[device]:
                    state.ready_at[device] = max(state.ready_at[device], time)
                else:
                    state.is_marked[device] = 1
                    state.ready_at[device] = time
                    state.member[count] = device
                    count += 1
    for place in range(count):
        state.is_marked[state.member[place]] = 0
    return count


@inlined
def add_message(problem: Problem, link_time: Ints, sender: int, receiver: int, size: int, sign: int) -> None:
    """Add the time that a message occupies its links (`sign` 1), or subtract it (-1)."""
    tier = problem.tier_of[sender, receiver]
    transfer = sign * max(1, int(size * problem.per_byte[tier]))
    link_time[problem.out_link[tier, sender]] += transfer
    link_time[problem.in_link[tier, receiver]] += transfer


@piece
def add_links(problem: Problem, state: State, layer: int, sign: int) -> None:
    """Add or subtract a layer's least gradient all-reduce time on links, and set its `device_set`."""
    config = state.config[layer]
    size = problem.shard_bytes[config]
    state.device_set[layer] = 0
    for shard in range(problem.shards[config] if size else 0):
        count = gather_devices(problem, state, layer, shard)
        if count == 1:
            continue
        state.device_set[layer] = -1
        if problem.shards[config] == 1 and problem.sharer[layer] < 0 and not problem.as_messages[0]:
            state.device_set[layer] = 0
            for place in range(count):
                state.device_set[layer] ^= problem.device_token[state.member[place]]
        if problem.as_messages[0]:
            for place in range(1, count):
                add_message(problem, state.link_time, state.member[place], state.member[0], size, sign)
                add_message(problem, state.link_time, state.member[0], state.member[place], size, sign)
            continue
        build_ring(problem, state, count)
        transfer = sign * min_all_reduce_time(problem, state, count, size)
        for place in range(count):
            state.link_time[state.out_links[place]] += transfer
            state.link_time[state.in_links[place]] += transfer


@inlined
def update_bounds(problem: Problem, state: State) -> None:
    """Set `tail` and `tail_back`: sums of computation along layers that need all of the layer before."""
    layers = len(problem.shape)
    for layer in range(layers):
        state.tail_back[layer] = 0
        for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
            if problem.needs_source[edge]:
                source = problem.source[edge]
                after = problem.backward[state.config[source]] + state.tail_back[source]
                state.tail_back[layer] = max(state.tail_back[layer], after)
        state.tail[layer] = problem.backward[state.config[layer]] + state.tail_back[layer]
    for layer in range(layers - 1, -1, -1):
        after = problem.forward[state.config[layer]] + state.tail[layer]
        for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
            if problem.needs_source[edge]:
                source = problem.source[edge]
                state.tail[source] = max(state.tail[source], after)


@piece
def forward_layer(problem: Problem, state: State, layer: int, begin: int, limit: int) -> bool:
    """Run the forward passes of a layer's parts; return whether `limit` can still be met.

    Layers before `begin` are as accepted.
    """
    config, free_at = state.config[layer], state.free_at
    time = problem.forward[config]
    local = state.local[layer]
    for part in range(problem.parts[config]):
        device = state.device[layer, part]
        ready = free_at[device]
        if not local:
            latest = limit - state.work_left[device]
            if follows_link(problem, config, part):
                previous = part - problem.chain_stride[config]
                sender, size, made_at = (
                    state.device[layer, previous],
                    problem.state_bytes[config],
                    state.forward_end[1, layer, previous],
                )
                ready = max(ready, send_message(problem, state, sender, device, size, made_at, True))
            for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
                source = problem.source[edge]
                side = 1 if source >= begin else 0
                head, offset = state.head[side, source], state.offset[side, source]
                n_overlaps = find_overlaps(problem, state, edge, layer, part)
                for i in range(state.cursor[0], state.cursor[0] + n_overlaps):
                    source_part = state.overlap_parts[i]
                    sender, made_at = (
                        state.device[source, source_part],
                        state.forward_end[side, head, source_part] + offset,
                    )
                    ready = max(
                        ready,
                        send_message(problem, state, sender, device, state.overlap_bytes[i], made_at, True),
                    )
                    if ready > latest:
                        return False
        end = max(ready, free_at[device]) + time
        free_at[device] = end
        state.forward_end[1, layer, part] = end
        state.work_left[device] -= time
    return True


@piece
def run_forward(problem: Problem, state: State, begin: int, slack: int, limit: int) -> bool:
    """Run all forward passes from layer `begin` on; return whether `limit` can still be met.

    `slack` is by how much a bound in `tail` may be too high.
    """
    layers, free_at, work_left, earliest = len(problem.shape), state.free_at, state.work_left, NEVER
    for index in range(begin // CHECKPOINT_LAYERS, state.checkpoint.shape[1]):
        state.checkpoint[1, index] = -1
    layer = begin
    while layer < layers:
        index = layer // CHECKPOINT_LAYERS
        if state.checkpoint[1, index] < 0:
            state.checkpoint[1, index] = layer
            copy(state.checkpoint_free_at[1, index], free_at)
            copy(state.checkpoint_work[1, index], work_left)
            copy(state.checkpoint_link_time[1, index], state.link_time_left)
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
            free_at[device] += offset
            work_left[device] -= offset
            earliest = min(earliest, state.forward_end[1, head, part])
            if free_at[device] + work_left[device] > limit:
                return False
        earliest += offset
        if earliest + state.tail[layer - 1] - slack > limit:
            return False
    earliest += problem.backward[state.config[layers - 1]]
    largest_burst = 0
    for tier in range(len(problem.burst)):
        largest_burst = max(largest_burst, problem.burst[tier])
    earliest -= 2 * largest_burst
    for resource in range(len(free_at)):
        state.link_time_left[resource] += state.link_time[resource]
        if (
            state.link_time_left[resource]
            and max(free_at[resource], earliest) + state.link_time_left[resource] > limit
        ):
            return False
    return True


@inlined
def send_gradients(
    problem: Problem, state: State, layer: int, part: int, end: int, slack: int, limit: int
) -> bool:
    """Send a part's gradients, ready at `end`, to its sources; return whether `limit` can still be met."""
    config, back_end = state.config[layer], state.back_end
    device = state.device[layer, part]
    if follows_link(problem, config, part):
        previous = part - problem.chain_stride[config]
        receiver, size = state.device[layer, previous], problem.state_bytes[config]
        back_end[layer, previous] = max(
            back_end[layer, previous], send_message(problem, state, device, receiver, size, end, False)
        )
    for edge in range(problem.first_edge[layer + 1] - 1, problem.first_edge[layer] - 1, -1):
        source = problem.source[edge]
        latest = limit - problem.backward[state.config[source]] - state.tail_back[source] + slack
        n_overlaps = find_overlaps(problem, state, edge, layer, part)
        for i in range(state.cursor[0], state.cursor[0] + n_overlaps):
            source_part = state.overlap_parts[i]
            receiver = state.device[source, source_part]
            arrives_at = send_message(problem, state, device, receiver, state.overlap_bytes[i], end, False)
            back_end[source, source_part] = max(back_end[source, source_part], arrives_at)
            if arrives_at > latest or earliest_link_end(problem, state, device, receiver) > limit:
                return False
    return True


@inlined
def sum_at_owner(problem: Problem, state: State, count: int, size: int, update: int, limit: int) -> bool:
    """Send gradients to the first member and weights back; return whether `limit` can still be met."""
    member, owner = state.member, state.member[0]
    ready = state.ready_at[owner]
    for place in range(1, count):
        ready = max(
            ready,
            send_message(problem, state, member[place], owner, size, state.ready_at[member[place]], False),
        )
    ready += update
    state.synced_at[owner] = max(state.synced_at[owner], ready)
    for place in range(1, count):
        arrives_at = send_message(problem, state, owner, member[place], size, ready, False)
        state.synced_at[member[place]] = max(state.synced_at[member[place]], arrives_at)
        if max(arrives_at, earliest_link_end(problem, state, owner, member[place])) > limit:
            return False
    return True


@inlined
def all_reduce(
    problem: Problem, state: State, count: int, size: int, ready: int, min_link_time: int, limit: int
) -> bool:
    """All-reduce gradients that are `ready` on the ring's links; return whether `limit` can still be met.

    `min_link_time` is what `link_time` contains for them.
    """
    free_at, out_links, in_links, link_time_left = (
        state.free_at,
        state.out_links,
        state.in_links,
        state.link_time_left,
    )
    occupied = all_reduce_time(problem, state, count, size, problem.ring_hold)
    duration = all_reduce_time(problem, state, count, size, problem.ring_latency)
    start = ready - min(min_link_time, ring_burst(problem, state))
    for place in range(count):
        start = max(start, free_at[out_links[place]], free_at[in_links[place]])
    end, handling = start + occupied, ring_handling(problem, count, size)
    arrives_at = max(
        start + max(duration, occupied),
        ready + all_reduce_time(problem, state, count, 0, problem.ring_latency),
    )
    for place in range(count):
        device = state.member[place]
        state.synced_at[device] = max(state.synced_at[device], arrives_at)
        free_at[device] += handling
        free_at[out_links[place]] = end
        free_at[in_links[place]] = end
        link_time_left[out_links[place]] -= min_link_time
        link_time_left[in_links[place]] -= min_link_time
        if (
            max(arrives_at, end + max(link_time_left[out_links[place]], link_time_left[in_links[place]]))
            > limit
        ):
            return False
    return True


@piece
def synchronize(problem: Problem, state: State, layer: int, limit: int) -> bool:
    """Sum a layer's gradients over devices with the same shard; return whether `limit` can still be met.

    Weights that two layers share are summed at the earlier one.
    """
    config = state.config[layer]
    size, update = problem.shard_bytes[config], problem.update[config]
    for shard in range(problem.shards[config]):
        count, ready = gather_devices(problem, state, layer, shard), 0
        if count > 1 and problem.as_messages[0]:
            if not sum_at_owner(problem, state, count, size, update, limit):
                return False
            continue
        for place in range(count):
            state.updates[state.member[place]] += update
            ready = max(ready, state.ready_at[state.member[place]])
        if count > 1:
            build_ring(problem, state, count)
            if not all_reduce(
                problem, state, count, size, ready, min_all_reduce_time(problem, state, count, size), limit
            ):
                return False
    return True


@inlined
def receives_gradients(problem: Problem, state: State, layer: int) -> bool:
    """Return whether a layer may receive gradients by message."""
    if not state.local[layer] and problem.chain_degree[state.config[layer]] > 1:
        return True
    for i in range(problem.first_user[layer], problem.first_user[layer + 1]):
        if not state.local[problem.user[i]]:
            return True
    return False


@piece
def backward_layer(problem: Problem, state: State, layer: int, slack: int, limit: int) -> bool:
    """Run a layer's backward passes, last part first; return whether `limit` can still be met.

    Gradients are sent by message where necessary. Inside a segment only messages are sent.
    """
    free_at, work_left, back_end = state.free_at, state.work_left, state.back_end
    config, foot, offset = state.config[layer], state.foot[layer], state.back_offset[layer]
    time, receives = problem.backward[config], receives_gradients(problem, state, layer)
    for part in range(problem.parts[config] - 1, -1, -1):
        device = state.device[layer, part]
        if layer == foot:
            end = max(free_at[device], back_end[layer, part] if receives else 0) + time
            free_at[device] = end
            back_end[layer, part] = end
            work_left[device] -= time
            if end + max(work_left[device], state.tail_back[layer] - slack) > limit:
                return False
        end = back_end[foot, part] + offset
        if not state.local[layer] and not send_gradients(problem, state, layer, part, end, slack, limit):
            return False
    return True


@inlined
def add_to_bucket(problem: Problem, state: State, layer: int, ready: int) -> None:
    """Add a layer's gradients, which are `ready`, to the bucket."""
    bucket, config = state.bucket, state.config[layer]
    if bucket[SET] != state.device_set[layer]:
        count = gather_devices(problem, state, layer, 0)
        build_ring(problem, state, count)
        bucket[SET] = state.device_set[layer]
        bucket[COUNT] = count
    size = problem.shard_bytes[config]
    bucket[SIZE] += size
    bucket[READY] = max(bucket[READY], ready)
    bucket[MIN_TIME] += min_all_reduce_time(problem, state, bucket[COUNT], size)
    bucket[UPDATE] += problem.update[config]


@inlined
def is_bucket_complete(problem: Problem, state: State, layer: int) -> bool:
    """Return whether the bucket is full, or other devices sum the gradients of the next layer."""
    if state.bucket[SIZE] >= problem.bucket_bytes[min(state.bucket[N_SENT], 1)]:
        return True
    next_layer = layer - 1
    while next_layer >= 0 and state.device_set[next_layer] == 0:
        next_layer -= 1
    return next_layer < 0 or state.device_set[next_layer] != state.device_set[layer]


@inlined
def sum_bucket(problem: Problem, state: State, limit: int) -> bool:
    """All-reduce the bucket around the current ring; return whether `limit` can still be met."""
    bucket = state.bucket
    for place in range(bucket[COUNT]):
        state.updates[state.member[place]] += bucket[UPDATE]
    in_time = all_reduce(problem, state, bucket[COUNT], bucket[SIZE], bucket[READY], bucket[MIN_TIME], limit)
    bucket[SIZE] = bucket[READY] = bucket[MIN_TIME] = bucket[UPDATE] = 0
    bucket[N_SENT] += 1
    return in_time


@inlined
def end_segment(problem: Problem, state: State, layer: int, offset: int, slack: int, limit: int) -> bool:
    """Let the devices of a segment compute for `offset`; return whether `limit` can still be met."""
    free_at, work_left = state.free_at, state.work_left
    for part in range(problem.parts[state.config[layer]] if offset else 0):
        device = state.device[layer, part]
        free_at[device] += offset
        work_left[device] -= offset
        if free_at[device] + max(work_left[device], state.tail_back[layer] - slack) > limit:
            return False
    return True


@piece
def run_backward(problem: Problem, state: State, slack: int, limit: int) -> bool:
    """Run all backward passes and gradient all-reduces; return whether `limit` can still be met.

    `slack` is as in `run_forward`.
    """
    layer, latest = len(problem.shape) - 1, 0
    foot, offset, computed = layer, 0, 0
    fill(state.bucket, 0)
    while layer >= 0:
        config, has_messages, device_set = (
            state.config[layer],
            layer == foot or not state.local[layer],
            state.device_set[layer],
        )
        parts = problem.parts[config]
        size = problem.shard_bytes[config] if problem.owner[layer] == layer else 0
        state.foot[layer] = foot
        state.back_offset[layer] = offset
        if has_messages and not backward_layer(problem, state, layer, slack, limit):
            return False
        if layer == foot:
            latest = 0
            for part in range(parts):
                latest = max(latest, state.back_end[layer, part])
        if size > 0 and device_set <= 0 and not synchronize(problem, state, layer, limit):
            return False
        if size > 0 and device_set > 0:
            add_to_bucket(problem, state, layer, latest + offset)
            if is_bucket_complete(problem, state, layer):
                offset += ring_handling(problem, state.bucket[COUNT], state.bucket[SIZE])
                if not sum_bucket(problem, state, limit):
                    return False
        continues = size == 0 or device_set >= 0 or not problem.has_handling[0]
        if (
            continues
            and state.follows[layer]
            and state.local[layer]
            and not receives_gradients(problem, state, layer - 1)
        ):
            layer -= 1
            offset += problem.backward[state.config[layer]]
            computed += problem.backward[state.config[layer]]
            continue
        if not end_segment(problem, state, layer, computed, slack, limit):
            return False
        layer -= 1
        foot, offset, computed = layer, 0, 0
    return True


@inlined
def simulate(problem: Problem, state: State, index: int, slack: int, limit: int) -> int:
    """Return the time of a step of the strategy in `state` in ps; NEVER if it exceeds `limit`.

    Writes the trial from checkpoint `mark` on; everything before is as accepted. `work_left` has to be the
    work of all devices from there. `end_counts` counts where simulations were abandoned.
    """
    begin = state.checkpoint[0, index]
    copy(state.free_at, state.checkpoint_free_at[0, index])
    copy(state.link_time_left, state.checkpoint_link_time[0, index])
    if not run_forward(problem, state, begin, slack, limit):
        state.end_counts[FORWARD] += 1
        return NEVER
    for layer in range(len(problem.shape)):
        if not state.local[layer]:
            if problem.chain_degree[state.config[layer]] > 1:
                fill(state.back_end[layer], 0)
            for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
                fill(state.back_end[problem.source[edge]], 0)
    fill(state.synced_at, 0)
    fill(state.updates, 0)
    end = NEVER
    if run_backward(problem, state, slack, limit):
        end = 0
        for device in range(len(state.synced_at)):
            end = max(end, max(state.free_at[device], state.synced_at[device]) + state.updates[device])
    if end > limit or end == NEVER:
        state.end_counts[BACKWARD] += 1
        return NEVER
    return end


@piece
def accept_trial(problem: Problem, state: State, index: int) -> None:
    """Make the trial the accepted strategy."""
    for layer in range(state.checkpoint[0, index], len(problem.shape)):
        head = state.head[1, layer]
        state.head[0, layer] = head
        state.offset[0, layer] = state.offset[1, layer]
        for part in range(problem.parts[state.config[layer]] if head == layer else 0):
            state.forward_end[0, layer, part] = state.forward_end[1, layer, part]
    for place in range(index, state.checkpoint.shape[1]):
        state.checkpoint[0, place] = state.checkpoint[1, place]
        if state.checkpoint[1, place] >= 0:
            copy(state.checkpoint_free_at[0, place], state.checkpoint_free_at[1, place])
            copy(state.checkpoint_work[0, place], state.checkpoint_work[1, place])
            copy(state.checkpoint_link_time[0, place], state.checkpoint_link_time[1, place])
    update_bounds(problem, state)


@piece
def cache_all_overlaps(problem: Problem, state: State) -> None:
    """Cache the strategy's new overlaps; rebuild the cache each time half of its room was used."""
    if state.cursor[1] - state.cursor[2] > MAX_CACHED_OVERLAPS // 2:
        state.cursor[1] = state.cursor[2] = 0
        fill(state.cached, 0)
    for layer in range(len(problem.shape)):
        if not state.local[layer]:
            for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
                if not state.cached[edge]:
                    cache_overlaps(problem, state, edge, layer)
    if state.cursor[2] == 0:
        state.cursor[2] = state.cursor[1]


@inlined
def add_work(problem: Problem, config: int, devices: Ints, sign: int, work: Ints, used_bytes: Ints) -> None:
    """Add a layer's computation and memory to the totals of its devices, or subtract them."""
    time = sign * (problem.forward[config] + problem.backward[config])
    memory = sign * problem.memory[config]
    for part in range(problem.parts[config]):
        work[devices[part]] += time
        used_bytes[devices[part]] += memory


@inlined
def apply_change(problem: Problem, state: State, i: int) -> None:
    """Give the i-th of the `changed` layers its chosen configuration and the proposed devices."""
    layer = state.changed[i]
    state.saved[layer] = state.config[layer]
    copy(state.saved_device[layer], state.device[layer])
    state.config[layer] = state.chosen[i]
    copy(state.device[layer], state.proposed)
    for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
        state.cached[edge] = 0
    for at in range(problem.first_user[layer], problem.first_user[layer + 1]):
        user = problem.user[at]
        for edge in range(problem.first_edge[user], problem.first_edge[user + 1]):
            state.cached[edge] = state.cached[edge] and problem.source[edge] != layer


@piece
def apply_changes(problem: Problem, state: State, count: int, full: bool) -> None:
    """Apply the change of each `changed` layer, of its `link_time`, and of the memory of its weights.

    With `full`, compute `link_time`, `work_left` and `strategy_bytes`, but inputs, of all layers anew.
    """
    layers = len(problem.shape)
    if full:
        for i in range(count):
            apply_change(problem, state, i)
        fill(state.cached, 0)
        fill(state.link_time, 0)
        fill(state.work_left, 0)
        fill(state.strategy_bytes, 0)
        for layer in range(layers):
            add_work(
                problem, state.config[layer], state.device[layer], 1, state.work_left, state.strategy_bytes
            )
    for i in range(layers if full else 2 * count):
        layer, sign = (i, 1) if full else (state.changed[i // 2], 2 * (i % 2) - 1)
        if not full and sign > 0:
            apply_change(problem, state, i // 2)
        if not full or problem.owner[layer] == layer:
            add_links(problem, state, problem.owner[layer], sign)
            used_bytes = state.strategy_bytes if full else state.memory_change
            add_weights(problem, state, problem.owner[layer], sign, used_bytes)


@inlined
def list_affected(problem: Problem, state: State, count: int, full: bool) -> int:
    """Set `affected` to the `changed` layers and their users, or to all layers if `full`; return how many."""
    layers, n_affected = len(problem.shape), 0
    for i in range(layers if full else count):
        layer = i if full else state.changed[i]
        first = problem.first_user[layer]
        for at in range(first - 1, first if full else problem.first_user[layer + 1]):
            affected = layer if at < first else problem.user[at]
            if not state.is_affected[affected]:
                state.is_affected[affected] = 1
                state.affected[n_affected] = affected
                n_affected += 1
    for i in range(n_affected):
        state.is_affected[state.affected[i]] = 0
    return n_affected


@piece
def update_flags(problem: Problem, state: State, count: int) -> None:
    """Update `local` and `distinct` of the affected layers, and `follows` of these and the next ones."""
    for i in range(count):
        layer = state.affected[i]
        state.local[layer] = is_local(problem, state, layer)
        state.distinct[layer] = has_distinct_devices(problem, state, layer)
    for i in range(2 * count):
        layer = state.affected[i // 2] + i % 2
        if layer < len(problem.shape):
            state.follows[layer] = is_following(problem, state, layer)


@inlined
def estimate_change(problem: Problem, state: State, count: int) -> int:
    """Set `work_change` and `memory_change` of a proposal; return how much it can shorten `tail` at most."""
    fill(state.work_change, 0)
    fill(state.memory_change, 0)
    slack = 0
    for i in range(count):
        layer = state.changed[i]
        before, after = state.config[layer], state.chosen[i]
        add_work(problem, before, state.device[layer], -1, state.work_change, state.memory_change)
        add_work(problem, after, state.proposed, 1, state.work_change, state.memory_change)
        gained = (
            problem.forward[before]
            + problem.backward[before]
            - problem.forward[after]
            - problem.backward[after]
        )
        slack += max(0, gained)
    return slack


@inlined
def can_finish(state: State, index: int, limit: int) -> bool:
    """Return whether all devices can finish their work by `limit`."""
    for device in range(len(state.used_bytes)):
        if (
            state.checkpoint_free_at[0, index, device]
            + state.checkpoint_work[0, index, device]
            + state.work_change[device]
            > limit
        ):
            return False
    return True


@inlined
def excess_bytes(problem: Problem, state: State) -> int:
    """Return by how many bytes all devices together exceed their memory after a proposal."""
    excess = 0
    for device in range(len(state.used_bytes)):
        excess += max(0, state.used_bytes[device] + state.memory_change[device] - problem.memory_limit[0])
    return excess


@inlined
def find_checkpoint(state: State, count: int) -> int:
    """Return the last checkpoint that is not after a `changed` layer."""
    begin = NEVER
    for i in range(count):
        begin = min(begin, state.changed[i])
    index = begin // CHECKPOINT_LAYERS
    while state.checkpoint[0, index] < 0 or state.checkpoint[0, index] > begin:
        index -= 1
    return index


@piece
def apply_proposal(problem: Problem, state: State, count: int, full: bool) -> int:
    """Apply a proposal, save what it changes, and complete `memory_change`; return the affected layers."""
    copy(state.saved_local, state.local)
    copy(state.saved_distinct, state.distinct)
    copy(state.saved_follows, state.follows)
    copy(state.saved_link_time, state.link_time)
    copy(state.saved_device_set, state.device_set)
    copy(state.saved_cached, state.cached)
    n_affected = list_affected(problem, state, count, full)
    for i in range(0 if full else n_affected):
        add_inputs(problem, state, state.affected[i], -1, state.memory_change)
    apply_changes(problem, state, count, full)
    for i in range(n_affected):
        used_bytes = state.strategy_bytes if full else state.memory_change
        add_inputs(problem, state, state.affected[i], 1, used_bytes)
    for device in range(len(state.used_bytes) if full else 0):
        state.memory_change[device] = state.strategy_bytes[device] - state.used_bytes[device]
    return n_affected


@inlined
def undo_proposal(state: State, count: int) -> None:
    """Restore what `apply_proposal` has saved."""
    for i in range(count):
        layer = state.changed[i]
        state.config[layer] = state.saved[layer]
        copy(state.device[layer], state.saved_device[layer])
    copy(state.local, state.saved_local)
    copy(state.distinct, state.saved_distinct)
    copy(state.follows, state.saved_follows)
    copy(state.link_time, state.saved_link_time)
    copy(state.device_set, state.saved_device_set)
    copy(state.cached, state.saved_cached)


@inlined
def accept_proposal(problem: Problem, state: State, index: int, full: bool) -> None:
    """Make the trial, its overlaps, memory and work the accepted ones."""
    state.end_counts[ACCEPTED] += 1
    accept_trial(problem, state, index)
    if not full:
        cache_all_overlaps(problem, state)
    state.excess[0] = excess_bytes(problem, state)
    for device in range(len(state.used_bytes)):
        state.used_bytes[device] += state.memory_change[device]
    for place in range(index):
        for device in range(len(state.used_bytes) if state.checkpoint[0, place] >= 0 else 0):
            state.checkpoint_work[0, place, device] += state.work_change[device]


@compiled
def try_change(problem: Problem, state: State, count: int, full: bool, limit: int) -> int:
    """Give the `changed` layers their chosen configurations and proposed devices.

    Args:
        problem: The problem.
        state: The accepted strategy, with the proposal in `changed`, `chosen` and `proposed`.
        count: Number of changed layers.
        full: Simulate the whole strategy, regardless of the limit.
        limit: Time in ps above which the proposal is rejected, unless devices lack less memory after it.

    Returns:
        The time of a step if it is at most `limit` and devices lack no more memory than before, or if they
        lack less, and the proposal is accepted; else NEVER, and the state is restored.
    """
    slack = estimate_change(problem, state, count)
    index = 0 if full else find_checkpoint(state, count)
    fits, time = state.excess[0] == 0, NEVER
    if count and fits and not can_finish(state, index, NEVER if full else limit):
        state.end_counts[BEFORE] += 1
        return NEVER
    n_affected = apply_proposal(problem, state, count, full)
    excess = excess_bytes(problem, state)
    if excess < state.excess[0]:
        limit = NEVER - 1
    has_time = count == 0 or fits or can_finish(state, index, NEVER if full else limit)
    if count == 0 or (excess <= state.excess[0] and has_time):
        for device in range(0 if full else len(state.work_left)):
            state.work_left[device] = state.checkpoint_work[0, index, device] + state.work_change[device]
        update_flags(problem, state, n_affected)
        time = simulate(problem, state, index, slack, NEVER if full else limit)
    else:
        state.end_counts[BEFORE] += 1
    if time > limit or time == NEVER:
        undo_proposal(state, count)
        return NEVER
    accept_proposal(problem, state, index, full)
    return time


def simulate_strategy(problem: Problem, state: State) -> int:
    """Simulate and accept the strategy in `state`, and set its `excess`; return its time in ps."""
    state.checkpoint_free_at[0, 0] = state.checkpoint_link_time[0, 0] = state.checkpoint[0, 0] = 0
    state.cursor[1] = state.cursor[2] = 0
    return try_change(problem, state, 0, True, NEVER)


@inlined
def draw_integer(random: Ints, bound: int) -> int:
    """Return a random integer from 0 to `bound` - 1, where `bound` is at most 2**31.

    L'Ecuyer (CACM 1988): two congruences, without products of more than 63 bits. `random` [2] is the state.
    """
    random[0] = random[0] * 40014 % 2147483563
    random[1] = random[1] * 40692 % 2147483399
    return (random[0] + random[1]) % 2147483563 * bound // 2147483563


@inlined
def place_parts(problem: Problem, random: Ints, parts: int, structured: bool, devices: Ints) -> None:
    """Place parts on random devices.

    Each part is placed independently; or, half of the time and always if `structured`, in order from a random
    device on, adjacent or spread out. If `structured`, some devices may get several parts.
    """
    count = problem.tier_of.shape[0]
    if not structured and draw_integer(random, 2):
        for part in range(parts):
            devices[part] = draw_integer(random, count)
        return
    first, stride, spread = draw_integer(random, count), 1, min(parts, count)
    if structured and draw_integer(random, 4) == 0:
        spread = 1 + draw_integer(random, spread)
    if draw_integer(random, 2):
        stride = count // spread
    if structured:
        first -= first % (spread * stride)
        first += draw_integer(random, stride)
    for part in range(parts):
        devices[part] = (first + part * spread // parts * stride) % count


@inlined
def has_same_degrees(problem: Problem, config: int, like: int) -> bool:
    """Return whether two configurations partition in the same way."""
    for dimension in range(DIMENSIONS):
        if problem.degrees[config, dimension] != problem.degrees[like, dimension]:
            return False
    return True


@inlined
def matching_config(problem: Problem, layer: int, like: int) -> int:
    """Return the configuration of a layer that partitions like `like`, -1 if there is none."""
    for config in range(problem.first_config[layer], problem.first_config[layer + 1]):
        if has_same_degrees(problem, config, like):
            return config
    return -1


@inlined
def matches_previous(problem: Problem, state: State, layer: int) -> bool:
    """Return whether a layer is partitioned like the one before it, on the same devices, all distinct."""
    return state.follows[layer] and has_same_degrees(problem, state.config[layer], state.config[layer - 1])


@inlined
def choose_layers(problem: Problem, state: State, group: Ints, layer: int, scope: int) -> int:
    """Set `changed` to the layers that change with `layer`; return how many.

    `scope` 0: adjacent layers that match; 1: all of its `group`; 2: the layer itself.
    """
    layers, first, count = len(problem.shape), layer, 0
    while scope == 0 and matches_previous(problem, state, first):
        first -= 1
    for candidate in range(0 if scope == 1 else first, layers):
        if scope == 0 and candidate > layer and not matches_previous(problem, state, candidate):
            break
        if scope == 1 and group[candidate] != group[layer]:
            continue
        state.changed[count] = candidate
        count += 1
        if scope > 1:
            break
    return count


@piece
def propose(problem: Problem, state: State, group: Ints, structured: bool) -> int:
    """Draw a proposal into `changed`, `chosen` and `proposed`; return how many layers change.

    If `structured`, a third of the proposals change all layers of a `group`, a third all adjacent layers that
    match, and a third copy what a neighbour has.
    """
    layers, random = len(problem.shape), state.random
    layer = draw_integer(random, layers)
    count = choose_layers(problem, state, group, layer, draw_integer(random, 3) if structured else 2)
    first = problem.first_config[layer]
    config = -1
    if structured and draw_integer(random, 3) == 0:
        neighbour = (layer + 1 if draw_integer(random, 2) else layer - 1 + layers) % layers
        config = matching_config(problem, layer, state.config[neighbour])
        if config >= 0:
            copy(state.proposed, state.device[neighbour])
    if config < 0:
        config = first + draw_integer(random, problem.first_config[layer + 1] - first)
        place_parts(problem, random, problem.parts[config], structured, state.proposed)
    n_changed = 0
    for i in range(count):
        matching = matching_config(problem, state.changed[i], config)
        if matching >= 0:
            state.changed[n_changed] = state.changed[i]
            state.chosen[n_changed] = matching
            n_changed += 1
    return n_changed


@compiled
def search(
    problem: Problem,
    state: State,
    group: Ints,
    structured: bool,
    schedule: tuple[float, float],
    seed: int,
    full: bool,
    cost: int,
    best: tuple[Ints, Ints],
    costs: Ints,
) -> int:
    """Search by Metropolis-Hastings from the accepted strategy in `state`; return the least time in ps.

    Each proposal gives a random layer a random configuration and devices. It is accepted with probability
    min(1, exp((before - after) / temperature)). The temperature falls geometrically. As long as devices lack
    memory, a proposal by which they lack less is always accepted, and one by which they lack more never is.

    Args:
        problem: The problem.
        state: The accepted strategy; `end_counts` is counted from 0.
        group: [L] the group of each layer.
        structured: As in `propose`.
        schedule: First and last temperature in ps.
        seed: Of random numbers.
        full: As in `try_change`.
        cost: Time of the accepted strategy in ps.
        best: Set to configurations [L] and devices [L, P] of the fastest strategy among those that lack the
            least memory.
        costs: [proposals] set to its time after each proposal, NEVER as long as it lacks memory.
    """
    proposals, layers = len(costs), len(problem.shape)
    state.random[0] = state.random[1] = 1 + seed % 2147483398
    for _ in range(4):
        draw_integer(state.random, 2)
    best_cost, best_excess, temperature = cost, state.excess[0], schedule[0]
    fill(state.end_counts, 0)
    for layer in range(layers):
        best[0][layer] = state.config[layer]
        copy(best[1][layer], state.device[layer])
    ratio = (schedule[1] / schedule[0]) ** (1 / max(1, proposals - 1))
    for step in range(proposals):
        count = propose(problem, state, group, structured)
        uniform = (draw_integer(state.random, 1 << 30) + 1) / (1 << 30)
        limit = int(cost - temperature * np.log(uniform))
        time = try_change(problem, state, count, full, limit)
        if time < NEVER:
            cost = time
            if cost < best_cost or state.excess[0] < best_excess:
                best_cost, best_excess = cost, state.excess[0]
                for layer in range(layers):
                    best[0][layer] = state.config[layer]
                    copy(best[1][layer], state.device[layer])
        costs[step] = NEVER if best_excess else best_cost
        temperature *= ratio
    return best_cost


@compiled
def sent_bytes(problem: Problem, state: State) -> tuple[int, int]:
    """Return the bytes sent in a step: of outputs and their gradients, and of gradients of weights."""
    activations = gradients = 0
    for layer in range(len(problem.shape)):
        config = state.config[layer]
        for part in range(problem.parts[config]):
            device = state.device[layer, part]
            previous = part - problem.chain_stride[config]
            if follows_link(problem, config, part) and state.device[layer, previous] != device:
                activations += problem.state_bytes[config]
            for edge in range(problem.first_edge[layer], problem.first_edge[layer + 1]):
                n_overlaps = find_overlaps(problem, state, edge, layer, part)
                for i in range(state.cursor[0], state.cursor[0] + n_overlaps):
                    if state.device[problem.source[edge], state.overlap_parts[i]] != device:
                        activations += state.overlap_bytes[i]
        size = problem.shard_bytes[config]
        if size == 0 or problem.owner[layer] != layer:
            continue
        for shard in range(problem.shards[config]):
            # A ring of k devices sends each byte 2 (k - 1) times, and so does an owner with k - 1 others.
            gradients += 2 * (gather_devices(problem, state, layer, shard) - 1) * size
    return 2 * activations, gradients
