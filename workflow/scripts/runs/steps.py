"""steps.csv of an attempt: the time of every training step (ranks/worker/meter.py), where the study asks for it."""

import csv
import statistics
from pathlib import Path


def quantiles(table: Path, warmup_epochs: int) -> dict[str, float] | None:
    """Median, 95 % and 99 % quantile and the largest of the steps of the timed epochs in s; a step takes as long as its slowest rank.

    None without a file or a step. Interpolated linearly (Hyndman & Fan, The American Statistician 50, 1996, definition 7).
    """
    if not table.exists():
        return None
    slowest: dict[tuple[int, str], float] = {}
    with open(table, newline="") as lines:
        for row in csv.DictReader(lines):
            if (epoch := int(row["epoch"])) > warmup_epochs:
                step = epoch, row["step"]
                slowest[step] = max(slowest.get(step, 0.0), float(row["step_time_s"]))
    if not slowest:
        return None
    times = list(slowest.values())
    percentiles = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return {"median": percentiles[49], "p95": percentiles[94], "p99": percentiles[98], "largest": max(times)}
