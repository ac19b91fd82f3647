"""YAML and JSON that people write are read as they mean them, or refused in one line, soon."""

import os
from pathlib import Path

import pytest

from common.errors import InputError, InputErrors, exit_status
from common.files import dump_yaml, load_yaml, read_json


def test_plain_values_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "{a: 010, b: 1e-3, c: yes, d: 1:30:00, e: 0o17, f: 0x1F, g: ~, h: true, i: -.5, j: 2026-01-01, k: .inf, l: 1., m: }"
    )
    assert load_yaml(file) == {
        "a": 10, "b": 0.001, "c": "yes", "d": "1:30:00", "e": 15, "f": 31, "g": None, "h": True, "i": -0.5, "j": "2026-01-01",
        "k": float("inf"), "l": 1.0, "m": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "value", ["010", "1e3", "0" * 63 + "8", "yes", "true", "~", "", "2026-01-01", 1, 0.5, None, True, ["é"]]
)
def test_what_is_written_is_read_again(tmp_path: Path, value: object) -> None:
    (tmp_path / "a.yaml").write_text(dump_yaml({"a": value}))
    assert load_yaml(tmp_path / "a.yaml") == {"a": value}


BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "more than 200,000 values, with those that aliases repeat"),
        ("a: " + "[" * 100_000, "nests more than 40 deep"),
        ("- " * 100_000, "nests more than 40 deep"),
        (f"a: {'x' * 2**22}", "larger than 4 MiB"),
        ("a: 1\na: 2\n", "key 'a' stands twice"),
        ("1: 2\n", "key 1 is not text"),
        ("a: &a [*a]\n", "recursive"),
        ("a: !!python/name:os.system\n", "could not determine a constructor"),
    ],
    ids=lambda text: text[:12],
)
def test_what_would_take_minutes_or_the_interpreter_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError, match="not valid YAML: ") as refused:
        load_yaml(tmp_path / "a.yaml")
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": "\\ud800"}', "half a character"),
        ('{"a": 1' + "0" * 400 + "}", "a number of 401 digits"),
        ('{"a": NaN}', "no number of JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=lambda text: text[:12],
)
def test_json_that_cannot_be_worked_with_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json(tmp_path / "a.json") == {"a": "\U0001f600"}, "two halves are a character"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(InputError, match="is no regular file"):
        load_yaml(tmp_path / "a.yaml")
    with pytest.raises(OSError, match="is no regular file"):
        read_json(tmp_path / "a.yaml")


def test_several_mistakes_are_a_line_each_and_what_the_system_refuses_is_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def mistaken() -> None:
        raise InputErrors([f"a{number}: is wrong" for number in range(25)])

    def full() -> None:
        raise OSError(28, os.strerror(28), "results/a")

    assert exit_status(mistaken) == exit_status(full) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "ringside: a0: is wrong" and lines[20] == "ringside: and 5 more like these"
    assert lines[21:] == ["ringside: results/a: No space left on device; correct it, then start again"]
