"""Check measurements before they become a campaign. Each finding has a code, which ``--accept CODE`` accepts.

The limits come from 2,357 public runs on GPUs (DLPerf, NVIDIA DeepLearningExamples, MPT, MLPerf Training v1.0
to v5.1) and from vTrain's 1,440 computed step times. tests/unit/importers/test_checks.py applies each check
to extracts of them.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from common.text import number_of
from importers.cells import ImportedRun
from importers.measurement import Finding
from models.operations import parameter_operations
from training_logs.log import decimal

# Step times in these sources are 0.037 to 79 s, and 2.7 ms for a recommender. The limits are a tenth of the
# shortest and four times the longest.
PLAUSIBLE_STEP_S = (2e-4, 300.0)
# FLOP/s per device, 6 x parameters x tokens/s (Kaplan et al. 2020, section 2.1): 5.7e12 to 4.2e14 on V100 to
# H100. Times in a wrong unit are a factor of 1,000 off, so the limits are between these numbers and that.
PLAUSIBLE_TOKEN_FLOPS = (1e12, 2.5e15)
# The same with samples instead of tokens: 2.3e10 to 1.2e12. The range is wider at the top, since convolutions
# use a parameter many times per sample.
PLAUSIBLE_SAMPLE_FLOPS = (5e9, 5e12)
MAX_RATE_RATIO = 1.5  # between a row's step time and the one by its throughput and batch size
CLOCK_FACTOR = 10.0  # largest ratio between a log's step times and its clocks
# Relative distance from a straight line. It is 1e-15 in all 288 series of vTrain's computed times, and at
# least 1.4e-4 in measured ones.
EXACT_TOLERANCE = 1e-5
MIN_EXACT_FREEDOM = 3  # smallest number of degrees of freedom over all lines
# Relative distance of a throughput per device from those at the next smaller and larger numbers of devices,
# if it is below or above both. Of 148 inner points of public series, 145 are within 3 %. The others, at 6 to
# 8 %, are MLPerf systems of several sites in one series.
OFF_CURVE = 0.05
STANDARD_ERRORS = 3.0  # smallest such distance, in standard errors, with several runs per point
# Relative difference between batch x accumulation x replicas and the global batch; 0 in 530 public rows.
STEP_COUNT_TOLERANCE = 1e-3
REPEATED = "same-run-twice"
# Equal rows are repeated runs only if they are this many. DLPerf's 289 runs have two by chance; its report,
# which contains one series twice, has four in 124. Times with few digits are equal more often.
MIN_EQUAL_ROWS, MIN_EQUAL_SHARE, MIN_DIGITS = 3, 0.02, 5
LATTICE_R2 = 0.9  # of a fit of the time to train by the number of evaluations; 0.996 is MLPerf's median
MIN_LATTICE_RUNS = 5
RATES = ("seconds", "epoch_s", "run_s", "samples_per_s", "tokens_per_s", "device_tokens_per_s")
TIMES = ("seconds", "epoch_s", "run_s", "samples_per_s")
CONDITIONS = ("device", "sequence_length", "parameters", "samples_per_epoch", "context_parallel")
MAX_NAMED = 4


def run_checks(runs: Sequence[ImportedRun], time: str) -> list[Finding]:
    """Return the findings of all checks, in the order of the checks."""
    ok_runs = [run for run in runs if run.seconds]
    checks: tuple[Callable[[Sequence[ImportedRun]], Iterable[Finding]], ...] = (
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


def implausible_units(runs: Sequence[ImportedRun]) -> Iterable[Finding]:
    """Find step times that are probably in another unit, grouped by the reason."""
    doubtful: dict[str, list[ImportedRun]] = defaultdict(list)
    for run in runs:
        if reason := _unit_problem(run):
            doubtful[reason].append(run)
    for reason, doubtful_runs in doubtful.items():
        times = sorted(run.seconds or 0.0 for run in doubtful_runs)
        texts = dict.fromkeys(f"{seconds:.3g}" for seconds in (times[0], times[-1]))
        yield Finding(
            "implausible-unit",
            _join_places([run.measurement.place for run in doubtful_runs]),
            reason.format(" to ".join(texts)),
            "state the unit: --unit ms; or check parameters, batch and sequence length",
        )


def _unit_problem(run: ImportedRun) -> str | None:
    """Return why the step time of a run is implausible, with {} in place of the time, or None.

    The time is compared with a log's clocks, with the throughput in the same row, with the FLOP/s of devices,
    and with the range of usual step times.
    """
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
        return f"by the log's clocks, steps take {ratio:.0e} times as long as their times"
    values = run.measurement.values
    for rate in _samples_rates(run) if "seconds" in values else ():
        ratio = run.effective_batch / (rate * seconds)
        if not 1 / MAX_RATE_RATIO < ratio < MAX_RATE_RATIO:
            return f"by throughput and batch size, a step takes {ratio:.2g} times as long as its time"
    parameters = values.get("parameters")
    if parameters and run.levels["device"] != "cpu":
        sequence = values.get("sequence_length")
        operations = parameter_operations(parameters, sequence or 1).model
        rate = operations * run.effective_batch / (seconds * run.devices)
        low, high = PLAUSIBLE_TOKEN_FLOPS if sequence else PLAUSIBLE_SAMPLE_FLOPS
        if not low <= rate <= high:
            size = "small" if rate < low else "large"
            return f"steps of about {{}} s mean {rate:.0e} FLOP/s per device, which is too {size}"
    low, high = PLAUSIBLE_STEP_S
    return None if low <= seconds <= high else "a step takes about {} s"


def _samples_rates(run: ImportedRun) -> list[float]:
    """Return samples/s of all devices from each throughput of a run."""
    values = run.measurement.values
    tokens = values.get("sequence_length")
    scales = {"samples_per_s": 1.0}
    if tokens:
        scales |= {"tokens_per_s": 1 / tokens, "device_tokens_per_s": run.devices / tokens}
    return [values[name] * scale for name, scale in scales.items() if name in values]


def repeated_runs(runs: Sequence[ImportedRun]) -> Iterable[Finding]:
    """Find repeated runs, which have the same start, several equal times, or equal rows."""
    repeated = [group for group in _by_identity(runs) if len(group) > 1]
    if repeated:
        n_extra = sum(len(group) - 1 for group in repeated)
        yield Finding(
            REPEATED,
            _join_places([" and ".join(run.measurement.place for run in group[:2]) for group in repeated]),
            f"{number_of(n_extra, 'run')} occur twice, with the same start or the same times",
            "leave the later ones out",
        )


def without_repetitions(runs: Sequence[ImportedRun]) -> list[ImportedRun]:
    """Return runs in their order without later duplicates."""
    first_ids = {id(group[0]) for group in _by_identity(runs)}
    return [run for run in runs if id(run) in first_ids]


def _by_identity(runs: Sequence[ImportedRun]) -> list[list[ImportedRun]]:
    """Return groups of rows that are probably the same run.

    Runs are the same if they have equal step times, start and times, or at least two equal times. Equal rows
    count only if there are many of them.
    """
    groups: dict[tuple[Any, ...], list[ImportedRun]] = defaultdict(list)
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
    by_row: dict[tuple[Any, ...], list[ImportedRun]] = defaultdict(list)
    for group in groups.values():
        by_row[_row_of(group[0])] += group
    n_extra = len(groups) - len(by_row)
    are_repeated = n_extra >= max(MIN_EQUAL_ROWS, MIN_EQUAL_SHARE * len(runs))
    return list((by_row if are_repeated else groups).values())


def _row_of(run: ImportedRun) -> tuple[Any, ...]:
    """Return all values of a run's row; a unique key for a log and for times of few digits."""
    digits = [_digits(run.measurement.values[name]) for name in RATES if name in run.measurement.values]
    if run.measurement.steps or max(digits, default=0) < MIN_DIGITS:
        return (id(run),)
    parts = (run.measurement.values, run.measurement.other_columns, run.measurement.custom)
    return tuple(tuple(sorted((name, str(value)) for name, value in part.items())) for part in parts)


def exact_times(runs: Sequence[ImportedRun]) -> Iterable[Finding]:
    """Find step times on exact straight lines along one factor, which were computed and not measured."""
    for coordinate in ("accumulation", "batch"):
        lines = [line for line in _lines(runs, coordinate) if len(line) > 2]
        freedom = sum(len(line) - 2 for line in lines)
        worst = max(map(_line_distance, lines), default=math.inf)
        if freedom >= MIN_EXACT_FREEDOM and worst < EXACT_TOLERANCE:
            yield Finding(
                "too-exact",
                _join_places([line[0][2] for line in lines]),
                f"times of {len(lines)} series are on straight lines within {worst:.0e}, but measured times "
                "spread by at least 1e-4",
                "import measured times",
            )
            return


def _lines(runs: Sequence[ImportedRun], coordinate: str) -> list[list[tuple[float, float, str]]]:
    """Return x, time and place of the runs on each line.

    Only the coordinate x differs between the runs of a line. Lines with two runs at one x are left out.
    """
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


def wrong_step_counts(runs: Sequence[ImportedRun]) -> Iterable[Finding]:
    """Find rows whose global batch is not the product of local batch, accumulation steps and replicas."""
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
            _join_places([place for place, _, _ in mismatches]),
            f"batch x accumulation x replicas is {product:g}, the global batch {batch:g}",
            "leave out the wrong column, such as --column local_batch=",
        )


def changed_parallelism(runs: Sequence[ImportedRun]) -> Iterable[Finding]:
    """Find scaling series in which parallelism or device model change with the number of devices."""
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
                _join_places(context[name]),
                f"in the series {series_name}, parallelism or device model change: {counts_text}",
                "import one parallelism: --rows COLUMN=TEXT",
            )


def mixed_cells(runs: Sequence[ImportedRun]) -> Iterable[Finding]:
    """Find unused columns of words, and conditions, that differ between runs of one cell."""
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
                f"runs that count as replicates have different values: {words}",
                f"make it a factor: --factor NAME={column}; or choose: --rows COLUMN=TEXT",
            )


def places_off_curve(runs: Sequence[ImportedRun]) -> Iterable[Finding]:
    """Find numbers of devices with a throughput per device far below or above both neighbours."""
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
                    f"each of {middle} devices trains {abs(change):.0%} {'more' if change > 0 else 'fewer'} "
                    f"samples/s than each of {before} or {after} devices",
                    "check batch size, accumulation and unit of these runs",
                )


def _off_neighbours(
    before: Sequence[float], middle: Sequence[float], after: Sequence[float]
) -> tuple[float, float]:
    """Return how far the middle's median is outside its neighbours' (logarithm), and the limit of that."""
    groups = (before, middle, after)
    first, inner, last = map(statistics.median, groups)
    distance = min(inner - min(first, last), 0.0) + max(inner - max(first, last), 0.0)
    spreads = [statistics.variance(group) / len(group) for group in groups if len(group) > 1]
    return distance, max(OFF_CURVE, STANDARD_ERRORS * math.sqrt(sum(spreads)))


def lattice_times(runs: Sequence[ImportedRun]) -> Iterable[Finding]:
    """Find times to train that are multiples of the time between two evaluations."""
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
            "import step times instead, which do not depend on it: --time step",
        )


def _digits(number: float) -> int:
    """Return the number of significant digits of a number."""
    return len(f"{number:.12g}".partition("e")[0].replace(".", "").strip("0"))


def _join_places(places: Sequence[str]) -> str:
    rest = len(places) - MAX_NAMED
    return "; ".join(places[:MAX_NAMED]) + (f"; and {rest} more" if rest > 0 else "")
