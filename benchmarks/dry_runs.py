"""Measure time and memory of `snakemake -n figures` for designs of several sizes, in a copied checkout."""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.errors import InputError
from document import section, table
from support.checkout import Checkout, planned_jobs
from timed import Timed, timed

AIMS_S = {180: 2.0, 1_800: 6.0, 18_000: 50.0}
RUNS_A_LEVEL = 18  # 2 frameworks x 3 batch sizes x 3 replicates

STUDY = """\
title: a large design
question: how long does planning take?
seed: 1
design: full
replicates: 3
factors:
  framework: [pytorch-single, tensorflow-single]
  model: small-cnn
  dataset: digits
  nodes: 1
  batch_size: [16, 32, 64]
  sync_every: 1
  learning_rate: {learning_rates}
"""


def study_of(runs: int) -> str:
    """Return a study with `runs` runs."""
    levels, rest = divmod(runs, RUNS_A_LEVEL)
    if rest or not levels:
        raise InputError("cannot-measure", f"--runs {runs}: is no multiple of {RUNS_A_LEVEL}")
    return STUDY.format(learning_rates=[round(0.001 * (i + 1), 3) for i in range(levels)])


def dry_run(checkout: Checkout, runs: int) -> Timed:
    """Plan once, and check that everything was planned."""
    command = ["snakemake", "-n", "figures", "--quiet", "rules", "host"]
    done = timed(checkout, *command)
    if done.status or planned_jobs(done.output).get("run") != runs:
        raise InputError(
            "cannot-measure", f"{' '.join(command)} did not plan {runs} runs: {done.output[-500:]}"
        )
    return done


def measure(sizes: Sequence[int], repetitions: int) -> dict[int, list[Timed]]:
    """Plan designs of all `sizes` (runs), each `repetitions` times."""
    planned = {}
    for runs in sizes:
        with tempfile.TemporaryDirectory(prefix="ringside-bench-") as folder:
            checkout = Checkout(Path(folder) / "checkout", study_of(runs))
            planned[runs] = [dry_run(checkout, runs) for _ in range(repetitions)]
        print(
            f"dry-run of {runs} runs: {[round(p.wall_s, 1) for p in planned[runs]]} s",
            file=sys.stderr,
            flush=True,
        )
    return planned


def report(planned: dict[int, list[Timed]], command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for runs, timings in planned.items():
        times_s = [timing.wall_s for timing in timings]
        median_s = statistics.median(times_s)
        aim_s = AIMS_S.get(runs)
        memory = max(timing.memory_bytes for timing in timings) / 2**20
        aim = "" if aim_s is None else f"{aim_s:g} s: {'met' if median_s <= aim_s else 'missed'}"
        rows.append(
            [
                f"{runs:,}",
                f"{median_s:.1f} s",
                f"{min(times_s):.1f} to {max(times_s):.1f} s",
                f"{memory:.0f} MiB",
                aim,
            ]
        )
    header = ["runs in the design", "wall time (median)", "smallest to largest", "peak memory", "aim"]
    return section("Dry-runs: `snakemake -n figures`", command, table(header, rows))
