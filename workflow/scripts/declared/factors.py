"""Describe the factors of studies: their types and limits, and their roles in figures and models.

A study can declare its own factors below `factors.custom`, for a user-supplied command (`declared.commands`)
or for measurements made elsewhere. Their names have the prefix CUSTOM in columns and levels, but not in
titles.
"""

import functools
import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import make_dataclass
from typing import Annotated, Any, Literal

from common.keys import Keys, Rules, key
from common.schemas import schema
from declared.mesh import REQUIRED_AXIS

Levels = dict[str, Any]

# Factors that are not treatments (see the glossary): frameworks have their own colours, and the others are
# axes and panels of figures.
NOT_TREATMENTS = (
    "framework",
    "model",
    "dataset",
    "nodes",
    "devices_per_node",
    "n_devices",
    "device",
    "batch_size",
    "bandwidth",
)
MODEL_AND_DATASET = ("model", "dataset")
PARALLELISM_OPTIONS = tuple(REQUIRED_AXIS)  # factors that have an effect only with some levels of parallelism
# Levels that a factor needs on several nodes, so that prediction can hold one out and fit the others.
MIN_LEVELS_TO_HOLD_OUT = {"nodes": 2, "batch_size": 3, "bandwidth": 2, "parallelism": 2}
UNTRACED = "none"  # level of `trace` of an untraced run
LARGEST = "largest"  # level of `batch_size`: the largest batch that fits in memory (plan.batch_sizes)
MAX_SERIES = 8  # more series cannot be distinguished in a figure
MAX_NAME = 194  # characters of a cell's name; a run appends its replicate
DIGEST_DIGITS = 12  # hex digits at the end of a shortened name
CUSTOM = "custom_"  # prefix of the names of custom factors


# Nodes times devices per node, column `n_devices` of tables. It replaces the two factors if cells form a
# ladder (`is_ladder`).
N_DEVICES = "n_devices"
NODES_AND_DEVICES = ("nodes", "devices_per_node")
SIZE_FACTORS = (N_DEVICES, *NODES_AND_DEVICES)


def factor_table() -> dict[str, dict[str, Any]]:
    """Return type, default, title and traits of every factor of Ringside by name.

    The schema explains the traits: core, symbol, supported_unless_named, requires_flag, set_by_ringside,
    axis, images_only and without_effect_on.
    """
    return schema("factors")["properties"]


def factors_without_effect_on(*aspects: Literal["time", "memory"]) -> tuple[str, ...]:
    """Return the factors that change none of these aspects of a training step."""
    return tuple(
        name
        for name, rules in factor_table().items()
        if set(aspects) <= set(rules.get("without_effect_on", ()))
    )


def is_custom(factor: str) -> bool:
    """Return whether a factor is custom: a study declares it below `factors.custom`."""
    return factor.startswith(CUSTOM)


def factor_names(columns: Iterable[str] = ()) -> list[str]:
    """Return the factors of Ringside in the schema's order, then the custom ones among `columns`.

    Args:
        columns: Columns of a table of runs or cells, or factors of a cell.
    """
    return [*factor_table(), *filter(is_custom, columns)]


def factor_rules(factor: str) -> Mapping[str, Any]:
    """Return type, limits and title of any factor, also of N_DEVICES and of custom factors."""
    if factor == N_DEVICES:
        return {"type": "integer", "title": "devices"}
    if not is_custom(factor):
        return factor_table()[factor]
    return {**custom_rules(), "title": factor.removeprefix(CUSTOM)}


def custom_rules() -> Mapping[str, Any]:
    """Return type and limits of the levels of custom factors."""
    (rules,) = schema("factors")["patternProperties"].values()
    return rules


CustomName = Annotated[
    str, Rules("a to z, digits and _, the first a letter", max_length=40, pattern=r"^[a-z][a-z0-9_]*\Z")
]
TYPES = {"integer": int, "number": float, "string": str}
LIMITS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "maxLength": "max_length",
    "pattern": "pattern",
}


@functools.cache
def level_type(factor: str) -> Any:
    """Return the type of a level of `factor`, with its limits."""
    rules = factor_rules(factor)
    limits = {LIMITS[name]: limit for name, limit in rules.items() if name in LIMITS}
    if isinstance(rules.get("type"), list):  # a number, or a word
        word_limits = {name: limits.pop(name) for name in ("pattern", "max_length") if name in limits}
        word = Annotated[str, Rules(rules["description"], **word_limits)]
        number = TYPES[rules["type"][0]]
        return Annotated[number, Rules(rules["description"], exact=number is float, **limits)] | word
    form = Literal[tuple(rules["enum"])] if "enum" in rules else TYPES[rules["type"]]
    return Annotated[form, Rules(rules["description"], **limits)]


@functools.cache
def study_factors_class() -> Any:
    """Return the dataclass by which `common.keys.parse` checks the factors of a study.

    Its fields are the factors of Ringside, each with a list of levels. The default list has the factor's
    default alone.
    """
    fields: list[tuple[str, Any, Any]] = []
    for name, rules in factor_table().items():
        level: Any = level_type(name)
        list_type = Annotated[list[level], Rules(unique=True, min_length=1)]
        default = {"default_factory": functools.partial(_default, rules)} if "default" in rules else {}
        fields.append((name, list_type, key(rules["description"], **default)))
    return make_dataclass("StudyFactors", fields, bases=(Keys,), kw_only=True)


def _default(rules: Mapping[str, Any]) -> list[Any]:
    return [float(rules["default"]) if rules.get("type") == "number" else rules["default"]]


def as_list(value: Any) -> list[Any]:
    """Return a list, a single level as a list of one."""
    return value if isinstance(value, list) else [value]


def fixed_shares(level: str) -> list[float]:
    """Return the shares of the ranks that a level of `shares` states, [] for equal and measured."""
    return [float(share) for share in level.split("/")] if "/" in level else []


def is_numeric(factor: str) -> bool:
    """Return whether the levels of a factor are numbers; some, such as LARGEST, can still be words."""
    kinds = as_list(factor_rules(factor).get("type"))
    return "integer" in kinds or "number" in kinds


def levels_name(levels: Mapping[str, Any]) -> str:
    """Return the name of these levels, which is also a directory name; all levels of a cell name the cell.

    It has the levels of core factors and custom factors, and of other factors that differ from their
    default. A name that would be too long ends with a digest of itself.
    """
    names = [
        f"{rules.get('symbol', '')}{levels[name]}"
        if rules.get("core")
        else f"{rules.get('symbol', name)}={levels[name]}".replace("/", "_")
        for name, rules in factor_table().items()
        if name in levels and (rules.get("core") or levels[name] != rules["default"])
    ]
    names += [f"{factor_rules(name)['title']}={level}" for name, level in levels.items() if is_custom(name)]
    name = ".".join(names)
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_DIGITS]
    return f"{name[: MAX_NAME - 1 - DIGEST_DIGITS]}.{digest}"


def has_largest_batch(levels: Mapping[str, Any]) -> bool:
    """Return whether a cell with these levels trains with the largest batch that fits."""
    return bool(levels["batch_size"] == LARGEST)


def size_factor_of(varied: Collection[str]) -> str:
    """Return the factor that scales a cell: N_DEVICES, nodes, or devices_per_node if only this one varies."""
    if N_DEVICES in varied:
        return N_DEVICES
    return "devices_per_node" if "nodes" not in varied and "devices_per_node" in varied else "nodes"


def is_ladder(sizes: Iterable[tuple[int, int]]) -> bool:
    """Return whether cells are a ladder of nodes and devices per node, such as 1x1, 1x8, 2x8, 4x8.

    Both vary, and neither falls while the other grows. Then no two sizes have the same number of devices, and
    a series over them has a single baseline.

    Args:
        sizes: Nodes and devices per node of each cell; 0 devices stand for those of the site.
    """
    steps = sorted(set(sizes))
    varies = all(len({step[i] for step in steps}) > 1 for i in (0, 1))
    return varies and all(0 < lower[1] <= upper[1] for lower, upper in itertools.pairwise(steps))


def with_devices(varied: Iterable[str], sizes: Iterable[tuple[int, int]]) -> list[str]:
    """Return varying factors, with N_DEVICES instead of nodes and devices_per_node if cells are a ladder."""
    names = list(varied)
    if not set(NODES_AND_DEVICES) <= set(names) or not is_ladder(sizes):
        return names
    names[names.index("nodes")] = N_DEVICES
    return [name for name in names if name not in NODES_AND_DEVICES]


def level_of(levels: Mapping[str, Any], factor: str) -> Any:
    """Return the level of a factor, also of N_DEVICES, in a cell."""
    if factor != N_DEVICES:
        return levels[factor]
    nodes, devices = (int(levels[name]) for name in NODES_AND_DEVICES)
    return nodes * devices


def treatments_of(varied: Iterable[str]) -> list[str]:
    """Return the treatments among `varied`, such as precision and accumulation, non-numeric ones first."""
    return sorted((name for name in varied if name not in NOT_TREATMENTS), key=is_numeric)


def implied(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the PARALLELISM_OPTIONS that the level of parallelism determines in these cells."""
    levels_seen: dict[tuple[str, Any], set[Any]] = {}
    for levels in cells:
        for name in PARALLELISM_OPTIONS:
            levels_seen.setdefault((name, levels.get("parallelism")), set()).add(levels.get(name))
    return [
        name
        for name in PARALLELISM_OPTIONS
        if all(len(seen) == 1 for (factor, _), seen in levels_seen.items() if factor == name)
    ]


def is_traced(levels: Mapping[str, Any]) -> bool:
    """Return whether a run with these levels is traced."""
    return bool(levels["trace"] != UNTRACED)


def matches(levels: Mapping[str, Any], entry: Mapping[str, Collection[Any]]) -> bool:
    """Return whether a cell has one of the levels that `entry` lists, for each factor in it."""
    return all(levels[name] in possible for name, possible in entry.items())
