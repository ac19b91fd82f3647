"""What a campaign will cost, estimated before anything runs: hours, node hours, accelerator hours, disk.

A run's time is that of a start and its epochs. An epoch's comes, in this order, from runs of the same cell at this site, in
whatever study; from runs of the same framework, model and data set, by samples per replica; from the model's operations and
the rate that the site states or that is assumed. The last knows neither network nor loop, and is a lower bound at best.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from common.errors import InputError, exit_status
from common.tables import read_table
from common.text import aligned
from plan.campaign import Campaign, load_campaign
from plan.design import Run
from plan.fraction import Fraction
from plan.identity import cores_per_rank, device, lacks
from plan.study import FRESH, factor_table, load_dataset, model_graph

START_S = 10.0  # of a run, from its launch to its first epoch (docs/measurements.md)
ASSUMED_GFLOPS = {"cpu": 20.0, "cuda": 10_000.0}  # of a core and of an accelerator in training, float32
PASSES = 3  # forward, and twice as much backward
LABEL_BYTES = 8  # int64
KEPT_BYTES = 100_000  # of a run: log, record, epochs
SAME = ("framework", "model", "dataset", "device")
NOT_OF_TIME = ("epochs", "warmup_epochs", "learning_rate", "momentum", "lr_scaling", "lr_warmup_epochs")


@dataclass(frozen=True)
class Estimate:
    """Seconds of one run, and where they come from."""

    run_s: float
    origin: str


@dataclass(frozen=True)
class Cost:
    """Estimates for all runs of a campaign that its site can make, and why it cannot make the others."""

    campaign: Campaign
    measured: pd.DataFrame

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """run_id -> its estimate."""
        return {run.run_id: self._estimate(run) for run in self.campaign.runs if self._lacks(run) is None}

    @cached_property
    def reasons(self) -> dict[str, int]:
        """Why runs cannot be made here -> how many."""
        found = [reason for run in self.campaign.runs if (reason := self._lacks(run))]
        return {reason: found.count(reason) for reason in dict.fromkeys(found)}

    def hours(self, runs: Iterable[Run]) -> float:
        """Of `runs`, one after the other."""
        return sum(self.estimates[run.run_id].run_s for run in runs) / 3600

    @property
    def made(self) -> list[Run]:
        """The runs that the site can make."""
        return [self.campaign.by_id[run_id] for run_id in self.estimates]

    @property
    def node_hours(self) -> float:
        """Hours of nodes; those of one machine count as one."""
        together = self.campaign.site.placement == "emulated"
        return sum(self.hours([run]) * (1 if together else run.geometry.nodes) for run in self.made)

    @property
    def gpu_hours(self) -> float:
        """Hours of accelerators that runs hold, whether or not they train on them: a node is a run's own."""
        site = self.campaign.site
        if site.device != "cuda":
            return 0.0
        held = max(site.devices_per_node, site.ranks_per_node)
        return sum(self.hours([run]) * run.geometry.nodes * held for run in self.made)

    @property
    def data_bytes(self) -> int:
        """Prepared data and the archives that they come from, whether or not they are there."""
        entries = [load_dataset(name) for name in self.campaign.datasets]
        prepared = sum(_prepared_bytes(entry) for entry in entries)
        return prepared + sum(file["bytes"] for entry in entries for file in entry.get("files", []))

    def _lacks(self, run: Run) -> str | None:
        return lacks(self.campaign.site, run.levels)

    def _estimate(self, run: Run) -> Estimate:
        known = self.measured
        for name in SAME:
            known = known[known[name] == run.levels[name]]
        of_cell = known
        for name in factor_table():
            if name not in NOT_OF_TIME:
                of_cell = of_cell[of_cell[name] == run.levels[name]]
        epochs = run.levels["epochs"]
        if len(of_cell):
            return Estimate(START_S + epochs * _epoch_s(of_cell), f"{len(of_cell)} runs of the same cell")
        share = run.geometry.samples_per_epoch / run.geometry.replicas
        if len(known):
            of_sample = float((known.replicas / known.samples_per_epoch).mean())
            return Estimate(START_S + epochs * share * of_sample * _epoch_s(known), "runs of other cells, by samples")
        rate, origin = self._rate(device(self.campaign.site, run.levels))
        entry = load_dataset(run.levels["dataset"])
        passes = PASSES * share + entry["validation_samples"] / run.geometry.replicas
        operations = 2 * passes * model_graph(run.levels["model"], run.levels["dataset"]).macs
        return Estimate(START_S + epochs * operations / rate / 1e9, origin)

    def _rate(self, kind: str) -> tuple[float, str]:
        """Operations of one replica in 1e9 a second, and who says so."""
        site = self.campaign.site
        if site.gflops and kind == site.device:
            return site.gflops, f"{site.gflops:g} GFLOP/s a replica, stated; no network"
        cores = cores_per_rank(site) * (site.cpu_share or 1)
        rate = (cores if kind == "cpu" else 1) * ASSUMED_GFLOPS[kind]
        return rate, f"{rate:g} GFLOP/s a replica ({kind}), assumed; no network"


def _epoch_s(runs: pd.DataFrame) -> float:
    """Mean time of an epoch with its validation."""
    return float((runs.epoch_time_s + runs.validation_time_s.fillna(0)).mean())


def _prepared_bytes(entry: Mapping[str, Any]) -> int:
    samples: int = entry["train_samples"] + entry["validation_samples"]
    return 0 if entry["format"] == FRESH else samples * (math.prod(entry["shape"]) + LABEL_BYTES)


def measured_at(site: str, results: Path = Path("results")) -> pd.DataFrame:
    """The runs that went well at a site, of all studies whose table can be read."""
    tables = []
    for file in sorted(results.glob("*/runs.csv")):
        try:
            table = read_table(file, "runs")
        except InputError:
            continue
        tables.append(table[(table.status == "ok") & (table.site == site)])
    columns = [*factor_table(), "epoch_time_s", "validation_time_s", "replicas", "samples_per_epoch"]
    return pd.concat(tables)[columns] if tables else pd.DataFrame(columns=columns)


def report(cost: Cost) -> str:
    """The estimate as text, in lines for a terminal."""
    campaign, runs = cost.campaign, cost.made
    cells = len({run.cell for run in campaign.runs})
    lines = [
        f"{campaign.study.name} at {campaign.site.name}: {len(campaign.runs)} runs, {cells} cells in {len(campaign.blocks)} blocks"
    ]
    if campaign.study.fraction:
        lines.append(f"  {fraction_line(campaign.study.fraction)}")
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        origin = cost.estimates[run.run_id].origin
        groups.setdefault((*(run.levels[name] for name in SAME[:3]), origin), []).append(run)
    rows = [("runs", "a run", "together", "of", "estimated from")]
    for (*names, origin), members in groups.items():
        hours = cost.hours(members)
        rows.append((str(len(members)), _time(hours / len(members)), _time(hours), " ".join(names), origin))
    lines += [f"  {'  '.join(cells).rstrip()}" for cells in aligned(rows, left=[True] * len(rows[0]))]
    lines += [f"  {count} runs are not made: {reason}" for reason, count in cost.reasons.items()]
    disk = (cost.data_bytes + KEPT_BYTES * len(campaign.runs)) / 1e9
    lines.append(
        f"  all: {_time(cost.hours(runs))} one after the other, {cost.node_hours:.1f} node hours, {cost.gpu_hours:.1f} GPU hours; "
        f"{disk:.1f} GB for data and records; {len(campaign.available())} runs have a record already"
    )
    return "\n".join(lines)


def fraction_line(fraction: Fraction) -> str:
    """Which fraction is run, and which main effects and two-way interactions its cells cannot tell apart."""
    titles = {name: factor_table()[name].get("title", name) for name in fraction.factors}
    aliases = [" = ".join(" x ".join(titles[name] for name in names) for names in same) for same in fraction.aliases()]
    cannot = "; ".join(aliases) if aliases else "all main effects and two-way interactions can be told apart"
    return f"{fraction.name()}: {cannot}"


def _time(hours: float) -> str:
    if hours < 1 / 60:
        return f"{3600 * hours:.0f} s"
    return f"{60 * hours:.0f} min" if hours < 2 else f"{hours:.1f} h"


def main(argv: list[str] | None = None) -> None:
    """Say what a campaign will cost."""
    parser = argparse.ArgumentParser(prog="plan.cost", description=main.__doc__)
    parser.add_argument("--study", required=True, help="name of a file in config/studies/")
    parser.add_argument("--site", required=True, help="name of a file in config/sites/")
    options = parser.parse_args(argv)
    campaign = load_campaign({"study": options.study, "site": options.site, "records": "campaign"})
    print(report(Cost(campaign, measured_at(campaign.site.name))))


if __name__ == "__main__":
    sys.exit(exit_status(main))
