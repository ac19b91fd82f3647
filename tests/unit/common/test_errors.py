"""An InputError is one line for people and fields for programs, and stays both in another process."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from common.errors import CHECKOUT, MAX_LINES, CodedValueError, InputError, InputErrors, exit_status

FIELDS = ("code", "problem", "file", "key", "got", "expected", "suggestion", "hint")
FULL: dict[str, Any] = {
    "file": "s.yaml",
    "key": "factors.nodes",
    "got": [3, None],
    "expected": (1, 2),
    "suggestion": "2",
    "hint": "take fewer",
}


def test_file_is_shown_from_the_checkout() -> None:
    assert InputError("x", "is wrong", file=CHECKOUT / "config" / "a.yaml").file == "config/a.yaml"
    assert InputError("x", "is wrong", file=CHECKOUT.parent / "a.yaml").file == str(
        CHECKOUT.parent / "a.yaml"
    )


def fields_of(error: InputError) -> dict[str, object]:
    return {name: getattr(error, name) for name in FIELDS}


def refuse(code: str, problem: str, fields: dict[str, Any]) -> None:
    """What a process of a pool does."""
    raise InputError(code, problem, **fields)


def refuse_all(count: int) -> None:
    """What a process of a pool does."""
    raise InputErrors(
        [InputError("out-of-range", "is too large", key=f"a{number}", got=number) for number in range(count)]
    )


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "is wrong"),
        ({"file": "s.yaml"}, "s.yaml: is wrong"),
        ({"key": "nodes"}, "nodes: is wrong"),
        ({"file": "s.yaml", "key": "nodes"}, "s.yaml: nodes: is wrong"),
        ({"expected": "a number"}, "is wrong; expected a number"),
        ({"expected": [1, "two"]}, "is wrong; expected one of 1, two"),
        ({"expected": []}, "is wrong"),
        ({"suggestion": "node"}, "is wrong; did you mean 'node'?"),
        ({"hint": "take it out"}, "is wrong; take it out"),
        ({"got": 3}, "is wrong"),
        (FULL, "s.yaml: factors.nodes: is wrong; expected one of 1, 2; did you mean '2'?; take fewer"),
        ({"key": "a\nb\x1b"}, r"a\nb\x1b: is wrong"),
    ],
)
def test_fields_of_an_error_become_one_line(fields: dict[str, Any], line: str) -> None:
    error = InputError("unknown-key", "is wrong", **fields)
    assert str(error) == line
    assert error.lines == [f"{line} [unknown-key]"]


def test_error_is_the_same_after_pickling() -> None:
    error = InputError("unknown-key", "is wrong", **FULL)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is InputError
    assert fields_of(again) == fields_of(error) and str(again) == str(error)


def test_error_reaches_the_caller_of_another_process() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        single, multiple = pool.submit(refuse, "unknown-key", "is wrong", FULL), pool.submit(refuse_all, 3)
        with pytest.raises(InputError) as refused:
            single.result()
        assert fields_of(refused.value) == fields_of(InputError("unknown-key", "is wrong", **FULL))
        with pytest.raises(InputErrors) as refused_all:
            multiple.result()
    assert [(error.key, error.got) for error in refused_all.value.errors] == [("a0", 0), ("a1", 1), ("a2", 2)]
    assert refused_all.value.code == "out-of-range"


@pytest.mark.parametrize("count", [1, MAX_LINES - 1, MAX_LINES])
def test_each_of_several_errors_has_a_line(count: int) -> None:
    with pytest.raises(InputErrors) as refused:
        refuse_all(count)
    assert refused.value.lines == [f"a{number}: is too large [out-of-range]" for number in range(count)]


def test_program_ends_with_a_line_for_each_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: refuse_all(2)) == 2
    printed = capsys.readouterr()
    assert printed.err == (
        "ringside: a0: is too large [out-of-range]\nringside: a1: is too large [out-of-range]\n"
    )
    assert printed.out == ""
    assert exit_status(lambda: None) == 0 and capsys.readouterr().err == ""


def test_full_disk_ends_a_program_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fill() -> None:
        raise OSError(28, os.strerror(28), "results/a")

    assert exit_status(fill) == 2
    assert capsys.readouterr().err == (
        "ringside: results/a: No space left on device; correct it, then start again [system-error]\n"
    )


def test_value_error_keeps_its_code_in_another_process() -> None:
    again = pickle.loads(pickle.dumps(CodedValueError("duplicate", "has the axis data twice")))  # noqa: S301
    assert (again.code, str(again)) == ("duplicate", "has the axis data twice")


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2), (0, 1, 2)])
def test_closed_streams_are_opened(tmp_path, closed):
    program = """
import os, subprocess, sys
from common.errors import exit_status
def main():
    print("a"); print("b", file=sys.stderr); sys.stdout.isatty()
    with open(sys.argv[1], "w") as file:
        assert file.fileno() > 2, file.fileno()
        subprocess.run(["sh", "-c", "echo x | tee /dev/null >&2"], check=True)
        file.write("whole")
sys.exit(exit_status(main))
"""

    def close() -> None:
        for number in closed:
            os.close(number)

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        check=False,
        capture_output=True,
        preexec_fn=close,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "whole"


def test_first_of_many_errors_are_shown() -> None:
    with pytest.raises(InputErrors) as refused:
        refuse_all(MAX_LINES + 5)
    *lines, last = refused.value.lines
    assert lines == [f"a{number}: is too large [out-of-range]" for number in range(MAX_LINES)]
    assert last == "and 5 more like these"
