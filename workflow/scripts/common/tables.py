"""Read and write CSV tables, checked column by column against their schema.

Fields can be empty, and frames then have a missing value, if the schema allows null or does not require the
column. A frame has every column of its schema, in the schema's order, as str, Int64, float64 or boolean. If a
schema allows numbers and words, a column with a word becomes an ordered categorical with the numbers first. A
schema also lists the columns that together identify a row (`unique`), and those that are equal in all rows of
a cell (`same_in_cell`).

`_read_fast` reads valid tables with pandas. If anything is unusual, `_read_by_fields` reads the table again,
field by field, and reports the line and the column of the first mistake.
"""

import csv
import gzip
import io
import itertools
import math
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from common.errors import InputError
from common.files import display_path, require_regular, stored_file, written_whole
from common.renamed import has_older_values, rename_columns, rename_values
from common.schemas import column_rules, schema
from common.text import alternatives

MAX_COMPRESSION_RATIO = 100  # A small .gz file must not fill the memory. Tables reach about 8.
OTHER_SEPARATORS = (";", "\t", "|")  # which spreadsheets use in CSV files in some languages
# Marks that pandas and the module csv can read differently.
UNUSUAL_MARKS = (b'"', b", ", b" ,", b" \n", b"\t", b"\r", b",+", b",.")
_QUOTED = re.compile(rb'"(?<=[,\n]")((?:[^"\n]++|"")++)"(?=[,\n])')
_TEXT_RULES = {"enum", "pattern", "maxLength"}  # the rules of a schema that a text can break
DTYPES = {"string": "str", "integer": "Int64", "number": "float64", "boolean": "boolean"}
_CONVERT: dict[str, Callable[[str], Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": "true".__eq__,
}
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
    try:
        frame = _read_fast(path, schema_name)
    except (OSError, ValueError, OverflowError, MemoryError, pd.errors.ParserWarning):
        frame = _read_by_fields(path, schema_name)
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


def _read_fast(path: Path, schema_name: str) -> pd.DataFrame:
    """Return a valid table; millions of rows take seconds.

    Raises:
        ValueError: If the table is invalid, or pandas could read it differently from the module csv.
    """
    required = schema(schema_name)["required"]
    quoted: dict[str, str] = {}
    with _open_table(path) as file:
        source: BinaryIO = file
        header, lines, commas, unusual = _scan_table(source)
        if b'"' in unusual:
            source, quoted = _replace_quoted_fields(source)
            header, lines, commas, unusual = _scan_table(source)
        properties = column_rules(schema_name, header)
        written_names, header = header, rename_columns(header, properties)
        if unusual or commas != lines * (len(header) - 1):  # pandas silently pads lines that are too short.
            raise ValueError("quotes, blanks at the end of a field, or a line that is too short")
        if len(set(header)) < len(header) or not set(required) <= set(header) <= set(properties):
            raise ValueError("other columns")
        read_as = {
            written: "float64" if _column_type(properties[name]) == "number" else "str"
            for written, name in zip(written_names, header, strict=True)
        }
        source.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # raised for a line that is too long
            missing: dict[str, Any] = {"keep_default_na": False, "na_values": [""], "skip_blank_lines": False}
            raw = pd.read_csv(source, dtype=read_as, index_col=False, encoding="utf-8", **missing)
        raw = raw.set_axis(header, axis="columns")
    frame = {}
    for name, rules in properties.items():
        if name not in header:
            default = [str(rules["default"])] * len(raw) if "default" in rules else [""] * len(raw)
            column = np.array(default, dtype=object)
            frame[name] = _to_series(column, column != "", _column_type(rules))
            continue
        column = raw.pop(name)
        if name in required and not _is_nullable(rules) and column.isna().any():
            raise ValueError("an empty field")
        frame[name] = _parse_clean_column(name, column, rules, quoted)
    return pd.DataFrame(frame)


def _scan_table(source: BinaryIO) -> tuple[list[str], int, int, set[bytes]]:
    """Return the column names, the numbers of further lines and of commas in them, and the UNUSUAL_MARKS."""
    lines = commas = 0
    unusual: set[bytes] = set()
    source.seek(0)
    header = source.readline().decode().rstrip("\n").split(",")
    for block in iter(lambda: source.read(2**24), b""):
        lines, commas = lines + block.count(b"\n"), commas + block.count(b",")
        # Searching for the single byte first is faster.
        unusual.update(mark for mark in UNUSUAL_MARKS if mark.strip(b",\n") in block and mark in block)
    return header, lines, commas, unusual


def _replace_quoted_fields(source: BinaryIO) -> tuple[BinaryIO, dict[str, str]]:
    """Return the table with a placeholder for each quoted field, and the fields by placeholder."""
    source.seek(0)
    text = source.read()
    if b"\1" in text:
        raise ValueError("a placeholder could be a field")
    placeholders: dict[bytes, bytes] = {}
    plain = _QUOTED.sub(lambda field: placeholders.setdefault(field[1], b"\1%d" % len(placeholders)), text)
    fields = {name.decode(): field.decode().replace('""', '"') for field, name in placeholders.items()}
    return io.BytesIO(plain), fields


def _parse_clean_column(
    name: str, column: pd.Series, rules: dict[str, Any], quoted: dict[str, str]
) -> pd.Series:
    """Return a column with the type of its schema; `quoted` has quoted fields by placeholder.

    Raises:
        ValueError: If a field breaks a rule.
    """
    column_type = _column_type(rules)
    if column_type != "number":
        is_free_text = column_type == "string" and not _TEXT_RULES & set(rules) and not has_older_values(name)
        if is_free_text and not quoted:
            return column
        codes, distinct = pd.factorize(column)
        texts = rename_values(name, [quoted.get(text, text) for text in distinct.tolist()])
        if not is_free_text and not all(_is_allowed(text, rules, column_type) for text in texts):
            raise ValueError("a field that is not allowed")
        values = _as_array([_convert(text, column_type) for text in texts], column_type)
        return pd.Series(values.take(codes, allow_fill=True))
    values = column.to_numpy()
    values = values[~np.isnan(values)]
    if _is_outside(values, rules).any():
        raise ValueError("a number that is not allowed")
    return column.astype(DTYPES[column_type])


def _is_outside(values: Any, rules: dict[str, Any]) -> Any:
    """Return which numbers are infinite or outside the limits of their column."""
    return (
        ~np.isfinite(values)
        | (values < rules.get("minimum", -math.inf))
        | (values > rules.get("maximum", math.inf))
        | (values <= rules.get("exclusiveMinimum", -math.inf))
        | (values >= rules.get("exclusiveMaximum", math.inf))
    )


def _read_by_fields(path: Path, schema_name: str) -> pd.DataFrame:
    """Return a table, or raise the InputError that names line and column of its first mistake."""
    try:
        # Spreadsheets write a byte order mark at the beginning of the file.
        with _open_table(path) as table, io.TextIOWrapper(table, "utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            _check_separator(header, path)
            rows, lines = [], []
            for row in reader:
                if len(row) != len(header):
                    place = f"{display_path(path)}, line {reader.line_num}"
                    expected = f"the {len(header)} of line 1"
                    raise InputError("wrong-field-count", f"{len(row)} fields", file=place, expected=expected)
                rows.append(row)
                lines.append(reader.line_num)
    except FileNotFoundError:
        raise InputError("missing-file", "no such file", file=path) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError("broken-file", f"cannot be read as CSV: {error}", file=path) from None
    except MemoryError:
        problem = "is too large for the memory of this machine"
        raise InputError("too-large", problem, file=path) from None
    header = rename_columns(header, column_rules(schema_name, header))
    fields = list(zip(*rows, strict=True)) or [()] * len(header)
    columns = [rename_values(name, texts) for name, texts in zip(header, fields, strict=True)]
    return _parse_columns(header, columns, lines, schema_name, path)


def check_first_line(path: Path) -> None:
    """Check that the first line of a table is CSV with commas.

    Raises:
        InputError: If it cannot be read as CSV, or its fields are separated by another character.
    """
    try:
        with open(require_regular(path), encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file, strict=True), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError("broken-file", f"cannot be read as CSV: {error}", file=path) from None
    _check_separator(header, path)


def _check_separator(header: Sequence[str], path: Path) -> None:
    """Raise InputError for the separator of spreadsheets in languages with decimal commas."""
    separator = next((sign for sign in OTHER_SEPARATORS if len(header) == 1 and sign in header[0]), None)
    if separator:
        hint = "save it as CSV with commas, and with points in numbers"
        problem = f"its fields are separated by {separator!r}"
        place = f"{display_path(path)}, line 1"
        raise InputError("wrong-separator", problem, file=place, expected="commas", hint=hint)


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
    _parse_columns(header, columns, range(2, len(frame) + 2), schema_name, path)
    with written_whole(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))


def _parse_columns(
    header: Sequence[str], columns: list[list[str]], lines: Sequence[int], schema_name: str, path: Path
) -> pd.DataFrame:
    """Return the texts of columns as a frame with the types of the schema.

    Args:
        header: Names of the columns.
        columns: The texts of each column.
        lines: The line in the file of each row, for errors.
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
        column = np.array(texts.get(name, [str(rules.get("default", ""))] * len(lines)), dtype=object)
        filled = column != ""
        bad = _first_invalid_row(column, filled, rules, name in required and not _is_nullable(rules))
        if bad is not None:
            code, problem = _broken_rule(column[bad], rules), f"{_quote_field(column[bad])} is not allowed"
            place = f"{display_path(path)}, line {lines[bad]}"
            raise InputError(code, problem, file=place, key=name, expected=_describe_rules(rules))
        frame[name] = _to_series(column, filled, _column_type(rules))
    return pd.DataFrame(frame)


def _first_invalid_row(
    column: np.ndarray, filled: np.ndarray, rules: dict[str, Any], needed: bool
) -> int | None:
    """Return the first row that breaks the rules of its column, or None."""
    if needed and not filled.all():
        return int(np.argmin(filled))
    column_type = _column_type(rules)
    distinct = dict.fromkeys(column[filled])
    refused = {text for text in distinct if not _is_allowed(text, rules, column_type)}
    if not refused:
        return None
    return next(row for row, text in enumerate(column) if text in refused)


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


def _is_allowed(text: str, rules: dict[str, Any], column_type: str) -> bool:
    if column_type == "string":
        fits = text in rules.get("enum", (text,)) and len(text) <= rules.get("maxLength", math.inf)
        return fits and re.search(rules.get("pattern", ""), text) is not None
    if not _PATTERNS[column_type].fullmatch(text):
        return _allows_words(rules) and re.search(rules["pattern"], text) is not None
    if column_type == "boolean":
        return True
    return not _is_outside(float(text), rules)


def _allows_words(rules: dict[str, Any]) -> bool:
    """Return whether a column of numbers or booleans can also have words that match its pattern."""
    return "string" in rules.get("type", ()) and _column_type(rules) != "string"


def _to_series(column: np.ndarray, filled: np.ndarray, column_type: str) -> pd.Series:
    """Return texts as a series of a type, with missing values except in the rows that are `filled`."""
    values = np.full(len(column), None, dtype=object)
    values[filled] = [_convert(text, column_type) for text in column[filled]]
    return pd.Series(_as_array(values, column_type))


def _convert(text: str, column_type: str) -> Any:
    """Return the value of an allowed field; a word in a column of numbers stays text."""
    is_word = column_type in _PATTERNS and not _PATTERNS[column_type].fullmatch(text)
    return text if is_word else _CONVERT[column_type](text)


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
