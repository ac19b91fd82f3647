"""A strategy laid out: which part of which layer needs what of which other one, as messages between devices. Standard library only."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.graph import BYTES, Graph
from models.soap import DIMENSIONS, POSITIONS, Degrees, Layer, Space, divide, part_of, region_needed, region_of
from models.strategy import Strategy

Region = Sequence[tuple[int, int]]
Place = tuple[int, int]  # a layer, and one of its parts

#: of a bucket: gradients that are summed as one, so that what a sum takes whatever its size is little; by one layer it may be more
BUCKET_BYTES = 2**20


@dataclass(frozen=True)
class Message:
    """That the part `target` needs a `region` of what the part `source` makes. `number`: its own among all of a step; `edge`: which of
    the space it is for, None along a chain; `of_state`: it is the state of an LSTM, of which the region is samples."""

    number: int
    edge: int | None
    source: Place
    target: Place
    region: Region
    of_state: bool = False


@dataclass(frozen=True)
class Layout:
    """Degrees and devices by layer, and all messages of a step, in the order of the parts that take them; those of a device to itself, too."""

    space: Space
    degrees: tuple[Degrees, ...]
    devices: tuple[tuple[int, ...], ...]
    messages: tuple[Message, ...]

    def device(self, place: Place) -> int:
        """Which one has a part."""
        return self.devices[place[0]][place[1]]

    def region(self, place: Place) -> Region:
        """What a part makes."""
        return region_of(self.space.layers[place[0]], self.degrees[place[0]], place[1])

    def taken(self, message: Message) -> Region:
        """All that the part that takes a message needs of the layer that it is from."""
        made = self.region(message.target)
        if message.edge is None:
            return (made[0],)
        edge = self.space.edges[message.edge]
        needed = region_needed(edge.needed, made, self.space.layers[edge.source].shape) or ()
        return needed[:1] if message.of_state else needed

    def shard(self, place: Place) -> int:
        """Which share of its layer's weights a part has."""
        dimension = self.space.layers[place[0]].divides
        return 0 if dimension is None else part_of(place[1], self.degrees[place[0]])[dimension]

    def shards(self, layer: int) -> int:
        """How many shares a layer's weights have."""
        dimension = self.space.layers[layer].divides
        return 1 if dimension is None else self.degrees[layer][dimension]

    def holders(self, layer: int, shard: int) -> list[int]:
        """The devices that have a share of a layer's weights."""
        parts = range(len(self.devices[layer]))
        return sorted({self.devices[layer][part] for part in parts if self.shard((layer, part)) == shard})

    def tied(self, layer: int) -> list[int]:
        """The later layers that have a layer's weights, too."""
        return [other for other, told in enumerate(self.space.layers) if told.shared == layer]

    def members(self, layer: int, shard: int) -> tuple[int, ...]:
        """The devices that sum gradients of a share of a layer's weights."""
        others = (device for other in self.tied(layer) for device in self.devices[other])
        return tuple(sorted({*self.holders(layer, shard), *others}))

    def sums(self, bucket_bytes: int = BUCKET_BYTES) -> Iterator[tuple[tuple[int, ...], int]]:
        """The sums of gradients in the order of a backward pass: of which layers, and of which share of their weights. Layers that follow each other
        there, and whose weights the same devices have whole, make one sum, until it has `bucket_bytes`."""
        waiting: list[int] = []
        size = 0
        among: tuple[int, ...] = ()
        for layer, told in reversed(list(enumerate(self.space.layers))):
            if told.shared is not None or not told.parameters:
                continue
            members = [self.members(layer, shard) for shard in range(self.shards(layer))]
            if all(len(devices) == 1 for devices in members):
                continue
            one = len(members) == 1 and not self.tied(layer)
            if waiting and (not one or members[0] != among or size >= bucket_bytes):
                yield tuple(waiting), 0
                waiting, size = [], 0
            if one:
                waiting.append(layer)
                size += BYTES * told.part_parameters(self.degrees[layer])
                among = members[0]
            else:
                yield from (((layer,), shard) for shard, devices in enumerate(members) if len(devices) > 1)
        if waiting:
            yield tuple(waiting), 0


def lay_out(graph: Graph, batch: int, strategy: Strategy) -> Layout:
    """The layout of a strategy for batches of so many samples."""
    space = divide(graph, batch)
    parts = [strategy[layer.name] for layer in space.layers]
    degrees, devices = tuple(part.degrees for part in parts), tuple(part.devices for part in parts)
    found = (
        needed
        for layer in range(len(space.layers))
        for part in range(len(devices[layer]))
        for needed in _needed(space, degrees, (layer, part))
    )
    return Layout(space, degrees, devices, tuple(Message(number, *needed) for number, needed in enumerate(found)))


Needed = tuple[int | None, Place, Place, Region, bool]


def _needed(space: Space, degrees: Sequence[Degrees], target: Place) -> Iterator[Needed]:
    """Of every message that a part takes all but its number."""
    place, part = target
    for number, needed, of_state in needs(space, degrees[place], target):
        if number is None:
            yield None, (place, part - math.prod(degrees[place][POSITIONS + 1 :])), target, needed, of_state
            continue
        maker = space.edges[number].source
        for other in range(math.prod(degrees[maker])):
            theirs = region_of(space.layers[maker], degrees[maker], other)
            common = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(needed, theirs, strict=True)]
            if all(first < end for first, end in common):
                yield number, (maker, other), target, tuple(common), of_state


def needs(space: Space, degrees: Degrees, target: Place) -> Iterator[tuple[int | None, Region, bool]]:
    """What a part of a layer with these degrees takes of others, in the order of its inputs: for which edge, None along a chain; the
    region, along a chain samples alone; and whether it is the state of an LSTM."""
    place, part = target
    layer = space.layers[place]
    made, along = region_of(layer, degrees, part), part_of(part, degrees)[POSITIONS]
    if layer.chain and along > 0:
        yield None, (made[0],), True
    for number, edge in enumerate(space.edges):
        if edge.target == place and not (edge.first_only and along > 0):
            needed = region_needed(edge.needed, made, space.layers[edge.source].shape)
            if needed:
                yield number, needed, edge.first_only


def reads(space: Space, shape: Sequence[int], place: int, made: Region) -> list[Region]:
    """What a layer reads of samples of this shape for a region of its output."""
    whole = [space.batch, *shape, *[1] * (DIMENSIONS - 1 - len(shape))]
    found = (region_needed(edge.needed, made, whole) for edge in space.reads if edge.target == place)
    return [region for region in found if region]


def dimensions(layer: Layer, graph: Graph) -> int:
    """How many dimensions a sample of a layer's output has."""
    if not layer.operators:
        return 1
    name = layer.operators[0]
    return len(graph.by_name[name].shape) if name in graph.by_name else 2  # heads of attention are of sequences
