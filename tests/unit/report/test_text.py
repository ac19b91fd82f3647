"""The page shows the end of logs, without control sequences."""

from pathlib import Path

import pytest

from report import text


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1;2|data\x1b\\after", "after"),
        ("\x1b(Bcharset", "charset"),
        ("\x9b31mred", "red"),
        ("nul\x00 bell\x07 back\x08", "nul\ufffd bell\ufffd back\ufffd"),
        ("half \ud800 a character", "half \ufffd a character"),
        ("turned \u202e round", "turned \ufffd round"),
        ("cut off \x1b[31", "cut off "),
    ],
)
def test_nothing_steers_a_terminal(raw: str, left: str) -> None:
    assert text.clean(raw) == left


@pytest.mark.parametrize("start", ["\x1b[1", "\x1b]0;", "\x1bP", "\x1b", "\x9b"])
def test_hostile_sequences_cost_no_time(start: str) -> None:
    assert len(text.clean(start * 100_000)) <= 300_000


def log_of(folder: Path, raw: bytes) -> Path:
    file = folder / "log.txt"
    file.write_bytes(raw)
    return file


def test_an_empty_log_says_so_and_no_log_is_none(tmp_path: Path) -> None:
    empty = text.tail(log_of(tmp_path, b""), 1000)
    assert empty is not None and (empty.text, empty.extent.code) == ("", "empty-log")
    assert text.tail(tmp_path / "absent", 1000) is None
    assert text.tail(tmp_path, 1000) is None, "a folder is no log"


def test_of_a_long_log_the_last_lines_are_kept(tmp_path: Path) -> None:
    tail = text.tail(log_of(tmp_path, b"".join(b"line %d\n" % i for i in range(1000))), 100_000)
    assert tail is not None
    assert tail.text.split("\n") == [f"line {i}" for i in range(800, 1000)]
    assert tail.extent.facts == {"lines": 200, "bytes": 8890}


def test_of_a_huge_log_only_the_end_is_read(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    with open(file, "wb") as out:
        out.seek(50_000_000)
        out.write(b"\nthe end\n")
    tail = text.tail(file, 1000)
    assert tail is not None and tail.text.endswith("the end") and len(tail.text) <= 1000
    assert tail.extent.facts["bytes"] == 50_000_009


def test_overwritten_text_is_gone_and_broken_bytes_marked(tmp_path: Path) -> None:
    tail = text.tail(log_of(tmp_path, b" 1 %\r50 %\r100 %\r\n\xff\xfe broken\n"), 1000)
    assert tail is not None and tail.text == "100 %\n\ufffd\ufffd broken"
