"""Read tables and users' files that have older or alternative names, which renamed.yaml lists.

Alternative names of factors in studies stay valid. All other entries are older names, with which kept
campaigns and studies of the previous version stay readable. Tables are read silently; for each older name in
a user's file, one line on stderr gives the new name.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from common.errors import InputError, print_line
from common.files import display_path, load_yaml

FILE = Path(__file__).with_name("renamed.yaml")

ProductType = Literal["figures", "tables"]
Section = Literal["columns", "values", "keys", "factors", ProductType]


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
    """Return the names of a table's columns with older names replaced, unless the table has both names.

    Args:
        header: The names in the file.
        columns: The columns of its schema: names in it are not replaced, nor are columns whose new name it
            lacks. None: replace every older name.
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
    """Return whether any value of this column has been renamed."""
    return column in _entries("values")


def rename_values(column: str, texts: Sequence[str]) -> list[str]:
    """Return the texts of a column with older names of values replaced."""
    renamed = _entries("values").get(column, {})
    return [renamed.get(text, text) for text in texts]


def rename_product(section: ProductType, name: str, file: Path, key: str) -> str:
    """Return the current name of a kind of figure or of a table that a study names under `key`.

    An older name prints a line on stderr.
    """
    new: str = _entries(section).get(name, name)
    if new != name:
        _hint(section, file, key, name, new)
    return new


def rename_keys(value: Any, rules: Mapping[str, Any], file: Path, above: str = "", hint: bool = True) -> Any:
    """Return a value of a file with older names of its keys replaced, at every level.

    Args:
        value: The value.
        rules: Its JSON schema, without references.
        file: The file, for hints.
        above: The dotted key of the value in the file.
        hint: Whether to print a line on stderr for each older name.
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
    """Return the name of each factor by its alternative name in studies."""
    return _entries("factors")


def rename_factors(content: Any, file: Path, sections: Collection[str]) -> Any:
    """Return a study's content with alternative names of factors replaced.

    Args:
        content: Content of `file`.
        file: The file, for errors.
        sections: Top-level keys below which names are replaced.

    Raises:
        InputError: If both names of a factor are keys of the same mapping.
    """
    if not isinstance(content, dict):
        return content
    return {
        key: _rename_factors_below(value, key, file) if key in sections else value
        for key, value in content.items()
    }


def _rename_factors_below(value: Any, location: str, file: Path) -> Any:
    """Return the value at the key `location` with alternative names of factors replaced in keys and texts."""
    renamed = other_factor_names()
    if isinstance(value, list):
        return [_rename_factors_below(entry, f"{location}.{i}", file) for i, entry in enumerate(value)]
    if not isinstance(value, dict):
        return renamed.get(value, value) if isinstance(value, str) else value
    for alias, name in renamed.items():
        if alias in value and name in value:
            problem = f"is another name of {name}"
            hint = "remove one of the two"
            raise InputError("conflicting-keys", problem, file=file, key=f"{location}.{alias}", hint=hint)
    return {
        # `name` is the name of a figure and of its files, not of a factor.
        renamed.get(key, key): entry
        if key == "name"
        else _rename_factors_below(entry, f"{location}.{key}", file)
        for key, entry in value.items()
    }


@functools.cache
def _hint(section: Section, file: Path, key: str, name: str, new: str) -> None:
    """Print one line about an older name in a user's file, once in a process (the results are cached)."""
    last = _last_version(section, name)
    print_line(
        f"ringside: {display_path(file)}: {key}: '{name}' is now '{new}'; rename it, since {last} will not "
        "read the older name",
        to_stderr=True,
    )
