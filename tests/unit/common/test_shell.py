"""Setup lines stand on their own: none hides the failure of another, and what they export arrives."""

import os
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from common import shell
from common.shell import (
    INACCESSIBLE_STATUS,
    Unanswered,
    capture,
    check_node,
    check_node_by_pipe,
    find_inaccessible_path,
    query_with_retries,
    shell_command,
)


def run_in_shell(setup: list[str], *command: str, **variables: str) -> tuple[int, str]:
    done = capture(shell_command(setup, variables, command))
    return done.returncode, done.stdout.strip()


def test_failing_setup_line_ends_the_script() -> None:
    assert run_in_shell(["false", "export A=1; export B=2"], "echo", "trained")[1] == ""
    assert run_in_shell(["export A=1; false", "true"], "echo", "trained") == (1, "")
    assert run_in_shell(["true # a comment", "export A='1 2'"], "sh", "-c", "echo $A") == (0, "1 2")


def test_our_variables_come_after_the_setup_lines() -> None:
    assert run_in_shell(["export PYTHONPATH=theirs"], "sh", "-c", "echo $PYTHONPATH", PYTHONPATH="ours") == (
        0,
        "ours",
    )
    assert run_in_shell(["export PYTHONHOME=/nowhere"], "sh", "-c", "echo ${PYTHONHOME-gone}") == (0, "gone")


def test_quotes_and_blanks_reach_the_command() -> None:
    assert run_in_shell([], "printf", "%s|", "a b", "$c", "'d'") == (0, "a b|$c|'d'|")


def test_a_node_with_every_path_runs_the_command(tmp_path: Path) -> None:
    odd = tmp_path / "a 'path\" $(x)"
    odd.mkdir()
    done = subprocess.run(
        [*check_node([str(tmp_path), str(odd)]), "--", "printf", "%s|", "a b", "--"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"a b|--|")


@pytest.mark.parametrize("by_pipe", [False, True])
def test_a_node_without_a_path_ends_with_its_own_status(tmp_path: Path, by_pipe: bool) -> None:
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    (tmp_path / "sleep").chmod(0o755)
    (tmp_path / "dangling").symlink_to(tmp_path / "no python")
    paths = [str(tmp_path), str(tmp_path / "dangling")]
    # Snakemake's executor for Slurm puts it into double quotes of a shell.
    command = (
        ["sh", "-c", f'sh -c "{check_node_by_pipe(paths)} && echo on"']
        if by_pipe
        else [*check_node(paths), "--", "echo"]
    )
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = capture(command, env=environment)
    assert (done.returncode, done.stdout) == (INACCESSIBLE_STATUS, "")
    seen = find_inaccessible_path(f"a line\n{done.stderr}another")
    assert seen is not None and seen.facts == {"node": os.uname().nodename, "path": paths[1]}


def test_late_file_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "sleep").write_text(f"#!/bin/sh\ntouch {tmp_path}/late\n")
    (tmp_path / "sleep").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(check_node([str(tmp_path / "late")]), env=environment, check=False).returncode == 0


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("lost: node n1 cannot access /a b (job 12 on n2)", {"node": "n1", "path": "/a b"}),
        ("ringside: node n1 cannot access /cache/.seen-by-0123", {"node": "n1", "path": "/cache"}),
        ("a rank prints: ringside: node n1 cannot access /a", None),
    ],
)
def test_inaccessible_path_is_read_from_a_log(line: str, facts: dict[str, str] | None) -> None:
    note = find_inaccessible_path(line)
    assert (dict(note.facts) if note else None) == facts


def test_a_silent_client_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(shell, "time", SimpleNamespace(sleep=pauses.append))

    def ask(left: list[str]) -> str:
        if not (answer := left.pop(0)):
            raise Unanswered("no answer")
        return answer

    assert query_with_retries(partial(ask, ["", "", "RUNNING"])) == "RUNNING"
    assert pauses == [2, 2]
    left = ["", "", "", "RUNNING"]
    with pytest.raises(Unanswered):
        query_with_retries(partial(ask, left))
    assert left == ["RUNNING"] and len(pauses) == 4
