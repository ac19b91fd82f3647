"""Summarize steps.csv of an attempt, the times of all training steps (ranks/worker/epoch_timer.py)."""

import csv
import statistics
from pathlib import Path


def quantiles(table: Path, warmup_epochs: int) -> dict[str, float] | None:
    """Return median, 95 % and 99 % quantile and maximum of the times of steps on their slowest ranks, s.

    Warm-up epochs do not count. Quantiles are interpolated linearly (Hyndman & Fan, The American Statistician
    50, 1996, definition 7). The result is None if there is no file, or no step in it that counts.
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
