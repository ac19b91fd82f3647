"""What a rank trains on, batch by batch, the same in every framework.

uint8 images [N, H, W, C] and int64 labels [N], or int64 tokens [N, length] and int64 labels, [N] or, of each
token the one that follows, [N, length].

Prepared samples are read from the memory-mapped file. Those of a `fresh` data set are drawn, each from the
seed, the epoch and its place in the epoch's order. So is an image's augmentation: neither depends on who
takes the sample.
"""

import abc
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
    """A split of a prepared data set (datasets/prepare.py). `inputs` and `labels` are as they are kept: tokens in few bytes."""

    def __init__(self, folder: Path, tokens: bool = False) -> None:
        self.tokens = tokens
        self.inputs = np.load(folder / ("tokens.npy" if tokens else "images.npy"), mmap_mode="r")
        self.labels = np.load(folder / "labels.npy", mmap_mode="r" if tokens else None)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, epoch: int, places: slice, samples: np.ndarray) -> Batch:
        """See Split."""
        inputs, labels = self.inputs[samples], self.labels[samples]
        return (inputs.astype(np.int64), labels.astype(np.int64)) if self.tokens else (inputs, labels)


class Fresh(abc.ABC):
    """Samples that are drawn, other ones in every epoch: a sample is the next `words` numbers of 64 bits of the epoch's stream."""

    words: int

    def __init__(self, seed: int, samples: int) -> None:
        self.seed, self.samples = seed, samples

    def __len__(self) -> int:
        return self.samples

    def take(self, epoch: int, places: slice, samples: np.ndarray) -> Batch:
        """See Split."""
        stream = np.random.PCG64([self.seed, epoch]).advance(places.start * self.words)
        return self.made(stream.random_raw(len(samples) * self.words).reshape(len(samples), self.words))

    @abc.abstractmethod
    def made(self, drawn: np.ndarray) -> Batch:
        """The samples that these numbers are, uint64 [N, words]."""


class Noise(Fresh):
    """Images without meaning: one number is the label, the others are the image."""

    def __init__(self, seed: int, samples: int, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(seed, samples)
        self.shape, self.classes, self.pixels = shape, classes, int(np.prod(shape))
        self.words = 1 + -(-self.pixels // 8)

    def made(self, drawn: np.ndarray) -> Batch:
        """See Fresh."""
        images = np.ascontiguousarray(drawn[:, 1:]).view(np.uint8)[:, : self.pixels].reshape(-1, *self.shape)
        return images, (drawn[:, 0] % self.classes).astype(np.int64)


class Counting(Fresh):
    """Sequences that can be learnt: after each token comes the next number, but with probability 1/4 any token."""

    def __init__(self, seed: int, samples: int, length: int, vocabulary: int) -> None:
        super().__init__(seed, samples)
        self.vocabulary, self.words = vocabulary, length + 1

    def made(self, drawn: np.ndarray) -> Batch:
        """See Fresh. A number's highest bits say whether the token is any, the others which."""
        places = np.arange(self.words)
        jumps = drawn >> np.uint64(62) == 0
        jumps[:, 0] = True
        last = np.maximum.accumulate(np.where(jumps, places, 0), axis=1)
        anywhere = (drawn & np.uint64(2**62 - 1)) % self.vocabulary
        tokens = (
            np.take_along_axis(anywhere.astype(np.int64), last, axis=1) + places - last
        ) % self.vocabulary
        return tokens[:, :-1], tokens[:, 1:]


class Topics(Fresh):
    """Texts of classes that can be learnt: a quarter of a text's tokens are of its class alone, the others any."""

    def __init__(self, seed: int, samples: int, length: int, vocabulary: int, classes: int) -> None:
        super().__init__(seed, samples)
        self.vocabulary, self.classes, self.words = vocabulary, classes, 1 + length

    def made(self, drawn: np.ndarray) -> Batch:
        """See Fresh.

        One number is the class; of the others the highest bits say whose the token is. Of C classes, class c
        has the tokens c, C + c, 2 C + c, ...
        """
        labels = (drawn[:, 0] % self.classes).astype(np.int64)
        own = drawn[:, 1:] >> np.uint64(62) == 0
        which = (drawn[:, 1:] & np.uint64(2**62 - 1)).astype(np.int64)
        of_class = which % (self.vocabulary // self.classes) * self.classes + labels[:, None]
        return np.where(own, of_class, which % self.vocabulary), labels


def split_of(data: Path, name: str, manifest: dict[str, Any], seed: int) -> Split:
    """`train` or `validation` of the prepared data set in `data`."""
    tokens = "vocabulary" in manifest
    if not manifest.get("fresh"):
        return Prepared(data / name, tokens)
    drawn = seed + (name == "validation"), manifest[f"{name}_samples"]
    shape, classes = tuple(manifest["shape"]), len(manifest.get("classes", []))
    if not tokens:
        return Noise(*drawn, shape, classes)
    if classes:
        return Topics(*drawn, shape[0], manifest["vocabulary"], classes)
    return Counting(*drawn, shape[0], manifest["vocabulary"])


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
