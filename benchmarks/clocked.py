"""One rank that trains as the worker does, each epoch timed a second time, by the device: `clocks.json` in
the attempt's folder.

For each epoch: `device_s`, by CUDA events around it, or by the processor's own clock where there is no
accelerator; `began_at` and `ended_at` (seconds since 1970).
"""

import json
import time
from pathlib import Path
from typing import Any

import torch

from ranks.libraries.pytorch import PyTorchTrainer
from ranks.worker.__main__ import run
from ranks.worker.process import as_rank

clocks: list[dict[str, Any]] = []


class Clock:
    """Seconds between its making and `seconds`, which waits for the device."""

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
    """`train_epoch` with a clock around it."""

    def timed(self: PyTorchTrainer, epoch: int, meter: Any) -> Any:
        began_at, clock = time.time(), Clock(self.torch_device)
        seen = train_epoch(self, epoch, meter)
        clocks.append({"device_s": clock.seconds(), "began_at": began_at, "ended_at": time.time()})
        return seen

    return timed


def train(folder: Path) -> None:
    PyTorchTrainer.train_epoch = clocked(PyTorchTrainer.train_epoch)  # type: ignore[method-assign]
    run(folder)
    (folder / "clocks.json").write_text(json.dumps(clocks))


if __name__ == "__main__":
    as_rank(train)
