"""Measure time and memory of a command in a copy of the checkout."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from support.checkout import Checkout

EVERY_S = 0.2
SESSION = 3  # of the fields of /proc/<pid>/stat after the name


@dataclass(frozen=True)
class Timed:
    """Wall time, memory, exit status and output of a command.

    Memory is the peak of the sum over its processes, with shared pages counted once (PSS), sampled every
    EVERY_S seconds, or the largest resident set of one process if that is larger.
    """

    wall_s: float
    memory_bytes: int
    status: int
    output: str


def timed(checkout: Checkout, *command: str) -> Timed:
    """Run `command` in the checkout and measure it."""
    with tempfile.TemporaryFile("w+") as output:
        started = time.monotonic()
        child = subprocess.Popen(
            command,
            cwd=checkout.folder,
            env=checkout.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        peak_bytes, ended = [0], threading.Event()
        sampling = threading.Thread(target=_sample, args=(child.pid, peak_bytes, ended))
        sampling.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)  # Ctrl-C does not reach another session
            raise
        finally:
            wall_s = time.monotonic() - started
            ended.set()
            sampling.join()
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return Timed(wall_s, max(peak_bytes[0], usage.ru_maxrss * 1024), child.returncode, output.read())


def _sample(session: int, peak_bytes: list[int], ended: threading.Event) -> None:
    """Update `peak_bytes` with the memory of the processes of a session until `ended` is set."""
    while not ended.wait(EVERY_S):
        peak_bytes[0] = max(
            peak_bytes[0], sum(_pss(process, session) for process in Path("/proc").glob("[0-9]*"))
        )


def _pss(process: Path, session: int) -> int:
    """Return the proportional set size of a process in bytes, 0 if it belongs to another session."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        if int(fields[SESSION]) != session:
            return 0
        lines = (process / "smaps_rollup").read_text().splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except OSError:  # it has ended meanwhile
        return 0
