"""Describe what users write, for the reference pages: every key of the configuration, every factor."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from common.keys import json_schema
from common.schemas import schema
from declared.commands import CommandKeys
from declared.configuration import Configuration
from declared.datasets import DatasetKeys
from declared.factors import custom_rules
from declared.frameworks import Framework, framework_names, load_framework
from declared.imported import ImportKeys
from declared.mesh import NOT_MESHES, PLAIN, REQUIRED_AXIS, STRATEGIES
from declared.references import Reference
from declared.site import SiteKeys
from declared.study_keys import CombinedStudyKeys, ImportedStudyKeys, StudyKeys
from declared.user_models import UserModelKeys
from models.mesh import AXES, Mesh
from plan.duplicates import IRRELEVANT_FACTORS
from reference.markdown import code, codes, escaped

LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
FORMS = {
    "combined_study": CombinedStudyKeys,
    "command": CommandKeys,
    "config": Configuration,
    "dataset": DatasetKeys,
    "import": ImportKeys,
    "user_model": UserModelKeys,
    "imported_study": ImportedStudyKeys,
    "reference": Reference,
    "site": SiteKeys,
    "study": StudyKeys,
}
TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "`true`, `false`",
    "array": "list",
    "object": "keys",
    "null": "empty",
}
# Levels of factors that the schema describes by a pattern: a link to their page, or their form.
LISTED = {
    "shares": "`equal`, `measured`, or one number for each rank, such as `0.8/0.2`",
    "batch_size": "whole number, 1 to 1,048,576, or [`largest`](../how-to/largest-batch.md)",
    "framework": "[frameworks](frameworks.md)",
    "model": "[models](models.md#models)",
    "dataset": "[data sets](models.md#data-sets)",
}


def rows(name: str) -> Iterator[list[str]]:
    """Yield a row for every key of a file, each followed by the keys below it, with dotted names."""
    yield from _rows(json_schema(FORMS[name]) if name in FORMS else schema(name), "")


def _rows(described: Mapping[str, Any], above: str) -> Iterator[list[str]]:
    for key, rules in described.get("properties", {}).items():
        required = "**required**" if key in described.get("required", []) else ""
        default = code(rules["default"]) if "default" in rules else required
        yield [f"`{above}{key}`", value(rules), default, escaped(rules.get("description", ""))]
        yield from _rows(rules, f"{above}{key}.")
        yield from _rows(rules.get("items", {}), f"{above}{key}[].")
        if isinstance(entry := rules.get("additionalProperties"), dict):
            yield from _rows(entry, f"{above}{key}.NAME.")


def value(rules: Mapping[str, Any]) -> str:
    """Return the values that a key accepts, in a few words."""
    if "enum" in rules:
        return codes(level for level in rules["enum"] if level is not None)
    if "const" in rules:
        return code(rules["const"])
    if "anyOf" in rules:
        return "; or ".join(value(alternative) for alternative in rules["anyOf"])
    kind = rules.get("type", "")
    type_name = " or ".join(
        TYPES.get(alternative, alternative)
        for alternative in ([kind] if isinstance(kind, str) else kind)
        if alternative != "null"
    )
    if "minimum" in rules and "maximum" in rules:
        return f"{type_name}, {_limit(rules['minimum'])} to {_limit(rules['maximum'])}"
    return ", ".join(
        [type_name, *(f"{word} {_limit(rules[key])}" for key, word in LIMITS.items() if key in rules)]
    )


def _limit(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def factors() -> dict[str, Any]:
    """Return the values of the template of the page of factors."""
    described = schema("factors")["properties"]
    rows = [
        [
            f"`{name}`",
            "; ".join([LISTED.get(name, value(rules)), *([rules["unit"]] if "unit" in rules else [])]),
            code(rules["default"]) if "default" in rules else "**required**",
            escaped(rules["description"]),
        ]
        for name, rules in described.items()
    ]
    return {
        "factors": rows,
        "custom_levels": escaped(str(custom_rules()["description"])),
        "restricted_levels": _restricted_levels([load_framework(name) for name in framework_names()]),
    }


def _restricted_levels(frameworks: list[Framework]) -> Iterator[list[str]]:
    """Yield a row for each level of a factor that not all frameworks support.

    Frameworks on which the factor has no effect are left out.
    """
    restricted = set().union(*(framework.restricted_factors for framework in frameworks))
    for name, rules in schema("factors")["properties"].items():
        if name == "model":
            able = [framework.name for framework in frameworks if framework.user_models]
            label = "a [PyTorch module of your own](../how-to/own-module.md)"
            yield ["`model`", label, _list_frameworks(able, [framework.name for framework in frameworks])]
        if name == "parallelism":
            yield from _parallelism_rows(frameworks)
        if name not in restricted or name == "parallelism":
            continue
        listed = sorted(
            {
                level
                for framework in frameworks
                for entry in framework.capabilities
                for level in entry.get(name, [])
            },
            key=str,
        )
        levels: dict[str, Any] = {code(level): level for level in rules.get("enum", [])}
        if "enum" not in rules:
            levels = {f"other than {codes(listed)}": object()}
        entries = {
            framework.name: _entries_of_axis(framework, REQUIRED_AXIS.get(name))
            for framework in frameworks
            if not _is_without_effect(name, framework)
        }
        n_affected = sum(map(bool, entries.values()))
        for label, level in levels.items():
            able = [
                framework
                for framework, capabilities in entries.items()
                if any(level in entry.get(name, [level]) for entry in capabilities)
            ]
            if len(able) < n_affected:
                yield [f"`{name}`", label, _list_frameworks(able, list(entries))]


def _is_without_effect(factor: str, framework: Framework) -> bool:
    """Return whether a framework accepts all levels of a factor, but ignores them."""
    return factor not in framework.restricted_factors and any(
        entry.applies_to({"framework": framework.name}, Mesh())
        for entry in IRRELEVANT_FACTORS
        if factor in entry.factors and entry.decided_by == ("framework",)
    )


def _entries_of_axis(framework: Framework, axis: str | None) -> Sequence[Mapping[str, Any]]:
    """Return the capabilities that a cell with this mesh axis can fit; all of them if `axis` is None."""
    if axis is None:
        return framework.capabilities
    by_name = [entry for entry in framework.capabilities if axis in entry.get("parallelism", ())]
    return by_name or [
        entry for entry in framework.capabilities if any(axis in axes for axes in framework.meshes)
    ]


def _parallelism_rows(frameworks: list[Framework]) -> Iterator[list[str]]:
    """Yield a row for each mesh axis except `data`, and for each other way to partition a model."""
    able = {
        framework.name: {
            *(axis for axes in framework.meshes for axis in axes),
            *(
                part
                for entry in framework.capabilities
                for level in entry.get("parallelism", [])
                for part in level.split("-")
            ),
        }
        for framework in frameworks
    }
    ways = {f"with the axis {code(axis)}": axis for axis in AXES if axis != PLAIN} | {
        code(way): way for way in (*NOT_MESHES, *STRATEGIES)
    }
    for label, way in ways.items():
        yield [
            "`parallelism`",
            label,
            _list_frameworks([name for name, can in able.items() if way in can], list(able)),
        ]


def _list_frameworks(able: list[str], every: list[str]) -> str:
    """Return the frameworks that are able, or all except the others if this is shorter."""
    if not able:
        return "none"
    unable = [name for name in every if name not in able]
    return codes(able) if len(able) <= len(unable) else f"all except {codes(unable)}"
