"""Given a study with an interval target, when its campaign is restarted, then imprecise cells get runs.

Finished runs are not repeated.
"""

import csv
import json
import os
import signal
import subprocess
import sys
from collections import Counter

from support.checkout import Checkout, wait_for

STUDY = """\
title: two cells that are not precise, and one that need not be
question: which cells get more runs?
seed: 3
design: full
replicates: {at_least: 3, at_most: 5, until: 40 %, contrasts: {batch_size: [64, 96]}}
factors: {framework: pytorch-single, model: small-cnn, dataset: digits, nodes: 1, batch_size: [64, 96, 128], sync_every: 1, epochs: 2}
figures: [{kind: residuals}]
"""
CELLS = [
    f"pytorch-single.small-cnn.digits.b{size}.n1.s1.epochs=2" for size in (96, 64)
]  # in the order of the campaign
# Three made-up runs of each cell, of which one with batch size 96 was slow. The real runs take other times,
# which does not make cells more precise.
SLOW = (
    "import analysis_cost; analysis_cost.leave_records(lambda run: 9.0 if "
    "run.run_id.endswith('b96.n1.s1.epochs=2.r1') else 1.0)"
)


def write_first_blocks(checkout: Checkout) -> None:
    """Write made-up records of the first three blocks."""
    path = os.pathsep.join(str(checkout.path(name)) for name in ("workflow/scripts", "tests", "benchmarks"))
    environment = {**checkout.environment, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", SLOW], cwd=checkout.folder, env=environment, check=True)


def refined(checkout: Checkout) -> dict[str, set[str]]:
    """Return the cells that get another run, by decision file."""
    decisions = {
        path.name: json.loads(path.read_text())["cells"]
        for path in checkout.results.glob("replication/*.json")
    }
    return {
        name: {cell for cell, decision in cells.items() if decision["refine"]}
        for name, cells in sorted(decisions.items())
    }


def test_a_cell_is_run_until_it_is_precise_or_at_most(fresh) -> None:  # type: ignore[no-untyped-def]
    checkout: Checkout = fresh(STUDY)
    write_first_blocks(checkout)
    with open(checkout.folder / "out", "w") as out:
        first = subprocess.Popen(
            ["snakemake", "figures"], cwd=checkout.folder, env=checkout.environment, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
        wait_for(lambda: len(checkout.records()) == 11 and len(checkout.attempts()) == 12, 600)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    output = (checkout.folder / "out").read_text()
    assert "interval target after block 3: ratios of 0 of 2 cells within 40 %" in output, output
    assert "more replicates are decided next" in output and "[11/11] ok" in output, output
    assert refined(checkout) == {"block-3.json": {*CELLS}, "block-4.json": {*CELLS}}
    assert checkout.program("ringside", "unlock").returncode == 0
    status = checkout.program("ringside", "status").stdout
    assert (
        "11 of 13 runs done; 2 left" in status
        and "ratios of 0 of 2 cells within 40 % after block 4" in status
    ), status

    done = checkout.snakemake("figures")
    assert done.status == 0, done.output
    assert (
        "interval target after block 5: ratios of 0 of 2 cells within 40 %; no cell gets more runs, because at_most "
        "is reached"
    ) in done.output
    assert refined(checkout)["block-5.json"] == set()
    status = " ".join(checkout.program("ringside", "status").stdout.split())
    assert "within 40 % after block 5, the limit at_most" in status, status
    assert [attempt.rsplit("/")[-1] for attempt in checkout.attempts()] == ["attempt-1"] * 13, (
        "the orphan's counts, too"
    )
    with open(checkout.results / "runs.csv") as file:
        rows = list(csv.DictReader(file))
    assert Counter((row["batch_size"], row["status"]) for row in rows) == {
        ("64", "ok"): 5,
        ("96", "ok"): 5,
        ("128", "ok"): 3,
    }
    reached = (checkout.results / "tables" / "replication.md").read_text()
    assert "(n = 3 to 5). This is not reached by 2 of 2 cells: batch size 64; batch size 96." in reached, (
        reached
    )
    assert "chosen by an interval target" in (checkout.results / "tables" / "notes.md").read_text()
    assert {f"results/small/replication/block-{k}.json" for k in (3, 4, 5)} <= checkout.manifest()["sources"][
        "records"
    ].keys()

    again = checkout.snakemake("figures")
    assert (again.status, again.jobs) == (0, {}), again.output
    (record,) = checkout.results.glob("runs/*.b64.*.r2/*/record.json")
    content = record.read_text()
    record.unlink()
    planned = checkout.snakemake("-n", "figures").jobs
    assert (planned["run"], planned["replication"]) == (1, 1), (
        "what was decided with a record is decided anew without it"
    )
    record.write_text(content)
    assert checkout.snakemake("-n", "figures").jobs == {}
    checkout.edit("config/studies/small.yaml", "until: 40 %", "until: 30 %")
    assert checkout.snakemake("-n", "figures").jobs["replication"] == 1, "by another rule, too"


def test_a_block_in_which_nothing_is_left_runs_nothing(fresh) -> None:  # type: ignore[no-untyped-def]
    """The block is requested as jobs of ./ringside submit do.

    The spread of a single cell is known after 17 runs. A pilot needs no further runs.
    """
    alone = STUDY.replace("at_least: 3, at_most: 5", "at_least: 18, at_most: 20").replace(
        "[64, 96, 128]", "64"
    )
    checkout: Checkout = fresh(
        alone.replace(", contrasts: {batch_size: [64, 96]}", "").replace("epochs: 2", "epochs: 3")
    )
    write_first_blocks(checkout)
    pilot = checkout.snakemake("pilot")
    assert pilot.status == 0 and "40.0 (aim)" in pilot.output, pilot.output
    assert set(pilot.jobs) == {"pilot"} and (checkout.results / "tables" / "pilot.csv").exists()
    done = checkout.snakemake("runs", "--config", "block=20")
    assert done.status == 0 and refined(checkout) == {"block-18.json": set()}, done.output
    assert "1 of 1 cell within 40 %; no cell gets more runs" in done.output
    assert len(checkout.records()) == len(checkout.attempts()) == 18
    refused = checkout.snakemake("-n", "runs", "--config", "block=21")
    assert (
        refused.status == 2
        and "block: 21 is not a block of the study; expected one of 1, 2, 3" in refused.output
    )
