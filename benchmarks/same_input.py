"""Train like the worker, after comparing its input with plain copies: `input.json` in the attempt's folder.

Batches are read while the device is busy, so that copies are late and a batch that is overwritten too early
is noticed. The device computes a checksum of each batch in which every pixel and label counts by its
position; plain copies have to give the same checksums.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ranks.libraries.pytorch.trainer import PyTorchTrainer
from ranks.worker.__main__ import run
from ranks.worker.process import as_rank

SIDE, TIMES = {"cuda": 4096, "cpu": 64}, 8  # of the matrix products that keep a device busy


def checksums(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]], device: torch.device, busy: bool
) -> list[float]:
    """Return the checksum of each batch."""
    sums = []
    work = torch.eye(SIDE[device.type], device=device)
    for images, labels in batches:
        for _ in range(TIMES if busy else 0):
            work = work @ work
        values = torch.cat([images.reshape(-1), labels.float()]).double()
        sums.append((values * (torch.arange(len(values), device=device) % 8191)).sum())
    return torch.stack(sums).tolist()


def train(folder: Path) -> None:
    begun = PyTorchTrainer.train

    def compared_first(self: PyTorchTrainer, timer: Any) -> None:
        device, batches = self.torch_device, self.context.epoch(1)
        plainly = (
            (self._normalized(torch.from_numpy(i).to(device)), torch.from_numpy(n).to(device))
            for i, n in batches
        )
        result = {
            "ours": checksums(self._batches(1), device, busy=True),
            "plain": checksums(plainly, device, busy=False),
        }
        (folder / "input.json").write_text(json.dumps({**result, "ahead": self._ahead is not None}))
        begun(self, timer)

    PyTorchTrainer.train = compared_first  # type: ignore[method-assign]
    run(folder)


if __name__ == "__main__":
    as_rank(train)
