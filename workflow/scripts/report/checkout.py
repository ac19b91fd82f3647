"""Determine the state of the checkout that makes a report: its commit, and files that differ from it."""

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from common.files import CHECKOUT

GIT_LIMIT_S = 30


@dataclass(frozen=True)
class State:
    """The state of a checkout.

    Attributes:
        commit: 40 hex digits; None without git.
        changed: Files that differ from the commit or are not in it.
    """

    commit: str | None
    changed: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the state as JSON, for the command line of `report.make`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "State":
        """Return the state that `to_json` wrote."""
        fields = json.loads(text)
        return cls(fields["commit"], tuple(fields["changed"]))


def state(folder: Path = CHECKOUT) -> State:
    """Return the state of the checkout in `folder`.

    The commit is None without git, or if `folder` is not the root of a repository.
    """
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
