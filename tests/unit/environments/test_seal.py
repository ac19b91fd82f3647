"""A built environment that somebody edited is refused.

One that was only moved, touched or compiled is not.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import read_json, write_json
from environments.built import check_unchanged
from environments.seal import SEAL, check_seal, write_seal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    packages = tmp_path / "built" / "venv" / "lib" / "torch"
    packages.mkdir(parents=True)
    (packages / "sgd.py").write_text("rate = 0.1\n")
    (packages / "libtorch.so.2").write_bytes(bytes(1000))
    (packages / "libtorch.so").symlink_to("libtorch.so.2")
    write_seal(tmp_path / "built")
    return tmp_path / "built"


def edit_in_place(packages: Path) -> None:
    """Set size and date back, as a careful editor would."""
    file = packages / "sgd.py"
    status = file.stat()
    file.write_text("rate = 0.2\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def redirect(packages: Path) -> None:
    (packages / "libtorch.so").unlink()
    (packages / "libtorch.so").symlink_to("elsewhere/libtorch.so")


@pytest.mark.parametrize(
    "change",
    [
        edit_in_place,
        redirect,
        lambda packages: (packages / "zeroed.pth").write_text("import os\n"),
        lambda packages: (packages / "sgd.py").unlink(),
    ],
    ids=["edited", "redirected", "added", "removed"],
)
def test_an_edited_environment_is_refused(folder: Path, change: Callable[[Path], None]) -> None:
    check_seal(folder)
    change(folder / "venv" / "lib" / "torch")
    with pytest.raises(InputError) as refused:
        check_seal(folder)
    assert (refused.value.code, refused.value.file) == ("changed-environment", str(folder))


def test_a_copy_is_the_same_environment(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    before = read_json(tmp_path / "copy" / SEAL)
    check_seal(tmp_path / "copy")
    after = read_json(tmp_path / "copy" / SEAL)
    assert after["content"] == before["content"] and after["stat"] != before["stat"], (
        "compared by content once"
    )
    (folder / "venv" / "lib" / "torch" / "__pycache__").mkdir()
    (folder / "venv" / "lib" / "torch" / "__pycache__" / "sgd.pyc").write_bytes(b"0")
    check_seal(folder)


def test_an_environment_of_an_older_cache_gets_a_seal(folder: Path) -> None:
    (folder / SEAL).unlink()
    check_seal(folder)
    edit_in_place(folder / "venv" / "lib" / "torch")
    with pytest.raises(InputError):
        check_seal(folder)


def test_the_environment_below_is_checked_too(folder: Path, tmp_path: Path) -> None:
    child = tmp_path / "child"
    (child / "venv").mkdir(parents=True)
    python = child / "venv" / "python"
    python.touch()
    prefixes = [str(child / "venv"), str(folder / "venv")]
    write_json(
        child / "environment.json",
        {"deployment": "venv", "image": None, "prefixes": prefixes, "python": {"executable": str(python)}},
    )
    check_unchanged([child / "environment.json", tmp_path / "absent.json"])
    edit_in_place(folder / "venv" / "lib" / "torch")
    with pytest.raises(InputError) as refused:
        check_unchanged([child / "environment.json"])
    assert refused.value.file == str(folder)
