"""A framework that describes itself wrongly is refused in one line."""

from pathlib import Path

import pytest
import yaml

from common.errors import InputError
from declared import frameworks
from support.refusals import assert_refusal


@pytest.mark.parametrize("key", ["base", "environment"])
def test_a_framework_that_names_what_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    shipped = frameworks.framework_names()
    entry = yaml.safe_load((frameworks.FRAMEWORKS / shipped[0] / "framework.yaml").read_text())
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "framework.yaml").write_text(yaml.safe_dump({**entry, key: "nothing"}))
    monkeypatch.setattr(frameworks, "FRAMEWORKS", tmp_path)
    with pytest.raises(InputError) as refused:
        frameworks.load_framework("ours")
    assert_refusal(refused.value, "unknown-name", key, file=f"{tmp_path}/ours/framework.yaml", got="nothing")
    assert refused.value.expected
