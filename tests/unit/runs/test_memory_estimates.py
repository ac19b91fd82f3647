"""An estimate of memory that fails or hangs says why in one line, and leaves no process behind."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from declared.site import load_site
from runs import memory_estimates

SITE = load_site("local")


def environment_of(folder: Path, script: str) -> Any:
    """Return an environment whose Python is this script."""
    executable = folder / "python"
    executable.write_text(f"#!{sys.executable}\n{script}\n")
    executable.chmod(0o755)
    return {"python": {"executable": str(executable)}, "variables": {}}


def test_hanging_program_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory_estimates, "START_S", 0.5)
    script = f"""import os, time
if (child := os.fork()):
    open({str(tmp_path / "child")!r}, "w").write(str(child))
time.sleep(60)"""
    assert memory_estimates.estimate(SITE, environment_of(tmp_path, script), []) == []
    assert "0.5 s" in capsys.readouterr().err
    child = Path("/proc", (tmp_path / "child").read_text(), "stat")
    for _ in range(50):
        if not child.exists() or child.read_text().split()[2] == "Z":
            return
        time.sleep(0.02)
    raise AssertionError("the child lives")


def test_failed_program_reports_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = environment_of(tmp_path, "raise ImportError('no torch here')")
    assert memory_estimates.estimate(SITE, environment, []) == []
    assert "no torch here" in capsys.readouterr().err
