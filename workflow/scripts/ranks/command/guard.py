"""Run a command, and end all of its processes when it ends, or when the rank that started it dies.

Usage: python guard.py PARENT COMMAND ARGUMENT... PARENT is the number of the process that starts this one.
The exit status is that of the command.

A launcher can kill a rank without warning. Without a guard, processes that the rank started, such as the
workers of torchrun, would continue. The guard gets SIGTERM from the kernel when the rank dies (prctl(2)), and
adopts processes that lose their parent, so that it is an ancestor of all of them until they end.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 5.0  # time for killed processes to end


def descendants(process: int) -> list[int]:
    """Return the living processes below a process, without zombies."""
    parents = {}
    for number in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, parent = Path("/proc", number, "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                parents[int(number)] = int(parent)
    descendants, below = [], [process]
    while below:
        below = [number for number, parent in parents.items() if parent in below]
        descendants += below
    return descendants


def end_all() -> None:
    """Kill all processes below this one, again until none is left."""
    deadline = time.monotonic() + GRACE_S
    while (living := descendants(os.getpid())) and time.monotonic() < deadline:
        for number in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.02)


def main(parent: int, command: list[str]) -> int:
    """Run the command, and return its exit status, 128 and the signal's number if a signal ended it."""
    kernel = ctypes.CDLL(None)
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def end(_signal: int, _frame: object) -> None:
        end_all()
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    if os.getppid() != parent:  # it died before prctl
        return 128 + signal.SIGTERM
    status = subprocess.Popen(command).wait()
    end_all()
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
