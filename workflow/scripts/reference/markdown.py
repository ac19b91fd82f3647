"""Pieces of Markdown pages that read well on GitHub and on the documentation site."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

_CODE = re.compile(r"(`[^`]*`)")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()) -> str:
    """A table; the columns `numbers` stand to the right.

    Cells are Markdown: `escaped` makes them of plain text.
    """
    rule = ["---:" if name in numbers else "---" for name in header]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (header, rule, *rows))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def escaped(text: str) -> str:
    """Plain text as Markdown: no mark of it is taken for HTML or emphasis. What stands in backticks stays."""
    parts = _CODE.split(text)
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("*", r"\*") for part in parts
    )


def code(value: Any) -> str:
    """A value as YAML has it, in backticks."""
    return f"`{plain(value)}`"


def codes(values: Iterable[Any], between: str = ", ") -> str:
    """Several values."""
    return between.join(map(code, values))


def plain(value: Any) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


def block(text: str, language: str) -> str:
    """A block of code."""
    return f"```{language}\n{text.strip()}\n```"
