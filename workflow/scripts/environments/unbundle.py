"""Unpack a bundle (`ringside bundle`) into the cache of a machine without internet.

A bundle is a tar without compression. Its first member, manifest.json, has the size and the SHA-256 of every other. All of them
are compared before the first is moved to its place; files are moved whole, so whoever was interrupted starts again.
Standard library only: it runs before there is a .venv.
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
from common.text import size
from environments import bundled

FORMAT = 1
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems without locks
MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 2**26
CHECKOUT = Path(__file__).resolve().parents[3]
BLOCK = 1 << 20
# What tarfile raises for broken files: headers may announce each other without end, or sizes that no memory has.
UNREADABLE = (tarfile.TarError, EOFError, ValueError, RecursionError, MemoryError, OverflowError)
PROGRESS_S = 5.0
# Where a bundle may put something: one plain name in one of these folders of the cache.
PLACE = re.compile(
    r"(bundle/wheels|bundle/images|wheels/[0-9a-f]{12}|downloads/[A-Za-z0-9][\w.-]*)/[A-Za-z0-9_][\w.+!-]*", re.A
)
TYPES: dict[str, type] = {
    "study": str, "site": str, "variant": str, "deployment": str, "python_abi": str, "glibc": str, "commit": str,
    "cache": str, "locks": dict, "files": dict,
}  # fmt: skip


EXPECTED = "what ringside bundle has made: ./ringside unbundle FILE"
NOTHING = "nothing was unpacked"


@dataclass(frozen=True)
class Done:
    """What was done: files that were put into their places, those that were there, and the bytes of all."""

    placed: int
    there: int
    size_bytes: int
    cache: Path


def unbundle(file: Path, wanted: Mapping[str, str], checkout: Path = CHECKOUT) -> Done:
    """Unpack the bundle `file`, if it is for what is `wanted` (study, site), this Python and the locks of `checkout`. InputError."""
    with system_faults(file), _opened(file) as bundle:
        manifest = read_manifest(bundle, file)
        check(manifest, file, wanted, checkout)
        cache = _cache(manifest, file)
        check_cache(cache)
        here = cache / "bundle"
        with follow_modes(cache):
            here.mkdir(parents=True, exist_ok=True)
        with follow_modes(cache), open(here / ".lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = "another ringside unbundle is at work there"
                raise InputError("busy", problem, file=here, hint="wait for it") from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            staging = here / ".unpacking"
            shutil.rmtree(staging, ignore_errors=True)  # of one that was killed
            try:
                staging.mkdir()
                staged = _stage(bundle, file, manifest["files"], cache, staging)
                _place(manifest, staged, cache, staging)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return Done(len(staged), len(manifest["files"]) - len(staged), _bytes(manifest["files"].values()), cache)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    if not file.is_file():
        raise InputError("missing-file", "no such file", file=file, expected=EXPECTED)
    try:
        with tarfile.open(file, "r:") as bundle:
            yield bundle
    except UNREADABLE as error:
        raise InputError("broken-bundle", f"cannot be read as a bundle ({error})", file=file, hint=_again()) from None


def read_manifest(bundle: tarfile.TarFile, file: Path) -> dict[str, Any]:
    """The manifest of an open bundle, which is its first member. InputError when there is none, or it names places that it must not."""
    first = bundle.next()
    if first is None or first.name != MANIFEST or not _is_plain(first) or first.size > MOST_MANIFEST_BYTES:
        problem = f"does not begin with a {MANIFEST}, so it is no bundle"
        raise InputError("no-bundle", problem, file=file, expected="what ringside bundle has made")
    try:
        manifest: dict[str, Any] = json.loads(_content(bundle, first).read())
        if manifest["format"] != FORMAT:
            raise InputError(
                "wrong-format",
                f"is of format {manifest['format']}",
                file=file,
                got=manifest["format"],
                expected=str(FORMAT),
                hint="use the same commit here and there",
            )
        right = all(isinstance(manifest[key], kind) for key, kind in TYPES.items())
        for told in manifest["files"].values():
            right &= isinstance(told["bytes"], int) and bool(re.fullmatch("[0-9a-f]{64}", told["sha256"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        right = False
    if not right:
        problem = f"its {MANIFEST} is not one that ringside bundle writes"
        raise InputError("broken-bundle", problem, file=file, hint=_again())
    for name in (manifest["study"], manifest["site"]):
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.A):
            problem = f"'{name}' is no name of a study or a site"
            raise InputError("unsafe-name", problem, file=file, key=MANIFEST, got=name, hint=NOTHING)
    for name in manifest["files"]:
        if not PLACE.fullmatch(name):
            problem = f"'{name}' is no place for a file of a bundle"
            raise InputError("unsafe-name", problem, file=file, key=MANIFEST, got=name, hint=NOTHING)
    return manifest


def check(manifest: Mapping[str, Any], file: Path, wanted: Mapping[str, str], checkout: Path) -> None:
    """InputError when the bundle is for another study, site, Python or C library, or was made of other locks than `checkout` has."""
    for key, name in wanted.items():
        if manifest[key] != name:
            problem, hint = f"is for the {key} {manifest[key]}, not {name}", "make one for it: ./ringside bundle"
            raise InputError(f"wrong-{key}", problem, file=file, got=manifest[key], hint=hint)
    if manifest["python_abi"] != python_abi():
        made = re.fullmatch(r"cp(\d)(\d+)-(.+)", manifest["python_abi"])
        same = made and made[3] == python_abi().partition("-")[2]
        advice = f"call python{made[1]}.{made[2]} ringside unbundle, or " if made and same else ""
        raise InputError(
            "wrong-python",
            f"is for {manifest['python_abi']}, this Python is {python_abi()}",
            file=file,
            got=manifest["python_abi"],
            hint=f"{advice}make it on a machine like this one",
        )
    name, version = platform.libc_ver()
    if name == "glibc" and _numbers(version) < _numbers(manifest["glibc"]):
        raise InputError(
            "wrong-glibc",
            f"its wheels need glibc {manifest['glibc']}, this machine has {version}",
            file=file,
            got=manifest["glibc"],
            hint="make the bundle on a machine like this one",
        )
    for lock, sha256 in sorted(manifest["locks"].items()):
        path = checkout / lock
        if not path.is_file() or bundled.digest(path) != sha256:
            raise InputError(
                "checksum-mismatch",
                f"is not the lock that {file} was made with",
                file=lock,
                hint=f"take the same commit ({manifest['commit'][:12]}), or make the bundle again",
            )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _cache(manifest: Mapping[str, Any], file: Path) -> Path:
    """Where the bundle goes: RINGSIDE_CACHE or the site's cache; of the latter, the place where bundles are looked for is made a link."""
    looked = bundled.folder()
    cache = looked.parent if os.environ.get("RINGSIDE_CACHE") else Path(os.path.expanduser(manifest["cache"]))
    if not cache.is_absolute():
        raise InputError(
            "bad-pattern",
            f"the site's cache is '{cache}'",
            file=file,
            got=str(cache),
            expected="an absolute folder",
            hint="name one: RINGSIDE_CACHE=FOLDER",
        )
    if cache.resolve() == looked.parent.resolve():
        return cache
    if looked.is_dir() and not looked.is_symlink():
        raise InputError(
            "two-caches",
            f"a bundle lies there, this one is for {cache}",
            file=looked,
            got=str(cache),
            hint="remove that folder, or name one cache: RINGSIDE_CACHE=FOLDER",
        )
    return cache


def _stage(
    bundle: tarfile.TarFile, file: Path, files: Mapping[str, Any], cache: Path, staging: Path
) -> dict[str, Path]:
    """Read the whole bundle, and write what is not in the cache yet to `staging`. Returns where each such file is, by its name."""
    have = {name for name, told in files.items() if _is_there(cache / name, told)}
    needed = _bytes(told for name, told in files.items() if name not in have)
    if (free := shutil.disk_usage(staging).free) < needed:
        raise InputError(
            "too-little-space",
            f"{size(needed)} are needed, {size(free)} are free",
            file=cache,
            got=free,
            hint="make room, or name another: RINGSIDE_CACHE=FOLDER",
        )
    staged: dict[str, Path] = {}
    left, seen = dict(files), 0
    told_at = time.monotonic()
    while (member := bundle.next()) is not None:
        if not _is_plain(member) or member.name not in left:
            if _is_plain(member):
                code, what = "unlisted-member", "is not in its manifest, or is there twice"
            else:
                code, what = "unsafe-member", "is no plain file"
            raise InputError(code, f"'{member.name}' {what}", file=file, got=member.name, hint=NOTHING)
        told = left.pop(member.name)
        draft = staging / str(len(staged))
        _copy(bundle, member, None if member.name in have else draft, told, file)
        if member.name not in have:
            staged[member.name] = draft
        seen += member.size
        if time.monotonic() - told_at >= PROGRESS_S:
            told_at = time.monotonic()
            print(f"ringside: {size(seen)} of {size(_bytes(files.values()))} are right", flush=True)
    if left:
        problem = f"ends early: {len(left)} of {len(files)} files are not in it, such as {min(left)}"
        raise InputError("missing-members", problem, file=file, got=sorted(left), hint=_again())
    return staged


def _copy(
    bundle: tarfile.TarFile, member: tarfile.TarInfo, draft: Path | None, told: Mapping[str, Any], file: Path
) -> None:
    """Read a member, and write it to `draft` if there is one. InputError when it is not the file of the manifest."""
    content, sha256 = _content(bundle, member), hashlib.sha256()
    with open(draft or os.devnull, "wb") as out:
        while block := content.read(BLOCK):
            sha256.update(block)
            out.write(block)
        if draft:
            out.flush()
            os.fsync(out.fileno())
    if member.size != told["bytes"] or sha256.hexdigest() != told["sha256"]:
        problem = f"{member.name} is not the file that its manifest names: it was altered on the way"
        raise InputError("checksum-mismatch", problem, file=file, got=member.name, hint=_again())


def _place(manifest: Mapping[str, Any], staged: Mapping[str, Path], cache: Path, staging: Path) -> None:
    """Move what was staged to its place, each file whole; last of all the manifest, by which others see that it is there."""
    for name in manifest["files"]:  # in its order: what says that a wheel is whole comes after the wheel
        if name in staged:
            target = cache / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged[name], target)
    (cache / bundled.WHEELS).mkdir(exist_ok=True)
    draft = staging / MANIFEST
    draft.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, cache / "bundle" / f"{manifest['study']}-{manifest['site']}.json")
    looked = bundled.folder()
    if looked.resolve() != (cache / "bundle").resolve():
        looked.parent.mkdir(parents=True, exist_ok=True)
        looked.unlink(missing_ok=True)
        looked.symlink_to(cache / "bundle")


def _content(bundle: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = bundle.extractfile(member)
    if content is None:
        raise tarfile.ReadError(f"{member.name} has no content")
    return content


def _is_plain(member: tarfile.TarInfo) -> bool:
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not getattr(member, "sparse", None)


def _is_there(path: Path, told: Mapping[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == told["bytes"] and bundled.digest(path) == told["sha256"]


def _bytes(files: Any) -> int:
    return sum(told["bytes"] for told in files)


def _again() -> str:
    return f"{NOTHING}; copy it again, and compare what sha256sum prints here and there"


def unpack(file: Path, study: str = "", site: str = "") -> None:
    """Unpack a bundle into the cache, and print what was done.

    Args:
        file: What `ringside bundle` has made.
        study: Unpack it only if it is for this study.
        site: Unpack it only if it is for this site.
    """
    wanted = {key: name for key, name in (("study", study), ("site", site)) if name}
    print(f"ringside: {file}: comparing every file before any is unpacked", flush=True)
    try:
        done = unbundle(file, wanted)
    except KeyboardInterrupt:
        sys.exit("ringside: interrupted; run the same command again")
    print(
        f"ringside: {done.cache}: {done.placed:,} files unpacked, {done.there:,} were there already; {size(done.size_bytes)} in all"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Unpack a bundle where there is no `.venv` yet, and no typer: `./ringside unbundle` calls this."""
    parser = OneLineParser(prog="ringside unbundle", description="Unpack a bundle into the cache.")
    parser.add_argument("file", type=Path, metavar="FILE", help="what ringside bundle has made")
    parser.add_argument("--study", default="", help="unpack it only if it is for this study")
    parser.add_argument("--site", "-s", default="", help="unpack it only if it is for this site")
    unpack(**vars(parser.parse_args(argv)))
