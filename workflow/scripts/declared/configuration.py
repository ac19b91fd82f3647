"""The workflow's configuration, config/config.yaml, read and checked; and where the files that it names lie."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, load_yaml, shown
from common.schemas import check, check_value, schema
from common.text import alternatives


def existing(folder: Path, name: str, kind: str) -> Path:
    """config/<kind>s/<name>.yaml in `folder`. InputError with the names that there are when it is absent."""
    file = folder / f"{name}.yaml"
    if not file.is_file():
        there = sorted(path.stem for path in folder.glob("*.yaml") if path.is_file())
        raise InputError(
            "unknown-name",
            f"there is no {shown(file)}",
            file="config/config.yaml",
            key=kind,
            got=name,
            **alternatives(name, there),
        )
    return file


def read_config(file: Path) -> dict[str, Any]:
    """What a file of the workflow's configuration says, unchecked but for its form."""
    said = load_yaml(file)
    if not isinstance(said, dict):
        problem = "is empty" if said is None else f"holds {str(said)[:60]!r}"
        raise InputError("wrong-type", problem, file=shown(file), got=said, expected="keys, such as study: NAME")
    return said


def load_config(values: Mapping[str, Any], file: Path = CHECKOUT / "config" / "config.yaml") -> dict[str, Any]:
    """Check the workflow's configuration (the file's keys, overlaid by the command line's)."""
    config = {key: _as_meant(key, value) for key, value in values.items()}
    check(config, "config", file)
    return config


def check_name(key: str, name: str) -> None:
    """InputError where a study, or a site, cannot have this name."""
    check_value(name, schema("config")["properties"][key], key, CHECKOUT / "config" / "config.yaml")


def _as_meant(key: str, value: Any) -> Any:
    """Command lines have no types: Snakemake's reads a name of digits alone as a number, those of programs a number as text."""
    match schema("config")["properties"].get(key, {}).get("type"):
        case "string" if type(value) is int:
            return str(value)
        case "integer" if isinstance(value, str) and value.isdecimal():
            return int(value)
    return value
