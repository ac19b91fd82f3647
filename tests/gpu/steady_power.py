"""Compare a meter that integrates power with the time that passes."""

import time

from ranks.worker.energy import EnergyMeter

WAIT_S = 0.2


def assert_integrates(meter: EnergyMeter, watts: float) -> None:
    """Assert that a meter gains the joules of a constant power."""
    start = time.monotonic()
    before = meter.joules()
    began = time.monotonic()
    time.sleep(WAIT_S)
    shortest_s = time.monotonic() - began
    after = meter.joules()
    assert before is not None and after is not None
    assert watts * shortest_s <= after - before <= watts * (time.monotonic() - start)
