"""Time the messages of a mesh by the latencies and rates of a topology's links.

For S bytes among n ranks on N nodes with g of them each, where a device has the rate b and latency l in its
node, and a node the rate B and latency L, a reduce-scatter or all-gather takes the shorter of

    flat ring      (n - 1) max(l + S / (n b), L + S / (n B))
    hierarchical   (g - 1) (l + S / (g b)) + (N - 1) (L + S / (N B))

An all-reduce takes twice that, or 2 (g - 1) l + 2 ceil(log2 N) L + 2 S / min(b, B) by a double binary tree of
nodes, as in strategies.engine. Groups of ranks that send at the same time share the rate of their node.
"""

import math
from dataclasses import dataclass

from models.collectives import ALL_REDUCE, ALL_TO_ALL, POINT_TO_POINT
from models.messages import Message
from strategies.topology import Topology


@dataclass(frozen=True)
class Group:
    """Ranks that take part in a message, and the links between them.

    Attributes:
        per_node: Ranks of the group on a node.
        nodes: Nodes that it spans.
        inner_s: Latency within a node, and `inner_bytes_s` the rate of a device.
        outer_s: Latency between nodes, and `outer_bytes_s` the group's share of a node's rate.
    """

    per_node: int
    nodes: int
    inner_s: float
    inner_bytes_s: float
    outer_s: float
    outer_bytes_s: float

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.per_node * self.nodes


def group_of(message: Message, topology: Topology) -> Group:
    """Return the group of a message's ranks, which are `message.stride` apart."""
    inner, *outer = topology.tiers
    per_node = max(1, min(message.ranks, inner.units // message.stride))
    link = outer[0] if outer else inner
    n_groups = max(1, inner.units // per_node)
    return Group(
        per_node,
        math.ceil(message.ranks / per_node),
        inner.latency_s,
        inner.bytes_s,
        link.latency_s,
        link.bytes_s / n_groups,
    )


def message_seconds(message: Message, topology: Topology) -> float:
    """Return the time of one message."""
    group, size = group_of(message, topology), message.bytes
    if message.kind == POINT_TO_POINT:
        if group.nodes == 1:
            return group.inner_s + size / group.inner_bytes_s
        return group.outer_s + size / group.outer_bytes_s
    if message.kind == ALL_TO_ALL:
        return _all_to_all_seconds(group, size)
    one_way_s = min(_flat_ring_seconds(group, size), _hierarchical_seconds(group, size))
    if message.kind != ALL_REDUCE:
        return one_way_s
    return min(2 * one_way_s, _tree_seconds(group, size))


def _flat_ring_seconds(group: Group, size: float) -> float:
    shard = size / group.ranks
    steps = [group.inner_s + shard / group.inner_bytes_s] if group.per_node > 1 else []
    steps += [group.outer_s + shard / group.outer_bytes_s] if group.nodes > 1 else []
    return (group.ranks - 1) * max(steps, default=0.0)


def _hierarchical_seconds(group: Group, size: float) -> float:
    inner = (group.per_node - 1) * (group.inner_s + size / (group.per_node * group.inner_bytes_s))
    return inner + (group.nodes - 1) * (group.outer_s + size / (group.nodes * group.outer_bytes_s))


def _tree_seconds(group: Group, size: float) -> float:
    rates = [group.inner_bytes_s] * (group.per_node > 1) + [group.outer_bytes_s] * (group.nodes > 1)
    latency_s = (group.per_node - 1) * group.inner_s + math.ceil(math.log2(group.nodes)) * group.outer_s
    return 2 * latency_s + 2 * size / min(rates, default=math.inf)


def _all_to_all_seconds(group: Group, size: float) -> float:
    """Return the time of an all-to-all: each rank sends a share of its bytes to every other one."""
    inner = (group.per_node - 1) * (group.inner_s + size / (group.ranks * group.inner_bytes_s))
    n_outside = group.ranks - group.per_node
    outer = n_outside * (group.outer_s + group.per_node * size / (group.ranks * group.outer_bytes_s))
    return max(inner, outer)
