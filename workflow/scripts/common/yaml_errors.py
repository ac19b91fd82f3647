"""Explain what is wrong in a YAML file to the person who wrote it.

The parser reports where it could not continue; the mistake is often above.
"""

import re
from typing import Any, NamedTuple

import yaml

MAX_SHOWN_CHARACTERS = 60  # of a line
PLAIN = r"""[A-Za-z][\w.-]*"""  # a key as files here have them

_NO_KEYS = "did not find expected <document start>"  # the first line is text, not a key


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
    mark, began = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    if mark is None:
        return Slip(None, "beyond-limits" if isinstance(error, LimitError) else "invalid-yaml", problem)
    lines = text.split("\n")
    number = mark.line + 1
    line_text = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line_text[: len(line_text) - len(line_text.lstrip())]:
        tab = "a tab stands at the beginning of the line"
        return Slip(number, "tab-indentation", tab, f"indent with spaces: {_cut(line_text)}")
    if isinstance(error, yaml.constructor.ConstructorError):
        return _explain_key(number, problem, line_text)
    if problem in ("could not find expected ':'", "mapping values are not allowed in this context", _NO_KEYS):
        return _explain_colon(lines, mark, problem)
    if began is not None and problem.startswith("did not find expected ',' or "):
        bracket = problem[-2]
        opened = f"what begins with '{'[' if bracket == ']' else '{'}' does not end in '{bracket}'"
        return Slip(
            began.line + 1, "open-bracket", f"{opened}, or a comma is missing: {_cut(lines[began.line])}"
        )
    if began is not None and problem == "found unexpected end of stream":
        return Slip(
            began.line + 1, "open-quote", f"a quotation mark is not closed: {_cut(lines[began.line])}"
        )
    if problem == "did not find expected key" and line_text.lstrip().startswith(":"):
        return _explain_key(number, "key None is not text", line_text)
    if problem in ("did not find expected key", "did not find expected '-' indicator"):
        outside = "the line does not begin below the one that it belongs to"
        return Slip(number, "wrong-indentation", outside, f"correct its indentation: {_cut(line_text)}")
    if problem == "but found another document":
        return Slip(number, "second-document", "a second document begins here (---)", "a file has one")
    if problem in ("found character that cannot start any token", "found undefined alias"):
        return Slip(
            number,
            "needs-quotes",
            "the value begins with a sign of YAML's own",
            f"put it in quotes: {_cut(line_text)}",
        )
    return Slip(number, "invalid-yaml", problem)


def _cut(line: str) -> str:
    line = line.strip()
    return line if len(line) <= MAX_SHOWN_CHARACTERS else f"{line[:MAX_SHOWN_CHARACTERS]}..."


def _explain_key(number: int, problem: str, line: str) -> Slip:
    """Return the mistake of a key that is not text, or is repeated."""
    if problem == "key None is not text" and line.lstrip().startswith((":", "?")):
        return Slip(number, "missing-key", "a key has no name", f"write it before the colon: {_cut(line)}")
    if problem.endswith("is not text"):
        return Slip(number, "wrong-type", problem, "put it in quotes")
    if problem.endswith("stands twice"):
        return Slip(number, "duplicate", problem, "remove one")
    return Slip(number, "invalid-yaml", problem)


def _explain_colon(lines: list[str], mark: Any, problem: str) -> Slip:
    """Return the mistake of a line with a missing or surplus colon; the parser read on to the next one."""
    number = mark.line + 1
    if problem.startswith("could not") or problem == _NO_KEYS:  # what has none is above
        return _explain_missing_colon(lines, _above(lines, number))
    line, above = lines[mark.line], _above(lines, number)
    upper = lines[above - 1] if above else ""
    if re.search(r":(\s|$)", line[: mark.column]):
        key, _, value = line.partition(": ")
        sign = "'" if '"' in value else '"'
        quoted = f"{_cut(key)}: {sign}{_cut(value)}{sign}"
        return Slip(number, "needs-quotes", "a colon stands in the value", f"put it in quotes: {quoted}")
    if upper and not re.search(r":(\s|$)", upper):
        return _explain_missing_colon(lines, above)
    deeper = "the line is indented deeper than the one above, which has a value"
    return Slip(number, "wrong-indentation", deeper, f"correct the indentation: {_cut(line)}")


def _above(lines: list[str], number: int) -> int:
    """Return the number of the last earlier line with content, 0 if there is none."""
    return next((place for place in range(number - 1, 0, -1) if lines[place - 1].split("#")[0].strip()), 0)


def _explain_missing_colon(lines: list[str], number: int) -> Slip:
    """Return the mistake of a line that should be a key and its value."""
    content = lines[number - 1].split(" #", maxsplit=1)[0].strip()
    if pair := re.fullmatch(rf"({PLAIN}):(\S.*)", content):
        missing = "a space is missing after the colon"
        return Slip(number, "missing-space", missing, f"write {_cut(f'{pair[1]}: {pair[2]}')}")
    if pair := re.fullmatch(rf"({PLAIN})\s+(.*)", content):
        missing = "a colon is missing after the key"
        return Slip(number, "missing-colon", missing, f"write {_cut(f'{pair[1]}: {pair[2]}')}")
    return Slip(number, "missing-colon", f"a colon is missing: {_cut(content)}")
