"""A measurement without a record is in one situation, and its reason has the facts."""

from pathlib import Path

from records.missing import Situation, describe_missing
from runs import attempts


def test_attempt_begun_elsewhere_may_still_run(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "key"
    attempt = attempts.create_attempt_folder(folder)
    (attempt / "supervisor.json").write_text('{"host": "another-node"}')
    situation, reason = describe_missing(folder / "record.json")
    assert (situation, reason.facts) == (Situation.BEGUN_ELSEWHERE, {"attempt": 1, "host": "another-node"})
    assert describe_missing(folder / "record.json", lambda _: True).situation == Situation.UNDER_WAY
    (attempt / "supervisor.json").write_text("cut o")
    situation, reason = describe_missing(folder / "record.json")
    assert (situation, reason.facts) == (Situation.UNFINISHED, {"attempt": 1, "reason": attempts.UNKNOWN_END})


def test_attempt_counts_more_than_an_old_record(tmp_path: Path) -> None:
    old, current = tmp_path / "run" / "old-key" / "record.json", tmp_path / "run" / "key" / "record.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    assert describe_missing(current).situation == Situation.OLD
    attempts.create_attempt_folder(current.parent)
    assert describe_missing(current).situation == Situation.UNFINISHED


def test_attempt_that_was_put_aside_is_to_be_repeated(tmp_path: Path) -> None:
    final_record_path = tmp_path / "record.json"
    attempts.write_unfinished_reason(attempts.create_attempt_folder(tmp_path), "was lost")
    (attempts.create_attempt_folder(tmp_path) / "record.json").write_text('{"status": "failed"}')
    final_record_path.write_text('{"status": "failed"}')
    attempts.put_aside(final_record_path)
    situation, reason = describe_missing(final_record_path)
    assert (situation, reason.facts) == (Situation.PUT_ASIDE, {"attempt": 2})


def test_reason_is_that_of_the_latest_attempt(tmp_path: Path) -> None:
    for reason in ("was lost", "was stopped"):
        attempts.write_unfinished_reason(attempts.create_attempt_folder(tmp_path), reason)
    _, reason = describe_missing(tmp_path / "record.json")
    assert reason.facts == {"attempt": 2, "reason": "was stopped"}
