"""Batches of a rank, the same in every framework.

Images are uint8 [N, H, W, C] with int64 labels [N], or [N, H W], one for each pixel. Tokens are int64 [N,
length] with int64 labels: [N], or [N, length], where the label of each token is the next token. Rows of click
logs are int64 [N, 39] with labels [N]: counts, then categories, which share one vocabulary.

Prepared samples are read from the memory-mapped file. A sample of a `fresh` data set is drawn from the seed,
the epoch and its place in the epoch's order, and the augmentation of an image from the seed, the epoch and
the number of the sample. Neither depends on the rank that reads the sample.
"""

import abc
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from models.graph import N_CATEGORIES, N_COUNTS

Batch = tuple[np.ndarray, np.ndarray]

# Separate the random numbers of augmentation and of masks from those of the order.
AUGMENTATION_STREAM, MASKING_STREAM = 1, 2
MASK_SHARE, RANDOM_SHARE = 0.8, 0.1  # shares of masked positions that get the mask, or a random token
KNUTH_FACTOR = 2_654_435_761  # factor of multiplicative hashing
SQUARE = 8  # pixels of a side
MIN_HEIGHTS_PER_SHIFT = 8  # a crop is shifted by at most an eighth of the image's height


class Split(Protocol):
    """The samples of one split."""

    def __len__(self) -> int: ...

    def read(self, epoch: int, places: slice, samples: np.ndarray) -> Batch:
        """Return `samples`, given by their numbers, from consecutive `places` of the epoch's order."""
        ...


class Prepared:
    """A split of a prepared data set (datasets/prepare.py).

    `inputs` and `labels` have the data types of the files.
    """

    def __init__(self, folder: Path, tokens: bool = False) -> None:
        self.tokens = tokens
        self.inputs = np.load(folder / ("tokens.npy" if tokens else "images.npy"), mmap_mode="r")
        self.labels = np.load(folder / "labels.npy", mmap_mode="r" if tokens else None)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, _epoch: int, _places: slice, samples: np.ndarray) -> Batch:
        """Return `samples`, given by their numbers, from consecutive `places` of the epoch's order."""
        inputs, labels = self.inputs[samples], self.labels[samples]
        return (inputs.astype(np.int64), labels.astype(np.int64)) if self.tokens else (inputs, labels)


class Fresh(abc.ABC):
    """Samples that are drawn anew in every epoch.

    A sample takes the next `words` random numbers of 64 bits from the epoch's stream.
    """

    words: int

    def __init__(self, seed: int, samples: int) -> None:
        self.seed, self.samples = seed, samples

    def __len__(self) -> int:
        return self.samples

    def read(self, epoch: int, places: slice, samples: np.ndarray) -> Batch:
        """Return `samples`, given by their numbers, from consecutive `places` of the epoch's order."""
        stream = np.random.PCG64([self.seed, epoch]).advance(places.start * self.words)
        return self.draw(stream.random_raw(len(samples) * self.words).reshape(len(samples), self.words))

    @abc.abstractmethod
    def draw(self, drawn: np.ndarray) -> Batch:
        """Return the samples of these random numbers, uint64 [N, words]."""


class Noise(Fresh):
    """Random images: the first number of a sample is the label, the others are the pixels."""

    def __init__(self, seed: int, samples: int, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(seed, samples)
        self.shape, self.classes, self.pixels = shape, classes, int(np.prod(shape))
        self.words = 1 + -(-self.pixels // 8)

    def draw(self, drawn: np.ndarray) -> Batch:
        """Return the samples of these random numbers, uint64 [N, words]."""
        images = np.ascontiguousarray(drawn[:, 1:]).view(np.uint8)[:, : self.pixels].reshape(-1, *self.shape)
        return images, (drawn[:, 0] % self.classes).astype(np.int64)


class Regions(Fresh):
    """Images of squares under noise: the label of each pixel is the class of its square."""

    def __init__(self, seed: int, samples: int, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(seed, samples)
        self.shape, self.classes, self.n_pixels = shape, classes, int(np.prod(shape))
        self.grid = [-(-side // SQUARE) for side in shape[:2]]
        self.n_squares = int(np.prod(self.grid))
        self.words = self.n_squares + -(-self.n_pixels // 8)

    def draw(self, drawn: np.ndarray) -> Batch:
        """Return the samples of these random numbers, uint64 [N, words].

        A pixel's value is three parts of noise and one part of the level of its class.
        """
        height, width, _ = self.shape
        squares = (drawn[:, : self.n_squares] % self.classes).astype(np.int64).reshape(-1, *self.grid)
        labels = squares.repeat(SQUARE, 1).repeat(SQUARE, 2)[:, :height, :width]
        noise = np.ascontiguousarray(drawn[:, self.n_squares :]).view(np.uint8)[:, : self.n_pixels]
        levels = labels[..., None] * 255 // (self.classes - 1)
        images = ((3 * noise.reshape(-1, *self.shape).astype(np.int64) + levels) // 4).astype(np.uint8)
        return images, labels.reshape(len(drawn), -1)


class Counting(Fresh):
    """Sequences with structure to learn: a token is the previous one plus 1, or, in 1 of 4 cases, random."""

    def __init__(self, seed: int, samples: int, length: int, vocabulary: int) -> None:
        super().__init__(seed, samples)
        self.vocabulary, self.words = vocabulary, length + 1

    def draw(self, drawn: np.ndarray) -> Batch:
        """Return the samples of these random numbers, uint64 [N, words].

        The highest bits of a number decide whether the token is random, the others which one it is.
        """
        places = np.arange(self.words)
        jumps = drawn >> np.uint64(62) == 0
        jumps[:, 0] = True
        last = np.maximum.accumulate(np.where(jumps, places, 0), axis=1)
        random_tokens = (drawn & np.uint64(2**62 - 1)) % self.vocabulary
        tokens = (
            np.take_along_axis(random_tokens.astype(np.int64), last, axis=1) + places - last
        ) % self.vocabulary
        return tokens[:, :-1], tokens[:, 1:]


class Topics(Fresh):
    """Texts whose class can be learned: 1 of 4 tokens occurs only in that class, the others are random."""

    def __init__(self, seed: int, samples: int, length: int, vocabulary: int, classes: int) -> None:
        super().__init__(seed, samples)
        self.vocabulary, self.classes, self.words = vocabulary, classes, 1 + length

    def draw(self, drawn: np.ndarray) -> Batch:
        """Return the samples of these random numbers, uint64 [N, words].

        The first number is the class. The highest bits of each other number decide whether the token belongs
        to the class; with C classes, class c has the tokens c, C + c, 2 C + c, ...
        """
        labels = (drawn[:, 0] % self.classes).astype(np.int64)
        is_of_class = drawn[:, 1:] >> np.uint64(62) == 0
        numbers = (drawn[:, 1:] & np.uint64(2**62 - 1)).astype(np.int64)
        of_class = numbers % (self.vocabulary // self.classes) * self.classes + labels[:, None]
        return np.where(is_of_class, of_class, numbers % self.vocabulary), labels


class Clicks(Fresh):
    """Rows of click logs: half of the category values speak for a click, the other half against one.

    Small values of a category are more frequent than large ones, and counts have all magnitudes.
    """

    words = N_COUNTS + N_CATEGORIES

    def __init__(self, seed: int, samples: int, vocabulary: int) -> None:
        super().__init__(seed, samples)
        self.n_values = vocabulary // N_CATEGORIES

    def draw(self, drawn: np.ndarray) -> Batch:
        """Return the samples of these random numbers, uint64 [N, words]."""
        counts, categories = np.split(drawn, [N_COUNTS], axis=1)
        counts = (counts & np.uint64(4095)) >> ((counts >> np.uint64(60)) % np.uint64(13))
        high, low = categories >> np.uint64(32), categories & np.uint64(2**32 - 1)
        values = (high % self.n_values) * (low % self.n_values) // self.n_values
        values = values.astype(np.int64) + self.n_values * np.arange(N_CATEGORIES)
        n_for = ((values * KNUTH_FACTOR >> 15) & 1).sum(1)
        rows = np.concatenate([counts.astype(np.int64), values], axis=1)
        return rows, (n_for > N_CATEGORIES // 2).astype(np.int64)


def split_of(data: Path, name: str, manifest: dict[str, Any], seed: int) -> Split:
    """Return the split `train` or `validation` of the prepared data set in `data`."""
    tokens = "vocabulary" in manifest
    if not manifest.get("fresh"):
        return Prepared(data / name, tokens)
    drawn = seed + (name == "validation"), manifest[f"{name}_samples"]
    shape, classes = tuple(manifest["shape"]), len(manifest.get("classes", []))
    if not tokens:
        return (Regions if manifest.get("targets") == "pixel" else Noise)(*drawn, shape, classes)
    if manifest.get("targets") == "click":
        return Clicks(*drawn, manifest["vocabulary"])
    if classes:
        return Topics(*drawn, shape[0], manifest["vocabulary"], classes)
    return Counting(*drawn, shape[0], manifest["vocabulary"])


class Augmentation:
    """Random changes of one epoch's training images. `level` is a level of the factor: none, flip, flip-crop.

    An image is mirrored with probability 1/2. A crop shifts it by at most an eighth of its height; black
    borders of that width are added on all sides first (He et al. 2016, section 4.2).
    """

    def __init__(self, level: str, seed: int, epoch: int, samples: int, height: int) -> None:
        generator = np.random.default_rng([seed, epoch, AUGMENTATION_STREAM])
        self.padding = max(1, round(height / MIN_HEIGHTS_PER_SHIFT)) if level == "flip-crop" else 0
        self.flips = generator.random(samples) < 0.5 if level != "none" else None
        self.corners = generator.integers(2 * self.padding + 1, size=(samples, 2)) if self.padding else None

    def __call__(self, images: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the images [N, H, W, C] of `samples`, given by their numbers, after augmentation."""
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


def mask_tokens(tokens: np.ndarray, samples: np.ndarray, n_masked: int, mask: int, seed: list[int]) -> Batch:
    """Return tokens with masks followed by the masked positions, and the tokens that were there.

    Positions are drawn for each sequence. Most of them get the mask, some get a random token, and the others
    keep their token (Devlin et al., NAACL 2019, section 3.1).

    Args:
        tokens: Sequences, int64 [N, length].
        samples: Numbers of the sequences, from which their random numbers are drawn.
        n_masked: Number of masked positions of a sequence.
        mask: The mask, a token larger than all tokens of the data set.
        seed: The run's seed and the epoch.

    Returns:
        Arrays [N, length + n_masked] and [N, n_masked].
    """
    length = tokens.shape[1]
    streams = (np.random.default_rng([*seed, MASKING_STREAM, sample]) for sample in samples)
    drawn = np.stack([stream.random(length + 2 * n_masked) for stream in streams])
    order, kinds, random_tokens = np.split(drawn, [length, length + n_masked], axis=1)
    positions = np.sort(np.argsort(order, axis=1)[:, :n_masked], axis=1)
    labels = np.take_along_axis(tokens, positions, axis=1)
    masked = np.select(
        [kinds < MASK_SHARE, kinds < MASK_SHARE + RANDOM_SHARE],
        [np.int64(mask), (random_tokens * mask).astype(np.int64)],
        labels,
    )
    tokens = tokens.copy()
    np.put_along_axis(tokens, positions, masked, axis=1)
    return np.concatenate([tokens, positions], axis=1), labels
