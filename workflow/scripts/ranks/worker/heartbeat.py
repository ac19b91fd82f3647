"""Measure how long this process was stopped: by a signal, a frozen control group, or a suspended machine.

A thread wakes up every TICK_S. If it wakes up late, the process was stopped, or the thread waited for a core
or for the interpreter's lock, which a library may hold while it computes. Waiting leaves traces: the kernel
counts the time that a thread waits for a core, and a thread that waits for the lock requests it every
`sys.getswitchinterval()`, each time with a voluntary context switch. A stopped process leaves neither. The
CPU time of other threads does not help, since they compute until the process is stopped.

CLOCK_MONOTONIC does not advance while the machine is suspended, but CLOCK_BOOTTIME does; their difference is
the time of suspension.
"""

import contextlib
import resource
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

TICK_S = 0.1
MIN_PAUSE_S = 0.5  # Busy nodes delay a thread by less.
# A request for the lock takes up to 3 switch intervals when cores are busy.
MAX_SWITCH_INTERVALS = 3
# Fields: ns on a core, ns waiting for a core, number of turns.
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True)
class Beat:
    """Time, voluntary context switches of this thread, and seconds for which it waited for a core."""

    at_s: float
    switches: int
    queued_s: float


class Heartbeat:
    """Sum up the pauses of this process from now on."""

    def __init__(self) -> None:
        self.paused_s = 0.0
        self._suspended_s = _suspended_s()
        threading.Thread(target=self._watch, name="heartbeat", daemon=True).start()

    def _watch(self) -> None:
        beat = _beat()
        while True:
            time.sleep(TICK_S)
            before, beat = beat, _beat()
            self.paused_s += pause_s(before, beat)
            suspension_s = _suspended_s() - self._suspended_s
            if suspension_s >= MIN_PAUSE_S:
                self.paused_s += suspension_s
                self._suspended_s += suspension_s


def pause_s(before: Beat, now: Beat) -> float:
    """Return how long the process was stopped between two beats, in s; 0 if it only waited."""
    locked_s = (now.switches - before.switches) * MAX_SWITCH_INTERVALS * sys.getswitchinterval()
    stopped_s = now.at_s - before.at_s - TICK_S - locked_s - (now.queued_s - before.queued_s)
    return stopped_s if stopped_s >= MIN_PAUSE_S else 0.0


def _beat() -> Beat:
    queued_s = 0.0
    with contextlib.suppress(
        OSError, ValueError, IndexError
    ):  # Kernels without CONFIG_SCHED_INFO have no such file.
        queued_s = int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    return Beat(time.monotonic(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, queued_s)


def _suspended_s() -> float:
    """Return for how long this machine was suspended since it booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
