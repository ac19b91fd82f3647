"""A slip in a YAML file is told with its line and what to do, in words for who wrote it."""

from pathlib import Path

import pytest

from common.errors import InputError
from common.files import load_yaml
from declared.study import load_study

SLIPS = {
    "no colon": (
        "title: a\nseed 7\ndesign: full\n", 2, "a colon is missing after the key; write seed: 7"
    ),
    "no colon, last line": ("title: a\nseed 7\n", 2, "a colon is missing after the key; write seed: 7"),
    "no colon, first line": ("title a  # mine\nseed: 7\n", 1, "a colon is missing after the key; write title: a"),
    "no colon, indented": (
        "factors:\n  framework: [a]\n\n  model small-cnn\n  nodes: 2\n", 4, "a colon is missing after the key; write model: small-cnn"
    ),
    "no space": ("title: a\nseed:7\nb: c\n", 2, "a space is missing after the colon; write seed: 7"),
    "colon in a title": (
        "title: Does it pay: a study\n", 1, 'a colon stands in the value; put it in quotes: title: "Does it pay: a study"'
    ),
    "colon and quotes": ('title: a "b": c\n', 1, "put it in quotes: title: 'a \"b\": c'"),
    "no name": ("title: a\n: 7\n", 2, "a key has no name; write it before the colon: : 7"),
    "no name, first line": (": 7\ntitle: a\n", 1, "a key has no name; write it before the colon: : 7"),
    "a number for a name": ("factors:\n  7: [1]\n", 2, "key 7 is not text; put it in quotes"),
    "tab": ("factors:\n\tframework: [a]\n", 2, "a tab stands at the beginning of the line; indent with spaces: framework: [a]"),
    "open bracket": (
        "factors:\n  framework: [a, b\n  model: c\n", 2, "what begins with '[' does not end in ']', or a comma is missing: framework: [a, b"
    ),
    "open brace": ("a: {b: 1\n", 1, "what begins with '{' does not end in '}', or a comma is missing: a: {b: 1"),
    "open quote": ("title: 'a\nseed: 7\n", 1, "a quotation mark is not closed: title: 'a"),
    "too deep": ("title: a\n  seed: 7\n", 2, "the line is indented deeper than the one above, which has a value"),
    "between": ("factors:\n   a: 1\n  b: 2\n", 3, "the line does not begin below the one that it belongs to; correct its indentation: b: 2"),
    "sign": ("a: 1\nb: %x\n", 2, "the value begins with a sign of YAML's own; put it in quotes: b: %x"),
    "twice": ("a: 1\na: 2\n", 2, "key 'a' stands twice; remove one"),
    "two documents": ("a: 1\n---\nb: 2\n", 2, "a second document begins here (---); a file has one"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "said"), SLIPS.values(), ids=SLIPS)
def test_a_slip_is_told_with_its_line_and_what_to_do(tmp_path: Path, text: str, line: int, said: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        load_yaml(file)
    assert str(refused.value).startswith(f"{file}:{line}: not valid YAML: ")
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_study_tells_it_too(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("title: Does it pay: a study\n")
    with pytest.raises(InputError, match=r"mine\.yaml:1: .* in quotes: title: \"Does it pay: a study\""):
        load_study("mine", tmp_path)
