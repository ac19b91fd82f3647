"""Evil and broken archives are refused in one line, before anything of them is used; nothing is ever unpacked to disk."""

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

LIMIT = 100_000


@pytest.fixture(autouse=True)
def only_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert [path.name for path in tmp_path.rglob("*")] == ["here", "archive"], "nothing was written"


def archive(folder: Path, content: bytes) -> Archive:
    (folder / "here" / "archive").write_bytes(content)
    return Archive(folder / "here" / "archive", LIMIT, "here")


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(*members: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened, warnings.catch_warnings(action="ignore"):
        for info, content in members:
            opened.writestr(info, content)
    return made.getvalue()


def zip_link(name: str, kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o777) << 16
    return info


def refusal(read, *arguments) -> str:
    with pytest.raises(InputError) as refused:
        read(*arguments)
    (line,) = str(refused.value).splitlines()
    return line


GOOD = (member("good"), b"good")


def test_a_good_tar_is_read(tmp_path):
    content = gzip.compress(tarred((member("a", tarfile.DIRTYPE), b""), (member("a/b"), b"12"), (member("./c"), b"3")))
    found = read_tar(archive(tmp_path, content))
    assert {name: bytes(data) for name, data in found.items()} == {"a/b": b"12", "./c": b"3"}


@pytest.mark.parametrize(
    ("evil", "said"),
    [
        ((member("../evil"), b"x"), "member '../evil' would leave the folder"),
        ((member("a/../../evil"), b"x"), "would leave the folder"),
        ((member("/evil"), b"x"), "member '/evil' would leave the folder"),
        ((member("link", tarfile.SYMTYPE, "/etc/passwd"), b""), "member 'link' is neither a file nor a folder"),
        ((member("link", tarfile.LNKTYPE, "good"), b""), "member 'link' is neither a file nor a folder"),
        ((member("device", tarfile.CHRTYPE), b""), "member 'device' is neither a file nor a folder"),
        ((member("disk", tarfile.BLKTYPE), b""), "member 'disk' is neither a file nor a folder"),
        ((member("pipe", tarfile.FIFOTYPE), b""), "member 'pipe' is neither a file nor a folder"),
        ((member("good"), b"again"), "member 'good' stands twice"),
        ((member("./good"), b"again"), "member 'good' stands twice"),
    ],
)
def test_an_evil_tar_is_refused(tmp_path, evil, said):
    assert said in refusal(read_tar, archive(tmp_path, gzip.compress(tarred(GOOD, evil))))


def test_bombs_are_not_unpacked(tmp_path):
    bomb = gzip.compress(bytes(50_000_000))
    assert "more comes out of it than the 100000 bytes declared" in refusal(read_gzip, archive(tmp_path, bomb))
    assert "more comes out" in refusal(
        read_tar, archive(tmp_path, gzip.compress(tarred((member("bomb"), bytes(10**6)))))
    )
    assert "more comes out" in refusal(zip_files, archive(tmp_path, zipped(("bomb", bytes(10**6)))))
    many = zipped(*((f"part{i}", bytes(30_000)) for i in range(4)))
    assert "more comes out" in refusal(zip_files, archive(tmp_path, many))


def test_a_zip_that_lies_about_a_size_is_not_unpacked(tmp_path):
    honest = zipped(("bomb", bytes(10**7)))
    lying = honest.replace((10**7).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    assert lying != honest
    assert "cannot be unpacked" in refusal(lambda: list(read_zip(archive(tmp_path, lying), ["bomb"])))


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(bytes(3000))[:-9], gzip.compress(b"no tar" * 200)],
    ids=["nothing", "text", "a cut gzip", "a gzip of no tar"],
)
def test_what_is_no_archive_is_refused(tmp_path, content):
    assert "cannot be" in refusal(read_tar, archive(tmp_path, content))
    assert "cannot be read as zip" in refusal(zip_files, archive(tmp_path, content))


def test_a_tar_that_was_cut_is_refused(tmp_path):
    cut = tarred((member("a"), b"1" * 5000))[:3000]
    said = refusal(read_tar, archive(tmp_path, gzip.compress(cut)))
    assert "is cut off" in said or "cannot be read as tar" in said


def test_a_good_zip_is_read(tmp_path):
    opened = archive(tmp_path, zipped(("a/", b""), ("a/b", b"12"), ("c", b"3")))
    assert zip_files(opened) == ["a/b", "c"]
    assert list(read_zip(opened, ["c", "a/b"])) == [b"3", b"12"]
    assert "has no member 'd'" in refusal(lambda: list(read_zip(opened, ["d"])))


@pytest.mark.parametrize(
    ("evil", "said"),
    [
        ("../evil", "member '../evil' would leave the folder"),
        ("/evil", "would leave the folder"),
        ("a\\..\\evil", "would leave the folder"),
        ("C:evil", "would leave the folder"),
        ("good", "member 'good' stands twice"),
        (zip_link("link", stat.S_IFLNK), "member 'link' is neither a file nor a folder"),
        (zip_link("device", stat.S_IFBLK), "member 'device' is neither a file nor a folder"),
    ],
)
def test_an_evil_zip_is_refused(tmp_path, evil, said):
    assert said in refusal(zip_files, archive(tmp_path, zipped(("good", b"good"), (evil, b"x"))))


def test_a_spoilt_zip_member_is_refused(tmp_path):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as opened:
        opened.writestr("a", b"0123456789")
    spoilt = made.getvalue().replace(b"0123456789", b"0123456780")
    assert "member 'a' cannot be unpacked: Bad CRC-32" in refusal(
        lambda: list(read_zip(archive(tmp_path, spoilt), ["a"]))
    )
