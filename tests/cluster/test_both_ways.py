"""A reduced study on the virtual cluster, both ways: a job for each run, and an allocation for each block."""

import csv
import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sites import virtual
from support.campaigns import Campaign, jobs, no_worker_is_left, slurm, study, wait_until
from support.checkout import planned_jobs
from virtual_cluster.limits import Limits

pytestmark = pytest.mark.usefixtures("virtual_cluster")

FRAMEWORKS = "[pytorch-ddp, horovod-tensorflow]"  # each is launched in its own way
ON_ONE_NODE = "exclude: [{framework: horovod-tensorflow, nodes: 1}]\n"
BY_NODES = "{kind: by_factor, name: by_nodes, x: nodes}"


def check(campaign: Campaign, sessions: int) -> list[dict[str, str]]:
    """Check what holds for both ways, and return the rows ordered by their start."""
    rows = sorted(campaign.rows(), key=lambda row: row["started_at"])
    assert {row["status"] for row in rows} == {"ok"}, [row["reason"] for row in rows]
    assert len({row["session"] for row in rows}) == sessions
    cluster = virtual.running_cluster()
    assert cluster is not None
    for row in rows:
        nodes = int(row["nodes"])
        assert row["hosts"] == " ".join(f"node{i}" for i in range(1, nodes + 1)), (
            "runs are where their job put them"
        )
        assert row["placement"] == "virtual" and float(row["throttled_s"]) > 0
        assert int(row["node_memory_bytes"]) == cluster.memory_bytes, (
            "what the control group of a node leaves"
        )
        assert row["transport"] == "none" if nodes == 1 else row["transport"].endswith("over tcp eth0")
        gradients = 4 * 544522 * int(row["n_allreduces"])
        assert float(row["sent_bytes"]) >= (gradients * (nodes - 1) / nodes)
        assert row["submitted_at"] <= row["job_started_at"] < row["started_at"]
    assert not any(a["ended_at"] > b["started_at"] for a, b in itertools.pairwise(rows)), "runs never overlap"
    assert not jobs() and no_worker_is_left()
    return rows


@pytest.fixture(scope="module")
def a_job_a_run(shared_folder_of_module: Path) -> Campaign:
    """A campaign after `snakemake --profile slurm figures`."""
    text = study(framework=FRAMEWORKS, nodes="[1, 3]", epochs=3, figure=BY_NODES) + ON_ONE_NODE
    campaign = Campaign(shared_folder_of_module / "jobs", text, reference=True)
    with campaign.running("figures") as snakemake:
        assert campaign.finish(snakemake, 1500) == 0, campaign.output()
    return campaign


def test_a_job_for_every_run(a_job_a_run: Campaign) -> None:
    rows = check(a_job_a_run, sessions=1)
    assert len({row["job"] for row in rows}) == len(rows) == 3
    output = a_job_a_run.output()
    assert "[3/3] ok" in output and "all runs done" in output, "the progress is where the person is"
    assert (a_job_a_run.results / "figures" / "by_nodes.png").stat().st_size > 10_000
    caption = (a_job_a_run.results / "figures" / "by_nodes.caption.md").read_text()
    assert "0.6 core" in caption and "125 MB/s" in caption


def test_reference_benchmark_runs_on_the_nodes_of_each_run(a_job_a_run: Campaign) -> None:
    for file in a_job_a_run.results.glob("runs/*/*/record.json"):
        record = json.loads(file.read_text())
        benchmark = record["reference"]
        assert benchmark["reason"] is None
        for end in ("before", "after"):
            assert list(benchmark[end]) == record["measured"]["hosts"]


def test_the_network_is_measured_in_the_same_campaign(a_job_a_run: Campaign) -> None:
    with open(a_job_a_run.results / "tables" / "network.csv", newline="") as table:
        rows = {row["framework"]: row for row in csv.DictReader(table)}
    assert set(rows) == {"pytorch-ddp", "horovod-tensorflow"}
    for row in rows.values():
        assert 0.02 * 125e6 < float(row["achieved_bytes_s"]) < 1.05 * 125e6, "no faster than the link"


def test_a_second_invocation_has_nothing_to_do(a_job_a_run: Campaign) -> None:
    before = a_job_a_run.checkout.attempts()
    with a_job_a_run.running("figures") as snakemake:
        assert a_job_a_run.finish(snakemake) == 0
    assert a_job_a_run.checkout.attempts() == before and not jobs()


@pytest.mark.long
def test_an_allocation_for_every_block_keeps_the_order(shared_folder: Path) -> None:
    """With the tutorial's commands; its study rehearsal is reduced to these runs."""
    text = study(nodes="2", epochs=3, replicates=2) + "  bandwidth: [0, 200]\n"
    campaign = Campaign(shared_folder, text, name="rehearsal")
    done = campaign.checkout.ringside("submit", "rehearsal", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = check(campaign, sessions=2)
    with open(campaign.results / "design.csv", newline="") as design:
        assert [row["run_id"] for row in rows] == [row["run_id"] for row in csv.DictReader(design)], (
            "the planned order"
        )
    assert [row["block"] for row in rows] == ["1", "1", "2", "2"]
    assert len({row["job"] for row in rows}) == 2, "one allocation a block"
    rates = {"0": 125e6, "200": 25e6}  # bytes/s; the site's, and 200 Mbit/s, set before each run
    assert Counter(row["bandwidth"] for row in rows) == {"0": 2, "200": 2}
    assert all(float(row["bandwidth_bytes_s"]) == rates[row["bandwidth"]] for row in rows)

    again = campaign.checkout.ringside("submit", "rehearsal", "--wait")
    assert again.returncode == 0 and "all 4 runs have a record" in again.stdout and not jobs()
    drawn = campaign.checkout.ringside("run", "rehearsal", "--site", "virtual")
    output = drawn.stdout + drawn.stderr
    assert drawn.returncode == 0 and not {"run", "collective_benchmark"} & set(planned_jobs(output)), output
    status = campaign.checkout.ringside("status", "rehearsal", "--site", "virtual")
    assert status.returncode == 0 and "4 of 4 runs done" in status.stdout, status.stdout + status.stderr
    with open(campaign.results / "tables" / "network.csv", newline="") as table:
        achieved = {int(row["bandwidth"]): float(row["achieved_bytes_s"]) for row in csv.DictReader(table)}
    assert 0.1 * 25e6 < achieved[200] < 1.05 * 25e6 < achieved[0], (
        "as fast as the links were made, and no faster"
    )


def cancel() -> None:
    """Cancel all jobs of the test."""
    slurm("scancel", "--full", *jobs())


def kill_its_snakemake() -> None:
    """Kill Snakemake in the allocation, as a node's out-of-memory killer does.

    Slurm ends the step, and the supervisor outlives both for a moment.
    """
    commands = {pid: Path("/proc", str(pid), "cmdline").read_bytes() for pid in Limits("node1").processes()}
    (snakemake,) = [pid for pid, command in commands.items() if b"bin/snakemake" in command]
    os.kill(snakemake, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("cut_short", [cancel, kill_its_snakemake])
def test_a_block_cut_short_goes_on_where_it_stopped(
    shared_folder: Path, cut_short: Callable[[], None]
) -> None:
    campaign = Campaign(shared_folder, study(replicates=2, epochs=6))
    assert campaign.checkout.program("ringside", "submit").returncode == 0
    campaign.wait_for_epoch()
    refused = campaign.checkout.program("ringside", "submit")
    assert (
        refused.returncode == 2
        and "already pending or running" in refused.stderr
        and refused.stderr.count("\n") == 1
    )
    cut_short()
    wait_until(lambda: not jobs(), "the allocations are gone", 120)
    wait_until(no_worker_is_left, "no rank is left", 30)
    done = campaign.checkout.program("ringside", "submit", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = sorted(campaign.rows(), key=lambda row: int(row["block"]))
    assert [(row["status"], row["attempt"]) for row in rows] == [("ok", "2"), ("ok", "1")]
    assert rows[0]["unfinished_attempts"].startswith("1: "), "what became of the first attempt is said"
    assert sorted(campaign.attempts()) == ["attempt-1", "attempt-1", "attempt-2"], (
        "what was finished was not repeated"
    )


def test_what_is_wrong_is_said_before_any_job(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study())
    local = campaign.checkout.program("ringside", "submit", "--site", "local")
    assert local.returncode == 2 and local.stderr.count("\n") == 1, local.stderr
    checkout = campaign.checkout
    outside = checkout.snakemake("runs", "--config", "site=virtual")
    assert outside.status == 2 and "ringside submit" in outside.output.strip().splitlines()[-1]
    checkout.edit("config/sites/virtual.yaml", "cpu_share: 0.6", "cpu_share: 0.5")
    process = campaign.start("runs")
    assert process.wait(60) == 2
    last = campaign.output().strip().splitlines()[-1]
    assert (
        "cpu_share: is 0.5, but 0.6 in the running virtual cluster" in last and "ringside cluster up" in last
    )
    assert not jobs() and not checkout.attempts()


def test_environments_can_be_built_in_a_job(shared_folder: Path) -> None:
    """The site has build_on: job.

    Only the data set is built, since an environment takes much longer.
    """
    campaign = Campaign(shared_folder, study())
    campaign.checkout.edit(
        "config/sites/virtual.yaml", "launcher: slurm", "launcher: slurm\nscheduler: {build_on: job}"
    )
    cache = shared_folder / "cache"
    campaign.checkout.edit(
        "config/sites/virtual.yaml", "cache: ~/.cache/ringside", f"cache: {json.dumps(str(cache))}"
    )
    with campaign.running("datasets") as snakemake:
        assert campaign.finish(snakemake) == 0, campaign.output()
    assert "submitted with SLURM jobid" in campaign.output()
    assert list(cache.glob("datasets/digits/*/manifest.json"))
