"""Commands of the user's own in a folder of a test."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from declared import commands, environments, frameworks

PRINTED_STEPS = "tests/support/printed_steps.py"
COMMAND: dict[str, Any] = {
    "command": f"{sys.executable} {PRINTED_STEPS} {{steps}} {{samples_per_step}} 20",
    "environment": {"executable": sys.executable},
    "log_format": "megatron",
    "files": [PRINTED_STEPS],
    "models": {"our-model": 1000},
    "datasets": {"our-data": 64},
}

FACTORS = {
    "framework": "ours", "model": "our-model", "dataset": "our-data", "nodes": 1, "batch_size": 8, "sync_every": 1,
}  # fmt: skip


def write_study(folder: Path, **factors: Any) -> Path:
    """Write the study s.yaml, which trains with the command `ours`."""
    study = {"title": "t", "question": "q", "seed": 1, "design": "full", "replicates": 1}
    (folder / "s.yaml").write_text(
        yaml.safe_dump({**study, "factors": {**FACTORS, **factors}}, sort_keys=False)
    )
    return folder


def write_declarations(
    folder: Path, default: Mapping[str, Any], changes_by_name: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write a YAML file of each name: the default with changes, where None takes a key out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, changes in changes_by_name.items():
        content = {key: value for key, value in {**default, **changes}.items() if value is not None}
        (folder / f"{name.replace('_', '-')}.yaml").write_text(yaml.safe_dump(content))


@contextmanager
def own_commands(folder: Path, **named: dict[str, Any]) -> Iterator[None]:
    """Let these commands, each with changes of COMMAND, be the only ones; `-` is `_` in their names."""
    write_declarations(folder, COMMAND, named)
    with commands_in(folder):
        yield


@contextmanager
def declarations_in(folder: Path, before: Path, set_folder: Callable[[Path], None]) -> Iterator[None]:
    """Let declarations be those of a folder, and at the end those of `before` again."""
    try:
        set_folder(folder)
        yield
    finally:
        set_folder(before)


@contextmanager
def commands_in(folder: Path) -> Iterator[None]:
    """Let the commands be those of a folder."""
    with declarations_in(folder, commands.COMMANDS, _set_folder):
        yield


def _set_folder(folder: Path) -> None:
    commands.COMMANDS = environments.COMMANDS = folder
    for cached in (commands.command_names, commands.load_command, environments.command_environments):
        cached.cache_clear()
    for cached in (frameworks.load_framework, frameworks.describe_framework):
        cached.cache_clear()
