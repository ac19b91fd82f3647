"""Measure how long this process was stopped: by a signal, a frozen control group, or a suspended machine.

A thread wakes up every TICK_S. If it wakes up much later, it was stopped, or it waited for a processor, or
for the interpreter's lock, which a library may hold while it computes. A thread that waits for the lock asks
for it every `sys.getswitchinterval()`, and each request counts as a voluntary switch of this thread; the
kernel counts how long it waited for a processor. A stopped thread does neither. The CPU time of other threads
does not help: they compute until the very moment when the process is stopped.

A suspended machine stops CLOCK_MONOTONIC, which leaves no gap; CLOCK_BOOTTIME goes on, so the two clocks move
apart.
"""

import contextlib
import resource
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

TICK_S = 0.1
MIN_PAUSE_S = 0.5  # a busy node delays a thread by less
LATE_SWITCH = 3  # a wait for the lock takes up to so many times the switch interval where processors are busy
_SCHEDULED = Path("/proc/thread-self/schedstat")  # ns on a processor, ns of waiting for one, turns


@dataclass(frozen=True)
class Beat:
    """Time, voluntary switches of this thread, and the seconds for which it waited for a processor."""

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
    """Return how long the process was stopped between two beats, s; 0 if it was not, or only waited."""
    locked_s = (now.switches - before.switches) * LATE_SWITCH * sys.getswitchinterval()
    stopped_s = now.at_s - before.at_s - TICK_S - locked_s - (now.queued_s - before.queued_s)
    return stopped_s if stopped_s >= MIN_PAUSE_S else 0.0


def _beat() -> Beat:
    queued_s = 0.0
    with contextlib.suppress(OSError, ValueError, IndexError):  # a kernel may not tell
        queued_s = int(_SCHEDULED.read_text().split()[1]) / 1e9
    return Beat(time.monotonic(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, queued_s)


def _suspended_s() -> float:
    """Return for how long this machine was suspended since it booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
