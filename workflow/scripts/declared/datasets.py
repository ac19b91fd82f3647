"""The table of data sets: its entries, a user's own beside them, and those that are made of a name.

Read while Snakemake parses: the standard library, and nothing that is slow to import. Keys hold the entries themselves, so
this module is no part of them.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, load_yaml, shown
from common.schemas import check, check_value, schema
from common.text import instead_of

DATASETS = CHECKOUT / "workflow" / "scripts" / "datasets" / "table.yaml"
OWN_DATASETS = CHECKOUT / "config" / "datasets.yaml"
IMAGES, TOKENS = "images", "tokens"  # what a data set consists of
CLASS, NEXT = "class", "next"  # what the labels of samples are
TEXTS = ("text8", "wikitext")  # the formats whose archives are texts: what follows a token is to be told
ARCHIVED = ("cifar-10-binary", "idx", "tiny-imagenet", *TEXTS)
IDX = {
    part: (f"{name}-images-idx3-ubyte.gz", f"{name}-labels-idx1-ubyte.gz")
    for part, name in (("train", "train"), ("validation", "t10k"))
}  # the archives of format idx: images and labels
NAMES_CLASSES = "tiny-imagenet"  # the format whose archives name the classes
LABELS_ARE_BYTES = ("cifar-10-binary", "idx")
BUNDLED = {"shape": [8, 8, 1], "classes": 10, "samples": 1797}  # scikit-learn's digits
TEXT8_VOCABULARY = 27  # a to z and the blank
FRESH = "fresh"  # the format of data sets that have no files: the worker draws every batch
FRESH_NAMES = {
    "images": "synthetic-<height>x<width>x<channels>-<classes>[-<samples>]",
    "tokens": "synthetic-tokens-<vocabulary>-<length>[-<samples>]",
    "text": "synthetic-text-<vocabulary>-<length>-<classes>[-<samples>]",
}
FRESH_SAMPLES = 10240
_SAMPLES = r"(?:-(?P<samples>[1-9]\d{0,8}))?"
_CLASSES = r"(?P<classes>[1-9]\d{0,4})"
_IMAGES = r"(?P<height>[1-9]\d{0,3})x(?P<width>[1-9]\d{0,3})x(?P<channels>[1-9]\d{0,2})"
_TOKENS = r"(?P<vocabulary>[1-9]\d{0,6})-(?P<length>[1-9]\d{0,5})"
_FRESH = [
    re.compile(rf"synthetic-{_IMAGES}-{_CLASSES}{_SAMPLES}"),
    re.compile(rf"synthetic-tokens-{_TOKENS}{_SAMPLES}"),
    re.compile(rf"synthetic-text-{_TOKENS}-{_CLASSES}{_SAMPLES}"),
]


@functools.cache
def datasets() -> dict[str, dict[str, Any]]:
    """The table of data sets, and after it a user's own, from config/datasets.yaml: name -> its entry, unchecked: a mistake stops
    those who use the data set (`load_dataset`), and no others."""
    return read_datasets(DATASETS, OWN_DATASETS, used=())


def read_datasets(shipped: Path, own: Path, used: Collection[str] | None = None) -> dict[str, dict[str, Any]]:
    """The entries of the table `shipped` and of the file `own`, which may be absent. InputError in one line for a wrong entry among
    those that are `used`, by default all."""
    tables = {file: load_yaml(file) for file in (shipped, own) if file is shipped or file.is_file()}
    entries: dict[str, dict[str, Any]] = {}
    for file, table in tables.items():
        if not isinstance(table, dict):
            found = "is empty" if table is None else f"holds {str(table)[:60]!r}"
            raise InputError(f"{shown(file)}: {found}; expected names of data sets, each with its entry")
        for name, entry in table.items():
            if name in entries:
                raise InputError(f"{shown(file)}: {name}: is a data set of {shown(shipped)}; give it another name")
            if used is None or name in used:
                _check_entry(name, entry, file, own=file is own)
            entries[name] = entry
    return entries


def _check_entry(name: str, entry: Any, file: Path, *, own: bool) -> None:
    """InputError for the first mistake in an entry; `own`: of a user's own file."""
    if any(pattern.fullmatch(name) for pattern in _FRESH):
        raise InputError(f"{shown(file)}: {name}: such a name is drawn, not read; give it another name")
    check_value(name, schema("factors")["properties"]["dataset"], name, file)
    place = file.with_name(f"{file.name} ({name})")
    check(entry, "dataset", place)
    _check_dataset(entry, place)
    if own:
        _check_file_names(entry, place)


def _check_dataset(entry: Mapping[str, Any], file: Path) -> None:
    """InputError for the first mistake that no single key of a data set's entry shows."""
    for key, why in _mistakes(entry):
        raise InputError(f"{shown(file)}: {key}: {why}")


def _mistakes(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Key and complaint; each may assume that those before it were none."""
    archived, expected = entry["format"] in ARCHIVED, f"with format {entry['format']} expected"
    if ("files" in entry) + ("made_up" in entry) != archived:
        yield "files", f"{expected} {'either files or made_up: true' if archived else 'neither files nor made_up'}"
    yield from _mistakes_of_samples(entry, expected)
    names = [declared["name"] for declared in entry.get("files", [])]
    if len(set(names)) < len(names):
        yield "files", f"two are called {max(names, key=names.count)}; name each once"
    for i, declared in enumerate(entry.get("files", [])):
        if not {"md5", "sha256"} & set(declared):
            name = declared["name"]
            yield f"files.{i}", f"{name} has neither md5 nor sha256; say sha256: and what `sha256sum {name}` prints"
    classes, samples = class_count(entry), entry["train_samples"] + entry["validation_samples"]
    if entry["format"] in LABELS_ARE_BYTES and classes > 256:
        yield "classes", f"{expected} at most 256, since a label is one byte, not {classes}"
    if entry["format"] == "tiny-imagenet" and entry["shape"][2] != 3:
        yield "shape", f"{expected} 3 channels, not {entry['shape'][2]}"
    if entry["format"] == "scikit-learn":
        for key, found in {"shape": entry["shape"], "classes": classes, "samples": samples}.items():
            if found != BUNDLED[key]:
                named = "train_samples and validation_samples" if key == "samples" else key
                yield named, f"{expected} {BUNDLED[key]}, not {found}"


def _mistakes_of_samples(entry: Mapping[str, Any], expected: str) -> Iterator[tuple[str, str]]:
    """What is wrong with a sample's shape and label."""
    of_text = entry["format"] in TEXTS
    if len(entry["shape"]) != (1 if of_text else 3):
        yield "shape", f"{expected} {'[length]' if of_text else '[height, width, channels]'}, not {entry['shape']}"
    if ("vocabulary" in entry) != of_text:
        yield "vocabulary", f"{expected} {'the number of different tokens' if of_text else 'none'}"
    if entry["format"] == "text8" and entry["vocabulary"] != TEXT8_VOCABULARY:
        yield "vocabulary", f"{expected} {TEXT8_VOCABULARY} (a to z and the blank), not {entry['vocabulary']}"
    if ("classes" in entry) == of_text:
        yield "classes", f"{expected} {'none: what follows is told' if of_text else 'some'}"
    if not of_text and isinstance(entry["classes"], list) == (entry["format"] == NAMES_CLASSES):
        yield "classes", f"{expected} {'their number' if entry['format'] == NAMES_CLASSES else 'a list of names'}"


def _check_file_names(entry: Mapping[str, Any], file: Path) -> None:
    """The names by which a format's archives are told apart. Of the shipped table they are right (tests say so)."""
    if entry["format"] not in ARCHIVED or "made_up" in entry:
        return
    names = [declared["name"] for declared in entry["files"]]
    if entry["format"] == "idx":
        wanted = [name for pair in IDX.values() for name in pair]
        if set(names) != set(wanted):
            raise InputError(
                f"{shown(file)}: files: with format idx expected the names {', '.join(wanted)}, not {', '.join(names)}; "
                "the url of each may end differently"
            )
    elif len(names) != 1:
        raise InputError(f"{shown(file)}: files: with format {entry['format']} expected one archive, not {len(names)}")


def kind(entry: Mapping[str, Any]) -> str:
    """What a data set consists of: IMAGES [height, width, channels], or TOKENS, sequences [length] of numbers below `vocabulary`."""
    return TOKENS if "vocabulary" in entry else IMAGES


def targets(entry: Mapping[str, Any]) -> str:
    """What labels are: CLASS, one for a sample, or NEXT, the token that follows each of a sample's tokens."""
    return CLASS if "classes" in entry else NEXT


def class_count(entry: Mapping[str, Any]) -> int:
    """How many classes a model for the data set tells apart: those of samples, or the tokens that may follow."""
    classes = entry["vocabulary"] if targets(entry) == NEXT else entry["classes"]
    return classes if isinstance(classes, int) else len(classes)


def token_bytes(vocabulary: int) -> int:
    """Size of a prepared token: the smallest unsigned integer that holds every one."""
    return next(size for size in (1, 2, 4) if vocabulary <= 256**size)


def sample_name(entry: Mapping[str, Any]) -> str:
    """What people call a sample of the data set, in the plural."""
    return "sequences" if kind(entry) == TOKENS else "images"


@functools.cache
def table_of(dataset: str) -> Path:
    """The file that has a data set's entry: a user's own where it is not shipped."""
    return DATASETS if dataset in load_yaml(DATASETS) else OWN_DATASETS


@functools.cache
def load_dataset(name: str, where: str = "data set") -> dict[str, Any]:
    """The entry of a data set, from a table or made of its name. InputError, beginning with `where`, for an unknown one."""
    if name in datasets():
        if table_of(name) == OWN_DATASETS:  # tests say that what ships is right
            _check_entry(name, datasets()[name], OWN_DATASETS, own=True)
        return datasets()[name]
    for pattern in _FRESH:
        if found := pattern.fullmatch(name):
            told = {key: int(number) for key, number in found.groupdict().items() if number}
            return _fresh({"samples": FRESH_SAMPLES, **told}, f"{where}: '{name}'")
    raise InputError(f"{where}: '{name}' is unknown; {_instead_of(name)}")


def _instead_of(name: str) -> str:
    """What to write in place of an unknown name; where one is meant that is drawn, how it is written."""
    if name.startswith("synthetic-"):
        _, what, *_ = name.split("-")
        meant = "images" if what[:1].isdigit() else what
        return f"expected {FRESH_NAMES[meant] if meant in FRESH_NAMES else ' or '.join(FRESH_NAMES.values())}"
    return instead_of(name, [*datasets(), *FRESH_NAMES.values()])


def _fresh(told: Mapping[str, int], where: str) -> dict[str, Any]:
    """The entry of a data set whose batches are drawn anew at every step; its validation part is a tenth of its `samples`.
    InputError, beginning with `where`, for one that cannot be drawn."""
    samples, classes = told["samples"], told.get("classes", 0)
    if samples < 10 or ("classes" in told and classes < 2):
        raise InputError(f"{where}: expected at least {'2 classes and ' if 'classes' in told else ''}10 samples")
    drawn: dict[str, Any]
    if "vocabulary" in told:
        length, vocabulary = told["length"], told["vocabulary"]
        if vocabulary < max(2, classes):
            raise InputError(f"{where}: expected a vocabulary of at least {max(2, classes)}")
        what = f"Texts of {length} tokens, {classes} classes" if classes else f"Sequences of {length} tokens"
        title, drawn = f"{what}, a vocabulary of {vocabulary}", {"shape": [length], "vocabulary": vocabulary}
    else:
        shape = [told["height"], told["width"], told["channels"]]
        title, drawn = f"Noise of {shape[0]} x {shape[1]} pixels, {shape[2]} channels", {"shape": shape}
    if classes:
        drawn["classes"] = [str(number) for number in range(classes)]
    return {
        "title": f"{title}, a fresh batch each step",
        "format": FRESH,
        "train_samples": samples,
        "validation_samples": samples // 10,
        **drawn,
        "licence": "none needed",
        "citation": "drawn while training",
    }
