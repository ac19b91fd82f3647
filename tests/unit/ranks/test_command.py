"""A command's placeholders are filled, and nothing that it starts outlives its rank."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ranks.command import guard
from ranks.command.placeholders import PlaceholderError, evaluate, fill, names

VALUES = {"nodes": 2, "ranks": 8, "tp": 4, "rate": 0.05, "model": "tiny", "output": "/a folder"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("train {nodes} {model}", "train 2 tiny"),
        ("{ranks // tp} {ranks / tp} {ranks * nodes - 1} {rate}", "2 2 15 0.05"),
        ("cd {output} && echo ${HOME} {{literally}} $x", "cd '/a folder' && echo ${HOME} {literally} $x"),
    ],
)
def test_placeholders_are_filled(text: str, filled: str) -> None:
    assert fill(text, VALUES) == filled


def test_names_are_those_of_all_placeholders() -> None:
    assert names("{ranks // tp} ${HOME} {{x}} { nodes }") == {"ranks", "tp", "nodes"}
    assert fill("{output}", VALUES, quoted=False) == "/a folder"


@pytest.mark.parametrize(
    "expression",
    [
        "other",
        "ranks //",
        "",
        "ranks ** tp",
        "model * 2",
        "__import__('os')",
        "ranks.real",
        "ranks / (tp - 4)",
        "-tp",
    ],
)
def test_no_other_expression_is_computed(expression: str) -> None:
    with pytest.raises(PlaceholderError) as refused:
        evaluate(expression, VALUES)
    assert refused.value.placeholder == expression


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, 10 s at most."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_command_started_ends_with_its_rank(tmp_path: Path) -> None:
    # The second process leaves its parent and its session, as daemons do.
    command = "sleep 60 & setsid sleep 61 & echo $$ > pids; jobs -p >> pids; mv pids ready; wait"
    rank = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys; subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()), "
            "'bash', '-c', sys.argv[2]]).wait()",
            guard.__file__,
            command,
        ],
        cwd=tmp_path,
        start_new_session=True,
    )
    wait_for((tmp_path / "ready").exists)
    started = [int(line) for line in (tmp_path / "ready").read_text().split()]
    assert len(started) == 3 and set(started) <= set(guard.descendants(rank.pid))
    os.kill(rank.pid, signal.SIGKILL)
    rank.wait()
    wait_for(
        lambda: (
            not any(Path("/proc", str(number), "cmdline").exists() and _lives(number) for number in started)
        )
    )


def _lives(process: int) -> bool:
    try:
        return Path("/proc", str(process), "stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


@pytest.mark.parametrize(("command", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_status_of_a_command_is_told(command: str, status: int) -> None:
    program = [sys.executable, guard.__file__, str(os.getpid()), "bash", "-c", command]
    assert subprocess.run(program, check=False).returncode == status


def test_a_command_ends_without_its_daemons(tmp_path: Path) -> None:
    command = f"setsid sleep 62 & echo $! > {tmp_path}/pid"
    assert (
        subprocess.run(
            [sys.executable, guard.__file__, str(os.getpid()), "bash", "-c", command], check=False
        ).returncode
        == 0
    )
    assert not _lives(int((tmp_path / "pid").read_text()))
