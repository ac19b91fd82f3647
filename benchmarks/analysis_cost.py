"""Measure time and memory of the analysis of a large campaign, with synthetic records and real programs."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from common.errors import InputError
from common.shell import capture
from document import section, table
from plan.design import Run
from ranks.worker.epoch_timer import COLUMNS
from support.checkout import Checkout
from timed import Timed, timed

AIM_S, AIM_BYTES = 60.0, 2 * 2**30
ANALYSED = "records to both CSV files and all tables"
STAGES = {ANALYSED: "tables", "these to all figures": "figures"}  # one after the other: Snakemake's target
WARM_UP = 1
LIBRARIES = {
    "pytorch": "torch 2.13.0+cpu",
    "tensorflow": "tensorflow_cpu 2.21.0, tf_keras 2.21.0",
}  # as records have them
STUDY = """\
title: a large campaign
question: how long does its analysis take?
seed: 1
design: full
replicates: {replicates}
factors:
  framework: [pytorch-ddp, horovod-pytorch, tensorflow-multiworker, horovod-tensorflow]
  model: [small-cnn, small-cnn-600]
  dataset: [digits]
  nodes: [1, 2]
  batch_size: [8, 16, 32, 64]
  sync_every: [1, 2]
  training_loop: custom
  optimizer: [sgd, adam]
  learning_rate: {learning_rates}
  epochs: {epochs}
"""
CELLS_A_RATE = 4 * 2 * 2 * 4 * 2 * 2
REPLICATES = 5


def study_of(runs: int, epochs: int) -> str:
    """Return a study with at least `runs` runs."""
    rates = -(-runs // (REPLICATES * CELLS_A_RATE))
    learning_rates = [round(0.001 * (i + 1), 3) for i in range(rates)]
    return STUDY.format(replicates=REPLICATES, learning_rates=learning_rates, epochs=epochs)


def leave_records(slow: Callable[[Run], float] = lambda run: 1.0, site: str = "local") -> int:
    """Write a made-up record for every run of the checkout's study, and return their number.

    Epoch times follow a law, multiplied by noise and by `slow(run)`.
    """
    from plan.campaign import load_campaign
    from plan.identity import digests, plan_run
    from plan.site_resources import cores_per_rank

    campaign = load_campaign({"study": "small", "site": site, "records": "available"})
    rng = np.random.default_rng(1)
    started = 1_790_000_000.0
    for run in campaign.runs:
        key = plan_run(campaign.study, campaign.site, run).key
        attempt = campaign.results / "runs" / run.run_id / key / "attempt-1"
        attempt.mkdir(parents=True)
        levels = run.levels
        law_s = (0.3 + 8 / levels["batch_size"]) * (0.4 + 0.6 / levels["nodes"]) + 0.1 * (
            levels["sync_every"] == 1
        )
        lines = [",".join(COLUMNS)]
        for epoch in range(1, levels["epochs"] + 1):
            seconds = slow(run) * law_s * float(rng.lognormal(0, 0.05))
            shares = [1 - 1 / (1 + epoch * float(rng.uniform(0.9, 1.1))) for _ in range(2)]
            values = [
                seconds,
                seconds + 0.001,
                0.01,
                0.05,
                0.05,
                24,
                24,
                1536,
                1 / epoch,
                shares[0],
                1.2 / epoch,
                shares[1],
            ]
            warm_up = "true" if epoch <= WARM_UP else "false"
            lines.append(
                ",".join(
                    [str(epoch), warm_up, *map(repr, values), "0.1", "123456", "", "", "", "1760000000.5"]
                )
            )
        (attempt / "epochs.csv").write_text("\n".join(lines) + "\n")
        started += 60
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(started))
        record = {
            "run_id": run.run_id, "key": key, "study": "small", "site": site,
            "session": f"s{run.block}", "attempt": 1,
            "status": "ok", "reason": None, "started_at": at, "ended_at": at,
            **digests(campaign.site, run.levels),
            "placement": campaign.site.placement, "timing_scope": "ranks",
            "cores_per_rank": cores_per_rank(campaign.site), "oversubscribed": False,
            "max_other_cpu_share": 0.05, "wall_s": 50.0, "job": None, "unfinished_attempts": [],
            "deployment": "venv", "image": None, "packages": {},
            "measured": {
                "hosts": ["vm"], "machines": 1, "devices": ["cpu"], "drivers": [],
                "transport": "gloo over tcp lo", "startup_s": 3.0, "import_s": 2.0, "first_step_s": 0.1,
                "memory_peak_bytes": 300_000_000, "device_memory_peak_bytes": None, "throttled_s": 0.1,
                "sent_bytes": 123456.0, "energy_j": None, "other_cpu_share": 0.01, "steal_share": 0.0,
                "python_version": "3.11",
                "library_version": next(
                    version for name, version in LIBRARIES.items() if name in levels["framework"]
                ),
            },
        }  # fmt: skip
        for folder in (attempt, attempt.parent):
            (folder / "record.json").write_text(json.dumps(record))
    return len(campaign.runs)


def measure(runs: int, epochs: int) -> tuple[int, dict[str, Timed]]:
    """Write records of at least `runs` runs; return their number and the cost of each of STAGES."""
    with tempfile.TemporaryDirectory(prefix="ringside-bench-") as folder:
        checkout = Checkout(Path(folder) / "checkout", study_of(runs, epochs))
        path = os.pathsep.join(
            str(checkout.path(name)) for name in ("workflow/scripts", "tests", "benchmarks")
        )
        process = capture(
            [sys.executable, "-c", "from analysis_cost import leave_records; print(leave_records())"],
            cwd=checkout.folder,
            env={**checkout.environment, "PYTHONPATH": path},
        )
        if process.returncode:
            raise InputError("cannot-measure", f"no records were made: {process.stderr[-2000:]}")
        return int(process.stdout), {stage: _invoked(checkout, target) for stage, target in STAGES.items()}


def _invoked(checkout: Checkout, target: str) -> Timed:
    done = timed(checkout, "snakemake", target, "--config", "records=available", "--quiet", "all")
    if done.status:
        raise InputError("cannot-measure", f"snakemake {target} failed: {done.output[-2000:]}")
    print(f"snakemake {target}: {done.wall_s:.1f} s", file=sys.stderr, flush=True)
    return done


def report(epochs: int, n_runs: int, costs: dict[str, Timed], command: str) -> str:
    """Return the part of docs/measurements.md."""
    analysed = costs[ANALYSED]
    met = "met" if analysed.wall_s <= AIM_S and analysed.memory_bytes <= AIM_BYTES else "missed"
    aims = {ANALYSED: f"{AIM_S:g} s, {AIM_BYTES / 2**30:g} GiB: {met}"}
    rows = [
        [stage, f"{cost.wall_s:.0f} s", f"{cost.memory_bytes / 2**20:,.0f} MiB", aims.get(stage, "")]
        for stage, cost in costs.items()
    ]
    text = (
        f"{n_runs:,} made-up runs in {n_runs // REPLICATES:,} cells, {epochs} epochs each: "
        f"{n_runs * epochs:,} epochs. In a checkout with their records: `snakemake tables --config "
        "records=available`, then `snakemake figures` with the same. Each time contains the start of "
        "Snakemake, which checks every record. There is no collective benchmark, so only regressions "
        "predict. Memory is the peak of all processes together."
    )
    header = ["", "wall time", "peak memory", "aim"]
    return section("From records to figures of a large campaign", command, table(header, rows), text)
