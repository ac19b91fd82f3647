"""What the fuzzer begins with is accepted, and what it once found is refused in one line."""

from pathlib import Path

import pytest

from common.errors import InputError
from fuzz.run import CORPUS
from fuzz.targets import TARGETS, call

FOUND_FILES = sorted(file for file in CORPUS.glob("*/*") if file.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_read(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    assert seeds
    for content in seeds:
        call(target, content, tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_no_such_file_is_no_traceback(name: str, tmp_path: Path) -> None:
    for content in (b"", b"\xff\xfe\x00", b"[" * 100_000, b"9" * 5000, b"a,b\n" * 1000):
        call(TARGETS[name], content, tmp_path)


@pytest.mark.parametrize("file", FOUND_FILES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_what_was_found_stays_mended(file: Path, tmp_path: Path) -> None:
    call(TARGETS[file.parent.name], file.read_bytes(), tmp_path)


def test_a_traceback_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("records.record_checks.check", lambda *_: {}["no such key"])
    with pytest.raises(KeyError):
        call(TARGETS["record"], TARGETS["record"].seeds()[0], tmp_path)
    monkeypatch.setattr(
        "records.record_checks.check", lambda *_: (_ for _ in ()).throw(InputError("code", "two\nlines"))
    )
    call(TARGETS["record"], TARGETS["record"].seeds()[0], tmp_path)
