"""Attempts are kept, counted and published; one run at a time holds the machine."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from runs import attempts


def finish(attempt: Path, text: str) -> None:
    (attempt / "record.json").write_text(f'"{text}"')


def test_a_finished_attempt_is_published_and_put_aside_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "key"
    assert attempts.finished(folder) is None
    number, first = attempts.start(folder)
    assert (number, first.name) == (1, "attempt-1")
    assert attempts.finished(folder) is None, "an attempt without a record is not finished"
    finish(first, "first")
    attempts.publish(first)
    assert (folder / "record.json").read_text() == '"first"'

    attempts.put_aside(folder)
    assert attempts.finished(folder) is None and not (folder / "record.json").exists()
    number, second = attempts.start(folder)
    assert (number, second.name) == (2, "attempt-2")
    finish(second, "second")
    assert attempts.finished(folder) == second
    assert (first / "record.json").read_text() == '"first"', "nothing deletes an attempt"


def test_attempts_are_ordered_as_numbers(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        (tmp_path / f"attempt-{number}").mkdir()
    assert [path.name for path in attempts.attempts(tmp_path)] == ["attempt-1", "attempt-2", "attempt-10"]
    assert attempts.start(tmp_path)[0] == 11


def test_the_machine_is_held_by_one_run_and_freed_when_its_process_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    monkeypatch.setenv("RINGSIDE_LOCK", str(lock))
    program = (
        "import sys, time\nfrom runs.attempts import machine_lock\n"
        "with machine_lock('the other run', print):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    scripts = Path(attempts.__file__).parents[1]
    holder = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(scripts), "RINGSIDE_LOCK": str(lock)},
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    said: list[str] = []

    def waiting(by: str) -> None:
        said.append(by)
        holder.kill()

    start = time.monotonic()
    with attempts.machine_lock("this run", waiting):
        assert said == ["the other run"]
        assert lock.read_text() == "this run\n"
    assert time.monotonic() - start < 30
    holder.wait()
    with attempts.machine_lock("again", said.append):
        assert said == ["the other run"], "a free machine is not waited for"
