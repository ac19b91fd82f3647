"""Detect changed files of a prepared data set within milliseconds, because every run asks.

verified.json, next to the manifest, has the SHA-256 of every file, and the size and date it had when that was
computed.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from common.files import digest_file, file_signature, read_json, write_json

VERIFIED = "verified.json"


def write_verified(folder: Path, files: Iterable[Path]) -> None:
    """Write verified.json of newly written files."""
    entries = {
        str(file.relative_to(folder)): {"written": file_signature(file), "sha256": digest_file(file)}
        for file in files
    }
    write_json(folder / VERIFIED, entries)


def first_changed_file(folder: Path, files: Iterable[Path]) -> Path | None:
    """Return the first file that is missing or differs from the prepared one, or None.

    Content is compared only if size or date differ, as in a copy of a cache.
    """
    try:
        verified = read_json(folder / VERIFIED)
        stale = []
        for file in files:
            entry, now = verified[str(file.relative_to(folder))], file_signature(file)
            if now != entry["written"]:
                if now is None or digest_file(file) != entry["sha256"]:
                    return file
                stale.append((entry, now))
    except (OSError, ValueError, TypeError, KeyError):
        return folder / VERIFIED
    for entry, now in stale:
        entry["written"] = now
    if stale:
        with contextlib.suppress(OSError):  # a read-only cache is compared by content every time
            write_json(folder / VERIFIED, verified)
    return None
