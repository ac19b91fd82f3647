"""Synthetic traces with known results: intervals of an attempt, and a campaign of traced and untraced runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis import records
from common.tables import read_table
from support.synthetic import campaign, write_frames
from traces import gather

FRAMEWORKS = ("pytorch-single", "pytorch-ddp", "horovod-pytorch")
COLUMNS = ["rank", "epoch", "step", "phase", "start", "end"]
START = {"interpreter": 0.4, "rendezvous": 0.1, "import": 2.0, "build": 1.0, "barrier": 0.5}
# Durations in ms within a step of 20 ms: before the wait for all-reduces, and after it.
QUICK = {"data": 1.0, "forward": 5.0, "backward": 6.0}
ENDING = {"metrics": 0.5, "optimizer": 1.5}


def step_of(
    rank: int,
    begins: float,
    computed: Mapping[str, float],
    buckets: Sequence[tuple[float, float]],
    length: float,
) -> list[tuple[int, str, float, float]]:
    """Return the intervals of one step: computation, waiting, ENDING, and all-reduces.

    Times are in ms. `buckets` are start and end of each all-reduce after the step begins; ENDING ends after
    `length`.
    """
    rows, at = [], 0.0
    for name, lasts in computed.items():
        rows.append((rank, name, begins + at, begins + at + lasts))
        at += lasts
    waits = length - sum(ENDING.values())
    if buckets:
        rows.append((rank, "wait", begins + at, begins + waits))
        at = waits
    for name, lasts in ENDING.items():
        rows.append((rank, name, begins + at, begins + at + lasts))
        at += lasts
    return [*rows, *((rank, "communication", begins + start, begins + end) for start, end in buckets)]


def attempt(
    late_ms: Sequence[float],
    epochs: int = 3,
    steps: int = 4,
    every: int = 1,
    allreduced: int = 1,
    step_ms: float = 20.0,
    start: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Return the intervals of a run in s.

    `late_ms` is by how much longer than QUICK's the backward pass of each rank takes in a step that ends with
    an all-reduce.

    Two all-reduces begin on each rank, 2 ms before its backward pass ends and when it ends; they last until
    14 and 18 ms after the step begins. The last of `allreduced` batches is all-reduced, the others end after
    ENDING. The first epoch is warm-up and twice as slow.
    """
    rows: list[tuple[int, int, int, str, float, float]] = []
    at = 0.0
    for name, lasts in (start or START).items():
        rows += [(rank, 0, 0, name, at, at + lasts) for rank in range(len(late_ms))]
        at += lasts
    for epoch in range(1, epochs + 1):
        slow = 2e-3 if epoch == 1 else 1e-3
        for step in range(1, steps + 1):
            sent, longest = step % allreduced == 0, 0.0
            for rank, late in enumerate(late_ms):
                computed = {**QUICK, "backward": QUICK["backward"] + late * sent}
                ready = sum(computed.values())
                buckets = [(ready - 2, 14.0), (ready, step_ms - 2)] if sent and len(late_ms) > 1 else []
                mine = step_of(rank, 0.0, computed, buckets, step_ms)
                longest = max(longest, *(end for _, _, _, end in mine))
                if (step - 1) % every == 0:
                    rows += [
                        (rank, epoch, step, name, at + slow * begins, at + slow * ends)
                        for _, name, begins, ends in mine
                    ]
            at += slow * longest
        for name, lasts in (("barrier", 0.001), ("validation", 0.05), ("between", 0.002)):
            rows += [(rank, epoch, 0, name, at, at + lasts) for rank in range(len(late_ms))]
            at += lasts
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(
        ["rank", "start"], kind="stable", ignore_index=True
    )


def traced_campaign(
    late_ms: float = 1.0, cost: float = 1.01, steps: int = 12, seed: int = 1
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]]:
    """Return runs and epochs of the quickstart design for FRAMEWORKS, and the intervals of traced runs.

    Each run is there untraced and traced; the traced one takes `cost` times as long. The second of two ranks
    is `late_ms` later.
    """
    runs, epochs = campaign(failures={}, seed=seed)
    runs = runs[runs["framework"].isin(FRAMEWORKS)]
    epochs = epochs[epochs["run_id"].isin(runs["run_id"])]
    runs = runs.assign(trace="none", steps=steps)
    slower, names = runs.copy(), {"cell": "cell", "run_id": "run_id"}
    for name in names:
        slower[name] = (
            runs["cell"] + ".trace=phases" + ("" if name == "cell" else ".r" + runs["replicate"].astype(str))
        )
    slower["trace"] = "phases"
    slower["epoch_time_s"] *= cost
    slower["throughput_samples_s"] /= cost
    slower["order_key"] += 0.5
    renamed = dict(zip(runs["run_id"], slower["run_id"], strict=True))
    traced_epochs = epochs.assign(
        run_id=epochs["run_id"].map(renamed), epoch_time_s=epochs["epoch_time_s"] * cost
    )
    intervals = {}
    for row in slower.to_dict("records"):
        late = [0.0, late_ms][: int(row["ranks"])]
        # A replicate is a little slower than the one before it, and a batch of a larger size than a smaller
        # one.
        length = 20.0 * (1 + 0.01 * row["replicate"]) * (1 + row["batch_size"] / 64)
        scaled = attempt(late, steps=steps, epochs=int(row["epochs"]), allreduced=int(row["sync_every"]))
        factor = length / 20.0
        intervals[str(row["run_id"])] = scaled.assign(
            start=scaled["start"] * factor, end=scaled["end"] * factor
        )
    return (
        pd.concat([runs, slower], ignore_index=True),
        pd.concat([epochs, traced_epochs], ignore_index=True),
        intervals,
    )


def write_traced(folder: Path, **options: float) -> Path:
    """Write runs.csv, epochs.csv and phases.csv of every attempt into `folder`, and return it."""
    runs, epochs, intervals = traced_campaign(**options)  # type: ignore[arg-type]
    write_frames(folder, runs, epochs)
    for run_id, run_intervals in intervals.items():
        write_attempt(folder, runs, run_id, run_intervals)
    return folder


def gathered(folder: Path, **options: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write the campaign, gather its traces into phases.csv and trace_steps.csv; return runs and phases."""
    write_traced(folder, **options)
    named = {"runs": "runs.csv", "records": "runs", "phases": "phases.csv", "steps": "trace_steps.csv"}
    gather.main(**{option: folder / name for option, name in named.items()})
    return records.read_runs(folder / "runs.csv"), read_table(folder / "phases.csv", "phases")


def write_attempt(folder: Path, runs: pd.DataFrame, run_id: str, intervals: pd.DataFrame) -> Path:
    """Write phases.csv and epochs.csv of an attempt of a run, and return the attempt's folder."""
    key = runs.set_index("run_id").at[run_id, "key"]
    place = folder / "runs" / run_id / str(key) / "attempt-1"
    place.mkdir(parents=True, exist_ok=True)
    intervals.to_csv(place / "phases.csv", index=False, float_format="%.7f")
    own = intervals[
        (intervals["phase"] != "communication")
        & ((intervals["step"] > 0) | (intervals["phase"] == "barrier"))
    ]
    closed = own[own["epoch"] > 0].groupby("epoch").agg(start=("start", "min"), end=("end", "max"))
    epochs = pd.DataFrame({"epoch": closed.index, "closed_time_s": closed["end"] - closed["start"]})
    epochs.to_csv(place / "epochs.csv", index=False)
    return place


def read_runs(folder: Path) -> pd.DataFrame:
    """Return all runs of a written campaign."""
    return records.read_runs(folder / "runs.csv")
