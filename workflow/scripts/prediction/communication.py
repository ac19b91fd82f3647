"""Messages of one gradient all-reduce, and how much of their time is exposed, by each library's rules.

A framework sends one message after the other, or as many at once as it has `channels`. Libraries differ in
which tensors share a message:

    ends     all gradients in one message, after the backward pass (TensorFlow:
             cross_device_utils.group_by_size with bytes_per_pack 0)
    buckets  tensors in the order of the backward pass; a bucket is sent when it reaches its limit
             (PyTorch DDP: Li et al., VLDB 2020, section 3.2.3; Reducer::rebuild_buckets and
             compute_bucket_assignment_by_size: 1 MiB the first, 25 MiB the others)
    fusion   all tensors that are ready when the last message has arrived, up to a limit (Horovod: Sergeev &
             Del Balso 2018, section 3.1; operations.cc: 128 MiB, checked in cycles of 1 ms)
    units    blocks in the order of the forward pass, and then all that is in no block; in a model without
             blocks, layers joined up to a limit. Each unit's parameters are gathered before its forward pass
             and, except for the last unit, again before its backward pass; its gradients are reduce-scattered
             (PyTorch FSDP2: Zhao et al., VLDB 2023, section 3.2; frameworks/pytorch-fsdp). With gradient
             accumulation, parameters stay after the backward pass until the next optimizer step, so that
             later batches gather only in their backward passes.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from declared.frameworks import framework_names, load_framework
from models import messages
from models.collectives import ALL_GATHER, REDUCE_SCATTER
from models.graph import BYTES, Graph, is_trained
from prediction.law import LocalLaw

MIB = 2**20
SHARDS = (ALL_GATHER, REDUCE_SCATTER)
NUMBER_BYTES = 8.0  # size of the additional messages, which have no gradients
BACKWARD_SHARE = 2 / 3  # of computation: two matrix products for each one in the forward pass


@dataclass(frozen=True)
class Rule:
    """How a library makes messages of tensors.

    Attributes:
        kind: One of ends, buckets, fusion and units (see above).
        limits_bytes: Size limit of the first and of all other messages.
        cycle_s: Seconds between Horovod's checks for ready tensors.
        channels: Number of messages under way at once.
        extra: Additional messages of a few bytes for each step, by training loop.
    """

    kind: str
    limits_bytes: tuple[float, float] = (math.inf, math.inf)
    cycle_s: float = 0.0
    channels: int = 1
    extra: Mapping[str, int] = field(default_factory=dict)


@functools.cache
def message_rule(framework: str) -> Rule:
    """Return the rule of `communication` in framework.yaml; one message at the end if there is none."""
    declared = load_framework(framework).communication if framework in framework_names() else None
    if declared is None:
        return Rule("ends")
    first, later = declared.limits_mib or (math.inf, math.inf)
    return Rule(
        declared.messages, (MIB * first, MIB * later), declared.cycle_s, declared.channels, declared.extra
    )


def described_frameworks() -> list[str]:
    """Return the frameworks that declare their messages."""
    return [name for name in framework_names() if load_framework(name).communication]


def can_overlap(framework: str) -> bool:
    """Return whether a framework sends messages while its backward pass goes on."""
    return message_rule(framework).kind != "ends"


def is_sharded(framework: str) -> bool:
    """Return whether a framework's messages are SHARDS.

    Without a benchmark of these collectives, one all-reduce of all gradients stands for them.
    """
    return message_rule(framework).kind == "units"


@dataclass(frozen=True)
class Tensors:
    """Gradients in the order in which the backward pass computes them.

    Attributes:
        bytes: Sizes, [tensors].
        ready: Share of the backward pass after which each is ready, [tensors].
        layer: A number for each tensor's layer, [tensors]; None: each tensor is a layer.
        blocks: Units of a model with blocks; None of a model without.
    """

    bytes: np.ndarray
    ready: np.ndarray
    layer: np.ndarray | None = None
    blocks: "Units | None" = None

    @property
    def total_bytes(self) -> float:
        """Bytes of all gradients."""
        return float(self.bytes.sum())


def gradient_tensors(graph: Graph) -> Tensors:
    """Return the gradients of a model; operators share the backward pass by their multiplications."""
    sizes: list[float] = []
    ready: list[float] = []
    layers: list[int] = []
    done = 0.0
    for layer, operator in enumerate(reversed(graph.operators)):
        done += operator.macs / max(graph.macs, 1)
        own = [shape for name, shape in operator.weights.items() if is_trained(name)]
        sizes += [float(BYTES * math.prod(shape)) for shape in reversed(own)]
        ready += [done] * len(own)
        layers += [layer] * len(own)
    return Tensors(np.array(sizes), np.array(ready), np.array(layers), block_units(graph))


def block_units(graph: Graph) -> "Units | None":
    """Return the blocks of a model that has any, and last a unit of all its other layers."""
    if not graph.blocks:
        return None
    blocks = [block for block in graph.blocks.values() if any(operator.weights for operator in block)]
    in_blocks = {operator.name for block in blocks for operator in block}
    units = [*blocks, [operator for operator in graph.operators if operator.name not in in_blocks]]
    sizes = [
        sum(
            BYTES * math.prod(shape)
            for operator in unit
            for name, shape in operator.weights.items()
            if is_trained(name)
        )
        for unit in units
    ]
    work = [sum(operator.macs for operator in unit) / max(graph.macs, 1) for unit in units]
    return Units(np.array(sizes, float), np.array(work))


def single_tensor(gradient_bytes: float) -> Tensors:
    """Return the gradients of a model of which only the size is known: one tensor, ready at the end."""
    return Tensors(np.array([gradient_bytes]), np.array([1.0]))


def join_buckets(gradients: Tensors, limits_bytes: tuple[float, float]) -> Tensors:
    """Return the tensors joined to buckets; the tensor that reaches the limit closes a bucket."""
    sizes: list[float] = []
    ready: list[float] = []
    open_bytes = 0.0
    for position, (size, share) in enumerate(zip(gradients.bytes, gradients.ready, strict=True), start=1):
        open_bytes += size
        if open_bytes >= limits_bytes[min(len(sizes), 1)] or position == len(gradients.bytes):
            sizes.append(open_bytes)
            ready.append(share)
            open_bytes = 0.0
    return Tensors(np.array(sizes), np.array(ready))


def exposed_s(
    rule: Rule, gradients: Tensors, network: LocalLaw, backward_s: np.ndarray, hidden: float
) -> np.ndarray:
    """Return seconds of a gradient all-reduce after the end of the backward pass, [cells].

    Args:
        rule: The library's rule.
        gradients: The model's gradients.
        network: The law of all-reduce at the cells.
        backward_s: Time of the backward pass, [cells].
        hidden: Share of the backward pass in [0, 1] that overlaps messages; at 0 they all wait for its end.
    """
    if rule.kind in ("ends", "units"):
        return network.seconds(np.full(len(backward_s), gradients.total_bytes))
    window = hidden * backward_s
    if rule.kind == "fusion":
        return np.maximum(_last_fused_arrival(rule, gradients, network, window), 0.0)
    free, arrivals = -window, [-window] * rule.channels
    joined = join_buckets(gradients, rule.limits_bytes)
    for size, share in zip(joined.bytes, joined.ready, strict=True):
        sizes = np.full(len(window), size)
        start = np.maximum(arrivals[-rule.channels], -window * (1 - share))
        free = np.maximum(free, start) + network.occupied(sizes)
        arrivals.append(np.maximum(start + network.seconds(sizes), free))
    return np.maximum(np.max(arrivals, axis=0), 0.0)


def _last_fused_arrival(rule: Rule, gradients: Tensors, network: LocalLaw, window: np.ndarray) -> np.ndarray:
    """Return when the last fused message arrives, relative to the end of the backward pass, [cells]."""
    limit = min(rule.limits_bytes[1], gradients.total_bytes)

    def send(free: np.ndarray, first: np.ndarray, size: np.ndarray) -> np.ndarray:
        full = np.ceil(size / limit) - 1
        duration = network.seconds(size - full * limit) + full * network.seconds(np.full(len(size), limit))
        return np.maximum(free, first) + rule.cycle_s / 2 + duration

    free, first, waiting = -window, -window, np.zeros(len(window))
    for size, share in zip(gradients.bytes, gradients.ready, strict=True):
        now = -window * (1 - share)
        is_sent = (waiting > 0) & (np.maximum(free, first) < now)
        if is_sent.any():
            free = np.where(is_sent, send(free, first, waiting), free)
            waiting = np.where(is_sent, 0.0, waiting)
        first = np.where(waiting == 0, now, first)
        waiting = waiting + size
    return send(free, first, waiting)


@dataclass(frozen=True)
class Units:
    """Layers that are sharded together, in the order of the forward pass.

    Attributes:
        bytes: Bytes of their parameters, [units].
        share: Their share of the computation, [units].
    """

    bytes: np.ndarray
    share: np.ndarray


def join_units(gradients: Tensors, limit_bytes: float) -> Units:
    """Return a model's blocks, or its layers joined to units (models.messages.units)."""
    if gradients.blocks:
        return gradients.blocks
    layer = np.arange(len(gradients.bytes)) if gradients.layer is None else gradients.layer
    is_in_layer = [layer == number for number in sorted(set(layer.tolist()), reverse=True)]
    sizes = [float(gradients.bytes[mask].sum()) for mask in is_in_layer]
    joined = messages.units(sizes, limit_bytes)
    # Share of the computation from the first layer of each unit on.
    left = [1.0, *(float(gradients.ready[is_in_layer[unit[0]]][0]) for unit in joined[1:])]
    return Units(
        np.array([sum(sizes[i] for i in unit) for unit in joined]),
        np.array(left) - np.array([*left[1:], 0.0]),
    )


def exposed_units_s(
    sharded: Units,
    gather: LocalLaw,
    scatter: LocalLaw,
    backward_s: np.ndarray,
    hidden: float,
    batches: np.ndarray,
) -> np.ndarray:
    """Return seconds that messages of sharded units add to the `batches` of an optimizer step, [cells].

    Messages travel one after the other. A unit is gathered while the unit before it computes. The last unit
    is gathered first, and its gradients are reduced last, together with those of the first: FSDP2 learns only
    then that no layer needs the gradients of its inputs.

    Args:
        sharded: The model's units.
        gather: The law of all-gather at the cells.
        scatter: The law of reduce-scatter at the cells.
        backward_s: Time of the backward pass, [cells].
        hidden: Share of the backward pass in [0, 1] that overlaps messages.
        batches: Batches of an optimizer step, [cells].
    """
    unit_sizes = [np.full(len(backward_s), size) for size in sharded.bytes]
    gathers, scatters = ([law.seconds(size) for size in unit_sizes] for law in (gather, scatter))
    backward = [hidden * backward_s * share for share in sharded.share]
    forward = [work * (1 - BACKWARD_SHARE) / BACKWARD_SHARE for work in backward]
    one_batch = _exposed_batch_s(gathers, scatters, forward, backward, first=True, last=True)
    return one_batch + (batches - 1) * _exposed_batch_s(
        gathers, scatters, forward, backward, first=False, last=False
    )


def _exposed_batch_s(
    gathers: Sequence[np.ndarray],
    scatters: Sequence[np.ndarray],
    forward: Sequence[np.ndarray],
    backward: Sequence[np.ndarray],
    *,
    first: bool,
    last: bool,
) -> np.ndarray:
    """Return seconds that messages add to one batch, [cells]; all sequences are by unit.

    `first` and `last` say where in an optimizer step the batch is.
    """
    *inner, root = range(len(gathers))
    link = done = started = np.zeros(len(gathers[0]))
    if first:
        link = done = started = gathers[root]
    for unit in inner:
        if first:
            link = np.maximum(link, started) + gathers[unit]
        started = np.maximum(done, link)
        done = started + forward[unit]
    started = done + forward[root]
    done = started + backward[root]
    reduced: list[tuple[np.ndarray, np.ndarray]] = []  # when gradients are ready, and how long they travel
    for unit in reversed(inner):
        gathered = np.maximum(link, started) + gathers[unit]
        link = gathered
        for arrival, duration in reduced:
            link = np.maximum(link, arrival) + duration
        started = np.maximum(done, gathered)
        done = started + backward[unit]
        reduced = [(done, scatters[unit])] if last and unit else []
    if last:
        for arrival, duration in [*reduced, *((done, scatters[unit]) for unit in {0, root})]:
            link = np.maximum(link, arrival) + duration
        done = np.maximum(done, link)
    return done - sum(forward) - sum(backward)
