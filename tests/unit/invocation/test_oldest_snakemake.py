"""The oldest Snakemake that is allowed decides by content as the newest does (make versions-test)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed_site import SITE
from support.small_workflow import OTHER_PYTHON

pytestmark = pytest.mark.versions
OLDEST = "9.20.0"


def test_oldest_snakemake_decides_by_content() -> None:
    prefix = SITE.cache / "oldest" / f"snakemake-{OLDEST}"
    python = prefix / "bin" / "python"
    if not (prefix / "whole").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", prefix], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"snakemake=={OLDEST}"], check=True)
        (prefix / "whole").touch()
    tests = Path(__file__).with_name("test_content_check.py")
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", tests]
    done = subprocess.run(
        command, env={**os.environ, OTHER_PYTHON: str(python)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout
