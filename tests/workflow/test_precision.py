"""Given a study that says a precision, when its campaign is killed and started again, then cells that are not precise get more runs,
and nothing that is finished is repeated."""

import csv
import json
import os
import signal
import subprocess
from collections import Counter

from checkout import Checkout
from test_interruption import wait_for

# 0.1 % is never reached in five runs: two cells run at_most times, and the one in no contrast at_least times.
STUDY = """\
title: two cells that are never precise, and one that need not be
question: which cells get more runs?
seed: 3
design: full
replicates: {at_least: 3, at_most: 5, until: 0.1 %, contrasts: {batch_size: [64, 96]}}
factors: {framework: pytorch-single, model: small-cnn, dataset: digits, nodes: 1, batch_size: [64, 96, 128], sync_every: 1, epochs: 2}
figures: [{kind: residuals}]
"""
RUNS = {"64": 5, "96": 5, "128": 3}


def refined(checkout: Checkout) -> dict[str, int]:
    found = {path.name: json.loads(path.read_text()) for path in checkout.results.glob("precision/*.json")}
    return {name: sum(cell["refine"] for cell in said["cells"].values()) for name, said in sorted(found.items())}


def test_cells_are_run_until_they_are_precise(fresh) -> None:  # type: ignore[no-untyped-def]
    checkout: Checkout = fresh(STUDY)
    asked = checkout.snakemake("-n", "figures")
    assert (asked.status, asked.jobs["run"], asked.jobs["precision"]) == (0, 9, 1), "what is certain"
    with open(checkout.folder / "out", "w") as out:
        first = subprocess.Popen(
            ["snakemake", "figures"], cwd=checkout.folder, env=checkout.environment, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
        wait_for(lambda: len(checkout.records()) >= 10 and len(checkout.attempts()) > len(checkout.records()), 600)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    said = (checkout.folder / "out").read_text()
    assert "precision after block 3: 1 of 3 cells within 0.1 %; another run of 2 cells (pytorch-single" in said, said
    assert refined(checkout) == {"block-3.json": 2}
    assert checkout.program("plan.unlock").returncode == 0
    status = checkout.program("records.status").stdout
    assert "10 of 11 runs done, 15 at most; 1 left" in " ".join(status.split()), status
    assert "1 of 3 cells within 0.1 % after block 3" in status and "n = 3, within" in status, status

    done = checkout.snakemake("figures")
    assert done.status == 0, done.output
    assert refined(checkout) == {"block-3.json": 2, "block-4.json": 2}, "none after at_most"
    assert [attempt.rsplit("/")[-1] for attempt in checkout.attempts()] == ["attempt-1"] * 13, (
        "the orphan's counts, too"
    )
    with open(checkout.results / "runs.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["status"] for row in rows} == {"ok"} and Counter(row["batch_size"] for row in rows) == RUNS
    assert sorted(rows, key=lambda row: row["started_at"]) == rows, "in the planned order"

    reached = (checkout.results / "tables" / "precision.md").read_text()
    assert "not reached by 2 of 3 cells: batch size 64; batch size 96" in reached, reached
    assert "chosen by precision" in (checkout.results / "tables" / "notes.md").read_text()
    assert all(f"results/small/precision/block-{k}.json" in checkout.manifest()["sources"]["records"] for k in (3, 4))
    again = checkout.snakemake("figures")
    assert (again.status, again.jobs) == (0, {}), again.output
    for name in checkout.records():
        if ".b64." in name and ".r2/" in name:
            (checkout.results / name).unlink()
    status = checkout.program("records.status").stdout
    assert "12 of 13 runs done; 1 left" in status, status
    planned = checkout.snakemake("-n", "figures").jobs
    assert planned["run"] == 1 and planned["precision"] == 1, "what was decided with a record is decided without it"
    done = checkout.snakemake("figures")
    assert done.status == 0 and len(checkout.attempts()) == 13, "attempts stay: the finished one is published again"
    assert checkout.snakemake("-n", "figures").jobs == {}
