"""Read and write CSV tables, checked column by column against their schema.

A field is empty where the schema allows null or does not require the column; then the frame holds a missing
value. A frame has every column of its schema, in the schema's order: str, Int64, float64 or boolean. Where a
schema allows numbers and words, a column with a word is an ordered categorical: numbers first. A schema
also lists columns that together are unique (`unique`), and columns that are the same in all rows of a cell
(`same_in_cell`).
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

MAX_COMPRESSION_RATIO = 100  # that of measured tables is about 8; a small file must not fill the memory
OTHER_SEPARATORS = (";", "\t", "|")  # of what spreadsheets call CSV in some languages
# Marks that two readers of CSV may take differently.
UNUSUAL = (b'"', b", ", b" ,", b" \n", b"\t", b"\r", b",+", b",.")
_QUOTED = re.compile(rb'"(?<=[,\n]")((?:[^"\n]++|"")++)"(?=[,\n])')
_OF_TEXTS = {"enum", "pattern", "maxLength"}  # the rules that a text can break
DTYPES = {"string": "str", "integer": "Int64", "number": "float64", "boolean": "boolean"}
_CONVERT: dict[str, Callable[[str], Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": "true".__eq__,
}
_FORMS = {
    "integer": re.compile(r"-?\d{1,18}"),
    "number": re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?"),
    "boolean": re.compile("true|false"),
}


def read_table(path: Path, schema_name: str) -> pd.DataFrame:
    """Return the CSV table `path`.

    A column that it lacks has its default, such as a factor that was added later. Older names of columns and
    values are replaced (`common.renamed`).

    Args:
        path: The file; if only `path`.gz exists, that is read.
        schema_name: The name of its schema.

    Raises:
        InputError: If it breaks its schema, repeats a row (`unique`), or has rows of one cell that contradict
            each other (`same_in_cell`); one line with file, line, column and what was expected.
    """
    path = stored_file(Path(path))
    try:
        frame = _read_at_once(path, schema_name)
    # The reader by field says what is wrong, and where.
    except (OSError, ValueError, OverflowError, MemoryError, pd.errors.ParserWarning):
        frame = _read_by_field(path, schema_name)
    if trouble := _trouble_between_rows(frame, schema_name):
        row, code, problem, fields = trouble
        place = f"{display_path(path)}, line {_line(path, row)}"
        raise InputError(code, problem, file=place, **fields)
    return frame


def _trouble_between_rows(
    frame: pd.DataFrame, schema_name: str
) -> tuple[int, str, str, dict[str, Any]] | None:
    """Return the first row that contradicts or repeats an earlier one, with its error's fields."""
    names = schema(schema_name)["unique"]
    if (again := frame.duplicated(names)).any():
        row = int(again.to_numpy().argmax())
        row_text = ", ".join(f"{name} {_format_value(frame.at[row, name])}" for name in names)
        problem = f"{row_text} {'stands' if len(names) == 1 else 'stand'} twice"
        return row, "duplicate", problem, {"hint": "remove one of the two rows, or make the table again"}
    columns = _same_in_cell(schema_name, frame)
    different = frame[["cell", *columns]].drop_duplicates() if columns else frame[:0]
    if not columns or not (again := different["cell"].duplicated()).any():
        return None
    row = int(different.index[again.to_numpy().argmax()])
    first, later = frame.loc[frame["cell"] == frame.at[row, "cell"]].iloc[0], frame.loc[row]
    name = next(name for name in columns if _format_value(first[name]) != _format_value(later[name]))
    problem = f"{_format_value(later[name])} contradicts an earlier row of cell {first['cell']!r}"
    fields = {"key": name, "expected": _format_value(first[name])}
    return row, "contradicting-rows", problem, {**fields, "hint": "correct one, or make the table again"}


def _same_in_cell(schema_name: str, columns: Iterable[str]) -> list[str]:
    """Return those of the columns that `same_in_cell` names, every factor for `factors`."""
    named = schema(schema_name).get("same_in_cell", [])
    return [
        name for entry in named for name in (column_rules(entry, columns) if entry == "factors" else [entry])
    ]


def _format_value(value: Any) -> str:
    return "nothing" if pd.isna(value) else repr(value) if isinstance(value, str) else str(value)


def _line(path: Path, row: int) -> int:
    """Return the line of a row of `read_table`."""
    with _open_table(path) as table, io.TextIOWrapper(table, "utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        next(itertools.islice(reader, row + 1, None))
        return reader.line_num


@contextmanager
def _open_table(path: Path) -> Iterator[BinaryIO]:
    """Yield the bytes of a table, uncompressed.

    Raises:
        OSError: If it is no regular file, or not compressed as its name says.
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


def _read_at_once(path: Path, schema_name: str) -> pd.DataFrame:
    """Return a plain table of millions of rows in seconds.

    Raises:
        ValueError: If anything is not as expected.
    """
    required = schema(schema_name)["required"]
    quoted: dict[str, str] = {}
    with _open_table(path) as file:
        source: BinaryIO = file
        header, lines, commas, unusual = _counted(source)
        if b'"' in unusual:
            source, quoted = _without_quotes(source)
            header, lines, commas, unusual = _counted(source)
        properties = column_rules(schema_name, header)
        written_names, header = header, rename_columns(header, properties)
        if unusual or commas != lines * (len(header) - 1):  # pandas fills up in silence what a line lacks
            raise ValueError("quotes, or blanks at an end of a field, or a line that is too short")
        if len(set(header)) < len(header) or not set(required) <= set(header) <= set(properties):
            raise ValueError("other columns")
        read_as = {
            written: "float64" if _kind_of(properties[name]) == "number" else "str"
            for written, name in zip(written_names, header, strict=True)
        }
        source.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of a line that is too long
            missing: dict[str, Any] = {"keep_default_na": False, "na_values": [""], "skip_blank_lines": False}
            raw = pd.read_csv(source, dtype=read_as, index_col=False, encoding="utf-8", **missing)
        raw = raw.set_axis(header, axis="columns")
    frame = {}
    for name, rules in properties.items():
        if name not in header:
            default = [str(rules["default"])] * len(raw) if "default" in rules else [""] * len(raw)
            column = np.array(default, dtype=object)
            frame[name] = _typed(column, column != "", _kind_of(rules))
            continue
        column = raw.pop(name)
        if name in required and not _nullable(rules) and column.isna().any():
            raise ValueError("an empty field")
        frame[name] = _checked_at_once(name, column, rules, quoted)
    return pd.DataFrame(frame)


def _counted(source: BinaryIO) -> tuple[list[str], int, int, set[bytes]]:
    """Return the column names, the number of lines after them, of commas, and the UNUSUAL marks."""
    lines = commas = 0
    unusual: set[bytes] = set()
    source.seek(0)
    header = source.readline().decode().rstrip("\n").split(",")
    for block in iter(lambda: source.read(2**24), b""):
        lines, commas = lines + block.count(b"\n"), commas + block.count(b",")
        # The single byte is searched first, since it is found faster.
        unusual.update(mark for mark in UNUSUAL if mark.strip(b",\n") in block and mark in block)
    return header, lines, commas, unusual


def _without_quotes(source: BinaryIO) -> tuple[BinaryIO, dict[str, str]]:
    """Return the table with a placeholder for every quoted field, and the fields of the placeholders."""
    source.seek(0)
    text = source.read()
    if b"\1" in text:
        raise ValueError("a name could be a field")
    names: dict[bytes, bytes] = {}
    plain = _QUOTED.sub(lambda field: names.setdefault(field[1], b"\1%d" % len(names)), text)
    return io.BytesIO(plain), {
        name.decode(): field.decode().replace('""', '"') for field, name in names.items()
    }


def _checked_at_once(
    name: str, column: pd.Series, rules: dict[str, Any], quoted: dict[str, str]
) -> pd.Series:
    kind = _kind_of(rules)
    if kind != "number":
        free = kind == "string" and not _OF_TEXTS & set(rules) and not has_older_values(name)
        if free and not quoted:
            return column
        codes, distinct = pd.factorize(column)
        texts = rename_values(name, [quoted.get(text, text) for text in distinct.tolist()])
        if not free and not all(_allowed(text, rules, kind) for text in texts):
            raise ValueError("a field that is not allowed")
        values = _as_array([_convert(text, kind) for text in texts], kind)
        return pd.Series(values.take(codes, allow_fill=True))
    values = column.to_numpy()
    values = values[~np.isnan(values)]
    if _outside(values, rules).any():
        raise ValueError("a number that is not allowed")
    return column.astype(DTYPES[kind])


def _outside(values: Any, rules: dict[str, Any]) -> Any:
    """Return which numbers are infinite, or outside the limits of their column."""
    return (
        ~np.isfinite(values)
        | (values < rules.get("minimum", -math.inf))
        | (values > rules.get("maximum", math.inf))
        | (values <= rules.get("exclusiveMinimum", -math.inf))
        | (values >= rules.get("exclusiveMaximum", math.inf))
    )


def _read_by_field(path: Path, schema_name: str) -> pd.DataFrame:
    try:
        # Spreadsheets begin the file with a byte order mark.
        with _open_table(path) as table, io.TextIOWrapper(table, "utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            _refuse_other_separator(header, path)
            rows, lines = [], []
            for row in reader:
                if len(row) != len(header):
                    place, expected = (
                        f"{display_path(path)}, line {reader.line_num}",
                        f"the {len(header)} of line 1",
                    )
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
    return _checked(header, columns, lines, schema_name, path)


def check_first_line(path: Path) -> None:
    """Check that the first line of a table is text with commas.

    Raises:
        InputError: If it cannot be read as CSV, or its fields are separated by another sign.
    """
    try:
        with open(require_regular(path), encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file, strict=True), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError("broken-file", f"cannot be read as CSV: {error}", file=path) from None
    _refuse_other_separator(header, path)


def _refuse_other_separator(header: Sequence[str], path: Path) -> None:
    """Raise InputError for a table as spreadsheets write it where a comma is part of a number."""
    separator = next((sign for sign in OTHER_SEPARATORS if len(header) == 1 and sign in header[0]), None)
    if separator:
        hint = "save it as CSV with commas, and with points in numbers"
        problem = f"its fields are separated by {separator!r}"
        place = f"{display_path(path)}, line 1"
        raise InputError("wrong-separator", problem, file=place, expected="commas", hint=hint)


def read_results(path: Path) -> pd.DataFrame:
    """Return a CSV table of results, with the types that pandas infers and older names replaced.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is no table.
    """
    frame = pd.read_csv(path)
    frame = frame.set_axis(rename_columns(list(frame)), axis="columns")
    changed = {name: rename_values(name, frame[name].tolist()) for name in frame if has_older_values(name)}
    return frame.assign(**changed)


def write_table(frame: pd.DataFrame, schema_name: str, path: Path) -> None:
    """Write `frame` as CSV, whole or not at all: columns in the schema's order, numbers with all digits.

    Raises:
        InputError: If the frame breaks its schema; nothing is written then.
    """
    path = Path(path)
    rules = column_rules(schema_name, frame)
    known_columns = [name for name in rules if name in frame]
    header = known_columns + [name for name in frame if name not in known_columns]
    columns = [_texts(frame[name], _kind_of(rules.get(name, {}))) for name in header]
    _checked(header, columns, range(2, len(frame) + 2), schema_name, path)
    with written_whole(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))


def _checked(
    header: Sequence[str], columns: list[list[str]], lines: Sequence[int], schema_name: str, path: Path
) -> pd.DataFrame:
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
            raise InputError("duplicate", "the column is there twice", file=top, key=name, got=name)
    for name in required:
        if name not in header:
            expected = properties[name].get("description", "a value")
            raise InputError("missing-key", "the column is missing", file=top, key=name, expected=expected)
    texts = dict(zip(header, columns, strict=True))
    frame = {}
    for name, rules in properties.items():
        column = np.array(texts.get(name, [str(rules.get("default", ""))] * len(lines)), dtype=object)
        filled = column != ""
        bad = _first_bad(column, filled, rules, name in required and not _nullable(rules))
        if bad is not None:
            code, problem = _broken_rule(column[bad], rules), f"{_short(column[bad])} is not allowed"
            place = f"{display_path(path)}, line {lines[bad]}"
            raise InputError(code, problem, file=place, key=name, expected=_expected(rules))
        frame[name] = _typed(column, filled, _kind_of(rules))
    return pd.DataFrame(frame)


def _first_bad(column: np.ndarray, filled: np.ndarray, rules: dict[str, Any], needed: bool) -> int | None:
    """Return the first row that breaks the rules of its column."""
    if needed and not filled.all():
        return int(np.argmin(filled))
    kind = _kind_of(rules)
    distinct = dict.fromkeys(column[filled])
    refused = {text for text in distinct if not _allowed(text, rules, kind)}
    if not refused:
        return None
    return next(row for row, text in enumerate(column) if text in refused)


def _broken_rule(text: str, rules: dict[str, Any]) -> str:
    """Return the code of the error that a field has which its column does not allow."""
    kind = _kind_of(rules)
    if text == "":
        return "missing-value"
    if kind != "string":
        return "out-of-range" if _FORMS[kind].fullmatch(text) else "wrong-type"
    if "enum" in rules:
        return "not-one-of"
    return "too-long" if len(text) > rules.get("maxLength", math.inf) else "bad-pattern"


def _allowed(text: str, rules: dict[str, Any], kind: str) -> bool:
    if kind == "string":
        fits = text in rules.get("enum", (text,)) and len(text) <= rules.get("maxLength", math.inf)
        return fits and re.search(rules.get("pattern", ""), text) is not None
    if not _FORMS[kind].fullmatch(text):
        return _takes_words(rules) and re.search(rules["pattern"], text) is not None
    if kind == "boolean":
        return True
    return not _outside(float(text), rules)


def _takes_words(rules: dict[str, Any]) -> bool:
    """Return whether a column of numbers may also have words of a pattern."""
    return "string" in rules.get("type", ()) and _kind_of(rules) != "string"


def _typed(column: np.ndarray, filled: np.ndarray, kind: str) -> pd.Series:
    values = np.full(len(column), None, dtype=object)
    values[filled] = [_convert(text, kind) for text in column[filled]]
    return pd.Series(_as_array(values, kind))


def _convert(text: str, kind: str) -> Any:
    """Return the value of an allowed field; a word in a column of numbers stays a text."""
    return _CONVERT[kind](text) if kind not in _FORMS or _FORMS[kind].fullmatch(text) else text


def _as_array(values: Sequence[Any] | np.ndarray, kind: str) -> Any:
    """Return values as an array of a kind; numbers and words, as an ordered categorical."""
    words = {value for value in values if isinstance(value, str)} if kind != "string" else set()
    if not words:
        return pd.array(values, dtype=DTYPES[kind])
    numbers = {value for value in values if value is not None} - words
    return pd.Categorical(values, categories=[*sorted(numbers), *sorted(words)], ordered=True)


def _texts(column: pd.Series, kind: str) -> list[str]:
    empty = column.isna().to_numpy(dtype=bool)
    values = ["" if is_empty else value for is_empty, value in zip(empty, column.tolist(), strict=True)]
    match kind:
        case "integer":
            return [str(int(x)) if isinstance(x, float) and x.is_integer() else str(x) for x in values]
        case "number":
            return [x if isinstance(x, str) else repr(float(x)) for x in values]  # nothing, or a word
        case "boolean":
            return [str(x).lower() for x in values]
    return [str(x) for x in values]


def _kind_of(rules: dict[str, Any]) -> str:
    kinds = rules.get("type", "string")
    return kinds if isinstance(kinds, str) else next(kind for kind in kinds if kind != "null")


def _nullable(rules: dict[str, Any]) -> bool:
    return "null" in rules.get("type", ()) or None in rules.get("enum", ())


def _expected(rules: dict[str, Any]) -> str | list[str]:
    if "enum" in rules:
        return [level for level in rules["enum"] if level is not None]
    kind = _kind_of(rules)
    words = {
        "string": "a text",
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
    }[kind]
    limits = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    limit_texts = [f"{word} {rules[key]}" for key, word in limits.items() if key in rules]
    if "pattern" in rules and kind == "string":
        limit_texts.append(f"of the form {rules['pattern']}")
    text = " ".join([words, " and ".join(limit_texts)]).strip()
    word = rules.get("pattern", "").removeprefix("^").removesuffix(r"\Z")
    return f"{text}, or {word}" if _takes_words(rules) else text


def _short(text: str) -> str:
    if text == "":
        return "an empty field"
    return repr(text) if len(text) <= 40 else repr(text[:37] + "...")
