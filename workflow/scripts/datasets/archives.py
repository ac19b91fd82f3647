"""Members of archives, read without unpacking anything: all are looked at before the first is read.

An archive is refused when a member would leave its folder, is a link or a device, or stands twice, and when more comes
out of it than the table declares.
"""

import gzip
import io
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

from common.errors import InputError

KINDS_OF_ZIP = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What the libraries raise for broken files. Headers of tar that announce each other are read by recursion, and zipfile does not implement
# some versions and ways of encryption that a zip may ask for.
TAR_ERRORS = (tarfile.TarError, ValueError, OSError, EOFError, RecursionError, MemoryError, OverflowError)
ZIP_ERRORS = (zipfile.BadZipFile, ValueError, OSError, EOFError, NotImplementedError, RuntimeError, zlib.error)


@dataclass(frozen=True)
class Archive:
    """An archive on this machine: what comes out of it at most, where it came from, and its SHA-256 (None: made up here)."""

    path: Path
    unpacked_bytes: int
    origin: str
    sha256: str | None = None


def refuse(archive: Archive, code: str, problem: str, got: object = None) -> NoReturn:
    """Raise InputError about an archive; `got`: its member, or what is in it."""
    expected = "the archive that the data set's entry describes, as published"
    raise InputError(code, problem, file=archive.path, got=got, expected=expected)


def read_gzip(archive: Archive) -> bytes:
    """What the gzip file holds; never more is unpacked than declared."""
    try:
        with gzip.open(archive.path) as file:
            content = file.read(archive.unpacked_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        refuse(archive, "broken-archive", f"cannot be unpacked: {error}")
    if len(content) > archive.unpacked_bytes:
        _too_large(archive)
    return content


def read_tar(archive: Archive) -> dict[str, memoryview]:
    """The files in a tar.gz: name -> content, in memory."""
    content = read_gzip(archive)
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            members = list(tar)
    except TAR_ERRORS as error:
        refuse(archive, "broken-archive", f"cannot be read as tar: {error}")
    _check_names(archive, [member.name for member in members])
    for member in members:
        if not (member.isdir() or member.isreg()) or member.issparse():
            _unsafe(archive, member.name, "is neither a file nor a folder (a link, a device)")
        if not 0 <= member.size <= len(content) - member.offset_data:
            refuse(archive, "broken-archive", f"member {member.name!r} is cut off", member.name)
    whole = memoryview(content)
    return {m.name: whole[m.offset_data : m.offset_data + m.size] for m in members if m.isreg()}


def zip_files(archive: Archive) -> list[str]:
    """The names of the files in a zip, all checked."""
    with _zip(archive) as opened:
        return [info.filename for info in opened.infolist() if not info.is_dir()]


def read_zip(archive: Archive, names: Iterable[str]) -> Iterator[bytes]:
    """The contents of these files in a zip, one after the other."""
    with _zip(archive) as opened:
        for name in names:
            try:
                info = opened.getinfo(name)
                with opened.open(info) as member:
                    # A number makes zipfile unpack no more than that; without one it would unpack all before it counts.
                    content = member.read(info.file_size)
            except KeyError:
                refuse(archive, "missing-member", f"has no member {name!r}", name)
            except ZIP_ERRORS as error:
                refuse(archive, "broken-archive", f"member {name!r} cannot be unpacked: {error}", name)
            if len(content) != info.file_size:
                refuse(archive, "broken-archive", f"member {name!r} is cut off", name)
            yield content


def _zip(archive: Archive) -> zipfile.ZipFile:
    """The zip, opened and its members checked."""
    try:
        opened = zipfile.ZipFile(archive.path)
    except ZIP_ERRORS as error:
        refuse(archive, "broken-archive", f"cannot be read as zip: {error}")
    try:
        _check_zip(archive, opened.infolist())
    except InputError:
        opened.close()
        raise
    return opened


def _check_zip(archive: Archive, members: list[zipfile.ZipInfo]) -> None:
    _check_names(archive, [info.orig_filename for info in members])
    for info in members:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            _unsafe(archive, info.filename, "is neither a file nor a folder (a link, a device)")
        if info.flag_bits & 0x1 or info.compress_type not in KINDS_OF_ZIP:
            problem = f"member {info.filename!r} is encrypted or packed in an unknown way"
            refuse(archive, "broken-archive", problem, info.filename)
    if sum(info.file_size for info in members) > archive.unpacked_bytes:
        _too_large(archive)


def _check_names(archive: Archive, names: list[str]) -> None:
    for name in names:
        if name.startswith("/") or ".." in PurePosixPath(name).parts or set("\\\0:") & set(name):
            _unsafe(archive, name, "would leave the folder")
    name, count = next(iter(Counter(_plain(name) for name in names).most_common(1)), ("", 0))
    if count > 1:
        refuse(archive, "duplicate", f"member {name!r} stands twice", name)


def _plain(name: str) -> str:
    """a/./b/ is a/b."""
    return str(PurePosixPath(name))


def _unsafe(archive: Archive, name: str, problem: str) -> NoReturn:
    refuse(archive, "unsafe-member", f"member {name!r} {problem}", name)


def _too_large(archive: Archive) -> NoReturn:
    refuse(
        archive, "too-large", f"more comes out of it than the {archive.unpacked_bytes} bytes declared (unpacked_bytes)"
    )
