"""Format text for a terminal or a plain file."""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Any

_END_OF_SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z\d])")


def alternatives(name: object, choices: Iterable[object]) -> dict[str, Any]:
    """Return a field of the InputError about an unknown `name`.

    It is `suggestion`, the choice with the most similar spelling, or else `expected`, all choices.
    """
    names = [str(choice) for choice in choices]
    close = difflib.get_close_matches(str(name), names, n=1)
    return {"suggestion": close[0]} if close else {"expected": names or "none"}


def suggest_pattern(pattern: str, names: Iterable[str], words: Iterable[str] = ()) -> str:
    """Return a pattern that was probably meant by one that matches none of the dotted `names`, or "".

    Args:
        pattern: The pattern, such as ``*.resnet.*``.
        names: Dotted names, such as those of cells.
        words: Other texts that could be meant.
    """
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
    """Return a number of bytes in GB, MB or kB, in the largest unit that it reaches."""
    unit, name = next((scale for scale in ((1e9, "GB"), (1e6, "MB")) if count >= scale[0]), (1e3, "kB"))
    return f"{count / unit:.1f} {name}"


def format_duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, rounded for reading."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun in the singular or plural, such as `1 run` and `2 runs`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def join_words(words: Iterable[str]) -> str:
    """Return words as a list in a sentence, such as `a, b and c`."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text: each but the first begins with a capital letter or a digit."""
    return _END_OF_SENTENCE.split(text)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, up to a full stop before a capital letter, without that stop."""
    return re.split(r"\.\s+(?=[A-Z])", " ".join(text.split()), maxsplit=1)[0].rstrip(".")


def end_sentence(text: str) -> str:
    """Return a text with a full stop at its end, unless it ends with a mark of its own."""
    text = text.rstrip()
    return text if text.endswith((".", "?", "!")) else f"{text}."


def align_columns(rows: Sequence[Sequence[str]], left: Sequence[bool], min_width: int = 0) -> list[list[str]]:
    """Return rows with cells padded to the width of their column.

    Args:
        rows: The texts of each row.
        left: Whether each column is aligned left instead of right.
        min_width: Smallest width of a column.
    """
    widths = [max([min_width, *map(len, column)]) for column in zip(*rows, strict=True)]
    return [
        [
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, left, strict=True)
        ]
        for row in rows
    ]
