"""Write parts of docs/measurements.md between comments, so that each can be measured separately."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from common.errors import InputError
from common.files import CHECKOUT, display_path, write_text

MEASUREMENTS = CHECKOUT / "docs" / "measurements.md"
HEAD = (
    "# Measurements\n\nWhat Ringside itself costs, each with the command and the machine that measured it.\n"
)


def machine() -> str:
    """Return a line with this machine and today's date."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = models[0] if models else platform.machine()
    return f"{os.cpu_count()} cores, {memory:.0f} GiB memory, {processor}; {datetime.now(UTC):%Y-%m-%d}."


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is aligned left, the others right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(title: str, command: str, *paragraphs: str) -> str:
    """Return a part of the document: title, the command that made it, the machine, and the results."""
    return "\n\n".join([f"## {title}", f"`{command}` on {machine()}", *paragraphs])


def with_part(text: str, name: str, part: str) -> str:
    """Return `text` with `part` between the markers of `name`, which are appended if missing."""
    first, last = f"<!-- overhead {name}: made by make bench-overhead -->", f"<!-- end of overhead {name} -->"
    marked = f"{first}\n{part}\n{last}"
    if first not in text and last not in text:
        return f"{text.rstrip()}\n\n{marked}\n"
    before, found_first, rest = text.partition(first)
    _, found_last, after = rest.partition(last)
    if not (found_first and found_last):
        problem = (
            f"{display_path(MEASUREMENTS)}: of the two markers of {name} one is missing; put it back or "
            "remove the other"
        )
        raise InputError("cannot-measure", problem)
    return before + marked + after


def write_part(name: str, part: str, path: Path = MEASUREMENTS) -> None:
    """Put `part` into the document, which is created if missing and written atomically."""
    write_text(path, with_part(path.read_text(encoding="utf-8") if path.exists() else HEAD, name, part))
