"""What a rank trains on, batch by batch: uint8 images [N, H, W, C] and int64 labels [N], the same in every framework.

Prepared images are read from the memory-mapped file. Those of a `fresh` data set are drawn, each from the seed, the epoch
and its place in the epoch's order. So is an image's augmentation: neither depends on who takes the sample.
"""

from pathlib import Path
from typing import Any, Protocol

import numpy as np

Batch = tuple[np.ndarray, np.ndarray]

AUGMENTED = 1  # tells the draws of augmentation from those of the order
LARGEST_MOVE = 8  # a crop is moved by at most this part of the image's height


class Split(Protocol):
    """The samples of one split."""

    def __len__(self) -> int: ...

    def take(self, epoch: int, places: slice, samples: np.ndarray) -> Batch:
        """The `samples` (their numbers), which stand at consecutive `places` of the epoch's order."""
        ...


class Prepared:
    """A split of a prepared data set (datasets/prepare.py)."""

    def __init__(self, folder: Path) -> None:
        self.images = np.load(folder / "images.npy", mmap_mode="r")
        self.labels = np.load(folder / "labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, epoch: int, places: slice, samples: np.ndarray) -> Batch:
        """See Split."""
        return self.images[samples], self.labels[samples]


class Fresh:
    """Noise: every epoch has images and labels of its own."""

    def __init__(self, seed: int, samples: int, shape: tuple[int, ...], classes: int) -> None:
        self.seed, self.samples, self.shape, self.classes = seed, samples, shape, classes

    def __len__(self) -> int:
        return self.samples

    def take(self, epoch: int, places: slice, samples: np.ndarray) -> Batch:
        """See Split. A sample is the next numbers of 64 bits of the epoch's stream: one for its label, the others its image."""
        pixels = int(np.prod(self.shape))
        words = 1 + -(-pixels // 8)
        stream = np.random.PCG64([self.seed, epoch]).advance(places.start * words)
        drawn = stream.random_raw(len(samples) * words).reshape(len(samples), words)
        images = np.ascontiguousarray(drawn[:, 1:]).view(np.uint8)[:, :pixels].reshape(-1, *self.shape)
        return images, (drawn[:, 0] % self.classes).astype(np.int64)


def split_of(data: Path, name: str, manifest: dict[str, Any], seed: int) -> Split:
    """`train` or `validation` of the prepared data set in `data`."""
    if not manifest.get("fresh"):
        return Prepared(data / name)
    return Fresh(
        seed + (name == "validation"), manifest[f"{name}_samples"], tuple(manifest["shape"]), len(manifest["classes"])
    )


class Augmentation:
    """Random changes of one epoch's training images. `level` is one of the factor: none, flip, flip-crop.

    An image is mirrored with probability 1/2; a crop moves it by at most an eighth of its height, up to which black borders
    are added on all sides (He et al. 2016, section 4.2).
    """

    def __init__(self, level: str, seed: int, epoch: int, samples: int, height: int) -> None:
        generator = np.random.default_rng([seed, epoch, AUGMENTED])
        self.padding = max(1, round(height / LARGEST_MOVE)) if level == "flip-crop" else 0
        self.flips = generator.random(samples) < 0.5 if level != "none" else None
        self.corners = generator.integers(2 * self.padding + 1, size=(samples, 2)) if self.padding else None

    def __call__(self, images: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Images [N, H, W, C] of `samples` (their numbers), changed."""
        if self.corners is not None:
            side = (self.padding, self.padding)
            padded = np.pad(images, ((0, 0), side, side, (0, 0)))
            images = np.empty_like(images)
            height, width = images.shape[1:3]
            for i, (top, left) in enumerate(self.corners[samples]):
                images[i] = padded[i, top : top + height, left : left + width]
        if self.flips is not None:
            flips = self.flips[samples]
            images[flips] = images[flips, :, ::-1]
        return images
