"""What one exchange of gradients sends, and how long it keeps a step waiting: each library's messages on a timeline.

A framework sends one message after the other, or so many at once that its `channels` are busy. Which tensors share a message is the library's rule:

    ends     all gradients in one message, after the backward pass (TensorFlow: cross_device_utils.group_by_size with
             bytes_per_pack 0)
    buckets  tensors in the order in which the backward pass makes them; a bucket is sent once it has reached its limit
             (PyTorch DDP: Li et al., VLDB 2020, section 3.2.3; Reducer::rebuild_buckets and
             compute_bucket_assignment_by_size: 1 MiB the first, 25 MiB the others)
    fusion   what is ready when the last message has arrived goes as one, up to a limit (Horovod: Sergeev & Del Balso 2018,
             section 3.1; operations.cc: 128 MiB, looked for in cycles of 1 ms)
    units    layers in the order of the forward pass, joined until they reach a limit; each unit's parameters are gathered before
             it is used and again in the backward pass, but those of the last unit, which stay; its gradients are reduced to
             shares (PyTorch FSDP2: Zhao et al., VLDB 2023, section 3.2; frameworks/pytorch-fsdp). Until the ranks exchange again,
             a unit's parameters stay after the backward pass, so that only the backward passes gather.
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
from prediction.law import Here

MIB = 2**20
SHARDS = (ALL_GATHER, REDUCE_SCATTER)
NUMBER_BYTES = 8.0  # of what ranks tell each other beside gradients
BACKWARD_SHARE = 2 / 3  # of a step's computation: two products of matrices for each of the forward pass


@dataclass(frozen=True)
class Rule:
    """How a library makes messages of tensors. `limits_bytes`: of the first and of all other messages; `extra`: messages
    of a few bytes that an exchange has beside the gradients, by training loop; `channels`: messages under way at once."""

    kind: str
    limits_bytes: tuple[float, float] = (math.inf, math.inf)
    cycle_s: float = 0.0
    channels: int = 1
    extra: Mapping[str, int] = field(default_factory=dict)


@functools.cache
def rule_of(framework: str) -> Rule:
    """What its framework.yaml says (exchange); of a framework that says nothing, or is not here any more, one message at the end."""
    said = load_framework(framework).exchange if framework in framework_names() else None
    if said is None:
        return Rule("ends")
    first, others = said.limits_mib or (math.inf, math.inf)
    return Rule(said.messages, (MIB * first, MIB * others), said.cycle_s, said.channels, said.extra)


def described() -> list[str]:
    """The frameworks whose messages are known."""
    return [name for name in framework_names() if load_framework(name).exchange]


def streams(framework: str) -> bool:
    """Whether a framework sends while others of its messages are not there yet."""
    return rule_of(framework).kind != "ends"


def is_sharded(framework: str) -> bool:
    """Whether its messages are SHARDS. Where these were not swept, all gradients are taken for one all-reduce."""
    return rule_of(framework).kind == "units"


@dataclass(frozen=True)
class Tensors:
    """Gradients in the order in which the backward pass makes them: sizes in bytes, which share of it is done then, and a number
    that all of one layer have (None: each is a layer); [tensors] each."""

    bytes: np.ndarray
    ready: np.ndarray
    layer: np.ndarray | None = None

    @property
    def total_bytes(self) -> float:
        """Of all gradients."""
        return float(self.bytes.sum())


def tensors(graph: Graph) -> Tensors:
    """The gradients of a model. An operator's share of the backward pass is its share of the multiplications."""
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
    return Tensors(np.array(sizes), np.array(ready), np.array(layers))


def whole(gradient_bytes: float) -> Tensors:
    """A model of which only the size is known: one tensor, ready at the end."""
    return Tensors(np.array([gradient_bytes]), np.array([1.0]))


def buckets(made: Tensors, limits_bytes: tuple[float, float]) -> Tensors:
    """The tensors joined to buckets: one is closed by the tensor with which it reaches its limit."""
    sizes: list[float] = []
    ready: list[float] = []
    open_bytes = 0.0
    for position, (size, share) in enumerate(zip(made.bytes, made.ready, strict=True), start=1):
        open_bytes += size
        if open_bytes >= limits_bytes[min(len(sizes), 1)] or position == len(made.bytes):
            sizes.append(open_bytes)
            ready.append(share)
            open_bytes = 0.0
    return Tensors(np.array(sizes), np.array(ready))


def exposed(rule: Rule, made: Tensors, here: Here, backward_s: np.ndarray, hidden: float) -> np.ndarray:
    """Seconds by which an exchange outlasts the backward pass, [cells].

    `here` is the network's law at the cells; `backward_s` [cells] the backward pass; `hidden` in [0, 1] the share of it
    beside which messages travel: at 0 all of them wait for its end, time 0.
    """
    if rule.kind in ("ends", "units"):
        return here.seconds(np.full(len(backward_s), made.total_bytes))
    window = hidden * backward_s
    if rule.kind == "fusion":
        return np.maximum(_fused(rule, made, here, window), 0.0)
    free, ends = -window, [-window] * rule.channels
    joined = buckets(made, rule.limits_bytes)
    for size, share in zip(joined.bytes, joined.ready, strict=True):
        sizes = np.full(len(window), size)
        start = np.maximum(ends[-rule.channels], -window * (1 - share))
        free = np.maximum(free, start) + here.occupied(sizes)
        ends.append(np.maximum(start + here.seconds(sizes), free))
    return np.maximum(np.max(ends, axis=0), 0.0)


def _fused(rule: Rule, made: Tensors, here: Here, window: np.ndarray) -> np.ndarray:
    """When the last fused message has arrived, [cells], 0 being the end of the backward pass."""

    limit = min(rule.limits_bytes[1], made.total_bytes)

    def send(free: np.ndarray, first: np.ndarray, size: np.ndarray) -> np.ndarray:
        full = np.ceil(size / limit) - 1
        took = here.seconds(size - full * limit) + full * here.seconds(np.full(len(size), limit))
        return np.maximum(free, first) + rule.cycle_s / 2 + took

    free, first, waiting = -window, -window, np.zeros(len(window))
    for size, share in zip(made.bytes, made.ready, strict=True):
        now = -window * (1 - share)
        leaves = (waiting > 0) & (np.maximum(free, first) < now)
        if leaves.any():
            free = np.where(leaves, send(free, first, waiting), free)
            waiting = np.where(leaves, 0.0, waiting)
        first = np.where(waiting == 0, now, first)
        waiting = waiting + size
    return send(free, first, waiting)


@dataclass(frozen=True)
class Units:
    """Layers that are sharded together, in the order of the forward pass: bytes of their parameters, and their share of its work."""

    bytes: np.ndarray
    share: np.ndarray


def units(made: Tensors, limit_bytes: float) -> Units:
    """The layers joined to units (models.messages.units)."""
    layer = np.arange(len(made.bytes)) if made.layer is None else made.layer
    tensors_of = [layer == number for number in sorted(set(layer.tolist()), reverse=True)]
    sizes = [float(made.bytes[own].sum()) for own in tensors_of]
    joined = messages.units(sizes, limit_bytes)
    # share of the work from the first layer of each unit on
    left = [1.0, *(float(made.ready[tensors_of[unit[0]]][0]) for unit in joined[1:])]
    return Units(
        np.array([sum(sizes[i] for i in unit) for unit in joined]), np.array(left) - np.array([*left[1:], 0.0])
    )


def exposed_units(
    made: Units, gather: Here, scatter: Here, backward_s: np.ndarray, hidden: float, batches: np.ndarray
) -> np.ndarray:
    """Seconds that an exchange of sharded units adds to its `batches`, [cells].

    `gather` and `scatter` are the laws of all-gather and reduce-scatter at the cells; the others as in `exposed`. Messages
    travel one after the other. A unit's gathering starts with the work on the unit before it; the last unit is gathered first,
    and its gradients are reduced last, with those of the first (FSDP2 learns only then that nothing asks for their inputs').
    """
    here = [np.full(len(backward_s), size) for size in made.bytes]
    gathers, scatters = ([law.seconds(size) for size in here] for law in (gather, scatter))
    backward = [hidden * backward_s * share for share in made.share]
    forward = [work * (1 - BACKWARD_SHARE) / BACKWARD_SHARE for work in backward]
    both = _batch(gathers, scatters, forward, backward, first=True, last=True)
    return both + (batches - 1) * _batch(gathers, scatters, forward, backward, first=False, last=False)


def _batch(
    gathers: Sequence[np.ndarray],
    scatters: Sequence[np.ndarray],
    forward: Sequence[np.ndarray],
    backward: Sequence[np.ndarray],
    *,
    first: bool,
    last: bool,
) -> np.ndarray:
    """Seconds by which one batch outlasts its work, [cells]; `first` and `last` of those before an exchange. The lists are by unit."""
    *units, root = range(len(gathers))
    link = done = begun = np.zeros(len(gathers[0]))
    if first:
        link = done = begun = gathers[root]
    for unit in units:
        if first:
            link = np.maximum(link, begun) + gathers[unit]
        begun = np.maximum(done, link)
        done = begun + forward[unit]
    begun = done + forward[root]
    done = begun + backward[root]
    reduced: list[tuple[np.ndarray, np.ndarray]] = []  # when gradients are there, and how long they take
    for unit in reversed(units):
        gathered = np.maximum(link, begun) + gathers[unit]
        link = gathered
        for there, took in reduced:
            link = np.maximum(link, there) + took
        begun = np.maximum(done, gathered)
        done = begun + backward[unit]
        reduced = [(done, scatters[unit])] if last and unit else []
    if last:
        for there, took in [*reduced, *((done, scatters[unit]) for unit in {0, root})]:
            link = np.maximum(link, there) + took
        done = np.maximum(done, link)
    return done - sum(forward) - sum(backward)
