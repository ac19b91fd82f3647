"""Send batches to a device ahead of time, so that reading, copying and training overlap in a fixed memory.

A thread reads batches into pinned host buffers and starts copies to the device on a separate stream. The
training thread lets its stream wait for a copy, without blocking the CPU. A `Lane` has the library's part.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np

from ranks.worker.batches import Batch

N_SLOTS = 3  # One is filled, one is copied, and one is used.

Ready = TypeVar("Ready")


class Event(Protocol):
    """A point in a stream; waiting for an event that was never recorded returns at once."""

    def synchronize(self) -> None:
        """Block this thread until the stream has passed the event."""
        ...


class Lane(Protocol):
    """A library's host memory, device memory, and copies between them."""

    def begin(self) -> None:
        """Prepare a new thread for work with the device."""
        ...

    def event(self) -> Event:
        """Return an event that is not recorded yet."""
        ...

    def on_host(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return host memory from which copies are asynchronous."""
        ...

    def on_device(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return device memory to which `copy` writes."""
        ...

    def fill(self, host: Any, array: np.ndarray) -> None:
        """Copy an array into host memory, and return when it is done."""
        ...

    def copy(self, pairs: list[tuple[Any, Any]], after: Event, done: Event) -> None:
        """Start copies from host to device after the event `after`, and record `done` behind them."""
        ...

    def wait(self, event: Event) -> None:
        """Let the training stream's next work wait for the event."""
        ...

    def record(self, event: Event) -> None:
        """Record the event behind the training stream's work so far."""
        ...


class Slot:
    """Buffers for one batch, on the host and on the device.

    Attributes:
        copied: Event after which the host buffer may be overwritten.
        used: Event after which the device buffer may be overwritten.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane, self.copied, self.used = lane, lane.event(), lane.event()
        self.host: list[Any] = [(), ()]
        self.device: list[Any] = [(), ()]
        self.length = 0

    def send(self, batch: Batch) -> None:
        """Write a batch into the host buffer and start its copy; buffers grow with the largest batch."""
        self.copied.synchronize()
        self.length = len(batch[0])
        for i, array in enumerate(batch):
            if len(self.host[i]) < self.length:
                self.host[i] = self.lane.on_host(array.shape, array.dtype)
                self.device[i] = self.lane.on_device(array.shape, array.dtype)
            self.lane.fill(self.host[i][: self.length], array)
        buffers = zip(self.host, self.device, strict=True)
        self.lane.copy(
            [(host[: self.length], device[: self.length]) for host, device in buffers], self.used, self.copied
        )

    def arrived(self) -> tuple[Any, Any]:
        """Return the images and labels on the device."""
        images, labels = (device[: self.length] for device in self.device)
        return images, labels


class Prefetcher:
    """Send batches ahead, with slots that are reused in all epochs."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._idle: list[Slot] = []

    def batches(self, read: Iterable[Batch], use: Callable[[Any, Any], Ready]) -> Iterator[Ready]:
        """Yield the result of `use` for each batch, in order.

        `use` gets images and labels in device memory that is overwritten later, so it must return copies. A
        thread reads `read` to its end; its exceptions are raised here.
        """
        slots = [self._idle.pop() if self._idle else Slot(self.lane) for _ in range(N_SLOTS)]
        free: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        sent: queue.SimpleQueue[Slot | BaseException | None] = queue.SimpleQueue()
        for slot in slots:
            free.put(slot)
        reader = threading.Thread(target=self._read, args=(read, free, sent), daemon=True)
        reader.start()
        try:
            while isinstance(arrived := sent.get(), Slot):
                self.lane.wait(arrived.copied)
                ready = use(*arrived.arrived())
                self.lane.record(arrived.used)
                free.put(arrived)
                yield ready
            if arrived is not None:
                raise arrived
        finally:
            free.put(None)
            reader.join()
            self._idle += slots

    def _read(
        self,
        read: Iterable[Batch],
        free: "queue.SimpleQueue[Slot | None]",
        sent: "queue.SimpleQueue[Slot | BaseException | None]",
    ) -> None:
        try:
            self.lane.begin()
            for batch in read:
                if (slot := free.get()) is None:  # The consumer has stopped.
                    return
                slot.send(batch)
                sent.put(slot)
            sent.put(None)
        except BaseException as error:
            sent.put(error)
