"""A study that says a precision, on the virtual cluster, both ways: a job for every block that is possible, and a job a run."""

from pathlib import Path

import pytest

from campaigns import Campaign, jobs, study

pytestmark = pytest.mark.usefixtures("virtual_cluster")


def test_a_block_goes_on_where_it_is_decided(shared_folder: Path) -> None:
    """0.1 % is never reached in five runs: four by an allocation for each block, one more by a job for each run."""
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

    campaign.checkout.edit("config/studies/small.yaml", "at_most: 4", "at_most: 5")
    with campaign.running("runs") as snakemake:
        assert campaign.finish(snakemake) == 0, campaign.output()
    said = campaign.output()
    assert "precision after block 4: 0 of 1 cell" in said and "[5/5] ok" in said and "all runs done" in said
    assert [row["block"] for row in campaign.rows()] == ["1", "2", "3", "4", "5"]
    assert campaign.attempts() == ["attempt-1"] * 5, "nothing that is finished is repeated"
