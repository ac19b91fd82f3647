"""Validation batches for ranks that run one program: one size, and the same number on every rank."""

from collections.abc import Iterator

import numpy as np

from ranks.worker.context import MAX_VALIDATION_BATCH, Context


def validation_batches(context: Context) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield this rank's share of the validation split in batches of one size, equally many on all ranks.

    Batches are padded with zeros. Each comes with the number of samples before the padding.
    """
    size, batches = min(MAX_VALIDATION_BATCH, context.spec["local_batch"]), context.validation()
    dtype = np.uint8 if context.graph.vocabulary is None else np.int64
    empty_batch = (
        np.zeros((0, *context.graph.shape), dtype),
        np.zeros((0, *context.graph.operators[-1].shape[:-1]), np.int64),
    )
    for _ in range(-(-context.largest_validation_share // size)):
        samples, labels = next(batches, empty_batch)
        yield _pad(samples, size), _pad(labels, size), len(labels)


def _pad(samples: np.ndarray, size: int) -> np.ndarray:
    """Return samples [n, ...] padded with zeros to [size, ...]."""
    return np.concatenate([samples, np.zeros((size - len(samples), *samples.shape[1:]), samples.dtype)])
