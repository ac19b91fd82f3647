"""Pack a folder of images, or a text, into an archive for `config/datasets.yaml`, and print its entry.

Images are written in the binary format of CIFAR-10, a text in the format of WikiText. The same files always
give the same archive.
"""

import gzip
import io
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import InputError
from common.files import dump_yaml, written_whole
from datasets.formats import CIFAR, CIFAR_BATCHES, LINE_END, UNKNOWN, WIKITEXT, one_word
from datasets.lock import digests
from datasets.pictures import is_visible, read_picture

SHUFFLE_SEED = 1
MAX_CLASSES = 256  # a label is one byte


def pack_images(folder: Path, archive: Path, side: int, validation_share: float) -> dict[str, Any]:
    """Pack ``folder``/<class>/<image> into ``archive`` (tar.gz) and return its entry.

    Hidden files are skipped.

    Args:
        folder: Folder with one folder per class.
        archive: The file to write.
        side: Height and width of the packed images in pixels.
        validation_share: Share of the images for validation, chosen at random.

    Raises:
        InputError: If there are too few or too many classes, a class has no images, a file is not an image,
            or a part would have too few images.
    """
    folders = sorted(path for path in _visible_files(folder) if path.is_dir())
    classes = [one_word(path.name) for path in folders]
    if not 0 < len(set(classes)) == len(classes) <= MAX_CLASSES:
        problem = f"has {len(classes)} folders of classes, {len(set(classes))} with different names"
        raise _input_error(folder, "wrong-count", problem, f"1 to {MAX_CLASSES} folders with different names")
    records = []
    for label, class_folder in enumerate(folders):
        files = sorted(_visible_files(class_folder))
        if not files:
            raise _input_error(class_folder, "wrong-count", "has no picture", "at least one")
        records += [bytes([label]) + _pixels(file, side) for file in files]
    random.Random(SHUFFLE_SEED).shuffle(records)  # noqa: S311 (no secret)
    n_validation = round(validation_share * len(records))
    train = records[n_validation:]
    if len(train) < len(CIFAR_BATCHES) or not n_validation:
        problem = f"{len(records)} pictures make {len(train)} to train and {n_validation} to validate"
        raise _input_error(
            folder, "wrong-count", problem, f"at least {len(CIFAR_BATCHES)} to train and 1 to validate"
        )
    members = {name: b"".join(train[i :: len(CIFAR_BATCHES)]) for i, name in enumerate(CIFAR_BATCHES)}
    members |= {f"{CIFAR}/test_batch.bin": b"".join(records[:n_validation])}
    members |= {f"{CIFAR}/batches.meta.txt": "\n".join(classes).encode()}
    unpacked = io.BytesIO()
    with tarfile.open(fileobj=unpacked, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    with written_whole(archive) as partial:
        partial.write_bytes(gzip.compress(unpacked.getvalue(), mtime=0))
    return {
        **_entry("cifar-10-binary", archive, len(unpacked.getvalue())),
        "train_samples": len(train),
        "validation_samples": n_validation,
        "shape": [side, side, 3],
        "classes": classes,
    }


def pack_text(text: Path, archive: Path, length: int, validation_share: float) -> dict[str, Any]:
    """Pack the lines of a text into ``archive`` (zip) and return its entry; the last lines validate.

    Args:
        text: A file in UTF-8.
        archive: The file to write.
        length: Tokens per sequence.
        validation_share: Share of the lines for validation.

    Raises:
        InputError: If the file is not UTF-8, or too short for one sequence of each part.
    """
    try:
        with open(text, encoding="utf-8-sig") as file:
            lines = [line.split() for line in file]
    except OSError as error:
        raise _input_error(text, "unreadable", error.strerror or str(error), "a text in UTF-8") from None
    except UnicodeDecodeError as error:
        problem = f"has the byte {error.object[error.start]:#x} at {error.start}, which is not UTF-8"
        raise _input_error(text, "wrong-encoding", problem, "a text in UTF-8") from None
    n_validation = round(validation_share * len(lines))
    parts = {"train": lines[: len(lines) - n_validation], "validation": lines[len(lines) - n_validation :]}
    samples = {part: (sum(len(words) + 1 for words in own) - 1) // length for part, own in parts.items()}
    if min(samples.values()) < 1:
        problem = f"makes {samples['train']} sequences to train and {samples['validation']} to validate"
        raise _input_error(
            text, "wrong-count", problem, f"one of each at least, of more than {length} words and line ends"
        )
    contents = {
        WIKITEXT[part]: "".join(f" {' '.join(words)} \n" for words in own).encode()
        for part, own in parts.items()
    }
    with written_whole(archive) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in contents.items():
            packed.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return {
        **_entry("wikitext", archive, sum(map(len, contents.values()))),
        "train_samples": samples["train"],
        "validation_samples": samples["validation"],
        "shape": [length],
        "vocabulary": len({word for words in parts["train"] for word in words} | {LINE_END, UNKNOWN}),
    }


def _pixels(file: Path, side: int) -> bytes:
    """Return a picture, resized to a square, as bytes in CHW order."""
    picture = read_picture(file, file).convert("RGB").resize((side, side))
    return np.asarray(picture, np.uint8).transpose(2, 0, 1).tobytes()


def _visible_files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if is_visible(path)]
    except OSError as error:
        raise _input_error(folder, "unreadable", error.strerror or str(error), "a folder") from None


def _entry(form: str, archive: Path, unpacked_bytes: int) -> dict[str, Any]:
    """Return the first keys of an entry of `config/datasets.yaml`."""
    file = {
        "name": archive.name,
        "url": archive.resolve().as_uri(),
        "bytes": archive.stat().st_size,
        "unpacked_bytes": unpacked_bytes,
        "sha256": digests(archive)[1],
    }
    return {"title": archive.name.partition(".")[0], "format": form, "files": [file]}


def _input_error(file: Path, code: str, problem: str, expected: str) -> InputError:
    return InputError(code, problem, file=file, expected=expected)


def pack_dataset(
    kind: str, source: Path, name: str, size: int, validation_share: float, folder: Path
) -> None:
    """Pack images or a text for config/datasets.yaml, and print the entry.

    Args:
        kind: ``images`` (a folder with one folder of pictures per class) or ``text`` (the lines of a file).
        source: The folder or the file.
        name: Name of the data set.
        size: Height and width of pictures in pixels, or tokens per sequence.
        validation_share: Share of the samples for validation.
        folder: Folder for the archive.

    Raises:
        InputError: If an argument is invalid, or the source cannot be packed.
    """
    if size < 1:
        option = "--side" if kind == "images" else "--length"
        raise InputError("out-of-range", f"{size} is too small", file=option, got=size, expected="at least 1")
    if not 0 < validation_share < 1:
        expected = "a share between 0 and 1"
        problem = f"is {validation_share}"
        raise InputError(
            "out-of-range", problem, file="--validation-share", got=validation_share, expected=expected
        )
    if kind == "images":
        entry = pack_images(source, folder / f"{name}.tar.gz", size, validation_share)
    else:
        entry = pack_text(source, folder / f"{name}.zip", size, validation_share)
    print(dump_yaml({name: {**entry, "licence": "TODO", "citation": "TODO"}}), end="")
