"""Read tables and written files that use other names, which renamed.yaml lists.

A factor may have a second name in studies for good. All other entries are older names, so that kept campaigns
and studies of the version before stay readable. Tables are read without a hint; a file that a person wrote
gets one line on stderr for each older name.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from common.errors import InputError, print_line
from common.files import display_path, load_yaml

FILE = Path(__file__).with_name("renamed.yaml")

Products = Literal["figures", "tables"]
Section = Literal["columns", "values", "keys", "factors", Products]


@functools.cache
def _entries(section: Section) -> dict[str, Any]:
    """Return the entries of a section, of all versions."""
    return {
        name: new for sections in load_yaml(FILE).values() for name, new in sections.get(section, {}).items()
    }


@functools.cache
def _last_version(section: Section, name: str) -> str:
    """Return the version that stops reading an older name."""
    return next(version for version, sections in load_yaml(FILE).items() if name in sections.get(section, {}))


def rename_columns(header: Sequence[str], columns: Mapping[str, Any] | None = None) -> list[str]:
    """Return the names of a table's columns, older ones replaced.

    Args:
        header: The names in the file.
        columns: The columns of its schema; a name of the schema is no older name. None: any column.
    """
    renamed = _entries("columns")
    return [
        renamed[name]
        if name in renamed
        and renamed[name] not in header
        and (columns is None or (name not in columns and renamed[name] in columns))
        else name
        for name in header
    ]


def has_older_values(column: str) -> bool:
    """Return whether values of a column have older names."""
    return column in _entries("values")


def rename_values(column: str, texts: Sequence[str]) -> list[str]:
    """Return the texts of a column, older ones replaced."""
    renamed = _entries("values").get(column, {})
    return [renamed.get(text, text) for text in texts]


def rename_product(section: Products, name: str, file: Path, key: str) -> str:
    """Return a kind of figure or a table that a study names under `key`, with an older name replaced."""
    new: str = _entries(section).get(name, name)
    if new != name:
        _hint(section, file, key, name, new)
    return new


def rename_keys(value: Any, rules: Mapping[str, Any], file: Path, above: str = "", hint: bool = True) -> Any:
    """Return a value with older names of its keys replaced, at every level.

    Args:
        value: What stands in `file` below the key `above`.
        rules: Its JSON schema, without references.
        file: The file, for hints.
        above: The dotted key of the value.
        hint: Whether each older name gets a line on stderr.
    """
    if isinstance(value, list):
        entries = rules.get("items", {})
        return [rename_keys(entry, entries, file, f"{above}.{i}", hint) for i, entry in enumerate(value)]
    if not isinstance(value, dict):
        return value
    for alternative in rules.get("anyOf", ()):
        value = rename_keys(value, alternative, file, above, hint)
    properties, additional = rules.get("properties", {}), rules.get("additionalProperties", {})
    renamed: dict[Any, Any] = {}
    for name, entry in value.items():
        new = _entries("keys").get(name, name)
        if name in properties or new not in properties or new in value:
            new = name
        place = f"{above}.{new}" if above else str(new)
        if new != name and hint:
            _hint("keys", file, place.removesuffix(new) + name, name, new)
        below = properties.get(new, additional)
        renamed[new] = rename_keys(entry, below if isinstance(below, dict) else {}, file, place, hint)
    return renamed


def other_factor_names() -> dict[str, str]:
    """Return the names of factors by the other name that a study may write."""
    return _entries("factors")


def rename_factors(content: Any, file: Path, sections: Collection[str]) -> Any:
    """Return a study's content with alternative names of factors replaced.

    Args:
        content: Content of `file`.
        file: The file, for errors.
        sections: The keys of the file under which names of factors are replaced.

    Raises:
        InputError: If both names of a factor are keys in one place.
    """
    if not isinstance(content, dict):
        return content
    return {
        key: _rename_factors_below(value, key, file) if key in sections else value
        for key, value in content.items()
    }


def _rename_factors_below(value: Any, location: str, file: Path) -> Any:
    """Return the value of the key `location`, with other names of factors replaced in keys and texts."""
    renamed = other_factor_names()
    if isinstance(value, list):
        return [_rename_factors_below(entry, f"{location}.{i}", file) for i, entry in enumerate(value)]
    if not isinstance(value, dict):
        return renamed.get(value, value) if isinstance(value, str) else value
    for alias, name in renamed.items():
        if alias in value and name in value:
            problem = f"is another name of {name}"
            hint = "take one of the two out"
            raise InputError("conflicting-keys", problem, file=file, key=f"{location}.{alias}", hint=hint)
    return {
        # The name of a figure is the name of its files, and no factor.
        renamed.get(key, key): entry
        if key == "name"
        else _rename_factors_below(entry, f"{location}.{key}", file)
        for key, entry in value.items()
    }


@functools.cache
def _hint(section: Section, file: Path, key: str, name: str, new: str) -> None:
    """Print one line on an older name in a file that a person wrote, once in a process."""
    last = _last_version(section, name)
    print_line(
        f"ringside: {display_path(file)}: {key}: '{name}' is now '{new}'; rename it, since {last} will not "
        "read the older name",
        to_stderr=True,
    )
