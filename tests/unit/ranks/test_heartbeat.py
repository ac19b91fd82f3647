"""Time in which a rank did not run is measured, and told from time in which it was busy."""

import signal
import subprocess
import sys
import time

import pytest

from common.files import CHECKOUT
from ranks.worker.heartbeat import pause_s

PROGRAM = """
import sys
from ranks.worker.heartbeat import Heartbeat
heartbeat = Heartbeat()
print("ready", flush=True)
{busy}
sys.stdin.readline()
print(heartbeat.paused_s)
"""
HOLDS_THE_LOCK = "7 ** 8_000_000"  # one instruction, seconds long: no other thread of Python runs meanwhile


def paused(stop_s: float = 0.0, busy: str = "") -> float:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(busy=busy)],
        env={"PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout and program.stdout.readline() == "ready\n"
    if stop_s:
        program.send_signal(signal.SIGSTOP)
        time.sleep(stop_s)
        program.send_signal(signal.SIGCONT)
        time.sleep(0.3)
    return float(program.communicate("\n", timeout=60)[0])


def test_a_stopped_process_knows_for_how_long() -> None:
    assert paused(stop_s=1.5) == pytest.approx(1.5, abs=0.3)


def test_a_process_that_computes_was_not_stopped() -> None:
    assert paused(busy=HOLDS_THE_LOCK) == 0


@pytest.mark.parametrize(
    ("delay_s", "cpu_s", "expected"), [(6.0, 0.001, 6.0), (6.0, 5.9, 0.0), (0.3, 0.0, 0.0), (0.0, 0.1, 0.0)]
)
def test_a_pause_is_long_and_uses_no_cpu(delay_s: float, cpu_s: float, expected: float) -> None:
    assert pause_s(delay_s, cpu_s) == expected
