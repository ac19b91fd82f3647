"""Models as the planner's programs pose them. Standard library and numpy."""

from functools import partial

from models.named import IMAGES, TEXTS, TOKENS, graph, models
from models.soap import divide
from strategies.costs import roofline
from strategies.problem import RING, Posed, pose
from strategies.topology import Device, Level, Topology

DEVICE = Device(
    flops=5e12, memory_bytes_s=5e11, memory_bytes=1e12, launch_s=1e-5, send_s=2e-6, receive_s=3e-6, receive_byte_s=1e-10
)
SAMPLES = {IMAGES: ((224, 224, 3), 1000), TEXTS: ((40,), 20, 10_000), TOKENS: ((40,), 10_000, 10_000, "next")}


def posed(name: str, batch: int, *levels: Level, gradients: str = RING) -> Posed:
    """A model's problem for batches of so many samples, on devices behind these links."""
    of = graph(name, *SAMPLES[models()[name].takes])
    cost = partial(roofline, device=DEVICE, update_bytes=32)
    return pose(divide(of, batch), Topology(DEVICE, levels), cost, gradients=gradients)
