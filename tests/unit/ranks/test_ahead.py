"""Batches sent ahead to a device equal those sent one by one, in memory of fixed size."""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from ranks.libraries.ahead import N_SLOTS, Prefetcher
from ranks.worker.batches import Batch, Noise
from support.streams import COPY_S, Point, Stream, ThreadLane

USE_S = 0.004


def batches(number: int, size: int = 8, last: int = 5) -> list[Batch]:
    """Drawn images and labels; the last batch is a short one."""
    split = Noise(7, size * number, (4, 4, 3), 10)
    lengths = [size] * (number - 1) + [last]
    return [
        split.read(1, slice(place * size, place * size + n), np.arange(n)) for place, n in enumerate(lengths)
    ]


class User:
    """A training step: it lets the stream read a batch, half of it late, without waiting."""

    def __init__(self, training: Stream) -> None:
        self.training, self.read = training, list[Batch]()

    def __call__(self, images: np.ndarray, labels: np.ndarray) -> int:
        self.training.ask(lambda: self._use(images, labels))
        return len(images)

    def _use(self, images: np.ndarray, labels: np.ndarray) -> None:
        early, early_labels = images[: len(images) // 2].copy(), labels[: len(labels) // 2].copy()
        time.sleep(USE_S)
        late = images[len(early) :].copy(), labels[len(early) :].copy()
        self.read.append((np.concatenate([early, late[0]]), np.concatenate([early_labels, late[1]])))


def through(
    lane: ThreadLane, sent: Iterable[Batch], ahead: Prefetcher | None = None
) -> tuple[list[int], list[Batch]]:
    """Return the lengths of the batches, and what the device has read of them."""
    user = User(lane.training)
    lengths = list((ahead or Prefetcher(lane)).batches(sent, user))
    lane.training.synchronize()
    return lengths, user.read


def are_equal(left: list[Batch], right: list[Batch]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(
        np.array_equal(a, b) for mine, counterpart in pairs for a, b in zip(mine, counterpart, strict=True)
    )


def test_device_reads_batches_in_order_with_the_short_last_one() -> None:
    sent = batches(20)
    lengths, read = through(ThreadLane(), iter(sent))
    assert lengths == [8] * 19 + [5] and are_equal(read, sent)


class Forgetful(Point):
    """An event for which the host does not wait."""

    def synchronize(self) -> None:
        pass


@pytest.mark.parametrize(
    "forgotten", ["copied, by the host", "copied, by the device", "used", "used is recorded"]
)
def test_every_wait_is_needed(forgotten: str) -> None:
    """Show that the test above can fail.

    A lane that omits one wait gives the device wrong batches sooner or later; on a busy machine threads may
    come in the right order by chance.
    """

    class Careless(ThreadLane):
        def event(self) -> Point:
            return Forgetful() if forgotten == "copied, by the host" else Point()

        def copy(self, pairs: list[tuple[Any, Any]], after: Point, done: Point) -> None:
            super().copy(pairs, Point() if forgotten == "used" else after, done)

        def wait(self, event: Point) -> None:
            if forgotten != "copied, by the device":
                super().wait(event)

        def record(self, event: Point) -> None:
            if forgotten != "used is recorded":
                super().record(event)

    sent = batches(20)
    slow = 10 * COPY_S if forgotten.startswith("copied") else COPY_S
    assert any(not are_equal(through(Careless(slow), iter(sent))[1], sent) for _ in range(10))


def test_memory_does_not_grow_with_batches_or_epochs() -> None:
    lane = ThreadLane()
    ahead = Prefetcher(lane)
    for number in (5, 20):
        assert are_equal(through(lane, batches(number), ahead)[1], batches(number))
    image, label = 8 * 4 * 4 * 3, 8 * 8
    assert [sorted(side) for side in lane.on_either_side] == [[label] * N_SLOTS + [image] * N_SLOTS] * 2


def test_buffers_grow_with_a_larger_batch() -> None:
    lane = ThreadLane()
    ahead = Prefetcher(lane)
    for size in (8, 32, 8):
        assert are_equal(through(lane, batches(10, size), ahead)[1], batches(10, size))
    assert sum(lane.on_either_side[0]) == sum(lane.on_either_side[1]) == N_SLOTS * (8 + 32) * (4 * 4 * 3 + 8)


def test_no_more_is_read_ahead_than_there_are_slots() -> None:
    read: list[int] = []

    def counted() -> Iterator[Batch]:
        for place, batch in enumerate(batches(20)):
            read.append(place)
            yield batch

    lane = ThreadLane()
    handed = Prefetcher(lane).batches(counted(), User(lane.training))
    next(handed)
    deadline = time.monotonic() + 5
    while len(read) < 1 + N_SLOTS + 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(read) == 1 + N_SLOTS + 1, "one used, the slots, and one in the hand of who reads"


def test_error_of_the_reading_thread_follows_earlier_batches() -> None:
    sent = batches(3)

    def broken() -> Iterator[Batch]:
        yield from sent
        raise OSError("gone")

    lane = ThreadLane()
    user = User(lane.training)
    handed = Prefetcher(lane).batches(broken(), user)
    assert [next(handed) for _ in sent] == [8, 8, 5]
    with pytest.raises(OSError, match="gone"):
        next(handed)
    lane.training.synchronize()
    assert are_equal(user.read, sent)


def test_who_stops_early_leaves_no_thread_and_loses_no_buffer() -> None:
    lane = ThreadLane()
    ahead = Prefetcher(lane)
    threads = threading.active_count()
    handed = ahead.batches(iter(batches(20)), User(lane.training))
    next(handed)
    assert threading.active_count() == threads + 1
    handed.close()
    assert threading.active_count() == threads
    assert are_equal(through(lane, batches(6), ahead)[1], batches(6))
    assert len(lane.on_either_side[0]) == 2 * N_SLOTS, "the next epoch has the same buffers"


def test_two_at_once_do_not_share_buffers() -> None:
    lane = ThreadLane()
    ahead, first, second = Prefetcher(lane), User(lane.training), User(lane.training)
    six, nine = batches(6), batches(9, 4, 3)
    handed = ahead.batches(iter(six), first)
    next(handed)
    list(ahead.batches(iter(nine), second))
    list(handed)
    lane.training.synchronize()
    assert are_equal(first.read, six) and are_equal(second.read, nine)
