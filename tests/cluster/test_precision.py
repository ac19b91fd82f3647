"""A study that says a precision, on the virtual cluster: every block that is possible has a job, which decides what it runs."""

from pathlib import Path

import pytest

from campaigns import Campaign, jobs, study

pytestmark = pytest.mark.usefixtures("virtual_cluster")


def test_jobs_decide_what_they_run(shared_folder: Path) -> None:
    """Of 0.1 %, which is never reached, and of 50 %, which is: the third block is the last one that all have."""
    text = study(nodes="1", epochs=2).replace("replicates: 1", "replicates: {at_least: 3, at_most: 5, until: 50 %}")
    campaign = Campaign(shared_folder, text)
    done = campaign.checkout.program("runs.submit", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "block 5: job" in done.stdout and "the runs that are decided then" in done.stdout
    assert [row["block"] for row in campaign.rows()] == ["1", "2", "3"] and not jobs()
    logs = [file.read_text() for file in sorted(campaign.results.glob("logs/submit/*.log"))]
    assert "1 of 1 cell within 50 %; no cell gets more runs" in logs[3], "the fourth job decides"
    assert "precision after" not in logs[4], "and the fifth has nothing to do"
    again = campaign.checkout.program("runs.submit", "--wait")
    assert again.returncode == 0 and "all 3 runs have a record" in again.stdout

    campaign.checkout.edit("config/studies/small.yaml", "at_most: 5, until: 50 %", "at_most: 4, until: 0.1 %")
    done = campaign.checkout.program("runs.submit", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["block"] for row in campaign.rows()] == ["1", "2", "3", "4"]
    assert campaign.attempts() == ["attempt-1"] * 4, "nothing that is finished is repeated"
