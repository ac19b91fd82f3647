"""Run an environment's `selftest.py` as two ranks on loopback (environments.two_ranks)."""

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import InputError
from environments import two_ranks
from environments.steps import isolated_variables

DRIVER = Path(two_ranks.__file__)
MAX_LINE_CHARACTERS = 300


def run(command: Sequence[str], variables: Mapping[str, str], name: str, log: Path) -> dict[str, Any]:
    """Run `command`, which starts the driver in the environment `name`, and return the result of rank 0.

    Raises:
        InputError: If the test fails.
    """
    with open(log, "ab") as output:
        before = output.tell()
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            env=isolated_variables(variables),
            check=False,
        )
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode or not lines:
        reason = _failure_reason(log.read_bytes()[before:].decode(errors="replace"))
        file = f"containers/{name}/selftest.py"
        raise InputError(
            "selftest-failed", f"failed: {reason}", file=file, got=reason, hint=f"its output is in {log}"
        )
    return parse_answer(lines[-1], name)


def parse_answer(line: str, name: str) -> dict[str, Any]:
    """Return the JSON object in a line that one of this workflow's programs printed in an environment.

    Raises:
        InputError: If the line is not a JSON object; then the interpreter is probably not a Python.
    """
    with contextlib.suppress(ValueError):
        if isinstance(answer := json.loads(line), dict):
            return answer
    problem = f"its Python prints {line[:100]!r} instead of the expected JSON"
    raise InputError("no-python", problem, file=f"environment {name}", got=line, hint="is it a Python?")


def _failure_reason(output: str) -> str:
    """Return the driver's error, which is the last line, followed by the last line that a rank printed."""
    lines = [line.strip() for line in output.splitlines() if any(character.isalnum() for character in line)]
    return ": ".join(reversed([line[:MAX_LINE_CHARACTERS] for line in lines[-2:]])) or "no output"
