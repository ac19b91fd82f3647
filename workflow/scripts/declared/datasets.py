"""Read and check the tables of data sets, and build the entries of synthetic ones from their names.

Read while Snakemake parses: the standard library, and nothing that is slow to import. Keys hold the entries
themselves, so this module is no part of them.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from common.errors import InputError
from common.files import CHECKOUT, display_path, load_yaml
from common.text import alternatives
from common.written import Keys, Maybe, Rules, key, optional, parse
from declared.factors import level_type
from models.graph import N_CATEGORIES, N_COUNTS

DATASETS = CHECKOUT / "workflow" / "scripts" / "datasets" / "table.yaml"
OWN_DATASETS = CHECKOUT / "config" / "datasets.yaml"
IMAGES, TOKENS, ROWS = "images", "tokens", "rows"  # what a data set consists of
CLASS, PIXEL, CLICK, NEXT = "class", "pixel", "click", "next"  # what the labels of samples are
TEXTS = ("text8", "wikitext")  # the formats whose archives are texts: the task is to predict the next token
ARCHIVED = ("cifar-10-binary", "idx", "tiny-imagenet", *TEXTS)
TOKENS_FORMAT, PARQUET = "token-files", "parquet"
# The formats whose files are read where they lie.
FOLDERS = ("image-folder", "webdataset", TOKENS_FORMAT, PARQUET)
PART_PATTERNS = {"train": "train*", "validation": "val*"}  # defaults of train_files and validation_files
# The archives of format idx: images and labels.
IDX = {
    part: (f"{name}-images-idx3-ubyte.gz", f"{name}-labels-idx1-ubyte.gz")
    for part, name in (("train", "train"), ("validation", "t10k"))
}
NAMES_CLASSES = ("tiny-imagenet", "image-folder")  # the formats whose files name the classes
LABELS_ARE_BYTES = ("cifar-10-binary", "idx")
BUNDLED = {"shape": [8, 8, 1], "classes": 10, "samples": 1797}  # scikit-learn's digits
TEXT8_VOCABULARY = 27  # a to z and the blank
FRESH = "fresh"  # the format of data sets that have no files: the worker draws every batch
FRESH_NAMES = {
    "images": "synthetic-<height>x<width>x<channels>-<classes>[-<samples>]",
    "regions": "synthetic-regions-<height>x<width>x<channels>-<classes>[-<samples>]",
    "tokens": "synthetic-tokens-<vocabulary>-<length>[-<samples>]",
    "clicks": "synthetic-clicks-<values>[-<samples>]",
    "text": "synthetic-text-<vocabulary>-<length>-<classes>[-<samples>]",
}
FRESH_SAMPLES = 10240
MAX_CLASSES = 10**7  # of samples, and tokens of a vocabulary
_SAMPLES = r"(?:-(?P<samples>[1-9]\d{0,8}))?"
_CLASSES = r"(?P<classes>[1-9]\d{0,4})"
_IMAGES = r"(?P<height>[1-9]\d{0,3})x(?P<width>[1-9]\d{0,3})x(?P<channels>[1-9]\d{0,2})"
_TOKENS = r"(?P<vocabulary>[1-9]\d{0,6})-(?P<length>[1-9]\d{0,5})"
_FRESH = {
    "images": re.compile(rf"synthetic-{_IMAGES}-{_CLASSES}{_SAMPLES}"),
    "regions": re.compile(rf"synthetic-regions-{_IMAGES}-{_CLASSES}{_SAMPLES}"),
    "tokens": re.compile(rf"synthetic-tokens-{_TOKENS}{_SAMPLES}"),
    "clicks": re.compile(rf"synthetic-clicks-(?P<values>[1-9]\d{{0,6}}){_SAMPLES}"),
    "text": re.compile(rf"synthetic-text-{_TOKENS}-{_CLASSES}{_SAMPLES}"),
}


Address = Annotated[
    str, Rules("an http://, https:// or file:/// address", pattern=r"^(https?://|file:///)[^\s]+\Z")
]
Count = Annotated[int, Rules(ge=1)]
PathPattern = Annotated[str, Rules("a pattern", pattern=r"^[^/\0\n]+(/[^/\0\n]+)*\Z")]


@dataclass(frozen=True, kw_only=True)
class ArchiveKeys(Keys):
    """An entry of the key `files`."""

    name: str = key(
        "file name that the format requires; only the url may end with another name",
        max_length=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z",
    )
    url: Maybe[Address] = optional(
        "an http://, https:// or file:/// address; leave it out where only the site's folder or mirror has "
        "the file"
    )
    mirrors: tuple[Address, ...] = key("further addresses of the same file", default=())
    bytes: Count = key("size of the file; a download that is larger is stopped")
    unpacked_bytes: Count = key("largest size after unpacking; unpacking stops beyond it")
    md5: Maybe[str] = optional("published MD5, 32 hex digits", pattern=r"^[0-9a-f]{32}\Z")
    sha256: Maybe[str] = optional(
        "SHA-256, 64 hex digits, as sha256sum prints it", pattern=r"^[0-9a-f]{64}\Z"
    )


@dataclass(frozen=True, kw_only=True)
class DatasetKeys(Keys):
    """The keys of a data set in workflow/scripts/datasets/table.yaml or config/datasets.yaml."""

    title: str = key("the data set, in words")
    format: Literal[
        "cifar-10-binary",
        "idx",
        "tiny-imagenet",
        "text8",
        "wikitext",
        "image-folder",
        "webdataset",
        "token-files",
        "parquet",
        "scikit-learn",
        "patterns",
    ] = key(
        "format of the archives. cifar-10-binary: a tar.gz that unpacks to a folder cifar-10-batches-bin "
        "with data_batch_1.bin to data_batch_5.bin, test_batch.bin, batches.meta.txt. idx: the four files "
        "of MNIST, train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, "
        "t10k-labels-idx1-ubyte.gz. tiny-imagenet: a zip that unpacks to a folder tiny-imagenet-200 with "
        "wnids.txt, words.txt, train/, val/. text8: a zip with one file, a text of the letters a to z and "
        "blanks. wikitext: a zip with the files wiki.train.tokens and wiki.valid.tokens, texts of words "
        "between blanks. Of a folder: image-folder (pictures in a folder for each class, as torchvision's "
        "ImageFolder), webdataset (tar files of pictures and .cls), token-files (.bin of nanoGPT, llm.c or "
        "Megatron), parquet (of Hugging Face: pictures, or tokens, with a vocabulary). Without "
        "files: scikit-learn (bundled with it), patterns (generated)"
    )
    made_up: Maybe[Literal[True]] = optional(
        "the archives are generated by datasets/made_up.py, in the format of the original"
    )
    files: tuple[ArchiveKeys, ...] = key(
        "the archives; each needs md5 or sha256, or both", default=(), min_length=1
    )
    folder: Maybe[Annotated[str, Rules("an absolute path", pattern=r"^/[^\0\n]*\Z")]] = optional(
        "with image-folder, webdataset, token-files and parquet: the folder of the files, on every site that "
        "has no folder of this data set in its datasets.folder"
    )
    sha256: Maybe[str] = optional(
        "SHA-256 of what sha256sum prints for the files of the folder, as ./ringside declare prints it",
        pattern=r"^[0-9a-f]{64}\Z",
    )
    train_files: Maybe[PathPattern] = optional(
        "pattern of the files, or folders of files, that train; default: train*"
    )
    validation_files: Maybe[PathPattern] = optional(
        "pattern of the files, or folders of files, that validate; default: val*"
    )
    train_samples: Count = key("number of training images, or sequences of tokens")
    validation_samples: Count = key("number of validation images, or sequences")
    shape: Annotated[tuple[Count, ...], Rules(min_length=1, max_length=3)] = key(
        "height, width, channels of images; with texts and token-files the tokens of a sequence, one number"
    )
    vocabulary: Maybe[int] = optional(
        "with texts and token-files: number of different tokens, at least; of text8 27", ge=2, le=MAX_CLASSES
    )
    classes: Maybe[
        Annotated[tuple[Annotated[str, Rules("a name", pattern=r"\S")], ...], Rules(min_length=2)]
        | Annotated[int, Rules(ge=2, le=MAX_CLASSES)]
    ] = optional(
        "names of the classes in the order of their labels; for tiny-imagenet and image-folder their number, "
        "since the files have the names; for webdataset and parquet either; with texts and token-files none"
    )
    licence: str = key("licence or terms of use")
    citation: str = key("publication to cite")


@functools.cache
def datasets() -> dict[str, dict[str, Any]]:
    """Return the unchecked entries of the shipped table and of config/datasets.yaml by name.

    A mistake stops only studies that use the data set (``load_dataset``).
    """
    return read_datasets(DATASETS, OWN_DATASETS, used=())


def read_datasets(shipped: Path, own: Path, used: Collection[str] | None = None) -> dict[str, dict[str, Any]]:
    """Return the entries of the shipped table and of a user's own file, which may be missing.

    Raises:
        InputError: If an entry among ``used`` (None: all) is wrong.
    """
    tables = {file: load_yaml(file) for file in (shipped, own) if file is shipped or file.is_file()}
    entries: dict[str, dict[str, Any]] = {}
    for file, table in tables.items():
        if not isinstance(table, dict):
            problem = "is empty" if table is None else f"holds {str(table)[:60]!r}"
            expected = "names of data sets, each with its entry"
            raise InputError("wrong-type", problem, file=file, got=table, expected=expected)
        for name, entry in table.items():
            _lower_digests(entry)
            if name in entries:
                problem = f"is a data set of {display_path(shipped)}"
                raise InputError(
                    "duplicate",
                    problem,
                    file=file,
                    key=name,
                    got=name,
                    hint="give it another name",
                )
            if used is None or name in used:
                check_entry(name, entry, file, own=file is own)
            entries[name] = entry
    return entries


def _lower_digests(entry: Any) -> None:
    """Convert the digests of an entry to lower case, because programs print either case."""
    files = entry.get("files") if isinstance(entry, dict) else None
    for file in [entry, *(files if isinstance(files, list) else ())]:
        if isinstance(file, dict):
            file |= {key: file[key].lower() for key in ("md5", "sha256") if isinstance(file.get(key), str)}


def check_entry(name: str, entry: Any, file: Path, *, own: bool) -> None:
    """Raise InputError for the first mistake in an entry; ``own`` entries come from config/datasets.yaml."""
    if any(pattern.fullmatch(name) for pattern in _FRESH.values()):
        problem = "such a name is drawn, not read"
        raise InputError("reserved-name", problem, file=file, key=name, got=name, hint="give it another name")
    parse(level_type("dataset"), name, file, name)
    place = file.with_name(f"{file.name} ({name})")
    parse(DatasetKeys, entry, place)
    _check_dataset(entry, place)
    if own:
        _check_file_names(entry, place)


def _check_dataset(entry: Mapping[str, Any], file: Path) -> None:
    """Raise InputError for the first contradiction between keys of an entry."""
    for key_path, code, problem, fields in _mistakes(entry):
        raise InputError(code, problem, file=file, key=key_path, **fields)


Mistake = tuple[str, str, str, dict[str, Any]]  # key, code, problem and further fields of an InputError


def _mistakes(entry: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes; each check assumes that the earlier ones passed."""
    archived = entry["format"] in ARCHIVED
    if ("files" in entry) + ("made_up" in entry) != archived:
        key = "made_up" if "made_up" in entry and not archived else "files"
        yield _unfit(entry, key, "either files or made_up: true" if archived else "neither files nor made_up")
    yield from _mistakes_of_samples(entry)
    yield from _mistakes_of_folder(entry)
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
        for key, value in {"shape": entry["shape"], "classes": classes, "samples": samples}.items():
            if value != BUNDLED[key]:
                named = "train_samples and validation_samples" if key == "samples" else key
                yield _unfit(entry, named, str(BUNDLED[key]), value)


def _mistakes_of_folder(entry: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in the keys of a folder."""
    is_folder = entry["format"] in FOLDERS
    for name in ("folder", "sha256", *(f"{part}_files" for part in PART_PATTERNS)):
        if name in entry and not is_folder:
            yield _unfit(entry, name, "none")
        elif name in ("folder", "sha256") and is_folder and name not in entry:
            yield _unfit(entry, name, "what ./ringside declare prints")
    if is_folder and kind(entry) == IMAGES and entry["shape"][-1] not in (1, 3):
        yield _unfit(entry, "shape", "1 or 3 channels", entry["shape"][-1])


def _mistakes_of_samples(entry: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in a sample's shape and label."""
    of_text = entry["format"] in (*TEXTS, TOKENS_FORMAT) or (
        entry["format"] == PARQUET and kind(entry) == TOKENS
    )
    if len(entry["shape"]) != (1 if of_text else 3):
        yield _unfit(entry, "shape", "[length]" if of_text else "[height, width, channels]", entry["shape"])
    if ("vocabulary" in entry) != of_text:
        yield _unfit(entry, "vocabulary", "the number of different tokens" if of_text else "none")
    if entry["format"] == "text8" and entry["vocabulary"] != TEXT8_VOCABULARY:
        yield _unfit(entry, "vocabulary", f"{TEXT8_VOCABULARY} (a to z and the blank)", entry["vocabulary"])
    if ("classes" in entry) == of_text:
        yield _unfit(entry, "classes", "none: the task is to predict the next token" if of_text else "some")
    is_named = entry["format"] in NAMES_CLASSES
    may_be_both = entry["format"] in ("webdataset", PARQUET)
    if not of_text and not may_be_both and isinstance(entry["classes"], list) == is_named:
        yield _unfit(entry, "classes", "their number" if is_named else "a list of names")


def _unfit(entry: Mapping[str, Any], key: str, expected: str, got: object = None) -> Mistake:
    """Return the mistake that a key is not what the entry's format needs.

    `got`: what of its value is wrong.
    """
    if got is None and key not in entry:
        return key, "missing-key", f"is missing for format {entry['format']}", {"expected": expected}
    problem = f"{'does' if got is None else f'{got} does'} not fit format {entry['format']}"
    return (
        key,
        "unfit-for-format",
        problem,
        {"got": entry.get(key) if got is None else got, "expected": expected},
    )


def _check_file_names(entry: Mapping[str, Any], file: Path) -> None:
    """Check the names by which a format's archives are distinguished.

    Tests check those of the shipped table.
    """
    if entry["format"] not in ARCHIVED or "made_up" in entry:
        return
    names = [declared["name"] for declared in entry["files"]]
    if entry["format"] == "idx":
        required = [name for pair in IDX.values() for name in pair]
        if set(names) != set(required):
            raise InputError(
                "unfit-for-format",
                f"the names {', '.join(names)} do not fit format idx",
                file=file,
                key="files",
                got=names,
                expected=required,
                hint="the url of each may end differently",
            )
    elif len(names) != 1:
        problem = f"{len(names)} archives do not fit format {entry['format']}"
        raise InputError("unfit-for-format", problem, file=file, key="files", got=len(names), expected="one")


def part_pattern(entry: Mapping[str, Any], part: str) -> str:
    """Return the pattern of the files or folders of a part below the data set's folder."""
    return str(entry.get(f"{part}_files", PART_PATTERNS[part]))


def kind(entry: Mapping[str, Any]) -> str:
    """Return what a data set consists of.

    IMAGES have the shape [height, width, channels]; TOKENS are sequences [length] of numbers below
    `vocabulary`; ROWS are counts and categories of click logs.
    """
    if targets(entry) == CLICK:
        return ROWS
    return TOKENS if "vocabulary" in entry else IMAGES


def targets(entry: Mapping[str, Any]) -> str:
    """Return what labels are.

    CLASS is one per sample, PIXEL one per pixel, CLICK whether a row was clicked, NEXT the token after each
    token of a sample.
    """
    return str(entry.get("targets", CLASS if "classes" in entry else NEXT))


def class_count(entry: Mapping[str, Any]) -> int:
    """Return how many classes a model distinguishes: those of samples, or the tokens that may follow."""
    classes = entry["vocabulary"] if targets(entry) == NEXT else entry["classes"]
    return classes if isinstance(classes, int) else len(classes)


def token_bytes(vocabulary: int) -> int:
    """Size of a prepared token: the smallest unsigned integer that holds every one."""
    return next(size for size in (1, 2, 4) if vocabulary <= 256**size)


def sample_name(entry: Mapping[str, Any]) -> str:
    """Return the noun for samples of the data set, in the plural."""
    return {IMAGES: "images", TOKENS: "sequences", ROWS: "rows"}[kind(entry)]


@functools.cache
def table_of(dataset: str) -> Path:
    """Return the file that has a data set's entry, a user's own if it is not shipped."""
    return DATASETS if dataset in load_yaml(DATASETS) else OWN_DATASETS


@functools.cache
def load_dataset(name: str, file: str = "data set", key: str = "") -> dict[str, Any]:
    """Return the entry of a data set, from a table or built from its name.

    Raises:
        InputError: If it is unknown; names `file` and `key`.
    """
    if name in datasets():
        if table_of(name) == OWN_DATASETS:  # tests say that what ships is right
            check_entry(name, datasets()[name], OWN_DATASETS, own=True)
        return datasets()[name]
    for drawn, pattern in _FRESH.items():
        if match := pattern.fullmatch(name):
            numbers = {key: int(number) for key, number in match.groupdict().items() if number}
            numbers |= {"samples": numbers.get("samples", FRESH_SAMPLES)}
            if too_small := _too_small(numbers):
                raise InputError(
                    "out-of-range", f"'{name}' is too small", file=file, key=key, got=name, expected=too_small
                )
            return _fresh(drawn, numbers)
    raise InputError(
        "unknown-name", f"'{name}' is unknown", file=file, key=key, got=name, **_alternatives(name)
    )


def find_dataset(name: str) -> dict[str, Any] | None:
    """Return the entry of a data set, None if it is not registered, as of measurements made elsewhere."""
    try:
        return load_dataset(name)
    except InputError:
        return None


def _alternatives(name: str) -> dict[str, Any]:
    """Return what to write in place of an unknown name.

    For a synthetic data set, this is the form of its name.
    """
    if name.startswith("synthetic-"):
        _, kind_text, *_ = name.split("-")
        meant = "images" if kind_text[:1].isdigit() else kind_text
        return {"expected": FRESH_NAMES[meant] if meant in FRESH_NAMES else " or ".join(FRESH_NAMES.values())}
    return alternatives(name, [*datasets(), *FRESH_NAMES.values()])


def _too_small(numbers: Mapping[str, int]) -> str:
    """Return what a data set that is drawn must have at least, '' where it has that."""
    samples, classes = numbers["samples"], numbers.get("classes", 0)
    if samples < 10 or ("classes" in numbers and classes < 2):
        return f"at least {'2 classes and ' if 'classes' in numbers else ''}10 samples"
    vocabulary = max(2, classes)
    return (
        f"a vocabulary of at least {vocabulary}" if numbers.get("vocabulary", vocabulary) < vocabulary else ""
    )


def _fresh(name: str, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the entry of a data set whose batches are drawn anew; a tenth of `samples` is for validation.

    Args:
        name: What is drawn, a key of FRESH_NAMES.
        numbers: The numbers in the name of the data set.
    """
    samples, classes = numbers["samples"], numbers.get("classes", 0)
    drawn: dict[str, Any]
    if name == "clicks":
        classes, values = 2, numbers["values"]
        title = f"Rows of {N_COUNTS} counts and {N_CATEGORIES} categories of {values} values, with clicks"
        drawn = {"shape": [N_COUNTS + N_CATEGORIES], "vocabulary": N_CATEGORIES * values, "targets": CLICK}
    elif "vocabulary" in numbers:
        length, vocabulary = numbers["length"], numbers["vocabulary"]
        samples_text = (
            f"Texts of {length} tokens, {classes} classes" if classes else f"Sequences of {length} tokens"
        )
        title, drawn = (
            f"{samples_text}, a vocabulary of {vocabulary}",
            {"shape": [length], "vocabulary": vocabulary},
        )
    else:
        shape = [numbers["height"], numbers["width"], numbers["channels"]]
        content = "Squares under noise" if name == "regions" else "Noise"
        title, drawn = f"{content} of {shape[0]} x {shape[1]} pixels, {shape[2]} channels", {"shape": shape}
        if name == "regions":
            drawn["targets"] = PIXEL
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
