"""Attempts: a run's folder holds one folder for every try at it; nothing here deletes one.

    runs/<run_id>/<key>/record.json        the published record, the only output that Snakemake knows
    runs/<run_id>/<key>/attempt-<k>/       holder.json (who is at it), spec.json, log.txt, epochs.csv, record.json (written last)
    runs/<run_id>/<key>/attempt-<k>/unfinished.txt   in place of a record: why there is none

An attempt with a record.json is finished and is published instead of being repeated, unless it was put aside.
"""

import contextlib
import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from common.errors import InputError, refuse_machine_error, say
from common.files import held, lock, locked, node_name, read_json, utc, write_json, write_text, written_whole
from common.notes import Note
from common.schemas import check
from launchers.launch import Lost, Stopped, forget_variables

PUT_ASIDE = "put-aside"
UNFINISHED = "unfinished.txt"
HOLDER = "holder.json"
LOCKED = ".lock"  # beside the attempts, held while one is made
NOT_RUN = Note("not-run", "absent: has not run")
UNKNOWN_END = Note("unknown-end", "ended without a word: it was killed, or its node was lost")
DISTURBED = "disturbed: "  # how the reason of a record begins whose run lost processor time to others
LOCK = "/dev/shm/ringside-machine.lock"  # noqa: S108 (one place that all users and all virtual nodes of a machine share)


def attempts(folder: Path) -> list[Path]:
    """All attempts at a run, oldest first."""
    numbered = [path for path in folder.glob("attempt-*") if path.name.removeprefix("attempt-").isdecimal()]
    return sorted(numbered, key=_number)


def numbered(folder: Path, number: int) -> Path:
    """The folder of an attempt at a run."""
    return folder / f"attempt-{number}"


def _number(attempt: Path) -> int:
    return int(attempt.name.removeprefix("attempt-"))


def finished(folder: Path) -> Path | None:
    """The latest attempt that ended with a whole record and was not put aside."""
    done = [path for path in attempts(folder) if _has_record(path) and not (path / PUT_ASIDE).exists()]
    return done[-1] if done else None


def _has_record(attempt: Path) -> bool:
    try:
        return bool(json.loads((attempt / "record.json").read_text()))
    except (OSError, ValueError) as error:
        refuse_machine_error(error)
        return False


def unfinished(folder: Path) -> list[dict[str, Any]]:
    """The attempts that left no record, each with its number and the reason as far as it is known."""
    left = [attempt for attempt in attempts(folder) if not _has_record(attempt)]
    reasons = {attempt: attempt / UNFINISHED for attempt in left}
    return [
        {"attempt": _number(attempt), "reason": note.read_text().strip() if note.exists() else UNKNOWN_END}
        for attempt, note in reasons.items()
    ]


def why_absent(published: Path) -> Note:
    """Why there is no record `published` under its current key."""
    folder = published.parent
    if any(folder.parent.glob(f"*/{published.name}")):
        return Note("old", "old: measured with other software, code, data or settings only")
    attempt = under_way(folder)
    if attempt and held(folder / LOCKED):
        number = _number(attempt)
        return Note("under-way", f"absent: attempt {number} is under way", attempt=number)
    if attempt and (host := holder(attempt).get("host", node_name())) != node_name():
        number = _number(attempt)
        text = f"absent: attempt {number}, begun on {host}, has not ended, or was killed"
        return Note("begun-elsewhere", text, attempt=number, host=host)
    if left := unfinished(folder):
        return Note("unfinished", f"absent: attempt {left[-1]['attempt']} {left[-1]['reason']}", **left[-1])
    return NOT_RUN


def under_way(folder: Path) -> Path | None:
    """The latest attempt, where nothing says that it has ended: somebody is at it, or was killed."""
    latest = attempts(folder)[-1:]
    ended = latest and (_has_record(latest[0]) or (latest[0] / UNFINISHED).exists())
    return latest[0] if latest and not ended else None


def holder(attempt: Path) -> dict[str, Any]:
    """Who began an attempt: process, host, job of the scheduler (or None), started_at (UTC); empty where that is not known."""
    try:
        said = read_json(attempt / HOLDER)
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def give_up(attempt: Path, reason: str) -> None:
    """Note why an attempt has no record."""
    with contextlib.suppress(OSError):  # a full disk may be the reason
        write_text(attempt / UNFINISHED, f"{reason}\n")


def start(folder: Path) -> tuple[int, Path]:
    """A new attempt: its number and its folder."""
    known = attempts(folder)
    forget_variables(folder)
    number = 1 + (_number(known[-1]) if known else 0)
    attempt = numbered(folder, number)
    attempt.mkdir(parents=True)
    return number, attempt


@contextmanager
def exclusive(folder: Path, what: str) -> Iterator[None]:
    """Hold a run's `folder` and this machine while `what` is measured; print what this waits for."""

    def waiting(holder: str = "") -> None:
        say(f"{what}: waiting for {holder or 'another job of the same'}")

    holder = f"process {os.getpid()} on {node_name()}, which measures {what}"
    with run_lock(folder, waiting), machine_lock(holder, waiting):
        yield


@contextmanager
def new_attempt(folder: Path) -> Iterator[Path]:
    """Begin an attempt at a run; where it ends in an exception its folder keeps the reason."""
    _, attempt = start(folder)
    try:
        started_at = utc(time.time())
        myself = {"process": os.getpid(), "host": node_name(), "job": _job(), "started_at": started_at}
        write_json(attempt / HOLDER, myself)
        yield attempt
    except BaseException as stopped:
        give_up(attempt, _why(stopped))
        raise


def finish(attempt: Path, record: dict[str, Any], kind: str) -> None:
    """Write the record of an attempt, checked against the schema `kind`."""
    number = _number(attempt)
    before = [other for other in unfinished(attempt.parent) if other["attempt"] < number]
    record = record | {"attempt": number, "unfinished_attempts": before}
    check(record, kind, attempt / "record.json")
    write_json(attempt / "record.json", record)


def publish(attempt: Path, name: str = "record.json") -> dict[str, Any]:
    """Make the attempt's record, under this name, that of all attempts, and return it."""
    with written_whole(attempt.parent / name) as partial:
        shutil.copyfile(attempt / "record.json", partial)
    return read_record(attempt)


def read_record(attempt: Path) -> dict[str, Any]:
    """Return the record of a finished attempt."""
    record: dict[str, Any] = json.loads((attempt / "record.json").read_text())
    return record


def _why(stopped: BaseException) -> str:
    job = _job()
    where = f" (job {job} on {node_name()})" if job else ""
    match stopped:
        case Stopped():
            what = f"stopped by {stopped}"
        case Lost():
            what = f"lost: {stopped}"
        case _:
            what = f"{type(stopped).__name__}: {stopped}"
    return what + where


def _job() -> str | None:
    """The number of the scheduler's job that this process belongs to."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("OAR_JOB_ID")


def put_aside(published: Path) -> None:
    """Keep every attempt, but let the next invocation make a new one; `published` is the record that they led to."""
    for attempt in attempts(published.parent):
        write_text(attempt / PUT_ASIDE, "this attempt does not count: a repetition was asked for\n")
    published.unlink(missing_ok=True)


@contextmanager
def run_lock(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold one run, on whichever node: a job that outlived its Snakemake is waited for by the one that comes after it.

    Where the file system has no locks (./ringside doctor says so) nothing is held.
    """
    with locked(folder / LOCKED, waiting):
        yield


@contextmanager
def machine_lock(holder: str, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold this machine for one run: no two runs overlap on it, whoever started them.

    The system frees the lock when the holder ends, however it ends. So a supervisor that outlived its Snakemake finishes
    its run first; whoever comes then finds the finished attempt. `waiting` is called once, with what the holder wrote.
    """
    with _open_lock(_machine()) as file:
        lock(file, lambda: waiting(file.read().strip()))
        _write_holder(file, holder + "\n")
        try:
            yield
        finally:
            _write_holder(file, "")


def machine_holder() -> str | None:
    """Who holds this machine, in its own words; None where nobody does. Takes no lock."""
    return _machine().read_text(errors="replace").strip() or "somebody" if held(_machine()) else None


def _machine() -> Path:
    return Path(os.environ.get("RINGSIDE_LOCK", LOCK))


def _open_lock(path: Path) -> TextIO:
    """Return the lock file, open for reading at least: another user's file can be locked, but not always written.

    It lies in a folder of all users. Any of them may have put a link, a pipe or a second name of one of our files there, so only a
    regular file with one name is used.

    Raises:
        InputError: If it is anything else, or cannot be opened.
    """
    hint = "it keeps two runs from overlapping on this machine; remove it, or name another file in RINGSIDE_LOCK"
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR):
        with contextlib.suppress(PermissionError, FileNotFoundError, FileExistsError):
            try:
                descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                    raise
                raise InputError("no-lock-file", "is no regular file", file=path, hint=hint) from None
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                os.close(descriptor)
                raise InputError("no-lock-file", "is no regular file of one name", file=path, hint=hint)
            if flags & os.O_CREAT:
                os.fchmod(descriptor, 0o666)
            return open(descriptor, "r" if flags == os.O_RDONLY else "r+", errors="replace")
    raise InputError("not-writable", "cannot be opened", file=path, hint=hint)


def _write_holder(file: TextIO, text: str) -> None:
    """Write who holds the machine. A full file system loses this note; it does not lose the lock, or a run."""
    with contextlib.suppress(OSError):
        if file.writable():
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), text.encode(), 0)
