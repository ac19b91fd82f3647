"""Setup lines stand on their own: none hides the failure of another, and what they export arrives."""

import subprocess

from common.shell import shell_command


def said(setup: list[str], *command: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(shell_command(setup, "", variables, command), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


def test_a_failing_line_ends_it_whatever_follows() -> None:
    assert said(["false", "export A=1; export B=2"], "echo", "trained")[1] == ""
    assert said(["export A=1; false", "true"], "echo", "trained") == (1, "")
    assert said(["true # a comment", "export A='1 2'"], "sh", "-c", "echo $A") == (0, "1 2")


def test_our_variables_come_after_the_setup_lines() -> None:
    assert said(["export PYTHONPATH=theirs"], "sh", "-c", "echo $PYTHONPATH", PYTHONPATH="ours") == (0, "ours")
    assert said(["export PYTHONHOME=/nowhere"], "sh", "-c", "echo ${PYTHONHOME-gone}") == (0, "gone")


def test_quotes_and_blanks_arrive() -> None:
    assert said([], "printf", "%s|", "a b", "$c", "'d'") == (0, "a b|$c|'d'|")
