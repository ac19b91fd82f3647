"""Read members of archives in memory, after checking all of them.

An archive is refused if a member has a path outside the archive's folder, is a link or a device, or occurs
twice, or if the archive unpacks to more bytes than its entry declares.
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

ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Errors that broken files raise. tarfile reads chained headers recursively. zipfile supports only some
# versions and encryptions.
TAR_ERRORS = (tarfile.TarError, ValueError, OSError, EOFError, RecursionError, MemoryError, OverflowError)
ZIP_ERRORS = (
    zipfile.BadZipFile,
    ValueError,
    OSError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    zlib.error,
)


@dataclass(frozen=True)
class Archive:
    """An archive on this machine.

    Attributes:
        path: The file.
        unpacked_bytes: Upper limit of its unpacked size.
        origin: The address or the file it came from.
        sha256: Its SHA-256; None for a synthetic archive.
    """

    path: Path
    unpacked_bytes: int
    origin: str
    sha256: str | None = None


def refuse(archive: Archive, code: str, problem: str, got: object = None) -> NoReturn:
    """Raise InputError about an archive; ``got`` is the member or the value at fault."""
    expected = "the archive that the data set's entry describes, as published"
    raise InputError(code, problem, file=archive.path, got=got, expected=expected)


def read_gzip(archive: Archive) -> bytes:
    """Return the content of a gzip file; unpacking fails beyond the declared size."""
    try:
        with gzip.open(archive.path) as file:
            content = file.read(archive.unpacked_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        refuse(archive, "broken-archive", f"cannot be unpacked: {error}")
    if len(content) > archive.unpacked_bytes:
        _refuse_size(archive)
    return content


def read_tar(archive: Archive) -> dict[str, memoryview]:
    """Return the files of a tar.gz by name."""
    content = read_gzip(archive)
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            members = list(tar)
    except TAR_ERRORS as error:
        refuse(archive, "broken-archive", f"cannot be read as tar: {error}")
    _check_names(archive, [member.name for member in members])
    for member in members:
        if not (member.isdir() or member.isreg()) or member.issparse():
            _refuse_member(archive, member.name, "is neither a file nor a folder (a link, a device)")
        if not 0 <= member.size <= len(content) - member.offset_data:
            refuse(archive, "broken-archive", f"member {member.name!r} is cut off", member.name)
    view = memoryview(content)
    return {m.name: view[m.offset_data : m.offset_data + m.size] for m in members if m.isreg()}


def zip_files(archive: Archive) -> list[str]:
    """Return the names of the files in a zip after checking all members."""
    with _open_zip(archive) as opened:
        return [info.filename for info in opened.infolist() if not info.is_dir()]


def read_zip(archive: Archive, names: Iterable[str]) -> Iterator[bytes]:
    """Yield the content of each named file of a zip."""
    with _open_zip(archive) as opened:
        for name in names:
            try:
                info = opened.getinfo(name)
                with opened.open(info) as member:
                    # With a size, zipfile unpacks only that many bytes; without one, it unpacks everything.
                    content = member.read(info.file_size)
            except KeyError:
                refuse(archive, "missing-member", f"has no member {name!r}", name)
            except ZIP_ERRORS as error:
                refuse(archive, "broken-archive", f"member {name!r} cannot be unpacked: {error}", name)
            if len(content) != info.file_size:
                refuse(archive, "broken-archive", f"member {name!r} is cut off", name)
            yield content


def _open_zip(archive: Archive) -> zipfile.ZipFile:
    """Return the open zip after checking its members."""
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
            _refuse_member(archive, info.filename, "is neither a file nor a folder (a link, a device)")
        if info.flag_bits & 0x1 or info.compress_type not in ZIP_METHODS:
            problem = f"member {info.filename!r} is encrypted or packed in an unknown way"
            refuse(archive, "broken-archive", problem, info.filename)
    if sum(info.file_size for info in members) > archive.unpacked_bytes:
        _refuse_size(archive)


def _check_names(archive: Archive, names: list[str]) -> None:
    for name in names:
        if name.startswith("/") or ".." in PurePosixPath(name).parts or set("\\\0:") & set(name):
            _refuse_member(archive, name, "would leave the folder")
    name, count = next(iter(Counter(_normal_name(name) for name in names).most_common(1)), ("", 0))
    if count > 1:
        refuse(archive, "duplicate", f"member {name!r} occurs twice", name)


def _normal_name(name: str) -> str:
    """Return a member name in its shortest form: a/./b/ becomes a/b."""
    return str(PurePosixPath(name))


def _refuse_member(archive: Archive, name: str, problem: str) -> NoReturn:
    refuse(archive, "unsafe-member", f"member {name!r} {problem}", name)


def _refuse_size(archive: Archive) -> NoReturn:
    refuse(
        archive,
        "too-large",
        f"unpacks to more than the declared {archive.unpacked_bytes} bytes (unpacked_bytes)",
    )
