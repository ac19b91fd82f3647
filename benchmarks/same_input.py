"""One rank that trains as the worker does, after it has compared its input with the plain way to it:
`input.json` in the attempt's folder.

Its batches are taken while the device is kept busy, so that it is late and whatever overwrites a batch too
early shows. Of each, the device keeps one number, in which every pixel and label counts by its place; the
plain way has to give the same numbers.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ranks.libraries.pytorch import PyTorchTrainer
from ranks.worker.__main__ import run
from ranks.worker.process import as_rank

SIDE, TIMES = {"cuda": 4096, "cpu": 64}, 8  # of what keeps a device busy: products of matrices


def numbers(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]], device: torch.device, busy: bool
) -> list[float]:
    """The number of each batch."""
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

    def compared_first(self: PyTorchTrainer, meter: Any) -> None:
        device, batches = self.torch_device, self.context.epoch(1)
        plainly = (
            (self._normalized(torch.from_numpy(i).to(device)), torch.from_numpy(n).to(device))
            for i, n in batches
        )
        result = {
            "ours": numbers(self._batches(1), device, busy=True),
            "plain": numbers(plainly, device, busy=False),
        }
        (folder / "input.json").write_text(json.dumps({**result, "ahead": self._ahead is not None}))
        begun(self, meter)

    PyTorchTrainer.train = compared_first  # type: ignore[method-assign]
    run(folder)


if __name__ == "__main__":
    as_rank(train)
