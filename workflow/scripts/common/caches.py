"""Decide which users a cache trusts, and which users may use what is built in it.

A cache contains interpreters and images that runs execute, and data sets on which they train. It trusts the
current user, root, and the owner of the cache's folder. If that folder has the set-group-ID bit and is
writable for its group (``chmod g+ws``), it also trusts the group. Files that another user owns or may write
to are refused. Below a folder that only its owner may enter, nothing is checked, since no one else can reach
it.

The permissions of the cache's folder decide who else may use the cache, whatever the umask of the first user
who builds in it. Standard library only.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from common.errors import InputError

ROOT = 0
PARTS = ("environments", "wheels", "datasets", "downloads", "bundle", "fetched", "installed")
HINT = "remove it, or run chmod -R go-w on it; to share a cache with a group, run chmod -R g+ws on the cache"


def check_cache(cache: Path) -> None:
    """Check a cache's folder and those of its parts that exist; see `check_trusted`."""
    for folder in (cache, *(cache / part for part in PARTS)):
        check_trusted(folder, cache)


def check_trusted(path: Path, cache: Path) -> None:
    """Check that only users whom a cache trusts can have created or can change `path`, which lies in it.

    Raises:
        InputError: If another user owns it or may write to it, or to a folder on the way to it.
    """
    if fault := find_untrusted(path, cache):
        place, problem = fault
        raise InputError("untrusted-cache", problem, file=place, got=str(place), hint=HINT)


def find_untrusted(path: Path, cache: Path) -> tuple[Path, str] | None:
    """Return the first untrusted folder or file on the way to `path`, and the reason, or None.

    A file or folder that does not exist is trusted.
    """
    cache = Path(os.path.realpath(cache))
    trusted = {ROOT, os.geteuid()}
    group = _shared_group(cache)
    # A link can be replaced where it lies, so the path with links is checked, too.
    for way in dict.fromkeys([Path(os.path.abspath(path)), Path(os.path.realpath(path))]):
        sticky = False  # whether the parent lets anybody create entries, such as /tmp
        for folder, status in _way_to(way):
            inside = folder == cache or cache in folder.parents
            owner = status.st_uid
            if folder == cache and not sticky:
                trusted.add(owner)
            if owner not in trusted and (sticky or (inside and group is None)):
                return folder, f"belongs to {_user(owner)}, whom the cache {cache} does not trust"
            if stat.S_ISLNK(status.st_mode):
                sticky = False
                continue
            sticky = bool(status.st_mode & stat.S_IWOTH and status.st_mode & stat.S_ISVTX)
            if status.st_mode & stat.S_IWOTH and not sticky:
                return folder, "may be written to by anybody"
            if inside and status.st_mode & stat.S_IWGRP and status.st_gid not in (group, *_private_groups()):
                return (
                    folder,
                    f"may be written to by the group {status.st_gid}, whom the cache {cache} does not trust",
                )
            if stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
                break  # No one else can enter this folder.
    return None


@contextlib.contextmanager
def follow_modes(cache: Path) -> Iterator[None]:
    """Set the umask in the block so that new files get the permissions of the cache's folder.

    The folder is created if it is missing. The user's own umask could lock others out of a shared cache, or
    let them into a private one.
    """
    cache = Path(cache)
    before = os.umask(0)
    try:
        if not cache.exists():
            os.umask((before | stat.S_IWGRP | stat.S_IWOTH) & ~stat.S_IRWXU)
            cache.mkdir(parents=True, exist_ok=True)
        mode = cache.stat().st_mode
        withheld = ~mode & (stat.S_IRWXG | stat.S_IRWXO) | stat.S_IWOTH
        os.umask(withheld | (0 if mode & stat.S_ISGID else stat.S_IWGRP))
        yield
    finally:
        os.umask(before)


def _way_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield path and status of each existing folder from the root to a path, and of the path itself."""
    for folder in (*reversed(path.parents), path):
        try:
            yield folder, os.lstat(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except PermissionError:
            return  # This process cannot use anything below, either.


def _shared_group(cache: Path) -> int | None:
    """Return the group that shares a cache, or None for a cache of one user."""
    try:
        status = os.stat(cache)
    except OSError:
        return None
    return status.st_gid if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IWGRP else None


def _private_groups() -> tuple[int, ...]:
    """Return groups without other members: root's, and the user's if it has the user's number."""
    return (ROOT, os.geteuid()) if os.getegid() == os.geteuid() else (ROOT,)


def _user(number: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return str(number)
