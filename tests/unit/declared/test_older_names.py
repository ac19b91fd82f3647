"""Every entry of renamed.yaml replaces a name that no longer exists by one that does."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from common.files import CHECKOUT, load_yaml
from common.keys import json_schema
from common.renamed import FILE
from common.schemas import SCHEMAS, schema
from declared.commands import CommandKeys
from declared.configuration import Configuration
from declared.factors import N_DEVICES, factor_table
from declared.frameworks import FrameworkKeys
from declared.products.figure_kinds import KINDS
from declared.products.tables import TABLES
from declared.site import SiteKeys, load_site
from declared.study_keys import StudyKeys

SECTIONS = load_yaml(FILE).values()


def entries(section: str) -> Iterator[tuple[str, str]]:
    for version in SECTIONS:
        yield from version.get(section, {}).items()


def keys(rules: Any) -> Iterator[str]:
    """Yield the keys of a file at all levels."""
    if isinstance(rules, Mapping):
        yield from rules.get("properties", {})
        for below in rules.values():
            yield from keys(below)
    elif isinstance(rules, list):
        for below in rules:
            yield from keys(below)


def columns() -> set[str]:
    tables = [path.name.removesuffix(".schema.yaml") for path in SCHEMAS.glob("*.schema.yaml")]
    in_schemas = {name for table in tables for name in schema(table).get("properties", {})}
    return in_schemas | {
        name for table in TABLES.values() for key in table.columns for name in key.split(", ")
    }


KEYS = {
    name
    for form in (CommandKeys, Configuration, FrameworkKeys, SiteKeys, StudyKeys)
    for name in keys(json_schema(form))
}


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("figures", set(KINDS)),
        ("tables", set(TABLES)),
        ("columns", columns()),
        ("keys", KEYS),
        ("factors", {*factor_table(), N_DEVICES}),
    ],
)
def test_new_name_exists(section: str, names: set[str]) -> None:
    assert {new for _, new in entries(section)} <= names


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("figures", set(KINDS)),
        ("tables", set(TABLES)),
        ("columns", columns()),
        ("factors", {*factor_table(), N_DEVICES}),
    ],
)
def test_older_name_is_gone(section: str, names: set[str]) -> None:
    assert not {older for older, _ in entries(section)} & names


def test_older_key_of_a_site_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (CHECKOUT / "config" / "sites" / "virtual-four.yaml").read_text()
    (tmp_path / "here.yaml").write_text(text.replace("collective_max_bytes", "sweep_max_bytes"))
    assert load_site("here", tmp_path).collective_max_bytes == load_site("virtual-four").collective_max_bytes
    (line,) = capsys.readouterr().err.splitlines()
    assert all(f"'{name}'" in line for name in ("sweep_max_bytes", "collective_max_bytes"))
