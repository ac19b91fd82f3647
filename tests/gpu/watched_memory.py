"""Train a rank as `gpu.trained` does, and watch its memory."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpu.fake_cuda import FakeCuda  # before any other module that imports PyTorch
from gpu.trained import train
from models.graph import Graph
from ranks.worker import context

import numpy as np  # isort: skip
import torch  # isort: skip


def order(folder: str) -> list[str]:
    """Train one rank; return when its peak of memory is reset and read, and what is done in between."""
    device = FakeCuda()
    device.watch(torch.cuda, "max_memory_allocated")
    train(Path(folder), device, 0)
    steps = ("reset_peak_memory_stats", "open_epoch", "close_epoch", "max_memory_allocated", "validate")
    return [name for name, *_ in device.named(*steps)]


def train_within(folder: str, rank: int, ranks: int, limit_bytes: int) -> int:
    """Train on a device with this much memory; return the steps. Initial weights are 0, since nothing uses them."""
    device = FakeCuda(rank=rank, ranks=ranks)
    resize = device.memory.resize

    def limited(storage: Any) -> None:
        resize(storage)
        if sum(device.memory.living.values()) > limit_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def draw_zeros(graph: Graph, _seed: int, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        shapes = graph.weights()
        return ((name, np.zeros(shapes[name], np.float32)) for name in names)

    device.memory.resize = limited  # type: ignore[method-assign]
    context.draw_weights = draw_zeros
    train(Path(folder), device, rank)
    return len(device.named("_optimizer_step"))
