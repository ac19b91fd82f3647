"""Read data sets from folders: pictures by class, WebDataset shards, Parquet files, and files of tokens.

The files are not copied; the entry of the data set has their digest. Samples are in the order of the files'
paths, compared as bytes, and within a file in its order, so the order does not depend on the file system.
One thread per core decodes pictures; their order is kept.
"""

import fnmatch
import hashlib
import itertools
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.cores import usable_cores
from common.errors import InputError
from common.files import digest_file, node_name
from datasets.archives import TAR_ERRORS
from datasets.fetch import Store
from datasets.formats import Block, Content, Entry, sequence_blocks
from datasets.pictures import crop_picture, is_visible, read_picture
from declared.datasets import PARQUET, PART_PATTERNS, TOKENS, class_count, kind, part_pattern

DECODED_PICTURES = 256  # pictures of one block
PICTURE_SUFFIXES = ("bmp", "gif", "jpeg", "jpg", "pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp")
# The header of an .idx file, and the types of tokens by its code
# (Megatron-LM, megatron/core/datasets/indexed_dataset.py).
MEGATRON = b"MMIDIDX\x00\x00" + np.array(1, "<u8").tobytes()
MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
# The type of tokens by magic number and version, the first two of 256 integers before the tokens. The third
# is the number of tokens (llm.c, dev/data/data_common.py).
LLM_C_TYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
LLM_C_HEADER_BYTES = 1024


@dataclass(frozen=True)
class Picture:
    """An encoded picture: its name for errors, its file or content, and its label."""

    name: str
    source: Path | bytes
    label: int


@dataclass(frozen=True)
class Folder:
    """A folder with the files of a data set.

    Attributes:
        path: The folder.
        names: Paths of the files of each part, relative to the folder, sorted.
        depth: Number of folders above the classes' folders, by part.
    """

    path: Path
    names: Mapping[str, tuple[str, ...]]
    depth: Mapping[str, int]

    def sha256(self) -> str:
        """Return the SHA-256 of what sha256sum prints for the files in the order of their paths."""
        names = sorted(itertools.chain.from_iterable(self.names.values()), key=os.fsencode)
        with ThreadPoolExecutor(usable_cores()) as pool:
            digests = pool.map(lambda name: digest_file(self.path / name), names)
            lines = [f"{digest}  {name}\n" for digest, name in zip(digests, names, strict=True)]
        return hashlib.sha256(os.fsencode("".join(lines))).hexdigest()

    def first(self, part: str) -> Path:
        """Return the first file of a part."""
        return self.path / self.names[part][0]

    def error(self, code: str, problem: str, expected: str, name: str = "", got: object = None) -> InputError:
        """Return an error about the folder, or about the file ``name`` in it."""
        return InputError(code, problem, file=self.path / name, expected=expected, got=got)


def list_folder(path: Path, entry: Entry) -> Folder:
    """Return the visible files of both parts below a folder.

    A file belongs to a part if its path, or the path of a folder that contains it, matches the part's
    pattern.

    Raises:
        InputError: If the folder or the files of a part are missing, or a file belongs to both parts.
        OSError: If a folder cannot be read.
    """
    if not path.is_dir():
        raise InputError("missing-folder", f"is no folder on {node_name()}", file=path)
    names = []
    for folder, folders, files in os.walk(path, onerror=_raise, followlinks=True):
        folders[:] = [name for name in folders if is_visible(Path(name))]
        relative = Path(folder).relative_to(path)
        names += [str(relative / name) for name in files if is_visible(Path(name))]
    names.sort(key=os.fsencode)
    patterns = {part: part_pattern(entry, part).split("/") for part in PART_PATTERNS}
    parts = {
        part: tuple(name for name in names if _matches(name, pattern)) for part, pattern in patterns.items()
    }
    listed = Folder(path, parts, {part: len(pattern) for part, pattern in patterns.items()})
    for part, members in parts.items():
        if not members:
            problem = f"has no file of the part {part}"
            raise listed.error(
                "missing-file", problem, f"{part_pattern(entry, part)} ({part}_files)", got=part
            )
    if shared := set(parts["train"]) & set(parts["validation"]):
        name = min(shared)
        raise listed.error("duplicate", "matches the patterns of both parts", "one of them", name)
    return listed


def _raise(error: OSError) -> None:
    raise error


def _matches(name: str, pattern: list[str]) -> bool:
    parts = name.split("/")
    return len(parts) >= len(pattern) and all(map(fnmatch.fnmatchcase, parts, pattern))


def verified_folder(dataset: str, entry: Entry, store: Store | None) -> Folder:
    """Return the folder of a data set: the site's, if it has one, or else the entry's.

    Raises:
        InputError: If the folder is missing, or its files do not have the entry's SHA-256.
    """
    own = store.folder / dataset if store and store.folder else None
    folder = list_folder(own if own and own.is_dir() else Path(entry["folder"]), entry)
    if (sha256 := folder.sha256()) != entry["sha256"]:
        n_files = sum(map(len, folder.names.values()))
        problem = f"has the SHA-256 {sha256}, of {n_files} files"
        raise folder.error("checksum-mismatch", problem, f"{entry['sha256']} ({dataset})", got=sha256)
    return folder


def read_folder(entry: Entry, folder: Folder) -> Content:
    """Return class names and samples of a data set in a folder."""
    if kind(entry) == TOKENS:
        sequences = {
            part: read_sequences(TOKEN_ARRAYS[entry["format"]](folder, part), entry["shape"][0])
            for part in PART_PATTERNS
        }
        return Content([], *(limit_samples(own, entry[f"{part}_samples"]) for part, own in sequences.items()))
    train, validation = (
        decode_pictures(PICTURES[entry["format"]](folder, part), entry["shape"]) for part in PART_PATTERNS
    )
    return Content(class_names(entry, folder), train, validation)


def class_names(entry: Entry, folder: Folder) -> list[str]:
    """Return class names: those of folders, of Parquet metadata or of the entry, or else numbers.

    Raises:
        InputError: If the number of folders contradicts the entry.
    """
    if entry["format"] == "image-folder":
        classes = class_folders(folder)
        if len(classes) != entry["classes"]:
            problem = f"has {len(classes)} folders of classes"
            raise folder.error("contradicts-entry", problem, str(entry["classes"]), got=len(classes))
        return classes
    names = entry["classes"]
    if entry["format"] == PARQUET:
        from datasets import parquet

        if len(own := parquet.class_names(folder.first("train"))) == names:
            return own
    return list(names) if isinstance(names, list) else [str(label) for label in range(class_count(entry))]


def class_folders(folder: Folder) -> list[str]:
    """Return the names of the training part's class folders, sorted; the index of a name is its label.

    Raises:
        InputError: If a file is not in the folder of a class.
    """
    return sorted({_class_of(folder, "train", name) for name in folder.names["train"]}, key=os.fsencode)


def _class_of(folder: Folder, part: str, name: str) -> str:
    parts = name.split("/")
    if len(parts) < folder.depth[part] + 2:
        raise folder.error("unknown-class", "lies in no folder of a class", "CLASS/PICTURE", name)
    return parts[folder.depth[part]]


def list_pictures(folder: Folder, part: str) -> Iterator[Picture]:
    """Yield the pictures of a part: all files below the folders of its classes.

    Raises:
        InputError: If the validation part has a class that the training part lacks.
    """
    label = {name: number for number, name in enumerate(class_folders(folder))}
    for name in folder.names[part]:
        class_name = _class_of(folder, part, name)
        if class_name not in label:
            raise folder.error("unknown-class", f"is of the class {class_name}", "a class that trains", name)
        yield Picture(str(folder.path / name), folder.path / name, label[class_name])


def read_shards(folder: Folder, part: str) -> Iterator[Picture]:
    """Yield the pictures of WebDataset shards: consecutive members with the same key, a picture and a .cls.

    The key of a member is its path up to the first dot of its name; the rest is its extension
    (webdataset/tariterators.py, `base_plus_ext`).

    Raises:
        InputError: If a shard cannot be read, or a sample has no picture or no class.
    """
    for shard in folder.names[part]:
        for key, members in itertools.groupby(_members(folder, shard), key=lambda member: member[0]):
            fields = [(extension, content) for _, extension, content in members]
            contents = dict(fields)
            pictures = [content for extension, content in contents.items() if extension in PICTURE_SUFFIXES]
            label = contents.get("cls", b"").strip()
            is_labelled = re.fullmatch(rb"[0-9]{1,9}", label)
            if len(pictures) != 1 or not is_labelled or len(contents) < len(fields):
                problem = f"sample {key!r} has the extensions {', '.join(name for name, _ in fields)}"
                raise folder.error("wrong-format", problem, "a picture and a number in .cls", shard, key)
            yield Picture(f"{folder.path / shard}/{key}", pictures[0], int(label))


def _members(folder: Folder, shard: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield key, extension and content of each member of a shard, which may be compressed."""
    try:
        with tarfile.open(folder.path / shard, mode="r|*") as tar:
            for member in tar:
                path, _, name = member.name.rpartition("/")
                key, point, extension = name.partition(".")
                file = tar.extractfile(member) if member.isreg() and key and point else None
                if file is not None:
                    yield f"{path}/{key}", extension.lower(), file.read()
    except TAR_ERRORS as error:
        raise folder.error("broken-archive", f"cannot be read: {error}", "a tar file", shard) from None


def read_parquet(folder: Folder, part: str) -> Iterator[Picture]:
    """Yield the pictures of Parquet files."""
    from datasets import parquet  # PyArrow takes 0.2 s to import

    for name in folder.names[part]:
        for row, (content, label) in enumerate(parquet.read_pictures(folder.path / name)):
            yield Picture(f"{folder.path / name}, row {row}", content, label)


PICTURES: Mapping[str, Callable[[Folder, str], Iterator[Picture]]] = {
    "image-folder": list_pictures,
    "webdataset": read_shards,
    "parquet": read_parquet,
}


def decode_pictures(pictures: Iterable[Picture], shape: Sequence[int]) -> Iterator[Block]:
    """Yield blocks of decoded pictures, uint8 [n, H, W, C], and their labels, in order."""

    def decode(picture: Picture) -> np.ndarray:
        return crop_picture(read_picture(picture.source, picture.name), shape)

    remaining = iter(pictures)
    with ThreadPoolExecutor(usable_cores()) as pool:
        while block := list(itertools.islice(remaining, DECODED_PICTURES)):
            images = np.stack(list(pool.map(decode, block)))
            yield images, np.array([picture.label for picture in block], dtype=np.int64)


def read_sequences(arrays: Iterable[np.ndarray], length: int) -> Iterator[Block]:
    """Yield the sequences of each file and their labels; a rest that is too short for one is left out."""
    for tokens in arrays:
        yield from sequence_blocks(tokens, length)


def limit_samples(blocks: Iterable[Block], samples: int) -> Iterator[Block]:
    """Yield the blocks up to a number of samples."""
    for inputs, labels in blocks:
        yield inputs[:samples], labels[:samples]
        samples -= len(inputs)
        if samples <= 0:
            return


def token_arrays(folder: Folder, part: str) -> Iterator[np.ndarray]:
    """Yield the tokens of each .bin file of a part, mapped into memory.

    Raises:
        InputError: If a file is not one of nanoGPT, llm.c or Megatron.
    """
    names = set(folder.names[part])
    for name in folder.names[part]:
        stem, point, suffix = name.rpartition(".")
        if suffix == "idx" and f"{stem}.bin" in names:
            continue
        if not point or suffix != "bin":
            raise folder.error(
                "wrong-format", "is no file of tokens", ".bin, of Megatron with its .idx", name
            )
        index = folder.path / f"{stem}.idx" if f"{stem}.idx" in names else None
        yield _map_tokens(folder, name, index)


def _map_tokens(folder: Folder, name: str, index: Path | None) -> np.ndarray:
    file = folder.path / name
    start, stored, n_tokens = 0, "<u2", None  # nanoGPT, data/openwebtext/prepare.py: tokens and nothing else
    with open(file, "rb") as content:
        magic, version, declared = np.frombuffer(content.read(12).ljust(12, b"\0"), "<i4").tolist()
    if index is not None:
        stored, n_tokens = _read_index(folder, index)
    elif (magic, version) in LLM_C_TYPES:
        start, stored, n_tokens = LLM_C_HEADER_BYTES, LLM_C_TYPES[magic, version], declared
    elif versions := [with_magic for number, with_magic in LLM_C_TYPES if number == magic]:
        problem = f"has llm.c's magic number {magic} with version {version}"
        raise folder.error("wrong-format", problem, f"version {versions[0]}", name, version)
    n_bytes, size = file.stat().st_size - start, np.dtype(stored).itemsize
    if n_bytes <= 0 or n_bytes % size or n_tokens not in (None, n_bytes // size):
        expected = f"{n_tokens or 'whole'} tokens of {size} bytes"
        raise folder.error("wrong-size", f"has {n_bytes} bytes of tokens", expected, name, n_bytes)
    return np.memmap(file, stored, mode="r", offset=start)


def _read_index(folder: Folder, index: Path) -> tuple[str, int]:
    """Return the type and the number of tokens from an .idx file of Megatron."""
    content = index.read_bytes()
    code = content[17] if len(content) >= 34 else 0
    n_sequences = int.from_bytes(content[18:26], "little")
    if content[:17] != MEGATRON or code not in MEGATRON_TYPES or 34 + 4 * n_sequences > len(content):
        name = str(index.relative_to(folder.path))
        raise folder.error("wrong-format", "is no index of tokens", "an .idx of Megatron, version 1", name)
    lengths = np.frombuffer(content, "<i4", offset=34, count=n_sequences)
    return MEGATRON_TYPES[code], int(lengths.sum(dtype=np.int64))


def token_columns(folder: Folder, part: str) -> Iterator[np.ndarray]:
    """Yield the tokens of each Parquet file of a part."""
    from datasets import parquet  # PyArrow takes 0.2 s to import

    for name in folder.names[part]:
        yield parquet.read_tokens(folder.path / name)


TOKEN_ARRAYS: Mapping[str, Callable[[Folder, str], Iterator[np.ndarray]]] = {
    "token-files": token_arrays,
    "parquet": token_columns,
}
