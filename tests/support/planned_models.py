"""Models as problems of the planner, and a restart with the Python that has numba.

Uses only the standard library and numpy.
"""

import importlib.util
import os
import sys
from dataclasses import replace

from models.graph import Graph
from models.named import CLICKS, IMAGES, PIXELS, TEXTS, TOKENS, graph, models
from models.soap import divide
from strategies.problem import RING, Posed, pose
from strategies.search import cost_on
from strategies.topology import DeviceRates, LinkTier, Topology

DEVICE = DeviceRates(
    flops=5e12,
    memory_bytes_s=5e11,
    memory_bytes=1e12,
    launch_s=1e-5,
    send_s=2e-6,
    receive_s=3e-6,
    receive_byte_s=1e-10,
)
# A smaller device with links that differ in all respects, and models that are simulated in a moment.
SMALL_DEVICE = DeviceRates(flops=1e12, memory_bytes_s=1e11, memory_bytes=1e12, launch_s=1e-6)
HANDLING = replace(SMALL_DEVICE, send_s=2e-6, send_byte_s=1e-10, receive_s=3e-6, receive_byte_s=2e-10)
SLOW = LinkTier(2, 1e8, 1e-5, burst_bytes=1e3, ring_bytes_s=5e7, ring_latency_s=4e-5, ring_channels=2)
SMALL_MODELS = {
    "lenet-5": ((28, 28, 1), 10),
    "inception-v3": ((96, 96, 3), 10),
    "gpt-nano": ((8,), 20, 20, "next"),
    "rnn-translation": ((8,), 20, 20, "next"),
}
SAMPLES = {
    CLICKS: ((39,), 2, 26_000, "click"),
    IMAGES: ((224, 224, 3), 1000),
    PIXELS: ((64, 64, 3), 4, None, "pixel"),
    TEXTS: ((40,), 20, 10_000),
    TOKENS: ((40,), 10_000, 10_000, "next"),
}


def planned_graph(name: str) -> Graph:
    """Return a model for samples of its kind."""
    return graph(name, *SAMPLES[models()[name].sample_kind])


def divisible_models() -> list[str]:
    """Return the names of models that strategies can divide: those without a mixture of experts.

    MPT is left out, since it has GPT's operators in up to 80 blocks.
    """
    names = [name for name in models() if not name.startswith("mpt")]
    kinds = {name: {operator.kind for operator in planned_graph(name).operators} for name in names}
    return sorted(name for name in kinds if "experts" not in kinds[name])


def posed(name: str, batch: int, *tiers: LinkTier, gradients: str = RING) -> Posed:
    """Return a model's problem for a batch size and devices behind these tiers of links."""
    topology = Topology(DEVICE, tiers)
    return pose(divide(planned_graph(name), batch), topology, cost_on(topology, 4), gradients=gradients)


def by_planner() -> None:
    """Restart the program with the Python that has numba, if this one has none."""
    if importlib.util.find_spec("numba") is None:
        from strategies.find import interpreter

        python = interpreter()
        os.execv(python, [python, *sys.argv])  # noqa: S606
