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
ARCHIVED = ("cifar-10-binary", "idx", "tiny-imagenet")
IDX = {
    part: (f"{name}-images-idx3-ubyte.gz", f"{name}-labels-idx1-ubyte.gz")
    for part, name in (("train", "train"), ("validation", "t10k"))
}  # the archives of format idx: images and labels
NAMES_CLASSES = "tiny-imagenet"  # the format whose archives name the classes
LABELS_ARE_BYTES = ("cifar-10-binary", "idx")
BUNDLED = {"shape": [8, 8, 1], "classes": 10, "samples": 1797}  # scikit-learn's digits
FRESH = "fresh"  # the format of data sets that have no images: the worker draws every batch
FRESH_NAME = "synthetic-<height>x<width>x<channels>-<classes>[-<samples>]"
FRESH_SAMPLES = 10240
_FRESH = re.compile(r"synthetic-([1-9]\d{0,3})x([1-9]\d{0,3})x([1-9]\d{0,2})-([1-9]\d{0,4})(?:-([1-9]\d{0,8}))?")


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
    if _FRESH.fullmatch(name):
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
    if isinstance(entry["classes"], list) == (entry["format"] == NAMES_CLASSES):
        yield "classes", f"{expected} {'their number' if entry['format'] == NAMES_CLASSES else 'a list of names'}"
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


def class_count(entry: Mapping[str, Any]) -> int:
    """How many classes a data set has."""
    classes = entry["classes"]
    return classes if isinstance(classes, int) else len(classes)


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
    if found := _FRESH.fullmatch(name):
        height, width, channels, classes, samples = map(int, found.groups(default=str(FRESH_SAMPLES)))
        if classes < 2 or samples < 10:
            raise InputError(f"{where}: '{name}': expected at least 2 classes and 10 samples")
        return _fresh([height, width, channels], classes, samples)
    raise InputError(f"{where}: '{name}' is unknown; {_instead_of(name)}")


def _instead_of(name: str) -> str:
    """What to write in place of an unknown name; where a shape is meant, how it is written."""
    return f"expected {FRESH_NAME}" if name.startswith("synthetic-") else instead_of(name, [*datasets(), FRESH_NAME])


def _fresh(shape: list[int], classes: int, samples: int) -> dict[str, Any]:
    """The entry of a data set whose batches are drawn anew at every step; its validation part is a tenth of `samples`."""
    return {
        "title": f"Noise of {shape[0]} x {shape[1]} pixels, {shape[2]} channels, a fresh batch each step",
        "format": FRESH,
        "train_samples": samples,
        "validation_samples": samples // 10,
        "shape": shape,
        "classes": [str(number) for number in range(classes)],
        "licence": "none needed",
        "citation": "drawn while training",
    }
