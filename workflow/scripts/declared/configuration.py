"""Read and check the workflow's configuration, config/config.yaml, and find the files that it names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from common.errors import InputError
from common.files import CHECKOUT, display_path, load_yaml
from common.keys import Keys, Maybe, Rules, key, optional, parse
from common.text import alternatives

CONFIG_FILE = CHECKOUT / "config" / "config.yaml"
Text = Annotated[str, Rules(min_length=1)]
NAME, MAX_NAME_LENGTH = r"^[a-z0-9]+(-[a-z0-9]+)*\Z", 100  # names of studies and sites
Name = Annotated[str, Rules("a-z, 0-9 and -", max_length=MAX_NAME_LENGTH, pattern=NAME)]


@dataclass(frozen=True)
class Configuration(Keys):
    """The keys of config/config.yaml."""

    study: Name = key("name of a file in config/studies/ without .yaml (a-z, 0-9 and -)")
    site: Name = key("name of a file in config/sites/ without .yaml (a-z, 0-9 and -)")
    records: Text = key(
        "campaign (train the runs that have no record), available (use the existing records, train "
        "nothing), or a folder with runs.csv and epochs.csv"
    )
    block: Maybe[int] = optional(
        "run only this block of the design (./ringside submit sets it in each allocation)", ge=1
    )


def unknown_name_error(name: str, file: object, key: str, choices: Iterable[str]) -> InputError:
    """Return the error about a name, under a key of a file, that is not one of `choices`."""
    problem, similar = f"'{name}' is unknown", alternatives(name, choices)
    return InputError("unknown-name", problem, file=file, key=key, got=name, **similar)


def existing_file(folder: Path, name: str, kind: str) -> Path:
    """Return the file <name>.yaml of `folder`.

    Raises:
        InputError: If there is no such file; lists the existing names.
    """
    file = folder / f"{name}.yaml"
    if not file.is_file():
        choices = sorted(path.stem for path in folder.glob("*.yaml") if path.is_file())
        raise InputError(
            "unknown-name",
            f"there is no {display_path(file)}",
            file="config/config.yaml",
            key=kind,
            got=name,
            **alternatives(name, choices),
        )
    return file


def read_config(file: Path) -> dict[str, Any]:
    """Return the keys of a configuration file without checking them."""
    content = load_yaml(file)
    if not isinstance(content, dict):
        problem = "is empty" if content is None else f"holds {str(content)[:60]!r}"
        raise InputError("wrong-type", problem, file=file, got=content, expected="keys, such as study: NAME")
    return content


def load_config(values: Mapping[str, Any]) -> Configuration:
    """Return the checked configuration: keys of the file, overridden by those of the command line."""
    converted = {name: _convert_value(name, value) for name, value in values.items()}
    return parse(Configuration, converted, CONFIG_FILE)


def check_in_checkout(path: str, file: Path, key: str) -> None:
    """Raise InputError if `path`, which `file` has under `key`, is not a file of the checkout."""
    if (CHECKOUT / path).is_file() and not Path(path).is_absolute() and ".." not in Path(path).parts:
        return
    problem = f"there is no {path} in the checkout"
    expected = "a path relative to the checkout"
    hint = "put a link there to a folder elsewhere"
    raise InputError("missing-file", problem, file=file, key=key, got=path, expected=expected, hint=hint)


def check_name(kind: str, name: str) -> None:
    """Raise InputError if a study or a site cannot have this name."""
    parse(Name, name, CONFIG_FILE, kind)


def _convert_value(name: str, value: Any) -> Any:
    """Convert a value of a command line to its type.

    Snakemake reads digits as numbers, and programs numbers as text.
    """
    if name == "block":
        return int(value) if isinstance(value, str) and value.isdecimal() else value
    return str(value) if type(value) is int else value
