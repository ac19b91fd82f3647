"""Evil and broken archives are refused in one line, before anything of them is used.

Nothing is ever unpacked to disk.
"""

import gzip
import io
import stat
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest

from common.errors import InputError
from datasets.archives import Archive, read_gzip, read_tar, read_zip, zip_files
from support.refusals import assert_refusal

LIMIT = 100_000


@pytest.fixture(autouse=True)
def only_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert [path.name for path in tmp_path.rglob("*")] == ["here", "archive"], "nothing was written"


def write_archive(folder: Path, content: bytes) -> Archive:
    (folder / "here" / "archive").write_bytes(content)
    return Archive(folder / "here" / "archive", LIMIT, "here")


def make_tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def make_zip(*members: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as opened,
        warnings.catch_warnings(action="ignore"),
    ):
        for info, content in members:
            opened.writestr(info, content)
    return buffer.getvalue()


def zip_link(name: str, kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o777) << 16
    return info


def refusal(read, *arguments) -> InputError:
    with pytest.raises(InputError) as refused:
        read(*arguments)
    assert refused.value.file.endswith("/here/archive") and str(refused.value).isprintable()
    return refused.value


GOOD = (member("good"), b"good")


def test_a_good_tar_is_read(tmp_path):
    content = gzip.compress(
        make_tar((member("a", tarfile.DIRTYPE), b""), (member("a/b"), b"12"), (member("./c"), b"3"))
    )
    members = read_tar(write_archive(tmp_path, content))
    assert {name: bytes(data) for name, data in members.items()} == {"a/b": b"12", "./c": b"3"}


@pytest.mark.parametrize(
    ("evil", "code", "name"),
    [
        ((member("../evil"), b"x"), "unsafe-member", "../evil"),
        ((member("a/../../evil"), b"x"), "unsafe-member", "a/../../evil"),
        ((member("/evil"), b"x"), "unsafe-member", "/evil"),
        ((member("link", tarfile.SYMTYPE, "/etc/passwd"), b""), "unsafe-member", "link"),
        ((member("link", tarfile.LNKTYPE, "good"), b""), "unsafe-member", "link"),
        ((member("device", tarfile.CHRTYPE), b""), "unsafe-member", "device"),
        ((member("disk", tarfile.BLKTYPE), b""), "unsafe-member", "disk"),
        ((member("pipe", tarfile.FIFOTYPE), b""), "unsafe-member", "pipe"),
        ((member("good"), b"again"), "duplicate", "good"),
        ((member("./good"), b"again"), "duplicate", "good"),
    ],
)
def test_an_evil_tar_is_refused(tmp_path, evil, code, name):
    error = refusal(read_tar, write_archive(tmp_path, gzip.compress(make_tar(GOOD, evil))))
    assert_refusal(error, code, "", [repr(name)], got=name)


def test_bombs_are_not_unpacked(tmp_path):
    bomb = gzip.compress(bytes(50_000_000))
    large_zip = make_zip(*((f"part{i}", bytes(30_000)) for i in range(4)))
    for read, content in (
        (read_gzip, bomb),
        (read_tar, gzip.compress(make_tar((member("bomb"), bytes(10**6))))),
        (zip_files, make_zip(("bomb", bytes(10**6)))),
        (zip_files, large_zip),
    ):
        assert_refusal(refusal(read, write_archive(tmp_path, content)), "too-large", "", [LIMIT])


def test_a_zip_that_lies_about_a_size_is_not_unpacked(tmp_path):
    honest = make_zip(("bomb", bytes(10**7)))
    lying = honest.replace((10**7).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    assert lying != honest
    error = refusal(lambda: list(read_zip(write_archive(tmp_path, lying), ["bomb"])))
    assert_refusal(error, "broken-archive", got="bomb")


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(bytes(3000))[:-9], gzip.compress(b"no tar" * 200)],
    ids=["nothing", "text", "a cut gzip", "a gzip of no tar"],
)
def test_what_is_no_archive_is_refused(tmp_path, content):
    for read in (read_tar, zip_files):
        assert_refusal(refusal(read, write_archive(tmp_path, content)), "broken-archive")


def test_a_tar_that_was_cut_is_refused(tmp_path):
    cut = make_tar((member("a"), b"1" * 5000))[:3000]
    assert_refusal(refusal(read_tar, write_archive(tmp_path, gzip.compress(cut))), "broken-archive")


def test_a_good_zip_is_read(tmp_path):
    opened = write_archive(tmp_path, make_zip(("a/", b""), ("a/b", b"12"), ("c", b"3")))
    assert zip_files(opened) == ["a/b", "c"]
    assert list(read_zip(opened, ["c", "a/b"])) == [b"3", b"12"]
    assert_refusal(refusal(lambda: list(read_zip(opened, ["d"]))), "missing-member", "", ["'d'"], got="d")


@pytest.mark.parametrize(
    ("evil", "code", "name"),
    [
        ("../evil", "unsafe-member", "../evil"),
        ("/evil", "unsafe-member", "/evil"),
        ("a\\..\\evil", "unsafe-member", "a\\..\\evil"),
        ("C:evil", "unsafe-member", "C:evil"),
        ("good", "duplicate", "good"),
        (zip_link("link", stat.S_IFLNK), "unsafe-member", "link"),
        (zip_link("device", stat.S_IFBLK), "unsafe-member", "device"),
    ],
)
def test_an_evil_zip_is_refused(tmp_path, evil, code, name):
    error = refusal(zip_files, write_archive(tmp_path, make_zip(("good", b"good"), (evil, b"x"))))
    assert_refusal(error, code, got=name)


def test_a_spoilt_zip_member_is_refused(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        opened.writestr("a", b"0123456789")
    spoilt = buffer.getvalue().replace(b"0123456789", b"0123456780")
    error = refusal(lambda: list(read_zip(write_archive(tmp_path, spoilt), ["a"])))
    assert_refusal(error, "broken-archive", "", ["Bad CRC-32"], got="a")


def nested_names(kind: bytes, number: int = 5000) -> bytes:
    """A tar whose headers announce each other: each says that the name of the next one comes."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, 512
    header = info.tobuf(tarfile.GNU_FORMAT)
    return (header + b"n".ljust(512, b"\0")) * number


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_headers_without_end_are_refused(tmp_path: Path, kind: bytes) -> None:
    broken = Archive(write_archive(tmp_path, gzip.compress(nested_names(kind))).path, 1 << 30, "here")
    assert refusal(read_tar, broken).code == "broken-archive"
