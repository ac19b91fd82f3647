"""Write the files of one part of a prepared data set, training or validation, block by block.

Images become images.npy (uint8 [N, H, W, C]) and labels.npy (int64 [N]). Texts become tokens.npy and
labels.npy, both [N, length].
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

PIXEL_VALUES = np.arange(256, dtype=object)  # Python integers keep sums over any number of pixels exact


def write_images(
    folder: Path, blocks: Iterable[Block], samples: int, shape: Sequence[int], classes: int, source: str
) -> dict[str, Any]:
    """Write images.npy, labels.npy and manifest.json of one part, and return the manifest.

    Args:
        folder: Folder to create.
        blocks: Images (uint8 [n, H, W, C]) and labels (int64 [n]).
        samples: Expected number of images.
        shape: Expected shape of an image.
        classes: Number of classes.
        source: Name of the part in errors.

    Raises:
        InputError: If the images' number, shape, type or labels contradict the entry.
    """
    folder.mkdir(parents=True)
    labels = np.empty(samples, dtype=np.int64)
    counts = np.zeros((shape[2], 256), dtype=np.int64)
    done = 0
    with open(folder / "images.npy", "wb") as file:
        _write_header(file, "|u1", samples, *shape)
        for images, numbers in blocks:
            if (
                images.dtype != np.uint8
                or list(images.shape[1:]) != list(shape)
                or done + len(images) > samples
            ):
                content = f"{done} and {len(images)} images of {list(images.shape[1:])}"
                got = (done + len(images), list(images.shape[1:]))
                raise _contradiction(source, content, f"{samples} of {list(shape)}", got)
            labels[done : done + len(images)] = numbers
            done += len(images)
            counts += [
                np.bincount(images[..., channel].ravel(), minlength=256) for channel in range(shape[2])
            ]
            file.write(np.ascontiguousarray(images).data)
    if done != samples:
        raise _contradiction(source, f"{done} images", samples, done)
    if labels.min() < 0 or labels.max() >= classes:
        first, last = int(labels.min()), int(labels.max())
        raise _contradiction(source, f"labels from {first} to {last}", classes, (first, last))
    with open(folder / "labels.npy", "wb") as file:  # np.save hides the reason of a failed write.
        _write_header(file, "<i8", samples)
        file.write(labels.data)
    extra = {"class_counts": np.bincount(labels, minlength=classes).tolist(), **channel_statistics(counts)}
    return _write_manifest(folder, ("images.npy", "labels.npy"), samples, shape, extra)


def write_tokens(
    folder: Path, blocks: Iterable[Block], samples: int, length: int, vocabulary: int, source: str
) -> dict[str, Any]:
    """Write tokens.npy, labels.npy and manifest.json of one part of a text, and return the manifest.

    Both arrays are [samples, length], of the smallest unsigned type that can hold the vocabulary.

    Args:
        folder: Folder to create.
        blocks: Tokens and labels (int64 [n, length]).
        samples: Expected number of sequences.
        length: Expected number of tokens per sequence.
        vocabulary: Number of different tokens.
        source: Name of the part in errors.

    Raises:
        InputError: If number or length of the sequences differ, or a token exceeds the vocabulary.
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
                    content = f"{done} and {len(numbers)} sequences of {numbers.shape[1]} tokens"
                    got = (done + len(numbers), numbers.shape[1])
                    raise _contradiction(source, content, f"{samples} of {length}", got)
                if numbers.min() < 0 or numbers.max() >= vocabulary:
                    first, last = int(numbers.min()), int(numbers.max())
                    limit = f"a vocabulary of {vocabulary}"
                    raise _contradiction(source, f"tokens from {first} to {last}", limit, (first, last))
                file.write(np.ascontiguousarray(numbers, stored).data)
            done += len(block[0])
    if done != samples:
        raise _contradiction(source, f"{done} sequences", samples, done)
    return _write_manifest(folder, names, samples, [length], {"vocabulary": vocabulary})


def _contradiction(source: str, content: str, entry: object, got: object) -> InputError:
    """Return the error for content that contradicts the data set's entry."""
    return InputError(
        "contradicts-entry", f"there are {content}; the entry says {entry}", file=source, got=got
    )


def _write_manifest(
    folder: Path, names: Sequence[str], samples: int, shape: Sequence[int], extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Write and return manifest.json for the named files of a part, with the ``extra`` entries."""
    files = [folder / name for name in names]
    manifest = {
        "samples": samples,
        "shape": list(shape),
        "bytes": {file.name: file.stat().st_size for file in files},
        "sha256": {file.name: digest_file(file) for file in files},
        **extra,
    }
    write_json(folder / "manifest.json", manifest)
    return manifest


def _write_header(file: BinaryIO, dtype: str, *shape: int) -> None:
    """Write the header of a .npy file of format 1.0."""
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


def channel_statistics(counts: np.ndarray) -> dict[str, list[float]]:
    """Return the exact mean and standard deviation of each channel from its histogram, int64 [C, 256].

    A constant channel gets the standard deviation 1, so that normalizing it gives 0.
    """
    numbers = [int(channel.sum()) for channel in counts]
    sums = [int(channel.astype(object) @ PIXEL_VALUES) for channel in counts]
    squares = [int(channel.astype(object) @ PIXEL_VALUES**2) for channel in counts]
    return {
        "mean": [total / n for n, total in zip(numbers, sums, strict=True)],
        "std": [
            math.sqrt((n * s - t * t) / (n * n)) or 1.0
            for n, t, s in zip(numbers, sums, squares, strict=True)
        ],
    }
