"""Run inside PyTorch's environment.

`trained`, but batches are sent ahead as to an accelerator, to the processor itself.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import trained

from ranks.libraries.ahead import Ahead
from ranks.libraries.pytorch import PyTorchTrainer
from ranks.worker.process import as_rank
from support.streams import Point, ThreadLane


class TensorLane(ThreadLane):
    """Copies tensors in a thread of its own; who trains is no stream here, but waits."""

    def _allocate(self, side: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return torch.from_numpy(super()._allocate(side, shape, dtype))

    def wait(self, event: Point) -> None:
        event.synchronize()

    def record(self, event: Point) -> None:
        pass


def train(folder: Path) -> None:
    begun = PyTorchTrainer.__init__

    def init(self: Any, context: Any) -> None:
        begun(self, context)
        self._ahead = Ahead(TensorLane())

    PyTorchTrainer.__init__ = init  # type: ignore[method-assign]
    trained.train(folder)
    print("sent ahead")


if __name__ == "__main__":
    as_rank(train)
