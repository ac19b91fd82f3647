"""Unpack a bundle (`ringside bundle`) into the cache of a machine without internet.

A bundle is a tar without compression. Its first member, manifest.json, has the size and the SHA-256 of
every other file. All files are checked before the first is moved to its place, and moves are atomic, so an
interrupted run can be repeated. This module uses the standard library alone, since it runs before .venv
exists.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from common.caches import check_cache, follow_modes
from common.errors import InputError, system_faults
from common.options import OneLineParser
from common.python import python_abi
from common.text import format_bytes
from environments import bundled

FORMAT = 1
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of file systems without locks
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 2**26
CHECKOUT = Path(__file__).resolve().parents[3]
BLOCK = 1 << 20
# Errors that tarfile raises for broken files, whose headers can be cyclic or have sizes beyond memory.
UNREADABLE = (tarfile.TarError, EOFError, ValueError, RecursionError, MemoryError, OverflowError)
PROGRESS_S = 5.0
# Files of a bundle are unpacked into these folders of the cache, under plain names.
TARGET_PATH = re.compile(
    r"(bundle/wheels|bundle/images|wheels/[0-9a-f]{12}|downloads/[A-Za-z0-9][\w.-]*)/[A-Za-z0-9_][\w.+!-]*",
    re.A,
)
TYPES: dict[str, type] = {
    "study": str, "site": str, "variant": str, "deployment": str, "python_abi": str, "glibc": str,
    "commit": str, "cache": str, "locks": dict, "files": dict,
}  # fmt: skip


EXPECTED = "a file that ringside bundle has made: ./ringside unbundle FILE"
NOTHING_UNPACKED = "nothing was unpacked"


@dataclass(frozen=True)
class Unpacked:
    """The result of unpacking a bundle.

    Attributes:
        n_placed: Number of files that were moved into the cache.
        n_present: Number of files that the cache had before.
        size_bytes: Bytes of all files.
        cache: The cache.
    """

    n_placed: int
    n_present: int
    size_bytes: int
    cache: Path


def unbundle(file: Path, expected: Mapping[str, str], checkout: Path = CHECKOUT) -> Unpacked:
    """Unpack a bundle into the cache of its site.

    Args:
        file: The bundle.
        expected: The required `study` and `site` of the bundle; missing keys are not checked.
        checkout: The checkout whose locks the bundle must have.

    Raises:
        InputError: If the bundle is broken, or not for this machine, checkout, study or site.
    """
    with system_faults(file), _open_bundle(file) as bundle:
        manifest = read_manifest(bundle, file)
        check_manifest(manifest, file, expected, checkout)
        cache = _cache(manifest, file)
        check_cache(cache)
        folder = cache / "bundle"
        with follow_modes(cache):
            folder.mkdir(parents=True, exist_ok=True)
        with follow_modes(cache), open(folder / ".lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = "another ringside unbundle is unpacking into it"
                raise InputError("busy", problem, file=folder, hint="wait until it ends") from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            staging = folder / ".unpacking"
            shutil.rmtree(staging, ignore_errors=True)  # left by a process that was killed
            try:
                staging.mkdir()
                staged = _stage(bundle, file, manifest["files"], cache, staging)
                _place(manifest, staged, cache, staging)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return Unpacked(
        len(staged), len(manifest["files"]) - len(staged), _total_bytes(manifest["files"].values()), cache
    )


@contextlib.contextmanager
def _open_bundle(file: Path) -> Iterator[tarfile.TarFile]:
    if not file.is_file():
        raise InputError("missing-file", "no such file", file=file, expected=EXPECTED)
    try:
        with tarfile.open(file, "r:") as bundle:
            yield bundle
    except UNREADABLE as error:
        raise InputError(
            "broken-bundle", f"cannot be read as a bundle ({error})", file=file, hint=_retry_hint()
        ) from None


def read_manifest(bundle: tarfile.TarFile, file: Path) -> dict[str, Any]:
    """Return the manifest of an open bundle, which is its first member.

    Raises:
        InputError: If it is missing or invalid, or names a path outside the folders for bundles.
    """
    first = bundle.next()
    if first is None or first.name != MANIFEST or not _is_plain(first) or first.size > MAX_MANIFEST_BYTES:
        problem = f"does not begin with a {MANIFEST}, so it is not a bundle"
        raise InputError("no-bundle", problem, file=file, expected="a file that ringside bundle has made")
    try:
        manifest: dict[str, Any] = json.loads(_content(bundle, first).read())
        if manifest["format"] != FORMAT:
            problem = f"is of format {manifest['format']}"
            hint = "use the same commit on both machines"
            raise InputError("wrong-format", problem, file=file, expected=str(FORMAT), hint=hint)
        is_valid = all(isinstance(manifest[key], kind) for key, kind in TYPES.items())
        for listed in manifest["files"].values():
            is_valid &= isinstance(listed["bytes"], int) and bool(
                re.fullmatch("[0-9a-f]{64}", listed["sha256"])
            )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        problem = f"its {MANIFEST} was not written by ringside bundle"
        raise InputError("broken-bundle", problem, file=file, hint=_retry_hint())
    for name in (manifest["study"], manifest["site"]):
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.A):
            problem = f"'{name}' is not a name of a study or a site"
            raise InputError("unsafe-name", problem, file=file, key=MANIFEST, got=name, hint=NOTHING_UNPACKED)
    for name in manifest["files"]:
        if not TARGET_PATH.fullmatch(name):
            problem = f"'{name}' is not a path for a file of a bundle"
            raise InputError("unsafe-name", problem, file=file, key=MANIFEST, got=name, hint=NOTHING_UNPACKED)
    return manifest


def check_manifest(
    manifest: Mapping[str, Any], file: Path, expected: Mapping[str, str], checkout: Path
) -> None:
    """Check that a bundle is for this study, site, Python and C library, and has the locks of `checkout`.

    Raises:
        InputError: If a check fails.
    """
    for key, name in expected.items():
        if manifest[key] != name:
            problem, hint = (
                f"is for the {key} {manifest[key]}, not {name}",
                "make one for it: ./ringside bundle",
            )
            raise InputError(f"wrong-{key}", problem, file=file, got=manifest[key], hint=hint)
    if manifest["python_abi"] != python_abi():
        abi = re.fullmatch(r"cp(\d)(\d+)-(.+)", manifest["python_abi"])
        is_same_platform = abi and abi[3] == python_abi().partition("-")[2]
        advice = f"call python{abi[1]}.{abi[2]} ringside unbundle, or " if abi and is_same_platform else ""
        problem = f"is for {manifest['python_abi']}, this Python is {python_abi()}"
        hint = f"{advice}make it on a machine like this one"
        raise InputError("wrong-python", problem, file=file, hint=hint)
    name, version = platform.libc_ver()
    if name == "glibc" and _numbers(version) < _numbers(manifest["glibc"]):
        problem = f"its wheels need glibc {manifest['glibc']}, this machine has {version}"
        raise InputError("wrong-glibc", problem, file=file, hint="make the bundle on a machine like this one")
    for lock, sha256 in sorted(manifest["locks"].items()):
        path = checkout / lock
        if not path.is_file() or bundled.digest(path) != sha256:
            problem = f"differs from the lock in {file}"
            hint = f"use the same commit ({manifest['commit'][:12]}), or make the bundle again"
            raise InputError("checksum-mismatch", problem, file=lock, hint=hint)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _cache(manifest: Mapping[str, Any], file: Path) -> Path:
    """Return the cache to unpack into: RINGSIDE_CACHE, or else the site's cache.

    Raises:
        InputError: If its path is not absolute, or another cache has a bundle.
    """
    link = bundled.bundle_folder()
    cache = link.parent if os.environ.get("RINGSIDE_CACHE") else Path(os.path.expanduser(manifest["cache"]))
    if not cache.is_absolute():
        problem = f"the site's cache is '{cache}'"
        hint = "choose one: RINGSIDE_CACHE=FOLDER"
        raise InputError("bad-pattern", problem, file=file, expected="an absolute folder", hint=hint)
    if cache.resolve() == link.parent.resolve():
        return cache
    if link.is_dir() and not link.is_symlink():
        problem = f"has another bundle, and this one is for {cache}"
        hint = "remove the folder, or choose one cache: RINGSIDE_CACHE=FOLDER"
        raise InputError("two-caches", problem, file=link, hint=hint)
    return cache


def _stage(
    bundle: tarfile.TarFile, file: Path, files: Mapping[str, Any], cache: Path, staging: Path
) -> dict[str, Path]:
    """Check all files of a bundle, write those that the cache lacks to `staging`, and return them by name."""
    present = {name for name, listed in files.items() if _is_there(cache / name, listed)}
    needed = _total_bytes(listed for name, listed in files.items() if name not in present)
    if (free := shutil.disk_usage(staging).free) < needed:
        problem = f"{format_bytes(needed)} are needed, {format_bytes(free)} are free"
        hint = "free some space, or choose another cache: RINGSIDE_CACHE=FOLDER"
        raise InputError("too-little-space", problem, file=cache, hint=hint)
    staged: dict[str, Path] = {}
    missing, n_bytes = dict(files), 0
    reported_at = time.monotonic()
    while (member := bundle.next()) is not None:
        if not _is_plain(member) or member.name not in missing:
            if _is_plain(member):
                code, problem = "unlisted-member", "is not in its manifest, or occurs twice"
            else:
                code, problem = "unsafe-member", "is not a plain file"
            raise InputError(
                code, f"'{member.name}' {problem}", file=file, got=member.name, hint=NOTHING_UNPACKED
            )
        listed = missing.pop(member.name)
        draft = staging / str(len(staged))
        _copy(bundle, member, None if member.name in present else draft, listed, file)
        if member.name not in present:
            staged[member.name] = draft
        n_bytes += member.size
        if time.monotonic() - reported_at >= PROGRESS_S:
            reported_at = time.monotonic()
            print(
                f"ringside: {format_bytes(n_bytes)} of {format_bytes(_total_bytes(files.values()))} checked",
                flush=True,
            )
    if missing:
        problem = f"ends early: it lacks {len(missing)} of {len(files)} files, such as {min(missing)}"
        raise InputError("missing-members", problem, file=file, got=sorted(missing), hint=_retry_hint())
    return staged


def _copy(
    bundle: tarfile.TarFile,
    member: tarfile.TarInfo,
    draft: Path | None,
    listed: Mapping[str, Any],
    file: Path,
) -> None:
    """Check a member, and write it to `draft` unless that is None.

    Raises:
        InputError: If size or SHA-256 differ from the manifest.
    """
    content, sha256 = _content(bundle, member), hashlib.sha256()
    with open(draft or os.devnull, "wb") as out:
        while block := content.read(BLOCK):
            sha256.update(block)
            out.write(block)
        if draft:
            out.flush()
            os.fsync(out.fileno())
    if member.size != listed["bytes"] or sha256.hexdigest() != listed["sha256"]:
        problem = f"{member.name} differs from its manifest: it was changed after the bundle was made"
        raise InputError("checksum-mismatch", problem, file=file, got=member.name, hint=_retry_hint())


def _place(manifest: Mapping[str, Any], staged: Mapping[str, Path], cache: Path, staging: Path) -> None:
    """Move staged files into the cache; then write the manifest, which marks the bundle as complete.

    If the cache is not the default one, the default cache gets a link to its bundles.
    """
    for name in manifest["files"]:  # The order puts wheel.json after its wheel.
        if name in staged:
            target = cache / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged[name], target)
    (cache / bundled.WHEELS).mkdir(exist_ok=True)
    draft = staging / MANIFEST
    draft.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, cache / "bundle" / f"{manifest['study']}-{manifest['site']}.json")
    link = bundled.bundle_folder()
    if link.resolve() != (cache / "bundle").resolve():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(cache / "bundle")


def _content(bundle: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = bundle.extractfile(member)
    if content is None:
        raise tarfile.ReadError(f"{member.name} has no content")
    return content


def _is_plain(member: tarfile.TarInfo) -> bool:
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not getattr(member, "sparse", None)


def _is_there(path: Path, listed: Mapping[str, Any]) -> bool:
    return (
        path.is_file() and path.stat().st_size == listed["bytes"] and bundled.digest(path) == listed["sha256"]
    )


def _total_bytes(files: Any) -> int:
    return sum(listed["bytes"] for listed in files)


def _retry_hint() -> str:
    return f"{NOTHING_UNPACKED}; copy it again, and compare the output of sha256sum on both machines"


def unpack(file: Path, study: str = "", site: str = "") -> None:
    """Unpack a bundle into the cache, and print how many files were new.

    Args:
        file: The bundle.
        study: Unpack it only if it is for this study.
        site: Unpack it only if it is for this site.
    """
    expected = {key: name for key, name in (("study", study), ("site", site)) if name}
    print(f"ringside: {file}: checking every file before unpacking any", flush=True)
    try:
        unpacked = unbundle(file, expected)
    except KeyboardInterrupt:
        sys.exit("ringside: interrupted; run the same command again")
    print(
        f"ringside: {unpacked.cache}: {unpacked.n_placed:,} files unpacked, {unpacked.n_present:,} were "
        f"present; {format_bytes(unpacked.size_bytes)} in all"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Unpack a bundle before `.venv` and typer exist; `./ringside unbundle` calls this."""
    parser = OneLineParser(prog="ringside unbundle", description="Unpack a bundle into the cache.")
    parser.add_argument("file", type=Path, metavar="FILE", help="a file that ringside bundle has made")
    parser.add_argument("--study", default="", help="unpack it only if it is for this study")
    parser.add_argument("--site", "-s", default="", help="unpack it only if it is for this site")
    unpack(**vars(parser.parse_args(argv)))
