"""Read rows of tables that loggers write: CSV, a JSON list, or one JSON object per line."""

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

from training_logs.log import LogError

SEPARATORS = (",", ";", "\t", "|")
Row = dict[str, Any]


def read_rows(lines: Iterable[str], is_whole: bool = False) -> Iterator[tuple[int, Row]]:
    """Yield the line number and the cells by column of each row; ignore empty cells beyond the header.

    Args:
        lines: The lines of the file.
        is_whole: Whether an incomplete row is an error. Otherwise it is skipped: a running program can have
            written part of the last row of a log.

    Raises:
        LogError: If the text is neither CSV with a header nor JSON.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first_number, first = next(numbered, (0, ""))
    if not first:
        raise LogError(0, "is empty", "CSV with a header, or JSON")
    if first.lstrip().startswith("{"):
        yield from _json_lines(first_number, first, numbered, is_whole)
    elif first.lstrip().startswith("["):
        yield from _json_list(first + "".join(line for _, line in numbered), is_whole)
    else:
        yield from _csv_rows(first_number, first, numbered, is_whole)


def _json_lines(
    number: int, line: str, numbered: Iterator[tuple[int, str]], is_whole: bool
) -> Iterator[tuple[int, Row]]:
    later = False
    while line:
        try:
            row = json.loads(line, object_pairs_hook=_row if is_whole else None)
        except (ValueError, RecursionError):
            if is_whole or not later:
                problem = "is not valid JSON, or has a key twice" if is_whole else "is not valid JSON"
                raise LogError(number, problem, "an object in each line") from None
            row = None
        if isinstance(row, dict):
            later = True
            yield number, row
        number, line = next(numbered, (0, ""))


def _json_list(text: str, is_whole: bool) -> Iterator[tuple[int, Row]]:
    try:
        rows = json.loads(text, object_pairs_hook=_row if is_whole else None)
    except json.JSONDecodeError as error:
        raise LogError(error.lineno, f"is not valid JSON: {error.msg}", "a list of objects") from None
    except (ValueError, RecursionError):
        problem = "is not readable JSON, or has a key twice"
        raise LogError(0, problem, "a list of objects") from None
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict):
            yield number, row
        elif is_whole:
            raise LogError(number, "is not an object", "a list of objects")


def _row(pairs: list[tuple[str, Any]]) -> Row:
    """Return a JSON object.

    Raises:
        ValueError: If it has a key twice.
    """
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key twice")
    return row


def _csv_rows(
    number: int, header: str, numbered: Iterator[tuple[int, str]], is_whole: bool
) -> Iterator[tuple[int, Row]]:
    separator = max(SEPARATORS, key=header.count)
    places = [number]

    def texts() -> Iterator[str]:
        yield header
        for place, line in numbered:
            places[0] = place
            yield line

    reader = csv.reader(texts(), delimiter=separator)
    try:
        names = [name.strip() for name in next(reader)]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise LogError(number, f"has the column {repeated!r} twice", "each column once")
        for fields in reader:
            if any(field.strip() for field in fields[len(names) :]) or len(fields) < len(names):
                if is_whole:
                    raise LogError(places[0], f"has {len(fields)} cells", f"{len(names)}, like the header")
            else:
                yield places[0], dict(zip(names, fields, strict=False))
    except csv.Error as error:
        raise LogError(places[0], f"cannot be read as CSV: {error}") from None
