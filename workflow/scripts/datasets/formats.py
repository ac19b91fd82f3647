"""How each format of data sets is read: from archives, as published, to images or tokens, and labels.

A reader takes the data set's entry and its archives by name, and gives the class names and, for each part, blocks of
images (uint8 [n, H, W, C]) and labels (int64 [n]), or of tokens (int64 [n, length]) and as many labels: of each token the
one that follows. What is not exactly as expected is refused in one line.
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
BLOCK = 1000
CIFAR = "cifar-10-batches-bin"
CIFAR_BATCHES = tuple(f"{CIFAR}/data_batch_{number}.bin" for number in range(1, 6))
TINY = "tiny-imagenet-200"
ALPHABET = " abcdefghijklmnopqrstuvwxyz"  # of text8, in the order of their tokens
LINE_END, UNKNOWN = "<eos>", "<unk>"  # tokens of WikiText: at the end of a line, and in the place of rare words
WIKITEXT = {"train": "wiki.train.tokens", "validation": "wiki.valid.tokens"}

Block = tuple[np.ndarray, np.ndarray]
Entry = Mapping[str, Any]
Archives = Mapping[str, Archive]


@dataclass(frozen=True)
class Content:
    """A data set as it was read. `classes` are none where labels are tokens."""

    classes: list[str]
    train: Iterator[Block]
    validation: Iterator[Block]


def patterns(entry: Entry, _: Archives) -> Content:
    """As many images as the entry says, each its class's pattern under noise."""
    generator = np.random.default_rng(SPLIT_SEED)
    labels = generator.integers(len(entry["classes"]), size=entry["train_samples"] + entry["validation_samples"])
    shapes = generator.integers(256, size=(len(entry["classes"]), *entry["shape"]))
    noise = generator.integers(256, size=(len(labels), *entry["shape"]))
    return _split(((shapes[labels] + 3 * noise) // 4).astype(np.uint8), labels, entry)


def digits(entry: Entry, _: Archives) -> Content:
    """The 1,797 images that scikit-learn brings, with values 0 to 16, in a fixed random order."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(bunch.target))
    return _split(bunch.images[order].astype(np.uint8)[..., None], bunch.target[order].astype(np.int64), entry)


def cifar(entry: Entry, archives: Archives) -> Content:
    """Five batches to train on and one to validate with: records of a label and an image, channel by channel."""
    archive = _only(archives, entry)
    members = read_tar(archive)
    meta = f"{CIFAR}/batches.meta.txt"
    named = read_text(archive, meta, bytes(_member(archive, members, meta))).split()
    if named != [one_word(name) for name in entry["classes"]]:
        problem = f"has the classes {', '.join(named)[:200]}; the entry says {', '.join(entry['classes'])}"
        refuse(archive, "contradicts-entry", problem, named)

    def blocks(names: tuple[str, ...]) -> Iterator[Block]:
        height, width, channels = entry["shape"]
        for name in names:
            records = np.frombuffer(_member(archive, members, name), dtype=np.uint8)
            if len(records) % (1 + height * width * channels):
                problem = f"member {name!r} has {len(records)} bytes, no whole number of images"
                refuse(archive, "contradicts-entry", problem, len(records))
            records = records.reshape(-1, 1 + height * width * channels)
            images = records[:, 1:].reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
            yield from in_blocks(images, records[:, 0].astype(np.int64))

    return Content(entry["classes"], blocks(CIFAR_BATCHES), blocks((f"{CIFAR}/test_batch.bin",)))


def one_word(name: str) -> str:
    """A class's name as batches.meta.txt of CIFAR-10 has it, which is read word by word."""
    return "_".join(name.split())


def idx(entry: Entry, archives: Archives) -> Content:
    """Two pairs of gzip files, images and labels, each with its dimensions before its bytes."""

    def blocks(part: str) -> Iterator[Block]:
        images, labels = (_named(archives, name, entry) for name in IDX[part])
        height, width, channels = entry["shape"]
        pixels = _idx_array(images, (entry[f"{part}_samples"], height, width * channels))
        classes = _idx_array(labels, (entry[f"{part}_samples"],))
        yield from in_blocks(pixels.reshape(-1, height, width, channels), classes.astype(np.int64))

    return Content(entry["classes"], blocks("train"), blocks("validation"))


def _idx_array(archive: Archive, expected: tuple[int, ...]) -> np.ndarray:
    """The bytes of an IDX file as uint8 of the expected shape (http://yann.lecun.com/exdb/mnist, "the IDX file format")."""
    content = read_gzip(archive)
    start = 4 + 4 * len(expected)
    if content[:4] != bytes([0, 0, 8, len(expected)]) or len(content) < start:
        problem = f"begins with {content[:4].hex()}, no IDX file of bytes in {len(expected)} dimensions"
        refuse(archive, "wrong-format", problem, content[:4].hex())
    found = tuple(int(number) for number in np.frombuffer(content[4:start], dtype=">u4"))
    if found != expected or len(content) - start != np.prod(expected):
        n_bytes = len(content) - start
        problem = f"has dimensions {found} and {n_bytes} bytes; the entry says {expected}"
        refuse(archive, "contradicts-entry", problem, (found, n_bytes))
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(expected)


def tiny_imagenet(entry: Entry, archives: Archives) -> Content:
    """JPEG files: to train on by class, in the order of wnids.txt; to validate with as val_annotations.txt lists them."""
    archive = _only(archives, entry)
    files = zip_files(archive)
    texts = [f"{TINY}/{name}" for name in ("wnids.txt", "words.txt", "val/val_annotations.txt")]
    ids, words, annotations = (
        read_text(archive, name, content).splitlines()
        for name, content in zip(texts, read_zip(archive, texts), strict=True)
    )
    label = {wnid: number for number, wnid in enumerate(ids)}
    if len(label) != len(ids) or len(ids) != entry["classes"]:
        problem = f"wnids.txt names {len(label)} classes in {len(ids)} lines; the entry says {entry['classes']}"
        refuse(archive, "contradicts-entry", problem, (len(label), len(ids)))
    meaning = dict(line.split("\t", 1) for line in words if "\t" in line)
    train = sorted(_tiny_train(files, archive, label), key=lambda sample: (sample[1], len(sample[0]), sample[0]))
    rows = [line.split("\t") for line in annotations if line]
    if wrong := [row for row in rows if len(row) < 2 or row[1] not in label]:
        problem = f"val_annotations.txt has {' '.join(wrong[0])[:100]!r}, which names none of its classes"
        refuse(archive, "unknown-class", problem, wrong[0])
    validation = [(f"{TINY}/val/images/{row[0]}", label[row[1]]) for row in rows]
    classes = [meaning.get(wnid, wnid) for wnid in ids]
    return Content(classes, _pictures(archive, train, entry), _pictures(archive, validation, entry))


def _tiny_train(files: list[str], archive: Archive, label: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for name in files:
        if found := re.fullmatch(rf"{TINY}/train/([^/]+)/images/[^/]+", name):
            if found[1] not in label:
                refuse(archive, "unknown-class", f"member {name!r} is of none of the classes of wnids.txt", name)
            yield name, label[found[1]]


def _pictures(archive: Archive, samples: list[tuple[str, int]], entry: Entry) -> Iterator[Block]:
    contents = read_zip(archive, (name for name, _ in samples))
    for start in range(0, len(samples), BLOCK):
        part = samples[start : start + BLOCK]
        images = [picture(archive, name, next(contents), entry["shape"]) for name, _ in part]
        yield np.stack(images), np.array([number for _, number in part], dtype=np.int64)


def picture(archive: Archive, name: str, content: bytes, shape: list[int]) -> np.ndarray:
    """A JPEG file as uint8 [H, W, 3]; grey ones get three equal channels. InputError for any other file or size."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            mode, width, height = image.mode, *image.size
            if mode in ("RGB", "L") and [height, width, 3] == list(shape):
                return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        refuse(archive, "wrong-format", f"member {name!r} cannot be read as JPEG: {error}", name)
    problem = f"member {name!r} is {height} x {width} pixels of kind {mode}; the entry says {shape}"
    refuse(archive, "contradicts-entry", problem, (height, width, mode))


def text8(entry: Entry, archives: Archives) -> Content:
    """One file of the letters a to z and blanks: of its characters the first nine tenths to train on, the next twentieth to validate
    with, the last to test, which nobody reads here (Mikolov et al., Subword Language Modeling with Neural Networks, 2012)."""
    archive = _only(archives, entry)
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
    return Content([], *(in_sequences(part, entry["shape"][0]) for part in parts[:2]))


def wikitext(entry: Entry, archives: Archives) -> Content:
    """Texts of words between blanks, with LINE_END after every line. Words of the training part are the vocabulary, the most
    frequent first; the validation part's other words are UNKNOWN, as rare words are already in what is published."""
    archive = _only(archives, entry)
    files = zip_files(archive)
    named = [[file for file in files if file.rpartition("/")[2] == name] for name in WIKITEXT.values()]
    for name, found in zip(WIKITEXT.values(), named, strict=True):
        if len(found) != 1:
            refuse(archive, "wrong-count", f"has {len(found)} files {name}, not one", len(found))
    train, validation = (
        [word for line in io.StringIO(read_text(archive, name, content)) for word in (*line.split(), LINE_END)]
        for (name,), content in zip(named, read_zip(archive, (name for (name,) in named)), strict=True)
    )
    counts = Counter({UNKNOWN: 0})
    counts.update(train)
    token = {word: number for number, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word)))}
    if len(token) > entry["vocabulary"]:
        problem = f"has {len(token)} different words; the entry says a vocabulary of {entry['vocabulary']}"
        refuse(archive, "contradicts-entry", problem, len(token))
    unknown = token[UNKNOWN]
    parts = (np.array([token.get(word, unknown) for word in words], np.int64) for words in (train, validation))
    return Content([], *(in_sequences(part, entry["shape"][0]) for part in parts))


def read_text(archive: Archive, name: str, content: bytes) -> str:
    """Return a member's text without its byte order mark, lines ended by a line feed. InputError where it is not UTF-8.

    Another encoding would make other words of the same text, and so another vocabulary.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"member {name!r} has the byte {content[error.start]:#x} at {error.start}, which is not UTF-8"
        refuse(archive, "wrong-encoding", problem, (name, error.start))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def in_sequences(tokens: np.ndarray, length: int) -> Iterator[Block]:
    """A text as sequences [length] that follow each other, each token with the one after it as its label; a rest is left out."""
    samples = max(0, len(tokens) - 1) // length
    inputs, labels = (tokens[first : first + samples * length].reshape(samples, length) for first in (0, 1))
    for start in range(0, samples, BLOCK):
        yield inputs[start : start + BLOCK].astype(np.int64), labels[start : start + BLOCK].astype(np.int64)


def in_blocks(images: np.ndarray, labels: np.ndarray) -> Iterator[Block]:
    """The samples in their order, some at a time."""
    for start in range(0, len(labels), BLOCK):
        yield images[start : start + BLOCK], labels[start : start + BLOCK]


def _split(images: np.ndarray, labels: np.ndarray, entry: Entry) -> Content:
    """Training and validation part: the first and the next samples of an order that is already random."""
    train = entry["train_samples"]
    return Content(
        entry["classes"], in_blocks(images[:train], labels[:train]), in_blocks(images[train:], labels[train:])
    )


def _only(archives: Archives, entry: Entry) -> Archive:
    if len(archives) != 1:
        expected = f"one for format {entry['format']}"
        problem = f"there are {len(archives)}"
        raise InputError("wrong-count", problem, file=entry["title"], key="files", got=len(archives), expected=expected)
    return next(iter(archives.values()))


def _named(archives: Archives, name: str, entry: Entry) -> Archive:
    if name not in archives:
        expected = f"it for format {entry['format']}"
        raise InputError("missing-file", f"there is no {name}", file=entry["title"], key="files", expected=expected)
    return archives[name]


def _member(archive: Archive, members: Mapping[str, memoryview], name: str) -> memoryview:
    if name not in members:
        refuse(archive, "missing-member", f"has no member {name!r}", name)
    return members[name]


READERS: dict[str, Callable[[Entry, Archives], Content]] = {
    "cifar-10-binary": cifar,
    "idx": idx,
    "patterns": patterns,
    "scikit-learn": digits,
    "text8": text8,
    "tiny-imagenet": tiny_imagenet,
    "wikitext": wikitext,
}
