"""What one command in a copy of the checkout takes."""

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass

from checkout import Checkout


@dataclass(frozen=True)
class Timed:
    """Wall time, the memory of the largest process, the exit status and all output of a command."""

    wall_s: float
    memory_bytes: int
    status: int
    output: str


def timed(checkout: Checkout, *command: str) -> Timed:
    """Run `command` in the checkout to its end."""
    with tempfile.TemporaryFile("w+") as output:
        started = time.monotonic()
        child = subprocess.Popen(
            command, cwd=checkout.folder, env=checkout.environment, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.monotonic() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return Timed(wall_s, usage.ru_maxrss * 1024, child.returncode, output.read())
