"""Read epochs.csv of an attempt, to which a rank adds a line per epoch (ranks/worker/epoch_timer.py)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import require_regular
from ranks.worker.epoch_timer import COLUMNS


def read_lines(table: Path) -> list[str]:
    """Return the lines of an epochs.csv after its header, one per epoch.

    Raises:
        ValueError: If the file is cut off or has other columns.
    """
    header, *lines = require_regular(table).read_text(encoding="ascii").split("\n")
    is_complete = not lines or (header.split(",") == list(COLUMNS) and lines.pop() == "")
    if not is_complete or {line.count(",") for line in lines} - {len(COLUMNS) - 1}:
        raise ValueError("it is cut off or has other columns")
    return lines


def read_epochs(table: Path) -> list[dict[str, Any]]:
    """Return the rows of an epochs.csv as numbers, empty fields as None.

    Raises:
        ValueError: If the file is cut off or has other columns.
    """
    rows = (zip(COLUMNS, line.split(","), strict=True) for line in read_lines(table))
    return [
        {name: text == "true" if name == "warm_up" else _number(text) for name, text in row} for row in rows
    ]


def _number(text: str) -> float | None:
    return float(text) if text else None


def mean_of_timed(epochs: Sequence[Mapping[str, Any]], column: str) -> float | None:
    """Return the arithmetic mean over the timed epochs, or None if one of them has no value."""
    values = [row[column] for row in epochs if not row["warm_up"]]
    return sum(values) / len(values) if values and None not in values else None
