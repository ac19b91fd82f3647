"""Emulate a device's streams on a processor: threads that run tasks later, in order, and wait for events.

As with CUDA, a wait is for the last record before the wait was requested, and an event that was never
recorded delays nothing.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

COPY_S = 0.002


class Stream:
    """Runs tasks one after the other in a thread of its own, while the caller continues."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._tasks.get()()

    def ask(self, task: Callable[[], Any]) -> None:
        self._tasks.put(task)

    def synchronize(self) -> None:
        point = Point()
        point.record(self)
        point.synchronize()


class Point:
    """An event in a stream."""

    def __init__(self) -> None:
        self.passed = threading.Event()
        self.passed.set()

    def record(self, stream: Stream) -> None:
        self.passed = threading.Event()
        stream.ask(self.passed.set)

    def wait(self, stream: Stream) -> None:
        stream.ask(self.passed.wait)

    def synchronize(self) -> None:
        self.passed.wait()


class ThreadLane:
    """A lane (ranks/libraries/ahead.py) with late and slow copies; training is a stream, too."""

    def __init__(self, copy_s: float = COPY_S) -> None:
        self.copy_s = copy_s
        self.copies, self.training = Stream(), Stream()
        self.on_either_side: tuple[list[int], list[int]] = [], []  # bytes of allocations

    def begin(self) -> None:
        pass

    def event(self) -> Point:
        return Point()

    def on_host(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return self._allocate(0, shape, dtype)

    def on_device(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return self._allocate(1, shape, dtype)

    def _allocate(self, side: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        memory = np.zeros(shape, dtype)
        self.on_either_side[side].append(memory.nbytes)
        return memory

    def fill(self, host: Any, array: np.ndarray) -> None:
        np.copyto(np.asarray(host), array)

    def copy(self, pairs: list[tuple[Any, Any]], after: Point, done: Point) -> None:
        after.wait(self.copies)
        self.copies.ask(lambda: time.sleep(self.copy_s))
        for host, device in pairs:
            self.copies.ask(lambda host=host, device=device: np.copyto(np.asarray(device), np.asarray(host)))
        done.record(self.copies)

    def wait(self, event: Point) -> None:
        event.wait(self.training)

    def record(self, event: Point) -> None:
        event.record(self.training)
