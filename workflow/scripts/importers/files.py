"""Find the files to import, and recognize their formats."""

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import digest_file, require_regular
from importers import collective_tests
from importers.values import VALUES, to_level
from training_logs import formats
from training_logs.log import LogError
from training_logs.rows import read_rows

TABLE, NCCL, OSU, COLLECTIVES = "runs", "nccl-tests", "osu", "collectives"
FORMATS = (TABLE, *formats.FORMATS, NCCL, OSU, COLLECTIVES)
_FIELD = re.compile(r"\{(\w+)\}|(\*)")


@dataclass(frozen=True)
class Source:
    """A file to import.

    Attributes:
        path: The file.
        name: Its name in import.yaml: the path below a folder that was given, or else the file name.
        format: One of FORMATS.
        sha256: Its SHA-256.
    """

    path: Path
    name: str
    format: str
    sha256: str


def find_sources(
    names: Sequence[str], format_name: str | None, columns: Mapping[str, str]
) -> tuple[list[Source], list[str]]:
    """Return the files to import, and notes on skipped files of unknown formats.

    Args:
        names: Files, folders and glob patterns.
        format_name: One of FORMATS for all files; None: recognize each file.
        columns: Stated columns by value; a table with one of them is recognized.

    Raises:
        InputError: If a name matches no file, or a file that is named directly has an unknown format.
    """
    sources: dict[Path, Source] = {}
    skipped: list[str] = []
    for name in names:
        for path, display_name, is_named in _files_of(name):
            chosen = format_name or recognize(path, columns)
            if chosen is None:
                if is_named:
                    problem = "is neither a table of runs nor a log of a known format"
                    hint = (
                        "state the column of times, --column seconds=COLUMN, or the format, --format FORMAT"
                    )
                    raise InputError("unknown-format", problem, file=path, expected=FORMATS, hint=hint)
                skipped.append(display_name)
                continue
            sources.setdefault(path.resolve(), Source(path, display_name, chosen, digest_file(path)))
    if not sources:
        raise InputError(
            "missing-file", "has no file that can be imported", file=" ".join(names), expected=FORMATS
        )
    notes = [f"{len(skipped)} files of unknown formats are skipped, such as {skipped[0]}"] if skipped else []
    return list(sources.values()), notes


def _files_of(name: str) -> list[tuple[Path, str, bool]]:
    """Return files with their names in import.yaml, and whether each is named directly, not by a pattern."""
    path = Path(name)
    if path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
        return [(file, file.relative_to(path).as_posix(), False) for file in files]
    if path.exists():
        return [(require_regular(path), path.name, True)]
    matched = sorted(Path(match) for match in glob.glob(name, recursive=True))
    files = [file for file in matched if file.is_file()]
    if not files:
        raise InputError("missing-file", "no such file", file=name)
    folders = takewhile(lambda part: not any(sign in part for sign in "*?["), path.parts[:-1])
    root = Path(*folders)  # the part before the first wildcard
    return [(file, file.relative_to(root).as_posix(), False) for file in files]


def recognize(path: Path, columns: Mapping[str, str]) -> str | None:
    """Return the format of a file, or None if it is not one of FORMATS; `columns` are the stated ones.

    Raises:
        OSError: If it is not a regular file.
    """
    require_regular(path)
    if re.fullmatch(r"\.(py|sh|md|ya?ml|toml|png|pdf|gz|zip|pt)", path.suffix, re.I):
        return None
    if (name := collective_tests.recognize(path)) is not None:
        return name
    name = formats.recognize(path)
    if name not in (None, "steps"):
        return name
    header = _header(path)
    if set(collective_tests.TABLE_COLUMNS) <= header:
        return COLLECTIVES
    if "step" in columns and columns["step"] in header:
        return "steps"
    return TABLE if set(columns.values()) & header or _is_run_table(header) else name


def _header(path: Path) -> set[str]:
    """Return the columns of a table, or an empty set for another file."""
    try:
        _, row = next(iter(read_rows(formats.text_lines(path))), (0, {}))
    except LogError:
        return set()
    return {str(name) for name in row}


def _is_run_table(header: set[str]) -> bool:
    """Return whether columns have at least three values, one of them nodes, devices, framework or model."""
    columns = {name.strip().lower() for name in header}
    names = {name for name, value in VALUES.items() if columns & set(value.columns.split())}
    return len(names) >= 3 and bool(names & {"nodes", "devices", "framework", "model"})


def values_of_name(name: str, pattern: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values and the levels of users' factors that a pattern finds in a file's name.

    In ``n{nodes}/tp{tp}.log``, `nodes` is a value (importers.values), and `tp`, which is not, a user's
    factor. ``*`` matches any text without a slash. The pattern has to match the end of the name.

    Raises:
        InputError: If the pattern does not match, or a matched text is not a valid value.
    """
    expression, end = "", 0
    for match in _FIELD.finditer(pattern):
        expression += re.escape(pattern[end : match.start()])
        expression += "[^/]*" if match[2] else f"(?P<{match[1]}>[^/]+?)"
        end = match.end()
    expression += re.escape(pattern[end:])
    try:
        matched = re.search(rf"(?:^|/){expression}$", name)
    except re.error as error:
        raise InputError("bad-value", f"is not a pattern: {error}", file="--names", got=pattern) from None
    if matched is None:
        raise InputError("bad-value", f"does not match the file {name}", file="--names", got=pattern)
    values: dict[str, Any] = {}
    levels: dict[str, Any] = {}
    for key, text in matched.groupdict().items():
        if key not in VALUES:
            levels[key] = to_level(text)
            continue
        try:
            values[key] = VALUES[key].parse(text)
        except ValueError as error:
            problem = f"{text!r} in {name} is not a valid {VALUES[key].meaning}"
            raise InputError("bad-value", problem, file="--names", got=text, expected=str(error)) from None
    return values, levels


def field_names(pattern: str) -> list[str]:
    """Return the names in braces in a pattern of file names."""
    return [match[1] for match in _FIELD.finditer(pattern) if match[1]]


def mapping_of(entries: Sequence[str], option: str) -> Mapping[str, str]:
    """Return NAME=TEXT options as a mapping.

    Raises:
        InputError: If an entry has no ``=``, or a name occurs twice.
    """
    pairs: dict[str, str] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        if not equals or not name:
            raise InputError(
                "bad-arguments", "is not NAME=TEXT", file=option, got=entry, expected="NAME=TEXT"
            )
        if name in pairs:
            raise InputError("duplicate", f"names {name} twice", file=option, got=entry)
        pairs[name] = text
    return pairs
