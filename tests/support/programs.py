"""Programs in the environments of frameworks."""

import os
import subprocess
from pathlib import Path
from typing import Any

from common.program_sources import SCRIPTS

PATHS = os.pathsep.join(map(str, (SCRIPTS, Path(__file__).resolve().parents[1])))


def printed(environment: dict[str, Any], *arguments: str | Path, **variables: str) -> str:
    """Run Python with these arguments in a framework's environment, and return what it prints."""
    done = subprocess.run(
        [environment["python"]["executable"], *map(str, arguments)],
        env={**os.environ, **environment["variables"], "PYTHONPATH": PATHS, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
