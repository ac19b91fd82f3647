"""How long a large campaign's records take to become tables and figures, and how much memory: made-up runs, real programs."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.errors import InputError
from document import section, table
from runs.worker.meter import COLUMNS

sys.path.append(str(Path(__file__).resolve().parents[1] / "workflow"))
from checkout import Checkout

AIM_S, AIM_BYTES = 60.0, 2 * 2**30
WARM_UP = 1
STUDY = """\
title: a large campaign
question: how long does its analysis take?
seed: 1
design: full
replicates: 5
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


@dataclass(frozen=True)
class Cost:
    """What one command took: seconds, and the largest process in bytes."""

    wall_s: float
    memory_bytes: int


def study_of(runs: int, epochs: int) -> str:
    """A study with at least so many runs."""
    rates = -(-runs // (5 * CELLS_A_RATE))
    return STUDY.format(learning_rates=[round(0.001 * (i + 1), 3) for i in range(rates)], epochs=epochs)


def leave_records() -> int:
    """In a checkout, leave behind what every run of its study would, with times that follow a law and noise; how many."""
    from plan.campaign import load_campaign
    from plan.identity import digests, run_key

    campaign = load_campaign({"study": "small", "site": "local", "records": "available"})
    rng = np.random.default_rng(1)
    started = 1_790_000_000.0
    for run in campaign.runs:
        key = run_key(campaign.study, campaign.site, run)
        attempt = campaign.results / "runs" / run.run_id / key / "attempt-1"
        attempt.mkdir(parents=True)
        levels = run.levels
        law_s = (0.3 + 8 / levels["batch_size"]) * (0.4 + 0.6 / levels["nodes"]) + 0.1 * (levels["sync_every"] == 1)
        lines = [",".join(COLUMNS)]
        for epoch in range(1, levels["epochs"] + 1):
            seconds = law_s * float(rng.lognormal(0, 0.05))
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
            lines.append(",".join([str(epoch), warm_up, *map(repr, values), "0.1", "123456", ""]))
        (attempt / "epochs.csv").write_text("\n".join(lines) + "\n")
        started += 60
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(started))
        record = {
            "run_id": run.run_id, "key": key, "study": "small", "site": "local", "session": f"s{run.block}", "attempt": 1,
            "status": "ok", "reason": None, "started_at": at, "ended_at": at, **digests(campaign.site, run),
            "placement": "emulated", "timing_scope": "ranks", "cores_per_rank": 1, "oversubscribed": False,
            "max_foreign_cpu_share": 0.05, "wall_s": 50.0, "job": None, "unfinished_attempts": [], "deployment": "venv",
            "image": None, "packages": {},
            "measured": {
                "hosts": ["vm"], "machines": 1, "devices": ["cpu"], "drivers": [], "transport": "gloo over tcp lo",
                "startup_s": 3.0, "import_s": 2.0, "first_step_s": 0.1, "memory_peak_bytes": 300_000_000,
                "device_memory_peak_bytes": None, "throttled_s": 0.1, "sent_bytes": 123456.0, "energy_j": None,
                "foreign_cpu_share": 0.01, "steal_share": 0.0, "python_version": "3.11", "library_version": "made up",
            },
        }  # fmt: skip
        for folder in (attempt, attempt.parent):
            (folder / "record.json").write_text(json.dumps(record))
    return len(campaign.runs)


def _timed(checkout: Checkout, *command: str) -> Cost:
    with tempfile.TemporaryFile("w+") as output:
        started = time.monotonic()
        child = subprocess.Popen(
            command, cwd=checkout.folder, env=checkout.environment, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.monotonic() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        if child.returncode:
            raise InputError(f"{' '.join(command)} failed: {output.read()[-2000:]}")
    return Cost(wall_s, usage.ru_maxrss * 1024)


def measure(runs: int, epochs: int) -> tuple[int, dict[str, Cost]]:
    """Make the records of so many runs; the number made, and what each stage takes, and `snakemake figures` as a whole."""
    with tempfile.TemporaryDirectory(prefix="ringside-bench-") as folder:
        checkout = Checkout(Path(folder) / "checkout", study_of(runs, epochs))
        path = os.pathsep.join(str(checkout.path(name)) for name in ("workflow/scripts", "tests/bench"))
        made = subprocess.run(
            [sys.executable, "-c", "from analysis_cost import leave_records; print(leave_records())"],
            cwd=checkout.folder,
            env={**checkout.environment, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise InputError(f"no records were made: {made.stderr[-2000:]}")
        arguments = ["--config", "records=available", "--quiet", "all"]
        parts = {part: _timed(checkout, "snakemake", part, *arguments) for part in ("records", "tables", "figures")}
        print({part: round(cost.wall_s, 1) for part, cost in parts.items()}, file=sys.stderr, flush=True)
        return int(made.stdout), parts


def report(made: int, epochs: int, parts: dict[str, Cost], command: str) -> str:
    """The part of the document."""
    whole = Cost(sum(cost.wall_s for cost in parts.values()), max(cost.memory_bytes for cost in parts.values()))
    rows = [[part, f"{cost.wall_s:.1f} s", f"{cost.memory_bytes / 2**20:,.0f} MiB", ""] for part, cost in parts.items()]
    met = "met" if whole.wall_s <= AIM_S and whole.memory_bytes <= AIM_BYTES else "missed"
    aim = f"{AIM_S:g} s, {AIM_BYTES / 2**30:g} GiB: {met}"
    rows.append(["all", f"{whole.wall_s:.1f} s", f"{whole.memory_bytes / 2**20:,.0f} MiB", aim])
    said = (
        f"\n\n{made:,} made-up runs of {epochs} epochs, {made // 5:,} cells. One after the other: `snakemake records`, "
        "`snakemake tables`, `snakemake figures` (each with Snakemake's own start), all with records=available. Memory is "
        "that of the largest process."
    )
    title = "From records to figures of a large campaign"
    return section(title, command, table(["stage", "wall time", "peak memory", "aim"], rows)) + said
