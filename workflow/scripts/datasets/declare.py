"""Print the entry of a data set in a folder for `config/datasets.yaml`."""

from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import dump_yaml
from datasets.folders import PICTURES, TOKEN_ARRAYS, list_folder
from datasets.parquet import has_tokens
from declared.datasets import FOLDERS, PARQUET, PART_PATTERNS, TOKENS_FORMAT


def declare_folder(
    form: str, path: Path, name: str, size: int, channels: int = 3, vocabulary: int = 0, **patterns: str
) -> None:
    """Print the entry of a data set in a folder.

    Args:
        form: One of the formats whose files are read where they lie.
        path: The folder.
        name: Name of the data set.
        size: Height and width of pictures in pixels, or tokens of a sequence.
        channels: 3, or 1 for grey.
        vocabulary: Number of different tokens; 0: the largest token plus 1.
        patterns: ``train`` and ``validation``, if they are not the defaults.

    Raises:
        InputError: If the folder has no such data set.
    """
    if form not in FOLDERS:
        raise InputError("unknown-name", f"'{form}' is unknown", file="--format", got=form, expected=FOLDERS)
    if size < 1:
        raise InputError("out-of-range", f"is {size}", file="--size", got=size, expected="at least 1")
    entry: dict[str, Any] = {"title": name, "format": form, "folder": str(path.absolute())}
    entry |= {f"{part}_files": text for part, text in patterns.items() if text != PART_PATTERNS[part]}
    folder = list_folder(path, entry)
    entry["sha256"] = folder.sha256()
    if form == TOKENS_FORMAT or (form == PARQUET and has_tokens(folder.first("train"))):
        tokens = {part: list(TOKEN_ARRAYS[form](folder, part)) for part in PART_PATTERNS}
        counts = {part: sum((len(array) - 1) // size for array in arrays) for part, arrays in tokens.items()}
        largest = max(int(array.max()) for arrays in tokens.values() for array in arrays)
        sample = {"shape": [size], "vocabulary": vocabulary or largest + 1}
    else:
        labels = {part: [picture.label for picture in PICTURES[form](folder, part)] for part in PART_PATTERNS}
        counts = {part: len(numbers) for part, numbers in labels.items()}
        n_classes = 1 + max((label for own in labels.values() for label in own), default=0)
        sample = {"shape": [size, size, channels], "classes": n_classes}
    if not all(counts.values()):
        problem = f"makes {counts['train']} samples to train and {counts['validation']} to validate"
        raise folder.error("wrong-count", problem, "one of each at least", got=counts)
    entry |= {f"{part}_samples": count for part, count in counts.items()} | sample
    print(dump_yaml({name: {**entry, "licence": "TODO", "citation": "TODO"}}), end="")
