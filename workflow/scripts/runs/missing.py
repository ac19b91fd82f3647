"""Say in which situation a measurement without a record is, and why: the owner of the status `missing`.

Tables, `./ringside status` and the notes on both ask here, so that they agree.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from common.files import is_locked, node_name
from common.notes import Note
from common.run_status import RunStatus
from runs.attempts import RUN_LOCK, attempt_number, current_attempt, read_holder, unfinished_attempts
from runs.reasons import NO_RECORD_PREFIX, OLD_RECORD_PREFIX


class Situation(StrEnum):
    """Why a measurement has no record. Of several that apply, the first one counts."""

    NOT_EXECUTABLE = "not-executable"  # this site cannot execute it
    UNDER_WAY = "under-way"
    BEGUN_ELSEWHERE = "begun-elsewhere"  # another node began it: it can be under way there, or was killed
    UNFINISHED = "unfinished"  # its latest attempt was lost or stopped, or its supervisor failed
    OLD = "old"  # only records under other keys: of other software, code, data or settings
    NOT_STARTED = "not-run"


class MissingRecord(NamedTuple):
    """The situation of a measurement without a record, and the reason in the words of tables."""

    situation: Situation
    reason: Note

    @property
    def columns(self) -> dict[str, str]:
        """Status and reason, the columns of tables."""
        return {"status": RunStatus.MISSING, "reason": self.reason}


NOT_STARTED = Note(Situation.NOT_STARTED, f"{NO_RECORD_PREFIX}has not run")


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
    reason = _missing_reason(final_record_path, is_under_way)
    return MissingRecord(Situation(reason.code), reason)


def _missing_reason(final_record_path: Path, is_under_way: Callable[[Path], bool]) -> Note:
    """Return the reason of `describe_missing`, with the situation as its code."""
    run_folder = final_record_path.parent
    if attempt_folder := current_attempt(run_folder):
        number = attempt_number(attempt_folder)
        if is_under_way(attempt_folder):
            text = f"{NO_RECORD_PREFIX}attempt {number} is under way"
            return Note(Situation.UNDER_WAY, text, attempt=number)
        if (host := read_holder(attempt_folder).get("host", node_name())) != node_name():
            text = f"{NO_RECORD_PREFIX}attempt {number}, begun on {host}, has not ended, or was killed"
            return Note(Situation.BEGUN_ELSEWHERE, text, attempt=number, host=host)
    if unfinished := unfinished_attempts(run_folder):
        latest = unfinished[-1]
        text = f"{NO_RECORD_PREFIX}attempt {latest['attempt']} {latest['reason']}"
        return Note(Situation.UNFINISHED, text, **latest)
    if any(run_folder.parent.glob(f"*/{final_record_path.name}")):
        text = f"{OLD_RECORD_PREFIX}measured with other software, code, data or settings only"
        return Note(Situation.OLD, text)
    return NOT_STARTED
