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
from common.text import alternatives

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
            problem = "is empty" if table is None else f"holds {str(table)[:60]!r}"
            expected = "names of data sets, each with its entry"
            raise InputError("wrong-type", problem, file=shown(file), got=table, expected=expected)
        for name, entry in table.items():
            _lower_digests(entry)
            if name in entries:
                problem = f"is a data set of {shown(shipped)}"
                raise InputError(
                    "duplicate", problem, file=shown(file), key=name, got=name, hint="give it another name"
                )
            if used is None or name in used:
                _check_entry(name, entry, file, own=file is own)
            entries[name] = entry
    return entries


def _lower_digests(entry: Any) -> None:
    """Write the digests of an entry's files in small letters: programs print them in either."""
    files = entry.get("files") if isinstance(entry, dict) else None
    for file in files if isinstance(files, list) else ():
        if isinstance(file, dict):
            file |= {key: file[key].lower() for key in ("md5", "sha256") if isinstance(file.get(key), str)}


def _check_entry(name: str, entry: Any, file: Path, *, own: bool) -> None:
    """InputError for the first mistake in an entry; `own`: of a user's own file."""
    if any(pattern.fullmatch(name) for pattern in _FRESH):
        problem = "such a name is drawn, not read"
        raise InputError("reserved-name", problem, file=shown(file), key=name, got=name, hint="give it another name")
    check_value(name, schema("factors")["properties"]["dataset"], name, file)
    place = file.with_name(f"{file.name} ({name})")
    check(entry, "dataset", place)
    _check_dataset(entry, place)
    if own:
        _check_file_names(entry, place)


def _check_dataset(entry: Mapping[str, Any], file: Path) -> None:
    """InputError for the first mistake that no single key of a data set's entry shows."""
    for key, code, problem, fields in _mistakes(entry):
        raise InputError(code, problem, file=shown(file), key=key, **fields)


Mistake = tuple[str, str, str, dict[str, Any]]  # key, code, problem and further fields of an InputError


def _mistakes(entry: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes; each may assume that those before it were none."""
    archived = entry["format"] in ARCHIVED
    if ("files" in entry) + ("made_up" in entry) != archived:
        key = "made_up" if "made_up" in entry and not archived else "files"
        yield _unfit(entry, key, "either files or made_up: true" if archived else "neither files nor made_up")
    yield from _mistakes_of_samples(entry)
    names = [declared["name"] for declared in entry.get("files", [])]
    if len(set(names)) < len(names):
        twice = max(names, key=names.count)
        yield "files", "duplicate", f"two are called {twice}", {"got": twice, "hint": "name each once"}
    for i, declared in enumerate(entry.get("files", [])):
        if not {"md5", "sha256"} & set(declared):
            name = declared["name"]
            hint = f"say sha256: and what `sha256sum {name}` prints"
            yield f"files.{i}", "missing-key", f"{name} has neither md5 nor sha256", {"hint": hint}
    classes, samples = class_count(entry), entry["train_samples"] + entry["validation_samples"]
    if entry["format"] in LABELS_ARE_BYTES and classes > 256:
        yield _unfit(entry, "classes", "at most 256, since a label is one byte", classes)
    if entry["format"] == "tiny-imagenet" and entry["shape"][2] != 3:
        yield _unfit(entry, "shape", "3 channels", entry["shape"][2])
    if entry["format"] == "scikit-learn":
        for key, found in {"shape": entry["shape"], "classes": classes, "samples": samples}.items():
            if found != BUNDLED[key]:
                named = "train_samples and validation_samples" if key == "samples" else key
                yield _unfit(entry, named, str(BUNDLED[key]), found)


def _mistakes_of_samples(entry: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what is wrong with a sample's shape and label."""
    of_text = entry["format"] in TEXTS
    if len(entry["shape"]) != (1 if of_text else 3):
        yield _unfit(entry, "shape", "[length]" if of_text else "[height, width, channels]", entry["shape"])
    if ("vocabulary" in entry) != of_text:
        yield _unfit(entry, "vocabulary", "the number of different tokens" if of_text else "none")
    if entry["format"] == "text8" and entry["vocabulary"] != TEXT8_VOCABULARY:
        yield _unfit(entry, "vocabulary", f"{TEXT8_VOCABULARY} (a to z and the blank)", entry["vocabulary"])
    if ("classes" in entry) == of_text:
        yield _unfit(entry, "classes", "none: what follows is told" if of_text else "some")
    if not of_text and isinstance(entry["classes"], list) == (entry["format"] == NAMES_CLASSES):
        yield _unfit(entry, "classes", "their number" if entry["format"] == NAMES_CLASSES else "a list of names")


def _unfit(entry: Mapping[str, Any], key: str, expected: str, got: object = None) -> Mistake:
    """Return the mistake that a key is not what the entry's format needs; `got`: what of its value is wrong."""
    if got is None and key not in entry:
        return key, "missing-key", f"is missing for format {entry['format']}", {"expected": expected}
    problem = f"{'does' if got is None else f'{got} does'} not fit format {entry['format']}"
    return key, "unfit-for-format", problem, {"got": entry.get(key) if got is None else got, "expected": expected}


def _check_file_names(entry: Mapping[str, Any], file: Path) -> None:
    """The names by which a format's archives are told apart. Of the shipped table they are right (tests say so)."""
    if entry["format"] not in ARCHIVED or "made_up" in entry:
        return
    names = [declared["name"] for declared in entry["files"]]
    if entry["format"] == "idx":
        wanted = [name for pair in IDX.values() for name in pair]
        if set(names) != set(wanted):
            raise InputError(
                "unfit-for-format",
                f"the names {', '.join(names)} do not fit format idx",
                file=shown(file),
                key="files",
                got=names,
                expected=wanted,
                hint="the url of each may end differently",
            )
    elif len(names) != 1:
        problem = f"{len(names)} archives do not fit format {entry['format']}"
        raise InputError("unfit-for-format", problem, file=shown(file), key="files", got=len(names), expected="one")


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
def load_dataset(name: str, file: str = "data set", key: str = "") -> dict[str, Any]:
    """The entry of a data set, from a table or made of its name. InputError with `file` and `key` for an unknown one."""
    if name in datasets():
        if table_of(name) == OWN_DATASETS:  # tests say that what ships is right
            _check_entry(name, datasets()[name], OWN_DATASETS, own=True)
        return datasets()[name]
    for pattern in _FRESH:
        if found := pattern.fullmatch(name):
            told = {key: int(number) for key, number in found.groupdict().items() if number}
            told |= {"samples": told.get("samples", FRESH_SAMPLES)}
            if too_small := _too_small(told):
                raise InputError(
                    "out-of-range", f"'{name}' is too small", file=file, key=key, got=name, expected=too_small
                )
            return _fresh(told)
    raise InputError("unknown-name", f"'{name}' is unknown", file=file, key=key, got=name, **_alternatives(name))


def _alternatives(name: str) -> dict[str, Any]:
    """Return what to write in place of an unknown name; where one is meant that is drawn, how it is written."""
    if name.startswith("synthetic-"):
        _, what, *_ = name.split("-")
        meant = "images" if what[:1].isdigit() else what
        return {"expected": FRESH_NAMES[meant] if meant in FRESH_NAMES else " or ".join(FRESH_NAMES.values())}
    return alternatives(name, [*datasets(), *FRESH_NAMES.values()])


def _too_small(told: Mapping[str, int]) -> str:
    """Return what a data set that is drawn must have at least, '' where it has that."""
    samples, classes = told["samples"], told.get("classes", 0)
    if samples < 10 or ("classes" in told and classes < 2):
        return f"at least {'2 classes and ' if 'classes' in told else ''}10 samples"
    vocabulary = max(2, classes)
    return f"a vocabulary of at least {vocabulary}" if told.get("vocabulary", vocabulary) < vocabulary else ""


def _fresh(told: Mapping[str, int]) -> dict[str, Any]:
    """The entry of a data set whose batches are drawn anew at every step; its validation part is a tenth of its `samples`."""
    samples, classes = told["samples"], told.get("classes", 0)
    drawn: dict[str, Any]
    if "vocabulary" in told:
        length, vocabulary = told["length"], told["vocabulary"]
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
