"""config/README.md: every key that a person may set, from the descriptions in config/schemas/."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from common.errors import exit_status
from common.files import CHECKOUT, shown, write_text
from common.schemas import schema

PAGE = CHECKOUT / "config" / "README.md"
HEAD = """\
# Configuration

Made of `config/schemas/` by `make settings`. A key that is not listed is refused, with the one that is meant. `config.yaml` says which
study runs at which site; each of its keys can be given on the command line: `snakemake figures --config study=NAME site=NAME`.
"""
FILES = {  # schema -> the file that it describes, and what that is for
    "config": ("config/config.yaml", "Which study, at which site, from which records. `config/slurm.yaml` and `config/oar.yaml` are laid over it by the clusters' profiles."),
    "study": ("config/studies/NAME.yaml", "What is compared; no account, no partition and no path."),
    "factors": ("`factors` of a study", "A list varies a factor, a single value holds it. Those without a default must be said."),
    "site": ("config/sites/NAME.yaml", "A place to run; no model and no data set."),
    "dataset": ("config/datasets.yaml", "Data sets of your own: NAME: {...} each."),
}  # fmt: skip


def page() -> str:
    """The page, in Markdown."""
    parts = [HEAD]
    for name, (file, what) in FILES.items():
        parts += [
            f"## {file}\n\n{what}\n",
            "| key | value | default | |\n| --- | --- | --- | --- |\n" + "\n".join(rows(name)) + "\n",
        ]
    return "\n".join(parts)


def rows(name: str) -> Iterator[str]:
    """A row of Markdown for every key of a schema; those below a key stand after it, with its name and a dot before theirs."""
    described = schema(name)
    if name == "factors":  # what a study does not say has the factor's default
        properties = described["properties"]
        described = {**described, "required": [key for key, rules in properties.items() if "default" not in rules]}
    yield from _rows(described, "", described.get("$defs", {}))


def _rows(described: Mapping[str, Any], above: str, definitions: Mapping[str, Any]) -> Iterator[str]:
    for key, rules in described.get("properties", {}).items():
        rules = _resolved(rules, definitions)
        default = (
            f"`{_plain(rules['default'])}`"
            if "default" in rules
            else "**required**"
            if key in described.get("required", [])
            else ""
        )
        cells = [f"`{above}{key}`", _value(rules), default, rules.get("description", "")]
        yield f"| {' | '.join(_cell(text) for text in cells)} |"
        items = _resolved(rules.get("items", {}), definitions)
        yield from _rows(rules, f"{above}{key}.", definitions)
        yield from _rows(items, f"{above}{key}[].", definitions)
        if isinstance(entry := rules.get("additionalProperties"), dict):
            yield from _rows(entry, f"{above}{key}.NAME.", definitions)


def _resolved(rules: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rules that a reference names, with what stands beside it."""
    found = definitions.get(str(rules.get("$ref", "")).rpartition("/")[2], {})
    return {**found, **rules}


def _value(rules: Mapping[str, Any]) -> str:
    """What a key takes, in a few words."""
    if "enum" in rules:
        return ", ".join(f"`{_plain(level)}`" for level in rules["enum"])
    if "const" in rules:
        return f"`{_plain(rules['const'])}`"
    if "anyOf" in rules:
        return " or ".join(_value(one) for one in rules["anyOf"])
    kind = rules.get("type", "")
    kinds = [kind] if isinstance(kind, str) else kind
    words = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "`true`, `false`",
        "array": "list",
        "object": "keys",
        "null": "nothing",
    }
    said = " or ".join(words.get(one, one) for one in kinds)
    if "minimum" in rules and "maximum" in rules:
        return f"{said}, {rules['minimum']} to {rules['maximum']}"
    limits = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
    return ", ".join([said, *(f"{word} {rules[key]}" for key, word in limits.items() if key in rules)])


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(argv: list[str] | None = None) -> None:
    """Write config/README.md again."""
    argparse.ArgumentParser(prog="make settings", description=main.__doc__).parse_args(argv)
    write_text(PAGE, page())
    print(shown(PAGE))


if __name__ == "__main__":
    sys.exit(exit_status(main))
