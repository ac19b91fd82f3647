"""A mesh of ranks: along which axes a training is divided, and where in it a rank is.

    pipeline   each rank has some of the layers
    data       each has all, and samples of its own
    sharded    as data, but each keeps a share of parameters, gradients or optimizer state (ZeRO)
    tensor     each has a part of layers

Ranks count row-major over the axes in this order: ranks next to each other, as those of a node, differ in `tensor`.
Standard library only, as models.graph.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

AXES = ("pipeline", "data", "sharded", "tensor")  # outermost first


@dataclass(frozen=True)
class Mesh:
    """The size of each axis."""

    pipeline: int = 1
    data: int = 1
    sharded: int = 1
    tensor: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        """Axis -> size, outermost first."""
        return asdict(self)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes along which anything is divided."""
        return tuple(axis for axis, size in self.sizes.items() if size > 1)

    @property
    def name(self) -> str:
        """As a level of the factor `parallelism` has it, with all sizes."""
        return "-".join(f"{axis}{self.sizes[axis]}" for axis in self.axes) or "data"

    @property
    def ranks(self) -> int:
        """All of them."""
        return math.prod(self.sizes.values())

    @property
    def replicas(self) -> int:
        """Groups of ranks that see samples of their own."""
        return self.data * self.sharded

    @property
    def is_plain(self) -> bool:
        """Whether only samples are divided."""
        return self.replicas == self.data == self.ranks

    def coordinates(self, rank: int) -> dict[str, int]:
        """Axis -> the rank's place along it."""
        found = {}
        for axis in reversed(AXES):
            rank, found[axis] = divmod(rank, self.sizes[axis])
        return found

    def replica(self, rank: int) -> int:
        """Which samples a rank sees: the number of its group among those that see others."""
        at = self.coordinates(rank)
        return at["data"] * self.sharded + at["sharded"]

    def counts(self, rank: int) -> bool:
        """Whether a rank tells of its replica's samples: of the ranks that see the same ones, the first that has the logits."""
        at = self.coordinates(rank)
        return at["tensor"] == 0 and at["pipeline"] == self.pipeline - 1


def of_spec(spec: Mapping[str, object]) -> Mesh:
    """The mesh of a run's spec, which has none where only samples are divided."""
    told = spec.get("mesh")
    return Mesh(**told) if isinstance(told, dict) else Mesh(data=int(str(spec["ranks"])))
