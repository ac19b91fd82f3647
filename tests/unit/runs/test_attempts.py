"""Attempts are kept and counted, and have the reason for their end."""

import errno
import os
from datetime import datetime
from pathlib import Path

import pytest

from common.files import hold_lock
from records.missing import Situation, describe_missing
from runs import attempts
from runs.interruptions import AttemptStopped
from runs.machine_lock import machine_locked_by


def finish(attempt: Path, text: str) -> None:
    (attempt / "record.json").write_text(f'"{text}"')


def test_latest_recorded_attempt_counts_until_put_aside(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "key"
    assert attempts.latest_recorded_attempt(folder) is None
    first = attempts.create_attempt_folder(folder)
    assert first.name == "attempt-1"
    assert attempts.latest_recorded_attempt(folder) is None, "an attempt without a record is not finished"
    finish(first, "first")
    attempts.copy_final_record(first)
    assert (folder / "record.json").read_text() == '"first"'

    attempts.put_aside(folder / "record.json")
    assert attempts.latest_recorded_attempt(folder) is None and not (folder / "record.json").exists()
    second = attempts.create_attempt_folder(folder)
    assert second.name == "attempt-2"
    finish(second, "second")
    assert attempts.latest_recorded_attempt(folder) == second
    assert (first / "record.json").read_text() == '"first"', "nothing deletes an attempt"


def test_attempts_are_ordered_as_numbers(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        (tmp_path / f"attempt-{number}").mkdir()
    assert [path.name for path in attempts.list_attempts(tmp_path)] == [
        "attempt-1",
        "attempt-2",
        "attempt-10",
    ]
    assert attempts.create_attempt_folder(tmp_path).name == "attempt-11"


def test_seconds_of_earlier_attempts_are_counted(tmp_path: Path) -> None:
    folders = []
    for _ in range(3):
        with attempts.new_attempt(tmp_path) as folder:
            folders.append(folder)
    lost, aside, counted = folders
    begun = datetime.fromisoformat(attempts.read_supervisor(lost)["started_at"]).timestamp()
    for folder, name, seconds in (
        (lost, "log.txt", 30),
        (aside, "record.json", 12),
        (counted, "log.txt", 99),
    ):
        (folder / name).write_text("")
        os.utime(folder / name, (begun + seconds,) * 2)
    for folder in folders:
        os.utime(folder / attempts.SUPERVISOR_FILE, (begun,) * 2)
    (aside / attempts.PUT_ASIDE).write_text("later")
    os.utime(aside / attempts.PUT_ASIDE, (begun + 5000,) * 2)
    assert attempts.earlier_attempts_s(counted) == pytest.approx(42, abs=3)
    assert attempts.earlier_attempts_s(lost) == 0
    (aside / attempts.SUPERVISOR_FILE).unlink()
    assert attempts.earlier_attempts_s(counted) == pytest.approx(30, abs=2), "its beginning is not known"


def test_supervisor_of_older_attempt_is_read(tmp_path: Path) -> None:
    with attempts.new_attempt(tmp_path) as folder:
        content = attempts.read_supervisor(folder)
    assert content["host"]
    (folder / attempts.SUPERVISOR_FILE).rename(folder / attempts.OLDER_SUPERVISOR_FILE)
    assert attempts.read_supervisor(folder) == content


def test_unfinished_attempts_have_their_reasons(tmp_path: Path) -> None:
    folder = tmp_path / "key"
    for reason in ("lost: Node failure on node2 (job 17 on node1)", None, "stopped by SIGTERM"):
        attempt = attempts.create_attempt_folder(folder)
        if reason:
            attempts.write_unfinished_reason(attempt, reason)
    cut_off = attempts.create_attempt_folder(folder)
    (cut_off / "record.json").write_text('{"run_id": "x", "sta')
    complete = attempts.create_attempt_folder(folder)
    finish(complete, "done")
    assert attempts.attempts_without_record(folder) == [
        {"attempt": 1, "reason": "lost: Node failure on node2 (job 17 on node1)"},
        {"attempt": 2, "reason": attempts.UNKNOWN_END},
        {"attempt": 3, "reason": "stopped by SIGTERM"},
        {"attempt": 4, "reason": attempts.UNKNOWN_END},
    ]
    assert attempts.latest_recorded_attempt(folder) == complete
    assert attempts.attempts_without_record(tmp_path / "nothing") == []


def test_variables_of_a_killed_supervisor_are_removed(tmp_path: Path) -> None:
    killed = attempts.create_attempt_folder(tmp_path)
    (killed / "reference-before").mkdir()
    for folder in (killed, killed / "reference-before"):
        (folder / ".variables.sh").write_text("export TOKEN=secret\n")
    attempts.create_attempt_folder(tmp_path)
    assert not list(tmp_path.rglob(".variables.sh"))


def test_unwritable_reason_raises_nothing(tmp_path: Path) -> None:
    attempts.write_unfinished_reason(Path("/dev/null/attempt-1"), "no space left on device")
    assert attempts.attempts_without_record(tmp_path) == []


def test_attempt_is_under_way_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "machine.lock"))
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    final_record_path = tmp_path / "run" / "key" / "record.json"
    assert describe_missing(final_record_path).situation == Situation.NOT_RUN
    assert attempts.current_attempt(final_record_path.parent) is None

    folder = final_record_path.parent
    with (
        pytest.raises(AttemptStopped),
        attempts.lock_run_and_machine(folder, "a run"),
        attempts.new_attempt(folder) as attempt,
    ):
        supervisor = attempts.read_supervisor(attempt)
        assert (supervisor["process"], supervisor["host"], supervisor["job"]) == (
            os.getpid(),
            os.uname().nodename,
            "17",
        )
        assert attempts.current_attempt(folder) == attempt
        situation, reason = describe_missing(final_record_path)
        assert (situation, reason.facts) == (Situation.UNDER_WAY, {"attempt": 1})
        assert f"process {os.getpid()} on" in (machine_locked_by() or "")
        raise AttemptStopped("SIGTERM")
    situation, reason = describe_missing(final_record_path)
    facts = reason.facts
    assert (situation, facts["attempt"]) == (Situation.UNFINISHED, 1)
    assert "SIGTERM" in facts["reason"] and "job 17 on" in facts["reason"]
    assert attempts.current_attempt(final_record_path.parent) is None and machine_locked_by() is None


@pytest.mark.parametrize(
    ("variable", "value", "job"),
    [
        ("SLURM_JOB_ID", "17", "17"),
        ("OAR_JOB_ID", "4711", "4711"),
        ("PBS_JOBID", "4711.head", "4711.head"),
        ("FLUX_ENCLOSING_ID", "ƒpEk7nF", "fpEk7nF"),
    ],
)
def test_an_attempt_names_its_schedulers_job(
    variable: str, value: str, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in attempts.JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with attempts.new_attempt(tmp_path / "without") as attempt:
        assert attempts.read_supervisor(attempt)["job"] is None
    monkeypatch.setenv(variable, value)
    with attempts.new_attempt(tmp_path / "with") as attempt:
        assert attempts.read_supervisor(attempt)["job"] == job


def test_lock_errors_other_than_a_missing_feature_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> None:
        def flock(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("fcntl.flock", flock)

    refuse(errno.ENOLCK)
    with hold_lock(tmp_path / "key" / attempts.RUN_LOCK, lambda: None):
        pass
    refuse(errno.EIO)
    with (
        pytest.raises(OSError, match="Input/output error"),
        hold_lock(tmp_path / "key" / attempts.RUN_LOCK, lambda: None),
    ):
        pass
