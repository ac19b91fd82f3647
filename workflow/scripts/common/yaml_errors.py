"""Explain the mistakes in a YAML file to the person who wrote it.

The parser reports where it could not continue; the mistake itself is often on an earlier line.
"""

import re
from typing import NamedTuple

import yaml

MAX_SHOWN_CHARACTERS = 60  # longer lines are cut in messages
# Part of the parser's message -> code of the mistake, and what to do.
_MISTAKES = {
    "could not find expected ':'": ("missing-colon", "write it as key: value"),
    "did not find expected <document start>": ("missing-colon", "write it as key: value"),
    "mapping values are not allowed": ("needs-quotes", "put the value in quotes, or correct the indentation"),
    "did not find expected ',' or": ("open-bracket", "close the bracket, or put a comma between the entries"),
    "found unexpected end of stream": ("open-quote", "close the quotation mark"),
    "did not find expected key": ("wrong-indentation", "correct the indentation"),
    "did not find expected '-' indicator": ("wrong-indentation", "correct the indentation"),
    "but found another document": ("second-document", "write one document per file"),
    "found character that cannot start": ("needs-quotes", "put the value in quotes"),
    "found undefined alias": ("needs-quotes", "put the value in quotes"),
    "is not text": ("wrong-type", "put it in quotes"),
    "occurs twice": ("duplicate", "remove one"),
}


class LimitError(ValueError):
    """Building the values of a YAML text would take minutes or exhaust the interpreter's stack."""


class YamlMistake(NamedTuple):
    """A mistake in a YAML file.

    Attributes:
        line: Its line number, from 1, or None if the parser names none.
        code: The code of the InputError that reports it.
        problem: What is wrong.
        hint: What to do, followed by the line; "" if unclear.
    """

    line: int | None
    code: str
    problem: str
    hint: str = ""


def explain_yaml_error(error: Exception, text: str) -> YamlMistake:
    """Return the mistake behind an error that parsing `text` has raised."""
    problem = str(getattr(error, "problem", None) or str(error).splitlines()[0])
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        code = "beyond-limits" if isinstance(error, LimitError) else "invalid-yaml"
        return YamlMistake(None, code, problem)
    unknown = ("invalid-yaml", "")
    code, hint = next((mistake for part, mistake in _MISTAKES.items() if part in problem), unknown)
    lines, place = text.split("\n"), mark.line
    if code in ("open-bracket", "open-quote") and isinstance(error, yaml.MarkedYAMLError):
        place = error.context_mark.line if error.context_mark else place
    if code == "missing-colon" or (code == "needs-quotes" and not _has_colon(lines, place - 1)):
        # The parser has read on to the next colon; the line without a colon is above.
        above = [number for number in range(place) if lines[number].split("#")[0].strip()]
        if above and not _has_colon(lines, above[-1]):
            code, hint, place = "missing-colon", "write it as key: value", above[-1]
    line = lines[place].strip() if place < len(lines) else ""
    if re.match(r" *\t", lines[place] if place < len(lines) else ""):
        code, hint = "tab-indentation", "indent with spaces"
    excerpt = line if len(line) <= MAX_SHOWN_CHARACTERS else f"{line[:MAX_SHOWN_CHARACTERS]}..."
    return YamlMistake(place + 1, code, problem, f"{hint}: {excerpt}" if hint else "")


def _has_colon(lines: list[str], number: int) -> bool:
    return number < 0 or re.search(r":(\s|$)", lines[number]) is not None
