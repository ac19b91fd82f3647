"""Detect changed files of a prepared data set within milliseconds, since every run checks it.

verified.json, next to the manifest, has the SHA-256 of each file, and the file's signature (size, dates,
inode) at the time when the SHA-256 was computed.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from common.files import digest_file, file_signature, read_json, write_json

VERIFIED = "verified.json"


def write_verified(folder: Path, files: Iterable[Path]) -> None:
    """Write verified.json for files that were just prepared."""
    entries = {
        str(file.relative_to(folder)): {"written": file_signature(file), "sha256": digest_file(file)}
        for file in files
    }
    write_json(folder / VERIFIED, entries)


def first_changed_file(folder: Path, files: Iterable[Path]) -> Path | None:
    """Return the first file that is missing or differs from the prepared one, or None.

    Content is compared only if a file's signature has changed, such as in a copied cache. If the content is
    the same, the new signature is written. Return verified.json itself if it is missing or broken.
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
        with contextlib.suppress(OSError):  # In a read-only cache, content is compared every time.
            write_json(folder / VERIFIED, verified)
    return None
