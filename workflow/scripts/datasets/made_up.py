"""Generate small synthetic data sets in the exact layout of published archives, from a fixed seed.

Reduced studies and tests use them. Models can learn them: each class has its own pattern under noise, and
each word is followed by only a few words.
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
TILE = 8  # pixels; patterns of such squares survive JPEG compression
GREY_EVERY = 50  # one in 50 JPEG files is greyscale, like in the original
QUALITY = 90
TEXT8_VOCABULARY = 60  # different words; the entry of text8 declares only letters
N_FOLLOWERS = 3  # words that may follow a word
LINE_WORDS = 12
RARE_EVERY = 40  # every 40th word, on average, is rare
Entry = Mapping[str, Any]
Parts = dict[str, tuple[np.ndarray, np.ndarray]]


def generate_parts(entry: Mapping[str, Any], classes: int, seed: int = SEED) -> Parts:
    """Return images (uint8 [N, H, W, C]) and labels (int64 [N]) of both parts; classes have equal sizes."""
    generator = np.random.default_rng(seed)
    height, width, channels = entry["shape"]
    tiles = generator.integers(256, size=(classes, -(-height // TILE), -(-width // TILE), channels))
    patterns = tiles.repeat(TILE, axis=1).repeat(TILE, axis=2)[:, :height, :width]
    samples = {}
    for part in ("train", "validation"):
        labels = generator.permutation(np.arange(entry[f"{part}_samples"]) % classes)
        noise = generator.integers(256, size=(len(labels), height, width, channels))
        samples[part] = (((patterns[labels] + 3 * noise) // 4).astype(np.uint8), labels)
    return samples


def write_archives(entry: Mapping[str, Any], folder: Path) -> dict[str, Archive]:
    """Write the data set's archives into ``folder``, and return them by name."""
    if entry["format"] in TEXTS:
        TEXT_WRITERS[entry["format"]](folder, entry)
    else:
        classes = entry["classes"]
        names = (
            classes if isinstance(classes, list) else [f"made-up class {number}" for number in range(classes)]
        )
        WRITERS[entry["format"]](folder, generate_parts(entry, len(names)), names)
    limit = (
        4 * (entry["train_samples"] + entry["validation_samples"]) * int(np.prod(entry["shape"])) + 1_000_000
    )
    return {path.name: Archive(path, limit, "made up") for path in sorted(folder.iterdir())}


def write_cifar(folder: Path, samples: Parts, classes: list[str]) -> None:
    """Write cifar-10-binary.tar.gz: five training batches, a test batch and the class names."""
    images, labels = samples["train"]
    batches = zip(CIFAR_BATCHES, np.array_split(images, 5), np.array_split(labels, 5), strict=True)
    members = {name: cifar_records(*batch) for name, *batch in batches}
    members[f"{CIFAR}/test_batch.bin"] = cifar_records(*samples["validation"])
    members[f"{CIFAR}/batches.meta.txt"] = "".join(f"{one_word(name)}\n" for name in [*classes, ""]).encode()
    members[f"{CIFAR}/readme.html"] = (
        b"<meta HTTP-EQUIV='REFRESH' content='0; url=http://www.cs.toronto.edu/~kriz/cifar.html'>\n"
    )
    (folder / "cifar-10-binary.tar.gz").write_bytes(gzip.compress(tar(members), mtime=0))


def cifar_records(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Return a record for each sample: one byte of label, then the image in CHW order."""
    pixels = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.column_stack([labels.astype(np.uint8), pixels]).tobytes()


def tar(members: Mapping[str, bytes]) -> bytes:
    """Return a tar of the files in CIFAR-10's folder."""
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


def write_idx(folder: Path, samples: Parts, _: list[str]) -> None:
    """Write four idx*.gz files; the channels of a pixel are adjacent in its row."""
    for part, names in IDX.items():
        for name, array in zip(names, samples[part], strict=True):
            array = array.reshape(*array.shape[:2], -1) if array.ndim == 4 else array
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
            (folder / name).write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0))


def write_tiny_imagenet(folder: Path, samples: Parts, classes: list[str]) -> None:
    """Write tiny-imagenet-200.zip: training images with boxes, annotated validation images, test images."""
    ids = [f"n{10_000_000 + 3_141_593 * number % 9_000_000:08d}" for number in range(len(classes))]
    texts = {
        "wnids.txt": "\n".join(ids),
        "words.txt": "".join(f"{wnid}\t{name}\n" for wnid, name in sorted(zip(ids, classes, strict=True))),
    }
    members = {f"{TINY}/{name}": text.encode() for name, text in texts.items()}
    images, labels = samples["train"]
    for number, wnid in enumerate(ids):
        own = images[labels == number]
        names = [f"{wnid}_{i}.JPEG" for i in range(len(own))]
        members[f"{TINY}/train/{wnid}/{wnid}_boxes.txt"] = "".join(
            f"{name}\t0\t0\t63\t63\n" for name in names
        ).encode()
        for i, name in enumerate(names):
            members[f"{TINY}/train/{wnid}/images/{name}"] = jpeg(
                own[i], grey=i % GREY_EVERY == GREY_EVERY // 2
            )
    lines = []
    for i, (image, label) in enumerate(zip(*samples["validation"], strict=True)):
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
    """Return an image, uint8 [H, W, 3], as a JPEG file."""
    from PIL import Image

    written = io.BytesIO()
    picture = Image.fromarray(image)
    (picture.convert("L") if grey else picture).save(written, "JPEG", quality=QUALITY)
    return written.getvalue()


def generate_words(n_distinct: int, n_words: int, generator: np.random.Generator) -> list[str]:
    """Return a random text of ``n_words`` words from a vocabulary of ``n_distinct`` words.

    Each word is followed by one of its N_FOLLOWERS words, usually by the first.
    """
    letters = list(ALPHABET.strip())
    spellings: dict[str, None] = {}
    while len(spellings) < n_distinct:
        spellings["".join(generator.choice(letters, size=generator.integers(2, 8)))] = None
    names, followers = list(spellings), generator.integers(n_distinct, size=(n_distinct, N_FOLLOWERS))
    choices = np.minimum(generator.geometric(0.6, size=n_words) - 1, N_FOLLOWERS - 1)
    text, word = [], 0
    for choice in choices:
        word = followers[word, choice]
        text.append(names[word])
    return text


def write_text8(folder: Path, entry: Entry) -> None:
    """Write text8.zip: one text of lower-case letters and blanks, 90 % of which is the training part."""
    characters = -(-20 * (entry["train_samples"] * entry["shape"][0] + 1) // 18)
    text = " " + " ".join(generate_words(TEXT8_VOCABULARY, characters // 2, np.random.default_rng(SEED)))
    _write_zip(folder / "text8.zip", {"text8": text[:characters].encode()})


def write_wikitext(folder: Path, entry: Entry) -> None:
    """Write wikitext-2-v1.zip: three texts, a blank around each line, rare words as UNKNOWN."""
    generator = np.random.default_rng(SEED)
    lengths = [entry[f"{part}_samples"] * entry["shape"][0] + 1 for part in WIKITEXT]
    text = generate_words(entry["vocabulary"] - len((LINE_END, UNKNOWN)), sum(lengths), generator)
    for place in np.flatnonzero(generator.integers(RARE_EVERY, size=len(text)) == 0):
        text[place] = UNKNOWN
    for place in (*range(LINE_WORDS, len(text), LINE_WORDS), lengths[0] - 1, len(text) - 1):
        text[place] = "\n"
    parts = text[: lengths[0]], text[lengths[0] :], ["\n"]
    members = {
        name: f" {' '.join(part)}"
        for name, part in zip([*WIKITEXT.values(), "wiki.test.tokens"], parts, strict=True)
    }
    _write_zip(
        folder / "wikitext-2-v1.zip", {f"wikitext-2/{name}": text.encode() for name, text in members.items()}
    )


def _write_zip(file: Path, members: Mapping[str, bytes]) -> None:
    """Write a zip without dates, with folders before their files."""
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
