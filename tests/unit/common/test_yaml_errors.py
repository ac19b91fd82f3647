"""A slip in a YAML file is told with its line and what to do."""

from pathlib import Path

import pytest

from common.errors import InputError
from common.files import load_yaml
from support.refusals import assert_refusal


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("title: a\nseed 7\ndesign: full\n", 2, "missing-colon"),
        ("title: a\nseed 7\n", 2, "missing-colon"),
        ("title a  # mine\nseed: 7\n", 1, "missing-colon"),
        ("factors:\n  framework: [a]\n\n  model small-cnn\n  nodes: 2\n", 4, "missing-colon"),
        ("title: a\nseed:7\nb: c\n", 2, "missing-colon"),
        ("title: Does it pay: a study\n", 1, "needs-quotes"),
        ("factors:\n  7: [1]\n", 2, "wrong-type"),
        ("factors:\n\tframework: [a]\n", 2, "tab-indentation"),
        ("factors:\n  framework: [a, b\n  model: c\n", 2, "open-bracket"),
        ("a: {b: 1\n", 1, "open-bracket"),
        ("title: 'a\nseed: 7\n", 1, "open-quote"),
        ("title: a\n  seed: 7\n", 2, "needs-quotes"),
        ("factors:\n   a: 1\n  b: 2\n", 3, "wrong-indentation"),
        ("a: 1\nb: %x\n", 2, "needs-quotes"),
        ("a: 1\na: 2\n", 2, "duplicate"),
        ("a: 1\n---\nb: 2\n", 2, "second-document"),
    ],
)
def test_slip_has_its_line_and_code(tmp_path: Path, text: str, line: int, code: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        load_yaml(file)
    assert_refusal(refused.value, code, file=f"{file}:{line}")
