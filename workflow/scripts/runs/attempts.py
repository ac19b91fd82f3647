"""Attempts: a run's folder holds one folder for every try at it; nothing here deletes one.

    runs/<run_id>/<key>/record.json        the published record, the only output that Snakemake knows
    runs/<run_id>/<key>/attempt-<k>/       spec.json, log.txt, epochs.csv, record.json (written last)

An attempt with a record.json is finished and is published instead of being repeated, unless it was put aside.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.files import write_text, written_whole

PUT_ASIDE = "put-aside"


def attempts(folder: Path) -> list[Path]:
    """All attempts at a run, oldest first."""
    return sorted(folder.glob("attempt-*"), key=lambda path: int(path.name.removeprefix("attempt-")))


def finished(folder: Path) -> Path | None:
    """The latest attempt that ended with a record and was not put aside."""
    done = [path for path in attempts(folder) if (path / "record.json").exists() and not (path / PUT_ASIDE).exists()]
    return done[-1] if done else None


def start(folder: Path) -> tuple[int, Path]:
    """A new attempt: its number and its folder."""
    known = attempts(folder)
    number = 1 + (int(known[-1].name.removeprefix("attempt-")) if known else 0)
    attempt = folder / f"attempt-{number}"
    attempt.mkdir(parents=True)
    return number, attempt


def publish(attempt: Path) -> None:
    """Make the attempt's record the run's."""
    with written_whole(attempt.parent / "record.json") as partial:
        shutil.copyfile(attempt / "record.json", partial)


def put_aside(folder: Path) -> None:
    """Keep every attempt, but let the next invocation make a new one."""
    for attempt in attempts(folder):
        write_text(attempt / PUT_ASIDE, "this attempt does not count: a repetition was asked for\n")
    (folder / "record.json").unlink(missing_ok=True)


@contextmanager
def machine_lock(holder: str, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold this machine for one run: no two runs overlap on it, whoever started them.

    The system frees the lock when the holder ends, however it ends. So a supervisor that outlived its Snakemake finishes
    its run first; whoever comes then finds the finished attempt. `waiting` is called once, with what the holder wrote.
    """
    path = Path(os.environ.get("RINGSIDE_LOCK", Path(tempfile.gettempdir()) / "ringside-machine.lock"))
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(lock.read().strip())
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        lock.truncate()
        lock.write(holder + "\n")
        lock.flush()
        try:
            yield
        finally:
            lock.seek(0)
            lock.truncate()
