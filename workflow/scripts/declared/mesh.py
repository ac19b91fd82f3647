"""Levels of the factor `parallelism`: meshes, such as data2-tensor2, and the mesh that each is on so many ranks; strategies that divide each
layer by itself, such as found."""

import math
import re

from common.errors import CodedValueError
from models.mesh import AXES, Mesh

PLAIN = "data"
NOT_MESHES = ("dense", "spatial")  # LBANN's own
FOUND, EXPERT, RANDOM = "found", "expert", "random"
STRATEGIES = (FOUND, EXPERT, RANDOM)  # models.strategy; random with a seed, as random3
NEEDS = {
    "microbatches": "pipeline",
    "schedule": "pipeline",
    "sharding": "sharded",
}  # factor -> axis without which it means nothing
_PART = re.compile(r"([a-z]+)([0-9]*)")


_SEEDED = re.compile(rf"({RANDOM})([1-9][0-9]*)")


def is_mesh(level: str) -> bool:
    """Whether a level names axes."""
    return level not in NOT_MESHES and not is_strategy(level)


def is_strategy(level: str) -> bool:
    """Whether a level divides each layer by itself."""
    return kind_of(level)[0] in STRATEGIES


def kind_of(level: str) -> tuple[str, int]:
    """A level of a strategy without its seed, and this: random and 3 of random3."""
    told = _SEEDED.fullmatch(level)
    return (told[1], int(told[2])) if told else (level, 0)


def sizes_of(level: str) -> dict[str, int | None]:
    """Axis -> size, None for the one that takes the ranks that the others leave. ValueError in words where it is no mesh."""
    found: dict[str, int | None] = {}
    for part in level.split("-"):
        told = _PART.fullmatch(part)
        if not told or told[1] not in AXES:
            others = f"{', '.join(NOT_MESHES)}, {FOUND}, {EXPERT} or {RANDOM}1"
            expected = f"{', '.join(AXES)} with a size, joined by -, as data2-tensor2; or {others}"
            where = f"{part!r} of {level!r}" if part != level else f"{level!r}"
            raise CodedValueError("unknown-axis", f"{where} is no axis; expected {expected}")
        axis, size = told[1], int(told[2]) if told[2] else None
        if axis in found:
            raise CodedValueError("duplicate", f"{level!r} has the axis {axis} twice; name each once")
        if size is not None and size < 2:
            problem = f"{part!r} of {level!r} divides nothing; give a size of 2 or more, or take it out"
            raise CodedValueError("out-of-range", problem)
        found[axis] = size
    if list(found.values()).count(None) > 1:
        problem = f"{level!r} has several axes without a size; one at most takes the ranks that are left"
        raise CodedValueError("missing-size", problem)
    if list(found) != (ordered := [axis for axis in AXES if axis in found]):
        right = "-".join(f"{axis}{found[axis] or ''}" for axis in ordered)
        raise CodedValueError("wrong-order", f"{level!r} is not in order; write {right}")
    return found


def axes_of(level: str) -> frozenset[str]:
    """The axes that a mesh names."""
    return frozenset(sizes_of(level))


def idle(level: str) -> frozenset[str]:
    """The factors that mean nothing with a level of parallelism."""
    axes = axes_of(level) if is_mesh(level) else ()
    return frozenset(factor for factor, axis in NEEDS.items() if axis not in axes)


def without_sizes(level: str) -> str:
    """The axes of a mesh as a level: tensor of tensor2."""
    return "-".join(sizes_of(level))


def divides_more(level: str, ranks: int) -> bool:
    """Whether a level is a mesh that, on so many ranks, divides more than samples."""
    return is_mesh(level) and not mesh_of(level, ranks).is_plain


def mesh_of(level: str, ranks: int) -> Mesh:
    """The mesh that a level is on so many ranks. ValueError in words where they are not its product."""
    sizes = sizes_of(level)
    named = math.prod(size for size in sizes.values() if size)
    if None in sizes.values():
        if ranks % named:
            raise CodedValueError("wrong-rank-count", f"is a multiple of {named} ranks, the cell has {ranks}")
        return Mesh(**{axis: size or ranks // named for axis, size in sizes.items()})
    if named != ranks:
        raise CodedValueError("wrong-rank-count", f"is {named} ranks, the cell has {ranks}")
    return Mesh(**{axis: size for axis, size in sizes.items() if size})
