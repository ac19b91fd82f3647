"""User-supplied PyTorch modules are read and checked before any work, and planned without PyTorch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from declared import configuration, user_models
from declared.models import find_graph, model_graph
from declared.study import load_study
from declared.user_models import UserModel, load_user_model
from support.own_commands import write_study
from support.refusals import assert_refusal
from support.user_models import user_models_in

LEVELS = {"framework": "pytorch-ddp", "model": "ours", "dataset": "digits"}


@pytest.mark.parametrize(
    ("changes", "code", "key", "mentions"),
    [
        ({"file": "models/nothing.py"}, "missing-file", "file", ["models/nothing.py"]),
        ({"file": f"../{CHECKOUT.name}/README.md"}, "missing-file", "file", []),
        ({"files": ["nothing.py"]}, "missing-file", "files.0", []),
        ({"class": "make_normalised"}, "unknown-name", "class", ["make_normalized"]),
        ({"class": None}, "missing-key", "class", []),
        ({"arguments": {"a": [1, float("nan")]}}, "wrong-type", "arguments.a", ["nan"]),
    ],
)
def test_wrong_user_model_is_refused(
    tmp_path: Path, changes: dict[str, Any], code: str, key: str, mentions: list[str]
) -> None:
    with user_models_in(tmp_path / "models", ours=changes), pytest.raises(InputError) as refused:
        load_study("s", write_study(tmp_path, **LEVELS))
    assert_refusal(refused.value, code, key, mentions)
    assert str(refused.value.file).endswith("ours.yaml")


def test_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    with user_models_in(tmp_path, ours={"file": "README.md"}), pytest.raises(InputError) as refused:
        load_user_model("ours")
    assert (refused.value.code, str(refused.value.file)) == ("broken-file", "README.md")


@pytest.fixture
def load_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], UserModel]:
    """Return a function that loads the class Net of a Python file with this content."""

    def load(code: str) -> UserModel:
        (tmp_path / "net.py").write_text(code)
        for module in (user_models, configuration):
            monkeypatch.setattr(module, "CHECKOUT", tmp_path)
        with user_models_in(tmp_path / "models", ours={"file": "net.py", "class": "Net"}):
            return load_user_model("ours")

    return load


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    import fast\nexcept ImportError:\n    class Net: pass",
        "Net: type = object",
        "import nets as Net",
        "from nets import *",
    ],
)
def test_class_may_be_defined_anywhere_in_a_file(load_code: Callable[[str], UserModel], code: str) -> None:
    assert load_code(code).class_name == "Net"


def test_user_model_may_not_hide_a_model(tmp_path: Path) -> None:
    with user_models_in(tmp_path, small_cnn={}), pytest.raises(InputError) as refused:
        model_graph("small-cnn", "digits")
    assert refused.value.code == "reserved-name"


def test_arguments_are_numbers_of_the_data(tmp_path: Path) -> None:
    arguments = {"of": "{classes}", "sides": [1, "{width}"], "high": {"at": "{height}"}}
    tokens = {"inputs": "tokens", "arguments": {"v": "{vocabulary}", "n": "{length}"}}
    with user_models_in(tmp_path, ours={"arguments": arguments}, theirs=tokens):
        image, text = model_graph("ours", "digits"), model_graph("theirs", "synthetic-tokens-50-7")
        assert find_graph("ours", "digits") is None  # its size is unknown before a run
    assert image.module and image.module["arguments"] == {"of": 10, "sides": [1, 8], "high": {"at": 8}}
    assert (image.shape, image.module.shape, image.vocabulary) == ((8, 8, 1), (10,), None)
    assert text.module and text.module["arguments"] == {"v": 50, "n": 7}
    assert (text.shape, text.module.shape, text.vocabulary) == ((7,), (7, 50), 50)


@pytest.mark.parametrize(
    ("changes", "dataset", "word"),
    [
        ({}, "synthetic-tokens-50-7", "tokens"),
        ({"arguments": {"v": "{vocabulary}"}}, "digits", "{vocabulary}"),
    ],
)
def test_user_model_does_not_fit_other_data(
    tmp_path: Path, changes: dict[str, Any], dataset: str, word: str
) -> None:
    with user_models_in(tmp_path, ours=changes), pytest.raises(ValueError, match="ours") as refused:
        model_graph("ours", dataset)
    assert word in str(refused.value)
