"""What the planner's programs share: models as they pose them, and the Python that runs them.

Standard library and numpy.
"""

import importlib.util
import os
import sys

from models.named import IMAGES, TEXTS, TOKENS, graph, models
from models.soap import divide
from strategies.problem import RING, Posed, pose
from strategies.search import cost_on
from strategies.topology import Device, Level, Topology

DEVICE = Device(
    flops=5e12,
    memory_bytes_s=5e11,
    memory_bytes=1e12,
    launch_s=1e-5,
    send_s=2e-6,
    receive_s=3e-6,
    receive_byte_s=1e-10,
)
SAMPLES = {IMAGES: ((224, 224, 3), 1000), TEXTS: ((40,), 20, 10_000), TOKENS: ((40,), 10_000, 10_000, "next")}


def posed(name: str, batch: int, *levels: Level, gradients: str = RING) -> Posed:
    """A model's problem for batches of so many samples, on devices behind these links."""
    model = graph(name, *SAMPLES[models()[name].sample_kind])
    topology = Topology(DEVICE, levels)
    return pose(divide(model, batch), topology, cost_on(topology, 4), gradients=gradients)


def by_planner() -> None:
    """Start the program again by the Python that has numba, where this one has none."""
    if importlib.util.find_spec("numba") is None:
        from strategies.find import interpreter

        python = interpreter()
        os.execv(python, [python, *sys.argv])  # noqa: S606
