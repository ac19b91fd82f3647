"""Record the SHA-256 of every archive at its first use, and compare later archives with it.

The lock lies next to the table of data sets: table.lock.yaml for those that Ringside ships,
config/datasets.lock.yaml for users' data sets. Users commit it.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import display_path, dump_yaml, load_yaml, write_text
from common.schemas import check
from environments.steps import build_lock, print_progress

HEADER = (
    "# Written at the first use of each archive: its SHA-256. Commit it; remove a line to accept another "
    "archive.\n"
)


def lock_path(table: Path) -> Path:
    """Return the lock of a table of data sets."""
    return table.with_suffix(".lock.yaml")


def read_lock(lock: Path) -> dict[str, Any]:
    """Return the locked SHA-256 by data set and archive; {} if there is no lock yet.

    Raises:
        InputError: If the lock is broken.
    """
    locked: dict[str, Any] = (load_yaml(lock) if lock.is_file() else None) or {}
    check(locked, "dataset_lock", lock)
    return locked


def checksum_conflict(
    dataset: str, declared: Mapping[str, Any], sha256: str, lock: Path
) -> tuple[str, str] | None:
    """Return why an archive's SHA-256 contradicts its entry or the lock, and ``sha256`` or ``lock``.

    Args:
        dataset: Name of the data set.
        declared: The archive's entry in the table.
        sha256: The archive's SHA-256.
        lock: The lock.

    Returns:
        None if neither contradicts it.
    """
    expectations = {
        "sha256": (declared.get("sha256"), "the entry"),
        "lock": (read_lock(lock).get(dataset, {}).get(declared["name"]), display_path(lock)),
    }
    for key, (expected, source) in expectations.items():
        if expected not in (None, sha256):
            return f"its SHA-256 is {sha256}, {source} says {expected}", key
    return None


def mismatch_hint(key: str, dataset: str, name: str, table: Path) -> str:
    """Return what to do if the archive is right and its entry in ``table`` (or its lock) is wrong.

    ``key`` is the wrong key of the entry, or ``lock``.
    """
    if key == "lock":
        lock = display_path(lock_path(table))
        return f"remove {name} of {dataset} from {lock}, which has the SHA-256 of the first use"
    return f"correct {key} of {name} in {display_path(table)} ({dataset})"


def record_sha256(dataset: str, name: str, sha256: str, lock: Path) -> None:
    """Add an archive's SHA-256 to the lock, or print a warning if the lock cannot be written.

    Raises:
        InputError: If another process has meanwhile recorded another SHA-256 for it.
    """
    if read_lock(lock).get(dataset, {}).get(name) == sha256:
        return
    try:
        with build_lock(lock.with_name(f".{lock.name}.flock"), display_path(lock)):
            locked = read_lock(lock)
            recorded = locked.setdefault(dataset, {}).setdefault(name, sha256)
            if recorded != sha256:
                problem = (
                    f"its SHA-256 is {sha256}, another process has just recorded {recorded} in "
                    f"{display_path(lock)}"
                )
                hint = "find out which file is right, remove the other one, and rerun the command"
                raise InputError("checksum-mismatch", problem, file=dataset, key=name, got=sha256, hint=hint)
            write_text(lock, HEADER + dump_yaml(locked))
    except OSError as error:
        print_progress(
            f"{dataset}: {name}: its SHA-256 {sha256} was not recorded, because {display_path(lock)} cannot "
            f"be written: {error.strerror}"
        )


def digests(file: Path) -> tuple[str, str]:
    """Return MD5 and SHA-256 of a file, in hex.

    MD5, which publishers state, detects damage but not forgery.
    """
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(1 << 20):
            md5.update(block)
            sha256.update(block)
    return md5.hexdigest(), sha256.hexdigest()
