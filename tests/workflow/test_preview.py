"""Given a running campaign, when a preview is requested, then it is drawn between two runs.

Nothing else changes.
"""

import csv
import json
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from support.checkout import THREE_RUNS, Checkout, wait_for

RUNS = 5  # on a busy machine one or two of them end before the preview is there
PRODUCTS = ("figures/residuals.pdf", "figures/residuals.caption.md", "tables/missing.md")


def test_what_is_there_is_drawn_between_two_runs(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(THREE_RUNS.replace("replicates: 3", f"replicates: {RUNS}"))
    with open(checkout.folder / "snakemake.out", "w") as out:
        campaign = subprocess.Popen(
            ["snakemake", "runs"],
            cwd=checkout.folder,
            env=checkout.environment,
            stdout=out,
            stderr=out,
            text=True,
        )
    try:
        wait_for(lambda: checkout.records() and len(checkout.attempts()) > len(checkout.records()), 600)
        targets = [f"results/small/{name}" for name in PRODUCTS]
        drawn = checkout.program("report.preview", "--study", "small", "--targets", *targets)
        during = len(checkout.records())
    finally:
        status = campaign.wait(timeout=600)
    output = (checkout.folder / "snakemake.out").read_text()
    assert drawn.returncode == 0, drawn.stderr + drawn.stdout
    assert status == 0, output
    assert "preview: waiting for process" in drawn.stdout and during < RUNS, (
        "it came beside a run, and was not the last"
    )
    assert "which draws the records of small so far" in output, "the next run waited for it"

    preview = checkout.results / "preview"
    with open(preview / "runs.csv") as file:
        seen = [row["status"] for row in csv.DictReader(file)]
    assert len(seen) == RUNS and set(seen) == {"ok", "missing"}
    records = [json.loads((checkout.results / path).read_text()) for path in checkout.records()]
    assert [record["status"] for record in records] == ["ok"] * RUNS
    assert all(attempt.endswith("/attempt-1") for attempt in checkout.attempts())
    for product in [*(preview / name for name in PRODUCTS), preview / "runs.csv"]:
        assert not beside_a_run(product, records), product
    assert not [
        name for name in ("figures", "tables", "runs.csv", "design.csv") if (checkout.results / name).exists()
    ]
    assert checkout.snakemake("runs", "-n").jobs == {}, "nothing is to be repeated"


def beside_a_run(product: Path, records: list[dict[str, str]]) -> bool:
    """Return whether a file was written during one of the runs."""
    at = product.stat().st_mtime
    spans = (
        [datetime.fromisoformat(record[name]).timestamp() for name in ("started_at", "ended_at")]
        for record in records
    )
    return any(start < at < end for start, end in spans)
