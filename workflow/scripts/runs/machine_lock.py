"""Lock a machine for one measurement at a time, of all its users and all its virtual nodes."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from common.errors import InputError
from common.files import acquire_lock, is_locked

MACHINE_LOCK = "/dev/shm/ringside-machine.lock"  # noqa: S108 (all users and virtual nodes of a machine share it)


@contextmanager
def machine_lock(locked_by: str, waiting: Callable[[str], None]) -> Iterator[None]:
    """Lock this machine for one run, so that no two runs of any user overlap on it.

    The system frees the lock when the process that took it ends, however it ends. A supervisor that outlives
    its Snakemake therefore finishes its run, and the next supervisor finds the record.

    Args:
        locked_by: Description of this process, for processes that wait.
        waiting: Called once if this process has to wait, with the description of the process that has
            locked the machine.
    """
    with _open_lock(_machine_lock_file()) as file:
        acquire_lock(file, lambda: waiting(file.read().strip() or "another process"))
        _write_locked_by(file, locked_by + "\n")
        try:
            yield
        finally:
            _write_locked_by(file, "")


def machine_locked_by() -> str | None:
    """Return the description of the process that has locked this machine, or None. Takes no lock."""
    file = _machine_lock_file()
    return file.read_text(errors="replace").strip() or "somebody" if is_locked(file) else None


def _machine_lock_file() -> Path:
    return Path(os.environ.get("RINGSIDE_LOCK", MACHINE_LOCK))


def _open_lock(path: Path) -> TextIO:
    """Return the lock file, open at least for reading: another user's file can be read-only for us.

    All users can write to its folder, so anyone can have put a link, a pipe or a hard link to one of our
    files there. Only a regular file with a single name is used.

    Raises:
        InputError: If it is anything else, or cannot be opened.
    """
    hint = (
        "it keeps two runs from overlapping on this machine; remove it, or name another file in RINGSIDE_LOCK"
    )
    # O_RDWR stands twice: another process can create the file between the first try and O_EXCL.
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
        with contextlib.suppress(PermissionError, FileNotFoundError, FileExistsError):
            try:
                descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                    raise
                raise InputError("no-lock-file", "is not a regular file", file=path, hint=hint) from None
            file_stat = os.fstat(descriptor)
            if not stat.S_ISREG(file_stat.st_mode) or file_stat.st_nlink != 1:
                os.close(descriptor)
                raise InputError(
                    "no-lock-file", "is not a regular file with a single name", file=path, hint=hint
                )
            if flags & os.O_CREAT:
                os.fchmod(descriptor, 0o666)
            return open(descriptor, "r" if flags == os.O_RDONLY else "r+", errors="replace")
    raise InputError("not-writable", "cannot be opened", file=path, hint=hint)


def _write_locked_by(file: TextIO, text: str) -> None:
    """Write who has locked the machine. On a full file system the text is lost, but not the lock."""
    with contextlib.suppress(OSError):
        if file.writable():
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), text.encode(), 0)
