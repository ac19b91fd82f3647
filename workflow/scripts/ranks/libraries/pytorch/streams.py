"""Send batches ahead (ahead.py) to an accelerator with PyTorch: pinned memory, and a stream of copies.

ROCm uses the same names. Device memory is allocated and freed on the stream of copies. Events protect it from
early overwriting, so it needs no `record_stream`, and memory use does not depend on how far the CPU is ahead.
"""

from typing import Any

import numpy as np
import torch


class Streams:
    """See Lane. Training uses the current stream of its thread."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._copies = device, torch.cuda.Stream(device)

    def begin(self) -> None:
        """Prepare a new thread for work with the device.

        Otherwise pinning memory would create a context on device 0, the default of a thread.
        """
        torch.cuda.set_device(self.device)

    def event(self) -> torch.cuda.Event:
        """Return an event that is not recorded yet.

        A thread that waits for it sleeps, and leaves its core to training.
        """
        return torch.cuda.Event(blocking=True)

    def on_host(self, shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
        """Return host memory from which copies are asynchronous."""
        return torch.empty(shape, dtype=_named(dtype), pin_memory=True)

    def on_device(self, shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
        """Return device memory to which `copy` writes."""
        with torch.cuda.stream(self._copies):
            return torch.empty(shape, dtype=_named(dtype), device=self.device)

    def fill(self, host: torch.Tensor, array: np.ndarray) -> None:
        """Copy an array into host memory, and return when it is done.

        NumPy copies in this thread, whereas PyTorch would start more threads.
        """
        np.copyto(host.numpy(), array)

    def copy(self, pairs: list[tuple[Any, Any]], after: torch.cuda.Event, done: torch.cuda.Event) -> None:
        """Start copies from host to device after the event `after`, and record `done` behind them."""
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(after)
            for host, device in pairs:
                device.copy_(host, non_blocking=True)
            done.record(self._copies)

    def wait(self, event: torch.cuda.Event) -> None:
        """Let the training stream's next work wait for the event."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def record(self, event: torch.cuda.Event) -> None:
        """Record the event behind the training stream's work so far."""
        event.record(torch.cuda.current_stream(self.device))


def _named(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
