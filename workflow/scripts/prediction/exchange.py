"""What one exchange of gradients sends, and how long it keeps a step waiting: each library's messages on a timeline.

A framework sends one message after the other, or so many at once that its `channels` are busy. Which tensors share a message is the library's rule:

    ends     all gradients in one message, after the backward pass (TensorFlow: cross_device_utils.group_by_size with
             bytes_per_pack 0)
    buckets  tensors in the order in which the backward pass makes them; a bucket is sent once it has reached its limit
             (PyTorch DDP: Li et al., VLDB 2020, section 3.2.3; Reducer::rebuild_buckets and
             compute_bucket_assignment_by_size: 1 MiB the first, 25 MiB the others)
    fusion   what is ready when the last message has arrived goes as one, up to a limit (Horovod: Sergeev & Del Balso 2018,
             section 3.1; operations.cc: 128 MiB, looked for in cycles of 1 ms)
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from declared.frameworks import framework_names, load_framework
from models.graph import BYTES, Graph, is_trained
from prediction.law import Here

MIB = 2**20
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
    limits = [MIB * limit for limit in said.get("limits_mib", (math.inf, math.inf))]
    return Rule(
        said["messages"],
        (limits[0], limits[1]),
        said.get("cycle_s", 0.0),
        said.get("channels", 1),
        said.get("extra", {}),
    )


def described() -> list[str]:
    """The frameworks whose messages are known."""
    return [name for name in framework_names() if load_framework(name).exchange]


def streams(framework: str) -> bool:
    """Whether a framework sends gradients while others are still being made."""
    return rule_of(framework).kind != "ends"


@dataclass(frozen=True)
class Tensors:
    """Gradients in the order in which the backward pass makes them: sizes in bytes, and which share of it is done then."""

    bytes: np.ndarray
    ready: np.ndarray

    @property
    def total_bytes(self) -> float:
        """Of all gradients."""
        return float(self.bytes.sum())


def tensors(graph: Graph) -> Tensors:
    """The gradients of a model. An operator's share of the backward pass is its share of the multiplications."""
    sizes: list[float] = []
    ready: list[float] = []
    done = 0.0
    for operator in reversed(graph.operators):
        done += operator.macs / max(graph.macs, 1)
        own = [shape for name, shape in operator.weights.items() if is_trained(name)]
        sizes += [float(BYTES * math.prod(shape)) for shape in reversed(own)]
        ready += [done] * len(own)
    return Tensors(np.array(sizes), np.array(ready) if sizes else np.array([]))


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
    if rule.kind == "ends":
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
