"""The SHA-256 of every archive as it was at its first use: to be committed, and held to from then on.

The lock of a table of data sets lies beside it: table.lock.yaml for those that ship, config/datasets.lock.yaml for a user's own.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from common.errors import InputError
from common.files import dump_yaml, load_yaml, shown, write_text
from common.schemas import check
from environments.steps import build_lock, print_progress

HEAD = "# Written at the first use of each archive: its SHA-256. Commit it; remove a line to take another archive.\n"


def lock_of(table: Path) -> Path:
    """The lock of a table of data sets."""
    return table.with_suffix(".lock.yaml")


def read_lock(lock: Path) -> dict[str, Any]:
    """Data set -> archive -> SHA-256; nothing where there is no lock yet. InputError for a broken one."""
    known: dict[str, Any] = (load_yaml(lock) if lock.is_file() else None) or {}
    check(known, "dataset_lock", lock)
    return known


def objection(dataset: str, declared: Mapping[str, Any], sha256: str, lock: Path) -> tuple[str, str] | None:
    """Why an archive with this SHA-256 is not the `declared` one, and who says so (sha256: its entry; lock); None where nobody does."""
    held_to = {
        "sha256": (declared.get("sha256"), "the entry"),
        "lock": (read_lock(lock).get(dataset, {}).get(declared["name"]), shown(lock)),
    }
    for key, (wanted, who) in held_to.items():
        if wanted not in (None, sha256):
            return f"its SHA-256 is {sha256}, {who} says {wanted}", key
    return None


def locked_line(dataset: str, name: str, lock: Path) -> int:
    """The number of the line in the lock that holds the SHA-256 of an archive."""
    tree: Any = yaml.compose(lock.read_text(encoding="utf-8"))
    archives = next(value for key, value in tree.value if key.value == dataset)
    return 1 + next(key.start_mark.line for key, _ in archives.value if key.value == name)


def remedy(key: str, dataset: str, name: str, table: Path) -> str:
    """What a person does where an archive is right and what is said of it is wrong; `key` is what says so, in `table` or its lock."""
    if key == "lock":
        lock = lock_of(table)
        line = locked_line(dataset, name, lock)
        return f"remove line {line} of {shown(lock)}, which holds the SHA-256 of its first use"
    return f"correct {key} of {name} in {shown(table)} ({dataset})"


def record_sha256(dataset: str, name: str, sha256: str, lock: Path) -> None:
    """Add an archive that the lock lacks. Where the checkout cannot be written to, it is said and nothing else.

    InputError when another process has meanwhile added another archive of that name.
    """
    if read_lock(lock).get(dataset, {}).get(name) == sha256:
        return
    try:
        with build_lock(lock.with_name(f".{lock.name}.flock"), shown(lock)):
            known = read_lock(lock)
            held = known.setdefault(dataset, {}).setdefault(name, sha256)
            if held != sha256:
                raise InputError(
                    "checksum-mismatch",
                    f"its SHA-256 is {sha256}, another process has just recorded {held} in {shown(lock)}",
                    file=dataset,
                    key=name,
                    got=sha256,
                    hint="find out which file is the right one, then remove the other and start again",
                )
            write_text(lock, HEAD + dump_yaml(known))
    except OSError as error:
        print_progress(
            f"{dataset}: {name}: its SHA-256 {sha256} was not recorded, because {shown(lock)} cannot be written: {error.strerror}"
        )


def digests(file: Path) -> tuple[str, str]:
    """MD5 (as published: it tells what is broken, not what is forged) and SHA-256 of a file, in hex."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(1 << 20):
            md5.update(block)
            sha256.update(block)
    return md5.hexdigest(), sha256.hexdigest()
