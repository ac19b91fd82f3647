"""Find the reference benchmark that explains most of the variation of epoch times: `make bench-reference`.

A small cell is trained repeatedly under an intermittent load (coming_load.py); every kind of benchmark runs
right before and right after each training. For each kind the table has the correlation of its time with the
epoch time (both as logarithms), the residual spread of epoch times after a regression on it, and the spread
of leave-one-out prediction errors.
"""

import argparse
import csv
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from coming_load import MEAN_S, coming_load
from document import machine, table
from epoch_times import Bench, alone_here
from ranks.reference_work import KIND_VARIABLE, KINDS
from runs import reference
from runs.epochs import mean_of_timed, read_epochs

FRAMEWORK = "pytorch-ddp"
OF_NODES: dict[str, Callable[[Sequence[float]], float]] = {"mean": statistics.fmean, "largest": max}
PROCESSORS = [kind for kind in KINDS if kind != "accelerator"]
SHARE = "CPU time lost during the run"
Row = dict[str, float]


def measure(runs: int, epochs: int) -> list[Row]:
    """Return a row for each training: epoch time, CPU time lost, and times of each kind before and after."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="ringside-bench-") as folder:
        bench = Bench(Path(folder), epochs)
        bench.trained(FRAMEWORK)  # fills the page cache
        for number in range(runs):
            with alone_here(FRAMEWORK):
                order = PROCESSORS[number % len(PROCESSORS) :] + PROCESSORS[: number % len(PROCESSORS)]
                before = works(bench, f"before-{number}", order)
                attempt, _ = bench.trained(FRAMEWORK)
                after = works(
                    bench, f"after-{number}", order[::-1]
                )  # reversed: each kind as close to the run as before it
            result = json.loads((attempt / "result.json").read_text())
            epoch_s = mean_of_timed(read_epochs(attempt / "epochs.csv"), "epoch_time_s")
            rows.append(
                {
                    "epoch_time_s": float(epoch_s or "nan"),
                    SHARE: result["other_cpu_share"] + result["steal_share"],
                    **{f"{name}, before": value for name, value in before.items()},
                    **{f"{name}, after": value for name, value in after.items()},
                }
            )
            print(f"{number + 1} of {runs}: {rows[-1]['epoch_time_s']:.3f} s an epoch", flush=True)
    return rows


def works(bench: Bench, name: str, kinds: Sequence[str]) -> Row:
    """Run these kinds of benchmark; return seconds of the mean node and of the slowest one."""
    spec = json.loads((sorted(bench.folder.glob("*/rank_input.json"))[-1]).read_text())["spec"]
    environment, seconds = bench.environment(FRAMEWORK), {}
    for kind in kinds:
        site = replace(bench.site, variables=(*bench.site.variables, (KIND_VARIABLE, kind)))
        folder = bench.folder / f"{kind}-{name}"
        took = reference.run_benchmark(folder, spec, [], environment, site)
        if not took.times:
            raise SystemExit(f"{kind}: {took.reason}")
        seconds |= {
            f"{kind}, {node} node": combine(list(took.times.values())) for node, combine in OF_NODES.items()
        }
    return seconds


def judged(rows: Sequence[Row]) -> list[list[str]]:
    """Return a line for each kind: correlation, residual spread, and spread of leave-one-out errors."""
    y = np.log([row["epoch_time_s"] for row in rows])
    lines = [
        ["nothing", "", f"{100 * y.std(ddof=1):.1f} %", f"{100 * left_out(np.ones((len(y), 1)), y):.1f} %"]
    ]
    for name, x in covariates(rows).items():
        design = np.column_stack([np.ones(len(y)), x])
        fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
        spread = float(np.sqrt(((y - fitted) ** 2).sum() / (len(y) - 2)))
        lines.append(
            [
                name,
                f"{np.corrcoef(x, y)[0, 1]:.2f}",
                f"{100 * spread:.1f} %",
                f"{100 * left_out(design, y):.1f} %",
            ]
        )
    return lines


def covariates(rows: Sequence[Row]) -> Mapping[str, np.ndarray]:
    """Return covariates of epoch times, each [runs]: logarithms of times, and the CPU time lost."""
    columns = {SHARE: np.array([row[SHARE] for row in rows])}
    for name in (column.removesuffix(", before") for column in rows[0] if column.endswith(", before")):
        before, after = (np.array([row[f"{name}, {end}"] for row in rows]) for end in ("before", "after"))
        columns[f"{name}, both ends"] = np.log((before + after) / 2)
        columns[f"{name}, before"] = np.log(before)
    return columns


def left_out(design: np.ndarray, y: np.ndarray) -> float:
    """Return the root mean square of leave-one-out errors of a fit with this design [runs, coefficients]."""
    hat = design @ np.linalg.pinv(design)
    return float(np.sqrt((((y - hat @ y) / (1 - hat.diagonal())) ** 2).mean()))


def main(argv: list[str] | None = None) -> None:
    """Find the reference benchmark that explains most of the variation of epoch times."""
    parser = argparse.ArgumentParser(prog="make bench-reference", description=main.__doc__)
    parser.add_argument("--runs", type=int, default=60, help="trainings")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each training")
    parser.add_argument(
        "--quiet", action="store_true", help="without a load: measures the noise of the machine"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the load")
    parser.add_argument(
        "--mean-seconds", type=float, default=MEAN_S, help="mean duration of load and of pause"
    )
    parser.add_argument("--out", type=Path, help="write all times to this CSV file")
    options = parser.parse_args(argv)
    with nullcontext() if options.quiet else coming_load(options.seed, mean_s=options.mean_seconds):
        rows = measure(options.runs, options.epochs)
    if options.out:
        with open(options.out, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    header = ["epoch times explained by", "correlation", "spread that is left", "of runs left out of the fit"]
    print(f"{len(rows)} trainings of {options.epochs} epochs on {machine()}\n\n{table(header, judged(rows))}")


if __name__ == "__main__":
    main()
