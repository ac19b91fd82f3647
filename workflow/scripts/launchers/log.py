"""Read the end of a run's log."""

import os
from pathlib import Path

LOG_END_BYTES = 1 << 20  # enough to find a cause; a rank can write gigabytes


def read_end(log: Path) -> str:
    """Return the last LOG_END_BYTES of a log, or "" if there is none."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_END_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
