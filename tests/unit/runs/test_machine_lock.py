"""One run at a time locks the machine."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import InputError
from common.program_sources import SCRIPTS
from runs.machine_lock import machine_lock


def test_machine_is_locked_by_one_run_until_its_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    monkeypatch.setenv("RINGSIDE_LOCK", str(lock))
    program = (
        "import sys, time\nfrom runs.machine_lock import machine_lock\n"
        "with machine_lock('the other run', print):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(SCRIPTS), "RINGSIDE_LOCK": str(lock)},
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    descriptions: list[str] = []

    def waiting(by: str) -> None:
        descriptions.append(by)
        holder.kill()

    start = time.monotonic()
    with machine_lock("this run", waiting):
        assert descriptions == ["the other run"]
        assert lock.read_text() == "this run\n"
    assert time.monotonic() - start < 30
    holder.wait()
    with machine_lock("again", descriptions.append):
        assert descriptions == ["the other run"], "a free machine is not waited for"


@pytest.mark.parametrize("kind", ["link", "dangling", "second name", "pipe", "folder"])
def test_a_machine_lock_is_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Other users can put a link, a pipe or a folder at the path of the lock."""
    lock, mine = tmp_path / "machine.lock", tmp_path / "mine"
    mine.write_text("precious")
    {
        "link": lambda: lock.symlink_to(mine),
        "dangling": lambda: lock.symlink_to(tmp_path / "absent"),
        "second name": lambda: lock.hardlink_to(mine),
        "pipe": lambda: os.mkfifo(lock),
        "folder": lock.mkdir,
    }[kind]()
    monkeypatch.setenv("RINGSIDE_LOCK", str(lock))
    with pytest.raises(InputError) as refused, machine_lock("this run", print):
        pass
    assert (refused.value.code, refused.value.file) == ("no-lock-file", str(lock))
    assert mine.read_text() == "precious" and not (tmp_path / "absent").exists()
