"""The one prepared format: the files of a part, training or validation, written block by block.

Images lie in images.npy (uint8 [N, H, W, C]) with labels.npy (int64 [N]); texts in tokens.npy and labels.npy [N, length].
"""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from common.errors import InputError
from common.files import digest_file, write_json
from datasets.formats import Block
from declared.datasets import token_bytes

VALUES = np.arange(256, dtype=object)  # Python's integers: sums over any number of pixels are exact


def write_part(
    folder: Path, blocks: Iterable[Block], samples: int, shape: Sequence[int], classes: int, what: str
) -> dict[str, Any]:
    """Write images.npy, labels.npy and manifest.json of one part; the manifest's content.

    InputError, beginning with `what`, when there are not exactly `samples` images of `shape` with labels below `classes`.
    """
    folder.mkdir(parents=True)
    labels = np.empty(samples, dtype=np.int64)
    counts = np.zeros((shape[2], 256), dtype=np.int64)
    done = 0
    with open(folder / "images.npy", "wb") as file:
        _write_header(file, "|u1", samples, *shape)
        for images, numbers in blocks:
            if images.dtype != np.uint8 or list(images.shape[1:]) != list(shape) or done + len(images) > samples:
                found = f"{done} and {len(images)} images of {list(images.shape[1:])}"
                got = (done + len(images), list(images.shape[1:]))
                raise _contradiction(what, found, f"{samples} of {list(shape)}", got)
            labels[done : done + len(images)] = numbers
            done += len(images)
            counts += [np.bincount(images[..., channel].ravel(), minlength=256) for channel in range(shape[2])]
            file.write(np.ascontiguousarray(images).data)
    if done != samples:
        raise _contradiction(what, f"{done} images", samples, done)
    if labels.min() < 0 or labels.max() >= classes:
        first, last = int(labels.min()), int(labels.max())
        raise _contradiction(what, f"labels from {first} to {last}", classes, (first, last))
    with open(folder / "labels.npy", "wb") as file:  # unlike np.save it says why it cannot
        _write_header(file, "<i8", samples)
        file.write(labels.data)
    told = {"class_counts": np.bincount(labels, minlength=classes).tolist(), **statistics(counts)}
    return _written(folder, ("images.npy", "labels.npy"), samples, shape, told)


def write_tokens(
    folder: Path, blocks: Iterable[Block], samples: int, length: int, vocabulary: int, what: str
) -> dict[str, Any]:
    """Write tokens.npy, labels.npy, both [samples, length], and manifest.json of one part of a text; the manifest's content. Of the
    blocks' numbers the files have the smallest unsigned integers that hold the vocabulary.

    InputError, beginning with `what`, when there are not exactly `samples` sequences of `length`, or tokens beyond the vocabulary.
    """
    folder.mkdir(parents=True)
    stored = np.dtype(f"<u{token_bytes(vocabulary)}")
    names = ("tokens.npy", "labels.npy")
    done = 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(folder / name, "wb")) for name in names]
        for file in files:
            _write_header(file, stored.str, samples, length)
        for block in blocks:
            for file, numbers in zip(files, block, strict=True):
                if numbers.shape[1:] != (length,) or done + len(numbers) > samples:
                    found = f"{done} and {len(numbers)} sequences of {numbers.shape[1]} tokens"
                    got = (done + len(numbers), numbers.shape[1])
                    raise _contradiction(what, found, f"{samples} of {length}", got)
                if numbers.min() < 0 or numbers.max() >= vocabulary:
                    first, last = int(numbers.min()), int(numbers.max())
                    limit = f"a vocabulary of {vocabulary}"
                    raise _contradiction(what, f"tokens from {first} to {last}", limit, (first, last))
                file.write(np.ascontiguousarray(numbers, stored).data)
            done += len(block[0])
    if done != samples:
        raise _contradiction(what, f"{done} sequences", samples, done)
    return _written(folder, names, samples, [length], {"vocabulary": vocabulary})


def _contradiction(what: str, found: str, entry: object, got: object) -> InputError:
    """Return the error that `what` was read holds something else than the data set's entry says."""
    return InputError("contradicts-entry", f"there are {found}; the entry says {entry}", file=what, got=got)


def _written(
    folder: Path, names: Sequence[str], samples: int, shape: Sequence[int], told: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the manifest.json of these files, with what is `told` beside; its content."""
    files = [folder / name for name in names]
    manifest = {
        "samples": samples,
        "shape": list(shape),
        "bytes": {file.name: file.stat().st_size for file in files},
        "sha256": {file.name: digest_file(file) for file in files},
        **told,
    }
    write_json(folder / "manifest.json", manifest)
    return manifest


def _write_header(file: BinaryIO, kind: str, *shape: int) -> None:
    """What a .npy file of format 1.0 begins with."""
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})


def statistics(counts: np.ndarray) -> dict[str, list[float]]:
    """Mean and standard deviation of each channel, exact to the last digit, from how often it has each value, int64 [C, 256].

    A channel that has one value only gets the deviation 1, so that it can be divided by: such a channel is trained on as 0.
    """
    numbers = [int(channel.sum()) for channel in counts]
    sums = [int(channel.astype(object) @ VALUES) for channel in counts]
    squares = [int(channel.astype(object) @ VALUES**2) for channel in counts]
    return {
        "mean": [total / n for n, total in zip(numbers, sums, strict=True)],
        "std": [math.sqrt((n * s - t * t) / (n * n)) or 1.0 for n, t, s in zip(numbers, sums, squares, strict=True)],
    }
