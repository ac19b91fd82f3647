"""YAML and JSON that people write are read as they mean them, or refused in one line, soon."""

import errno
import os
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import (
    create_json,
    create_text,
    dump_yaml,
    load_yaml,
    node_name,
    read_json,
    write_json,
    written_whole,
)
from support.refusals import assert_refusal


def test_plain_values_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "{a: 010, b: 1e-3, c: yes, d: 1:30:00, e: 0o17, f: 0x1F, g: ~, h: true, i: -.5, j: 2026-01-01, k: "
        ".inf, l: 1., m: }"
    )
    assert load_yaml(file) == {
        "a": 10, "b": 0.001, "c": "yes", "d": "1:30:00", "e": 15, "f": 31, "g": None, "h": True, "i": -0.5,
        "j": "2026-01-01",
        "k": float("inf"), "l": 1.0, "m": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "value", ["010", "1e3", "0" * 63 + "8", "yes", "true", "~", "", "2026-01-01", 1, 0.5, None, True, ["é"]]
)
def test_written_yaml_is_read_back_unchanged(tmp_path: Path, value: object) -> None:
    (tmp_path / "a.yaml").write_text(dump_yaml({"a": value}))
    assert load_yaml(tmp_path / "a.yaml") == {"a": value}


BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "code", "line", "mentions"),
    [
        (BOMB, "beyond-limits", "", ["200,000"]),
        ("a: " + "[" * 100_000, "beyond-limits", "", [40]),
        ("- " * 100_000, "beyond-limits", "", [40]),
        (f"a: {'x' * 2**22}", "beyond-limits", "", ["4 MiB"]),
        ("a: 1\na: 2\n", "duplicate", ":2", ["'a'"]),
        ("1: 2\n", "wrong-type", ":1", ["key 1"]),
        ("a: &a [*a]\n", "invalid-yaml", ":1", []),
        ("a: !!python/name:os.system\n", "invalid-yaml", ":1", ["python/name:os.system"]),
    ],
    ids=lambda text: str(text)[:12],
)
def test_yaml_beyond_limits_is_refused(
    tmp_path: Path, text: str, code: str, line: str, mentions: list[object]
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError) as refused:
        load_yaml(tmp_path / "a.yaml")
    assert_refusal(refused.value, code, "", mentions, file=f"{tmp_path}/a.yaml{line}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": "\\ud800"}', "half a character"),
        ('{"a": 1' + "0" * 400 + "}", "a number of 401 digits"),
        ('{"a": NaN}', "not a number in JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=lambda text: text[:12],
)
def test_unusable_json_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The only test in which these sentences stand: a ValueError has no code."""
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "a.json")


def test_surrogate_pair_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json(tmp_path / "a.json") == {"a": "\U0001f600"}


def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(InputError) as refused:
        load_yaml(tmp_path / "a.yaml")
    assert_refusal(refused.value, "unreadable-file", file=f"{tmp_path}/a.yaml")
    with pytest.raises(OSError, match="is not a regular file"):
        read_json(tmp_path / "a.yaml")


@pytest.mark.parametrize("escape", ["\\0", "\\e", "\\x7f", "\\ud800"])
def test_texts_have_no_unprintable_characters(tmp_path: Path, escape: str) -> None:
    (tmp_path / "study.yaml").write_text(f'seed: 1\ntitle: "a{escape}b"\n')
    with pytest.raises(InputError) as refused:
        load_yaml(tmp_path / "study.yaml")
    assert refused.value.code == "invalid-yaml" and refused.value.file.endswith("study.yaml:2")


def test_texts_may_have_several_lines(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text('title: "a\\tb\\nc"\n')
    assert load_yaml(tmp_path / "study.yaml") == {"title": "a\tb\nc"}


@pytest.mark.parametrize("name", ["node1", "a/b", "n\udcf6de", "two\nlines", "", "\u00e9t\u00e9 $(x)"])
def test_name_of_any_node_is_safe_in_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("os.uname", lambda: os.uname_result(("Linux", name, "6", "1", "x86_64")))
    write_json(tmp_path / "holder.json", {"host": node_name()})
    create_text(tmp_path / "log.txt", node_name())
    assert read_json(tmp_path / "holder.json") == {"host": node_name()}
    assert (
        node_name()
        and node_name().isprintable()
        and (node_name() == name or name not in ("node1", "\u00e9t\u00e9 $(x)"))
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["holder.json", "log.txt"]


@pytest.mark.parametrize("name", ["x" * 255, "ü" * 127, "x" * 200])
def test_file_with_a_long_name_is_written_whole(tmp_path, name):
    write_json(tmp_path / name, 1)
    write_json(tmp_path / name, 2)
    create_json(tmp_path / name, 3)
    assert [(file.name, read_json(file)) for file in tmp_path.iterdir()] == [(name, 2)]


def test_huge_yaml_is_refused_unread(tmp_path):
    with open(tmp_path / "site.yaml", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(InputError) as error:
        load_yaml(tmp_path / "site.yaml")
    assert_refusal(error.value, "unreadable-file")


def test_full_disk_is_named(tmp_path):
    with pytest.raises(OSError) as error, written_whole(tmp_path / "a.csv"):
        os.write(os.open("/dev/full", os.O_WRONLY), b"a")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / "a.csv"))
    assert list(tmp_path.iterdir()) == []
