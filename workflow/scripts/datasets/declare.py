"""Write the entry for `config/datasets.yaml` of a data set whose files stay in their folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError, check_range, system_faults
from common.files import dump_yaml, load_yaml
from common.keys import parse
from datasets.folders import PICTURES, TOKEN_ARRAYS, list_folder
from datasets.parquet import has_tokens
from declared.datasets import (
    DATASETS,
    FOLDERS,
    MAX_CLASSES,
    PARQUET,
    PART_PATTERNS,
    TOKENS_FORMAT,
    check_entry,
)
from declared.factors import level_type


def declare_folder(
    form: str, path: Path, name: str, size: int, channels: int = 3, vocabulary: int = 0, **patterns: str
) -> None:
    """Print the entry of a data set in a folder.

    Args:
        form: One of the formats that are read from a folder.
        path: The folder.
        name: Name of the data set.
        size: Height and width of pictures in pixels, or tokens per sequence.
        channels: 3, or 1 for greyscale.
        vocabulary: Number of different tokens; 0: the largest token plus 1.
        patterns: Patterns of the files of ``train`` and ``validation``, by part.

    Raises:
        InputError: If an argument is invalid, or the folder has no such data set.
    """
    if form not in FOLDERS:
        raise InputError("unknown-name", f"'{form}' is unknown", file="--format", got=form, expected=FOLDERS)
    parse(level_type("dataset"), name, Path("--name"))
    if name in load_yaml(DATASETS):
        problem = f"{name} is a data set of Ringside"
        raise InputError("duplicate", problem, file="--name", got=name, hint="give it another name")
    check_range("--size", size, 1, MAX_CLASSES)
    check_range("--vocabulary", vocabulary, 0, MAX_CLASSES)
    if channels not in (1, 3):
        raise InputError("out-of-range", f"is {channels}", file="--channels", got=channels, expected="1 or 3")
    with system_faults(path):
        entry = describe_folder(form, path, name, size, channels, vocabulary, patterns)
    check_entry(name, entry, path)
    print(dump_yaml({name: entry}), end="")


def describe_folder(
    form: str, path: Path, name: str, size: int, channels: int, vocabulary: int, patterns: Mapping[str, str]
) -> dict[str, Any]:
    """Return the entry of a data set in a folder, with the arguments of `declare_folder`."""
    entry: dict[str, Any] = {"title": name, "format": form, "folder": str(path.absolute())}
    entry |= {f"{part}_files": text for part, text in patterns.items() if text != PART_PATTERNS[part]}
    folder = list_folder(path, entry)
    entry["sha256"] = folder.sha256()
    if form == TOKENS_FORMAT or (form == PARQUET and has_tokens(folder.first("train"))):
        tokens = {part: list(TOKEN_ARRAYS[form](folder, part)) for part in PART_PATTERNS}
        tokens = {part: [array for array in arrays if len(array)] for part, arrays in tokens.items()}
        counts = {part: sum((len(array) - 1) // size for array in arrays) for part, arrays in tokens.items()}
        filled = [*tokens["train"], *tokens["validation"]]
        smallest = min((int(array.min()) for array in filled), default=0)
        largest = max((int(array.max()) for array in filled), default=0)
        if smallest < 0 or largest >= (vocabulary or MAX_CLASSES):
            problem, limit = f"has tokens from {smallest} to {largest}", (vocabulary or MAX_CLASSES) - 1
            raise folder.error("out-of-range", problem, f"0 to {limit}", got=(smallest, largest))
        sample = {"shape": [size], "vocabulary": vocabulary or max(2, largest + 1)}
    else:
        labels = {part: [picture.label for picture in PICTURES[form](folder, part)] for part in PART_PATTERNS}
        counts = {part: len(numbers) for part, numbers in labels.items()}
        n_classes = 1 + max((label for numbers in labels.values() for label in numbers), default=0)
        sample = {"shape": [size, size, channels], "classes": n_classes}
    if not all(counts.values()):
        problem = f"has {counts['train']} samples to train and {counts['validation']} to validate"
        raise folder.error("wrong-count", problem, "at least one of each", got=counts)
    entry |= {f"{part}_samples": count for part, count in counts.items()} | sample
    return {**entry, "licence": "TODO", "citation": "TODO"}
