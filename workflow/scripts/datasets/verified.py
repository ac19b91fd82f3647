"""Whether prepared files are still what was prepared: asked before every run, so it costs milliseconds.

verified.json lies beside the manifest: of every file its SHA-256, with the size and date that it had when that was found.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from common.files import digest_file, read_json, write_json, written

VERIFIED = "verified.json"


def remember(folder: Path, files: Iterable[Path]) -> None:
    """Write verified.json of files that were just made."""
    found = {str(file.relative_to(folder)): {"written": written(file), "sha256": digest_file(file)} for file in files}
    write_json(folder / VERIFIED, found)


def changed(folder: Path, files: Iterable[Path]) -> Path | None:
    """The first file that is gone or is another than was prepared; None where there is none.

    Size and date are compared; content only where these differ, as in a copy of a cache.
    """
    try:
        known = read_json(folder / VERIFIED)
        stale = []
        for file in files:
            told, now = known[str(file.relative_to(folder))], written(file)
            if now != told["written"]:
                if now is None or digest_file(file) != told["sha256"]:
                    return file
                stale.append((told, now))
    except (OSError, ValueError, TypeError, KeyError):
        return folder / VERIFIED
    for told, now in stale:
        told["written"] = now
    if stale:
        with contextlib.suppress(OSError):  # a cache that only others may write to: compared by content every time
            write_json(folder / VERIFIED, known)
    return None
