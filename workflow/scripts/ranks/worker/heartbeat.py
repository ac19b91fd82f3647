"""Measure the time during which this process was stopped: by a signal, a frozen control group, or a suspended machine.

A thread wakes up every TICK_S. If it wakes up much later and the process used no CPU time meanwhile, the process was stopped. A
library that computes while it holds the interpreter's lock also delays the thread, but it uses CPU time. A suspended machine stops
CLOCK_MONOTONIC, which leaves no gap; CLOCK_BOOTTIME goes on, so the two clocks move apart.
"""

import threading
import time

TICK_S = 0.1
MIN_PAUSE_S = 0.5  # a busy node delays a thread by less
MAX_BUSY_SHARE = 0.02  # of a CPU, during a pause


class Heartbeat:
    """Sum up the pauses of this process from now on."""

    def __init__(self) -> None:
        self.paused_s = 0.0
        self._suspended_s = _suspended_s()
        threading.Thread(target=self._watch, name="heartbeat", daemon=True).start()

    def _watch(self) -> None:
        woke, used = time.monotonic(), time.process_time()
        while True:
            time.sleep(TICK_S)
            before, used_before = woke, used
            woke, used = time.monotonic(), time.process_time()
            self.paused_s += pause_s(woke - before - TICK_S, used - used_before)
            suspension_s = _suspended_s() - self._suspended_s
            if suspension_s >= MIN_PAUSE_S:
                self.paused_s += suspension_s
                self._suspended_s += suspension_s


def pause_s(delay_s: float, cpu_s: float) -> float:
    """Return how long the process was stopped, given by how much a tick was late and the CPU time used meanwhile; 0 if it was busy."""
    return delay_s if delay_s >= MIN_PAUSE_S and cpu_s <= MAX_BUSY_SHARE * delay_s else 0.0


def _suspended_s() -> float:
    """Return for how long this machine was suspended since it booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
