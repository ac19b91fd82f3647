"""Small made-up data sets in the exact layout of the published archives, for reduced studies and for tests.

Each class has its own pattern under noise, and few words follow a word, so that they can be learnt. Everything is drawn from one
seed.
"""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from datasets.archives import Archive
from datasets.formats import ALPHABET, CIFAR, CIFAR_BATCHES, LINE_END, TINY, UNKNOWN, WIKITEXT, one_word
from declared.datasets import IDX, TEXTS

SEED = 0
TILE = 8  # pixels: patterns of such squares survive JPEG
GREY_EVERY = 50  # one in so many JPEG files is grey, as in the original
QUALITY = 90
WORDS = 60  # of a text of characters, which has no vocabulary of words
FOLLOWERS = 3  # words that may follow a word
LINE_WORDS = 12
RARE_EVERY = 40  # one in so many words is rare
Entry = Mapping[str, Any]
Parts = dict[str, tuple[np.ndarray, np.ndarray]]


def parts(entry: Mapping[str, Any], classes: int, seed: int = SEED) -> Parts:
    """Images (uint8 [N, H, W, C]) and labels (int64 [N]) of `train` and `validation`; all classes are equally frequent."""
    generator = np.random.default_rng(seed)
    height, width, channels = entry["shape"]
    tiles = generator.integers(256, size=(classes, -(-height // TILE), -(-width // TILE), channels))
    patterns = tiles.repeat(TILE, axis=1).repeat(TILE, axis=2)[:, :height, :width]
    made = {}
    for part in ("train", "validation"):
        labels = generator.permutation(np.arange(entry[f"{part}_samples"]) % classes)
        noise = generator.integers(256, size=(len(labels), height, width, channels))
        made[part] = (((patterns[labels] + 3 * noise) // 4).astype(np.uint8), labels)
    return made


def write_archives(entry: Mapping[str, Any], folder: Path) -> dict[str, Archive]:
    """Write the data set's archives into `folder`: name -> archive."""
    if entry["format"] in TEXTS:
        TEXT_WRITERS[entry["format"]](folder, entry)
    else:
        classes = entry["classes"]
        names = classes if isinstance(classes, list) else [f"made-up class {number}" for number in range(classes)]
        WRITERS[entry["format"]](folder, parts(entry, len(names)), names)
    limit = 4 * (entry["train_samples"] + entry["validation_samples"]) * int(np.prod(entry["shape"])) + 1_000_000
    return {path.name: Archive(path, limit, "made up") for path in sorted(folder.iterdir())}


def write_cifar(folder: Path, made: Parts, classes: list[str]) -> None:
    """cifar-10-binary.tar.gz: five training batches, a test batch, the class names."""
    images, labels = made["train"]
    batches = zip(CIFAR_BATCHES, np.array_split(images, 5), np.array_split(labels, 5), strict=True)
    members = {name: cifar_records(*samples) for name, *samples in batches}
    members[f"{CIFAR}/test_batch.bin"] = cifar_records(*made["validation"])
    members[f"{CIFAR}/batches.meta.txt"] = "".join(f"{one_word(name)}\n" for name in [*classes, ""]).encode()
    members[f"{CIFAR}/readme.html"] = (
        b"<meta HTTP-EQUIV='REFRESH' content='0; url=http://www.cs.toronto.edu/~kriz/cifar.html'>\n"
    )
    (folder / "cifar-10-binary.tar.gz").write_bytes(gzip.compress(tar(members), mtime=0))


def cifar_records(images: np.ndarray, labels: np.ndarray) -> bytes:
    """One byte of label, then the image channel by channel, for each sample."""
    pixels = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.column_stack([labels.astype(np.uint8), pixels]).tobytes()


def tar(members: Mapping[str, bytes]) -> bytes:
    """The files as a tar, in their folder."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        folder = tarfile.TarInfo(CIFAR)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return written.getvalue()


def write_idx(folder: Path, made: Parts, _: list[str]) -> None:
    """Four idx*.gz files; the channels of a pixel stand side by side in its row."""
    for part, names in IDX.items():
        for name, array in zip(names, made[part], strict=True):
            array = array.reshape(*array.shape[:2], -1) if array.ndim == 4 else array
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
            (folder / name).write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0))


def write_tiny_imagenet(folder: Path, made: Parts, classes: list[str]) -> None:
    """tiny-imagenet-200.zip: JPEG files by class with their boxes, a flat validation part with annotations, unlabelled tests."""
    ids = [f"n{10_000_000 + 3_141_593 * number % 9_000_000:08d}" for number in range(len(classes))]
    texts = {
        "wnids.txt": "\n".join(ids),
        "words.txt": "".join(f"{wnid}\t{name}\n" for wnid, name in sorted(zip(ids, classes, strict=True))),
    }
    members = {f"{TINY}/{name}": text.encode() for name, text in texts.items()}
    images, labels = made["train"]
    for number, wnid in enumerate(ids):
        own = images[labels == number]
        names = [f"{wnid}_{i}.JPEG" for i in range(len(own))]
        members[f"{TINY}/train/{wnid}/{wnid}_boxes.txt"] = "".join(f"{name}\t0\t0\t63\t63\n" for name in names).encode()
        for i, name in enumerate(names):
            members[f"{TINY}/train/{wnid}/images/{name}"] = jpeg(own[i], grey=i % GREY_EVERY == GREY_EVERY // 2)
    lines = []
    for i, (image, label) in enumerate(zip(*made["validation"], strict=True)):
        lines.append(f"val_{i}.JPEG\t{ids[label]}\t0\t0\t63\t63\n")
        members[f"{TINY}/val/images/val_{i}.JPEG"] = jpeg(image, grey=i % GREY_EVERY == 0)
    members[f"{TINY}/val/val_annotations.txt"] = "".join(lines).encode()
    members[f"{TINY}/test/images/test_0.JPEG"] = jpeg(images[0], grey=False)
    with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:
        for name in [f"{TINY}/", f"{TINY}/train/", f"{TINY}/val/"]:
            archive.writestr(zipfile.ZipInfo(name), b"")
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def jpeg(image: np.ndarray, grey: bool) -> bytes:
    """The image, uint8 [H, W, 3], as a JPEG file."""
    from PIL import Image

    written = io.BytesIO()
    picture = Image.fromarray(image)
    (picture.convert("L") if grey else picture).save(written, "JPEG", quality=QUALITY)
    return written.getvalue()


def words(lexicon: int, number: int, generator: np.random.Generator) -> list[str]:
    """A text of so many words from a lexicon of so many, each of which one of FOLLOWERS others follows, the first of them mostly."""
    letters = list(ALPHABET.strip())
    spelt: dict[str, None] = {}
    while len(spelt) < lexicon:
        spelt["".join(generator.choice(letters, size=generator.integers(2, 8)))] = None
    names, followers = list(spelt), generator.integers(lexicon, size=(lexicon, FOLLOWERS))
    choices = np.minimum(generator.geometric(0.6, size=number) - 1, FOLLOWERS - 1)
    text, word = [], 0
    for choice in choices:
        word = followers[word, choice]
        text.append(names[word])
    return text


def write_text8(folder: Path, entry: Entry) -> None:
    """text8.zip: one text of lower-case letters and blanks, nine tenths of which are the training part."""
    characters = -(-20 * (entry["train_samples"] * entry["shape"][0] + 1) // 18)
    text = " " + " ".join(words(WORDS, characters // 2, np.random.default_rng(SEED)))
    _write_zip(folder / "text8.zip", {"text8": text[:characters].encode()})


def write_wikitext(folder: Path, entry: Entry) -> None:
    """wikitext-2-v1.zip: three texts of words, lines of which begin and end with a blank, rare words hidden."""
    generator = np.random.default_rng(SEED)
    numbers = [entry[f"{part}_samples"] * entry["shape"][0] + 1 for part in WIKITEXT]
    text = words(entry["vocabulary"] - len((LINE_END, UNKNOWN)), sum(numbers), generator)
    for place in np.flatnonzero(generator.integers(RARE_EVERY, size=len(text)) == 0):
        text[place] = UNKNOWN
    for place in (*range(LINE_WORDS, len(text), LINE_WORDS), numbers[0] - 1, len(text) - 1):
        text[place] = "\n"
    parts = text[: numbers[0]], text[numbers[0] :], ["\n"]
    members = {
        name: f" {' '.join(part)}" for name, part in zip([*WIKITEXT.values(), "wiki.test.tokens"], parts, strict=True)
    }
    _write_zip(folder / "wikitext-2-v1.zip", {f"wikitext-2/{name}": text.encode() for name, text in members.items()})


def _write_zip(file: Path, members: Mapping[str, bytes]) -> None:
    """A zip of these files, their folders before them, as all zips are written here: without dates."""
    with zipfile.ZipFile(file, "w") as archive:
        for name in dict.fromkeys(f"{name.rpartition('/')[0]}/" for name in members if "/" in name):
            archive.writestr(zipfile.ZipInfo(name), b"")
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


TEXT_WRITERS: dict[str, Callable[[Path, Entry], None]] = {"text8": write_text8, "wikitext": write_wikitext}
WRITERS: dict[str, Callable[[Path, Parts, list[str]], None]] = {
    "cifar-10-binary": write_cifar,
    "idx": write_idx,
    "tiny-imagenet": write_tiny_imagenet,
}
