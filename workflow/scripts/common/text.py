"""Format text for a terminal or a plain file."""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Any


def alternatives(name: object, choices: Iterable[object]) -> dict[str, Any]:
    """Return fields of an InputError about `name`.

    The field is the `suggestion` with the most similar spelling, else all choices as `expected`.
    """
    names = [str(choice) for choice in choices]
    close = difflib.get_close_matches(str(name), names, n=1)
    return {"suggestion": close[0]} if close else {"expected": names or "none"}


def suggest_pattern(pattern: str, names: Iterable[str], words: Iterable[str] = ()) -> str:
    """Return the probable meaning of a pattern of dotted names that matches none, "" if unclear."""
    choices = list(names)
    if close := difflib.get_close_matches(pattern, [*words, *choices], n=1):
        return close[0]
    parts = {part for name in choices for part in name.split(".")}
    changed = pattern
    for token in re.findall(r"[\w-]{3,}", pattern):
        if not any(token in part for part in parts) and (
            close := difflib.get_close_matches(token, parts, n=1)
        ):
            changed = changed.replace(token, close[0])
    return changed if changed != pattern and fnmatch.filter(choices, changed) else ""


def format_bytes(count: float) -> str:
    """Return a number of bytes in the largest unit of which there is one: kB, MB or GB."""
    unit, name = next((scale for scale in ((1e9, "GB"), (1e6, "MB")) if count >= scale[0]), (1e3, "kB"))
    return f"{count / unit:.1f} {name}"


def format_duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours, rounded for reading."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless there is one: 2 runs."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def join_words(words: Iterable[str]) -> str:
    """Return words as a sentence lists them: a, b and c."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def end_sentence(text: str) -> str:
    """Return a text that ends as a sentence: with a full stop, unless it has its own mark."""
    text = text.rstrip()
    return text if text.endswith((".", "?", "!")) else f"{text}."


def align_columns(rows: Sequence[Sequence[str]], left: Sequence[bool], least: int = 0) -> list[list[str]]:
    """Return the rows with all cells of a column equally wide (at least `least`), aligned `left` or right."""
    widths = [max([least, *map(len, column)]) for column in zip(*rows, strict=True)]
    return [
        [
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, left, strict=True)
        ]
        for row in rows
    ]
