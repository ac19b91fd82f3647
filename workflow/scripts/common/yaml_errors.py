"""Explain what is wrong in a YAML file to the person who wrote it.

The parser reports where it could not continue; the mistake is often above, where it began to read.
"""

import re
from typing import NamedTuple

import yaml

MAX_SHOWN_CHARACTERS = 60  # of a line
# What the parser says -> code of the mistake, and what to do.
_SLIPS = {
    "could not find expected ':'": ("missing-colon", "write it as key: value"),
    "did not find expected <document start>": ("missing-colon", "write it as key: value"),
    "mapping values are not allowed": ("needs-quotes", "put the value in quotes, or correct the indentation"),
    "did not find expected ',' or": ("open-bracket", "close the bracket, or put a comma between the entries"),
    "found unexpected end of stream": ("open-quote", "close the quotation mark"),
    "did not find expected key": ("wrong-indentation", "correct the indentation"),
    "did not find expected '-' indicator": ("wrong-indentation", "correct the indentation"),
    "but found another document": ("second-document", "a file has one document"),
    "found character that cannot start": ("needs-quotes", "put the value in quotes"),
    "found undefined alias": ("needs-quotes", "put the value in quotes"),
    "is not text": ("wrong-type", "put it in quotes"),
    "stands twice": ("duplicate", "remove one"),
}


class LimitError(ValueError):
    """Refuse a text whose values would take minutes or exhaust the interpreter's stack."""


class Slip(NamedTuple):
    """Describe one mistake in a YAML file.

    Attributes:
        line: Its line number (1 is the first), or None if it has no line.
        code: Its code.
        problem: What is wrong.
        hint: What to do.
    """

    line: int | None
    code: str
    problem: str
    hint: str = ""


def explained(error: Exception, text: str) -> Slip:
    """Return the mistake behind an error of the YAML parser."""
    problem = str(getattr(error, "problem", None) or str(error).splitlines()[0])
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return Slip(None, "beyond-limits" if isinstance(error, LimitError) else "invalid-yaml", problem)
    code, hint = next((slip for start, slip in _SLIPS.items() if start in problem), ("invalid-yaml", ""))
    lines, place = text.split("\n"), mark.line
    if code in ("open-bracket", "open-quote") and isinstance(error, yaml.MarkedYAMLError):
        place = error.context_mark.line if error.context_mark else place
    if code == "missing-colon" or (code == "needs-quotes" and not _has_colon(lines, place - 1)):
        # The parser read on to the next colon; what has none is above.
        above = [number for number in range(place) if lines[number].split("#")[0].strip()]
        if above and not _has_colon(lines, above[-1]):
            code, hint, place = "missing-colon", "write it as key: value", above[-1]
    line = lines[place].strip() if place < len(lines) else ""
    if re.match(r" *\t", lines[place] if place < len(lines) else ""):
        code, hint = "tab-indentation", "indent with spaces"
    excerpt = line if len(line) <= MAX_SHOWN_CHARACTERS else f"{line[:MAX_SHOWN_CHARACTERS]}..."
    return Slip(place + 1, code, problem, f"{hint}: {excerpt}" if hint else "")


def _has_colon(lines: list[str], number: int) -> bool:
    return number < 0 or re.search(r":(\s|$)", lines[number]) is not None
