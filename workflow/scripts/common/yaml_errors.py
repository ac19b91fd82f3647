"""What is wrong in a YAML file, in words for who wrote it. The parser says where it could not go on; the slip is often above."""

import re
from typing import Any

import yaml

LONGEST = 60  # characters of a line that are shown
PLAIN = r"""[A-Za-z][\w.-]*"""  # a key as files here have them

_NO_KEYS = "did not find expected <document start>"  # the first line is text, not a key


def explained(error: Exception, text: str) -> tuple[int | None, str]:
    """The number of the line (1 is the first; None where it is of no line) and what is wrong there, with what to do."""
    problem = str(getattr(error, "problem", None) or str(error).splitlines()[0])
    mark, began = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    if mark is None:
        return None, problem
    lines = text.split("\n")
    number = mark.line + 1
    here = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in here[: len(here) - len(here.lstrip())]:
        return number, f"a tab stands at the beginning of the line; indent with spaces: {_cut(here)}"
    if isinstance(error, yaml.constructor.ConstructorError):
        return number, _of_a_key(problem, here)
    if problem in ("could not find expected ':'", "mapping values are not allowed in this context", _NO_KEYS):
        return _of_a_colon(lines, mark, problem)
    if began is not None and problem.startswith("did not find expected ',' or "):
        bracket = problem[-2]
        return began.line + 1, (
            f"what begins with '{'[' if bracket == ']' else '{'}' does not end in '{bracket}', or a comma is missing: {_cut(lines[began.line])}"
        )
    if began is not None and problem == "found unexpected end of stream":
        return began.line + 1, f"a quotation mark is not closed: {_cut(lines[began.line])}"
    if problem == "did not find expected key" and here.lstrip().startswith(":"):
        return number, _of_a_key("key None is not text", here)
    if problem in ("did not find expected key", "did not find expected '-' indicator"):
        return (
            number,
            f"the line does not begin below the one that it belongs to; correct its indentation: {_cut(here)}",
        )
    if problem == "but found another document":
        return number, "a second document begins here (---); a file has one"
    if problem in ("found character that cannot start any token", "found undefined alias"):
        return number, f"the value begins with a sign of YAML's own; put it in quotes: {_cut(here)}"
    return number, problem


def _cut(line: str) -> str:
    line = line.strip()
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def _of_a_key(problem: str, line: str) -> str:
    """Of a key that is no text, or stands twice."""
    if problem == "key None is not text" and line.lstrip().startswith((":", "?")):
        return f"a key has no name; write it before the colon: {_cut(line)}"
    if problem.endswith("is not text"):
        return f"{problem}; put it in quotes"
    return f"{problem}; remove one" if problem.endswith("stands twice") else problem


def _of_a_colon(lines: list[str], mark: Any, problem: str) -> tuple[int, str]:
    """Of a line without a colon, or with one too many: the parser has read on until the next colon."""
    number = mark.line + 1
    if problem.startswith("could not") or problem == _NO_KEYS:  # what has none is above
        number = _above(lines, number)
        return number, _without(lines[number - 1])
    line, above = lines[mark.line], _above(lines, number)
    upper = lines[above - 1] if above else ""
    if re.search(r":(\s|$)", line[: mark.column]):
        key, _, value = line.partition(": ")
        sign = "'" if '"' in value else '"'
        return number, f"a colon stands in the value; put it in quotes: {_cut(key)}: {sign}{_cut(value)}{sign}"
    if upper and not re.search(r":(\s|$)", upper):
        return above, _without(upper)
    return (
        number,
        f"the line is indented deeper than the one above, which has a value; correct the indentation: {_cut(line)}",
    )


def _above(lines: list[str], number: int) -> int:
    """The last line before this one that says anything; 0 for none."""
    return next((place for place in range(number - 1, 0, -1) if lines[place - 1].split("#")[0].strip()), 0)


def _without(line: str) -> str:
    """Of a line that should be a key and its value."""
    said = line.split(" #", maxsplit=1)[0].strip()
    if found := re.fullmatch(rf"({PLAIN}):(\S.*)", said):
        return f"a space is missing after the colon; write {_cut(f'{found[1]}: {found[2]}')}"
    if found := re.fullmatch(rf"({PLAIN})\s+(.*)", said):
        return f"a colon is missing after the key; write {_cut(f'{found[1]}: {found[2]}')}"
    return f"a colon is missing: {_cut(said)}"
