"""Train one rank on a CUDA device that computes nothing, as `python -m ranks.worker` does."""

import os
from pathlib import Path
from typing import Any

from gpu.fake_cuda import FakeCuda  # before any other module that imports PyTorch
from ranks.worker import context, epoch_timer
from ranks.worker.__main__ import run
from ranks.worker.trainer import Training


class LoneGroup:
    """The group of a rank that is alone: every other rank says what it says itself."""

    def __init__(self, rank: int, size: int, *_: Any) -> None:
        self.rank, self.size, self.address = rank, size, "127.0.0.1"

    def all_gather(self, value: Any) -> list[Any]:
        """See Group."""
        return [value] * self.size

    def broadcast(self, value: Any) -> Any:
        """See Group."""
        return value

    def barrier(self) -> None:
        """See Group."""

    def clock_offsets(self) -> list[tuple[float, float]]:
        """See Group."""
        return [(0.0, 0.0)] * self.size


def train(folder: Path, device: FakeCuda, local_rank: int) -> Training:
    """Train the rank of an attempt's folder, and note when clocks are read and weights are updated."""
    from ranks.libraries.pytorch import PyTorchTrainer

    os.environ.update(RINGSIDE_RANK=str(device.rank), RINGSIDE_LOCAL_RANK=str(local_rank))
    context.Group = LoneGroup  # type: ignore[assignment, misc]
    device.watch_clock(epoch_timer)
    for name in ("open_epoch", "step", "close_epoch"):
        device.watch(epoch_timer.EpochTimer, name)
    for name in ("train_epoch", "_step", "validate"):
        device.watch(PyTorchTrainer, name)
    return run(folder)


def main(
    folder: str, rank: int = 0, ranks: int = 1, local_rank: int | None = None, n_visible: int = 8
) -> Any:
    """Train, and return the calls and the memory that were seen."""
    device = FakeCuda(n_visible, rank, ranks)
    trainer = train(Path(folder), device, rank if local_rank is None else local_rank)
    return {
        "calls": device.calls,
        "peak_bytes": device.peak_bytes(),
        "memory_bytes": device.memory_bytes(),
        "device": trainer.device,
        "transport": trainer.transport,
    }
