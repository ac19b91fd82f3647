"""Arrange ranks in a device mesh, with one axis for each kind of parallelism.

    pipeline   each rank has consecutive layers
    data       each rank has the whole model and its own samples
    sharded    like data, but ranks keep shards of parameters, gradients or optimizer state (ZeRO)
    experts    like data, but ranks have different experts, to which all of them send positions (Lepikhin et
               al., ICLR 2021)
    tensor     ranks compute shards of a layer for the same samples

Ranks are numbered in row-major order of these axes, so neighbours, such as the ranks of a node, differ in
`tensor`. Standard library only, like models.graph.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

AXES = ("pipeline", "data", "sharded", "experts", "tensor")  # outermost first


@dataclass(frozen=True)
class Mesh:
    """Size of each axis."""

    pipeline: int = 1
    data: int = 1
    sharded: int = 1
    experts: int = 1
    tensor: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each axis by name, outermost first."""
        return asdict(self)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of more than one rank."""
        return tuple(axis for axis, size in self.sizes.items() if size > 1)

    @property
    def name(self) -> str:
        """Level of the factor `parallelism`, with all sizes."""
        return "-".join(f"{axis}{self.sizes[axis]}" for axis in self.axes) or "data"

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes.values())

    @property
    def replicas(self) -> int:
        """Number of replicas: groups of ranks that see different samples."""
        return self.data * self.sharded * self.experts

    @property
    def is_plain(self) -> bool:
        """Whether the mesh is pure data parallelism."""
        return self.replicas == self.data == self.ranks

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the index of a rank along each axis."""
        indices = {}
        for axis in reversed(AXES):
            rank, indices[axis] = divmod(rank, self.sizes[axis])
        return indices

    def replica(self, rank: int) -> int:
        """Return the number of a rank's replica, which determines its samples."""
        indices = self.coordinates(rank)
        sharded = indices["data"] * self.sharded + indices["sharded"]
        return sharded * self.experts + indices["experts"]

    def is_reporter(self, rank: int, last: int) -> bool:
        """Return whether a rank reports its replica's loss: the replica's first rank that has the logits.

        Args:
            rank: The rank.
            last: Index along `pipeline` of the ranks with the last stage.
        """
        indices = self.coordinates(rank)
        return indices["tensor"] == 0 and indices["pipeline"] == last


def mesh_from_spec(spec: Mapping[str, object]) -> Mesh:
    """Return the mesh of a run's spec; a spec without a mesh is pure data parallelism."""
    sizes = spec.get("mesh")
    return Mesh(**sizes) if isinstance(sizes, dict) else Mesh(data=int(str(spec["ranks"])))
