"""Progress that a person can follow: one line as each run ends, with what is done, what is left, and until when."""

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.files import write_json

SESSION_VARIABLE = "RINGSIDE_SESSION"


def new_session() -> str:
    """A name for one invocation: its start (UTC) and its process."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"


def current_session() -> str:
    """The session that this process belongs to."""
    return os.environ.get(SESSION_VARIABLE) or new_session()


class Session:
    """What one session has done, kept in results/<study>/sessions/<session>.json."""

    def __init__(self, results: Path, name: str, published: dict[str, Path]) -> None:
        """`published` maps every run of the design to its record.json, whether or not it exists yet."""
        self.name = name
        self._file = results / "sessions" / f"{name}.json"
        self._published = published
        if self._file.exists():
            self._state: dict[str, Any] = json.loads(self._file.read_text())
        else:
            done = sum(path.exists() for path in published.values())
            self._state = {"started": time.time(), "planned": len(published), "done_before": done, "ended": []}

    def add(self, run_id: str, status: str) -> None:
        """A run has ended."""
        self._state["ended"].append({"run_id": run_id, "status": status, "at": time.time()})
        write_json(self._file, self._state)

    def line(self, run_id: str, status: str, what: str) -> str:
        """The line to print after `add`."""
        ended = self._state["ended"]
        planned = self._state["planned"]
        done = min(planned, self._state["done_before"] + len(ended))
        left = planned - done
        failed = sum(entry["status"] != "ok" for entry in ended)
        each_s = (time.time() - self._state["started"]) / len(ended)
        width = len(str(planned))
        tail = f"{left} left, about {_duration(left * each_s)}" if left else "all runs done"
        return f"[{done:{width}d}/{planned}] {status:8s}{run_id:58s} {what} | {tail} | {failed} not ok"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
