"""The state of the checkout that a report is made in: the commit, and what differs from it."""

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from common.files import CHECKOUT

GIT_LIMIT_S = 30


@dataclass(frozen=True)
class State:
    """`commit`: 40 hex digits, None where there is no git. `changed`: files that differ from it or are not in it."""

    commit: str | None
    changed: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As a command line takes it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "State":
        """The inverse of `to_json`. ValueError for anything else."""
        try:
            said = json.loads(text)
            return cls(said["commit"], tuple(said["changed"]))
        except (TypeError, KeyError) as error:
            raise ValueError(f"is no state of a checkout: {error}") from None


def state(folder: Path = CHECKOUT) -> State:
    """The state of the checkout in `folder`; without a commit where that is no checkout of its own, or there is no git."""
    try:
        top, commit = _git(folder, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        if Path(top).resolve() != folder.resolve():
            return State(None)
        changed = _git(folder, "status", "--porcelain", "--no-renames", "-z").split("\0")
    except (OSError, subprocess.SubprocessError, ValueError):
        return State(None)
    return State(commit, tuple(sorted(entry[3:] for entry in changed if entry[2:3] == " ")))


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=GIT_LIMIT_S,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    return done.stdout
