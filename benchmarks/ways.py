"""Compare both ways to run on Slurm: time from request to first epoch, and share of time in training.

The same cells run on the virtual cluster as a job each (`snakemake --profile slurm`) and in one allocation
per block (`ringside submit`).
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from common.errors import InputError
from common.tables import read_table
from document import section, table
from sites import virtual
from support.campaigns import Campaign, study

FRAMEWORKS = "[pytorch-ddp, horovod-pytorch, tensorflow-multiworker, horovod-tensorflow]"
SHARED = "/var/tmp"  # noqa: S108 (seen by all nodes of the virtual cluster, unlike /tmp)


@dataclass(frozen=True)
class Way:
    """Medians over the runs of one way in s, and the share of its wall time in which nodes train."""

    name: str
    runs: int
    wall_s: float
    slurm_s: float
    snakemake_s: float
    ranks_s: float
    imports_s: float
    training_share: float

    @property
    def first_epoch_s(self) -> float:
        """Time from the request of a run to its first epoch in s."""
        return self.slurm_s + self.snakemake_s + self.ranks_s + self.imports_s


def seconds(column: pd.Series) -> pd.Series:
    """Return UTC texts as seconds since 1970."""
    return pd.to_datetime(column, utc=True, format="ISO8601").map(lambda moment: moment.timestamp())


def way(name: str, results: Path) -> Way:
    """Summarize runs.csv and epochs.csv of one way.

    A later run of an allocation counts as requested when the run before it ended; the first one waits for the
    allocation.
    """
    runs = read_table(results / "runs.csv", "runs")
    runs = runs[runs["status"] == "ok"].assign(
        requested=lambda r: seconds(r["submitted_at"]),
        granted=lambda r: seconds(r["job_started_at"]),
        launched=lambda r: seconds(r["started_at"]),
        ended=lambda r: seconds(r["ended_at"]),
    )
    if len(runs) < 2:
        raise InputError("cannot-measure", f"{results}: fewer than two runs succeeded; nothing can be said")
    runs = runs.sort_values("launched")
    again = runs["job"] == runs["job"].shift()
    requested = runs["requested"].where(~again, runs["ended"].shift())
    granted = runs["granted"].where(~again, requested)
    epochs = read_table(results / "epochs.csv", "epochs")
    trained_s = epochs[epochs["run_id"].isin(runs["run_id"])]["closed_time_s"].sum()
    benchmarks_s = sum(
        json.loads(file.read_text())["wall_s"]
        for file in results.glob("network/*/*/collective_benchmark.json")
    )
    wall_s = runs["ended"].max() - runs["requested"].min() - benchmarks_s
    return Way(
        name=name,
        runs=len(runs),
        wall_s=wall_s,
        slurm_s=float((granted - requested).median()),
        snakemake_s=float((runs["launched"] - granted).median()),
        ranks_s=float((runs["startup_s"] - runs["import_s"]).median()),
        imports_s=float(runs["import_s"].median()),
        training_share=trained_s / wall_s,
    )


def measure(epochs: int) -> list[Way]:
    """Run eight cells both ways, one way after the other.

    Raises:
        InputError: If the virtual cluster is not up, or a run fails.
    """
    if virtual.running_cluster() is None:
        raise InputError("cannot-measure", "the virtual cluster is not up; start it: ./ringside cluster up")
    text = study(framework=FRAMEWORKS, nodes="[1, 3]", epochs=epochs)
    ways: list[tuple[str, Callable[[Campaign], int]]] = [
        ("a job a run", lambda campaign: campaign.start("runs").wait()),
        (
            "an allocation a block",
            lambda campaign: campaign.checkout.program("ringside", "submit", "--wait").returncode,
        ),
    ]
    results = []
    for name, run in ways:
        folder = Path(tempfile.mkdtemp(prefix="ringside-ways-", dir=SHARED))
        try:
            campaign = Campaign(folder, text)
            if run(campaign):
                raise InputError("cannot-measure", f"{name}: failed: {campaign.output()[-300:]}")
            campaign.rows()
            results.append(way(name, campaign.results))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return results


def report(ways: list[Way], command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = [
        [
            way.name,
            str(way.runs),
            f"{way.first_epoch_s:.1f} s",
            *(f"{part:.1f} s" for part in (way.slurm_s, way.snakemake_s, way.ranks_s, way.imports_s)),
            f"{way.wall_s:.0f} s",
            f"{way.training_share:.0%}",
        ]
        for way in ways
    ]
    header = [
        "way",
        "runs",
        "to the first epoch",
        "Slurm",
        "Snakemake",
        "ranks start",
        "imports",
        "campaign",
        "nodes train",
    ]
    return section(
        "Both ways on Slurm",
        command,
        table(header, rows),
        "The same cells on the virtual cluster (0.6 core a node). Medians over runs: time from the request "
        "of a run to its first epoch, split into waiting for Slurm, Snakemake with the supervisor, the "
        "start of ranks, and imports of the slowest rank. Slurm's clock has full seconds. Nodes train: the "
        "time of all epochs over the campaign's wall time, without the start of Snakemake and without the "
        "collective benchmarks, which ringside submit makes, too.",
    )
