"""Models as problems of the planner, and a restart with the Python that has numba.

Uses only the standard library and numpy.
"""

import importlib.util
import os
import sys

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
