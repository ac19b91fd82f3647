"""A strategy laid out: which part of which layer needs what of which other one, as messages between devices. Standard library only."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.graph import Graph
from models.soap import DIMENSIONS, POSITIONS, Degrees, Layer, Space, divide, part_of, region_needed, region_of
from models.strategy import Strategy

Region = Sequence[tuple[int, int]]
Place = tuple[int, int]  # a layer, and one of its parts


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
