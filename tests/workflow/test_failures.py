"""Given a run that fails, then it is a row with a reason, no process is left, and figures are drawn."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.checkout import Checkout, wait_for

STUDY = """\
title: one short run
question: what becomes of a run that goes wrong?
seed: 3
design: full
replicates: 1
factors: {{framework: pytorch-ddp, model: small-cnn, dataset: digits, nodes: 2, batch_size: 64, sync_every: 1, epochs: {epochs}}}
figures: [{{kind: overview}}]
"""
FOR_EVER = 100000


def rows(checkout: Checkout) -> list[dict[str, str]]:
    with open(checkout.results / "runs.csv") as file:
        return list(csv.DictReader(file))


def ranks_of(checkout: Checkout) -> list[int]:
    """Return process ids of the ranks that train in this checkout."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"ranks.worker" in command and str(checkout.folder).encode() in b" ".join(command):
            pids.append(int(folder.name))
    return sorted(pids)


def training(checkout: Checkout) -> bool:
    """Return whether a rank 0 has finished an epoch."""
    return any(
        len(path.read_text().splitlines()) > 1
        for path in checkout.results.glob("runs/*/*/attempt-*/epochs.csv")
    )


def start(checkout: Checkout, *targets: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["snakemake", *targets],
        cwd=checkout.folder,
        env=checkout.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_rank_that_is_killed_fails_its_run_only(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(STUDY.format(epochs=FOR_EVER))
    campaign = start(
        checkout, *(f"results/small/{name}" for name in ("figures/overview.pdf", "tables/missing.md"))
    )
    wait_for(lambda: training(checkout) or campaign.poll() is not None, 600)
    assert campaign.poll() is None, campaign.communicate()[0]
    os.kill(ranks_of(checkout)[1], signal.SIGKILL)
    output, _ = campaign.communicate(timeout=120)
    assert campaign.returncode == 0, output
    (row,) = rows(checkout)
    assert row["status"] == "failed" and "was killed by SIGKILL" in row["reason"]
    assert "1 not ok" in output and "./ringside repeat failed" in output
    assert not ranks_of(checkout)
    assert (checkout.results / "figures" / "overview.pdf").exists()
    assert row["run_id"] in (checkout.results / "tables" / "missing.md").read_text()


@pytest.mark.parametrize(
    "signum", [pytest.param(signal.SIGTERM, marks=pytest.mark.thorough), signal.SIGINT]
)  # by SIGTERM it is stopped in make cluster-test, too
def test_a_stopped_supervisor_leaves_no_rank_and_no_record(
    fresh: Callable[..., Checkout], signum: signal.Signals
) -> None:
    checkout = fresh(STUDY.format(epochs=FOR_EVER))
    assert checkout.snakemake("environments", "datasets").status == 0
    planned = (
        "from plan.campaign import load_campaign; from plan.plan_files import write_plan; campaign = "
        "load_campaign({'study': 'small', 'site': 'local', 'records': 'campaign'}); planned = "
        "campaign.planned_run(campaign.runs[0]); print(write_plan(campaign.results, planned), planned.key)"
    )
    environment = {**checkout.environment, "PYTHONPATH": str(checkout.folder / "workflow" / "scripts")}
    done = subprocess.run(
        [sys.executable, "-c", planned],
        cwd=checkout.folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    plan, key = done.stdout.split()
    command = [sys.executable, "-m", "runs.supervise", "--site", "local", "--plan", plan, "--key", key]
    supervisor = subprocess.Popen(command, cwd=checkout.folder, env=environment)
    wait_for(lambda: training(checkout))
    os.kill(supervisor.pid, signum)
    assert supervisor.wait(timeout=30) == 130
    assert not ranks_of(checkout)
    assert not checkout.records() and len(checkout.attempts()) == 1


def test_a_framework_that_raises_is_a_row_and_can_be_repeated(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(STUDY.format(epochs=2))
    everything = ("runs", "collective_benchmarks", "records")
    adapter = checkout.path("workflow/scripts/ranks/frameworks/pytorch-ddp/adapter.py")
    working = adapter.read_text()
    broken = (
        "def environment(context: Context) -> dict[str, str]:\n"
        "    if context.rank == 1:\n"
        '        raise RuntimeError("no luck today")\n'
        "    return {}\n"
    )
    adapter.write_text(f"{working}\n\n{broken}")
    done = checkout.snakemake(*everything)
    assert done.status == 0, done.output
    (row,) = rows(checkout)
    assert row["status"] == "failed" and row["reason"].endswith("RuntimeError: no luck today")
    assert checkout.snakemake(*everything).jobs == {}, "a failure is data: it is not repeated by itself"

    repeated = checkout.program("ringside", "repeat", "failed", "--later")
    assert (
        repeated.returncode == 0 and "1 run and 1 collective benchmark will be repeated" in repeated.stdout
    ), "the run and its collective benchmark"
    done = checkout.snakemake(*everything)
    assert done.status == 0 and done.jobs["run"] == 1, done.output
    assert [Path(attempt).name for attempt in checkout.attempts()] == ["attempt-1", "attempt-2"]
    assert rows(checkout)[0]["attempt"] == "2"
    no_match = checkout.program("ringside", "repeat", "*horovod*", "--later")
    assert no_match.returncode == 2 and no_match.stderr.count("\n") == 1


def test_three_equal_failures_stop_a_campaign(fresh: Callable[..., Checkout]) -> None:
    study = STUDY.format(epochs=2).replace("pytorch-ddp", "pytorch-single").replace("nodes: 2", "nodes: 1")
    checkout = fresh(study.replace("replicates: 1", "replicates: 4"))
    adapter = checkout.path("workflow/scripts/ranks/frameworks/pytorch-single/adapter.py")
    adapter.write_text(
        adapter.read_text() + '\n\ndef trainer(context):\n    raise RuntimeError("no luck today")\n'
    )
    stopped = checkout.snakemake("figures")
    assert (stopped.status, len(checkout.records())) == (3, 3), stopped.output
    assert stopped.output.splitlines()[-1].startswith("ringside: halted: the last 3 runs failed")
    complete = checkout.snakemake("figures", "--keep-going")
    assert (complete.status, len(checkout.records())) == (3, 4), complete.output
    assert {row["status"] for row in rows(checkout)} == {"failed"}
    again = checkout.snakemake("figures")
    assert (again.status, again.jobs) == (3, {})
    for done in (complete, again):
        assert done.output.splitlines()[-1].startswith("ringside: 0 of 4 runs are usable")
