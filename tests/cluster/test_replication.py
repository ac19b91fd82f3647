"""A study with an interval target on the virtual cluster, with a job for each possible block and each run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.campaigns import Campaign, jobs, study

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("virtual_cluster")]

LEAVE = "import analysis_cost; analysis_cost.leave_records(site='virtual')"


def test_a_block_goes_on_where_it_is_decided(shared_folder: Path) -> None:
    """The target of 0.1 % is not reached in five runs.

    Three records are made up, one run belongs to the allocation of its block, one is a job of its own.
    """
    text = study(nodes="1", epochs=2).replace(
        "replicates: 1", "replicates: {at_least: 3, at_most: 4, until: 0.1 %}"
    )
    campaign = Campaign(shared_folder, text)
    checkout = campaign.checkout
    path = os.pathsep.join(str(checkout.path(name)) for name in ("workflow/scripts", "tests", "benchmarks"))
    subprocess.run(
        [sys.executable, "-c", LEAVE],
        cwd=checkout.folder,
        env={**checkout.environment, "PYTHONPATH": path},
        check=True,
    )
    done = checkout.program("ringside", "submit", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("job") == 1
    assert [row["block"] for row in campaign.rows()] == ["1", "2", "3", "4"] and not jobs()
    (log,) = campaign.results.glob("logs/submit/block-4.*.log")
    assert "0 of 1 cell within 0.1 %; another run of 1 cell" in log.read_text()
    again = checkout.program("ringside", "submit", "--wait")
    assert again.returncode == 0 and "all 4 runs have a record" in again.stdout

    checkout.edit("config/studies/small.yaml", "at_most: 4", "at_most: 5")
    with campaign.running("runs") as snakemake:
        assert campaign.finish(snakemake) == 0, campaign.output()
    output = campaign.output()
    assert (
        "interval target after block 4: 0 of 1 cell" in output
        and "[5/5] ok" in output
        and "all runs done" in output
    )
    assert [(row["block"], row["status"]) for row in campaign.rows()] == [
        (str(block), "ok") for block in range(1, 6)
    ]
    assert campaign.attempts() == ["attempt-1"] * 5, "nothing that is finished is repeated"
