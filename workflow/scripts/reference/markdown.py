"""Write pieces of Markdown pages that read well on GitHub and on the documentation site."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from common.files import CHECKOUT

_CODE = re.compile(r"(`[^`]*`)")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()) -> str:
    """Return a Markdown table; the columns in `numbers` are right-aligned.

    Cells are Markdown: pass plain text through `escaped` first.
    """
    rule = ["---:" if name in numbers else "---" for name in header]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (header, rule, *rows))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def escaped(text: str) -> str:
    """Escape HTML and emphasis characters of plain text for Markdown, except in backticks."""
    parts = _CODE.split(text)
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("*", r"\*") for part in parts
    )


def code(value: Any) -> str:
    """Return a value as YAML writes it, in backticks."""
    return f"`{plain(value)}`"


def codes(values: Iterable[Any]) -> str:
    """Return values as YAML writes them, each in backticks, with commas between them."""
    return ", ".join(map(code, values))


def plain(value: Any) -> str:
    """Return a value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


def block(text: str, language: str) -> str:
    """Return a fenced code block."""
    return f"```{language}\n{text.strip()}\n```"


def read(file: str) -> str:
    """Return the text of a file of the checkout."""
    return (CHECKOUT / file).read_text(encoding="utf-8")
