"""Table `bottlenecks`: what limits each cell, with evidence, its size in seconds of an epoch, and remedies.

RULES lists all rules. Whether a rule applies is decided for the mean of a cell's runs. Its size is computed
run by run and has an interval. A size is an upper bound of what the remedy can save. Remedies of one cause
overlap, so their sizes must not be added. A remedy is something that the cell's framework supports, or it
names another framework that does.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, intervals, tables
from analysis.decomposition import BENCHMARK_COLUMNS, all_reduce_s, gradient_bytes
from analysis.intervals import Estimate, columns
from analysis.speedup import one_device_cells_by_local_batch
from common.notes import Note
from declared.frameworks import Framework, framework_names, load_framework
from traces import cells
from traces.cells import COMMUNICATION_PARTS, STEP, Measured
from traces.steps import WAIT

TITLE = "What limits each cell, by rule, and what would help"
# Minimum share of a step. Smaller parts are within the noise between runs and not worth a remedy.
MIN_SHARE = 0.05
# Messages are small below this multiple of the benchmark's latency: at 2, half of their time is latency.
SMALL_MESSAGE_RATIO = 2.0
# A library is slow above this multiple of the fastest one; benchmarks differ by 10 to 20 % from day to day.
SLOW_LIBRARY_RATIO = 1.5
# Minimum overlapped share of the communication that fits into the backward pass; DDP overlaps half or more.
MIN_OVERLAP_SHARE = 0.5
# Gradient accumulation steps of the suggested remedy, which saves three of four all-reduces.
ACCUMULATION_STEPS = 4
NO_BENCHMARK = Note(
    "no-collective-benchmark",
    "There is no collective benchmark, so latency and other libraries are not judged.",
)
# A slow rank is the cause of the others' waiting if its additional computation explains at least this share.
MIN_CAUSE_SHARE = 0.5
SIZES = (
    "Seconds: an upper bound of what the remedy saves. Remedies of one cause overlap and must not be added. "
    f"Limits of less than {100 * MIN_SHARE:g} % of the steps are left out."
)
THRESHOLDS = (
    f"Thresholds: a message is small below {SMALL_MESSAGE_RATIO:g} times the latency of the benchmark. A "
    f"library is slow above {SLOW_LIBRARY_RATIO:g} times the fastest. Communication is poorly overlapped if "
    f"less than {100 * MIN_OVERLAP_SHARE:g} % of what fits into the backward pass overlaps it. A rank is the "
    f"cause if its additional computation is at least {100 * MIN_CAUSE_SHARE:g} % of the others' waiting."
)


@dataclass(frozen=True)
class Cell:
    """The measurements of a cell.

    Attributes:
        runs: A row for each run: seconds of an epoch by phase and by part of communication, and STEP.
        computing: Computation by rank, mean over runs, seconds of an epoch.
        alone_s: Computation on one device, seconds of an epoch.
        allreduces_per_step: Traced gradient all-reduces of a step, mean over runs; 0 for one device.
        latency_s: Time of the smallest message in the framework's benchmark; NaN without a benchmark.
        others_s: Time of an epoch's messages by the benchmark of each framework; empty without benchmarks.
        steps: Steps of an epoch.
        every: Gradient accumulation steps.
        waiting: Exposed waiting of each rank for the last one, mean over runs, seconds of an epoch.
        levels: A row of runs.csv.
    """

    runs: pd.DataFrame
    computing: pd.Series
    alone_s: float
    allreduces_per_step: float
    latency_s: float
    others_s: dict[str, float]
    steps: float
    every: float
    waiting: pd.Series
    levels: Mapping[str, Any]

    def mean(self, name: str) -> float:
        """Return the mean of a column over runs, seconds of an epoch."""
        return float(self.by_run(name).mean())

    def by_run(self, name: str) -> pd.Series:
        """Return a column by run, seconds of an epoch; 0 for a column that no run has."""
        return self.runs[name] if name in self.runs else pd.Series(0.0, index=self.runs.index)

    @cached_property
    def busy(self) -> pd.Series:
        """Computation and waiting for data by run: all phases except waiting for communication."""
        return self.by_run(STEP) - self.by_run(WAIT)

    @cached_property
    def computed(self) -> pd.Series:
        """Computation by run: all phases except waiting for communication and for data."""
        return self.busy - self.by_run("data")

    @property
    def others_wait(self) -> pd.Series:
        """How long the other ranks wait on average, by run, if the slowest rank never waits."""
        ranks = len(self.computing)
        return self.by_run("exposed_waiting") * (ranks / (ranks - 1) if ranks > 1 else 1)

    @cached_property
    def hidden(self) -> pd.Series:
        """Communication that overlaps computation, by run."""
        return self.by_run("communication") - self.by_run("exposed")

    @property
    def framework(self) -> Framework | None:
        """The framework's description; None for a framework that no longer exists."""
        name = str(self.levels.get("framework", ""))
        return load_framework(name) if name in framework_names() else None

    @property
    def is_complete(self) -> bool:
        """Whether communication was traced, or there is none; else phases may include unmarked waiting."""
        return self.allreduces_per_step > 0 or self.levels.get("n_devices", 1) <= 1

    @property
    def packs(self) -> str:
        """How its library groups gradients into messages (communication.messages), "" if unknown."""
        communication = self.framework.communication if self.framework else None
        return communication.messages if communication else ""

    @property
    def accumulates(self) -> bool:
        """Whether its framework supports ACCUMULATION_STEPS, and these save all-reduces.

        A framework that communicates before the backward pass gathers parameters. It does so for every batch,
        so accumulation does not save these messages.
        """
        sends_early = self.mean("until_first") < 0.99 * (self.mean("data") + self.mean("forward"))
        is_supported = self.framework is None or self.framework.supports(
            {**self.levels, "sync_every": ACCUMULATION_STEPS}
        )
        return is_supported and not (sends_early and self.has_many_messages)

    @property
    def has_many_messages(self) -> bool:
        """Whether an update sends more than one message.

        Rounding ignores the additional all-reduce of an epoch's last batches, too few to accumulate.
        """
        return round(self.allreduces_per_step * self.every) > 1

    @property
    def best(self) -> tuple[str, float]:
        """The framework whose benchmark is fastest for these messages, and its seconds of an epoch."""
        return min(self.others_s.items(), key=lambda entry: entry[1], default=("", math.nan))

    @property
    def slowest(self) -> tuple[int, float]:
        """The rank that computes longest, and its seconds of an epoch beyond the mean of the others."""
        rank = int(self.computing.idxmax())
        faster_ranks = self.computing.drop(rank)
        return rank, float(self.computing[rank] - faster_ranks.mean()) if len(faster_ranks) else 0.0

    def ms(self, seconds: float) -> str:
        """Return the text of seconds of an epoch as milliseconds of a step."""
        return f"{tables.number(1e3 * seconds / self.steps)} ms"


@dataclass(frozen=True)
class Rule:
    """A rule that finds one limit of a cell.

    Attributes:
        limit: What limits the cell, in a few words.
        applies: Whether the cell shows it.
        size: Seconds of an epoch that a remedy can save at most, by run.
        evidence: A sentence with the numbers.
        help: A remedy.
    """

    limit: str
    applies: Callable[[Cell], bool]
    size: Callable[[Cell], pd.Series]
    evidence: Callable[[Cell], str]
    help: Callable[[Cell], str]


def _has_small_messages(cell: Cell) -> bool:
    message_s = (
        cell.mean("moving") / cell.steps / cell.allreduces_per_step if cell.allreduces_per_step else math.nan
    )
    return cell.has_many_messages and message_s < SMALL_MESSAGE_RATIO * cell.latency_s


def _latency_size(cell: Cell) -> pd.Series:
    """Return the latency of all messages except one for each update.

    One message remains, and takes at least one latency.
    """
    saved, kept_s = (
        count * cell.latency_s * cell.steps
        for count in (cell.allreduces_per_step - 1 / cell.every, 1 / cell.every)
    )
    return np.minimum(np.minimum(cell.by_run("exposed_moving"), cell.by_run("moving") - kept_s), saved)


def _is_poorly_overlapped(cell: Cell) -> bool:
    overlappable = min(cell.mean("communication"), cell.mean("backward"))
    return overlappable > 0 and float(cell.hidden.mean()) < MIN_OVERLAP_SHARE * overlappable


def _has_slow_library(cell: Cell) -> bool:
    """Return whether the library is slow.

    If a step has a single all-reduce, its time can include waiting for gradients. Then only exposed time
    counts.
    """
    return (
        cell.mean("moving" if cell.has_many_messages else "exposed_moving")
        > SLOW_LIBRARY_RATIO * cell.best[1]
    )


def _has_slow_rank(cell: Cell) -> bool:
    return len(cell.computing) > 1 and cell.slowest[1] >= MIN_CAUSE_SHARE * float(cell.others_wait.mean())


def _waits_in_turn(cell: Cell) -> bool:
    """Return whether every rank waits; a rank that always starts last never waits."""
    return (
        len(cell.waiting) > 1
        and not _has_slow_rank(cell)
        and float(cell.waiting.min()) >= MIN_CAUSE_SHARE * float(cell.waiting.mean())
    )


def _faster_computation_help(cell: Cell) -> str:
    """Return a remedy that shortens computation."""
    if cell.framework is None or cell.framework.distributed or cell.framework.mirrored:
        return (
            "faster or more processors for each rank; more ranks, while communication stays short compared "
            "with computation"
        )
    return "faster or more processors; a framework that trains on several ranks"


def _library_help(cell: Cell) -> str:
    why = "cores for the threads of this one, which is slower during computation than in the benchmark"
    return (
        why if cell.best[0] == cell.levels.get("framework") else f"the all-reduce of {cell.best[0]}, or {why}"
    )


def _fewer_allreduces_help(cell: Cell) -> str:
    if cell.accumulates:
        return f"one all-reduce for {ACCUMULATION_STEPS} accumulated batches (sync_every), or larger batches"
    return f"larger batches (the estimate is for batches {ACCUMULATION_STEPS} times as large)"


def _equal_ranks_help(cell: Cell) -> str:
    """Return a remedy for ranks that end at different times."""
    equal = "equal ranks: the same processors, cores and load"
    if cell.framework is not None and cell.framework.heterogeneous:
        return f"{equal}; or a smaller share of the batch for the slower one (shares: measured)"
    able = [name for name in framework_names() if load_framework(name).heterogeneous]
    return f"{equal}; or shares of the batch by speed, which {' and '.join(able)} can give"


# By how a library groups gradients into messages (`Cell.packs`); "" for all other ways.
OVERLAP_HELP = {
    "buckets": (
        "buckets that are sent during the backward pass (a smaller first bucket), or a core for its "
        "communication threads"
    ),
    "fusion": (
        "a shorter cycle, so that gradients are sent earlier (HOROVOD_CYCLE_TIME), or a core for its "
        "communication thread"
    ),
    "ends": "a framework that sends gradients during the backward pass; this one computes all of them first",
    "": "a core for communication, or a framework that sends gradients during the backward pass",
}
LARGER_MESSAGES_HELP = {
    "buckets": "larger buckets (DDP's bucket_cap_mb)",
    "fusion": "a longer cycle, so that more gradients are fused into one message (HOROVOD_CYCLE_TIME)",
    "": "more parameters or gradients in a message, or a framework that does so",
}


def _computation_evidence(cell: Cell) -> str:
    names = [name for name in cell.runs if name in cells.PHASES and name not in (WAIT, "data")]
    longest = max(names, key=cell.mean, default="")
    return (
        f"Computation takes {cell.ms(cell.computed.mean())} of a step of {cell.ms(cell.mean(STEP))}; its "
        f"longest phase is {cells.PHASES.get(longest, 'one phase')}."
    )


def _library_evidence(cell: Cell) -> str:
    library, seconds = cell.best
    moves = f"Bytes move for {cell.ms(cell.mean('moving'))} of a step; "
    if not cell.has_many_messages:
        moves = f"Bytes move for {cell.ms(cell.mean('exposed_moving'))} of a step without overlap; "
    return f"{moves}in the benchmark, the same messages take {cell.ms(seconds)} in the library of {library}."


def _overlap_evidence(cell: Cell) -> str:
    return (
        f"Of {cell.ms(cell.mean('communication'))} of communication, {cell.ms(cell.hidden.mean())} are "
        f"overlapped; the backward pass, which could overlap it, takes {cell.ms(cell.mean('backward'))}. The "
        f"first all-reduce starts {cell.ms(cell.mean('until_first'))} into the step."
    )


def _latency_evidence(cell: Cell) -> str:
    return (
        f"{tables.number(cell.allreduces_per_step)} all-reduces in a step move for "
        f"{cell.ms(cell.mean('moving') / cell.allreduces_per_step)} each, less than {SMALL_MESSAGE_RATIO:g} "
        f"times the {tables.number(1e3 * cell.latency_s)} ms that the smallest message takes in the "
        "benchmark."
    )


def _waiting_evidence(cell: Cell) -> str:
    waiting = cell.ms(cell.mean("exposed_waiting"))
    return f"Ranks wait {waiting} of a step for the last one to start an all-reduce"


def _turns_evidence(cell: Cell) -> str:
    rank, longer = cell.slowest
    return (
        f"{_waiting_evidence(cell)}, and none is always the last: each waits "
        f"{cell.ms(float(cell.waiting.min()))} or more. The slowest, {rank}, computes only {cell.ms(longer)} "
        "longer than the others."
    )


RULES = (
    Rule(
        "computation",
        lambda cell: cell.is_complete and float(cell.computed.mean()) > cell.mean(WAIT),
        lambda cell: cell.computed,
        _computation_evidence,
        _faster_computation_help,
    ),
    Rule(
        "communication longer than computation",
        lambda cell: cell.mean("exposed") > float(cell.busy.mean()),
        lambda cell: cell.by_run("exposed"),
        lambda cell: (
            f"Exposed communication takes {cell.ms(cell.mean('exposed'))} of a step, computation only "
            f"{cell.ms(cell.busy.mean())}."
        ),
        lambda _: "fewer ranks, or more work for each: a larger batch",
    ),
    Rule(
        "slow all-reduce",
        _has_slow_library,
        lambda cell: np.minimum(cell.by_run("exposed_moving"), cell.by_run("moving") - cell.best[1]),
        _library_evidence,
        _library_help,
    ),
    Rule(
        "frequent all-reduces",
        lambda cell: cell.allreduces_per_step > 0 and cell.every < ACCUMULATION_STEPS,
        lambda cell: cell.by_run("exposed_moving") * (1 - cell.every / ACCUMULATION_STEPS),
        lambda cell: (
            f"There is an all-reduce every {'batch' if cell.every <= 1 else f'{cell.every:g} batches'}; "
            f"bytes move for {cell.ms(cell.mean('exposed_moving'))} of a step without overlap."
        ),
        _fewer_allreduces_help,
    ),
    Rule(
        "communication after computation, not overlapped",
        _is_poorly_overlapped,
        lambda cell: np.minimum(
            cell.by_run("exposed_moving"), (cell.by_run("backward") - cell.hidden).clip(lower=0)
        ),
        _overlap_evidence,
        lambda cell: OVERLAP_HELP.get(cell.packs, OVERLAP_HELP[""]),
    ),
    Rule(
        "many small messages",
        _has_small_messages,
        _latency_size,
        _latency_evidence,
        lambda cell: LARGER_MESSAGES_HELP.get(cell.packs, LARGER_MESSAGES_HELP[""]),
    ),
    Rule(
        "a slower rank",
        _has_slow_rank,
        lambda cell: cell.others_wait.clip(upper=cell.slowest[1]),  # longer waiting has other causes, too
        lambda cell: (
            f"{_waiting_evidence(cell)}; rank {cell.slowest[0]} computes {cell.ms(cell.slowest[1])} longer "
            "than the others."
        ),
        _equal_ranks_help,
    ),
    Rule(
        "ranks wait for each other in turn",
        _waits_in_turn,
        lambda cell: cell.by_run("exposed_waiting"),
        _turns_evidence,
        lambda _: (
            "less noise: ranks bound to cores, no other programs; fewer all-reduces, over which it "
            "averages out"
        ),
    ),
    Rule(
        "computation slower than on one rank",
        lambda cell: cell.is_complete and not math.isnan(cell.alone_s),
        lambda cell: cell.busy - cell.alone_s,
        lambda cell: (
            f"The same batch takes {cell.ms(cell.busy.mean())} of computation here and "
            f"{cell.ms(cell.alone_s)} on one rank: ranks share caches, memory or cores, or communication "
            "takes cores from them."
        ),
        lambda _: "ranks bound to cores of their own, fewer ranks on a machine, a core for communication",
    ),
    Rule(
        "input",
        lambda _: True,
        lambda cell: cell.by_run("data"),
        lambda cell: f"A step waits {cell.ms(cell.mean('data'))} for its batch.",
        lambda _: "more cores for preparing batches, data in memory, less augmentation",
    ),
)


def describe_cells(measured: Measured, network: pd.DataFrame) -> dict[str, Cell]:
    """Return cell -> its measurements, in the order of tables; `network` is empty without a benchmark."""
    if not measured.order:
        return {}
    seconds = (
        measured.wide("step")
        .join(measured.wide("communication").drop(columns=STEP, errors="ignore"), how="left")
        .fillna(0.0)
    )
    counts = measured.wide("communication", "count").get("communication", pd.Series(dtype=float))
    baselines, ok = one_device_cells_by_local_batch(measured.runs), measured.ok.set_index("run_id")
    step_s = measured.wide("step", "step_s")
    busy = (step_s[STEP] - step_s.get(WAIT, 0.0)).groupby(measured.cell_of.reindex(step_s.index)).mean()
    at_steps, at_communication = (measured.current["scope"] == scope for scope in ("step", "communication"))
    ranks = _by_rank(measured, at_steps & (measured.current["phase"] != WAIT))
    waiting = _by_rank(measured, at_communication & (measured.current["phase"] == "exposed_waiting"))
    described = {}
    for cell in measured.order:
        run_ids = [run for run in seconds.index if measured.cell_of.get(run) == cell]
        if not run_ids:
            continue
        row, steps = ok.loc[run_ids[0]], float(ok.loc[run_ids, "steps"].astype(float).mean())
        allreduces_per_step = (
            float(counts.reindex(run_ids).fillna(0.0).mean()) if row["n_devices"] > 1 else 0.0
        )
        baseline_cell = baselines.get(cell) if row["n_devices"] > 1 else None
        latency, others_s = _benchmark_times(row, network, allreduces_per_step, steps)
        cell_runs = seconds.loc[
            run_ids, [name for name in seconds if row["n_devices"] > 1 or name not in COMMUNICATION_PARTS]
        ]
        described[cell] = Cell(
            cell_runs,
            ranks[cell],
            steps * float(busy.get(baseline_cell, math.nan)),
            allreduces_per_step,
            latency,
            others_s,
            steps,
            float(row["sync_every"]),
            waiting[cell] if cell in waiting and row["n_devices"] > 1 else pd.Series(dtype=float),
            row.to_dict(),
        )
    return described


def _by_rank(measured: Measured, selected: pd.Series) -> dict[str, pd.Series]:
    """Return, by cell, the seconds of an epoch of the selected rows by rank, mean over runs."""
    rows = measured.current[selected]
    of_run = rows.groupby(["cell", "run_id", "rank"])["seconds"].sum()
    return {str(cell): seconds.groupby("rank").mean() for cell, seconds in of_run.groupby(level="cell")}


def _benchmark_times(
    row: pd.Series, network: pd.DataFrame, allreduces_per_step: float, steps: float
) -> tuple[float, dict[str, float]]:
    """Return the time of the smallest message, and the time of an epoch's messages by framework, in s.

    The first is that of the cell's framework. The second has all frameworks that were benchmarked on the
    cell's nodes and links.
    """
    benchmarks = network
    for name in (*(name for name in BENCHMARK_COLUMNS if name != "framework"), "ranks"):
        benchmarks = benchmarks[benchmarks[name] == row[name]]
    of_framework = benchmarks[benchmarks["framework"] == row["framework"]]
    smallest = float(of_framework["bytes"].min()) if of_framework["bytes"].notna().any() else math.nan
    latency = all_reduce_s(of_framework, smallest).value if len(of_framework) else math.nan
    if not allreduces_per_step:
        return latency, {}
    size = gradient_bytes(row["model"], row["dataset"], row) / (
        allreduces_per_step * float(row["sync_every"])
    )
    seconds = {
        str(name): allreduces_per_step * steps * all_reduce_s(points, size).value
        for name, points in benchmarks.groupby("framework")
    }
    return latency, {name: value for name, value in seconds.items() if not math.isnan(value)}


def applicable_rules(cell: Cell) -> Iterator[tuple[Rule, Estimate]]:
    """Yield the rules that apply to a cell and their sizes, the largest first."""
    min_seconds = MIN_SHARE * cell.mean(STEP)
    sizes = [
        (rule, intervals.mean(np.minimum(rule.size(cell), cell.by_run(STEP)).to_numpy(float), minimum=0.0))
        for rule in RULES
        if rule.applies(cell)
    ]
    large = [(rule, size) for rule, size in sizes if size.value >= min_seconds]
    yield from sorted(large, key=lambda entry: -entry[1].value)


def summarize(measured: Measured, network: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each cell and limit, the largest of a cell first."""
    rows = []
    for name, cell in describe_cells(measured, network).items():
        for place, (rule, size) in enumerate(applicable_rules(cell), start=1):
            rows.append(
                {
                    "cell": name,
                    "place": place,
                    "limit": rule.limit,
                    "n": size.n,
                    **columns("seconds", size),
                    "share": size.value / cell.mean(STEP),
                    "evidence": rule.evidence(cell),
                    "help": rule.help(cell),
                }
            )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", "limit"])


def table(measured: Measured, network: pd.DataFrame) -> tables.Table:
    """Return the table of bottlenecks; `network` is network.csv."""
    data = summarize(measured, network)
    described = describe_cells(measured, network)
    incomplete = conditions.join_names([name for name, cell in described.items() if not cell.is_complete])
    if data.empty:
        return cells.empty_table(TITLE, measured)
    texts = {
        "limit": data["limit"],
        "seconds of an epoch": tables.interval_texts(data, "seconds"),
        "of the steps (%)": [tables.percent(share) for share in data["share"]],
        "evidence": data["evidence"],
        "what would help": data["help"],
    }
    notes = [
        SIZES,
        THRESHOLDS,
        f"Communication was not traced, so computation includes waiting: {incomplete}." if incomplete else "",
        "" if len(network) else NO_BENCHMARK,
    ]
    left_aligned = ["limit", "evidence", "what would help"]
    remark = "The interval is in brackets."
    return cells.cell_table(TITLE, measured, data, remark, texts, notes, left_aligned)
