"""A made-up trace, for tests of the formats of trace viewers."""

import pandas as pd

from runs.phases import INTERVALS
from traces.timeline import Timeline

# Two ranks, two steps of one epoch; rank 1 has two all-reduces at a time, and a phase that takes no time.
ROWS = [
    (0, 0, 0, "interpreter", 0.0, 0.5),
    (0, 1, 1, "forward", 0.5, 0.6000001),
    (0, 1, 1, "backward", 0.6000001, 0.9),
    (0, 1, 1, "communication", 0.7, 0.95),
    (0, 1, 1, "wait", 0.9, 0.95),
    (0, 1, 2, "forward", 0.95, 1.1),
    (0, 1, 0, "barrier", 1.1, 1.2),
    (1, 0, 0, "interpreter", 0.1, 0.5),
    (1, 1, 1, "forward", 0.5, 0.5),
    (1, 1, 1, "backward", 0.5, 0.9),
    (1, 1, 1, "communication", 0.6, 0.8),
    (1, 1, 1, "communication", 0.7, 0.95),
    (1, 1, 1, "communication", 0.8, 0.96),
    (1, 1, 1, "wait", 0.9, 0.96),
]
TIMELINE = Timeline(
    pd.DataFrame(ROWS, columns=list(INTERVALS)),
    hosts=("alpha", "beta"),
    devices=("CPU A", "CPU B"),
    metadata={"run_id": "a.r1", "clock_error_s": 1e-6, "transport": None},
)
