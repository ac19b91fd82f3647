"""Read and check the tables of data sets, and build the entries of synthetic ones from their names.

Snakemake imports this module while it parses rules, so it imports only modules that load quickly. Keys of
runs contain the entries of data sets, so the code of this module is not part of them.
"""

import functools
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from common.errors import InputError
from common.files import CHECKOUT, display_path, load_yaml
from common.keys import Keys, Maybe, Rules, key, optional, parse
from common.text import alternatives
from declared.factors import level_type
from models.graph import N_CATEGORIES, N_COUNTS

DATASETS = CHECKOUT / "workflow" / "scripts" / "datasets" / "table.yaml"
OWN_DATASETS = CHECKOUT / "config" / "datasets.yaml"
IMAGES, TOKENS, ROWS = "images", "tokens", "rows"  # kinds of samples
CLASS, PIXEL, CLICK, NEXT = "class", "pixel", "click", "next"  # kinds of labels
TEXTS = ("text8", "wikitext")  # formats of texts; the labels are the next tokens
ARCHIVED = ("cifar-10-binary", "idx", "tiny-imagenet", *TEXTS)
TOKENS_FORMAT, PARQUET = "token-files", "parquet"
# Formats of files that are read in place, without an archive.
FOLDERS = ("image-folder", "webdataset", TOKENS_FORMAT, PARQUET)
PART_PATTERNS = {"train": "train*", "validation": "val*"}  # defaults of train_files and validation_files
# The archives of format idx: images and labels.
IDX = {
    part: (f"{name}-images-idx3-ubyte.gz", f"{name}-labels-idx1-ubyte.gz")
    for part, name in (("train", "train"), ("validation", "t10k"))
}
NAMES_CLASSES = ("tiny-imagenet", "image-folder")  # formats with names of classes in their files
FRESH = "fresh"  # format of data sets without files: ranks draw every batch
SYNTHETIC_FORMS = {
    "images": "synthetic-<height>x<width>x<channels>-<classes>[-<samples>]",
    "regions": "synthetic-regions-<height>x<width>x<channels>-<classes>[-<samples>]",
    "tokens": "synthetic-tokens-<vocabulary>-<length>[-<samples>]",
    "clicks": "synthetic-clicks-<values>[-<samples>]",
    "text": "synthetic-text-<vocabulary>-<length>-<classes>[-<samples>]",
}
SYNTHETIC_SAMPLES = 10240
MAX_CLASSES = 10**7  # limit of classes and of vocabularies
_SAMPLES = r"(?:-(?P<samples>[1-9]\d{0,8}))?"
_CLASSES = r"(?P<classes>[1-9]\d{0,4})"
_IMAGES = r"(?P<height>[1-9]\d{0,3})x(?P<width>[1-9]\d{0,3})x(?P<channels>[1-9]\d{0,2})"
_TOKENS = r"(?P<vocabulary>[1-9]\d{0,6})-(?P<length>[1-9]\d{0,5})"
_SYNTHETIC_NAMES = {
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
        "an http://, https:// or file:/// address; leave it out if only the site's folder or mirror has the "
        "file"
    )
    mirrors: tuple[Address, ...] = key("further addresses of the same file", default=())
    bytes: Count = key("size of the file; a download that is larger is stopped")
    unpacked_bytes: Count = key("largest size after unpacking; unpacking stops there")
    md5: Maybe[str] = optional("published MD5, 32 hex digits", pattern=r"^[0-9a-f]{32}\Z")
    sha256: Maybe[str] = optional(
        "SHA-256, 64 hex digits, as sha256sum prints it", pattern=r"^[0-9a-f]{64}\Z"
    )


@dataclass(frozen=True, kw_only=True)
class DatasetKeys(Keys):
    """The keys of a data set in workflow/scripts/datasets/table.yaml or config/datasets.yaml."""

    title: str = key("title of the data set")
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
        "with image-folder, webdataset, token-files and parquet: the folder of the files, unless "
        "datasets.folder of the site has a folder of this data set"
    )
    sha256: Maybe[str] = optional(
        "SHA-256 of the output of sha256sum for the files of the folder, as ./ringside declare prints it",
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
    """Return the entries of the shipped table and of config/datasets.yaml by name, unchecked.

    `load_dataset` checks them, so that a mistake stops only studies that use the data set.
    """
    return read_datasets(DATASETS, OWN_DATASETS, used=())


def read_datasets(
    shipped: Path, user_file: Path, used: Collection[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the entries of the shipped table and of the user's file, which may be missing.

    Raises:
        InputError: If an entry among `used` (None: all) is wrong.
    """
    tables = {file: load_yaml(file) for file in (shipped, user_file) if file is shipped or file.is_file()}
    entries: dict[str, dict[str, Any]] = {}
    for file, table in tables.items():
        if not isinstance(table, dict):
            problem = "is empty" if table is None else f"holds {str(table)[:60]!r}"
            expected = "names of data sets, each with its entry"
            raise InputError("wrong-type", problem, file=file, got=table, expected=expected)
        for name, entry in table.items():
            _lower_digests(entry)
            if name in entries:
                problem, hint = f"is a data set of {display_path(shipped)}", "give it another name"
                raise InputError("duplicate", problem, file=file, key=name, got=name, hint=hint)
            if used is None or name in used:
                check_entry(name, entry, file)
            entries[name] = entry
    return entries


def _lower_digests(entry: Any) -> None:
    """Convert the digests of an entry to lower case, since programs print either case."""
    files = entry.get("files") if isinstance(entry, dict) else None
    for file in [entry, *(files if isinstance(files, list) else ())]:
        if isinstance(file, dict):
            file |= {key: file[key].lower() for key in ("md5", "sha256") if isinstance(file.get(key), str)}


def check_entry(name: str, entry: Any, file: Path) -> None:
    """Raise InputError for the first mistake in an entry."""
    if any(pattern.fullmatch(name) for pattern in _SYNTHETIC_NAMES.values()):
        problem = "is the name of a synthetic data set"
        raise InputError("reserved-name", problem, file=file, key=name, got=name, hint="give it another name")
    parse(level_type("dataset"), name, file, name)
    place = file.with_name(f"{file.name} ({name})")
    parse(DatasetKeys, entry, place)
    for key_path, code, problem, expected in _mistakes(entry):
        raise InputError(code, problem, file=place, key=key_path, got=entry.get(key_path), expected=expected)


def _mistakes(entry: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, code, problem and expectation of each mistake; a check assumes that earlier ones passed."""
    form, files = entry["format"], entry.get("files", [])
    is_text = form in (*TEXTS, TOKENS_FORMAT) or (form == PARQUET and kind(entry) == TOKENS)
    is_folder, is_archived = form in FOLDERS, form in ARCHIVED and "made_up" not in entry
    unfit = "unfit-for-format", f"does not fit format {form}"
    required = {"files": is_archived, "folder": is_folder, "sha256": is_folder}
    required |= {"vocabulary": is_text, "classes": not is_text}
    possible = {"made_up": form in ARCHIVED} | {f"{part}_files": is_folder for part in PART_PATTERNS}
    for name, is_required in required.items():
        if is_required and name not in entry:
            yield name, "missing-key", f"is missing for format {form}", "./ringside declare prints an entry"
    for name, is_possible in (required | possible).items():
        if name in entry and not is_possible:
            yield name, *unfit, "none"
    if len(entry["shape"]) != (1 if is_text else 3):
        yield "shape", *unfit, "[length]" if is_text else "[height, width, channels]"
    if is_folder and not is_text and entry["shape"][-1] not in (1, 3):
        yield "shape", *unfit, "1 or 3 channels"
    may_have_both = is_text or form in ("webdataset", PARQUET)
    if not may_have_both and isinstance(entry["classes"], list) == (form in NAMES_CLASSES):
        yield "classes", *unfit, "their number" if form in NAMES_CLASSES else "a list of names"
    names = sorted(declared["name"] for declared in files)
    if form == "idx" and is_archived and names != (archives := sorted(itertools.chain(*IDX.values()))):
        yield "files", *unfit, f"the names {', '.join(archives)}; the url of each may end differently"
    elif form != "idx" and is_archived and len(names) != 1:
        yield "files", *unfit, "one archive"
    for i, declared in enumerate(files):
        if not {"md5", "sha256"} & set(declared):
            name = declared["name"]
            yield f"files.{i}", "missing-key", f"{name} has neither md5 nor sha256", f"sha256sum {name}"


def part_pattern(entry: Mapping[str, Any], part: str) -> str:
    """Return the pattern of the files or folders of a part below the data set's folder."""
    return str(entry.get(f"{part}_files", PART_PATTERNS[part]))


def kind(entry: Mapping[str, Any]) -> str:
    """Return the kind of a data set's samples.

    IMAGES have the shape [height, width, channels]; TOKENS are sequences [length] of numbers below
    `vocabulary`; ROWS are counts and categories of click logs.
    """
    if targets(entry) == CLICK:
        return ROWS
    return TOKENS if "vocabulary" in entry else IMAGES


def targets(entry: Mapping[str, Any]) -> str:
    """Return the kind of a data set's labels.

    CLASS: a class for each sample; PIXEL: a class for each pixel; CLICK: whether a row was clicked; NEXT: the
        token
    after each token of a sample.
    """
    return str(entry.get("targets", CLASS if "classes" in entry else NEXT))


def class_count(entry: Mapping[str, Any]) -> int:
    """Return the number of classes that a model distinguishes: of samples, or tokens of the vocabulary."""
    classes = entry["vocabulary"] if targets(entry) == NEXT else entry["classes"]
    return classes if isinstance(classes, int) else len(classes)


def token_bytes(vocabulary: int) -> int:
    """Return the bytes of a prepared token: the smallest unsigned integer that holds the vocabulary."""
    return next(size for size in (1, 2, 4) if vocabulary <= 256**size)


def sample_name(entry: Mapping[str, Any]) -> str:
    """Return the noun for samples of the data set, in the plural."""
    return {IMAGES: "images", TOKENS: "sequences", ROWS: "rows"}[kind(entry)]


@functools.cache
def table_of(dataset: str) -> Path:
    """Return the file with a data set's entry: the shipped table, else the user's file."""
    return DATASETS if dataset in load_yaml(DATASETS) else OWN_DATASETS


@functools.cache
def load_dataset(name: str, file: str = "data set", key: str = "") -> dict[str, Any]:
    """Return the entry of a data set, from a table or built from its name.

    Raises:
        InputError: If it is unknown; names `file` and `key`.
    """
    if name in datasets():
        if table_of(name) == OWN_DATASETS:  # Tests check the shipped table.
            check_entry(name, datasets()[name], OWN_DATASETS)
        return datasets()[name]
    for drawn, pattern in _SYNTHETIC_NAMES.items():
        if match := pattern.fullmatch(name):
            numbers = {key: int(number) for key, number in match.groupdict().items() if number}
            numbers |= {"samples": numbers.get("samples", SYNTHETIC_SAMPLES)}
            if too_small := _too_small(numbers):
                raise InputError(
                    "out-of-range", f"'{name}' is too small", file=file, key=key, got=name, expected=too_small
                )
            return _synthetic_entry(drawn, numbers)
    raise InputError(
        "unknown-name", f"'{name}' is unknown", file=file, key=key, got=name, **_alternatives(name)
    )


def find_dataset(name: str) -> dict[str, Any] | None:
    """Return the entry of a data set, None if Ringside does not have it (measured elsewhere)."""
    try:
        return load_dataset(name)
    except InputError:
        return None


def _alternatives(name: str) -> dict[str, Any]:
    """Return the hint of the error about an unknown name; for a synthetic data set, the form of its name."""
    if name.startswith("synthetic-"):
        _, kind_text, *_ = name.split("-")
        meant = "images" if kind_text[:1].isdigit() else kind_text
        return {"expected": SYNTHETIC_FORMS.get(meant, " or ".join(SYNTHETIC_FORMS.values()))}
    return alternatives(name, [*datasets(), *SYNTHETIC_FORMS.values()])


def _too_small(numbers: Mapping[str, int]) -> str:
    """Return the minimum that a synthetic data set does not reach, "" if it reaches all."""
    samples, classes = numbers["samples"], numbers.get("classes", 0)
    if samples < 10 or ("classes" in numbers and classes < 2):
        return f"at least {'2 classes and ' if 'classes' in numbers else ''}10 samples"
    vocabulary = max(2, classes)
    return (
        f"a vocabulary of at least {vocabulary}" if numbers.get("vocabulary", vocabulary) < vocabulary else ""
    )


def _synthetic_entry(name: str, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the entry of a synthetic data set. Validation has a tenth of its samples.

    Args:
        name: Kind of the data set, a key of SYNTHETIC_FORMS.
        numbers: Numbers in the name of the data set.
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
