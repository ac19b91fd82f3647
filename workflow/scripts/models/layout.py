"""Lay out a strategy as messages: the regions of outputs that parts of layers need from other parts.

Standard library only, like models.graph.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.graph import BYTES, Graph
from models.soap import (
    DIMENSIONS,
    POSITIONS,
    Degrees,
    Layer,
    Space,
    divide,
    part_of,
    region_needed,
    region_of,
)
from models.strategy import Strategy

Region = Sequence[tuple[int, int]]
Place = tuple[int, int]  # indices of a layer and of one of its parts

BucketBytes = tuple[int, int]
# Gradients are all-reduced in buckets, so that the fixed cost of an all-reduce does not dominate. The first
# one is closed at the first limit, so that communication begins early; the others at the second. These are
# the limits of PyTorch's DistributedDataParallel (`_DEFAULT_FIRST_BUCKET_BYTES` and `bucket_cap_mb`).
BUCKET_BYTES: BucketBytes = (2**20, 25 * 2**20)


@dataclass(frozen=True)
class Message:
    """A region of the output of part `source` that part `target` needs.

    Attributes:
        number: Index among all messages of a step.
        edge: Index of the edge of the space, None along a chain.
        source: Part that sends.
        target: Part that receives.
        region: What is sent.
        of_state: Whether it is the state of an LSTM, whose region is a range of samples.
    """

    number: int
    edge: int | None
    source: Place
    target: Place
    region: Region
    of_state: bool = False


@dataclass(frozen=True)
class Layout:
    """Degrees and devices of each layer, and all messages of a step.

    Messages are ordered by target. Those between parts on the same device are included.
    """

    space: Space
    degrees: tuple[Degrees, ...]
    devices: tuple[tuple[int, ...], ...]
    messages: tuple[Message, ...]
    bucket_bytes: BucketBytes = BUCKET_BYTES

    def device(self, place: Place) -> int:
        """Return the device of a part."""
        return self.devices[place[0]][place[1]]

    def region(self, place: Place) -> Region:
        """Return the region of the output that a part computes."""
        return region_of(self.space.layers[place[0]], self.degrees[place[0]], place[1])

    def input_region(self, message: Message) -> Region:
        """Return the whole region that a message's target needs from the output of the source's layer."""
        output = self.region(message.target)
        if message.edge is None:
            return (output[0],)
        edge = self.space.edges[message.edge]
        needed = region_needed(edge.needed, output, self.space.layers[edge.source].shape) or ()
        return needed[:1] if message.of_state else needed

    def shard(self, place: Place) -> int:
        """Return the index of the shard of its layer's weights that a part has."""
        dimension = self.space.layers[place[0]].divides
        return 0 if dimension is None else part_of(place[1], self.degrees[place[0]])[dimension]

    def shards(self, layer: int) -> int:
        """Return the number of shards of a layer's weights."""
        dimension = self.space.layers[layer].divides
        return 1 if dimension is None else self.degrees[layer][dimension]

    def holders(self, layer: int, shard: int) -> list[int]:
        """Return the devices that have a shard of a layer's weights."""
        parts = range(len(self.devices[layer]))
        return sorted({self.devices[layer][part] for part in parts if self.shard((layer, part)) == shard})

    def tied(self, layer: int) -> list[int]:
        """Return the later layers that use the same weights as a layer."""
        return [index for index, user in enumerate(self.space.layers) if user.shared == layer]

    def members(self, layer: int, shard: int) -> tuple[int, ...]:
        """Return the devices that all-reduce the gradients of a shard of a layer's weights."""
        users = (device for user in self.tied(layer) for device in self.devices[user])
        return tuple(sorted({*self.holders(layer, shard), *users}))

    def sums(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield the layers and the shard of each gradient all-reduce, in the order of the backward pass.

        Consecutive layers whose undivided weights are on the same devices share a bucket, which is closed
        once it reaches its limit in `bucket_bytes`.
        """
        bucket: list[int] = []
        size = n_buckets = 0
        bucket_members: tuple[int, ...] = ()
        for index, layer in reversed(list(enumerate(self.space.layers))):
            if layer.shared is not None or not layer.parameters:
                continue
            members = [self.members(index, shard) for shard in range(self.shards(index))]
            if all(len(devices) == 1 for devices in members):
                continue
            fits_bucket = len(members) == 1 and not self.tied(index)
            is_full = size >= self.bucket_bytes[min(n_buckets, 1)]
            if bucket and (not fits_bucket or members[0] != bucket_members or is_full):
                yield tuple(bucket), 0
                bucket, size, n_buckets = [], 0, n_buckets + 1
            if fits_bucket:
                bucket.append(index)
                size += BYTES * layer.part_parameters(self.degrees[index])
                bucket_members = members[0]
            else:
                yield from (((index,), shard) for shard, devices in enumerate(members) if len(devices) > 1)
        if bucket:
            yield tuple(bucket), 0


def lay_out(graph: Graph, batch: int, strategy: Strategy, bucket_bytes: BucketBytes = BUCKET_BYTES) -> Layout:
    """Return the layout of a strategy for batches of `batch` samples."""
    space = divide(graph, batch)
    parts = [strategy[layer.name] for layer in space.layers]
    degrees, devices = tuple(part.degrees for part in parts), tuple(part.devices for part in parts)
    unnumbered = (
        fields
        for layer in range(len(space.layers))
        for part in range(len(devices[layer]))
        for fields in _message_fields(space, degrees, (layer, part))
    )
    messages = tuple(Message(number, *fields) for number, fields in enumerate(unnumbered))
    return Layout(space, degrees, devices, messages, bucket_bytes)


MessageFields = tuple[int | None, Place, Place, Region, bool]


def _message_fields(space: Space, degrees: Sequence[Degrees], target: Place) -> Iterator[MessageFields]:
    """Yield the fields of every message to a part, without its number."""
    place, part = target
    for number, needed, of_state in regions_needed(space, degrees[place], target):
        if number is None:
            yield None, (place, part - math.prod(degrees[place][POSITIONS + 1 :])), target, needed, of_state
            continue
        source = space.edges[number].source
        for source_part in range(math.prod(degrees[source])):
            computed = region_of(space.layers[source], degrees[source], source_part)
            common = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(needed, computed, strict=True)]
            if all(first < end for first, end in common):
                yield number, (source, source_part), target, tuple(common), of_state


def regions_needed(
    space: Space, degrees: Degrees, target: Place
) -> Iterator[tuple[int | None, Region, bool]]:
    """Yield the regions that a part needs from other layers, in the order of its inputs.

    Args:
        space: The layers and edges of the model.
        degrees: Degrees of the part's layer.
        target: The part.

    Yields:
        Index of the edge (None along a chain), region (along a chain a range of samples), and whether it is
        an LSTM's state.
    """
    place, part = target
    layer = space.layers[place]
    output, link = region_of(layer, degrees, part), part_of(part, degrees)[POSITIONS]
    if layer.chain and link > 0:
        yield None, (output[0],), True
    for number, edge in enumerate(space.edges):
        if edge.target == place and not (edge.first_only and link > 0):
            needed = region_needed(edge.needed, output, space.layers[edge.source].shape)
            if needed:
                yield number, needed, edge.first_only


def reads(space: Space, shape: Sequence[int], layer: int, output: Region) -> list[Region]:
    """Return the regions of samples of this shape that a layer reads for a region of its output."""
    sizes = [space.batch, *shape, *[1] * (DIMENSIONS - 1 - len(shape))]
    regions = (region_needed(edge.needed, output, sizes) for edge in space.reads if edge.target == layer)
    return [region for region in regions if region]


def dimensions(layer: Layer, graph: Graph) -> int:
    """Return the number of dimensions of a layer's output for one sample."""
    if not layer.operators:
        return 1
    name = layer.operators[0]
    return (
        len(graph.by_name[name].shape) if name in graph.by_name else 2
    )  # the heads of attention have positions and heads
