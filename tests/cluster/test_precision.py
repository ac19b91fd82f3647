"""A study that says a precision, on the virtual cluster: every block that is possible has a job, which decides what it runs."""

from pathlib import Path

import pytest

from campaigns import Campaign, jobs, study

pytestmark = pytest.mark.usefixtures("virtual_cluster")


def test_a_job_decides_what_it_runs(shared_folder: Path) -> None:
    """0.1 % is never reached in four runs."""
    text = study(nodes="1", epochs=2).replace("replicates: 1", "replicates: {at_least: 3, at_most: 4, until: 0.1 %}")
    campaign = Campaign(shared_folder, text)
    done = campaign.checkout.program("runs.submit", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "block 3: job" in done.stdout
        and "block 4: job" in done.stdout
        and "the runs that are decided then" in done.stdout
    )
    assert [row["block"] for row in campaign.rows()] == ["1", "2", "3", "4"] and not jobs()
    (log,) = campaign.results.glob("logs/submit/block-4.*.log")
    assert "0 of 1 cell within 0.1 %; another run of 1 cell" in log.read_text()
    again = campaign.checkout.program("runs.submit", "--wait")
    assert again.returncode == 0 and "all 4 runs have a record" in again.stdout
