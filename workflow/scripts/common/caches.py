"""Decide whom a cache trusts, and who may use what is built in it.

A cache holds interpreters, wheels, images and data sets that runs execute and train on. It trusts its user,
root, and the owner of the cache's folder. If that folder has the set-group-ID bit and is writable for its
group (``chmod g+ws``), it also trusts that group. Whatever another user owns or may write to is refused.
Below a folder that only its owner may enter nothing is checked, since nobody else can reach it.

The modes of the cache's folder, not the umask of the first user who builds, decide who else may use it.
Standard library only.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from common.errors import InputError

ROOT = 0
PARTS = ("environments", "wheels", "datasets", "downloads", "bundle", "fetched", "installed")
HINT = (
    "remove it, or take its rights from others (chmod -R go-w); a cache of a group has them by chmod -R g+ws"
)


def check_cache(cache: Path) -> None:
    """Check a cache and its parts, as far as they are there; see `check_trusted`."""
    for folder in (cache, *(cache / part for part in PARTS)):
        check_trusted(folder, cache)


def check_trusted(path: Path, cache: Path) -> None:
    """Check that only those whom a cache trusts can have made `path`, which lies in it, or can change it.

    Raises:
        InputError: If another user owns it or may write to it, or to a folder on the way to it.
    """
    if fault := find_untrusted(path, cache):
        place, problem = fault
        raise InputError("untrusted-cache", problem, file=place, got=str(place), hint=HINT)


def find_untrusted(path: Path, cache: Path) -> tuple[Path, str] | None:
    """Return what on the way to `path` is not to be trusted, and why, or None.

    An absent file or folder is trusted.
    """
    cache = Path(os.path.realpath(cache))
    trusted = {ROOT, os.geteuid()}
    group = _shared_group(cache)
    named = [Path(os.path.abspath(path)), Path(os.path.realpath(path))]  # links are entries of folders, too
    for way in dict.fromkeys(named):
        sticky = False  # whether anybody may have made the next entry
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
            if inside and status.st_mode & stat.S_IWGRP and status.st_gid not in (group, *_own_groups()):
                return (
                    folder,
                    f"may be written to by the group {status.st_gid}, whom the cache {cache} does not trust",
                )
            if stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
                break  # nobody else gets any further
    return None


@contextlib.contextmanager
def follow_modes(cache: Path) -> Iterator[None]:
    """Give files written in the block the permissions of the cache's folder, which is created if absent.

    With the umask of the first user who builds, others could be locked out of a shared cache, or let into a
    private one.
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
    """Yield each existing folder on the way to a path, and the path itself, from the root."""
    for folder in (*reversed(path.parents), path):
        try:
            yield folder, os.lstat(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except PermissionError:
            return  # nor can anything be used that lies there


def _shared_group(cache: Path) -> int | None:
    """Return the group that shares a cache; None where the cache is its owner's."""
    try:
        status = os.stat(cache)
    except OSError:
        return None
    return status.st_gid if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IWGRP else None


def _own_groups() -> tuple[int, ...]:
    """Return the groups of this user alone: root's, and on many systems one with the user's number."""
    return (ROOT, os.geteuid()) if os.getegid() == os.geteuid() else (ROOT,)


def _user(number: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return str(number)
