"""Detect edits of built environments.

An environment's digest covers its sources, so editing an installed library does not change it. `seal.json`,
next to environment.json, has two digests of the installed files: of their content, and of their status
(stat(2)), which takes less than a second to compute. Content is read only if the status differs, such as in
a copied cache. Byte code is left out, because Python rewrites it.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import read_json, write_json

SEAL = "seal.json"
BYTECODE = "__pycache__"


def write_seal(folder: Path) -> None:
    """Write the seal of the virtual environment in `folder`/venv."""
    write_json(
        folder / SEAL, {"stat": stat_digest(folder / "venv"), "content": content_digest(folder / "venv")}
    )


def check_seal(folder: Path) -> None:
    """Check that the environment in `folder` has not changed since its build.

    A missing seal is written; a seal whose content still fits gets the new status.

    Raises:
        InputError: If a file was added, removed or edited.
    """
    now = stat_digest(folder / "venv")
    seal = _read_seal(folder)
    if seal is None:
        with contextlib.suppress(OSError):  # Another user's cache can be read-only.
            write_seal(folder)
        return
    if seal.get("stat") == now:
        return
    if seal.get("content") != content_digest(folder / "venv"):
        problem = "was edited after it was built, so its digest no longer identifies the software of runs"
        hint = "remove the folder and start again; the original environment will be built"
        raise InputError("changed-environment", problem, file=folder, hint=hint)
    with contextlib.suppress(OSError):
        write_json(folder / SEAL, {**seal, "stat": now})


def stat_digest(folder: Path) -> str:
    """Return a digest, in hex, of name, size, mode, inode, mtime and ctime of all files below a folder."""
    digest = hashlib.sha256()
    for name, entry in _files(folder):
        status = entry.stat(follow_symlinks=False)
        fields = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        digest.update(f"{name} {fields}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def content_digest(folder: Path) -> str:
    """Return a digest, in hex, of names and content of all files below a folder."""
    digest = hashlib.sha256()
    for name, entry in _files(folder):
        content = os.readlink(entry.path) if entry.is_symlink() else _file_digest(entry.path)
        digest.update(f"{name} {content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _file_digest(file: str) -> str:
    with open(file, "rb") as content:
        # BLAKE2b is twice as fast as SHA-256 on gigabytes.
        return hashlib.file_digest(content, hashlib.blake2b).hexdigest()


def _read_seal(folder: Path) -> dict[str, Any] | None:
    try:
        seal = read_json(folder / SEAL)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return seal if isinstance(seal, dict) else {}


def _files(folder: Path, above: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the relative path and the entry of each file and link below `folder`, in the order of names."""
    with os.scandir(folder) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name == BYTECODE:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path), f"{above}{entry.name}/")
        else:
            yield f"{above}{entry.name}", entry
