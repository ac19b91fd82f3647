"""What a study's factors are to each other: which is measured at, which treats, which makes a cell larger."""

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import make_dataclass
from typing import Annotated, Any, Literal

from common.schemas import schema
from common.written import Keys, Rules, key
from declared.mesh import NEEDS

Levels = dict[str, Any]

# What a study measures at: frameworks have looks of their own, the others are axes and panels. Every other factor treats.
NOT_TREATMENTS = ("framework", "model", "dataset", "nodes", "devices_per_node", "device", "batch_size", "bandwidth")
WORK = ("model", "dataset")  # what is trained
OF_STRATEGIES = tuple(NEEDS)  # factors that some levels of parallelism alone have
# levels that a factor has on several nodes where prediction leaves some of them out of a fit
FEWEST_HELD_OUT = {"nodes": 2, "batch_size": 3, "bandwidth": 2, "parallelism": 2}
UNTRACED = "none"  # the level of `trace` of a run that is only timed
MOST_SERIES = 8  # that can be told apart in a figure


def factor_table() -> dict[str, dict[str, Any]]:
    """Every factor: name -> type, default, title, unit, symbol, core."""
    return schema("factors")["properties"]


TYPES = {"integer": int, "number": float, "string": str}
LIMITS = {"minimum": "ge", "maximum": "le", "exclusiveMaximum": "lt", "maxLength": "max_length", "pattern": "pattern"}


@functools.cache
def level_type(factor: str) -> Any:
    """Return the type of a level of `factor`, with its limits."""
    rules = factor_table()[factor]
    limits = {LIMITS[name]: limit for name, limit in rules.items() if name in LIMITS}
    form = Literal[tuple(rules["enum"])] if "enum" in rules else TYPES[rules["type"]]
    return Annotated[form, Rules(rules["description"], **limits)]


@functools.cache
def factor_lists() -> Any:
    """Return a dataclass with the list of levels of every factor; a factor that a study does not name has its default."""
    keys: list[tuple[str, Any, Any]] = []
    for name, rules in factor_table().items():
        meaning, levels = rules["description"], Annotated[list[level_type(name)], Rules(unique=True, min_length=1)]  # type: ignore[misc]
        default = {"default_factory": functools.partial(_default, rules)} if "default" in rules else {}
        keys.append((name, levels, key(meaning, **default)))
    return make_dataclass("FactorLists", keys, bases=(Keys,), kw_only=True)


def _default(rules: Mapping[str, Any]) -> list[Any]:
    return [float(rules["default"]) if rules.get("type") == "number" else rules["default"]]


def as_list(value: Any) -> list[Any]:
    """A single level stands for a list of one."""
    return value if isinstance(value, list) else [value]


def fixed_shares(level: str) -> list[float]:
    """The numbers of a level of the factor `shares`, one for each rank; none for equal and measured."""
    return [float(share) for share in level.split("/")] if "/" in level else []


def is_numeric(factor: str) -> bool:
    """Whether the levels of `factor` are numbers."""
    return schema("factors")["properties"][factor].get("type") in ("integer", "number")


def scale_of(varied: Collection[str]) -> str:
    """The factor that makes a cell larger: nodes, or their devices where of the two only these are among `varied`."""
    return "devices_per_node" if "nodes" not in varied and "devices_per_node" in varied else "nodes"


def treatments_of(varied: Iterable[str]) -> list[str]:
    """The factors of `varied` that say how a cell is trained, such as loop and accumulation; those with words first."""
    return sorted((name for name in varied if name not in NOT_TREATMENTS), key=is_numeric)


def implied(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """The factors that some strategies alone have (OF_STRATEGIES) whose level follows in these cells from that of parallelism: they vary,
    but say nothing more."""
    found: dict[tuple[str, Any], set[Any]] = {}
    for levels in cells:
        for name in OF_STRATEGIES:
            found.setdefault((name, levels.get("parallelism")), set()).add(levels.get(name))
    return [name for name in OF_STRATEGIES if all(len(seen) == 1 for (of, _), seen in found.items() if of == name)]


def is_traced(levels: Mapping[str, Any]) -> bool:
    """Whether a run with these levels keeps its phases."""
    return bool(levels["trace"] != UNTRACED)


def matches(levels: Mapping[str, Any], entry: Mapping[str, Collection[Any]]) -> bool:
    """Whether a cell with these levels is among those that `entry` names, by levels of some factors."""
    return all(levels[name] in possible for name, possible in entry.items())
