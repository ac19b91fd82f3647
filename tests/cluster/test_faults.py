"""Faults of clusters during campaigns.

After each fault: every row of the design in runs.csv, finished runs not repeated, attempts and
reasons kept, no process left on any node, a clear exit status.

`make fault-test` runs them; CI runs some of them in turn (make rotation-test).
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sites import virtual
from support.campaigns import Campaign, jobs, no_worker_is_left, slurm, study, wait_until, workers
from virtual_cluster.slurm import start_node, start_slurmctld

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("virtual_cluster")]


@pytest.fixture(autouse=True)
def clean_cluster() -> Iterator[None]:
    """Cancel all jobs and resume all nodes after a test."""
    yield
    if left := jobs():
        subprocess.run(["scancel", "--full", *left], check=False)
    subprocess.run(
        ["scontrol", "update", "nodename=node[1-3]", "state=resume"], capture_output=True, check=False
    )
    wait_until(lambda: not jobs(), "all jobs are gone", 60)
    wait_until(no_worker_is_left, "all ranks are gone", 60)


def the_row(campaign: Campaign) -> dict[str, str]:
    (row,) = campaign.rows()
    return row


def has_ended(process: int) -> bool:
    """Return whether a process has ended; a zombie, which can be a child of the test, has ended, too."""
    try:
        return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_rank_killed_by_sigkill_is_a_failed_row(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study())
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        os.kill(workers("node2")[0], signal.SIGKILL)
        assert campaign.finish(snakemake) == 0, campaign.output()
    row = the_row(campaign)
    assert row["status"] == "failed" and row["reason"].startswith("rank 1 on node2: killed"), row["reason"]
    assert campaign.attempts() == ["attempt-1"], "a failure is data: it is not repeated by itself"
    assert no_worker_is_left()


def test_a_link_down_in_mid_collective_ends_at_the_time_limit(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study(epochs=60), time_limit_s=20)
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        hanging = workers("node2")
        slurm("ip", "-n", "ringside-node2", "link", "set", "eth0", "down")
        try:
            record = wait_until(lambda: list(campaign.results.glob("runs/*/*/record.json")), "the record", 90)
            assert record
            assert all(Path("/proc", str(pid)).exists() for pid in hanging), "nobody could reach node2"
            wait_until(lambda: not workers("node2"), "the rank's own alarm ended it", 60)
        finally:
            slurm("ip", "-n", "ringside-node2", "link", "set", "eth0", "up")
        assert campaign.finish(snakemake) == 0, campaign.output()
    row = the_row(campaign)
    assert (row["status"], row["reason"]) == ("timeout", "not finished after the time limit of 20 s")
    assert no_worker_is_left()


def test_snakemake_killed_by_sigkill_goes_on_without_repeating(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study(replicates=2, epochs=6))
    with campaign.running() as snakemake:
        wait_until(lambda: list(campaign.results.glob("runs/*/*/record.json")), "the first record")
        campaign.wait_for_epoch()
        snakemake.kill()
    assert len(jobs()) == 1, "its job is an orphan that goes on"
    refused = campaign.start("runs")
    assert refused.wait(60) == 2 and "ringside unlock" in campaign.output().splitlines()[-1]
    assert campaign.checkout.program("ringside", "unlock").returncode == 0
    with campaign.running() as again:
        assert campaign.finish(again) == 0, campaign.output()
    assert [row["status"] for row in campaign.rows()] == ["ok", "ok"]
    assert campaign.attempts() == ["attempt-1", "attempt-1"], (
        "what the orphan finished was published, not repeated"
    )
    assert no_worker_is_left()


def test_snakemake_ended_by_sigterm_lets_the_run_end(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study(replicates=2, epochs=6))
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        snakemake.send_signal(signal.SIGTERM)
        assert campaign.finish(snakemake) != 0
    assert not jobs() and len(campaign.checkout.records()) == 1, (
        "the run under way was finished, no other started"
    )
    with campaign.running() as again:
        assert campaign.finish(again) == 0, campaign.output()
    assert [row["status"] for row in campaign.rows()] == ["ok", "ok"]
    assert campaign.attempts() == ["attempt-1", "attempt-1"]


def test_a_slurmd_killed_in_mid_run(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study())
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        os.kill(virtual.pid_of("slurmd-node2"), signal.SIGKILL)
        time.sleep(3)
        start_node("node2")
        assert campaign.finish(snakemake) == 0, campaign.output()
    row = the_row(campaign)
    assert row["status"] == "ok", row["reason"]
    assert no_worker_is_left()


def test_slurmctld_restarted_in_mid_run(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study())
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        controller = virtual.pid_of("slurmctld")
        os.kill(controller, signal.SIGTERM)
        wait_until(lambda: has_ended(controller), "slurmctld has ended")
        time.sleep(5)
        start_slurmctld()
        assert campaign.finish(snakemake) == 0, campaign.output()
    row = the_row(campaign)
    assert row["status"] == "ok" and row["attempt"] == "1", row["reason"]


def test_memory_limit_of_a_node(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study())
    limit = Path("/sys/fs/cgroup/memory/ringside/node2/memory.limit_in_bytes")
    limit = limit if limit.exists() else Path("/sys/fs/cgroup/ringside/node2/memory.max")
    before = limit.read_text()
    limit.write_text(str(150 << 20))
    try:
        with campaign.running() as snakemake:
            assert campaign.finish(snakemake) == 0, campaign.output()
    finally:
        limit.write_text(before)
    row = the_row(campaign)
    assert row["status"] == "failed" and row["reason"].startswith("rank 1 on node2: killed"), row["reason"]
    assert no_worker_is_left()


def test_scancel_is_tried_again_and_said(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study())
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        (number,) = jobs()
        slurm("scancel", "--full", number)
        assert campaign.finish(snakemake) == 0, campaign.output()
    row = the_row(campaign)
    assert row["status"] == "ok" and row["attempt"] == "2"
    assert row["unfinished_attempts"].startswith(f"1: stopped by SIGTERM (job {number} on node1)"), row[
        "unfinished_attempts"
    ]
    assert campaign.attempts() == ["attempt-1", "attempt-2"]
    assert no_worker_is_left()


def test_ranks_terminated_before_their_job_are_tried_again(shared_folder: Path) -> None:
    """So a job begins to end that Slurm preempts with a grace time: its steps get SIGTERM, it still runs."""
    campaign = Campaign(shared_folder, study())
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        (number,) = jobs()
        slurm("scancel", "--signal=TERM", number)
        assert campaign.finish(snakemake) == 0, campaign.output()
    row = the_row(campaign)
    assert row["status"] == "ok" and row["attempt"] == "2"
    assert "terminated" in row["unfinished_attempts"], row["unfinished_attempts"]
    assert no_worker_is_left()


def test_a_job_over_its_time_limit(shared_folder: Path) -> None:
    """The limit is the job's, shortened by an administrator. Slurm checks it twice a minute."""
    campaign = Campaign(shared_folder, study(epochs=400), time_limit_s=300)
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        first = jobs()
        slurm("scontrol", "update", f"jobid={first[0]}", "timelimit=1")
        wait_until(lambda: jobs() and jobs() != first, "Snakemake tries it again", 240)
        campaign.wait_for_epoch(attempt=2)
        snakemake.send_signal(signal.SIGINT)  # it cancels the job
        assert campaign.finish(snakemake) != 0
    row = the_row(campaign)
    assert row["status"] == "missing" and "stopped by SIGTERM" in row["reason"], row["reason"]
    assert campaign.attempts() == ["attempt-1", "attempt-2"]
    wait_until(no_worker_is_left, "no rank is left", 30)


def test_a_full_disk_under_results(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study(epochs=40))
    results = campaign.checkout.folder / "results"
    with small_disk(results, shared_folder / "disk"):
        with campaign.running() as snakemake:
            campaign.wait_for_epoch()
            with contextlib.suppress(OSError), open(results / "filler", "wb", buffering=0) as filler:
                while filler.write(bytes(1024)):
                    pass
            assert campaign.finish(snakemake) != 0
            assert "No space left on device" in campaign.output()
        (results / "filler").unlink()
        with campaign.running() as again:
            assert campaign.finish(again) == 0, campaign.output()
        row = the_row(campaign)
        assert row["status"] == "ok" and int(row["attempt"]) > 1
        assert no_worker_is_left()


@contextlib.contextmanager
def small_disk(folder: Path, image: Path, size: int = 8 << 20) -> Iterator[None]:
    """Mount a file system of `size` bytes at `folder`, here and in every node's mount namespace."""
    image.touch()
    os.truncate(image, size)
    slurm("mkfs.ext4", "-q", str(image))
    device = slurm("losetup", "--find", "--show", str(image)).strip()
    daemons = [virtual.pid_of(f"slurmd-{node}") for node in ("node1", "node2", "node3")]
    with contextlib.ExitStack() as undone:
        undone.callback(slurm, "losetup", "--detach", device)
        for place in [[], *(["nsenter", f"--target={daemon}", "--mount"] for daemon in daemons)]:
            slurm(*place, "mount", device, str(folder))
            undone.callback(unmount, [*place, "umount", str(folder)])
        yield


def unmount(command: list[str]) -> None:
    """Unmount a file system; a process that is ending can use it for a moment."""
    wait_until(lambda: subprocess.run(command, check=False).returncode == 0, "unmounted", 30)


def test_a_drained_node_is_waited_for(shared_folder: Path) -> None:
    campaign = Campaign(shared_folder, study(replicates=2, epochs=6))
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        slurm("scontrol", "update", "nodename=node3", "state=drain", "reason=test")
        wait_until(lambda: len(campaign.checkout.records()) == 1, "the run under way ends")
        wait_until(lambda: "PENDING" in slurm("squeue", "-h", "-o", "%T"), "the next one waits for the node")
        slurm("scontrol", "update", "nodename=node3", "state=resume")
        assert campaign.finish(snakemake) == 0, campaign.output()
    assert [row["status"] for row in campaign.rows()] == ["ok", "ok"]
    assert campaign.attempts() == ["attempt-1", "attempt-1"]
