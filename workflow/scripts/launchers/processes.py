"""Start processes in sessions of their own, and kill them with everything that they started."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO

from common.notes import Note
from launchers.protocol import AttemptLost

KILL_TIMEOUT_S = 60.0  # time limit for a killed process to end


def spawn(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a process in a new session, so that `kill` reaches its children, with its output in `output`."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the process group of every process, even of one that has ended, and wait for the processes.

    Raises:
        AttemptLost: If a process does not end, because it is frozen or waits for a dead device or file
            system.
    """
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            text = f"process {process.pid} does not end within {KILL_TIMEOUT_S:g} s after it was killed"
            raise AttemptLost(
                Note("does-not-end", text, process=process.pid, within_s=KILL_TIMEOUT_S)
            ) from None


def pkill_command(command: Sequence[str]) -> list[str]:
    """Return the command that kills the ranks that `command` started on a node.

    It matches the last words, which name the attempt's folder. The brackets keep the pattern from matching
    its own command line.
    """
    words = " ".join(command[-3:])
    return ["pkill", "-KILL", "-f", "--", f"[{words[0]}]{re.escape(words[1:])}"]
