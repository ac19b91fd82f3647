"""Explain why a measurement has no record, for tables and `./ringside status`, so that they agree."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from common.files import is_locked, node_name
from common.notes import Note
from common.run_status import RunStatus
from runs.attempts import (
    RUN_LOCK,
    attempt_number,
    attempts_without_record,
    current_attempt,
    has_record,
    is_put_aside,
    latest_attempt,
    read_supervisor,
)
from runs.reasons import NO_RECORD_PREFIX, OLD_RECORD_PREFIX


class Situation(StrEnum):
    """Why a measurement has no record. Of several that apply, the first one counts."""

    NOT_EXECUTABLE = "not-executable"  # this site cannot execute it
    UNDER_WAY = "under-way"
    BEGUN_ELSEWHERE = "begun-elsewhere"  # another node began it: it can be under way there, or was killed
    PUT_ASIDE = "put-aside"  # its latest attempt has a record, and a repetition was requested
    UNFINISHED = "unfinished"  # its latest attempt ended without a record
    OLD = "old"  # only records under other keys: of other software, code, data or settings
    NOT_RUN = "not-run"


class MissingRecord(NamedTuple):
    """The situation of a measurement without a record, and the reason in the words of tables."""

    situation: Situation
    reason: Note

    @property
    def columns(self) -> dict[str, str]:
        """Status and reason, the columns of tables."""
        return {"status": RunStatus.MISSING, "reason": self.reason}


def holds_lock(attempt_folder: Path) -> bool:
    """Return whether a supervisor holds the lock of the attempt's run."""
    return is_locked(attempt_folder.parent / RUN_LOCK)


def describe_missing(
    final_record_path: Path, is_under_way: Callable[[Path], bool] = holds_lock
) -> MissingRecord:
    """Return the situation of an executable measurement whose final record does not exist.

    Args:
        final_record_path: Its path under the current key.
        is_under_way: Returns whether an attempt that shows no end is under way, from its folder.
    """
    run_folder = final_record_path.parent
    if attempt_folder := current_attempt(run_folder):
        number = attempt_number(attempt_folder)
        if is_under_way(attempt_folder):
            return _missing(Situation.UNDER_WAY, f"attempt {number} is under way", attempt=number)
        if (host := read_supervisor(attempt_folder).get("host", node_name())) != node_name():
            text = f"attempt {number}, begun on {host}, has not ended, or was killed"
            return _missing(Situation.BEGUN_ELSEWHERE, text, attempt=number, host=host)
    latest = latest_attempt(run_folder)
    if latest and is_put_aside(latest) and has_record(latest):
        number = attempt_number(latest)
        return _missing(Situation.PUT_ASIDE, f"attempt {number} is to be repeated", attempt=number)
    if ended := attempts_without_record(run_folder):
        text = f"attempt {ended[-1]['attempt']} {ended[-1]['reason']}"
        return _missing(Situation.UNFINISHED, text, **ended[-1])
    if any(run_folder.parent.glob(f"*/{final_record_path.name}")):
        text = "measured with other software, code, data or settings only"
        return _missing(Situation.OLD, text, prefix=OLD_RECORD_PREFIX)
    return _missing(Situation.NOT_RUN, "has not run")


def _missing(situation: Situation, text: str, prefix: str = NO_RECORD_PREFIX, **facts: Any) -> MissingRecord:
    return MissingRecord(situation, Note(situation, f"{prefix}{text}", **facts))
