"""Batches sent ahead (ahead.py) to an accelerator by PyTorch: pinned memory, and a stream of copies.

ROCm has the same names.

Memory of the device is made on the stream of copies, to which alone it goes back; that nobody writes to it
too early is said by events, so it needs no `record_stream`, and its size does not depend on how far the
processor is ahead.
"""

from typing import Any

import numpy as np
import torch


class Streams:
    """See Lane. Who trains uses the stream that is current in its thread."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._copies = device, torch.cuda.Stream(device)

    def begin(self) -> None:
        """See Lane. A thread's first device is 0, where pinning would make a context of this rank, too."""
        torch.cuda.set_device(self.device)

    def event(self) -> torch.cuda.Event:
        """See Lane. Who waits for it sleeps: a core that spins is missed by training."""
        return torch.cuda.Event(blocking=True)

    def on_host(self, shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
        """See Lane."""
        return torch.empty(shape, dtype=_named(dtype), pin_memory=True)

    def on_device(self, shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
        """See Lane."""
        with torch.cuda.stream(self._copies):
            return torch.empty(shape, dtype=_named(dtype), device=self.device)

    def fill(self, host: torch.Tensor, array: np.ndarray) -> None:
        """See Lane. By NumPy, in one thread: PyTorch would start a second team of threads."""
        np.copyto(host.numpy(), array)

    def copy(self, pairs: list[tuple[Any, Any]], after: torch.cuda.Event, done: torch.cuda.Event) -> None:
        """See Lane."""
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(after)
            for host, device in pairs:
                device.copy_(host, non_blocking=True)
            done.record(self._copies)

    def wait(self, event: torch.cuda.Event) -> None:
        """See Lane."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def record(self, event: torch.cuda.Event) -> None:
        """See Lane."""
        event.record(torch.cuda.current_stream(self.device))


def _named(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
