"""Read the factors of a study, their levels, and its other keys that name factors and levels."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from common.errors import CodedValueError, InputError
from common.files import display_path
from common.keys import Rules, parse
from common.renamed import other_factor_names
from common.text import alternatives
from declared.commands import PLACEHOLDERS, Command, command_names, load_command
from declared.configuration import unknown_name_error
from declared.datasets import load_dataset
from declared.factors import CUSTOM, CustomName, as_list, factor_table, level_type, study_factors_class
from declared.frameworks import framework_names
from declared.mesh import is_mesh, sizes_of
from declared.models import trainable_model_names
from declared.user_models import is_user_model, load_user_model

CUSTOM_KEY = "custom"  # key below `factors` with custom factors


def named_factors(written: Mapping[str, Any]) -> list[str]:
    """Return the names of the factors that a study's file has, in its order, with those below `custom`."""
    names: list[str] = []
    for name, levels in written.items():
        names += [f"{CUSTOM}{custom_factor}" for custom_factor in levels] if name == CUSTOM_KEY else [name]
    return names


def read_factors(written: Mapping[str, Any], file: Path) -> dict[str, list[Any]]:
    """Return the levels of every factor of Ringside, and after them of custom factors.

    Also checks the files behind the levels: commands, models and data sets of the user.

    Raises:
        InputError: If a factor or a level is unknown, or one of these files is wrong.
    """
    raw = {name: value for name, value in written.items() if name != CUSTOM_KEY}
    custom = _read_custom_factors(written[CUSTOM_KEY], file) if CUSTOM_KEY in written else {}
    if unknown := sorted(set(raw) - set(factor_table())):
        choices = sorted([*factor_table(), *other_factor_names()])
        place: dict[str, Any] = {"file": file, "key": f"factors.{unknown[0]}", "got": unknown[0]}
        raise InputError("unknown-key", "unknown key", **place, **alternatives(unknown[0], choices))
    lists = vars(
        parse(study_factors_class(), {name: as_list(value) for name, value in raw.items()}, file, "factors")
    )
    commands = [load_command(name) for name in lists["framework"] if name in command_names()]
    for command in commands:
        command.check_placeholders([name.removeprefix(CUSTOM) for name in custom])
    for name in filter(is_user_model, lists["model"]):
        load_user_model(name)
    _check_named_levels(lists, raw, commands, file)
    _check_meshes(lists["parallelism"], file)
    return lists | custom


def _read_custom_factors(raw: Any, file: Path) -> dict[str, list[Any]]:
    """Return the levels of custom factors by name, with its prefix.

    Raises:
        InputError: If they are wrong, or a factor or a placeholder of Ringside has such a name.
    """
    location = f"factors.{CUSTOM_KEY}"
    level: Any = level_type(CUSTOM)
    level_list: Any = Annotated[list[level], Rules(unique=True, min_length=1)]
    if isinstance(raw, dict):
        raw = {name: as_list(value) for name, value in raw.items()}
    custom = parse(dict[CustomName, level_list], raw, file, location)
    for name in custom:
        if name in factor_table() or name in other_factor_names() or name in PLACEHOLDERS:
            problem = "is a factor or a placeholder of Ringside"
            hint = "give it another name, or write a factor of Ringside right below factors"
            raise InputError(
                "reserved-name", problem, file=file, key=f"{location}.{name}", got=name, hint=hint
            )
    return {f"{CUSTOM}{name}": levels for name, levels in custom.items()}


def _check_named_levels(
    lists: Mapping[str, list[Any]], raw: Mapping[str, Any], commands: Sequence[Command], file: Path
) -> None:
    """Check that Ringside or a user-supplied command has every framework, model and data set.

    Args:
        lists: Levels of all factors.
        raw: Levels as the file has them, single ones without a list.
        commands: The study's user-supplied commands.
        file: The study's file.
    """
    choices = {
        "framework": (*framework_names(), *command_names()),
        "model": (*trainable_model_names(), *(name for command in commands for name in command.models)),
    }
    for factor in ("framework", "model", "dataset"):
        for i, level in enumerate(lists[factor]):
            location = f"factors.{factor}.{i}" if isinstance(raw[factor], list) else f"factors.{factor}"
            if factor == "dataset":
                if not any(level in command.datasets for command in commands):
                    load_dataset(level, display_path(file), location)
            elif level not in choices[factor]:
                raise unknown_name_error(level, file, location, choices[factor])


def _check_meshes(levels: Iterable[str], file: Path) -> None:
    """Check the meshes among the levels of `parallelism`."""
    for level in filter(is_mesh, levels):
        try:
            sizes_of(level)
        except CodedValueError as error:
            place: dict[str, Any] = {"file": file, "key": "factors.parallelism", "got": level}
            raise InputError(error.code, error.problem, **place) from None


def read_exclusion(
    entry: Mapping[str, Any], factors: Mapping[str, list[Any]], location: str, file: Path
) -> dict[str, list[Any]]:
    """Return a checked entry of `exclude`, with lists of levels."""
    for name, levels in entry.items():
        if name not in factors:
            raise unknown_name_error(name, file, f"{location}.{name}", [*factors, *other_factor_names()])
        check_levels(name, as_list(levels), factors, file, f"{location}.{name}")
    return {name: as_list(levels) for name, levels in entry.items()}


def check_levels(
    name: str, levels: Iterable[Any], factors: Mapping[str, list[Any]], file: Path, location: str
) -> None:
    """Check that a factor of the study has all `levels`, which the file has at `location`."""
    for level in levels:
        if level not in factors[name] or isinstance(level, bool):
            problem, expected = f"{level!r} is not a level of the study", factors[name]
            raise InputError("unknown-level", problem, file=file, key=location, got=level, expected=expected)


def check_varies(name: str, factors: Mapping[str, list[Any]], file: Path, location: str) -> None:
    """Check that a factor, which the file names at `location`, has several levels."""
    if name not in factors:
        raise unknown_name_error(name, file, location, [*factors, *other_factor_names()])
    if len(factors[name]) < 2:
        problem = f"{name} does not vary in this study"
        varied = [factor for factor, levels in factors.items() if len(levels) > 1]
        raise InputError("factor-does-not-vary", problem, file=file, key=location, got=name, expected=varied)
