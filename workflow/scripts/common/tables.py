"""Read and write CSV tables, checked column by column against their schema.

Fields can be empty, and frames then have a missing value, if the schema allows null or does not require the
column. A frame has every column of its schema, in the schema's order, as str, Int64, float64 or boolean. If a
schema allows numbers and words, a column with a word becomes an ordered categorical with the numbers first. A
schema also lists the columns that together identify a row (`unique`), and those that are equal in all rows of
a cell (`same_in_cell`).

Every distinct field of a column is checked once: tables of large campaigns have millions of rows.
"""

import csv
import gzip
import io
import itertools
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from common.errors import InputError
from common.files import display_path, require_regular, stored_file, written_whole
from common.renamed import has_older_values, rename_columns, rename_values
from common.schemas import column_rules, schema
from common.text import alternatives

MAX_COMPRESSION_RATIO = 100  # A small .gz file must not fill the memory. Tables reach about 8.
OTHER_SEPARATORS = (";", "\t", "|")  # which spreadsheets use in CSV files in some languages
BLOCK_BYTES = 2**24  # The longest line that Arrow reads.
DTYPES = {"string": "str", "integer": "Int64", "number": "float64", "boolean": "boolean"}
_CONVERT: dict[str, Callable[[str], Any]] = {"integer": int, "number": float, "boolean": "true".__eq__}
_PATTERNS = {
    "integer": re.compile(r"-?\d{1,18}"),
    "number": re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?"),
    "boolean": re.compile("true|false"),
}


def read_table(path: Path, schema_name: str) -> pd.DataFrame:
    """Return the CSV table `path`.

    A missing column, such as a factor that was added later, gets its default. Older names of columns and
    values are replaced (`common.renamed`).

    Args:
        path: The file; if only `path`.gz exists, that is read.
        schema_name: The name of the table's schema.

    Raises:
        InputError: If the table breaks its schema, repeats a row (`unique`), or has rows of one cell that
            contradict each other (`same_in_cell`). It names file, line and column.
    """
    path = stored_file(Path(path))
    written_names = read_header(path)
    header = rename_columns(written_names, column_rules(schema_name, written_names))
    columns = _read_fields(path, len(header)) if header else []
    for i, name in enumerate(header):
        if has_older_values(name):
            columns[i] = _texts(rename_values(name, columns[i].to_pylist()))
    frame = _parse_columns(header, columns, lambda row: _line_number(path, row), schema_name, path)
    if conflict := _find_conflicting_row(frame, schema_name):
        row, code, problem, fields = conflict
        place = f"{display_path(path)}, line {_line_number(path, row)}"
        raise InputError(code, problem, file=place, **fields)
    return frame


def _find_conflicting_row(
    frame: pd.DataFrame, schema_name: str
) -> tuple[int, str, str, dict[str, Any]] | None:
    """Return the first row that repeats or contradicts an earlier one, with code, problem and fields.

    The code, problem and fields are arguments of an InputError. None if no row does.
    """
    names = schema(schema_name)["unique"]
    if (again := frame.duplicated(names)).any():
        row = int(again.to_numpy().argmax())
        row_text = ", ".join(f"{name} {_format_value(frame.at[row, name])}" for name in names)
        problem = f"{row_text} {'occurs' if len(names) == 1 else 'occur'} twice"
        return row, "duplicate", problem, {"hint": "remove one of the two rows, or rebuild the table"}
    columns = _constant_columns(schema_name, frame)
    different = frame[["cell", *columns]].drop_duplicates() if columns else frame[:0]
    if not columns or not (again := different["cell"].duplicated()).any():
        return None
    row = int(different.index[again.to_numpy().argmax()])
    first, later = frame.loc[frame["cell"] == frame.at[row, "cell"]].iloc[0], frame.loc[row]
    name = next(name for name in columns if _format_value(first[name]) != _format_value(later[name]))
    problem = f"{_format_value(later[name])} contradicts an earlier row of cell {first['cell']!r}"
    fields = {"key": name, "expected": _format_value(first[name])}
    return row, "contradicting-rows", problem, {**fields, "hint": "correct one, or rebuild the table"}


def _constant_columns(schema_name: str, columns: Iterable[str]) -> list[str]:
    """Return the columns that are equal in all rows of a cell; a schema's `factors` means every factor."""
    named = schema(schema_name).get("same_in_cell", [])
    return [
        name for entry in named for name in (column_rules(entry, columns) if entry == "factors" else [entry])
    ]


def _format_value(value: Any) -> str:
    return "nothing" if pd.isna(value) else repr(value) if isinstance(value, str) else str(value)


def _line_number(path: Path, row: int) -> int:
    """Return the line in the file of a row of `read_table`: quoted fields can have line breaks."""
    with _open_table(path) as table, io.TextIOWrapper(table, "utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        next(itertools.islice(reader, row + 1, None))
        return reader.line_num


@contextmanager
def _open_table(path: Path) -> Iterator[BinaryIO]:
    """Yield the uncompressed bytes of a table.

    Raises:
        OSError: If it is not a regular file, is not compressed as its name says, or exceeds
            MAX_COMPRESSION_RATIO.
    """
    with open(require_regular(path), "rb") as file:
        if path.suffix != ".gz":
            yield file
            return
        max_bytes = MAX_COMPRESSION_RATIO * path.stat().st_size
        try:
            text = gzip.GzipFile(fileobj=file).read(max_bytes + 1)
        except (EOFError, zlib.error) as error:
            raise OSError(str(error)) from None
    if len(text) > max_bytes:
        raise OSError(f"is more than {MAX_COMPRESSION_RATIO} times as large uncompressed")
    yield io.BytesIO(text)


def read_header(path: Path) -> list[str]:
    """Return the names in the first line of a table.

    Raises:
        InputError: If it cannot be read as CSV, or its fields are separated by another character.
    """
    # Spreadsheets write a byte order mark at the beginning of the file.
    with (
        _input_errors(path),
        _open_table(path) as table,
        io.TextIOWrapper(table, "utf-8-sig", newline="") as file,
    ):
        header = next(csv.reader(file, strict=True), [])
    # Spreadsheets in languages with decimal commas use another separator.
    separator = next((sign for sign in OTHER_SEPARATORS if len(header) == 1 and sign in header[0]), None)
    if separator:
        hint = "save it as CSV with commas, and with points in numbers"
        problem = f"its fields are separated by {separator!r}"
        place = f"{display_path(path)}, line 1"
        raise InputError("wrong-separator", problem, file=place, expected="commas", hint=hint)
    return header


@contextmanager
def _input_errors(path: Path) -> Iterator[None]:
    """Raise InputError for a file that is missing, no CSV, or too large for the memory."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("missing-file", "no such file", file=path) from None
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowInvalid) as error:
        raise InputError("broken-file", f"cannot be read as CSV: {error}", file=path) from None
    except MemoryError:
        problem = "is too large for the memory of this machine"
        raise InputError("too-large", problem, file=path) from None


def _read_fields(path: Path, n_columns: int) -> list[pa.ChunkedArray]:
    """Return the texts of each column below the header.

    Raises:
        InputError: If the file is no CSV, or a row has another number of fields.
    """
    names = [str(place) for place in range(n_columns)]
    invalid_rows: list[arrow_csv.InvalidRow] = []

    def stop(row: arrow_csv.InvalidRow) -> str:
        invalid_rows.append(row)
        return "error"

    with _input_errors(path), _open_table(path) as file:
        try:
            table = arrow_csv.read_csv(
                file,
                # A single thread knows the numbers of rows. The header is one, so no table is empty.
                arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=names),
                arrow_csv.ParseOptions(
                    newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=stop
                ),
                arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), null_values=[]),
            )
        except pa.ArrowInvalid:
            if not invalid_rows:
                raise
    for row in invalid_rows:
        place = f"{display_path(path)}, line {_line_number(path, row.number - 2)}"
        expected = f"the {row.expected_columns} of line 1"
        raise InputError("wrong-field-count", f"{row.actual_columns} fields", file=place, expected=expected)
    return table.slice(1).columns


def read_results(path: Path) -> pd.DataFrame:
    """Return a CSV table without checking a schema: pandas infers the types; older names are replaced.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not a table.
    """
    frame = pd.read_csv(path)
    frame = frame.set_axis(rename_columns(list(frame)), axis="columns")
    changed = {name: rename_values(name, frame[name].tolist()) for name in frame if has_older_values(name)}
    return frame.assign(**changed)


def write_table(frame: pd.DataFrame, schema_name: str, path: Path) -> None:
    """Write `frame` as CSV, atomically, with columns in the schema's order and all digits of numbers.

    Raises:
        InputError: If the frame breaks its schema; then nothing is written.
    """
    path = Path(path)
    rules = column_rules(schema_name, frame)
    known_columns = [name for name in rules if name in frame]
    header = known_columns + [name for name in frame if name not in known_columns]
    columns = [_format_column(frame[name], _column_type(rules.get(name, {}))) for name in header]
    _parse_columns(header, list(map(_texts, columns)), lambda row: row + 2, schema_name, path)
    with written_whole(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))


def _parse_columns(
    header: Sequence[str],
    columns: Sequence[pa.ChunkedArray],
    find_line: Callable[[int], int],
    schema_name: str,
    path: Path,
) -> pd.DataFrame:
    """Return the texts of columns as a frame with the types of the schema.

    Args:
        header: Names of the columns.
        columns: The texts of each column.
        find_line: Returns the line in the file of a row, for errors.
        schema_name: The name of the table's schema.
        path: The file, for errors.

    Raises:
        InputError: If a column is unknown, missing or repeated, or a field breaks a rule.
    """
    properties = column_rules(schema_name, header)
    required = schema(schema_name)["required"]
    top = f"{display_path(path)}, line 1"
    for position, name in enumerate(header):
        if name not in properties:
            advice = alternatives(name, properties)
            if "suggestion" not in advice:
                advice = {"expected": f"columns of {schema_name}.schema.yaml"}
            raise InputError("unknown-key", "unknown column", file=top, key=name, got=name, **advice)
        if name in header[:position]:
            raise InputError("duplicate", "the column occurs twice", file=top, key=name, got=name)
    for name in required:
        if name not in header:
            expected = properties[name].get("description", "a value")
            raise InputError("missing-key", "the column is missing", file=top, key=name, expected=expected)
    texts = dict(zip(header, columns, strict=True))
    frame = {}
    for name, rules in properties.items():
        column = texts[name] if name in texts else _texts([str(rules.get("default", ""))] * len(columns[0]))
        frame[name], bad = _parse_column(column, rules, name in required and not _is_nullable(rules))
        if bad is not None:
            text = column[bad].as_py()
            code, problem = _broken_rule(text, rules), f"{_quote_field(text)} is not allowed"
            place = f"{display_path(path)}, line {find_line(bad)}"
            raise InputError(code, problem, file=place, key=name, expected=_describe_rules(rules))
    return pd.DataFrame(frame)


def _parse_column(
    column: pa.ChunkedArray, rules: dict[str, Any], needed: bool
) -> tuple[pd.Series, int | None]:
    """Return a column with the type of its schema, and the first row that breaks its rules, or None."""
    filled = pc.if_else(pc.equal(column, ""), None, column).combine_chunks().dictionary_encode()
    codes = filled.indices.fill_null(-1).to_numpy()
    column_type = _column_type(rules)
    values = [_convert(text, column_type) for text in filled.dictionary.to_pylist()]
    is_bad = codes < 0
    if not needed or not is_bad.any():
        is_bad = np.array([not _is_allowed(value, rules) for value in values] + [False])[codes]
    bad = int(is_bad.argmax()) if is_bad.any() else None
    return pd.Series(_as_array(values, column_type).take(codes, allow_fill=True)), bad


def _is_allowed(value: str | float | bool, rules: dict[str, Any]) -> bool:
    """Return whether the rules of a column allow a field that was converted."""
    if isinstance(value, str):
        fits = value in rules.get("enum", (value,)) and len(value) <= rules.get("maxLength", math.inf)
        is_text = _column_type(rules) == "string" or _allows_words(rules)
        return is_text and fits and re.search(rules.get("pattern", ""), value) is not None
    return isinstance(value, bool) or (
        math.isfinite(value)
        and rules.get("minimum", -math.inf) <= value <= rules.get("maximum", math.inf)
        and rules.get("exclusiveMinimum", -math.inf) < value < rules.get("exclusiveMaximum", math.inf)
    )


def _convert(text: str, column_type: str) -> Any:
    """Return the value of a field, or its text if it has another type."""
    pattern = _PATTERNS.get(column_type)
    return _CONVERT[column_type](text) if pattern and pattern.fullmatch(text) else text


def _broken_rule(text: str, rules: dict[str, Any]) -> str:
    """Return the error code for a field that its column does not allow."""
    column_type = _column_type(rules)
    if text == "":
        return "missing-value"
    if column_type != "string":
        return "out-of-range" if _PATTERNS[column_type].fullmatch(text) else "wrong-type"
    if "enum" in rules:
        return "not-one-of"
    return "too-long" if len(text) > rules.get("maxLength", math.inf) else "bad-pattern"


def _allows_words(rules: dict[str, Any]) -> bool:
    """Return whether a column of numbers or booleans can also have words that match its pattern."""
    return "string" in rules.get("type", ()) and _column_type(rules) != "string"


def _as_array(values: Sequence[Any] | np.ndarray, column_type: str) -> Any:
    """Return values as an array of a type, or as an ordered categorical if there are words among numbers."""
    words = {value for value in values if isinstance(value, str)} if column_type != "string" else set()
    if not words:
        return pd.array(values, dtype=DTYPES[column_type])
    numbers = {value for value in values if value is not None} - words
    return pd.Categorical(values, categories=[*sorted(numbers), *sorted(words)], ordered=True)


def _format_column(column: pd.Series, column_type: str) -> list[str]:
    empty = column.isna().to_numpy(dtype=bool)
    values = ["" if is_empty else value for is_empty, value in zip(empty, column.tolist(), strict=True)]
    match column_type:
        case "integer":
            return [str(int(x)) if isinstance(x, float) and x.is_integer() else str(x) for x in values]
        case "number":
            return [x if isinstance(x, str) else repr(float(x)) for x in values]  # text is "" or a word
        case "boolean":
            return [str(x).lower() for x in values]
    return [str(x) for x in values]


def _column_type(rules: dict[str, Any]) -> str:
    """Return the first type other than null that the rules of a column allow."""
    types = rules.get("type", "string")
    return types if isinstance(types, str) else next(name for name in types if name != "null")


def _texts(texts: Sequence[str]) -> pa.ChunkedArray:
    return pa.chunked_array([texts], pa.string())


def _is_nullable(rules: dict[str, Any]) -> bool:
    return "null" in rules.get("type", ()) or None in rules.get("enum", ())


def _describe_rules(rules: dict[str, Any]) -> str | list[str]:
    if "enum" in rules:
        return [level for level in rules["enum"] if level is not None]
    column_type = _column_type(rules)
    words = {
        "string": "a text",
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
    }[column_type]
    limits = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    limit_texts = [f"{word} {rules[key]}" for key, word in limits.items() if key in rules]
    if "pattern" in rules and column_type == "string":
        limit_texts.append(f"of the form {rules['pattern']}")
    text = " ".join([words, " and ".join(limit_texts)]).strip()
    word = rules.get("pattern", "").removeprefix("^").removesuffix(r"\Z")
    return f"{text}, or {word}" if _allows_words(rules) else text


def _quote_field(text: str) -> str:
    if text == "":
        return "an empty field"
    return repr(text) if len(text) <= 40 else repr(text[:37] + "...")
