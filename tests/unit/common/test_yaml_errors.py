"""A slip in a YAML file is told with its line and what to do, in words for who wrote it."""

from pathlib import Path

import pytest

from common.errors import InputError
from common.files import load_yaml
from declared.study import load_study
from support.refusals import assert_refusal

SLIPS = {
    "no colon": (
        "title: a\nseed 7\ndesign: full\n", 2, "missing-colon",
        "a colon is missing after the key; write seed: 7"
    ),
    "no colon, last line": ("title: a\nseed 7\n", 2, "missing-colon",
                            "a colon is missing after the key; write seed: 7"),
    "no colon, first line": ("title a  # mine\nseed: 7\n", 1, "missing-colon", (
        "a colon is missing after the key; write title: a"
    )),
    "no colon, indented": (
        "factors:\n  framework: [a]\n\n  model small-cnn\n  nodes: 2\n", 4, "missing-colon", (
            "a colon is missing after the key; write model: small-cnn"
        )
    ),
    "no space": ("title: a\nseed:7\nb: c\n", 2, "missing-space", (
        "a space is missing after the colon; write seed: 7"
    )),
    "colon in a title": (
        "title: Does it pay: a study\n", 1, "needs-quotes", (
            'a colon stands in the value; put it in quotes: title: "Does it pay: a study"'
        )
    ),
    "colon and quotes": ('title: a "b": c\n', 1, "needs-quotes", "put it in quotes: title: 'a \"b\": c'"),
    "no name": ("title: a\n: 7\n", 2, "missing-key", "a key has no name; write it before the colon: : 7"),
    "no name, first line": (": 7\ntitle: a\n", 1, "missing-key", (
        "a key has no name; write it before the colon: : 7"
    )),
    "a number for a name": ("factors:\n  7: [1]\n", 2, "wrong-type", "key 7 is not text; put it in quotes"),
    "tab": ("factors:\n\tframework: [a]\n", 2, "tab-indentation", (
        "a tab stands at the beginning of the line; indent with spaces: framework: [a]"
    )),
    "open bracket": (
        "factors:\n  framework: [a, b\n  model: c\n", 2, "open-bracket", (
            "what begins with '[' does not end in ']', or a comma is missing: framework: [a, b"
        )
    ),
    "open brace": ("a: {b: 1\n", 1, "open-bracket", (
        "what begins with '{' does not end in '}', or a comma is missing: a: {b: 1"
    )),
    "open quote": ("title: 'a\nseed: 7\n", 1, "open-quote", "a quotation mark is not closed: title: 'a"),
    "too deep": ("title: a\n  seed: 7\n", 2, "wrong-indentation", (
        "the line is indented deeper than the one above, which has a value"
    )),
    "between": ("factors:\n   a: 1\n  b: 2\n", 3, "wrong-indentation", (
        "the line does not begin below the one that it belongs to; correct its indentation: b: 2"
    )),
    "sign": ("a: 1\nb: %x\n", 2, "needs-quotes", (
        "the value begins with a sign of YAML's own; put it in quotes: b: %x"
    )),
    "twice": ("a: 1\na: 2\n", 2, "duplicate", "key 'a' stands twice; remove one"),
    "two documents": ("a: 1\n---\nb: 2\n", 2, "second-document", (
        "a second document begins here (---); a file has one"
    )),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "code", "message"), SLIPS.values(), ids=SLIPS)
def test_a_slip_is_told_with_its_line_and_what_to_do(
    tmp_path: Path, text: str, line: int, code: str, message: str
) -> None:
    """The only test in which these sentences stand."""
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        load_yaml(file)
    assert_refusal(refused.value, code, file=f"{file}:{line}")
    assert str(refused.value).startswith(f"{file}:{line}: not valid YAML: ")
    assert message in str(refused.value)


def test_a_study_tells_it_too(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("title: Does it pay: a study\n")
    with pytest.raises(InputError) as refused:
        load_study("mine", tmp_path)
    assert_refusal(refused.value, "needs-quotes", file=f"{tmp_path}/mine.yaml:1")
