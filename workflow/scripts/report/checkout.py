"""Determine which Ringside makes a report or paper: its version, its commit, and files that differ."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.files import CHECKOUT, load_yaml

GIT_LIMIT_S = 30
SOURCE_FOLDERS = ("config/", "containers/", "profiles/", "ringside", "rules/", "workflow/")


@dataclass(frozen=True)
class State:
    """The state of a checkout.

    Attributes:
        commit: 40 hex digits; None without git.
        changed: Files that differ from the commit, and new ones in SOURCE_FOLDERS.
    """

    commit: str | None = None
    changed: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the state as JSON, for the command lines of `report.make` and `report.paper`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "State":
        """Return the state that `to_json` wrote."""
        fields = json.loads(text)
        return cls(fields["commit"], tuple(fields["changed"]))


def citation() -> Mapping[str, Any]:
    """Return how Ringside asks to be cited: CITATION.cff, with authors, title and version."""
    return load_yaml(CHECKOUT / "CITATION.cff")


def checkout_state(folder: Path = CHECKOUT) -> State:
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
    return State(commit, tuple(sorted(entry[3:] for entry in changed if _matters(entry))))


def _matters(entry: str) -> bool:
    """Return whether an entry of `git status` is a file that can change results, and not a log."""
    is_new, file = entry.startswith("??"), entry[3:]
    return entry[2:3] == " " and (not is_new or file.startswith(SOURCE_FOLDERS))


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
