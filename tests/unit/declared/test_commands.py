"""User-supplied commands are read and checked before any work."""

from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from declared.environments import read
from declared.frameworks import framework_notes, has_own_algorithm, is_registered, load_framework
from declared.site import load_site
from declared.study import load_study
from support.own_commands import FACTORS, own_commands, write_study
from support.refusals import assert_refusal


@pytest.mark.parametrize(
    ("changes", "code", "key", "mentions"),
    [
        ({"command": "train --tp {tpp}"}, "unknown-name", "command", ["tpp", "tp"]),
        ({"command": "train {rank}"}, "unknown-name", "command", ["once_per: rank"]),
        ({"command": "train {steps +}"}, "bad-pattern", "command", []),
        ({"variables": {"SIZE": "{size}"}}, "unknown-name", "variables.SIZE", ["size"]),
        ({"replicas": "ranks // dp"}, "unknown-name", "replicas", ["dp"]),
        ({"log_format": "megatronn"}, "unknown-name", "log_format", ["megatron"]),
        ({"log": "/log"}, "bad-pattern", "log", []),
        ({"files": ["scripts/nothing.py"]}, "missing-file", "files.0", ["scripts/nothing.py"]),
        ({"files": ["../x"]}, "missing-file", "files.0", []),
        ({"environment": "pytorchh"}, "unknown-name", "environment", ["pytorch"]),
        ({"environment": {"setup": ["true"]}}, "missing-key", "environment", ["executable"]),
        ({"supported_levels": {"precision": "fp64"}}, "not-one-of", "supported_levels.precision", []),
        ({"supported_levels": {"colour": "red"}}, "unknown-name", "supported_levels.colour", []),
        ({"mpi": True}, "conflicting-keys", "mpi", []),
        ({"once_per": "run"}, "not-one-of", "once_per", []),
        ({"comand": "x"}, "unknown-key", "comand", ["command"]),
    ],
)
def test_a_wrong_command_is_refused(
    tmp_path: Path, changes: dict[str, Any], code: str, key: str, mentions: list[str]
) -> None:
    with own_commands(tmp_path / "commands", ours=changes), pytest.raises(InputError) as refused:
        load_study("s", write_study(tmp_path, custom={"tp": [1]}))
        load_framework("ours")
    assert_refusal(refused.value, code, key, mentions)
    assert str(refused.value.file).endswith("ours.yaml")


def test_a_command_is_a_framework_that_nobody_compared(tmp_path: Path) -> None:
    with own_commands(tmp_path, ours={"title": "ours", "once_per": "rank"}, theirs={}):
        framework = load_framework("ours")
        assert framework.has_adapter and not framework.mirrored and load_framework("theirs").mirrored
        assert (
            not is_registered("ours")
            and not has_own_algorithm("ours")
            and "ours" in framework_notes("ours")[0]
        )
        assert framework.folder.joinpath("adapter.py").is_file() and framework.baseline == "ours"


def test_a_command_may_not_hide_a_framework(tmp_path: Path) -> None:
    with own_commands(tmp_path, jax={}), pytest.raises(InputError) as refused:
        load_framework("jax")
    assert refused.value.code == "reserved-name"


def test_own_environment_is_installed_at_every_site(tmp_path: Path) -> None:
    with own_commands(
        tmp_path,
        ours={"environment": {"prefix": "/opt/venv", "setup": ["module load x"]}},
        theirs={"environment": "pytorch"},
    ):
        site = load_site("local")
        installation = read("ours").installed(site.realization)
        assert installation and installation.executable == "/opt/venv/bin/python"
        assert (
            installation.setup == ("module load x",)
            and read("ours").deployment(site.realization) == "installed"
        )
        assert load_framework("theirs").environment == "pytorch"


def test_models_and_data_that_only_a_command_knows(tmp_path: Path) -> None:
    with own_commands(tmp_path / "commands", ours={}, theirs={"models": {}, "datasets": {}}):
        assert load_study("s", write_study(tmp_path)).factors["model"] == ["our-model"]
        for factor in ("model", "dataset"):
            changes = {"model": "small-cnn", "dataset": "digits"} | {factor: FACTORS[factor]}
            with pytest.raises(InputError) as refused:
                load_study("s", write_study(tmp_path, framework="theirs", **changes))
            assert refused.value.code == "unknown-name"
