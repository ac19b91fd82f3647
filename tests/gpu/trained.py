"""Train one rank on a CUDA device that computes nothing, as `python -m ranks.worker` does."""

import os
from pathlib import Path
from typing import Any

from gpu.fake_cuda import FakeCuda, torch  # before any other module that imports PyTorch
from ranks.worker import context, epoch_timer
from ranks.worker.__main__ import run


class LoneGroup:
    """The group of a single rank; every other rank has the same values."""

    def __init__(self, rank: int, size: int, *_: Any) -> None:
        self.rank, self.size, self.address = rank, size, "127.0.0.1"

    def all_gather(self, value: Any) -> list[Any]:
        """See Group. If this stage of a pipeline has seen no samples, others have."""
        peers = value
        if isinstance(value, list):
            peers = [
                {**entry, "samples": 1} if isinstance(entry, dict) and entry.get("samples") == 0 else entry
                for entry in value
            ]
        return [value if rank == self.rank else peers for rank in range(self.size)]

    def broadcast(self, value: Any) -> Any:
        """See Group."""
        return value

    def barrier(self) -> None:
        """See Group."""

    def clock_offsets(self) -> list[tuple[float, float]]:
        """See Group."""
        return [(0.0, 0.0)] * self.size


def be_alone(rank: int, local_rank: int) -> None:
    """Make this process a rank whose peers are absent."""
    os.environ.update(RINGSIDE_RANK=str(rank), RINGSIDE_LOCAL_RANK=str(local_rank))
    context.Group = LoneGroup  # type: ignore[assignment, misc]


def train(folder: Path, device: FakeCuda, local_rank: int) -> Any:
    """Train the rank of an attempt's folder, and note when clocks are read and weights are updated."""
    from ranks.libraries.pytorch import streams, trainer

    be_alone(device.rank, local_rank)
    device.watch_clock(epoch_timer)
    for name in ("open_epoch", "step", "close_epoch"):
        device.watch(epoch_timer.EpochTimer, name)
    for name in ("_optimizer_step", "validate"):
        device.watch(trainer.PyTorchTrainer, name)
    fill = streams.Streams.fill

    def fill_free(lane: streams.Streams, host: torch.Tensor, array: Any) -> None:
        if device.host.is_read(host):
            device.races.append("pinned memory is written while a copy reads it")
        fill(lane, host, array)

    streams.Streams.fill = fill_free  # type: ignore[method-assign]
    return run(folder)


def placed(trainer: Any) -> list[str]:
    """Return the devices of all tensors that a trainer holds."""
    state = [value for state in trainer.optimizer.state.values() for value in state.values()]
    statistics = [getattr(trainer, name) for name in ("_mean", "_std") if hasattr(trainer, name)]
    tensors = [*trainer.module.parameters(), *trainer.module.buffers(), *state, *statistics]
    # Adam counts its steps on the CPU.
    return sorted({str(tensor.device) for tensor in tensors if torch.is_tensor(tensor) and tensor.dim()})


def main(
    folder: str,
    rank: int = 0,
    ranks: int = 1,
    local_rank: int | None = None,
    n_visible: int = 8,
    find_races: bool = False,
) -> dict[str, Any]:
    """Train, and return the calls and the memory that were seen."""
    device = FakeCuda(n_visible, rank, ranks, find_races)
    trainer = train(Path(folder), device, rank if local_rank is None else local_rank)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "calls": device.calls,
        "races": device.races,
        "peak_bytes": device.peak_bytes(),
        "placed": placed(trainer),
        "product_dtypes": sorted(map(str, device.product_dtypes)),
        "loss_dtypes": sorted(map(str, device.loss_dtypes)),
        "tf32": [matmul.allow_tf32, cudnn.allow_tf32],
        "device": trainer.device,
        "transport": trainer.transport,
        "weights_bytes": sum(parameter.nbytes for parameter in trainer.module.parameters()),
    }
