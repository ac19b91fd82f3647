"""The session of a campaign: one call of Snakemake, and its file results/<study>/sessions/<session>.json."""

import contextlib
import json
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import write_json
from common.notes import Note

SESSION_VARIABLE = "RINGSIDE_SESSION"


def new_session() -> str:
    """Return a name for this session: its start (UTC) and its process."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"


def current_session() -> str:
    """Return the name of the session that this process belongs to, or of a new one if it belongs to none."""
    name = os.environ.get(SESSION_VARIABLE, "")
    return name if re.fullmatch(r"[A-Za-z0-9-]+", name) else new_session()


def _session_file(results: Path, session: str) -> Path:
    return results / "sessions" / f"{session}.json"


def raise_if_halted(results: Path) -> None:
    """Raise InputError if this session has halted its campaign, so that its other jobs do not train."""
    try:
        session = json.loads(_session_file(results, current_session()).read_text(encoding="utf-8"))
        is_halted = session.get("halted")
    except (OSError, ValueError, AttributeError):
        return
    if is_halted:
        raise InputError("campaign-halted", "does not start, because its campaign was halted", file=results)


class SessionFile:
    """The file of a session, rewritten at each change. A full disk does not end the session.

    Attributes:
        n_planned: Number of planned runs at the session's start.
        n_done_before: Number of them that have a record from an earlier session.
        ended: Id, status and time of each run that has ended.
    """

    def __init__(self, results: Path, name: str, n_planned: int, n_done_before: int) -> None:
        """Begin a session; its file is written when the first run ends."""
        self._file = _session_file(results, name)
        self._started_at = time.time()
        self.n_planned, self.n_done_before = n_planned, n_done_before
        self.ended: list[dict[str, Any]] = []
        self._halted: Note | None = None

    def add_run(self, run_id: str, status: str) -> None:
        """Count a run that has ended."""
        self.ended.append({"run_id": run_id, "status": status, "at": time.time()})
        self._write()

    def halt(self, reason: Note) -> None:
        """Write why the campaign was halted, which `raise_if_halted` reads."""
        self._halted = reason
        self._write()

    def _write(self) -> None:
        content = {
            "started": self._started_at,
            "planned": self.n_planned,
            "done_before": self.n_done_before,
            "ended": self.ended,
            **({"halted": self._halted} if self._halted else {}),
        }
        with contextlib.suppress(OSError):
            write_json(self._file, content)
