"""Folders that other users can enter, which pytest's cannot be, and programs run as another user."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.files import CHECKOUT
from common.shell import capture

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")


@contextmanager
def public_folder() -> Iterator[Path]:
    """Yield a temporary folder that anybody may enter and only this user may write to."""
    with tempfile.TemporaryDirectory(prefix="ringside-shared-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def run_as_nobody(code: str, *arguments: object, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    """Run Python statements as another user; `sys.argv[2:]` are the arguments.

    Our modules are imported first, since the other user may not enter the folder of this Python.
    """
    scripts = str(CHECKOUT / "workflow" / "scripts")
    begin = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); os.umask({umask})"
    program = f"import os, sys\nimport common.files\n{begin}\n{code}"
    return capture(
        [sys.executable, "-c", program, scripts, *map(str, arguments)],
        env={"PYTHONPATH": scripts, "PATH": os.environ["PATH"]},
    )
