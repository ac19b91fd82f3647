"""Train a rank as `gpu.trained` does; return its peaks of memory in construction, training and validation."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpu.fake_cuda import FakeCuda  # before any other module that imports PyTorch
from gpu.trained import train
from models.graph import Graph
from ranks.worker import context, trainer
from ranks.worker.epoch_timer import EpochTimer

import numpy as np  # isort: skip
import torch  # isort: skip


def main(folder: str, rank: int, ranks: int) -> dict[str, int]:
    """Return the peaks of memory in bytes."""
    device = FakeCuda(rank=rank, ranks=ranks)
    peaks: dict[str, int] = {}
    begin, evaluate = EpochTimer.__init__, trainer.Trainer.evaluate

    def built(timer: Any, *arguments: Any) -> None:
        peaks["construction"] = device.peak_bytes()
        begin(timer, *arguments)

    def evaluated(self: Any) -> Any:
        device.reset_peak()
        seen = evaluate(self)
        peaks["validation"] = device.peak_bytes()
        return seen

    EpochTimer.__init__ = built  # type: ignore[method-assign]
    trainer.Trainer.evaluate = evaluated  # type: ignore[method-assign]
    peaks["training"] = train(Path(folder), device, rank).device_memory_peak_bytes() or 0
    return peaks


def order(folder: str) -> list[str]:
    """Train one rank; return when its peak of memory is reset and read, and what is done in between."""
    device = FakeCuda()
    device.watch(torch.cuda, "max_memory_allocated")
    train(Path(folder), device, 0)
    steps = ("reset_peak_memory_stats", "open_epoch", "close_epoch", "max_memory_allocated", "validate")
    return [name for name, *_ in device.named(*steps)]


def train_within(folder: str, rank: int, ranks: int, limit_bytes: int) -> int:
    """Train on a device with so much memory; return the steps. Initial weights, which nobody sees, are 0."""
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
    return len(device.named("_step"))
