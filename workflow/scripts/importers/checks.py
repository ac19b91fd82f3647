"""Check measurements before they become a campaign. Each finding has a code; ``--accept CODE`` goes on.

Limits come from 2,357 public runs on GPUs (DLPerf, NVIDIA DeepLearningExamples, MPT, MLPerf Training v1.0 to
v5.1) and from vTrain's 1,440 computed step times. tests/unit/importers/test_checks.py has what each check
says of extracts of them.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from common.text import number_of
from importers.cells import Run
from importers.measurement import Finding
from models.operations import parameter_operations
from training_logs.log import decimal

# Step times of these sources are 0.037 to 79 s, and 2.7 ms of a recommender: ten times less, four times more.
PLAUSIBLE_STEP_S = (2e-4, 300.0)
# 6 x parameters x tokens / s of each device (Kaplan et al. 2020, section 2.1): 5.7e12 to 4.2e14 on V100 to
# H100. The limits lie between these and a thousandth, or a thousand times, of them.
PLAUSIBLE_TOKEN_FLOPS = (1e12, 2.5e15)
# 6 x parameters x samples / s: 2.3e10 to 1.2e12; likewise. Convolutions use a parameter many times a sample.
PLAUSIBLE_SAMPLE_FLOPS = (5e9, 5e12)
MAX_RATE_RATIO = 1.5  # between a step's time and that by throughput and batch, both of a row
CLOCK_FACTOR = 10.0  # between times of steps and clocks of the same log
# Relative distance from a straight line: 1e-15 in all 288 series of vTrain's computed times. Measured runs
# spread by 1.4e-4 and more.
EXACT_TOLERANCE = 1e-5
MIN_EXACT_FREEDOM = 3  # degrees of freedom over all lines
# Throughput of a device below that of fewer and of more devices, or above both. Of 148 inner places of the
# public series, 145 are within 3 %; the others, of MLPerf systems of several sites in one series, are at 6 to
# 8 %.
OFF_CURVE = 0.05
STANDARD_ERRORS = 3.0
# Of batch x accumulation x replicas against the global batch. None of 530 public rows is off.
STEP_COUNT_TOLERANCE = 1e-3
REPEATED = "same-run-twice"
# Equal rows count as runs that stand twice if there are so many. By chance, DLPerf's 289 runs have two; its
# report has four of 124, since a series stands twice there. Times of few digits are equal more often.
MIN_EQUAL_ROWS, MIN_EQUAL_SHARE, MIN_DIGITS = 3, 0.02, 5
LATTICE_R2 = 0.9  # of time to train by number of evaluations; the median of MLPerf's cells is 0.996
MIN_LATTICE_RUNS = 5
RATES = ("seconds", "epoch_s", "run_s", "samples_per_s", "tokens_per_s", "device_tokens_per_s")
TIMES = ("seconds", "epoch_s", "run_s", "samples_per_s")
CONDITIONS = ("device", "sequence_length", "parameters", "samples_per_epoch", "context_parallel")
MAX_NAMED = 4


def find_all(runs: Sequence[Run], time: str) -> list[Finding]:
    """Return what all checks find, in the order of the checks."""
    ok_runs = [run for run in runs if run.seconds]
    checks: tuple[Callable[[Sequence[Run]], Iterable[Finding]], ...] = (
        implausible_units,
        repeated_runs,
        exact_times,
        wrong_step_counts,
        changed_parallelism,
        mixed_cells,
        places_off_curve,
    )
    findings = [finding for check in checks for finding in check(ok_runs)]
    return findings + (list(lattice_times(ok_runs)) if time == "run" else [])


def implausible_units(runs: Sequence[Run]) -> Iterable[Finding]:
    """Find step times that have another unit: by the clocks of the log, arithmetic a second, or alone."""
    doubtful: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if reason := _unit_problem(run):
            doubtful[reason].append(run)
    for reason, doubtful_runs in doubtful.items():
        times = sorted(run.seconds or 0.0 for run in doubtful_runs)
        texts = dict.fromkeys(f"{seconds:.3g}" for seconds in (times[0], times[-1]))
        yield Finding(
            "implausible-unit",
            _named([run.measurement.place for run in doubtful_runs]),
            reason.format(" to ".join(texts)),
            "state the unit: --unit ms; or check parameters, batch and sequence length",
        )


def _unit_problem(run: Run) -> str | None:
    """Return why the step time of a run cannot be right, with {} for the time; None if it can."""
    seconds = run.seconds or 0.0
    if run.is_to_target:
        return None
    clocked = [step for step in run.measurement.steps if step.started_at is not None]
    ratios = [
        (later.started_at - earlier.started_at) / (earlier.seconds * earlier.n_steps)  # type: ignore[operator]
        for earlier, later in pairwise(clocked)
        if earlier.segment == later.segment
    ]
    if len(ratios) > 2 and not 1 / CLOCK_FACTOR < (ratio := statistics.median(ratios)) < CLOCK_FACTOR:
        return f"clocks say that steps take {ratio:.0e} times as long as their times"
    values = run.measurement.values
    for rate in _samples_rates(run) if "seconds" in values else ():
        ratio = run.effective_batch / (rate * seconds)
        if not 1 / MAX_RATE_RATIO < ratio < MAX_RATE_RATIO:
            return f"throughput and batch say that a step takes {ratio:.2g} times as long as its time"
    parameters = values.get("parameters")
    if parameters and run.levels["device"] != "cpu":
        sequence = values.get("sequence_length")
        operations = parameter_operations(parameters, sequence or 1).model
        rate = operations * run.effective_batch / (seconds * run.devices)
        low, high = PLAUSIBLE_TOKEN_FLOPS if sequence else PLAUSIBLE_SAMPLE_FLOPS
        if not low <= rate <= high:
            size = "small" if rate < low else "large"
            return f"steps of about {{}} s are {rate:.0e} FLOP/s of a device, which is too {size}"
    low, high = PLAUSIBLE_STEP_S
    return None if low <= seconds <= high else "a step takes about {} s"


def _samples_rates(run: Run) -> list[float]:
    """Return samples/s of all devices by each throughput in a file."""
    values = run.measurement.values
    tokens = values.get("sequence_length")
    scales = {"samples_per_s": 1.0}
    if tokens:
        scales |= {"tokens_per_s": 1 / tokens, "device_tokens_per_s": run.devices / tokens}
    return [values[name] * scale for name, scale in scales.items() if name in values]


def repeated_runs(runs: Sequence[Run]) -> Iterable[Finding]:
    """Find duplicate runs: with the same begin, the same two or more times, or equal rows."""
    repeated = [group for group in _by_identity(runs) if len(group) > 1]
    if repeated:
        n_extra = sum(len(group) - 1 for group in repeated)
        yield Finding(
            REPEATED,
            _named([" and ".join(run.measurement.place for run in group[:2]) for group in repeated]),
            f"{number_of(n_extra, 'run')} stand twice, with the same begin or the same times",
            "leave the later ones out",
        )


def without_repetitions(runs: Sequence[Run]) -> list[Run]:
    """Return runs in their order without later duplicates."""
    first_ids = {id(group[0]) for group in _by_identity(runs)}
    return [run for run in runs if id(run) in first_ids]


def _by_identity(runs: Sequence[Run]) -> list[list[Run]]:
    """Return groups of runs that are one, as far as their files say it."""
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for number, run in enumerate(runs):
        values, steps = run.measurement.values, run.measurement.steps
        times = tuple(values[name] for name in TIMES if name in values)
        identity: tuple[Any, ...] = (number,)
        if len(steps) > 2:
            identity = ("steps", *(step.seconds for step in steps))
        elif "started_at" in values:
            identity = ("begin", values["started_at"], run.devices, *times)
        elif len(times) > 1:
            identity = ("times", run.devices, *times)
        groups[identity].append(run)
    by_row: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for group in groups.values():
        by_row[_row_of(group[0])] += group
    n_extra = len(groups) - len(by_row)
    are_repeated = n_extra >= max(MIN_EQUAL_ROWS, MIN_EQUAL_SHARE * len(runs))
    return list((by_row if are_repeated else groups).values())


def _row_of(run: Run) -> tuple[Any, ...]:
    """Return all values of a run in its file; the run itself, for a log and for times of few digits."""
    digits = [_digits(run.measurement.values[name]) for name in RATES if name in run.measurement.values]
    if run.measurement.steps or max(digits, default=0) < MIN_DIGITS:
        return (id(run),)
    parts = (run.measurement.values, run.measurement.other_columns, run.measurement.custom)
    return tuple(tuple(sorted((name, str(value)) for name, value in part.items())) for part in parts)


def exact_times(runs: Sequence[Run]) -> Iterable[Finding]:
    """Find step times on exact straight lines along one factor: they were computed, not measured."""
    for coordinate in ("accumulation", "batch"):
        lines = [line for line in _lines(runs, coordinate) if len(line) > 2]
        freedom = sum(len(line) - 2 for line in lines)
        worst = max(map(_line_distance, lines), default=math.inf)
        if freedom >= MIN_EXACT_FREEDOM and worst < EXACT_TOLERANCE:
            yield Finding(
                "too-exact",
                _named([line[0][2] for line in lines]),
                f"times of {len(lines)} series are on straight lines within {worst:.0e}, while measured ones "
                "spread by 1e-4 and more",
                "import what was measured",
            )
            return


def _lines(runs: Sequence[Run], coordinate: str) -> list[list[tuple[float, float, str]]]:
    """Return x, time and place of the runs of each line: all else is the same, and no place has two runs."""
    lines: dict[Any, dict[float, list[tuple[float, float, str]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        accumulation = run.sync_every * int(run.levels["microbatches"])
        micro = round(run.local_batch / int(run.levels["microbatches"]), 9)
        x, fixed = (accumulation, micro) if coordinate == "accumulation" else (micro, accumulation)
        conditions = tuple(run.measurement.values.get(name) for name in CONDITIONS)
        other_columns = tuple(sorted(run.measurement.other_columns.items()))
        line = (run.series, run.nodes, run.devices, fixed, conditions, other_columns)
        lines[line][x].append((float(x), run.seconds or 0.0, run.measurement.place))
    return [
        [points[0] for points in line.values()]
        for line in lines.values()
        if all(len(points) == 1 for points in line.values())
    ]


def _line_distance(points: Sequence[tuple[float, float, str]]) -> float:
    """Return the largest relative distance of times from a straight line by least squares."""
    slope, intercept = statistics.linear_regression([x for x, _, _ in points], [y for _, y, _ in points])
    return max(abs(intercept + slope * x - y) / y for x, y, _ in points)


def wrong_step_counts(runs: Sequence[Run]) -> Iterable[Finding]:
    """Find rows whose batch, accumulation and replicas are not their global batch."""
    mismatches = []
    for run in runs:
        values = run.measurement.values
        if "local_batch" not in values or "global_batch" not in values:
            continue
        replicas = values.get("data_parallel", run.replicas)
        if values.get("sharded_parallel", 1) > 1:
            replicas = run.replicas
        accumulation = run.sync_every * int(run.levels["microbatches"])
        product = values["local_batch"] * accumulation * replicas
        if abs(product - values["global_batch"]) > STEP_COUNT_TOLERANCE * values["global_batch"]:
            mismatches.append((run.measurement.place, product, values["global_batch"]))
    if mismatches:
        _, product, batch = mismatches[0]
        yield Finding(
            "step-count",
            _named([place for place, _, _ in mismatches]),
            f"batch x accumulation x replicas is {product:g}, the global batch {batch:g}",
            "leave out the column that is wrong, such as --column local_batch=",
        )


def changed_parallelism(runs: Sequence[Run]) -> Iterable[Finding]:
    """Find series in which each number of devices has another parallelism, or devices of another model."""
    series: dict[tuple[Any, ...], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    context: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for run in runs:
        name = tuple(pair for pair in run.series if pair[0] != "parallelism")
        label = str(run.levels["parallelism"])
        if (size := run.measurement.values.get("context_parallel", 1)) > 1:
            label += f" with context {size}"
        if device := run.measurement.values.get("device"):
            label += f" of {device}"
        series[name][label].add(run.devices)
        context[name].append(run.measurement.place)
    for name, devices in series.items():
        counts = Counter(count for shared in devices.values() for count in shared)
        if len(devices) > 1 and len(counts) > 1 and max(counts.values()) == 1:
            levels = dict(name)
            series_name = f"{levels['framework']} and {levels['model']}"
            counts_text = "; ".join(
                f"{label} on {sorted(counts)}" for label, counts in sorted(devices.items())
            )
            yield Finding(
                "parallelism-changes",
                _named(context[name]),
                f"along {series_name} the parallelism or the model of the devices changes: {counts_text}",
                "import one parallelism: --rows COLUMN=TEXT",
            )


def mixed_cells(runs: Sequence[Run]) -> Iterable[Finding]:
    """Find columns of words, and values that are no factors, that differ between runs of one cell."""
    texts: dict[str, dict[tuple[Any, ...], set[str]]] = defaultdict(lambda: defaultdict(set))
    for run in runs:
        cell = (*run.series, run.nodes, run.devices, run.effective_batch, run.sync_every)
        for column, text in run.measurement.other_columns.items():
            if text and decimal(text) is None:
                texts[column][cell].add(text)
        for name in CONDITIONS:
            if name in run.measurement.values:
                texts[name][cell].add(str(run.measurement.values[name]))
    for column, cells in texts.items():
        mixed = [texts for texts in cells.values() if len(texts) > 1]
        if mixed:
            words = ", ".join(sorted(mixed[0])[:MAX_NAMED])
            yield Finding(
                "mixed-cell",
                column if column in CONDITIONS else f"column {column}",
                f"runs that count as replicates differ in it: {words}",
                f"make it a factor: --factor NAME={column}; or choose: --rows COLUMN=TEXT",
            )


def places_off_curve(runs: Sequence[Run]) -> Iterable[Finding]:
    """Find numbers of devices whose throughput of a device is outside of both neighbours'."""
    series: dict[tuple[Any, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    places: dict[tuple[tuple[Any, ...], int], str] = {}
    for run in runs:
        for name in (("local", round(run.local_batch, 9)), ("global", run.effective_batch)):
            rate = math.log(run.effective_batch / ((run.seconds or 1.0) * run.devices))
            series[(*run.series, name)][run.devices].append(rate)
            places.setdefault(((*run.series, name), run.devices), run.measurement.place)
    seen = set()
    for name, rates in series.items():
        devices = sorted(rates)
        for before, middle, after in zip(devices, devices[1:], devices[2:], strict=False):
            distance, limit = _off_neighbours(rates[before], rates[middle], rates[after])
            place = places[name, middle]
            if abs(distance) > limit and place not in seen:
                seen.add(place)
                change = math.expm1(distance)
                yield Finding(
                    "off-curve",
                    place,
                    f"of {middle} devices, each trains {abs(change):.0%} {'more' if change > 0 else 'fewer'} "
                    f"samples/s than of {before} and of {after} devices",
                    "check batch, accumulation and unit of this place",
                )


def _off_neighbours(
    before: Sequence[float], middle: Sequence[float], after: Sequence[float]
) -> tuple[float, float]:
    """Return how far the middle is outside of its neighbours (logarithm), and the limit of that."""
    groups = (before, middle, after)
    first, inner, last = map(statistics.median, groups)
    distance = min(inner - min(first, last), 0.0) + max(inner - max(first, last), 0.0)
    spreads = [statistics.variance(group) / len(group) for group in groups if len(group) > 1]
    return distance, max(OFF_CURVE, STANDARD_ERRORS * math.sqrt(sum(spreads)))


def lattice_times(runs: Sequence[Run]) -> Iterable[Finding]:
    """Find times to train that are a number of evaluations times the time between them."""
    cells: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        evaluations = run.measurement.values.get("evaluations")
        if evaluations:
            cell = (*run.series, run.nodes, run.devices, run.effective_batch)
            cells[cell].append((float(evaluations), run.measurement.values["run_s"]))
    shares = [
        statistics.correlation(*zip(*points, strict=True)) ** 2
        for points in cells.values()
        if len(points) >= MIN_LATTICE_RUNS
        and len({x for x, _ in points}) > 1
        and len({y for _, y in points}) > 1
    ]
    if shares and (share := statistics.median(shares)) > LATTICE_R2:
        yield Finding(
            "lattice",
            f"{len(shares)} cells",
            f"the number of evaluations explains {share:.1%} of the spread of the time to train",
            "import the time of a step, which has no steps of this kind: --time step",
        )


def _digits(number: float) -> int:
    """Return the number of significant digits of a number as it was written."""
    return len(f"{number:.12g}".partition("e")[0].replace(".", "").strip("0"))


def _named(places: Sequence[str]) -> str:
    rest = len(places) - MAX_NAMED
    return "; ".join(places[:MAX_NAMED]) + (f"; and {rest} more" if rest > 0 else "")
