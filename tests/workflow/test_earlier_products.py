"""Given products of an earlier call, when the job that rebuilds them fails, then they stay as they were.

The next call rebuilds them.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from common.files import CHECKOUT

SNAKEFILE = """\
import logging, sys
sys.path.insert(0, "{scripts}")
from invocation.content_check import ContentCheck
CONTENT = ContentCheck(rules, workflow.is_main_process)
logging.getLogger("snakemake.logging").addFilter(CONTENT.filter)

rule product:
    input: table="table.csv", changed=CONTENT.changed("product", ["program.py"])
    output: "results/small/a.txt", "results/small/b.txt"
    shell: "{python} program.py"

onsuccess:
    CONTENT.finish_all()
"""
WRITES = """\
from pathlib import Path
for name in ("a", "b"):
    Path(f"results/small/{name}.txt").write_text(Path("table.csv").read_text())
"""
FILLS_THE_DISK = f"{WRITES}\nraise OSError(28, 'No space left on device')\n"


def call(folder: Path) -> subprocess.CompletedProcess[str]:
    server = [sys.executable, "-IS", str(CHECKOUT / "workflow" / "scripts" / "common" / "prefork_server.py")]
    command = [*server, "snakemake", "--cores", "1", "--quiet", "all"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("killed", [False, True])
def test_earlier_products_outlive_a_job_that_fails(tmp_path: Path, killed: bool) -> None:
    scripts = CHECKOUT / "workflow" / "scripts"
    (tmp_path / "Snakefile").write_text(SNAKEFILE.format(scripts=scripts, python=sys.executable))
    products = [tmp_path / "results" / "small" / name for name in ("a.txt", "b.txt")]
    (tmp_path / "program.py").write_text(WRITES)
    (tmp_path / "table.csv").write_text("first")
    assert call(tmp_path).returncode == 0
    before = [(file.read_text(), file.stat().st_mtime_ns) for file in products]

    (tmp_path / "table.csv").write_text("second")
    (tmp_path / "program.py").write_text("import os\nos.kill(os.getpid(), 9)\n" if killed else FILLS_THE_DISK)
    assert call(tmp_path).returncode == 1
    assert [(file.read_text(), file.stat().st_mtime_ns) for file in products] == before

    (tmp_path / "program.py").write_text(
        WRITES
    )  # the same inputs as the call that failed, and the first one's products
    assert call(tmp_path).returncode == 0
    assert [file.read_text() for file in products] == ["second"] * 2
    assert sorted(path.name for path in products[0].parent.iterdir()) == ["a.txt", "b.txt", "made_of"]
