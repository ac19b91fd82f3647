"""sbatch parses the options of a block; tests/unit/plan/test_scheduling.py tests their meaning."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.shell import capture
from declared.site import Scheduler, load_site
from plan.scheduling import allocation_options

ALL = Scheduler(
    partition="gpu", account="project-7", constraint="a100&ib", nodelist="node[01-04]", exclude="node09",
    memory_mb=64000, options=("--qos=long", "--reservation=for us"), concurrent_runs=1, build_on="login",
    block_limit_s=28800,
)  # fmt: skip


@pytest.fixture
def no_controller(tmp_path: Path) -> dict[str, str]:
    """Environment of a client whose slurm.conf names a port on which nothing listens."""
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\n")
    return {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(tmp_path / "slurm.conf")}


@pytest.mark.parametrize(
    ("options", "understood"),
    [
        (
            allocation_options(
                replace(load_site("virtual"), nodes=4, ranks_per_node=2, cores=16, scheduler=ALL), 4
            ),
            True,
        ),
        (["--nodes=1", "--no-such-option"], False),
    ],
)
def test_sbatch_understands_the_options_of_a_block(
    installed: None, no_controller: dict[str, str], options: list[str], understood: bool
) -> None:
    command = ["sbatch", *options, "--wrap=true"]
    done = capture(command, env=no_controller)
    assert done.returncode != 0, "there is no controller to take the job"
    assert ("contact" in done.stderr) == understood, done.stderr
    assert ("unrecognized" in done.stderr) != understood, done.stderr
