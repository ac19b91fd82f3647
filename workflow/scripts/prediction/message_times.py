"""The time of a collective by message size, nodes and link rate, fitted to the collective benchmark.

    latency = start + round x g(p)
    link = leaves(N, p / N) x bytes x link / rate          processors = sent(p) x bytes x cost

with p ranks on N nodes; for all-reduce, leaves and sent are 2 (N - 1) / N and 2 (p - 1) / p
(models.collectives has the other collectives). g, the number of rounds, is p - 1 for a ring and log2 p for a
tree (Thakur, Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19, 2005, section 4.5), and constant
for point-to-point messages. 1 / link is the share of the rate that messages reach. Here, a scale includes
the rate of the links: it is a number of nodes, of ranks, and a rate.

The fit chooses how latency, link and processors make up the time of a message, and tries in this order:
latency plus the larger of the others (parts of a message are processed while others travel); the sum of all;
the largest of the three (small messages wait for processors that are idle with large ones). Only different
link rates separate link from processors: with one known rate all bytes take link time, without a rate all
take CPU time.

Libraries treat messages of different sizes differently. A factor by size, measurement over model, corrects
for it. A scale that was measured has its own factors, others have the geometric mean of all scales.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from common.tables import read_table
from declared.frameworks import CommunicationKeys, framework_names, load_framework
from models.collectives import ALL_REDUCE, COLLECTIVES, POINT_TO_POINT
from models.graph import BYTES, Graph, is_trained
from network.fit import valid_repetitions

FrameworkDevice = tuple[str, str]

RING, TREE, NEIGHBOURS = "ring", "tree", "neighbours"
GROWTH: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    RING: lambda p: p - 1.0, TREE: np.log2, NEIGHBOURS: np.ones_like
}  # fmt: skip
# The fit ignores messages that are more than this many times as large as the largest predicted one, because
# times are not linear in size over a wide range.
MAX_SIZE_RATIO = 4
PIPELINED, SUM, LARGEST = "pipelined", "sum", "largest"
MAX_ITERATIONS = 8
SCALE_COLUMNS = ["nodes", "ranks", "link_bytes_s"]
MIN_MISFIT_REDUCTION = 0.05  # A mode replaces the default if it reduces the misfit by this share.
MIN_TIME_S = 1e-12
MISFIT_TOLERANCE = 1e-6
# Smallest time on the link, relative to its full rate, that a fit may have. Short bursts can exceed the rate.
MIN_LINK_TIME = 0.95


@dataclass(frozen=True)
class MessageTimeModel:
    """The fitted time of one collective by message size and scale.

    Attributes:
        algorithm: A key of GROWTH.
        mode: PIPELINED, SUM or LARGEST: how latency, link and processors make up the time.
        start_s: Latency of a collective in seconds.
        round_latency_s: Latency of each round of the algorithm in seconds.
        link: Time on the link relative to its full rate.
        cost_s: CPU time per byte in seconds.
        log_sizes: Logarithms of the measured sizes in bytes, [sizes].
        factors: Correction by size, [scales + 1, sizes]; the last row is for scales that were not measured.
        scales: (nodes, ranks, rate) of the rows of `factors`; a rate of 0 is unknown.
        misfit: Standard deviation of log(measured / model) about the factor by size; NaN with one scale.
        collective: The name of the collective.
    """

    algorithm: str
    mode: str
    start_s: float
    round_latency_s: float
    link: float
    cost_s: float
    log_sizes: np.ndarray = field(default_factory=lambda: np.zeros(2))
    factors: np.ndarray = field(default_factory=lambda: np.ones((1, 2)))
    scales: tuple[tuple[float, ...], ...] = ()
    misfit: float = np.nan
    collective: str = ALL_REDUCE

    def for_extrapolation(self) -> "MessageTimeModel":
        """Return the model for scales and links that were not measured.

        Measured scales lose their own factors, so that curves over nodes are smooth. If no time was fitted to
        the link, for example because its rate is unknown, bytes take at least their time at its full rate.
        """
        return replace(self, link=self.link or 1.0, scales=(), factors=self.factors[-1:])

    def times(
        self, size: np.ndarray, nodes: np.ndarray, ranks: np.ndarray, rate: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of a message, and the part that its bytes take, [n] each.

        `size` is in bytes, `rate` in bytes/s, NaN for an unlimited link. Times of unknown sizes are NaN.
        """
        terms = message_terms(np.ones(len(size)), nodes, ranks, rate, self.algorithm, self.collective)
        terms = terms * [self.start_s, self.round_latency_s, self.link, self.cost_s]
        terms[:, 2:] *= size[:, None]
        row_of_scale = {scale: row for row, scale in enumerate(self.scales)}
        row = [row_of_scale.get(scale, -1) for scale in zip(nodes, ranks, np.nan_to_num(rate), strict=True)]
        position = np.interp(np.log(np.maximum(size, 1)), self.log_sizes, np.arange(len(self.log_sizes)))
        left = np.minimum(np.nan_to_num(position).astype(int), len(self.log_sizes) - 2)
        weight = position - left
        factor = (1 - weight) * self.factors[row, left] + weight * self.factors[row, left + 1]
        seconds = message_time(terms, self.mode) * factor
        return seconds, np.minimum(bytes_time(terms, self.mode), seconds)


def bytes_time(columns: np.ndarray, mode: str) -> np.ndarray:
    """Return the time that the bytes take, [n, 4] -> [n]."""
    return columns[:, 2:].sum(axis=1) if mode == SUM else columns[:, 2:].max(axis=1)


def message_time(columns: np.ndarray, mode: str) -> np.ndarray:
    """Return the time of a message from its terms, [n, 4] -> [n]."""
    latency = np.maximum(columns[:, :2].sum(axis=1), 0.0)
    return (
        np.maximum(latency, bytes_time(columns, mode))
        if mode == LARGEST
        else latency + bytes_time(columns, mode)
    )


def message_terms(
    size: np.ndarray,
    nodes: np.ndarray,
    ranks: np.ndarray,
    rate: np.ndarray,
    algorithm: str,
    collective: str = ALL_REDUCE,
) -> np.ndarray:
    """Return what start, round, link and cost are multiplied by, [n, 4]; zeros for one rank."""
    size, nodes, ranks, rate = (np.asarray(x, float) for x in (size, nodes, ranks, rate))
    per_rate, shape, distributed = np.nan_to_num(1 / rate), COLLECTIVES[collective], ranks > 1
    per_node, per_rank = shape.leaves(nodes, ranks / nodes) * (nodes > 1), shape.sent(ranks) * distributed
    rounds = GROWTH[algorithm](ranks) * distributed
    return np.column_stack([distributed, rounds, per_node * size * per_rate, per_rank * size])


def benchmark_points(network: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each collective, framework, device, scale and size of network.csv.

    `seconds` is the median of each benchmark round, averaged over rounds. An unknown rate is NaN.
    """
    keys = ["collective", "framework", "device", *SCALE_COLUMNS, "bytes"]
    ok = valid_repetitions(network)
    rounds = ok.fillna({"device": "site"}).groupby([*keys, "round"], dropna=False)["seconds"].median()
    points = rounds.groupby(level=keys, dropna=False).mean().reset_index()
    return points.astype(dict.fromkeys(keys[3:], float))


def fit_message_times(benchmarks: pd.DataFrame, largest_bytes: float = np.inf) -> MessageTimeModel | None:
    """Return the times of one collective of one framework and device, or None without two message sizes.

    A later mode or algorithm replaces an earlier one only if it reduces the misfit by MIN_MISFIT_REDUCTION,
    and SUM only if it stays within the link rate (MIN_LINK_TIME). A tree is tried only with three numbers of
    ranks or more, because two cannot tell it from a ring.

    Args:
        benchmarks: Points of `benchmark_points`.
        largest_bytes: Size of the largest message that will be predicted.
    """
    used = benchmarks[
        benchmarks["bytes"]
        <= max(MAX_SIZE_RATIO * largest_bytes, np.sort(benchmarks["bytes"].unique())[:2].max(initial=0))
    ]
    if used["bytes"].nunique() < 2:
        return None
    rate = used["link_bytes_s"].fillna(np.inf).to_numpy()
    limited = [rate <= fastest for fastest in np.unique(rate)[::-1]]
    has_rates = len(limited) > 1
    # Each split has the points whose bytes take link time, and those whose bytes take CPU time. Links up to
    # some rate are slower than the processors.
    splits = [(link, ~link | np.isinf(rate)) for link in [*limited, *[rate < 0] * has_rates]]
    pipelined, largest = (
        [(mode, *points_of_each) for points_of_each in splits] for mode in (PIPELINED, LARGEST)
    )
    modes = [pipelined[0], *[(SUM, rate > 0, rate > 0)] * has_rates, *pipelined[1:], *largest]
    best: MessageTimeModel | None = None
    collective = str(used["collective"].iloc[0])
    algorithms = [RING, TREE] if used["ranks"].nunique() > 2 else [RING]
    if collective == POINT_TO_POINT:
        algorithms = [NEIGHBOURS]
    points = _BenchmarkPoints.from_table(used, algorithms, collective)
    for algorithm in algorithms:
        for mode, link, processors in modes:
            model = _fit_mode(points, algorithm, mode, link, processors)
            is_possible = mode != SUM or model.link > MIN_LINK_TIME
            if best is None or (
                is_possible and model.misfit + MISFIT_TOLERANCE < (1 - MIN_MISFIT_REDUCTION) * best.misfit
            ):
                best = model
    return best


@dataclass(frozen=True)
class _BenchmarkPoints:
    """The points of one framework, device and collective as arrays, [points].

    `row` and `column` index a table of `scales` (rate 0: unknown) by `log_sizes`. `is_byte_bound` marks
    points that take more than twice as long as the fastest one at their scale.
    """

    columns: Mapping[str, np.ndarray]
    seconds: np.ndarray
    log_sizes: np.ndarray
    column: np.ndarray
    scales: np.ndarray
    row: np.ndarray
    is_byte_bound: np.ndarray
    collective: str

    @classmethod
    def from_table(
        cls, benchmarks: pd.DataFrame, algorithms: Sequence[str], collective: str
    ) -> "_BenchmarkPoints":
        """Return the points of `benchmark_points`, with their `message_terms` for each algorithm."""
        size, nodes, ranks, rate, seconds = (
            benchmarks[name].to_numpy() for name in ("bytes", *SCALE_COLUMNS, "seconds")
        )
        log_sizes, column = np.unique(np.log(size), return_inverse=True)
        scales, row = np.unique(
            np.column_stack([nodes, ranks, np.nan_to_num(rate)]), axis=0, return_inverse=True
        )
        fastest = np.full(len(scales), np.inf)
        np.minimum.at(fastest, row, seconds)
        columns = {name: message_terms(size, nodes, ranks, rate, name, collective) for name in algorithms}
        # One number of ranks cannot separate the constant part of the latency from the growing one.
        if len(np.unique(ranks)) == 1 or collective == POINT_TO_POINT:
            for columns_of_algorithm in columns.values():
                columns_of_algorithm[:, 0] = 0.0
        return cls(columns, seconds, log_sizes, column, scales, row, seconds > 2 * fastest[row], collective)


def _fit_mode(
    points: _BenchmarkPoints, algorithm: str, mode: str, link: np.ndarray, processors: np.ndarray
) -> MessageTimeModel:
    """Return the times of one mode by non-negative least squares of relative errors.

    Lawson & Hanson 1974, chapter 23. `link` and `processors` mark the points whose bytes take the time of
    either, [points]. For LARGEST, the fit is repeated until each point keeps its largest term.
    """
    columns, seconds = points.columns[algorithm], points.seconds
    used = columns * np.column_stack([np.ones((len(columns), 2)), link, processors])
    is_byte_bound = points.is_byte_bound
    for _ in range(MAX_ITERATIONS if mode == LARGEST else 1):
        counted = (
            np.column_stack([~is_byte_bound, ~is_byte_bound, is_byte_bound, is_byte_bound])
            if mode == LARGEST
            else True
        )
        coefficients = nnls(used * counted / seconds[:, None], np.ones(len(seconds)))[0]
        before = is_byte_bound
        is_byte_bound = bytes_time(columns * coefficients, mode) > columns[:, :2] @ coefficients[:2]
        if (is_byte_bound == before).all():
            break
    model_s = message_time(columns * coefficients, mode)
    # At each scale and size; a size has the mean deviation of the scales where it was measured.
    deviation = np.full((len(points.scales), len(points.log_sizes)), np.nan)
    deviation[points.row, points.column] = np.log(seconds / np.maximum(model_s, MIN_TIME_S))
    mean = np.nanmean(deviation, axis=0)
    factors = np.exp(np.vstack([np.where(np.isnan(deviation), mean, deviation), mean]))
    df = int((~np.isnan(deviation)).sum()) - deviation.shape[1]
    misfit = float(np.sqrt(np.nansum((deviation - mean) ** 2) / df)) if df else np.nan
    start_s, round_latency_s, link_time, cost_s = map(float, coefficients)
    return MessageTimeModel(
        algorithm, mode, start_s, round_latency_s, link_time, cost_s, points.log_sizes, factors,
        tuple(map(tuple, points.scales.tolist())), misfit, points.collective,
    )  # fmt: skip


@functools.cache
def message_rule(framework: str) -> CommunicationKeys:
    """Return how a framework sends gradients: as declared, or in one message after the backward pass."""
    declared = load_framework(framework).communication if framework in framework_names() else None
    return declared or CommunicationKeys(messages="ends")


def message_limits(rule: CommunicationKeys) -> tuple[float, float]:
    """Return the size limits in bytes of the first message and of all others."""
    first, later = rule.limits_mib or (math.inf, math.inf)
    return 2**20 * first, 2**20 * later


def described_frameworks() -> list[str]:
    """Return the frameworks that declare their messages."""
    return [name for name in framework_names() if load_framework(name).communication]


def bucket_bytes(graph: Graph, rule: CommunicationKeys) -> np.ndarray:
    """Return sizes of a model's messages in the order of the backward pass, [messages].

    The tensor that reaches the limit closes a bucket (PyTorch: Reducer::rebuild_buckets).
    """
    sizes: list[float] = []
    limits, open_bytes = message_limits(rule), 0.0
    for operator in reversed(graph.operators):
        for name, shape in reversed(list(operator.weights.items())):
            open_bytes += BYTES * math.prod(shape) if is_trained(name) else 0.0
            if open_bytes >= limits[min(len(sizes), 1)]:
                sizes.append(open_bytes)
                open_bytes = 0.0
    return np.array([*sizes, open_bytes] if open_bytes else sizes)


@dataclass(frozen=True)
class CollectiveBenchmark:
    """The collective benchmark of a study.

    Attributes:
        points: Its points (`benchmark_points`), None for no benchmark.
        largest_bytes: Size of the largest message that will be predicted.
        is_smooth: Whether models are made for extrapolation (`MessageTimeModel.for_extrapolation`).
    """

    points: pd.DataFrame | None = None
    largest_bytes: float = np.inf
    is_smooth: bool = False
    _models: dict[tuple[FrameworkDevice, str], MessageTimeModel | None] = field(
        default_factory=dict, init=False, repr=False
    )

    def smooth(self) -> "CollectiveBenchmark":
        """Return the benchmark with models for extrapolation, which are smooth over nodes."""
        return CollectiveBenchmark(self.points, self.largest_bytes, is_smooth=True)

    @property
    def framework_devices(self) -> list[FrameworkDevice]:
        """Frameworks and devices whose all-reduce was benchmarked with two message sizes or more."""
        if self.points is None:
            return []
        pairs = self.points[["framework", "device"]].drop_duplicates().itertuples(index=False, name=None)
        return [pair for pair in pairs if self.model(pair)]

    @property
    def rates(self) -> list[float]:
        """Link rates at which it ran, in bytes/s."""
        return [] if self.points is None else sorted(self.points["link_bytes_s"].dropna().unique())

    def hold_out(self, nodes: Sequence[float], rates: Sequence[float]) -> "CollectiveBenchmark":
        """Return the benchmark without these numbers of nodes and link rates, not smooth."""
        if self.points is None:
            return self
        is_held_out = self.points["nodes"].isin(nodes) | self.points["link_bytes_s"].isin(rates)
        return CollectiveBenchmark(self.points[~is_held_out], self.largest_bytes)

    def model(
        self, framework_device: FrameworkDevice, collective: str = ALL_REDUCE
    ) -> MessageTimeModel | None:
        """Return the times of a collective, or None if it was not benchmarked with two message sizes."""
        if self.points is None:
            return None
        if (framework_device, collective) not in self._models:
            names = (self.points[name] for name in ("framework", "device", "collective"))
            is_chosen = np.logical_and.reduce(
                [
                    column == level
                    for column, level in zip(names, (*framework_device, collective), strict=True)
                ]
            )
            fitted = fit_message_times(self.points[is_chosen], self.largest_bytes)
            if fitted and self.is_smooth:
                fitted = fitted.for_extrapolation()
            self._models[framework_device, collective] = fitted
        return self._models[framework_device, collective]

    def times(
        self,
        framework_device: FrameworkDevice,
        collective: str,
        scale: tuple[np.ndarray, np.ndarray, np.ndarray],
        size: np.ndarray,
    ) -> np.ndarray:
        """Return the seconds of a message at each scale, [n]; NaN if the collective was not benchmarked.

        Args:
            framework_device: The framework and the device.
            collective: The name of the collective.
            scale: Nodes, ranks and link rates in bytes/s, [n] each.
            size: Bytes of the messages [n].
        """
        model = self.model(framework_device, collective)
        return np.full(len(size), np.nan) if model is None else model.times(size, *scale)[0]

    def time_of_one(
        self,
        framework_device: FrameworkDevice,
        collective: str,
        nodes: float,
        ranks: float,
        rate: float,
        size: float,
    ) -> float | None:
        """Return the seconds of one message; None if the collective was not benchmarked."""
        scale = np.array([nodes]), np.array([ranks]), np.array([rate])
        seconds = float(self.times(framework_device, collective, scale, np.array([size]))[0])
        return None if np.isnan(seconds) else seconds


def read_benchmark(path: Path | None, cells: pd.DataFrame) -> CollectiveBenchmark:
    """Return the benchmark in network.csv, if there is one, for messages of these cells."""
    if path is None:
        return CollectiveBenchmark()
    largest = float(cells["gradient_bytes"].max()) if len(cells) else math.nan
    return CollectiveBenchmark(
        benchmark_points(read_table(path, "network")), np.inf if math.isnan(largest) else largest
    )


def ideal_seconds(collective: str, nodes: float, ranks: float, rate: float, size: float) -> float:
    """Return the time that the bytes of one message take on the links, without any latency."""
    return float(COLLECTIVES[collective].leaves(nodes, ranks / nodes) * size / rate)


def rate_text(bytes_s: float) -> str:
    """Return a link rate as text, such as 1 Gbit/s."""
    if np.isnan(bytes_s):
        return "no known rate"
    megabits = 8 * bytes_s / 1e6
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits:g} Mbit/s"
