"""Read the log of a run, which may be long."""

import os
from pathlib import Path

LOG_END_BYTES = 1 << 20  # part of a log that is searched for causes: a rank may write gigabytes


def read_end(log: Path) -> str:
    """Return the last LOG_END_BYTES of a log, or "" if there is none."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_END_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
