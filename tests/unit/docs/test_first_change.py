"""The steps of docs/development/first-change.md lead to a model that three tests pass."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.files import CHECKOUT
from support.pages import page

PAGE = "docs/development/first-change.md"
COPIED = ("workflow/scripts/models", "workflow/scripts/common", "tests/unit/models/test_graph.py")


def apply_diff(text: str, folder: Path, *options: str) -> bool:
    """Return whether git could apply a diff in a folder."""
    done = subprocess.run(
        ["git", "apply", *options, "-"], cwd=folder, input=text.encode(), capture_output=True, check=False
    )
    return done.returncode == 0


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that the page changes, as they are before its steps."""
    for name in COPIED:
        source, target = CHECKOUT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for diff in page(PAGE).blocks("diff"):  # once somebody has merged the change, it is undone here
        apply_diff(diff, tmp_path, "--reverse")
    return tmp_path


def test_the_steps_lead_to_a_tested_model(copy: Path) -> None:
    (command,) = (line for line in page(PAGE).commands if " pytest " in line)
    assert command.split()[-1] not in (copy / "workflow/scripts/models/families/plain.py").read_text()
    assert all(apply_diff(diff, copy) for diff in page(PAGE).blocks("diff"))
    done = subprocess.run(
        [sys.executable, *command.split()[1:], "-p", "no:cacheprovider"],
        cwd=copy, env={**os.environ, "PYTHONPATH": str(copy / "workflow" / "scripts")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.findall(r"(\d+) (passed|failed|error)", done.stdout) == [("3", "passed")]
