"""Load this machine intermittently, as CPU steal does: `python benchmarks/coming_load.py --seconds 600`.

Programs in a control group of their own use a share of every core, limited by the group's quota, for some
seconds, pause for some seconds, and so on. In half of the intervals they stream memory, in the other half
they only count. They end after the given time, or with the process that started them. Needs root.
"""

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from virtual_cluster.limits import Limits, remove_family

GROUP = "coming-load"
SHARES = 0.1, 0.45  # of each core, while the load is on
MEAN_S = 8.0  # mean duration of load and of pause
LEAST_S = 1.0
COUNT = "while True: pass"
STREAM = (
    "import numpy as np; a, b = (np.ones(2**24, np.float32) for _ in range(2))\n"
    "while True: np.add(a, b, out=a)"
)


@contextmanager
def coming_load(
    seed: int = 1, shares: tuple[float, float] = SHARES, mean_s: float = MEAN_S
) -> Iterator[None]:
    """Load the machine while the body runs.

    `shares` are the smallest and largest share of each core; `mean_s` is the mean of exponential durations.
    """
    rng, cores, group = random.Random(seed), sorted(os.sched_getaffinity(0)), Limits(GROUP)  # noqa: S311 (a load)
    group.make(len(cores) * shares[1], None, ("cpu",))
    programs: dict[str, list[subprocess.Popen[bytes]]] = {}
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.wait(LEAST_S + rng.expovariate(1 / mean_s)):
            group.make(len(cores) * rng.uniform(*shares), None, ("cpu",))
            active = rng.choice(list(programs.values()))
            _send_signal(active, signal.SIGCONT)
            ended.wait(LEAST_S + rng.expovariate(1 / mean_s))
            _send_signal(active, signal.SIGSTOP)

    try:
        for text in (COUNT, STREAM):
            programs[text] = [_start(text, core, group) for core in cores]
        time.sleep(1)  # until all programs run
        _send_signal([process for copies in programs.values() for process in copies], signal.SIGSTOP)
        turns = threading.Thread(target=come_and_go)
        turns.start()
        try:
            yield
        finally:
            ended.set()
            turns.join()
    finally:
        for copies in programs.values():
            for process in copies:
                process.kill()
                process.wait()
        group.remove()
        remove_family()


def _send_signal(programs: Sequence[subprocess.Popen[bytes]], signum: signal.Signals) -> None:
    for process in programs:
        process.send_signal(signum)


def _start(text: str, core: int, group: Limits) -> subprocess.Popen[bytes]:
    """Start a program of the group on a core; it ends with this process (prctl(2), PR_SET_PDEATHSIG is 1)."""
    code = (
        f"import ctypes, os; ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)}); os.sched_setaffinity(0, "
        f"[{core}])\n"
        f"{text}"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code], env={"OPENBLAS_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL
    )
    for folder in group.folders:
        (folder / "cgroup.procs").write_text(str(started.pid))
    return started


def main(argv: list[str] | None = None) -> None:
    """Load this machine intermittently."""
    parser = argparse.ArgumentParser(prog="coming_load.py", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="total duration")
    parser.add_argument("--seed", type=int, default=1, help="seed of durations and shares")
    parser.add_argument(
        "--shares", type=float, nargs=2, default=SHARES, help="least and largest share of each core"
    )
    parser.add_argument(
        "--mean-seconds", type=float, default=MEAN_S, help="mean duration of load and of pause"
    )
    options = parser.parse_args(argv)
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with coming_load(options.seed, tuple(options.shares), options.mean_seconds):
        time.sleep(options.seconds)


if __name__ == "__main__":
    main()
