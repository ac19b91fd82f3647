"""Estimate hours, node hours, GPU hours and disk space of a campaign before anything runs.

The time of a run is its start-up and its epochs, estimated from the first of these sources that exists: runs
of the same cell at this site, in any study, with as many samples; runs of the same framework, model and data
set, scaled by samples per replica; the operations of the model and a rate that the site states or that is
assumed. The last source ignores communication and gives an order of magnitude.

The assumed rates are those of one core in docs/measurements.md: plain convolutional networks train with 75 to
185 GFLOP/s, LeNet-5, which is dominated by overhead, with 15 to 30. Depthwise convolutions are bound by
memory: EfficientNet-B0 took as long as if each of their operations were sixty others. Ratios between such
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
from common.files import display_path, read_json
from common.notes import Note
from common.options import run_program
from common.schemas import schema
from common.tables import read_table
from common.text import aligned, duration, number_of, size
from declared.configuration import load_config
from declared.datasets import FRESH, TOKENS, kind, load_dataset, token_bytes
from declared.factors import OPTIMIZER_NUMBERS, factor_names, factor_rules, factor_table, is_custom
from declared.fraction import Fraction
from declared.models import find_graph, model_graph
from declared.site import load_site
from declared.study import load_study
from models.operations import FLOPS_PER_MAC
from plan.binding import read_binding
from plan.campaign import Campaign, configured, imported_note, plan_campaign
from plan.collective_benchmarks import CollectiveBenchmark, message_sizes, planned_benchmarks
from plan.design import Run
from plan.identity import cores_per_rank, device, environment_of
from plan.largest import planned_searches
from plan.memory import Need, describe_needs, failed_estimates, is_estimable, needs_by_cell
from plan.timings import BUDGET_S, PARTS, Timing, planned_timings

START_S = 5.0  # from launch to first epoch: 2.7 to 6.6 s in docs/measurements.md
REFERENCE_S = 0.8  # reference benchmark of a run (docs/explanation/measurement.md); longer under a CPU quota
SIZE_BUDGET_S = 1.2  # time limit of ranks.collective_benchmark for one message size
ASSUMED_GFLOPS = {"cpu": 120.0, "cuda": 10_000.0}  # of one core and one accelerator in float32 training
DEPTHWISE_WEIGHT = 60  # a depthwise operation takes as long as 60 others
TRIALS = 5, 20  # trainings of a few steps in a search for the largest batch, by how much memory there is
N_PASSES = 3  # the backward pass costs twice the forward pass
LABEL_BYTES = 8  # int64
RUN_BYTES = 100_000  # log, record and epochs of a run
MODEL_FACTORS = ("framework", "model", "dataset", "device")
TIME_NEUTRAL_FACTORS = ("epochs", "warmup_epochs", "momentum", *OPTIMIZER_NUMBERS)
CELL_COLUMNS = [*(name for name in factor_table() if name not in TIME_NEUTRAL_FACTORS), "samples_per_epoch"]
TIME_COLUMNS = ["startup_s", "epoch_time_s", "validation_time_s", "ranks", "replicas"]
ASSUMED = "assumed"
SAME_CELL = Note("same-cell", "the same cell")
SCALED = Note("scaled-by-samples", "other cells, by samples")
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
MIN_SPAN_RATIO = 1.5  # longest over shortest run from which the table shows the range


class Estimate(NamedTuple):
    """Seconds of one run or benchmark, their source, and the number of measured ones behind them."""

    run_s: float
    origin: Note
    measured: int = 0


class Means(NamedTuple):
    """Mean seconds of measured runs: start-up, epoch with validation, and sample in one replica."""

    start_s: float
    epoch_s: float
    sample_s: float
    runs: int


@dataclass(frozen=True)
class Cost:
    """Estimates for all runs, collective benchmarks and timings that a campaign's site can make.

    Attributes:
        campaign: The campaign.
        measured: Runs of this site (see ``measured_at``).
        benchmark_times: Seconds of the site's collective benchmarks and timings by name.
        unused: Notes on records of the study that the campaign does not use.
    """

    campaign: Campaign
    measured: pd.DataFrame
    benchmark_times: Mapping[str, list[float]]
    unused: Sequence[Note] = ()

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Estimate by run_id."""
        reference_s = REFERENCE_S if self.campaign.site.reference else 0.0
        estimates = {
            run.run_id: self._estimate(run)
            for run in self.campaign.runs
            if self.campaign.unsupported_reason(run) is None
        }
        return {
            run_id: estimate._replace(run_s=estimate.run_s + reference_s)
            for run_id, estimate in estimates.items()
        }

    def estimate(self, run: Run) -> Estimate:
        """Return the estimate of a run; all replicates of a cell have the same."""
        return self.estimates.get(run.run_id) or self._cell_estimates[run.cell]

    @cached_property
    def _cell_estimates(self) -> dict[str, Estimate]:
        return {self.campaign.by_id[run_id].cell: estimate for run_id, estimate in self.estimates.items()}

    @cached_property
    def memory(self) -> dict[str, Need]:
        """What cells need of their memory, where it is estimated."""
        return needs_by_cell(self.campaign.site, self.runs, self.campaign.results)

    @cached_property
    def possible(self) -> list[Run]:
        """The runs that the site may have to make."""
        return [run for run in self.campaign.max_runs if run.cell in self._cell_estimates]

    @property
    def max_runs(self) -> int:
        """Number of possible runs."""
        return len(self.possible)

    @property
    def max_total_s(self) -> float:
        """Seconds of all possible runs, collective benchmarks and timings, one after the other."""
        return self.total_s - self.seconds(self.runs) + sum(self.estimate(run).run_s for run in self.possible)

    @cached_property
    def benchmarks(self) -> list[tuple[CollectiveBenchmark, Estimate]]:
        """The collective benchmarks, each with its estimate."""
        site = self.campaign.site
        origin = Note("own-budget", "time limit of the benchmark")
        budget = Estimate(START_S + len(message_sizes(site.collective_max_bytes)) * SIZE_BUDGET_S, origin)
        return [
            (benchmark, self._mean_or_budget(benchmark.name, budget, "benchmark"))
            for benchmark in planned_benchmarks(self.campaign.runs, site)
        ]

    @cached_property
    def timings(self) -> list[tuple[Timing, Estimate]]:
        """The timings of parts and messages, each with its estimate."""
        origin = Note("own-budget", "time limit of the timing")
        budgets = {kind: Estimate(START_S + budget_s, origin) for kind, budget_s in BUDGET_S.items()}
        return [
            (timing, self._mean_or_budget(timing.name, budgets[timing.kind], "timing"))
            for timing in planned_timings(self.campaign.runs, self.campaign.site)
        ]

    def _mean_or_budget(self, name: str, budget: Estimate, noun: str) -> Estimate:
        """Return the mean of earlier measurements of this name, or the budget without any."""
        times = self.benchmark_times.get(name)
        if not times:
            return budget
        origin = Note("measured-before", f"{number_of(len(times), noun)} of the same", count=len(times))
        return Estimate(sum(times) / len(times), origin, len(times))

    def seconds(self, runs: Iterable[Run]) -> float:
        """Return the seconds of ``runs``, one after the other."""
        return sum(self.estimates[run.run_id].run_s for run in runs)

    @property
    def runs(self) -> list[Run]:
        """The planned runs that the site can make."""
        return [self.campaign.by_id[run_id] for run_id in self.estimates]

    @property
    def too_long(self) -> list[Run]:
        """The runs that exceed the site's time limit."""
        return [
            run for run in self.runs if self.estimates[run.run_id].run_s > self.campaign.site.time_limit_s
        ]

    @property
    def total_s(self) -> float:
        """Seconds of all runs, collective benchmarks and timings, one after the other."""
        return self.seconds(self.runs) + sum(
            estimate.run_s for _, estimate in (*self.benchmarks, *self.timings)
        )

    @property
    def node_hours(self) -> float:
        """Node hours; emulated nodes of one machine count as one."""
        if self.campaign.site.placement == "emulated":
            return self.total_s / 3600
        runs = sum(self.estimates[run.run_id].run_s * run.geometry.nodes for run in self.runs)
        benchmarks = sum(estimate.run_s * benchmark.nodes for benchmark, estimate in self.benchmarks)
        timings = sum(estimate.run_s * timing.geometry.nodes for timing, estimate in self.timings)
        return (runs + benchmarks + timings) / 3600

    @property
    def gpu_hours(self) -> float:
        """Hours of all accelerators of the nodes, because a run has its nodes exclusively."""
        site = self.campaign.site
        return (
            self.node_hours * max(site.devices_per_node, site.ranks_per_node)
            if site.device == "cuda"
            else 0.0
        )

    @property
    def data_bytes(self) -> int:
        """Size of prepared data sets and of their archives, whether or not they exist."""
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
    def _model_means(self) -> dict[tuple[object, ...], Means]:
        return mean_times(self.measured, MODEL_FACTORS)

    @cached_property
    def _framework_means(self) -> dict[tuple[object, ...], Means]:
        return mean_times(self.measured, ["framework"])

    def _estimate(self, run: Run) -> Estimate:
        values = {**run.levels, "samples_per_epoch": run.geometry.samples_per_epoch}
        epochs, share = run.levels["epochs"], run.geometry.samples_per_epoch / run.geometry.devices
        if means := self._cell_means.get(tuple(values[name] for name in self._cell_columns)):
            return Estimate(means.start_s + epochs * means.epoch_s, SAME_CELL, means.runs)
        if means := self._model_means.get(tuple(values[name] for name in MODEL_FACTORS)):
            return Estimate(means.start_s + epochs * share * means.sample_s, SCALED, means.runs)
        rate, origin = self._rate(run)
        validation = run.dataset["validation_samples"] / run.geometry.devices
        operations = FLOPS_PER_MAC * (N_PASSES * share + validation) * _sample_macs(run)
        means = self._framework_means.get((run.levels["framework"],))
        return Estimate((means.start_s if means else START_S) + epochs * operations / rate / 1e9, origin)

    def _rate(self, run: Run) -> tuple[float, Note]:
        """Return the mean GFLOP/s of a device in a run, and the note on its source."""
        site, source, kind = self.campaign.site, ASSUMED, device(self.campaign.site, run.levels)
        if kind == "hybrid":  # the CPU rank adds little
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
    """Return the multiplications of a forward pass of one sample.

    Of a model that only a command of the user's own knows, they are at least its parameters.
    """
    model, dataset = run.levels["model"], run.levels["dataset"]
    if run.framework.command and find_graph(model, dataset) is None:
        return run.framework.command.models.get(model, 0)
    return weighed_macs(model, dataset)


@functools.cache
def weighed_macs(model: str, dataset: str) -> int:
    """Return the multiplications of a forward pass of one sample, weighted by the time that they take."""
    operators = model_graph(model, dataset).operators
    return sum(
        operator.macs * (DEPTHWISE_WEIGHT if operator.kind == "depthwise_conv" else 1)
        for operator in operators
    )


def mean_times(measured: pd.DataFrame, names: Sequence[str]) -> dict[tuple[object, ...], Means]:
    """Return the mean times of measured runs, grouped by the columns ``names``."""
    epoch_s = measured.epoch_time_s.astype(float) + measured.validation_time_s.astype(float).fillna(0)
    # A rank may have several replicas, or a replica several ranks.
    devices = measured[["ranks", "replicas"]].astype(float).max(axis=1)
    sample_s = epoch_s * devices / measured.samples_per_epoch.astype(float)
    start_s = measured.startup_s.astype(float)
    times = measured.assign(start_s=start_s, epoch_s=epoch_s, sample_s=sample_s)
    if absent := [name for name in names if name not in times]:  # factors of the user's own
        times = times.assign(**dict.fromkeys(absent))
    groups = times.groupby([*names])
    means = groups[["start_s", "epoch_s", "sample_s"]].mean().fillna({"start_s": START_S})
    return {
        key if isinstance(key, tuple) else (key,): Means(
            float(row[0]), float(row[1]), float(row[2]), int(count)
        )
        for key, row, count in zip(means.index, means.to_numpy(), groups.size(), strict=True)
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
        tables.append(table[(table.status == "ok") & (table.site == site)])
    measured = pd.concat(tables) if tables else pd.DataFrame(columns=list(schema("runs")["properties"]))
    return measured[[*factor_names(measured), "samples_per_epoch", *TIME_COLUMNS]]


def benchmark_times_at(site: str, results: Path = Path("results")) -> dict[str, list[float]]:
    """Return the seconds of a site's successful benchmarks and timings, of all studies, by name."""
    seconds: dict[str, list[float]] = {}
    for file in sorted(
        [*results.glob("*/network/*/*/collective_benchmark.json"), *results.glob("*/costs/*/*/timing.json")]
    ):
        try:
            benchmark = read_json(file)
            if (benchmark["site"], benchmark["status"]) == (site, "ok"):
                seconds.setdefault(file.parents[1].name, []).append(float(benchmark["wall_s"]))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return seconds


def report(cost: Cost) -> str:
    """Return the estimate as text, in lines for a terminal."""
    fraction = cost.campaign.study.fraction
    header, *_ = table = table_rows(cost)
    rows = aligned(table, left=[name in TEXT_COLUMNS for name in header])
    lines: list[str] = [fraction_line(fraction)] if fraction else []
    lines += ["  ".join(row).rstrip() for row in rows]
    return "\n".join([title(cost), *(f"  {line}" for line in [*lines, *notes(cost)])])


def title(cost: Cost) -> Note:
    """Return the first line of the report: how many runs, cells and blocks there are."""
    campaign = cost.campaign
    cells, blocks = len({run.cell for run in campaign.runs}), len({run.block for run in campaign.runs})
    least, limit = len(campaign.runs), len(campaign.max_runs if campaign.open else campaign.runs)
    count = f"{least:,} to {number_of(limit, 'run')}" if campaign.open else number_of(least, "run")
    text = (
        f"{campaign.study.name} at {campaign.site.name}: {count}, {number_of(cells, 'cell')} in "
        f"{number_of(blocks, 'block')}"
    )
    return Note("size-of-campaign", text, runs=least, most=limit, cells=cells, blocks=blocks)


def table_rows(cost: Cost) -> list[tuple[str, ...]]:
    """Return the rows of the report's table, HEADER first; with a column for memory where it is estimated."""
    runs, further = _run_rows(cost), [*_benchmark_rows(cost), *_timing_rows(cost)]
    if not cost.memory:
        return [HEADER, *(row for row, _ in runs), *further]
    table = [(HEADER, MEMORY_TITLE), *((row, _memory_text(cost, members)) for row, members in runs)]
    return [(*row[:-1], memory, row[-1]) for row, memory in [*table, *((row, "") for row in further)]]


def _memory_text(cost: Cost, runs: Iterable[Run]) -> str:
    """Return the memory of the runs that need the largest share of theirs, in words."""
    needs = [cost.memory[run.cell] for run in runs if run.cell in cost.memory]
    return str(max(needs, key=lambda need: (need.share or 0, need.peak_bytes))) if needs else ""


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
    if any(estimate.origin.code == "assumed-rate" for estimate in cost.estimates.values()):
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
    lines += [*describe_needs(cost.memory.values()), *_unestimated_notes(cost)]
    if (wait_s := site.wait_for_quiet) > 0:
        text = f"without waiting for a quiet machine, up to {wait_s:g} s a run (wait_for_quiet)"
        lines.append(Note("without-waiting", text, wait_s=wait_s))
    return [*lines, _total(cost), *_precision_notes(cost), _state(cost), *cost.unused]


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
    kept_bytes = RUN_BYTES * len(cost.campaign.runs)
    gpu_hours = f", {_hours(cost.gpu_hours)} GPU hours" if cost.gpu_hours else ""
    price = cost.campaign.site.costs.price_per_node_hour
    amount = price.amount * cost.node_hours if price else None
    money = f", {amount:,.3g} {price.currency}" if price and amount else ""
    return Note(
        "total",
        f"together {duration(cost.total_s)} one after the other, {_hours(cost.node_hours)} node "
        f"hours{gpu_hours}{money}; {size(cost.data_bytes)} of data, {size(kept_bytes)} of logs and records",
        total_s=cost.total_s,
        node_hours=cost.node_hours,
        gpu_hours=cost.gpu_hours,
        price=amount,
        currency=price and price.currency,
        data_bytes=cost.data_bytes,
        kept_bytes=kept_bytes,
    )


def _precision_notes(cost: Cost) -> Iterator[Note]:
    """Yield notes on a study's precision target, and on the maximal and expected cost of further runs."""
    campaign, rule = cost.campaign, cost.campaign.study.replicates
    if not rule.adaptive:
        return
    certain = "; the numbers above cover the runs that are certain" if campaign.open else ""
    text = f"replicates by precision: a cell has {rule.words}{certain}"
    yield Note("replicates-by-precision", text, rule=rule, open=campaign.open)
    yield from campaign.unreachable_precision()
    if campaign.open:
        text = f"at most {number_of(cost.max_runs, 'run')}, {duration(cost.max_total_s)} one after the other"
        yield Note("at-most", text, runs=cost.max_runs, total_s=cost.max_total_s)
        if not campaign.decisions:
            command = (
                None
                if rule.contrasts
                else f"./ringside pilot {campaign.study.name} --site {campaign.site.name}"
            )
            pilot = f"; {command} predicts it after two" if command else ""
            text = f"the expected number is known after block {rule.at_least}{pilot}"
            yield Note("expected-later", text, block=rule.at_least, command=command)
    if campaign.decisions and campaign.open:
        last = campaign.decisions[-1]
        n_runs = {cell: state["expected"] for cell, state in last.cells.items()}
        expected = [
            run
            for run in cost.possible
            if run.run_id in campaign.records or run.block <= n_runs.get(run.cell, 0)
        ]
        seconds = sum(cost.estimate(run).run_s for run in expected)
        text = (
            f"expected from the measurements up to block {last.block}: {number_of(len(expected), 'run')}, "
            f"{duration(seconds)}"
        )
        yield Note("expected", text, block=last.block, runs=len(expected), total_s=seconds)


def fraction_line(fraction: Fraction) -> Note:
    """Return the note on a fraction and on the main effects and two-way interactions that it confounds."""
    titles = {name: factor_rules(name).get("title", name) for name in fraction.factors}
    confounded = fraction.aliases()
    aliases = [
        " = ".join(" x ".join(titles[name] for name in names) for names in aliased) for aliased in confounded
    ]
    cannot = "; ".join(aliases) if aliases else "all main effects and two-way interactions can be separated"
    return Note("fraction", f"{fraction.name()}: {cannot}", name=fraction.name(), aliases=confounded)


def _run_rows(cost: Cost) -> list[tuple[tuple[str, ...], list[Run]]]:
    """Return a row, and its runs, for each framework, model, data set and source of the estimate."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in cost.runs:
        key = (*(str(run.levels[name]) for name in MODEL_FACTORS[:3]), cost.estimates[run.run_id].origin)
        groups.setdefault(key, []).append(run)
    rows = []
    for (*names, origin), members in sorted(groups.items()):
        by_cell = {run.cell: cost.estimates[run.run_id] for run in members}
        times = _times([cost.estimates[run.run_id] for run in members])
        rows.append(((*names, *times, _origin(origin, by_cell)), members))
    return rows


def _benchmark_rows(cost: Cost) -> list[tuple[str, ...]]:
    """Return a row for the collective benchmarks of each framework."""
    groups: dict[tuple[str, str], list[Estimate]] = {}
    for benchmark, estimate in cost.benchmarks:
        groups.setdefault((benchmark.framework, estimate.origin), []).append(estimate)
    return [
        (framework, "(collective benchmarks)", "", *_times(estimates), origin)
        for (framework, origin), estimates in sorted(groups.items())
    ]


def _timing_rows(cost: Cost) -> list[tuple[str, ...]]:
    """Return a row for each framework's timings of parts and messages, which strategy searches need."""
    groups: dict[tuple[str, str, str], list[Estimate]] = {}
    for timing, estimate in cost.timings:
        kind = "(parts of layers)" if timing.kind == PARTS else "(messages)"
        groups.setdefault((timing.framework, kind, estimate.origin), []).append(estimate)
    return [
        (framework, kind, "", *_times(estimates), origin)
        for (framework, kind, origin), estimates in sorted(groups.items())
    ]


def _times(estimates: list[Estimate]) -> tuple[str, str, str]:
    """Return number, mean (with the range if it is wide) and sum of estimates."""
    times = [estimate.run_s for estimate in estimates]
    mean, is_wide = duration(sum(times) / len(times)), max(times) > MIN_SPAN_RATIO * min(times)
    span = f" ({duration(min(times))} to {duration(max(times))})" if is_wide else ""
    return f"{len(times):,}", mean + span, duration(sum(times))


def _origin(origin: str, by_cell: Mapping[str, Estimate]) -> str:
    """Return the source of the estimates of some cells in words."""
    measured = [estimate.measured for estimate in by_cell.values()]
    if origin == SAME_CELL:
        return Note(
            SAME_CELL.code, f"{number_of(sum(measured), 'run')} of the same cells", runs=sum(measured)
        )
    if origin == SCALED:
        return Note(SCALED.code, f"{number_of(max(measured), 'run')} of {origin}", runs=max(measured))
    return origin


def _state(cost: Cost) -> Note:
    """Return the note on existing records, and on the time until every run has an ok record."""
    statuses = cost.campaign.statuses
    left = [run for run in cost.runs if statuses.get(run.run_id) != "ok"]
    if not left and any(run.lacks_strategy or run.missing_batch_size for run in cost.campaign.runs):
        return Note("no-runs", "no run can be made before a search")
    if not left:
        return (
            Note("complete", "every run has an ok record")
            if cost.runs
            else Note("no-runs", "no run can be made here; name another site: --site SITE")
        )
    counts, left_s = cost.campaign.describe_statuses(), cost.seconds(left)
    text = (
        f"records so far: {counts or 'none'}; without an ok record: {number_of(len(left), 'run')}, "
        f"{duration(left_s)}"
    )
    return Note("records-so-far", text, statuses=Counter(statuses.values()), left=len(left), left_s=left_s)


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"


def to_json(cost: Cost) -> str:
    """Return the estimate as JSON: the facts of its notes, and each group of runs with its seconds."""
    facts = {name: value for note in (title(cost), _total(cost)) for name, value in note.facts.items()}
    groups: dict[tuple[str, ...], list[Estimate]] = {}
    for run in cost.runs:
        estimate = cost.estimates[run.run_id]
        groups.setdefault(
            (*(str(run.levels[name]) for name in MODEL_FACTORS[:3]), estimate.origin.code), []
        ).append(estimate)
    rows = [
        dict(zip((*MODEL_FACTORS[:3], "estimated_from"), key, strict=True))
        | {"runs": len(members), "total_s": sum(member.run_s for member in members)}
        for key, members in sorted(groups.items())
    ]
    lines = [{"code": note.code, "text": str(note)} for note in notes(cost)]
    names = {"study": cost.campaign.study.name, "site": cost.campaign.site.name}
    memory = [asdict(need) | {"share": need.share} for need in cost.memory.values()]
    return json.dumps({**names, **facts, "groups": rows, "memory": memory, "notes": lines}, indent=2)


def main(*, study: str = "", site: str = "", block: int | None = None, as_json: bool = False) -> None:
    """Print the estimated cost of a campaign.

    Args:
        study: name of a file in config/studies/; default: that of config.yaml
        site: name of a file in config/sites/; default: that of config.yaml
        block: only this block of the design; default: all of it
        as_json: print JSON, for programs
    """
    config = load_config(configured(study, site))
    declared = load_study(config.study)
    if note := imported_note(declared):
        print(json.dumps(note.facts, indent=2) if as_json else note)
        return
    complete = plan_campaign(declared, load_site(config.site))
    campaign, at = complete.of_block(block), complete.site.name
    bound = read_binding(complete.results)
    unused = complete.unused_records() if bound and bound["site"] == at else []
    cost = Cost(campaign, measured_at(at), benchmark_times_at(at), unused)
    print(to_json(cost) if as_json else report(cost))


if __name__ == "__main__":
    sys.exit(run_program(main))
