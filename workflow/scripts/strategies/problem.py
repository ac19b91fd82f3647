"""A space, costs and a topology as the arrays that `engine` computes with, and strategies in and out of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from models.graph import BYTES
from models.layout import BUCKET_BYTES
from models.soap import POSITIONS, Degrees, Layer, Needed, Space
from models.strategy import Part, Strategy
from strategies.costs import Cost
from strategies.engine import Problem, State, state_of
from strategies.topology import Topology

PICOSECONDS = 1e12
NO_LIMIT = 2**62
RING, MESSAGES = "ring", "messages"
# around a ring of all that have the weights; to the first of them, which sends the weights back
GRADIENTS = (RING, MESSAGES)


@dataclass(frozen=True)
class Posed:
    """A problem, what it was made of, and each layer's configurations in their order."""

    space: Space
    topology: Topology
    arrays: Problem
    configurations: tuple[tuple[Degrees, ...], ...]

    def state(self, strategy: Strategy) -> State:
        """Room for simulation, with this strategy in it. ValueError where it is not of this space, in one line."""
        made = state_of(self.arrays)
        for place, layer in enumerate(self.space.layers):
            part = strategy[layer.name]
            if part.degrees not in self.configurations[place]:
                raise ValueError(f"{layer.name}: {layer.shape} cannot be cut into {part.degrees}")
            made.config[place] = self.arrays.first_config[place] + self.configurations[place].index(part.degrees)
            made.device[place, : len(part.devices)] = part.devices
        return made

    def strategy(self, config: Sequence[int], device: np.ndarray) -> dict[str, Part]:
        """What arrays say, by layer."""
        told = {}
        for place, layer in enumerate(self.space.layers):
            degrees = self.configurations[place][int(config[place]) - int(self.arrays.first_config[place])]
            told[layer.name] = Part(degrees, tuple(int(one) for one in device[place, : math.prod(degrees)]))
        return told

    @property
    def groups(self) -> np.ndarray:
        """For each layer the first one that is like it: of one shape, cut alike, with as much work."""
        first: dict[tuple[object, ...], int] = {}
        layers = self.space.layers
        return np.array(
            [
                first.setdefault((layer.shape, layer.cut, layer.macs, layer.parameters, layer.cell), place)
                for place, layer in enumerate(layers)
            ],
            np.int64,
        )


def pose(
    space: Space,
    topology: Topology,
    cost: Callable[[Space, int, Degrees], Cost],
    most_parts: int | None = None,
    numbers_of_parameter: int = 4,
    gradients: str = RING,
    bucket_bytes: int = BUCKET_BYTES,
) -> Posed:
    """The problem of a step. `cost` of a part; `most_parts` of a layer, by default one for each device; `numbers_of_parameter`: kept for each
    parameter, such as itself, its gradient and what the optimizer keeps; `gradients`: one of GRADIENTS, the way of those of weights that several
    devices have; `bucket_bytes`: as of models.layout.Layout.sums."""
    most = most_parts or topology.devices
    every = tuple(tuple(layer.configurations(most)) for layer in space.layers)
    rows = [
        _config(layer, degrees, cost(space, place, degrees), numbers_of_parameter)
        for place, (layer, configurations) in enumerate(zip(space.layers, every, strict=True))
        for degrees in configurations
    ]
    edges = space.edges
    by_target = [sum(edge.target < place for edge in edges) for place in range(len(space.layers) + 1)]
    rules = {
        "of": [[-1 if need.dimension is None else need.dimension for need in edge.needed] for edge in edges],
        "stride": [[need.stride for need in edge.needed] for edge in edges],
        "padding": [[need.padding for need in edge.needed] for edge in edges],
        "kernel": [[need.kernel for need in edge.needed] for edge in edges],
        "low": [[need.fixed[0] for need in edge.needed] for edge in edges],
        "high": [[need.fixed[1] for need in edge.needed] for edge in edges],
        "same": [
            [
                need == Needed(place) and made == taken
                for place, (need, made, taken) in enumerate(
                    zip(edge.needed, space.layers[edge.source].shape, space.layers[edge.target].shape, strict=True)
                )
            ]
            for edge in edges
        ],
        "source": [edge.source for edge in edges],
        "element_bytes": [edge.element_bytes for edge in edges],
        "first_only": [edge.first_only for edge in edges],
        "always": [
            not edge.first_only and all(need.dimension is None or need.kernel > need.padding for need in edge.needed)
            for edge in edges
        ],
    }
    sharer = [-1] * len(space.layers)
    for place, layer in enumerate(space.layers):
        if layer.shared is not None:
            sharer[layer.shared] = place
    integers = {
        "shape": [layer.shape for layer in space.layers],
        "first_config": np.cumsum([0, *map(len, every)]),
        "first_edge": by_target,
        "sharer": sharer,
        "owner": [place if layer.shared is None else layer.shared for place, layer in enumerate(space.layers)],
        "memory_limit": [min(int(topology.device.memory_bytes), NO_LIMIT)],
        "as_messages": [gradients == MESSAGES],
        "bucket_bytes": [bucket_bytes],
        "token": np.random.default_rng(1).integers(1, 2**62, topology.devices),
        "first_user": [sum(edge.source < place for edge in edges) for place in range(len(space.layers) + 1)],
        "user": [edge.target for edge in sorted(edges, key=lambda edge: edge.source)],
        **{name: [row[name] for row in rows] for name in rows[0]},
        **rules,
        **_links(topology),
    }
    arrays = {name: np.array(value, np.int64) for name, value in integers.items()}
    levels, device = topology.levels, topology.device
    floats = {
        "per_byte": [PICOSECONDS / level.bytes_s for level in levels],
        "ring_per_byte": [PICOSECONDS / (level.ring_bytes_s or level.bytes_s) for level in levels],
        "handling_per_byte": [PICOSECONDS * device.send_byte_s, PICOSECONDS * device.receive_byte_s],
    }
    arrays |= {name: np.array(value, np.float64) for name, value in floats.items()}
    return Posed(space, topology, Problem(**arrays), every)


def _config(layer: Layer, degrees: Degrees, cost: Cost, numbers_of_parameter: int) -> dict[str, object]:
    parts, parameters = math.prod(degrees), layer.part_parameters(degrees)
    shards = 1 if layer.divides is None else degrees[layer.divides]
    behind = 1 if layer.divides is None else math.prod(degrees[layer.divides + 1 :])
    own = 0 if layer.shared is not None else parameters
    return {
        "degrees": degrees,
        "chunk": [size // degree for size, degree in zip(layer.shape, degrees, strict=True)],
        "parts": parts,
        "forward": max(1, round(cost.forward * PICOSECONDS)),
        "backward": max(1, round(cost.backward * PICOSECONDS)),
        "update": round(cost.update * PICOSECONDS) if own else 0,
        "memory": BYTES * (numbers_of_parameter * parameters + layer.elements // parts),
        "shard_bytes": BYTES * own,
        "shards": shards,
        "shard_stride": behind,
        "chain_stride": math.prod(degrees[POSITIONS + 1 :]),
        "chain_degree": degrees[POSITIONS] if layer.chain else 1,
        "state_bytes": BYTES * layer.state * layer.shape[0] // degrees[0],
    }


def _links(topology: Topology) -> dict[str, object]:
    levels, devices, device = range(len(topology.levels)), range(topology.devices), topology.device
    out, into, at = [], [], topology.devices
    for level in levels:
        units = [topology.unit(level, device) for device in devices]
        count = max(units) + 1
        out.append([at + unit for unit in units])
        into.append([at + count + unit for unit in units])
        at += 2 * count
    rings = [
        PICOSECONDS * (level.latency_s if level.ring_latency_s is None else level.ring_latency_s)
        for level in topology.levels
    ]
    return {
        "level_of": [[topology.level_between(one, other) for other in devices] for one in devices],
        "latency": [round(level.latency_s * PICOSECONDS) for level in topology.levels],
        "burst": [round(PICOSECONDS * level.burst_bytes / level.bytes_s) for level in topology.levels],
        "ring_latency": [round(one) for one in rings],
        "ring_hold": [round(one / level.ring_channels) for one, level in zip(rings, topology.levels, strict=True)],
        "handling": [round(one * PICOSECONDS) for one in (device.send_s, device.receive_s)],
        "handles": [any((device.send_s, device.receive_s, device.send_byte_s, device.receive_byte_s))],
        "out_link": out,
        "in_link": into,
        "resources": [at],
    }
