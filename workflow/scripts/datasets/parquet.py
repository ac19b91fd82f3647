"""Read Parquet files in the layout of Hugging Face's libraries: pictures and classes, or tokens.

A file has a column of pictures (a struct with `bytes`) and a column of classes (the one whose class names are
in the metadata, or `label`), or a column of tokens (`input_ids`, or the only column of lists of integers).
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import InputError

ROWS = 256  # number of rows in memory at a time


def read_pictures(file: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the encoded picture and the label of each row.

    Raises:
        InputError: If the file does not have exactly one column of each, or a row lacks picture or label.
    """
    with _open(file) as opened:
        schema = opened.schema_arrow
        is_picture = [pa.types.is_struct(field.type) and "bytes" in _fields(field.type) for field in schema]
        pictures = [field.name for field, yes in zip(schema, is_picture, strict=True) if yes]
        picture = _single(file, "pictures", pictures, schema)
        classes = list(_class_features(schema)) or [name for name in ("label",) if name in schema.names]
        label = _single(file, "classes", classes, schema)
        row = 0
        for batch in opened.iter_batches(ROWS, columns=[picture, label]):
            for content, number in zip(
                batch.column(picture).field("bytes").to_pylist(), batch.column(label).to_pylist(), strict=True
            ):
                if not isinstance(content, bytes) or not isinstance(number, int) or number < 0:
                    problem, expected = (
                        f"row {row} has no picture with a class",
                        "bytes, and a class from 0 on",
                    )
                    raise InputError("wrong-format", problem, file=file, got=row, expected=expected)
                yield content, number
                row += 1


def read_tokens(file: Path) -> np.ndarray:
    """Return the tokens of all rows, one after the other.

    Raises:
        InputError: If the file does not have exactly one column of tokens, or a row lacks tokens.
    """
    with _open(file) as opened:
        schema = opened.schema_arrow
        lists = [field.name for field in schema if _is_tokens(field.type)]
        name = _single(file, "tokens", ["input_ids"] if "input_ids" in lists else lists, schema)
        column = opened.read(columns=[name]).column(name)
        values = [chunk.flatten() for chunk in column.chunks]
        if column.null_count or any(value.null_count for value in values):
            raise InputError("wrong-format", "has rows without tokens", file=file, got=name)
        return np.concatenate(
            [value.to_numpy(zero_copy_only=False) for value in values] or [np.empty(0, int)]
        )


def has_tokens(file: Path) -> bool:
    """Return whether a file has a column of tokens."""
    with _open(file) as opened:
        return any(_is_tokens(field.type) for field in opened.schema_arrow)


def class_names(file: Path) -> list[str]:
    """Return the class names in the metadata of Hugging Face's `datasets`, or []."""
    with _open(file) as opened:
        return next(iter(_class_features(opened.schema_arrow).values()), [])


@contextlib.contextmanager
def _open(file: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(file, memory_map=True) as opened:
            yield opened
    except (pa.ArrowException, OSError) as error:
        problem = f"cannot be read: {error}"
        raise InputError("broken-archive", problem, file=file, expected="a Parquet file") from None


def _class_features(schema: Any) -> dict[str, list[str]]:
    """Return the names of classes by column (datasets/features/features.py, `ClassLabel`)."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {
            name: list(map(str, feature["names"]))
            for name, feature in features.items()
            if name in schema.names and isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}


def _is_tokens(kind: Any) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and pa.types.is_integer(kind.value_type)


def _fields(struct: Any) -> set[str]:
    return {struct.field(number).name for number in range(struct.num_fields)}


def _single(file: Path, content: str, names: list[str], schema: Any) -> str:
    if len(names) != 1:
        problem = f"has {len(names)} columns of {content} among {', '.join(schema.names)}"
        raise InputError("wrong-format", problem, file=file, got=names, expected="one")
    return names[0]
