"""A rank reads its program's output to the end, and reports the cause of a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

STARTS = """
import sys
from pathlib import Path
from ranks.frameworks.lbann import program as module
module.LAST_LINES_S = 1
program = module.Program(["sh", "-c", sys.argv[1]], Path(sys.argv[2]))
while (line := program.line()) is not None:
    pass
print("it ended well")
"""
LINGERS = "sleep 30 & echo $! > child"  # keeps the output open


def started(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-c", STARTS, command, str(folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    finally:
        if (folder / "child").exists():
            subprocess.run(["kill", (folder / "child").read_text().strip()], check=False)


def test_what_it_says_is_passed_on_until_its_end(tmp_path: Path) -> None:
    done = started("echo one; echo two >&2; printf three", tmp_path)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()[:-1]) == ["one", "three", "two"] or "three" in done.stdout
    assert done.stdout.endswith("it ended well\n")


@pytest.mark.parametrize(
    ("status", "message"),
    [(0, "it ended well"), (3, "Error: LBANN ended with status 3: LBANN error on rank 0: bad")],
)
def test_what_it_leaves_running_is_not_waited_for(tmp_path: Path, status: int, message: str) -> None:
    done = started(f"{LINGERS}; echo 'LBANN error on rank 0: bad'; echo more; exit {status}", tmp_path)
    assert done.returncode == bool(status)
    assert done.stdout.rstrip().endswith(message)


def test_a_killed_one_is_told_with_its_signal(tmp_path: Path) -> None:
    done = started("echo words >&2; kill -9 $$", tmp_path)
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("Error: LBANN was killed (Killed): words")
