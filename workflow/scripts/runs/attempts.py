"""Keep the attempts of a run, each in its own folder. Nothing here deletes an attempt.

    runs/<run_id>/<key>/record.json      the final record, the only output that Snakemake knows
    runs/<run_id>/<key>/.lock            locked during an attempt
    runs/<run_id>/<key>/attempt-<k>/     one attempt:
        supervisor.json                  process, host and job of its supervisor; the first file
        rank_input.json                  input of the ranks
        .variables.sh                    variables of the ranks, removed when they have ended
        rendezvous.json                  where the ranks meet
        log.txt                          output of the ranks
        epochs.csv, steps.csv            times of epochs, and of steps if the study asks for them
        phases.csv, clocks.csv           phases of traced ranks, merged from phases-<rank>.csv
        score-p/                         what Score-P wrote
        out-of-memory-<rank>.json        report of a rank whose memory ran out
        power.csv                        power over time, from power-<rank>.csv of each machine and wattmeters
        result.json                      what the ranks measured about themselves, if all have finished
        reference-before/, -after/       a reference benchmark and its log, kept if it failed
        record.json                      the record, which is written last
        unfinished.txt                   why there is no record
        put-aside                        a mark: the attempt no longer counts

The final record is a copy of the latest record of an attempt that was not put aside. An attempt that ended
without a record is unfinished. A run without a final record is missing, and Snakemake executes it.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from common.errors import print_line, raise_if_machine_error
from common.files import format_utc, hold_lock, node_name, read_json, write_json, write_text, written_whole
from common.notes import Note
from common.schemas import check
from launchers.protocol import AttemptLost
from launchers.variables import forget_variables
from runs.interruptions import AttemptStopped
from runs.machine_lock import machine_lock

PUT_ASIDE = "put-aside"
UNFINISHED = "unfinished.txt"
SUPERVISOR_FILE = "supervisor.json"
OLDER_SUPERVISOR_FILE = "holder.json"  # its name in attempts of 0.1.0
RUN_LOCK = ".lock"  # in a run's folder, locked during an attempt
# Variables in which schedulers pass the number of the job.
JOB_VARIABLES = ("SLURM_JOB_ID", "OAR_JOB_ID", "PBS_JOBID", "FLUX_ENCLOSING_ID")
UNKNOWN_END = Note(
    "unknown-end", "ended, cause unknown: it was killed, its node is gone, or its record cannot be read"
)


def list_attempts(run_folder: Path) -> list[Path]:
    """Return the folders of all attempts of a run (runs/<run_id>/<key>), oldest first."""
    numbered = [
        path for path in run_folder.glob("attempt-*") if path.name.removeprefix("attempt-").isdecimal()
    ]
    return sorted(numbered, key=attempt_number)


def attempt_path(run_folder: Path, number: int) -> Path:
    """Return the folder of the attempt with this number."""
    return run_folder / f"attempt-{number}"


def attempt_number(attempt_folder: Path) -> int:
    """Return the number in the name of an attempt's folder."""
    return int(attempt_folder.name.removeprefix("attempt-"))


def latest_attempt(run_folder: Path) -> Path | None:
    """Return the latest attempt, or None."""
    attempt_folders = list_attempts(run_folder)
    return attempt_folders[-1] if attempt_folders else None


def latest_recorded_attempt(run_folder: Path) -> Path | None:
    """Return the latest attempt that has a record and was not put aside, or None."""
    recorded = [path for path in list_attempts(run_folder) if has_record(path) and not is_put_aside(path)]
    return recorded[-1] if recorded else None


def is_put_aside(attempt_folder: Path) -> bool:
    """Return whether a repetition was requested after this attempt, so that its record does not count."""
    return (attempt_folder / PUT_ASIDE).exists()


def has_record(attempt_folder: Path) -> bool:
    """Return whether an attempt has a readable record."""
    try:
        return bool(json.loads((attempt_folder / "record.json").read_text()))
    except (OSError, ValueError) as error:
        raise_if_machine_error(error)
        return False


def attempts_without_record(run_folder: Path) -> list[dict[str, Any]]:
    """Return number and reason of each attempt without a record, oldest first.

    The reason is UNKNOWN_END if the supervisor left none: it was killed, or the attempt is still under way.
    """
    return [
        {
            "attempt": attempt_number(path),
            "reason": file.read_text().strip() if (file := path / UNFINISHED).exists() else UNKNOWN_END,
        }
        for path in list_attempts(run_folder)
        if not has_record(path)
    ]


def earlier_attempts_s(attempt_folder: Path) -> float:
    """Return the seconds that the earlier attempts of a run took, each from its beginning to its last file.

    None of these attempts counts: they are unfinished, or were put aside. If the beginning of an attempt is
    unknown, it adds 0 s.
    """
    total_s = 0.0
    for earlier in list_attempts(attempt_folder.parent):
        files = [file for file in earlier.iterdir() if file.name != PUT_ASIDE]
        begun = read_supervisor(earlier).get("started_at")
        if attempt_number(earlier) < attempt_number(attempt_folder) and begun and files:
            ended_s = max(file.stat().st_mtime for file in files)
            total_s += max(0.0, ended_s - datetime.fromisoformat(begun).timestamp())
    return total_s


def current_attempt(run_folder: Path) -> Path | None:
    """Return the latest attempt if no file shows its end: it is under way, or its supervisor was killed."""
    latest = latest_attempt(run_folder)
    has_ended = latest and (has_record(latest) or (latest / UNFINISHED).exists())
    return None if has_ended else latest


def read_supervisor(attempt_folder: Path) -> dict[str, Any]:
    """Return process, host and job of an attempt's supervisor, and started_at (UTC); {} if unreadable."""
    file = attempt_folder / SUPERVISOR_FILE
    try:
        content = read_json(file if file.exists() else attempt_folder / OLDER_SUPERVISOR_FILE)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_unfinished_reason(attempt_folder: Path, reason: str) -> None:
    """Write why an attempt is unfinished, if the disk allows it."""
    with contextlib.suppress(OSError):  # a full disk can be the reason
        write_text(attempt_folder / UNFINISHED, f"{reason}\n")


def create_attempt_folder(run_folder: Path) -> Path:
    """Create and return the folder of a new attempt; remove the variables of killed attempts."""
    previous = list_attempts(run_folder)
    forget_variables(run_folder)
    attempt_folder = attempt_path(run_folder, 1 + (attempt_number(previous[-1]) if previous else 0))
    attempt_folder.mkdir(parents=True)
    return attempt_folder


@contextmanager
def lock_run_and_machine(run_folder: Path, title: str) -> Iterator[None]:
    """Lock a run's folder and this machine during a measurement; print what this process waits for.

    The folder is locked for all nodes, so that a new job waits for one that outlived its Snakemake. On a file
    system without locks, which ./ringside doctor reports, only the machine is locked.
    """

    def waiting(locked_by: str = "another job of the same run") -> None:
        print_line(f"{title}: waiting for {locked_by}")

    this_process = f"process {os.getpid()} on {node_name()}, which measures {title}"
    with hold_lock(run_folder / RUN_LOCK, waiting), machine_lock(this_process, waiting):
        yield


@contextmanager
def new_attempt(run_folder: Path) -> Iterator[Path]:
    """Begin an attempt of a run. If it ends in an exception, its folder keeps the reason."""
    attempt_folder = create_attempt_folder(run_folder)
    try:
        supervisor = {
            "process": os.getpid(),
            "host": node_name(),
            "job": _job_number(),
            "started_at": format_utc(time.time()),
        }
        write_json(attempt_folder / SUPERVISOR_FILE, supervisor)
        yield attempt_folder
    except BaseException as error:
        write_unfinished_reason(attempt_folder, _unfinished_reason(error))
        raise


def write_record(attempt_folder: Path, record: dict[str, Any], kind: str) -> None:
    """Check a record against the schema `kind`, and write it as attempt-<k>/record.json."""
    number = attempt_number(attempt_folder)
    earlier = [entry for entry in attempts_without_record(attempt_folder.parent) if entry["attempt"] < number]
    record = record | {"attempt": number, "unfinished_attempts": earlier}
    check(record, kind, attempt_folder / "record.json")
    write_json(attempt_folder / "record.json", record)


def copy_final_record(attempt_folder: Path, name: str = "record.json") -> dict[str, Any]:
    """Copy attempt-<k>/record.json to `name` in the run's folder, and return the record."""
    with written_whole(attempt_folder.parent / name) as partial:
        shutil.copyfile(attempt_folder / "record.json", partial)
    return read_attempt_record(attempt_folder)


def read_attempt_record(attempt_folder: Path) -> dict[str, Any]:
    """Return the record of an attempt that has one, unchecked: this program has checked and written it."""
    record: dict[str, Any] = json.loads((attempt_folder / "record.json").read_text())
    return record


def _unfinished_reason(error: BaseException) -> str:
    """Return why an attempt is unfinished: it was stopped or lost, or its supervisor failed."""
    job = _job_number()
    suffix = f" (job {job} on {node_name()})" if job else ""
    match error:
        case AttemptStopped():
            return f"stopped by {error}{suffix}"
        case AttemptLost():
            return f"lost: {error}{suffix}"
        case _:
            return f"{type(error).__name__}: {error}{suffix}"


def _job_number() -> str | None:
    """Return the number of the scheduler's job that this process belongs to, or None."""
    number = next((os.environ[name] for name in JOB_VARIABLES if os.environ.get(name)), None)
    # If only ASCII is allowed, Flux itself prints ƒpEk7nF as fpEk7nF.
    return number and number.replace("ƒ", "f")


def put_aside(final_record_path: Path) -> None:
    """Put aside all attempts of a run and remove its final record, so that it is measured again."""
    for attempt_folder in list_attempts(final_record_path.parent):
        write_text(attempt_folder / PUT_ASIDE, "this attempt does not count: a repetition was requested\n")
    final_record_path.unlink(missing_ok=True)
