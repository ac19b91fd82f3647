"""Estimate hours, node hours, GPU hours and disk space of a campaign before anything runs.

A run takes the time of its start-up and of its epochs, estimated from the first of these sources that exists:
runs of the same cell with the same number of samples, at this site, in any study; runs of the same framework,
model, data set and device, scaled by samples per device; the operations of the model over a rate that the
site states or that is assumed. The last source ignores communication and gives an order of magnitude.

The assumed rates are those of one core in docs/measurements.md: plain convolutional networks train with 75 to
185 GFLOP/s, LeNet-5, which is dominated by overhead, with 15 to 30. Depthwise convolutions are bound by
memory: EfficientNet-B0 took as long as if each of their operations were sixty others. Ratios between these
models are right within a third. Rates of accelerators were not measured.
"""

import functools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from common.errors import InputError
from common.files import display_path
from common.notes import Note
from common.options import run_program
from common.run_status import RunStatus
from common.schemas import schema
from common.tables import read_table
from common.text import align_columns, format_bytes, format_duration, number_of
from declared.configuration import load_config
from declared.datasets import FRESH, TOKENS, kind, load_dataset, token_bytes
from declared.factors import factor_names, factor_rules, factor_table, factors_without_effect_on, is_custom
from declared.fraction import Fraction
from declared.models import find_graph, model_graph
from declared.site import load_site
from declared.study import load_study
from models.operations import FLOPS_PER_MAC
from plan.binding import read_binding
from plan.campaign import Campaign, imported_note, load_merged_config, plan_campaign
from plan.collective_benchmarks import CollectiveBenchmark, message_sizes, planned_benchmarks
from plan.design import Run
from plan.identity import environment_of
from plan.largest import planned_searches
from plan.memory import MemoryDemand, describe_demands, failed_estimates, is_estimable, memory_demands
from plan.site_resources import cores_per_rank, device_kind_of
from plan.timings import BUDGET_S, MESSAGES, PARTS, Timing, planned_timings

START_S = 5.0  # seconds from launch to the first epoch: 2.7 to 6.6 in docs/measurements.md
REFERENCE_S = 0.8  # reference benchmark of a run (docs/explanation/measurement.md); longer under a CPU quota
SIZE_BUDGET_S = 1.2  # time limit of ranks.collective_benchmark for one message size
ASSUMED_GFLOPS = {"cpu": 120.0, "cuda": 10_000.0}  # rate of one core or accelerator in float32 training
DEPTHWISE_WEIGHT = 60  # A depthwise operation takes as long as this number of others.
TRIALS = 5, 20  # fewest and most trials of a search for the largest batch; more memory needs more
N_PASSES = 3  # A training pass costs three forward passes, since the backward pass costs two.
LABEL_BYTES = 8  # int64
RUN_BYTES = 100_000  # log, record and epochs of a run
GROUP_FACTORS = ("framework", "model", "dataset")  # Runs that agree in them share a row of the estimate.
# Without measured runs of the same cell, runs that agree in these give the time of a sample.
SAMPLE_TIME_FACTORS = (*GROUP_FACTORS, "device")
# Columns of cells: those that are equal in all of them have the same estimate.
CELL_COLUMNS = [
    *(name for name in factor_table() if name not in factors_without_effect_on("time")),
    "samples_per_epoch",
]
TIME_COLUMNS = ["startup_s", "epoch_time_s", "validation_time_s", "ranks", "replicas"]
ASSUMED = "assumed"
SAME_CELL = Note("same-cell", "runs of the same cells")
SCALED = Note("scaled-by-samples", "runs of other cells, by samples")
HEADER: tuple[str, ...] = (
    "framework",
    "model",
    "data set",
    "runs",
    "a run, mean",
    "together",
    "estimated from",
)
MEMORY_TITLE = "memory of a rank"
TEXT_COLUMNS = (*HEADER[:3], *HEADER[-1:])
BENCHMARK_TITLES = {PARTS: "(parts of layers)", MESSAGES: "(messages)"}
MIN_SPAN_RATIO = 1.5  # longest over shortest run above which the table shows the range


class Estimate(NamedTuple):
    """Estimated seconds of one run, and the note on the source of the estimate."""

    run_s: float
    origin: Note


class Means(NamedTuple):
    """Mean seconds of measured runs: start-up, epoch with validation, and a sample on one device."""

    start_s: float
    epoch_s: float
    sample_s: float


@dataclass(frozen=True)
class Cost:
    """Estimates for all runs, collective benchmarks and timings that a campaign's site can execute.

    Attributes:
        campaign: The campaign.
        measured: Successful runs at this site (`measured_at`).
        unused: Notes on records of the study that the campaign does not use.
    """

    campaign: Campaign
    measured: pd.DataFrame
    unused: Sequence[Note] = ()

    @cached_property
    def by_cell(self) -> dict[str, Estimate]:
        """Estimate of a run of each cell that the site can execute."""
        cells = {run.cell: run for run in self.campaign.max_runs}
        return {
            cell: self._estimate(run)
            for cell, run in cells.items()
            if self.campaign.not_executable_reason(run) is None
        }

    def estimate(self, run: Run) -> Estimate:
        """Return the estimate of a run."""
        return self.by_cell[run.cell]

    @cached_property
    def memory(self) -> dict[str, MemoryDemand]:
        """Memory demand of each cell with an estimate."""
        return memory_demands(self.campaign.site, self.runs, self.campaign.results)

    @cached_property
    def runs(self) -> list[Run]:
        """The runs planned by now that the site can execute."""
        return [run for run in self.campaign.runs if run.cell in self.by_cell]

    @cached_property
    def potential_runs(self) -> list[Run]:
        """The runs that the site has to execute if cells reach the interval target as late as possible."""
        return [run for run in self.campaign.max_runs if run.cell in self.by_cell]

    @cached_property
    def benchmarks(self) -> list[tuple[CollectiveBenchmark | Timing, float]]:
        """The collective benchmarks and timings, each with the seconds of its time limit."""
        site, runs = self.campaign.site, self.campaign.runs
        collective_s = START_S + len(message_sizes(site.collective_max_bytes)) * SIZE_BUDGET_S
        return [
            *((benchmark, collective_s) for benchmark in planned_benchmarks(runs, site)),
            *((timing, START_S + BUDGET_S[timing.kind]) for timing in planned_timings(runs, site)),
        ]

    def seconds(self, runs: Iterable[Run]) -> float:
        """Return the seconds of `runs`, executed one after the other."""
        return sum(self.estimate(run).run_s for run in runs)

    @property
    def too_long(self) -> list[Run]:
        """The runs that exceed the site's time limit."""
        return [run for run in self.runs if self.estimate(run).run_s > self.campaign.site.time_limit_s]

    def total_s(self, runs: Iterable[Run]) -> float:
        """Return the seconds of `runs`, collective benchmarks and timings, executed one after the other."""
        return self.seconds(runs) + sum(benchmark_s for _, benchmark_s in self.benchmarks)

    @property
    def node_hours(self) -> float:
        """Node hours; emulated nodes of one machine count as one."""
        if self.campaign.site.placement == "emulated":
            return self.total_s(self.runs) / 3600
        runs_s = sum(self.estimate(run).run_s * run.geometry.nodes for run in self.runs)
        benchmarks_s = sum(seconds * benchmark.geometry.nodes for benchmark, seconds in self.benchmarks)
        return (runs_s + benchmarks_s) / 3600

    @property
    def gpu_hours(self) -> float:
        """Hours of all accelerators of the nodes, since a run occupies its nodes exclusively."""
        site = self.campaign.site
        return (
            self.node_hours * max(site.devices_per_node, site.ranks_per_node)
            if site.device == "cuda"
            else 0.0
        )

    @property
    def data_bytes(self) -> int:
        """Size of prepared data sets and their archives in bytes, whether or not they exist already."""
        entries = [load_dataset(name) for name in self.campaign.datasets]
        prepared = sum(_prepared_bytes(entry) for entry in entries)
        return prepared + sum(file["bytes"] for entry in entries for file in entry.get("files", []))

    @cached_property
    def _cell_means(self) -> dict[tuple[object, ...], Means]:
        return mean_times(self.measured, self._cell_columns)

    @cached_property
    def _cell_columns(self) -> list[str]:
        return [*CELL_COLUMNS, *filter(is_custom, self.campaign.study.factors)]

    @cached_property
    def _sample_time_means(self) -> dict[tuple[object, ...], Means]:
        return mean_times(self.measured, SAMPLE_TIME_FACTORS)

    def _estimate(self, run: Run) -> Estimate:
        values = {**run.levels, "samples_per_epoch": run.geometry.samples_per_epoch}
        epochs, share = run.levels["epochs"], run.geometry.samples_per_epoch / run.geometry.devices
        reference_s = REFERENCE_S if self.campaign.site.reference else 0.0
        if means := self._cell_means.get(tuple(values[name] for name in self._cell_columns)):
            return Estimate(reference_s + means.start_s + epochs * means.epoch_s, SAME_CELL)
        if means := self._sample_time_means.get(tuple(values[name] for name in SAMPLE_TIME_FACTORS)):
            return Estimate(reference_s + means.start_s + epochs * share * means.sample_s, SCALED)
        rate, origin = self._rate(run)
        validation = run.dataset["validation_samples"] / run.geometry.devices
        operations = FLOPS_PER_MAC * (N_PASSES * share + validation) * _sample_macs(run)
        return Estimate(reference_s + START_S + epochs * operations / rate / 1e9, origin)

    def _rate(self, run: Run) -> tuple[float, Note]:
        """Return the mean GFLOP/s of a device in a run, and the note on its source."""
        site, source, kind = self.campaign.site, ASSUMED, device_kind_of(self.campaign.site, run.levels)
        if kind == "hybrid":  # The CPU rank adds little.
            rate = ASSUMED_GFLOPS["cuda"] * (1 - 1 / run.geometry.ranks_per_node)
        elif kind == "cpu":
            shares = site.cpu_shares[: run.geometry.nodes] or (site.cpu_share or 1,)
            share = min(shares) if run.levels["shares"] == "equal" else sum(shares) / len(shares)
            rate = ASSUMED_GFLOPS[kind] * cores_per_rank(site) * share
        else:
            rate = ASSUMED_GFLOPS[kind]
        if site.gflops and kind == site.device:
            rate, source = site.gflops, "stated"
        text = f"{rate:g} GFLOP/s a device ({kind}), {source}; communication not counted"
        return rate, Note(f"{source}-rate", text, gflops=rate, device=kind)


def _sample_macs(run: Run) -> int:
    """Return the weighted multiplications of a forward pass of one sample (`weighted_macs`).

    For a model that only a user-supplied command knows, return its parameters, the least that they can be.
    """
    model, dataset = run.levels["model"], run.levels["dataset"]
    if run.framework.command and find_graph(model, dataset) is None:
        return run.framework.command.models.get(model, 0)
    return weighted_macs(model, dataset)


@functools.cache
def weighted_macs(model: str, dataset: str) -> int:
    """Return the multiplications of a forward pass of one sample, depthwise ones with DEPTHWISE_WEIGHT."""
    operators = model_graph(model, dataset).operators
    return sum(
        operator.macs * (DEPTHWISE_WEIGHT if operator.kind == "depthwise_conv" else 1)
        for operator in operators
    )


def mean_times(measured: pd.DataFrame, names: Sequence[str]) -> dict[tuple[object, ...], Means]:
    """Return the mean times of measured runs, grouped by the columns `names`."""
    epoch_s = measured.epoch_time_s.astype(float) + measured.validation_time_s.astype(float).fillna(0)
    # Devices: a rank can have several replicas (mirrored), a replica several ranks (meshes).
    devices = measured[["ranks", "replicas"]].astype(float).max(axis=1)
    sample_s = epoch_s * devices / measured.samples_per_epoch.astype(float)
    start_s = measured.startup_s.astype(float)
    times = measured.assign(start_s=start_s, epoch_s=epoch_s, sample_s=sample_s)
    if absent := [name for name in names if name not in times]:  # custom factors
        times = times.assign(**dict.fromkeys(absent))
    means = times.groupby([*names])[[*Means._fields]].mean().fillna({"start_s": START_S})
    return {
        key if isinstance(key, tuple) else (key,): Means(*map(float, row))
        for key, row in zip(means.index, means.to_numpy(), strict=True)
    }


def _prepared_bytes(entry: Mapping[str, Any]) -> int:
    samples: int = entry["train_samples"] + entry["validation_samples"]
    if entry["format"] == FRESH:
        return 0
    if kind(entry) == TOKENS:  # tokens and labels
        return 2 * samples * math.prod(entry["shape"]) * token_bytes(entry["vocabulary"])
    return samples * (math.prod(entry["shape"]) + LABEL_BYTES)


def measured_at(site: str, results: Path = Path("results")) -> pd.DataFrame:
    """Return the successful runs at a site, of all studies with a readable table."""
    tables = []
    for file in sorted(results.glob("*/runs.csv")):
        try:
            table = read_table(file, "runs")
        except InputError:
            continue
        tables.append(table[(table.status == RunStatus.OK) & (table.site == site)])
    measured = pd.concat(tables) if tables else pd.DataFrame(columns=list(schema("runs")["properties"]))
    return measured[[*factor_names(measured), "samples_per_epoch", *TIME_COLUMNS]]


def report(cost: Cost) -> str:
    """Return the estimate as text for a terminal."""
    fraction = cost.campaign.study.fraction
    header, *_ = table = table_rows(cost)
    rows = align_columns(table, left=[name in TEXT_COLUMNS for name in header])
    lines: list[str] = [fraction_line(fraction)] if fraction else []
    lines += ["  ".join(row).rstrip() for row in rows]
    return "\n".join([title(cost), *(f"  {line}" for line in [*lines, *notes(cost)])])


def title(cost: Cost) -> Note:
    """Return the first line of the report: how many runs, cells and blocks there are."""
    campaign = cost.campaign
    cells, blocks = len({run.cell for run in campaign.runs}), len({run.block for run in campaign.runs})
    least, limit = len(campaign.runs), len(campaign.max_runs if campaign.can_grow else campaign.runs)
    count = f"{least:,} to {number_of(limit, 'run')}" if campaign.can_grow else number_of(least, "run")
    text = (
        f"{campaign.study.name} at {campaign.site.name}: {count}, {number_of(cells, 'cell')} in "
        f"{number_of(blocks, 'block')}"
    )
    return Note("size-of-campaign", text, runs=least, most=limit, cells=cells, blocks=blocks)


def table_rows(cost: Cost) -> list[tuple[str, ...]]:
    """Return the rows of the report's table, HEADER first, with a column for memory if any is estimated."""
    rows = [(HEADER, MEMORY_TITLE)]
    for (*names, origin), runs in _groups(cost):
        times = _times([cost.estimate(run).run_s for run in runs])
        rows.append(((*names, *times, origin), _memory_text(cost, runs)))
    budgets: dict[tuple[str, str], list[float]] = {}
    for benchmark, benchmark_s in cost.benchmarks:
        kind = (
            BENCHMARK_TITLES[benchmark.kind] if isinstance(benchmark, Timing) else "(collective benchmarks)"
        )
        budgets.setdefault((benchmark.framework, kind), []).append(benchmark_s)
    for (framework, kind), times_s in sorted(budgets.items()):
        rows.append(((framework, kind, "", *_times(times_s), "time limit of each"), ""))
    return [(*row[:-1], memory, row[-1]) if cost.memory else row for row, memory in rows]


def _groups(cost: Cost) -> list[tuple[tuple[str, ...], list[Run]]]:
    """Return the runs of each framework, model, data set and source of the estimate."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in cost.runs:
        names = (str(run.levels[name]) for name in GROUP_FACTORS)
        groups.setdefault((*names, cost.estimate(run).origin), []).append(run)
    return sorted(groups.items())


def _memory_text(cost: Cost, runs: Iterable[Run]) -> str:
    """Return the largest memory demand, relative to its limit, among `runs` as text."""
    demands = [cost.memory[run.cell] for run in runs if run.cell in cost.memory]
    return str(max(demands, key=lambda demand: (demand.share or 0, demand.peak_bytes))) if demands else ""


def notes(cost: Cost) -> list[Note]:
    """Return the lines of the report below its table."""
    campaign, site = cost.campaign, cost.campaign.site
    lines = campaign.skipped_runs()
    if missing := [run for run in campaign.runs if run.missing_batch_size]:
        n_searches = len(planned_searches(missing, site))
        text = (
            f"searches for the largest batch: {n_searches}, of {TRIALS[0]} to {TRIALS[1]} trials each; a "
            "trial takes as long as the start of a run and a few steps"
        )
        lines.append(Note("searches", text, searches=n_searches, trials=list(TRIALS)))
    if any(estimate.origin.code == "assumed-rate" for estimate in cost.by_cell.values()):
        text = (
            "estimates from an assumed rate give the order of magnitude; ratios between models are about "
            "right"
        )
        lines.append(Note("assumed-rate", text))
    if cost.too_long:
        text = (
            f"{len(cost.too_long)} of {number_of(len(cost.runs), 'run')} are estimated to exceed "
            f"time_limit_s: {site.time_limit_s:g} of {display_path(site.file)}"
        )
        facts = {"runs": len(cost.too_long), "of": len(cost.runs), "time_limit_s": site.time_limit_s}
        lines.append(Note("too-long", text, **facts))
    lines += [*describe_demands(cost.memory.values()), *_unestimated_notes(cost)]
    if (wait_s := site.wait_for_quiet) > 0:
        text = f"without waiting for a quiet machine, up to {wait_s:g} s a run (wait_for_quiet)"
        lines.append(Note("without-waiting", text, wait_s=wait_s))
    return [*lines, _total(cost), *_target_notes(cost), _state(cost), *cost.unused]


def _unestimated_notes(cost: Cost) -> Iterator[Note]:
    """Yield a note for each environment that is not built yet, and one on cells whose estimate failed."""
    frameworks = {run.framework.name: run.framework for run in cost.runs if is_estimable(run.framework)}
    stamps = {environment_of(cost.campaign.site, framework) for framework in frameworks.values()}
    for name in sorted(stamp.parents[1].name for stamp in stamps if not stamp.exists()):
        text = f"memory is not estimated before the environment {name} is built"
        yield Note("environment-not-built", text, environment=name)
    if failed := failed_estimates(cost.campaign):
        reason = next(iter(failed.values()))
        text = f"the memory of {number_of(len(failed), 'cell')} cannot be estimated: {reason}"
        yield Note("no-memory-estimate", text, cells=list(failed))


def _total(cost: Cost) -> Note:
    """Return the note on total time, node hours, GPU hours, price and disk space."""
    kept_bytes, total_s = RUN_BYTES * len(cost.campaign.runs), cost.total_s(cost.runs)
    gpu_hours = f", {_hours(cost.gpu_hours)} GPU hours" if cost.gpu_hours else ""
    price = cost.campaign.site.costs.price_per_node_hour
    amount = price.amount * cost.node_hours if price else None
    money = f", {amount:,.3g} {price.currency}" if price and amount else ""
    return Note(
        "total",
        f"together {format_duration(total_s)} one after the other, {_hours(cost.node_hours)} node "
        f"hours{gpu_hours}{money}; {format_bytes(cost.data_bytes)} of data, {format_bytes(kept_bytes)} of "
        "logs and records",
        total_s=total_s,
        node_hours=cost.node_hours,
        gpu_hours=cost.gpu_hours,
        price=amount,
        currency=price and price.currency,
        data_bytes=cost.data_bytes,
        kept_bytes=kept_bytes,
    )


def _target_notes(cost: Cost) -> Iterator[Note]:
    """Yield notes on a study's interval target and on the largest and expected cost of its runs."""
    campaign, rule = cost.campaign, cost.campaign.study.replicates
    if not rule.adaptive:
        return
    certain = "; the numbers above cover the runs that are certain" if campaign.can_grow else ""
    text = f"replicates by interval target: a cell has {rule.words}{certain}"
    yield Note("replicates-by-precision", text, rule=rule, open=campaign.can_grow)
    yield from campaign.unreachable_target()
    if campaign.can_grow:
        n_runs, total_s = len(cost.potential_runs), cost.total_s(cost.potential_runs)
        text = f"at most {number_of(n_runs, 'run')}, {format_duration(total_s)} one after the other"
        yield Note("at-most", text, runs=n_runs, total_s=total_s)
        if not campaign.decisions:
            text = f"the expected number is known after block {rule.at_least}"
            yield Note("expected-later", text, block=rule.at_least)
    if campaign.decisions and campaign.can_grow:
        last = campaign.decisions[-1]
        n_expected = {cell: state["expected"] for cell, state in last.cells.items()}
        expected = [
            run
            for run in cost.potential_runs
            if run.run_id in campaign.record_paths or run.block <= n_expected.get(run.cell, 0)
        ]
        seconds = cost.seconds(expected)
        text = (
            f"expected from the measurements up to block {last.block}: {number_of(len(expected), 'run')}, "
            f"{format_duration(seconds)}"
        )
        yield Note("expected", text, block=last.block, runs=len(expected), total_s=seconds)


def fraction_line(fraction: Fraction) -> Note:
    """Return the note on a fraction, with the main effects and two-way interactions that it confounds."""
    titles = {name: factor_rules(name).get("title", name) for name in fraction.factors}
    confounded = fraction.aliases()
    aliases = [
        " = ".join(" x ".join(titles[name] for name in names) for names in aliased) for aliased in confounded
    ]
    cannot = "; ".join(aliases) if aliases else "all main effects and two-way interactions can be separated"
    return Note("fraction", f"{fraction.name()}: {cannot}", name=fraction.name(), aliases=confounded)


def _times(times: Sequence[float]) -> tuple[str, str, str]:
    """Return number, mean (with the range if it is wide) and sum of times in seconds, as text."""
    mean, is_wide = format_duration(sum(times) / len(times)), max(times) > MIN_SPAN_RATIO * min(times)
    span = f" ({format_duration(min(times))} to {format_duration(max(times))})" if is_wide else ""
    return f"{len(times):,}", mean + span, format_duration(sum(times))


def _state(cost: Cost) -> Note:
    """Return the note on existing records and on the time of the runs without an ok record."""
    statuses = cost.campaign.statuses_by_run
    left = [run for run in cost.runs if statuses.get(run.run_id) != RunStatus.OK]
    if not left and any(run.lacks_strategy or run.missing_batch_size for run in cost.campaign.runs):
        return Note("no-runs", "no run can be executed before a search")
    if not left:
        return (
            Note("complete", "every run has an ok record")
            if cost.runs
            else Note("no-runs", "no run can be executed here; name another site: --site SITE")
        )
    counts, left_s = cost.campaign.describe_statuses(), cost.seconds(left)
    text = (
        f"records so far: {counts or 'none'}; without an ok record: {number_of(len(left), 'run')}, "
        f"{format_duration(left_s)}"
    )
    return Note("records-so-far", text, statuses=Counter(statuses.values()), left=len(left), left_s=left_s)


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"


def to_json(cost: Cost) -> str:
    """Return the estimate as JSON: the facts of its notes, and each group of runs with its seconds."""
    facts = {name: value for note in (title(cost), _total(cost)) for name, value in note.facts.items()}
    rows = [
        dict(zip(GROUP_FACTORS, names, strict=True))
        | {"estimated_from": cost.estimate(runs[0]).origin.code}
        | {"runs": len(runs), "total_s": cost.seconds(runs)}
        for (*names, _), runs in _groups(cost)
    ]
    lines = [{"code": note.code, "text": str(note)} for note in notes(cost)]
    names = {"study": cost.campaign.study.name, "site": cost.campaign.site.name}
    memory = [asdict(demand) | {"share": demand.share} for demand in cost.memory.values()]
    return json.dumps({**names, **facts, "groups": rows, "memory": memory, "notes": lines}, indent=2)


def main(*, study: str = "", site: str = "", block: int | None = None, as_json: bool = False) -> None:
    """Print the estimated cost of a campaign.

    Args:
        study: name of a file in config/studies/; default: that of config.yaml
        site: name of a file in config/sites/; default: that of config.yaml
        block: only this block of the design; default: all of it
        as_json: print JSON, for programs
    """
    config = load_config(load_merged_config(study, site))
    declared = load_study(config.study)
    if note := imported_note(declared):
        print(json.dumps(note.facts, indent=2) if as_json else note)
        return
    complete = plan_campaign(declared, load_site(config.site))
    campaign, at = complete.of_block(block), complete.site.name
    bound = read_binding(complete.results)
    unused = complete.unused_records() if bound and bound["site"] == at else []
    cost = Cost(campaign, measured_at(at), unused)
    print(to_json(cost) if as_json else report(cost))


if __name__ == "__main__":
    sys.exit(run_program(main))
