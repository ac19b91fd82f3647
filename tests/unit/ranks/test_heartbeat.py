"""Time in which a rank was stopped is measured, and distinguished from time in which it was busy."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from common.files import CHECKOUT
from ranks.worker.heartbeat import Beat, pause_s

pytestmark = pytest.mark.slow

PROGRAM = """
import hashlib, sys, threading, time
from ranks.worker.heartbeat import Heartbeat
def work():
    block = bytes(1 << 20)
    while True:
        hashlib.sha256(block)  # without the interpreter's lock, as training does
for _ in range({threads}):
    threading.Thread(target=work, daemon=True).start()
heartbeat = Heartbeat()
print("ready", flush=True)
{busy}
sys.stdin.readline()
time.sleep(0.3)
print(heartbeat.paused_s)
"""
HOLDS_THE_LOCK = "7 ** 3_000_000"  # one instruction, seconds long: no other thread of Python runs meanwhile


@contextlib.contextmanager
def program(busy: str = "", threads: int = 0) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(busy=busy, threads=threads)],
        env={"PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout and started.stdout.readline() == "ready\n"
        yield started
    finally:
        started.kill()
        started.communicate()


def paused(started: subprocess.Popen[str]) -> float:
    return float(started.communicate("\n", timeout=60)[0])


@pytest.mark.parametrize("threads", [0, 2])
def test_a_stopped_process_knows_for_how_long(threads: int) -> None:
    with program(threads=threads) as started:
        time.sleep(0.05)
        started.send_signal(signal.SIGSTOP)
        time.sleep(1.2)
        started.send_signal(signal.SIGCONT)
        assert paused(started) == pytest.approx(1.2, abs=0.3)


def test_a_process_that_computes_was_not_stopped() -> None:
    with program(HOLDS_THE_LOCK) as started:
        assert paused(started) == 0


@pytest.mark.parametrize(
    ("late_s", "switches", "queued_s", "expected"),
    [(6.0, 1, 0.0, 5.985), (6.0, 1200, 0.0, 0.0), (6.0, 1, 5.8, 0.0), (0.3, 1, 0.0, 0.0), (0.0, 1, 0.1, 0.0)],
)
def test_pause_excludes_waits_for_lock_and_processor(
    late_s: float, switches: int, queued_s: float, expected: float
) -> None:
    now = Beat(100.1 + late_s, 7 + switches, 3.0 + queued_s)
    assert pause_s(Beat(100.0, 7, 3.0), now) == pytest.approx(expected)
