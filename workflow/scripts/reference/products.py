"""Describe the products of a study for the reference pages: figures, tables, files and columns."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from common.files import CHECKOUT, load_yaml
from common.schemas import schema
from declared.factors import MAX_SERIES
from declared.figure_specs import MAX_VARIANTS
from declared.products.figure_kinds import FigureKind
from declared.products.tables import TableKind
from declared.responses import RESPONSES
from figures import gallery
from reference.markdown import codes, escaped
from reference.settings import value

FACTORS = "factors"  # a column for each factor, or for each that varies
# Requirement of a response, by its trait or name.
REQUIREMENTS = {
    "step_times": "`step_times: true` in the study",
    "token_sequences": "data sets of sequences of tokens",
    "target_accuracy": "`target_accuracy` in the study",
    "peak_known": "[a known peak](../how-to/utilization.md)",
    "energy_per_sample": "[meters](../how-to/energy.md)",
    "cost": "[a price](../how-to/cost.md)",
    "carbon": "[the grid, and meters or stated power](../how-to/cost.md)",
    "cost_to_target": "`target_accuracy` in the study, a price",
    "carbon_to_target": "`target_accuracy` in the study, the grid, meters or stated power",
}


def figures() -> dict[str, Any]:
    """Return the values of the template of the page of figures, with examples of figures.gallery."""
    responses = [
        [
            f"`{response.name}`",
            response.unit,
            "harmonic" if response.is_rate else "arithmetic",
            response.meaning.partition(": ")[2],
            REQUIREMENTS.get(response.name, ", ".join(REQUIREMENTS[trait] for trait in response.when)),
        ]
        for response in RESPONSES.values()
    ]
    return {
        "examples": list(gallery.examples()),
        "responses": responses,
        "declaration": _declaration,
        "keys": _keys,
        "max_series": MAX_SERIES,
        "max_variants": MAX_VARIANTS,
    }


def _declaration(example: gallery.Example) -> str:
    """Return the line that declares an example in a study."""
    return yaml.safe_dump(example.entry, default_flow_style=True, sort_keys=False, width=1000).strip()


def _keys(kind: FigureKind) -> str:
    """Return the keys of a kind of figure, in a sentence."""
    words = {
        "x": codes(kind.allowed_x) if kind.allowed_x else "a factor",
        "y": "a [response](#responses)" if kind.shows_response else codes(kind.allowed_y or ()),
        "colour": "one factor" if kind.one_colour else "factors",
        "facet": "factors",
        "filter": "levels",
        "target": "a share; default: `target_accuracy` of the study",
    }
    keys = [
        f"`{key}`"
        + (f" ({words[key]})" if key in words else "")
        + (", required" if key in kind.needs else "")
        for key in kind.takes
    ]
    return f"Keys: {'; '.join(keys)}." if keys else "Keys: only `kind` and `name`."


def columns(described: TableKind) -> list[str]:
    """Return the described columns of a table, `factors` standing for those of the factors."""
    return [name for names in described.columns for name in names.split(", ")]


def column_rows(described: TableKind) -> list[list[str]]:
    """Return columns of a table with their unit and meaning; a row may describe several."""
    return [
        ["[factors](factors.md)" if names == FACTORS else codes(names.split(", ")), unit, escaped(meaning)]
        for names, (unit, meaning) in described.columns.items()
    ]


def schema_rows(name: str) -> list[list[str]]:
    """Return name, value and meaning of every column or field of a file of records."""
    written = load_yaml(CHECKOUT / "config" / "schemas" / f"{name}.schema.yaml")["properties"]
    rows = list(fields(schema(name)["properties"]))
    if FACTORS in written:  # The page of factors describes them.
        of_factors = [f"`{factor}`" for factor in schema("factors")["properties"]]
        place = next(number for number, row in enumerate(rows) if row[0] == of_factors[0])
        rows = [row for row in rows if row[0] not in of_factors]
        rows.insert(place, ["one per factor", "", "level of each [factor](factors.md)"])
    return rows


def fields(properties: Mapping[str, Any], above: str = "") -> Iterator[list[str]]:
    """Yield name, value and meaning of every field, each followed by the fields below it."""
    for name, rules in properties.items():
        yield [f"`{above}{name}`", value(rules), escaped(rules.get("description", ""))]
        yield from fields(rules.get("properties", {}), f"{above}{name}.")
        yield from fields(rules.get("items", {}).get("properties", {}), f"{above}{name}[].")
        if isinstance(entry := rules.get("additionalProperties"), dict):
            yield from fields(entry.get("properties", {}), f"{above}{name}.NAME.")
