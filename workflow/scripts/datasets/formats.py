"""Read published archives of data sets as images or tokens, and labels.

A reader gets a data set's entry and its archives by name. It returns the class names and, for each part,
blocks of images (uint8 [n, H, W, C]) and labels (int64 [n]), or blocks of tokens (int64 [n, length]) and
labels of the same shape, in which the label of a token is the next token. It raises an InputError for
anything that contradicts the entry.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import InputError
from datasets.archives import Archive, read_gzip, read_tar, read_zip, refuse, zip_files
from declared.datasets import IDX

SPLIT_SEED = 0
BLOCK_SIZE = 1000
CIFAR = "cifar-10-batches-bin"
CIFAR_BATCHES = tuple(f"{CIFAR}/data_batch_{number}.bin" for number in range(1, 6))
TINY = "tiny-imagenet-200"
ALPHABET = " abcdefghijklmnopqrstuvwxyz"  # characters of text8 in the order of their tokens
# Tokens of WikiText for the end of a line and for rare words.
LINE_END, UNKNOWN = "<eos>", "<unk>"
WIKITEXT = {"train": "wiki.train.tokens", "validation": "wiki.valid.tokens"}

Block = tuple[np.ndarray, np.ndarray]
Entry = Mapping[str, Any]
Archives = Mapping[str, Archive]


@dataclass(frozen=True)
class Content:
    """Class names and samples of a data set; ``classes`` is empty if labels are tokens."""

    classes: list[str]
    train: Iterator[Block]
    validation: Iterator[Block]


def generate_patterns(entry: Entry, _: Archives) -> Content:
    """Generate images: the pattern of each class plus noise."""
    generator = np.random.default_rng(SPLIT_SEED)
    labels = generator.integers(
        len(entry["classes"]), size=entry["train_samples"] + entry["validation_samples"]
    )
    shapes = generator.integers(256, size=(len(entry["classes"]), *entry["shape"]))
    noise = generator.integers(256, size=(len(labels), *entry["shape"]))
    return _split(((shapes[labels] + 3 * noise) // 4).astype(np.uint8), labels, entry)


def read_digits(entry: Entry, _: Archives) -> Content:
    """Read scikit-learn's 1,797 digits, with values from 0 to 16, in a fixed random order."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(bunch.target))
    return _split(
        bunch.images[order].astype(np.uint8)[..., None], bunch.target[order].astype(np.int64), entry
    )


def read_cifar(entry: Entry, archives: Archives) -> Content:
    """Read CIFAR-10: batches of records, each a label and an image in CHW order."""
    archive = _single_archive(archives, entry)
    members = read_tar(archive)
    meta = f"{CIFAR}/batches.meta.txt"
    names = read_text(archive, meta, bytes(_member(archive, members, meta))).split()
    if names != [one_word(name) for name in entry["classes"]]:
        problem = f"has the classes {', '.join(names)[:200]}; the entry says {', '.join(entry['classes'])}"
        refuse(archive, "contradicts-entry", problem, names)

    def blocks(names: tuple[str, ...]) -> Iterator[Block]:
        height, width, channels = entry["shape"]
        for name in names:
            records = np.frombuffer(_member(archive, members, name), dtype=np.uint8)
            if len(records) % (1 + height * width * channels):
                problem = f"member {name!r} has {len(records)} bytes, no whole number of images"
                refuse(archive, "contradicts-entry", problem, len(records))
            records = records.reshape(-1, 1 + height * width * channels)
            images = records[:, 1:].reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
            yield from sample_blocks(images, records[:, 0].astype(np.int64))

    return Content(entry["classes"], blocks(CIFAR_BATCHES), blocks((f"{CIFAR}/test_batch.bin",)))


def one_word(name: str) -> str:
    """Return a class name without blanks, since batches.meta.txt of CIFAR-10 is read word by word."""
    return "_".join(name.split())


def read_idx(entry: Entry, archives: Archives) -> Content:
    """Read IDX: gzip files of images and labels for each part, with the dimensions before the data."""

    def blocks(part: str) -> Iterator[Block]:
        images, labels = (_archive_named(archives, name, entry) for name in IDX[part])
        height, width, channels = entry["shape"]
        pixels = _idx_array(images, (entry[f"{part}_samples"], height, width * channels))
        classes = _idx_array(labels, (entry[f"{part}_samples"],))
        yield from sample_blocks(pixels.reshape(-1, height, width, channels), classes.astype(np.int64))

    return Content(entry["classes"], blocks("train"), blocks("validation"))


def _idx_array(archive: Archive, expected: tuple[int, ...]) -> np.ndarray:
    """Return the content of an IDX file as uint8 of the expected shape.

    The format is described at http://yann.lecun.com/exdb/mnist ("the IDX file format").
    """
    content = read_gzip(archive)
    start = 4 + 4 * len(expected)
    if content[:4] != bytes([0, 0, 8, len(expected)]) or len(content) < start:
        problem = f"begins with {content[:4].hex()}, no IDX file of bytes in {len(expected)} dimensions"
        refuse(archive, "wrong-format", problem, content[:4].hex())
    shape = tuple(int(number) for number in np.frombuffer(content[4:start], dtype=">u4"))
    if shape != expected or len(content) - start != np.prod(expected):
        n_bytes = len(content) - start
        problem = f"has dimensions {shape} and {n_bytes} bytes; the entry says {expected}"
        refuse(archive, "contradicts-entry", problem, (shape, n_bytes))
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(expected)


def read_tiny_imagenet(entry: Entry, archives: Archives) -> Content:
    """Read Tiny ImageNet: classes as in wnids.txt, validation images as in val_annotations.txt."""
    archive = _single_archive(archives, entry)
    files = zip_files(archive)
    texts = [f"{TINY}/{name}" for name in ("wnids.txt", "words.txt", "val/val_annotations.txt")]
    ids, words, annotations = (
        read_text(archive, name, content).splitlines()
        for name, content in zip(texts, read_zip(archive, texts), strict=True)
    )
    label = {wnid: number for number, wnid in enumerate(ids)}
    if len(label) != len(ids) or len(ids) != entry["classes"]:
        problem = (
            f"wnids.txt names {len(label)} classes in {len(ids)} lines; the entry says {entry['classes']}"
        )
        refuse(archive, "contradicts-entry", problem, (len(label), len(ids)))
    meaning = dict(line.split("\t", 1) for line in words if "\t" in line)
    train = sorted(
        _training_images(files, archive, label), key=lambda sample: (sample[1], len(sample[0]), sample[0])
    )
    rows = [line.split("\t") for line in annotations if line]
    if invalid := [row for row in rows if len(row) < 2 or row[1] not in label]:
        problem = f"val_annotations.txt has {' '.join(invalid[0])[:100]!r}, which names none of its classes"
        refuse(archive, "unknown-class", problem, invalid[0])
    validation = [(f"{TINY}/val/images/{row[0]}", label[row[1]]) for row in rows]
    classes = [meaning.get(wnid, wnid) for wnid in ids]
    return Content(classes, _image_blocks(archive, train, entry), _image_blocks(archive, validation, entry))


def _training_images(
    files: list[str], archive: Archive, label: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    for name in files:
        if match := re.fullmatch(rf"{TINY}/train/([^/]+)/images/[^/]+", name):
            if match[1] not in label:
                refuse(archive, "unknown-class", f"member {name!r} belongs to no class of wnids.txt", name)
            yield name, label[match[1]]


def _image_blocks(archive: Archive, samples: list[tuple[str, int]], entry: Entry) -> Iterator[Block]:
    contents = read_zip(archive, (name for name, _ in samples))
    for start in range(0, len(samples), BLOCK_SIZE):
        part = samples[start : start + BLOCK_SIZE]
        images = [decode_jpeg(archive, name, next(contents), entry["shape"]) for name, _ in part]
        yield np.stack(images), np.array([number for _, number in part], dtype=np.int64)


def decode_jpeg(archive: Archive, name: str, content: bytes, shape: list[int]) -> np.ndarray:
    """Return a JPEG file as uint8 [H, W, 3]; a greyscale image gets three equal channels.

    Raises:
        InputError: If the file is not a JPEG, or has another size or mode.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            mode, width, height = image.mode, *image.size
            matches = mode in ("RGB", "L") and [height, width, 3] == list(shape)
            pixels = np.asarray(image.convert("RGB")) if matches else None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        refuse(archive, "wrong-format", f"member {name!r} cannot be read as JPEG: {error}", name)
    if pixels is None:
        problem = f"member {name!r} is {height} x {width} pixels of kind {mode}; the entry says {shape}"
        refuse(archive, "contradicts-entry", problem, (height, width, mode))
    return pixels


def read_text8(entry: Entry, archives: Archives) -> Content:
    """Read text8, one file of the letters a to z and blanks.

    The first 90 % of its characters are the training part, the next 5 % the validation part; the last 5 %,
    the test part, are not used (Mikolov et al., Subword Language Modeling with Neural Networks, 2012).
    """
    archive = _single_archive(archives, entry)
    files = zip_files(archive)
    if len(files) != 1:
        refuse(archive, "wrong-count", f"has {len(files)} files, not one text", len(files))
    (text,) = read_zip(archive, files)
    token = np.full(256, len(ALPHABET), np.uint8)
    token[list(ALPHABET.encode())] = range(len(ALPHABET))
    tokens = token[np.frombuffer(text, np.uint8)]
    if len(tokens) and (last := tokens.max()) == len(ALPHABET):
        at = int(np.argmax(tokens == last))
        problem = f"has the byte {text[at]:#x} at {at}, which is neither a letter a to z nor a blank"
        refuse(archive, "wrong-format", problem, (text[at], at))
    parts = np.split(tokens, [len(tokens) * share // 20 for share in (18, 19)])
    return Content([], *(sequence_blocks(part, entry["shape"][0]) for part in parts[:2]))


def read_wikitext(entry: Entry, archives: Archives) -> Content:
    """Read WikiText: words between blanks, with LINE_END after every line.

    The vocabulary consists of the words of the training part, most frequent first. Other words of the
    validation part become UNKNOWN, like rare words in the published files.
    """
    archive = _single_archive(archives, entry)
    files = zip_files(archive)
    matches = [[file for file in files if file.rpartition("/")[2] == name] for name in WIKITEXT.values()]
    for name, paths in zip(WIKITEXT.values(), matches, strict=True):
        if len(paths) != 1:
            refuse(archive, "wrong-count", f"has {len(paths)} files {name}, not one", len(paths))
    train, validation = (
        [
            word
            for line in io.StringIO(read_text(archive, name, content))
            for word in (*line.split(), LINE_END)
        ]
        for (name,), content in zip(matches, read_zip(archive, (name for (name,) in matches)), strict=True)
    )
    counts = Counter({UNKNOWN: 0})
    counts.update(train)
    token = {
        word: number for number, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word)))
    }
    if len(token) > entry["vocabulary"]:
        problem = f"has {len(token)} different words; the entry says a vocabulary of {entry['vocabulary']}"
        refuse(archive, "contradicts-entry", problem, len(token))
    unknown = token[UNKNOWN]
    parts = (
        np.array([token.get(word, unknown) for word in words], np.int64) for words in (train, validation)
    )
    return Content([], *(sequence_blocks(part, entry["shape"][0]) for part in parts))


def read_text(archive: Archive, name: str, content: bytes) -> str:
    """Return a member's text without byte order mark, with line feeds as line ends.

    Raises:
        InputError: If it is not UTF-8; guessing another encoding could change the vocabulary.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = (
            f"member {name!r} has the byte {content[error.start]:#x} at {error.start}, which is not UTF-8"
        )
        refuse(archive, "wrong-encoding", problem, (name, error.start))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def sequence_blocks(tokens: np.ndarray, length: int) -> Iterator[Block]:
    """Yield blocks of consecutive sequences [n, length] and their labels, the next tokens.

    The remainder is dropped.
    """
    samples = max(0, len(tokens) - 1) // length
    inputs, labels = (tokens[first : first + samples * length].reshape(samples, length) for first in (0, 1))
    for start in range(0, samples, BLOCK_SIZE):
        yield (
            inputs[start : start + BLOCK_SIZE].astype(np.int64),
            labels[start : start + BLOCK_SIZE].astype(np.int64),
        )


def sample_blocks(images: np.ndarray, labels: np.ndarray) -> Iterator[Block]:
    """Yield the samples in order, BLOCK_SIZE at a time."""
    for start in range(0, len(labels), BLOCK_SIZE):
        yield images[start : start + BLOCK_SIZE], labels[start : start + BLOCK_SIZE]


def _split(images: np.ndarray, labels: np.ndarray, entry: Entry) -> Content:
    """Split samples that are already in random order into the training and the validation part."""
    train = entry["train_samples"]
    return Content(
        entry["classes"],
        sample_blocks(images[:train], labels[:train]),
        sample_blocks(images[train:], labels[train:]),
    )


def _single_archive(archives: Archives, entry: Entry) -> Archive:
    if len(archives) != 1:
        expected = f"one for format {entry['format']}"
        problem = f"there are {len(archives)}"
        raise InputError(
            "wrong-count", problem, file=entry["title"], key="files", got=len(archives), expected=expected
        )
    return next(iter(archives.values()))


def _archive_named(archives: Archives, name: str, entry: Entry) -> Archive:
    if name not in archives:
        expected = f"it for format {entry['format']}"
        raise InputError(
            "missing-file", f"there is no {name}", file=entry["title"], key="files", expected=expected
        )
    return archives[name]


def _member(archive: Archive, members: Mapping[str, memoryview], name: str) -> memoryview:
    if name not in members:
        refuse(archive, "missing-member", f"has no member {name!r}", name)
    return members[name]


READERS: dict[str, Callable[[Entry, Archives], Content]] = {
    "cifar-10-binary": read_cifar,
    "idx": read_idx,
    "patterns": generate_patterns,
    "scikit-learn": read_digits,
    "text8": read_text8,
    "tiny-imagenet": read_tiny_imagenet,
    "wikitext": read_wikitext,
}
