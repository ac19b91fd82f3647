"""A file that cannot be read or written now is not broken: no message advises to remove it, and no run is repeated.

Reading the start of /proc/self/mem is an input/output error (proc(5)). A limit of the size of a process's files acts
like a full disk.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from common.errors import InputError
from common.files import CHECKOUT
from declared.replicates import Replicates
from network.measure import KIND
from plan import binding, decisions
from records import power
from records.aggregate import epoch_lines
from records.record_checks import load_record
from runs import attempts


def gather_power(file: Path) -> Any:
    runs = pd.DataFrame([{"status": "ok", "run_id": "a", "key": "k", "attempt": 1}])
    return power.gather(runs, file.parents[4])


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("record.json", load_record),
        (
            "attempt-1/epochs.csv",
            lambda file: epoch_lines(file.parents[1], {"attempt": 1, "status": "ok"}, 3, 1),
        ),
        ("runs/a/k/attempt-1/power.csv", gather_power),
        ("attempt-1/record.json", lambda file: attempts.latest_recorded_attempt(file.parents[1])),
        ("block-1.json", lambda file: decisions.read_decision(file, Replicates(3, 5))),
        ("collective_benchmark.json", KIND.read),
        (binding.BINDING, lambda file: binding.read_binding(file.parent)),
    ],
)
def test_a_file_that_cannot_be_read_now_is_not_broken(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to("/proc/self/mem")
    with pytest.raises(InputError) as refused:
        read(file)
    assert refused.value.code == "system-error" and refused.value.problem == "Input/output error"


WRITES = """
import resource, sys
from pathlib import Path
from common.errors import exit_status
from common.files import write_text
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.exit(exit_status(lambda: write_text(Path(sys.argv[1]), "new" * 1000)))
"""


def test_a_full_disk_leaves_the_old_file_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", WRITES, str(tmp_path / "runs.csv")],
        env={"PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert f"{tmp_path}/runs.csv: " in done.stderr and "[system-error]" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["runs.csv"]
    assert (tmp_path / "runs.csv").read_text() == "old"
