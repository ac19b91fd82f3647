"""Mistakes in framework.yaml are refused with one line, and every refused factor has a reason."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import InputError
from declared import frameworks
from declared.factors import factor_table
from models.mesh import AXES
from support.refusals import assert_refusal


def own_framework(folder: Path, name: str, entry: dict[str, object]) -> Path:
    """Return the framework.yaml of a user's own framework; load_framework remembers each name."""
    (folder / name).mkdir()
    file = folder / name / "framework.yaml"
    file.write_text(yaml.safe_dump(entry))
    return file


@pytest.mark.parametrize(
    ("older", "key"),
    [
        ("exchange", "communication"),
        ("base", "baseline"),
        ("unlike", "heterogeneous"),
        ("why", "refusal_reasons"),
    ],
)
def test_older_key_of_a_framework_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], older: str, key: str
) -> None:
    shipped = frameworks.load_framework("pytorch-hybrid")
    entry = yaml.safe_load((frameworks.FRAMEWORKS / "pytorch-hybrid" / "framework.yaml").read_text())
    names = (shipped.baseline, "pytorch-hybrid")
    file = own_framework(tmp_path, f"with-{older}", {older: entry.pop(key), **entry})
    monkeypatch.setattr(frameworks, "framework_names", lambda: names)
    monkeypatch.setattr(frameworks, "FRAMEWORKS", tmp_path)
    read = frameworks.load_framework(f"with-{older}")
    assert getattr(shipped, key) and getattr(read, key) == getattr(shipped, key)
    (line,) = capsys.readouterr().err.splitlines()
    assert all(text in line for text in (str(file), f"'{older}'", f"'{key}'"))


@pytest.mark.parametrize("key", ["baseline", "environment"])
def test_a_framework_that_names_what_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    shipped = frameworks.framework_names()
    entry = yaml.safe_load((frameworks.FRAMEWORKS / shipped[0] / "framework.yaml").read_text())
    own_framework(tmp_path, "ours", {**entry, key: "nothing"})
    monkeypatch.setattr(frameworks, "FRAMEWORKS", tmp_path)
    with pytest.raises(InputError) as refused:
        frameworks.load_framework("ours")
    assert_refusal(refused.value, "unknown-name", key, file=f"{tmp_path}/ours/framework.yaml", got="nothing")
    assert refused.value.expected


@pytest.mark.parametrize("name", frameworks.framework_names())
def test_every_factor_that_a_framework_refuses_has_a_reason(name: str) -> None:
    framework = frameworks.load_framework(name)
    assert framework.refusal_reasons.keys() == framework.restricted_factors


@pytest.mark.parametrize(
    ("trait", "is_accepted"),
    [({}, False), ({"supported_unless_named": True}, True), ({"set_by_ringside": True}, True)],
)
def test_unnamed_new_factor_is_refused_by_every_framework(
    monkeypatch: pytest.MonkeyPatch, trait: dict[str, Any], is_accepted: bool
) -> None:
    new = {"enum": ["off", "on"], "default": "off", "title": "new", "description": "a factor", **trait}
    monkeypatch.setattr(frameworks, "factor_table", lambda: {**factor_table(), "new": new})
    defaults = {name: rules.get("default") for name, rules in factor_table().items()}
    for name in frameworks.framework_names():
        framework = frameworks.load_framework.__wrapped__(name)  # without the cache
        levels = {**defaults, "nodes": 1, "batch_scope": "global", "new": "off"}
        assert framework.supports(levels)
        assert framework.supports({**levels, "new": "on"}) == is_accepted


@pytest.mark.parametrize("name", frameworks.framework_names())
def test_only_heterogeneous_frameworks_support_shares(name: str) -> None:
    framework = frameworks.load_framework(name)
    defaults = {factor: rules.get("default") for factor, rules in factor_table().items()}
    levels = {**defaults, "nodes": 1, "batch_scope": "global"}
    for shares in ("measured", "0.8/0.2"):
        assert framework.supports({**levels, "shares": shares}) == framework.heterogeneous
    assert framework.supports({**levels, "shares": "equal"})


def test_traits_of_factors_have_known_values() -> None:
    flags = {field.name for field in fields(frameworks.FrameworkKeys) if field.type is bool}
    for name, rules in factor_table().items():
        for trait in ("supported_unless_named", "set_by_ringside"):
            assert rules.get(trait, True) is True, name
        assert rules.get("requires_flag", "heterogeneous") in flags, name
        assert rules.get("axis", AXES[0]) in AXES, name
        assert set(rules.get("without_effect_on", ())) <= {"time", "memory"}, name
