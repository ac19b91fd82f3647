"""Programs of benchmarks name themselves as people call them.

A reader who has gone ends a program quietly.
"""

import os
import re
import subprocess
import sys

import pytest

from common.files import CHECKOUT
from common.shell import capture

MAKEFILE = (CHECKOUT / "Makefile").read_text()
BENCHES = re.findall(r"^([a-z-]+):[^\n]*\n\t@\$\(BENCH\)( [a-z]+)?", MAKEFILE, re.M)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "part"), BENCHES)
def test_help_of_a_bench_names_the_target(target: str, part: str) -> None:
    folders = [CHECKOUT / name for name in ("workflow/scripts", "tests", "benchmarks")]
    command = [sys.executable, str(CHECKOUT / "benchmarks" / "overhead.py"), *part.split(), "--help"]
    done = capture(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}, check=True)
    assert done.stdout.startswith(f"usage: make {target} ")


def test_programs_of_this_kind_exist() -> None:
    assert {"bench-overhead", "bench-input"} <= {target for target, _ in BENCHES}


def test_closed_pipe_ends_a_program_silently() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ringside", "models"]
    done = subprocess.run(command, cwd=CHECKOUT, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
