"""epochs.csv of an attempt: what a rank wrote as each epoch ended (runs/worker/meter.py), read as numbers."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runs.worker.meter import COLUMNS


def read_epochs(table: Path) -> list[dict[str, Any]]:
    """The rows of an attempt's epochs.csv as numbers; empty fields are None. ValueError where it is cut off."""
    rows = []
    with open(table, newline="") as text:
        for row in csv.DictReader(text):
            if set(row) != set(COLUMNS) or None in row.values():
                raise ValueError("it is cut off or has other columns")
            rows.append({name: value == "true" if name == "warm_up" else _number(value) for name, value in row.items()})
    return rows


def _number(text: str) -> float | None:
    return float(text) if text else None


def mean_of_timed(epochs: Sequence[Mapping[str, Any]], column: str) -> float | None:
    """Arithmetic mean over the epochs that are not warm-up; None where one of them does not tell."""
    values = [row[column] for row in epochs if not row["warm_up"]]
    return sum(values) / len(values) if values and None not in values else None
