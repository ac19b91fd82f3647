"""epochs.csv of an attempt: what a rank wrote as each epoch ended (ranks/worker/meter.py)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import regular
from ranks.worker.meter import COLUMNS


def read_lines(table: Path) -> list[str]:
    """The lines of an attempt's epochs.csv after its header, one an epoch. ValueError where it is cut off."""
    header, *lines = regular(table).read_text(encoding="ascii").split("\n")
    whole = not lines or (header.split(",") == list(COLUMNS) and lines.pop() == "")
    if not whole or {line.count(",") for line in lines} - {len(COLUMNS) - 1}:
        raise ValueError("it is cut off or has other columns")
    return lines


def read_epochs(table: Path) -> list[dict[str, Any]]:
    """The rows of an attempt's epochs.csv as numbers; empty fields are None. ValueError where it is cut off."""
    rows = (zip(COLUMNS, line.split(","), strict=True) for line in read_lines(table))
    return [{name: text == "true" if name == "warm_up" else _number(text) for name, text in row} for row in rows]


def _number(text: str) -> float | None:
    return float(text) if text else None


def mean_of_timed(epochs: Sequence[Mapping[str, Any]], column: str) -> float | None:
    """Arithmetic mean over the epochs that are not warm-up; None where one of them does not tell."""
    values = [row[column] for row in epochs if not row["warm_up"]]
    return sum(values) / len(values) if values and None not in values else None
