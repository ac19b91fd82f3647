"""What a campaign will cost, estimated before anything runs: hours, node hours, accelerator hours, disk.

A run's time is that of a start and its epochs. Both come, in this order, from runs of the same cell at this site, in whatever
study, with as many samples; from runs of the same framework, model and data set, by samples per replica; else the epochs
from the model's operations and a rate that the site states or that is assumed, without any exchange: an order of magnitude.

The assumed rates are those of one core of docs/measurements.md: plain convolutional networks train there with 75 to 185
GFLOP/s, LeNet-5, which is all overhead, with 15 to 30. Depthwise convolutions, with the normalizations and activations
around them, are bound by memory: EfficientNet-B0 took as long as if each of their operations were sixty others. Two models of
such kinds are apart as they were measured, within a third. Of accelerators nothing was measured.
"""

import functools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from common.errors import InputError
from common.files import read_json, shown
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from common.text import aligned, duration, number_of, size
from declared.configuration import load_config
from declared.datasets import FRESH, TOKENS, kind, load_dataset, token_bytes
from declared.factors import factor_table
from declared.fraction import Fraction
from declared.models import model_graph
from declared.site import load_site
from declared.study import load_study
from plan.campaign import Campaign, configured, planned
from plan.design import Run
from plan.identity import cores_per_rank, device
from plan.sweeps import Sweep, sizes
from plan.sweeps import planned as planned_sweeps
from plan.timings import BUDGET_S, PARTS, Timing
from plan.timings import planned as planned_timings

START_S = 5.0  # of a run, from its launch to its first epoch: 2.7 to 6.6 s in docs/measurements.md
REFERENCE_S = 0.8  # of the work beside a run, in all (docs/explanation/measurement.md); under a quota it takes longer
SWEEP_S = 1.2  # of one size of messages: what ranks.sweep, a program of ranks, gives itself
ASSUMED_GFLOPS = {"cpu": 120.0, "cuda": 10_000.0}  # of a core and of an accelerator in training, float32
DEPTHWISE = 60  # operations of others that take as long as one of a depthwise convolution
PASSES = 3  # forward, and twice as much backward
LABEL_BYTES = 8  # int64
KEPT_BYTES = 100_000  # of a run: log, record, epochs
SAME = ("framework", "model", "dataset", "device")
NOT_OF_TIME = ("epochs", "warmup_epochs", "learning_rate", "momentum", "lr_scaling", "lr_warmup_epochs")
OF_CELL = [*(name for name in factor_table() if name not in NOT_OF_TIME), "samples_per_epoch"]
TIMES = ["startup_s", "epoch_time_s", "validation_time_s", "ranks", "replicas"]
ASSUMED = "assumed"
SAME_CELL = Note("same-cell", "the same cell")
SCALED = Note("scaled-by-samples", "other cells, by samples")
HEADER: tuple[str, ...] = ("framework", "model", "data set", "runs", "a run, mean", "together", "estimated from")
WORDS = (*HEADER[:3], *HEADER[-1:])
MUCH = 1.5  # times as long as the shortest: then the span is said beside the mean


class Estimate(NamedTuple):
    """Seconds of one run or sweep, where they come from, and the number of measured ones behind them."""

    run_s: float
    origin: Note
    measured: int = 0


class Means(NamedTuple):
    """Means of measured runs in seconds: of a start, of an epoch with its validation, of a sample in one replica."""

    start_s: float
    epoch_s: float
    sample_s: float
    runs: int


@dataclass(frozen=True)
class Cost:
    """Estimates for all runs, sweeps and timings of a campaign that its site can make, and why it cannot make the others.

    `measured` are runs of this site (see `measured_at`), `sweep_times` the seconds of its sweeps and timings by their name.
    """

    campaign: Campaign
    measured: pd.DataFrame
    sweep_times: Mapping[str, list[float]]

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """run_id -> its estimate."""
        beside_s = REFERENCE_S if self.campaign.site.reference else 0.0
        made = {run.run_id: self._estimate(run) for run in self.campaign.runs if self.campaign.lacks(run) is None}
        return {run_id: found._replace(run_s=found.run_s + beside_s) for run_id, found in made.items()}

    def of(self, run: Run) -> Estimate:
        """The estimate of a run; replicates of a cell have the same."""
        return self.estimates.get(run.run_id) or self._of_cells[run.cell]

    @cached_property
    def _of_cells(self) -> dict[str, Estimate]:
        return {self.campaign.by_id[run_id].cell: estimate for run_id, estimate in self.estimates.items()}

    @cached_property
    def possible(self) -> list[Run]:
        """The runs that may be made here."""
        return [run for run in self.campaign.most if run.cell in self._of_cells]

    @property
    def most(self) -> int:
        """How many these are."""
        return len(self.possible)

    @property
    def most_s(self) -> float:
        """Of all runs that may be made, sweeps and timings, one after the other."""
        return self.total_s - self.seconds(self.made) + sum(self.of(run).run_s for run in self.possible)

    @cached_property
    def sweeps(self) -> list[tuple[Sweep, Estimate]]:
        """The sweeps of the network, each with its estimate."""
        site = self.campaign.site
        origin = Note("own-budget", "the time that a sweep gives itself")
        budget = Estimate(START_S + len(sizes(site.sweep_max_bytes)) * SWEEP_S, origin)
        return [(sweep, self._known(sweep.name, budget, "sweep")) for sweep in planned_sweeps(self.campaign.runs, site)]

    @cached_property
    def timings(self) -> list[tuple[Timing, Estimate]]:
        """The timings of parts and messages, each with its estimate."""
        origin = Note("own-budget", "the time that a timing gives itself")
        budgets = {kind: Estimate(START_S + budget_s, origin) for kind, budget_s in BUDGET_S.items()}
        return [
            (timing, self._known(timing.name, budgets[timing.kind], "timing"))
            for timing in planned_timings(self.campaign.runs, self.campaign.site)
        ]

    def _known(self, name: str, budget: Estimate, what: str) -> Estimate:
        """The mean of what was made under this name; else its budget."""
        times = self.sweep_times.get(name)
        if not times:
            return budget
        origin = Note("measured-before", f"{number_of(len(times), what)} of the same", count=len(times))
        return Estimate(sum(times) / len(times), origin, len(times))

    def seconds(self, runs: Iterable[Run]) -> float:
        """Of `runs`, one after the other."""
        return sum(self.estimates[run.run_id].run_s for run in runs)

    @property
    def made(self) -> list[Run]:
        """The runs that the site can make."""
        return [self.campaign.by_id[run_id] for run_id in self.estimates]

    @property
    def too_long(self) -> list[Run]:
        """The runs that the site's time limit will end."""
        return [run for run in self.made if self.estimates[run.run_id].run_s > self.campaign.site.time_limit_s]

    @property
    def total_s(self) -> float:
        """Of all runs, sweeps and timings, one after the other."""
        return self.seconds(self.made) + sum(estimate.run_s for _, estimate in (*self.sweeps, *self.timings))

    @property
    def node_hours(self) -> float:
        """Hours of nodes; those of one machine count as one."""
        if self.campaign.site.placement == "emulated":
            return self.total_s / 3600
        runs = sum(self.estimates[run.run_id].run_s * run.geometry.nodes for run in self.made)
        sweeps = sum(estimate.run_s * sweep.nodes for sweep, estimate in self.sweeps)
        timings = sum(estimate.run_s * timing.geometry.nodes for timing, estimate in self.timings)
        return (runs + sweeps + timings) / 3600

    @property
    def gpu_hours(self) -> float:
        """Hours of accelerators that runs hold, whether or not they train on them: a node is a run's own."""
        site = self.campaign.site
        return self.node_hours * max(site.devices_per_node, site.ranks_per_node) if site.device == "cuda" else 0.0

    @property
    def data_bytes(self) -> int:
        """Prepared data and the archives that they come from, whether or not they are there."""
        entries = [load_dataset(name) for name in self.campaign.datasets]
        prepared = sum(_prepared_bytes(entry) for entry in entries)
        return prepared + sum(file["bytes"] for entry in entries for file in entry.get("files", []))

    @cached_property
    def _of_cell(self) -> dict[tuple[Any, ...], Means]:
        return timings(self.measured, OF_CELL)

    @cached_property
    def _of_model(self) -> dict[tuple[Any, ...], Means]:
        return timings(self.measured, SAME)

    @cached_property
    def _of_framework(self) -> dict[tuple[Any, ...], Means]:
        return timings(self.measured, ["framework"])

    def _estimate(self, run: Run) -> Estimate:
        told = {**run.levels, "samples_per_epoch": run.geometry.samples_per_epoch}
        epochs, share = run.levels["epochs"], run.geometry.samples_per_epoch / run.geometry.devices
        if known := self._of_cell.get(tuple(told[name] for name in OF_CELL)):
            return Estimate(known.start_s + epochs * known.epoch_s, SAME_CELL, known.runs)
        if known := self._of_model.get(tuple(told[name] for name in SAME)):
            return Estimate(known.start_s + epochs * share * known.sample_s, SCALED, known.runs)
        rate, origin = self._rate(run)
        validation = run.dataset["validation_samples"] / run.geometry.devices
        operations = 2 * (PASSES * share + validation) * weighed_macs(run.levels["model"], run.levels["dataset"])
        known = self._of_framework.get((run.levels["framework"],))
        return Estimate((known.start_s if known else START_S) + epochs * operations / rate / 1e9, origin)

    def _rate(self, run: Run) -> tuple[float, Note]:
        """Operations of one replica in 1e9 a second, the mean of unlike ones, and who says so."""
        site, said, kind = self.campaign.site, ASSUMED, device(self.campaign.site, run.levels)
        if kind == "hybrid":  # the processors add little
            rate = ASSUMED_GFLOPS["cuda"] * (1 - 1 / run.geometry.ranks_per_node)
        elif kind == "cpu":
            shares = site.cpu_shares[: run.geometry.nodes] or (site.cpu_share or 1,)
            share = min(shares) if run.levels["shares"] == "equal" else sum(shares) / len(shares)
            rate = ASSUMED_GFLOPS[kind] * cores_per_rank(site) * share
        else:
            rate = ASSUMED_GFLOPS[kind]
        if site.gflops and kind == site.device:
            rate, said = site.gflops, "stated"
        text = f"{rate:g} GFLOP/s a device ({kind}), {said}; exchange not counted"
        return rate, Note(f"{said}-rate", text, gflops=rate, device=kind)


@functools.cache
def weighed_macs(model: str, dataset: str) -> int:
    """Multiplications of one sample's forward pass; those of depthwise convolutions count as what takes as long."""
    operators = model_graph(model, dataset).operators
    return sum(operator.macs * (DEPTHWISE if operator.kind == "depthwise_conv" else 1) for operator in operators)


def timings(measured: pd.DataFrame, names: Iterable[str]) -> dict[tuple[Any, ...], Means]:
    """The means of measured runs, by their values of `names`."""
    epoch_s = measured.epoch_time_s.astype(float) + measured.validation_time_s.astype(float).fillna(0)
    devices = (
        measured[["ranks", "replicas"]].astype(float).max(axis=1)
    )  # a rank may have several replicas, or replicas ranks
    sample_s = epoch_s * devices / measured.samples_per_epoch.astype(float)
    start_s = measured.startup_s.astype(float)
    groups = measured.assign(start_s=start_s, epoch_s=epoch_s, sample_s=sample_s).groupby([*names])
    means = groups[["start_s", "epoch_s", "sample_s"]].mean().fillna({"start_s": START_S})
    return {
        key if isinstance(key, tuple) else (key,): Means(float(row[0]), float(row[1]), float(row[2]), int(count))
        for key, row, count in zip(means.index, means.to_numpy(), groups.size(), strict=True)
    }


def _prepared_bytes(entry: Mapping[str, Any]) -> int:
    samples: int = entry["train_samples"] + entry["validation_samples"]
    if entry["format"] == FRESH:
        return 0
    if kind(entry) == TOKENS:  # and as many labels
        return 2 * samples * math.prod(entry["shape"]) * token_bytes(entry["vocabulary"])
    return samples * (math.prod(entry["shape"]) + LABEL_BYTES)


def measured_at(site: str, results: Path = Path("results")) -> pd.DataFrame:
    """The runs that went well at a site, of all studies whose table can be read."""
    tables = []
    for file in sorted(results.glob("*/runs.csv")):
        try:
            table = read_table(file, "runs")
        except InputError:
            continue
        tables.append(table[(table.status == "ok") & (table.site == site)])
    columns = [*factor_table(), "samples_per_epoch", *TIMES]
    return pd.concat(tables)[columns] if tables else pd.DataFrame(columns=columns)


def swept_at(site: str, results: Path = Path("results")) -> dict[str, list[float]]:
    """The seconds of the sweeps and timings that went well at a site, of all studies: by their names."""
    found: dict[str, list[float]] = {}
    for file in sorted([*results.glob("*/network/*/*/sweep.json"), *results.glob("*/costs/*/*/timing.json")]):
        try:
            sweep = read_json(file)
            if (sweep["site"], sweep["status"]) == (site, "ok"):
                found.setdefault(file.parents[1].name, []).append(float(sweep["wall_s"]))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found


def report(cost: Cost) -> str:
    """Return the estimate as text, in lines for a terminal."""
    fraction = cost.campaign.study.fraction
    rows = aligned(table_rows(cost), left=[name in WORDS for name in HEADER])
    lines: list[str] = [fraction_line(fraction)] if fraction else []
    lines += ["  ".join(row).rstrip() for row in rows]
    return "\n".join([title(cost), *(f"  {line}" for line in [*lines, *notes(cost)])])


def title(cost: Cost) -> Note:
    """Return the first line of the report: how many runs, cells and blocks there are."""
    campaign = cost.campaign
    cells, blocks = len({run.cell for run in campaign.runs}), len({run.block for run in campaign.runs})
    least, most = len(campaign.runs), len(campaign.most if campaign.open else campaign.runs)
    count = f"{least:,} to {number_of(most, 'run')}" if campaign.open else number_of(least, "run")
    text = f"{campaign.study.name} at {campaign.site.name}: {count}, {number_of(cells, 'cell')} in {number_of(blocks, 'block')}"
    return Note("size-of-campaign", text, runs=least, most=most, cells=cells, blocks=blocks)


def table_rows(cost: Cost) -> list[tuple[str, ...]]:
    """Return the rows of the report's table, HEADER first."""
    return [HEADER, *_of_runs(cost), *_of_sweeps(cost), *_of_timings(cost)]


def notes(cost: Cost) -> list[Note]:
    """Return the lines of the report below its table."""
    campaign, site = cost.campaign, cost.campaign.site
    lines = campaign.left_out()
    if any(estimate.origin.code == "assumed-rate" for estimate in cost.estimates.values()):
        text = "estimates from an assumed rate give the order of magnitude; ratios between models are about right"
        lines.append(Note("assumed-rate", text))
    if cost.too_long:
        text = (
            f"{len(cost.too_long)} of {number_of(len(cost.made), 'run')} are estimated to exceed "
            f"time_limit_s: {site.time_limit_s:g} of {shown(site.file)}"
        )
        facts = {"runs": len(cost.too_long), "of": len(cost.made), "time_limit_s": site.time_limit_s}
        lines.append(Note("too-long", text, **facts))
    if (wait_s := site.wait_for_quiet) > 0:
        text = f"without waiting for a quiet machine, up to {wait_s:g} s a run (wait_for_quiet)"
        lines.append(Note("without-waiting", text, wait_s=wait_s))
    return [*lines, _total(cost), *_of_precision(cost), _state(cost)]


def _total(cost: Cost) -> Note:
    """Return what all takes together: time, hours of nodes and accelerators, disk."""
    kept_bytes = KEPT_BYTES * len(cost.campaign.runs)
    held = f", {_hours(cost.gpu_hours)} GPU hours" if cost.gpu_hours else ""
    return Note(
        "total",
        f"together {duration(cost.total_s)} one after the other, {_hours(cost.node_hours)} node hours{held}; "
        f"{size(cost.data_bytes)} of data, {size(kept_bytes)} of logs and records",
        total_s=cost.total_s,
        node_hours=cost.node_hours,
        gpu_hours=cost.gpu_hours,
        data_bytes=cost.data_bytes,
        kept_bytes=kept_bytes,
    )


def _of_precision(cost: Cost) -> Iterator[Note]:
    """The rule of a study that says a precision, and what the runs that may follow will cost; what is expected, where something is known."""
    campaign, rule = cost.campaign, cost.campaign.study.replicates
    if not rule.adaptive:
        return
    certain = "; the numbers above are of the runs that are certain" if campaign.open else ""
    text = f"replicates by precision: a cell has {rule.words}{certain}"
    yield Note("replicates-by-precision", text, rule=rule, open=campaign.open)
    yield from campaign.never_precise()
    if campaign.open:
        text = f"at most {number_of(cost.most, 'run')}, {duration(cost.most_s)} one after the other"
        yield Note("at-most", text, runs=cost.most, total_s=cost.most_s)
        if not campaign.decisions:
            command = None if rule.contrasts else f"./ringside pilot {campaign.study.name} --site {campaign.site.name}"
            pilot = f"; {command} tells it after two" if command else ""
            text = f"how many are to be expected is told after block {rule.at_least}{pilot}"
            yield Note("expected-later", text, block=rule.at_least, command=command)
    if campaign.decisions and campaign.open:
        last = campaign.decisions[-1]
        wanted = {cell: said["expected"] for cell, said in last.cells.items()}
        expected = [
            run for run in cost.possible if run.run_id in campaign.records or run.block <= wanted.get(run.cell, 0)
        ]
        seconds = sum(cost.of(run).run_s for run in expected)
        text = f"expected, by what was measured up to block {last.block}: {number_of(len(expected), 'run')}, {duration(seconds)}"
        yield Note("expected", text, block=last.block, runs=len(expected), total_s=seconds)


def fraction_line(fraction: Fraction) -> Note:
    """Return which fraction is run, and which main effects and two-way interactions its cells cannot tell apart."""
    titles = {name: factor_table()[name].get("title", name) for name in fraction.factors}
    confounded = fraction.aliases()
    aliases = [" = ".join(" x ".join(titles[name] for name in names) for names in same) for same in confounded]
    cannot = "; ".join(aliases) if aliases else "all main effects and two-way interactions can be separated"
    return Note("fraction", f"{fraction.name()}: {cannot}", name=fraction.name(), aliases=confounded)


def _of_runs(cost: Cost) -> list[tuple[str, ...]]:
    """A row for each framework, model, data set and origin of the estimate."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in cost.made:
        key = (*(str(run.levels[name]) for name in SAME[:3]), cost.estimates[run.run_id].origin)
        groups.setdefault(key, []).append(run)
    rows = []
    for (*names, origin), members in sorted(groups.items()):
        of_cells = {run.cell: cost.estimates[run.run_id] for run in members}
        times = _times([cost.estimates[run.run_id] for run in members])
        rows.append((*names, *times, _origin(origin, of_cells)))
    return rows


def _of_sweeps(cost: Cost) -> list[tuple[str, ...]]:
    """A row for each framework's sweeps of the network."""
    groups: dict[tuple[str, str], list[Estimate]] = {}
    for sweep, estimate in cost.sweeps:
        groups.setdefault((sweep.framework, estimate.origin), []).append(estimate)
    return [
        (framework, "(sweeps of the network)", "", *_times(estimates), origin)
        for (framework, origin), estimates in sorted(groups.items())
    ]


def _of_timings(cost: Cost) -> list[tuple[str, ...]]:
    """A row for each framework's timings of parts and messages, from which strategies are found."""
    groups: dict[tuple[str, str, str], list[Estimate]] = {}
    for timing, estimate in cost.timings:
        what = "(parts of layers)" if timing.kind == PARTS else "(messages)"
        groups.setdefault((timing.framework, what, estimate.origin), []).append(estimate)
    return [(framework, what, "", *_times(of), origin) for (framework, what, origin), of in sorted(groups.items())]


def _times(estimates: list[Estimate]) -> tuple[str, str, str]:
    """How many, the mean (with its span where that is wide), and the sum."""
    each = [estimate.run_s for estimate in estimates]
    mean, wide = duration(sum(each) / len(each)), max(each) > MUCH * min(each)
    span = f" ({duration(min(each))} to {duration(max(each))})" if wide else ""
    return f"{len(each):,}", mean + span, duration(sum(each))


def _origin(origin: str, of_cells: Mapping[str, Estimate]) -> str:
    """Where the estimates of some cells come from, in words."""
    measured = [estimate.measured for estimate in of_cells.values()]
    if origin == SAME_CELL:
        return Note(SAME_CELL.code, f"{number_of(sum(measured), 'run')} of the same cells", runs=sum(measured))
    if origin == SCALED:
        return Note(SCALED.code, f"{number_of(max(measured), 'run')} of {origin}", runs=max(measured))
    return origin


def _state(cost: Cost) -> Note:
    """What is there already, and what it takes to have a good record of every run."""
    statuses = cost.campaign.statuses
    left = [run for run in cost.made if statuses.get(run.run_id) != "ok"]
    if not left:
        return (
            Note("complete", "every run has an ok record") if cost.made else Note("no-runs", "no run can be made here")
        )
    there, left_s = cost.campaign.counted(), cost.seconds(left)
    text = f"records so far: {there or 'none'}; without an ok record: {number_of(len(left), 'run')}, {duration(left_s)}"
    return Note("records-so-far", text, statuses=Counter(statuses.values()), left=len(left), left_s=left_s)


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"


def to_json(cost: Cost) -> str:
    """Return the estimate for programs: the facts of its lines, and each group of runs with its seconds."""
    facts = {name: value for note in (title(cost), _total(cost)) for name, value in note.facts.items()}
    groups: dict[tuple[str, ...], list[Estimate]] = {}
    for run in cost.made:
        estimate = cost.estimates[run.run_id]
        groups.setdefault((*(str(run.levels[name]) for name in SAME[:3]), estimate.origin.code), []).append(estimate)
    rows = [
        dict(zip((*SAME[:3], "estimated_from"), key, strict=True))
        | {"runs": len(members), "total_s": sum(member.run_s for member in members)}
        for key, members in sorted(groups.items())
    ]
    lines = [{"code": note.code, "text": str(note)} for note in notes(cost)]
    names = {"study": cost.campaign.study.name, "site": cost.campaign.site.name}
    return json.dumps({**names, **facts, "groups": rows, "notes": lines}, indent=2)


def main(*, study: str = "", site: str = "", block: int | None = None, as_json: bool = False) -> None:
    """Print what a campaign will cost.

    Args:
        study: name of a file in config/studies/; default: that of config.yaml
        site: name of a file in config/sites/; default: that of config.yaml
        block: only this block of the design; default: all of it
        as_json: print JSON, for programs
    """
    config = load_config(configured(study, site))
    campaign = planned(load_study(config["study"]), load_site(config["site"])).of_block(block)
    cost = Cost(campaign, measured_at(campaign.site.name), swept_at(campaign.site.name))
    print(to_json(cost) if as_json else report(cost))


if __name__ == "__main__":
    sys.exit(run_program(main))
