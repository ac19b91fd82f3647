"""Parse levels of `parallelism`: device meshes, such as data2-tensor2, and parallelization strategies."""

import math
import re

from common.errors import CodedValueError
from common.schemas import schema
from models.mesh import AXES, Mesh

PLAIN = "data"  # pure data parallelism
NOT_MESHES = ("dense", "spatial")  # layouts of LBANN
SEARCHED, EXPERT, RANDOM = "found", "expert", "random"
STRATEGIES = (SEARCHED, EXPERT, RANDOM)  # models.strategy; a level has a seed, such as random3
# By factor: the axis without which it has no effect.
REQUIRED_AXIS: dict[str, str] = {
    name: rules["axis"] for name, rules in schema("factors")["properties"].items() if "axis" in rules
}
_PART = re.compile(r"([a-z]+)([0-9]*)")


_SEEDED = re.compile(rf"({RANDOM})([1-9][0-9]*)")


def is_mesh(level: str) -> bool:
    """Return whether a level is a device mesh."""
    return level not in NOT_MESHES and not is_strategy(level)


def is_strategy(level: str) -> bool:
    """Return whether a level is a parallelization strategy."""
    return split_strategy(level)[0] in STRATEGIES


def split_strategy(level: str) -> tuple[str, int]:
    """Split a strategy into its kind and its seed: random3 gives random and 3."""
    match = _SEEDED.fullmatch(level)
    return (match[1], int(match[2])) if match else (level, 0)


def sizes_of(level: str) -> dict[str, int | None]:
    """Return the size of each axis of a mesh, None for the axis that takes the remaining ranks.

    Raises:
        ValueError: If the level is not a mesh.
    """
    sizes: dict[str, int | None] = {}
    for part in level.split("-"):
        match = _PART.fullmatch(part)
        if not match or match[1] not in AXES:
            alternatives = f"{', '.join(NOT_MESHES)}, {SEARCHED}, {EXPERT} or {RANDOM}1"
            expected = f"{', '.join(AXES)} with a size, joined by -, such as data2-tensor2; or {alternatives}"
            location = f"{part!r} of {level!r}" if part != level else f"{level!r}"
            raise CodedValueError("unknown-axis", f"{location} is not an axis; expected {expected}")
        axis, size = match[1], int(match[2]) if match[2] else None
        if axis in sizes:
            raise CodedValueError("duplicate", f"{level!r} has the axis {axis} twice; name each once")
        if size is not None and size < 2:
            problem = f"{part!r} of {level!r} divides nothing; give a size of 2 or more, or remove it"
            raise CodedValueError("out-of-range", problem)
        sizes[axis] = size
    if list(sizes.values()).count(None) > 1:
        problem = f"{level!r} has several axes without a size; one at most takes the ranks that are left"
        raise CodedValueError("missing-size", problem)
    if list(sizes) != (ordered := [axis for axis in AXES if axis in sizes]):
        right = "-".join(f"{axis}{sizes[axis] or ''}" for axis in ordered)
        raise CodedValueError("wrong-order", f"{level!r} is not in order; write {right}")
    return sizes


def axes_of(level: str) -> frozenset[str]:
    """Return the axes that a mesh names."""
    return frozenset(sizes_of(level))


def unused_options(level: str) -> frozenset[str]:
    """Return the factors of REQUIRED_AXIS that have no effect with a level of parallelism."""
    axes = axes_of(level) if is_mesh(level) else ()
    return frozenset(factor for factor, axis in REQUIRED_AXIS.items() if axis not in axes)


def without_sizes(level: str) -> str:
    """Return a mesh without sizes: tensor2 gives tensor."""
    return "-".join(sizes_of(level))


def exceeds_data_parallelism(level: str, ranks: int) -> bool:
    """Return whether a level is a mesh with more than data parallelism on this number of ranks."""
    return is_mesh(level) and not mesh_of(level, ranks).is_plain


def mesh_of(level: str, ranks: int) -> Mesh:
    """Return the mesh of a level on a number of ranks.

    Raises:
        ValueError: If the sizes do not fit the number of ranks.
    """
    sizes = sizes_of(level)
    named = math.prod(size for size in sizes.values() if size)
    if None in sizes.values():
        if ranks % named:
            raise CodedValueError("wrong-rank-count", f"is a multiple of {named} ranks, the cell has {ranks}")
        return Mesh(**{axis: size or ranks // named for axis, size in sizes.items()})
    if named != ranks:
        raise CodedValueError("wrong-rank-count", f"is {named} ranks, the cell has {ranks}")
    return Mesh(**{axis: size for axis, size in sizes.items() if size})
