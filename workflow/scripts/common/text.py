"""Text for people to read in a terminal or a plain file."""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Any


def alternatives(name: object, known: Iterable[object]) -> dict[str, Any]:
    """Return the fields of an InputError about `name`: the `suggestion` that is spelt almost alike, else all that is `expected`."""
    names = [str(one) for one in known]
    close = difflib.get_close_matches(str(name), names, n=1)
    return {"suggestion": close[0]} if close else {"expected": names or "none"}


def suggest_pattern(pattern: str, names: Iterable[str], words: Iterable[str] = ()) -> str:
    """Return what was probably meant by a pattern of dotted names that fits none of them; nothing where that is not clear.

    Args:
        pattern: As fnmatch takes it, such as ``*pytorch-dpp*``.
        names: Names to choose from, such as ``pytorch-ddp.small-cnn.b16.r1``.
        words: Other words that may stand in place of a pattern.
    """
    known = list(names)
    if close := difflib.get_close_matches(pattern, [*words, *known], n=1):
        return close[0]
    parts = {part for name in known for part in name.split(".")}
    changed = pattern
    for token in re.findall(r"[\w-]{3,}", pattern):
        if not any(token in part for part in parts) and (
            close := difflib.get_close_matches(token, parts, n=1)
        ):
            changed = changed.replace(token, close[0])
    return changed if changed != pattern and fnmatch.filter(known, changed) else ""


def size(count: float) -> str:
    """A number of bytes in the largest unit of which there is one: kB, MB or GB."""
    unit, name = next((each for each in ((1e9, "GB"), (1e6, "MB")) if count >= each[0]), (1e3, "kB"))
    return f"{count / unit:.1f} {name}"


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours, as a person would say it."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def number_of(count: int, what: str) -> str:
    """`count` and `what`, in the plural unless there is one: 2 runs."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def aligned(rows: Sequence[Sequence[str]], left: Sequence[bool], least: int = 0) -> list[list[str]]:
    """The rows with every cell as wide as the widest of its column (`least` at least), to the `left` or else to the right."""
    widths = [max([least, *map(len, column)]) for column in zip(*rows, strict=True)]
    return [
        [
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, left, strict=True)
        ]
        for row in rows
    ]
