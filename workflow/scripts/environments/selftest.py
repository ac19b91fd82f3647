"""The self-test of an environment: its `selftest.py` as two ranks on loopback (environments.two_ranks), in the environment itself."""

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import InputError
from environments import two_ranks
from environments.steps import isolated

DRIVER = Path(two_ranks.__file__)
MOST = 300  # characters of a line


def run(command: Sequence[str], variables: Mapping[str, str], name: str, log: Path) -> dict[str, Any]:
    """Run `command`, the driver in the environment `name`. Returns what rank 0 found; InputError when the test fails."""
    with open(log, "ab") as output:
        before = output.tell()
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            env=isolated(variables),
            check=False,
        )
    said = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode or not said:
        why = _why(log.read_bytes()[before:].decode(errors="replace"))
        file = f"containers/{name}/selftest.py"
        raise InputError("selftest-failed", f"failed: {why}", file=file, got=why, hint=f"its output is in {log}")
    return answer(said[-1], name)


def answer(line: str, name: str) -> dict[str, Any]:
    """What a Python program of ours printed as JSON in the environment `name`. InputError where it is none: that is no Python."""
    with contextlib.suppress(ValueError):
        if isinstance(said := json.loads(line), dict):
            return said
    problem = f"its Python answers {line[:100]!r}, which no program of ours prints"
    raise InputError("no-python", problem, file=f"environment {name}", got=line, hint="is it a Python?")


def _why(output: str) -> str:
    """The driver's verdict, which is its last line, after the last thing that a rank said."""
    lines = [line.strip() for line in output.splitlines() if any(character.isalnum() for character in line)]
    return ": ".join(reversed([line[:MOST] for line in lines[-2:]])) or "it said nothing"
