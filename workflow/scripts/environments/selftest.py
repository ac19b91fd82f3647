"""The self-test of an environment: its `selftest.py` as two ranks on loopback (environments.two_ranks), in the environment itself."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import InputError
from environments import two_ranks
from environments.steps import isolated

DRIVER = Path(two_ranks.__file__)


def run(command: Sequence[str], variables: Mapping[str, str], name: str, log: Path) -> dict[str, Any]:
    """Run `command`, the driver in the environment `name`. Returns what rank 0 found; InputError when the test fails."""
    with open(log, "ab") as output:
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
        last = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(f"the self-test containers/{name}/selftest.py failed: {last[:300]}; its output is in {log}")
    result: dict[str, Any] = json.loads(said[-1])
    return result
