"""Convert a space, costs and a topology to the arrays of `engine`, and strategies to and from them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.graph import BYTES
from models.layout import BUCKET_BYTES, BucketBytes
from models.soap import POSITIONS, Degrees, Needed, Space
from models.strategy import Part, Strategy
from strategies.costs import PartCost
from strategies.engine import Ints, Problem, State, allocate_state
from strategies.memory import buffer_bytes, kept_bytes
from strategies.topology import Topology

PICOSECONDS = 1e12
NO_LIMIT = 2**62
FASTEST, RING, MESSAGES = "fastest", "ring", "messages"
# Gradients are summed by the fastest of three all-reduces (flat ring, hierarchical, tree), as NCCL chooses
# one; by the flat ring alone; or by the first device with the weights, which sends these back.
GRADIENTS = (FASTEST, RING, MESSAGES)


@dataclass(frozen=True)
class Posed:
    """A problem as arrays, its space and topology, and each layer's configurations in order."""

    space: Space
    topology: Topology
    arrays: Problem
    configurations: tuple[tuple[Degrees, ...], ...]

    def state(self, strategy: Strategy) -> State:
        """Return the state of a simulation that contains this strategy.

        Raises:
            ValueError: If the strategy is not of this space.
        """
        state = allocate_state(self.arrays)
        for layer_index, layer in enumerate(self.space.layers):
            part = strategy[layer.name]
            if part.degrees not in self.configurations[layer_index]:
                raise ValueError(f"{layer.name}: {layer.shape} cannot be cut into {part.degrees}")
            state.config[layer_index] = self.arrays.first_config[layer_index] + self.configurations[
                layer_index
            ].index(part.degrees)
            state.device[layer_index, : len(part.devices)] = part.devices
        return state

    def strategy(self, config: Ints, device: Ints) -> dict[str, Part]:
        """Return the strategy in arrays of configurations [L] and devices [L, P], by layer."""
        parts = {}
        for layer_index, layer in enumerate(self.space.layers):
            degrees = self.configurations[layer_index][
                int(config[layer_index]) - int(self.arrays.first_config[layer_index])
            ]
            parts[layer.name] = Part(
                degrees, tuple(int(number) for number in device[layer_index, : math.prod(degrees)])
            )
        return parts

    @property
    def groups(self) -> Ints:
        """For each layer the first one with the same shape, partitions and work, [layers]."""
        first: dict[tuple[object, ...], int] = {}
        layers = self.space.layers
        return np.array(
            [
                first.setdefault(
                    (layer.shape, layer.cut, layer.macs, layer.parameters, layer.cell), layer_index
                )
                for layer_index, layer in enumerate(layers)
            ],
            np.int64,
        )


def pose(
    space: Space,
    topology: Topology,
    cost: Callable[[Space, int, Degrees], PartCost],
    max_parts: int | None = None,
    numbers_of_parameter: int = 4,
    gradients: str = RING,
    bucket_bytes: BucketBytes = BUCKET_BYTES,
) -> Posed:
    """Return the problem of a training step.

    Args:
        space: Layers, their configurations and edges.
        topology: Devices and links.
        cost: Returns the cost of a part: space, index of the layer, degrees.
        max_parts: Of a layer; default: one for each device.
        numbers_of_parameter: Numbers kept per parameter: itself, its gradient, optimizer state.
        gradients: One of GRADIENTS, for weights that several devices have.
        bucket_bytes: As in `models.layout.Layout`.
    """
    max_parts = max_parts or topology.devices
    configurations = tuple(tuple(layer.configurations(max_parts)) for layer in space.layers)
    rows = [
        config_row(space, layer_index, degrees, cost(space, layer_index, degrees), numbers_of_parameter)
        for layer_index, layer_configurations in enumerate(configurations)
        for degrees in layer_configurations
    ]
    edges = space.edges
    first_edge = [
        sum(edge.target < layer_index for edge in edges) for layer_index in range(len(space.layers) + 1)
    ]
    edge_rows = {
        "target_dimension": [
            [-1 if need.dimension is None else need.dimension for need in edge.needed] for edge in edges
        ],
        "stride": [[need.stride for need in edge.needed] for edge in edges],
        "padding": [[need.padding for need in edge.needed] for edge in edges],
        "kernel": [[need.kernel for need in edge.needed] for edge in edges],
        "low": [[need.fixed[0] for need in edge.needed] for edge in edges],
        "high": [[need.fixed[1] for need in edge.needed] for edge in edges],
        "is_identity": [
            [
                need == Needed(dimension) and source_size == target_size
                for dimension, (need, source_size, target_size) in enumerate(
                    zip(
                        edge.needed,
                        space.layers[edge.source].shape,
                        space.layers[edge.target].shape,
                        strict=True,
                    )
                )
            ]
            for edge in edges
        ],
        "source": [edge.source for edge in edges],
        "element_bytes": [edge.element_bytes for edge in edges],
        "first_only": [edge.first_only for edge in edges],
        "needs_source": [
            not edge.first_only
            and all(need.dimension is None or need.kernel > need.padding for need in edge.needed)
            for edge in edges
        ],
    }
    sharer = [-1] * len(space.layers)
    for layer_index, layer in enumerate(space.layers):
        if layer.shared is not None:
            sharer[layer.shared] = layer_index
    integers = {
        "shape": [layer.shape for layer in space.layers],
        "first_config": np.cumsum([0, *map(len, configurations)]),
        "first_edge": first_edge,
        "sharer": sharer,
        "owner": [
            layer_index if layer.shared is None else layer.shared
            for layer_index, layer in enumerate(space.layers)
        ],
        "memory_limit": [min(int(topology.device.memory_bytes), NO_LIMIT)],
        "as_messages": [gradients == MESSAGES],
        "only_rings": [gradients == RING],
        "bucket_bytes": bucket_bytes,
        "device_token": np.random.default_rng(1).integers(1, 2**62, topology.devices),
        "first_user": [
            sum(edge.source < layer_index for edge in edges) for layer_index in range(len(space.layers) + 1)
        ],
        "user": [edge.target for edge in sorted(edges, key=lambda edge: edge.source)],
        **{name: [row[name] for row in rows] for name in rows[0]},
        **edge_rows,
        **link_arrays(topology),
    }
    arrays: dict[str, Any] = {name: np.array(value, np.int64) for name, value in integers.items()}
    tiers, device = topology.tiers, topology.device
    floats = {
        "per_byte": [PICOSECONDS / tier.bytes_s for tier in tiers],
        "ring_per_byte": [PICOSECONDS / (tier.ring_bytes_s or tier.bytes_s) for tier in tiers],
        "handling_per_byte": [PICOSECONDS * device.send_byte_s, PICOSECONDS * device.receive_byte_s],
    }
    arrays |= {name: np.array(value, np.float64) for name, value in floats.items()}
    return Posed(space, topology, Problem(**arrays), configurations)


def config_row(
    space: Space, layer_index: int, degrees: Degrees, cost: PartCost, numbers_of_parameter: int
) -> dict[str, object]:
    """Return the columns of a configuration in a problem's arrays."""
    layer = space.layers[layer_index]
    parts, parameters = math.prod(degrees), layer.part_parameters(degrees)
    shards = 1 if layer.divides is None else degrees[layer.divides]
    behind = 1 if layer.divides is None else math.prod(degrees[layer.divides + 1 :])
    # The layer that owns shared weights updates and sends them, once.
    updated = 0 if layer.shared is not None else parameters
    return {
        "degrees": degrees,
        "chunk": [size // degree for size, degree in zip(layer.shape, degrees, strict=True)],
        "parts": parts,
        "forward": max(1, round(cost.forward * PICOSECONDS)),
        "backward": max(1, round(cost.backward * PICOSECONDS)),
        "update": round(cost.update * PICOSECONDS) if updated else 0,
        "memory": kept_bytes(space, layer_index, degrees),
        "weight_bytes": BYTES * numbers_of_parameter * parameters + buffer_bytes(space, layer_index, degrees),
        "shard_bytes": BYTES * updated,
        "shards": shards,
        "shard_stride": behind,
        "chain_stride": math.prod(degrees[POSITIONS + 1 :]),
        "chain_degree": degrees[POSITIONS] if layer.chain else 1,
        "state_bytes": space.element_bytes * layer.state * layer.shape[0] // degrees[0],
    }


def link_arrays(topology: Topology) -> dict[str, object]:
    """Return the arrays of tiers and links in a problem; times in ps."""
    tiers, devices, device = range(len(topology.tiers)), range(topology.devices), topology.device
    out, into, n_resources = [], [], topology.devices
    for tier in tiers:
        units = [topology.unit(tier, device) for device in devices]
        count = max(units) + 1
        out.append([n_resources + unit for unit in units])
        into.append([n_resources + count + unit for unit in units])
        n_resources += 2 * count
    ring_latencies = [
        PICOSECONDS * (tier.latency_s if tier.ring_latency_s is None else tier.ring_latency_s)
        for tier in topology.tiers
    ]
    return {
        "tier_of": [[topology.tier_between(sender, receiver) for receiver in devices] for sender in devices],
        "latency": [round(tier.latency_s * PICOSECONDS) for tier in topology.tiers],
        "burst": [round(PICOSECONDS * tier.burst_bytes / tier.bytes_s) for tier in topology.tiers],
        "ring_latency": [round(latency) for latency in ring_latencies],
        "ring_hold": [
            round(latency / tier.ring_channels)
            for latency, tier in zip(ring_latencies, topology.tiers, strict=True)
        ],
        "handling": [round(seconds * PICOSECONDS) for seconds in (device.send_s, device.receive_s)],
        "has_handling": [any((device.send_s, device.receive_s, device.send_byte_s, device.receive_byte_s))],
        "out_link": out,
        "in_link": into,
        "n_resources": [n_resources],
    }
