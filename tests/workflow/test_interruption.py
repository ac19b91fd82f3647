"""Given a campaign under way, when Snakemake is killed, then nothing finished is lost or repeated."""

import csv
import os
import signal
import subprocess
import time

from checkout import Checkout

STUDY = """\
title: three short runs
question: does a kill lose anything?
seed: 3
design: full
replicates: 3
factors: {framework: pytorch-single, model: small-cnn, dataset: digits, nodes: 1, batch_size: 64, sync_every: 1, epochs: 3}
figures: [{kind: residuals}]
"""


def wait_for(condition, limit_s: float = 120) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


def test_sigkill_of_snakemake_loses_nothing(fresh) -> None:  # type: ignore[no-untyped-def]
    checkout: Checkout = fresh(STUDY)
    first = subprocess.Popen(
        ["snakemake", "figures"], cwd=checkout.folder, env=checkout.environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: len(checkout.records()) >= 1 and len(checkout.attempts()) > len(checkout.records()), 600)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    finished = checkout.records()
    assert (checkout.results / "peek" / "figures" / "residuals.png").exists(), "drawn before the second block began"

    assert checkout.snakemake("-n", "figures").status == 0, "who only looks needs no lock"
    refused = checkout.snakemake("figures")
    assert refused.status != 0
    (line,) = [line for line in refused.output.splitlines() if line.startswith("ringside: ")]
    assert "make unlock" in line

    unlocked = checkout.program("plan.unlock")
    assert unlocked.returncode == 0, unlocked.stderr
    done = checkout.snakemake("records")
    assert done.status == 0, done.output
    assert "preview" not in checkout.snakemake("-n", "figures").jobs
    assert len(checkout.records()) == 3
    assert all(attempt.endswith("/attempt-1") for attempt in checkout.attempts()), "the orphan's run counts, too"
    assert set(finished) <= set(checkout.records())
    with open(checkout.results / "runs.csv") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["ok"] * 3
