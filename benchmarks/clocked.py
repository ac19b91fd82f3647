"""Train like the worker, and time each epoch on the device, too: `clocks.json` in the attempt's folder.

It has for each epoch `device_s`, by CUDA events or, without an accelerator, by the processor's clock, and
`began_at` and `ended_at` (seconds since 1970).
"""

import json
import time
from pathlib import Path
from typing import Any

import torch

from ranks.libraries.pytorch.trainer import PyTorchTrainer
from ranks.worker.__main__ import run
from ranks.worker.process import as_rank

clocks: list[dict[str, Any]] = []


class Clock:
    """Measures seconds from its creation to the call of `seconds`, which waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._began = device, time.perf_counter()
        if device.type == "cuda":
            self._first, self._last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._first.record()

    def seconds(self) -> float:
        if self._device.type != "cuda":
            return time.perf_counter() - self._began
        self._last.record()
        self._last.synchronize()
        return self._first.elapsed_time(self._last) / 1e3


def clocked(train_epoch: Any) -> Any:
    """Return `train_epoch` with a clock around it."""

    def timed(self: PyTorchTrainer, epoch: int, timer: Any) -> Any:
        began_at, clock = time.time(), Clock(self.torch_device)
        seen = train_epoch(self, epoch, timer)
        clocks.append({"device_s": clock.seconds(), "began_at": began_at, "ended_at": time.time()})
        return seen

    return timed


def train(folder: Path) -> None:
    PyTorchTrainer.train_epoch = clocked(PyTorchTrainer.train_epoch)  # type: ignore[method-assign]
    run(folder)
    (folder / "clocks.json").write_text(json.dumps(clocks))


if __name__ == "__main__":
    as_rank(train)
