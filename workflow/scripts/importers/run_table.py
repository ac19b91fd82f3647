"""Read tables with one run per row, CSV or JSON; columns are found by usual names or by a mapping."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import display_path
from common.text import alternatives
from importers.measurement import Measurement
from importers.values import VALUES, to_level
from training_logs.formats import text_lines
from training_logs.log import LogError, is_thousands
from training_logs.rows import Row, read_rows
from training_logs.step_table import unit_of

# Values from which a step time follows.
TIMES = ("seconds", "epoch_s", "run_s", "samples_per_s", "tokens_per_s", "device_tokens_per_s")
IGNORED = re.compile("replicate|repetition|run|run_id|seed|what|notes?|comment|source|index", re.I)


def read_run_table(
    path: Path,
    columns: Mapping[str, str],
    factors: Mapping[str, str],
    row_texts: Mapping[str, str],
    unit: str = "s",
) -> tuple[list[Measurement], list[str]]:
    """Return the runs in a table, and its unused columns.

    Args:
        path: The file.
        columns: Unusual column names by value; "" leaves the value out.
        factors: Column of each of the user's factors.
        row_texts: Rows count only if these columns have these texts.
        unit: The unit of times if the column's name has none.

    Raises:
        InputError: If the file is not a table, lacks a column, or a cell is not a value of its kind.
    """
    runs: list[Measurement] = []
    names: dict[str, str] = {}
    unused: list[str] = []
    try:
        rows = list(read_rows(text_lines(path), is_whole=True))
        if rows:
            place = f"{display_path(path)}, line {rows[0][0]}"
            header: Row = {
                name: None for _, row in rows for name in row
            }  # JSON objects can have different keys.
            names = find_columns(header, columns, place, factors.values())
            factors = {name: names.get(column, column) for name, column in factors.items()}
            check_columns(header, [*factors.values(), *row_texts], place)
            used = {*names.values(), *factors.values(), *row_texts}
            unused = [name for name in header if name not in used and not IGNORED.fullmatch(name)]
        for line, row in rows:
            place = f"{display_path(path)}, line {line}"
            if all(_text(row.get(column)) == text for column, text in row_texts.items()):
                values = {
                    name: _parse(name, column, row, place, unit)
                    for name, column in names.items()
                    if _text(row.get(column))
                }
                custom = {
                    name: _level(_text(row.get(column)), column, place) for name, column in factors.items()
                }
                other_columns = {name: _text(row.get(name)) for name in unused}
                runs.append(Measurement(place, values, other_columns=other_columns, custom=custom))
    except LogError as error:
        raise broken_file(path, error) from None
    if not runs:
        problem = "has no rows" if not names else f"has no row of {dict(row_texts)}"
        raise InputError("missing-value", problem, file=path)
    return runs, unused


def broken_file(path: Path, error: LogError) -> InputError:
    """Return the InputError for a file that cannot be read in its format."""
    place = f"{display_path(path)}, line {error.line}" if error.line else display_path(path)
    return InputError("broken-file", error.problem, file=place, expected=error.expected)


def find_columns(
    row: Row, columns: Mapping[str, str], place: str, factor_columns: Iterable[str] = ()
) -> dict[str, str]:
    """Return the column of each value in a row, by `columns` or by usual names.

    A column of a user's factor is not searched for values, unless it is given by the name of a value.

    Raises:
        InputError: If the row lacks a column of `columns`, or has no time.
    """
    check_columns(row, [column for column in columns.values() if column], place)
    mapped_columns = {*columns.values(), *(name for name in factor_columns if name not in VALUES)}
    by_lower = {str(name).strip().lower(): name for name in reversed(list(row)) if name not in mapped_columns}
    usual_columns = {
        name: next((by_lower[usual] for usual in value.columns.split() if usual in by_lower), None)
        for name, value in VALUES.items()
        if name not in columns
    }
    all_columns = {**usual_columns, **{name: text for name, text in columns.items() if name in VALUES}}
    names = {name: column for name, column in all_columns.items() if column}
    if not any(name in names for name in TIMES):
        problem = "has no column of times or throughput"
        hint = "name it: --column seconds=COLUMN"
        expected = "seconds, step_s, samples_per_s, tokens_per_s or epoch_s"
        raise InputError("missing-value", problem, file=place, expected=expected, hint=hint)
    return names


def check_columns(row: Row, names: Sequence[str], place: str) -> None:
    """Raise InputError unless a row has these columns."""
    for name in names:
        if name not in row:
            problem = f"has no column {name!r}"
            raise InputError("unknown-name", problem, file=place, got=name, **alternatives(name, row))


def _parse(name: str, column: str, row: Row, place: str, unit: str) -> Any:
    value, text = VALUES[name], _text(row.get(column))
    try:
        parsed = value.parse(text)
    except ValueError as error:
        problem = f"{text[:80]!r} is not a valid {value.meaning}"
        expected = f"{error}{', without a thousands separator' * is_thousands(text)}"
        raise InputError("bad-value", problem, file=place, key=column, expected=expected) from None
    return parsed * unit_of(column, unit, row) if value.time else parsed


def _level(text: str, column: str, place: str) -> Any:
    """Return a level of a user's factor."""
    if not text:
        raise InputError("missing-value", "is empty", file=place, key=column, expected="a level of a factor")
    return to_level(text)


def _text(cell: Any) -> str:
    return "" if cell is None else " ".join(str(cell).split())
