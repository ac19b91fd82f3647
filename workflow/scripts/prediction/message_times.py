"""The time of a collective by message size, nodes and link rate: a law fitted to the collective benchmark.

    latency = start + step x g(p)
    link = leaves(N, p / N) x bytes x link / rate          processors = sent(p) x bytes x cost

with p ranks on N nodes; for all-reduce, leaves and sent are 2 (N - 1) / N and 2 (p - 1) / p
(models.collectives has those of the others). g is p - 1 for a ring and log2 p for a tree (Thakur,
Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19, 2005, section 4.5), and constant for
point-to-point messages; 1 / link is the share of the rate that is reached.

The fit chooses how the three add up to the time of a message, and tries in this order: latency plus the
larger of the others (parts of a message are processed while others travel); latency + link + processors; the
largest of the three (small messages wait for processors that are idle with large ones). With one known rate
all bytes are the link's, without a rate all are the processors'.

Libraries treat messages of different sizes differently. A factor by size corrects for it: measurement over
law, for the same nodes and rate where they were measured, otherwise the geometric mean.
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
from network.fit import measured

Carrier = tuple[str, str]  # framework and device

RING, TREE, NEIGHBOURS = "ring", "tree", "neighbours"
GROWTH: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    RING: lambda p: p - 1.0, TREE: np.log2, NEIGHBOURS: np.ones_like
}  # fmt: skip
# Times are not linear in size over a wide range, so the fit ignores messages much larger than those that are
# used.
MAX_SIZE_RATIO = 4
PIPELINED, SUM, LARGEST = "pipelined", "sum", "largest"
MAX_ITERATIONS = 8
PLACE_COLUMNS = ["nodes", "ranks", "link_bytes_s"]
MIN_GAIN = 0.05  # relative reduction of the misfit by which a mode replaces the default
MIN_TIME_S = 1e-12
MISFIT_TOLERANCE = 1e-6
MIN_LINK_TIME = 0.95  # below 1, because short bursts can exceed the link rate


@dataclass(frozen=True)
class Law:
    """The fitted law of one collective.

    Attributes:
        algorithm: A key of GROWTH.
        mode: PIPELINED, SUM or LARGEST: how latency, link and processors add up.
        start_s: Latency of a collective in seconds.
        step_s: Latency of each step of the algorithm in seconds.
        link: Time on the link relative to its full rate.
        cost_s: CPU time per byte in seconds.
        log_sizes: Logarithms of the measured sizes in bytes, [sizes].
        factors: Correction by size, [places + 1, sizes]; the last row is for places that were not measured.
        places: (nodes, ranks, rate) of the rows of `factors`.
        misfit: Standard deviation of log(measured / law) about the factor by size; NaN at one place.
        collective: The name of the collective.
    """

    algorithm: str
    mode: str
    start_s: float
    step_s: float
    link: float
    cost_s: float
    log_sizes: np.ndarray = field(default_factory=lambda: np.zeros(2))
    factors: np.ndarray = field(default_factory=lambda: np.ones((1, 2)))
    places: tuple[tuple[float, ...], ...] = ()
    misfit: float = np.nan
    collective: str = ALL_REDUCE

    def times(
        self, size: np.ndarray, nodes: np.ndarray, ranks: np.ndarray, rate: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return seconds of a message, and those in which link or processors keep others waiting, [n] each.

        `size` in bytes, `rate` in bytes/s, NaN for an unlimited link. Times of unknown sizes are NaN.
        """
        terms = law_terms(np.ones(len(size)), nodes, ranks, rate, self.algorithm, self.collective)
        terms = terms * [self.start_s, self.step_s, self.link, self.cost_s]
        terms[:, 2:] *= size[:, None]
        row_of_place = {place: row for row, place in enumerate(self.places)}
        row = [row_of_place.get(place, -1) for place in zip(nodes, ranks, np.nan_to_num(rate), strict=True)]
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


def law_terms(
    size: np.ndarray,
    nodes: np.ndarray,
    ranks: np.ndarray,
    rate: np.ndarray,
    algorithm: str,
    collective: str = ALL_REDUCE,
) -> np.ndarray:
    """Return what the law's four coefficients are multiplied by, [n, 4]; zeros for one rank."""
    size, nodes, ranks, rate = (np.asarray(x, float) for x in (size, nodes, ranks, rate))
    per_rate, shape, distributed = np.nan_to_num(1 / rate), COLLECTIVES[collective], ranks > 1
    per_node, per_rank = shape.leaves(nodes, ranks / nodes) * (nodes > 1), shape.sent(ranks) * distributed
    steps = GROWTH[algorithm](ranks) * distributed
    return np.column_stack([distributed, steps, per_node * size * per_rate, per_rank * size])


def benchmark_points(network: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each collective, framework, device, place and size of network.csv.

    `seconds` is the mean over rounds of the rounds' medians. An unknown rate is NaN.
    """
    keys = ["collective", "framework", "device", *PLACE_COLUMNS, "bytes"]
    ok = measured(network)
    rounds = ok.fillna({"device": "site"}).groupby([*keys, "round"], dropna=False)["seconds"].median()
    points = rounds.groupby(level=keys, dropna=False).mean().reset_index()
    return points.astype(dict.fromkeys(keys[3:], float))


def fit_law(benchmarks: pd.DataFrame, largest_bytes: float = np.inf) -> Law | None:
    """Return the law of one collective of one carrier, or None without two message sizes.

    A later mode replaces an earlier one only if it reduces the misfit by MIN_GAIN; SUM must not exceed the
    link rate. A tree is told from a ring only with three numbers of ranks.

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
    limited = [rate <= slowest for slowest in np.unique(rate)[::-1]]
    has_rates = len(limited) > 1
    # Each split says for which points bytes take link time and for which they take CPU time.
    split = [(link, ~link | np.isinf(rate)) for link in [*limited, *[rate < 0] * has_rates]]
    pipelined, largest = ([(mode, *own) for own in split] for mode in (PIPELINED, LARGEST))
    modes = [pipelined[0], *[(SUM, rate > 0, rate > 0)] * has_rates, *pipelined[1:], *largest]
    best: Law | None = None
    collective = str(used["collective"].iloc[0])
    algorithms = [RING, TREE] if used["ranks"].nunique() > 2 else [RING]
    if collective == POINT_TO_POINT:
        algorithms = [NEIGHBOURS]
    points = _BenchmarkPoints.from_table(used, algorithms, collective)
    for algorithm in algorithms:
        for mode, link, processors in modes:
            law = _fit_mode(points, algorithm, mode, link, processors)
            is_possible = mode != SUM or law.link > MIN_LINK_TIME
            if best is None or (is_possible and law.misfit + MISFIT_TOLERANCE < (1 - MIN_GAIN) * best.misfit):
                best = law
    return best


@dataclass(frozen=True)
class _BenchmarkPoints:
    """The points of one carrier and collective as arrays, [points].

    `row` and `column` index a table of `places` (rate 0: unknown) by `log_sizes`; `of_bytes` marks points
    that take twice as long as the fastest one at their place, so that bytes dominate.
    """

    columns: Mapping[str, np.ndarray]
    seconds: np.ndarray
    log_sizes: np.ndarray
    column: np.ndarray
    places: np.ndarray
    row: np.ndarray
    of_bytes: np.ndarray
    collective: str

    @classmethod
    def from_table(
        cls, benchmarks: pd.DataFrame, algorithms: Sequence[str], collective: str
    ) -> "_BenchmarkPoints":
        """Return the points of a table of `benchmark_points`, with their `law_terms` for each algorithm."""
        size, nodes, ranks, rate, seconds = (
            benchmarks[name].to_numpy() for name in ("bytes", *PLACE_COLUMNS, "seconds")
        )
        log_sizes, column = np.unique(np.log(size), return_inverse=True)
        places, row = np.unique(
            np.column_stack([nodes, ranks, np.nan_to_num(rate)]), axis=0, return_inverse=True
        )
        fastest = np.full(len(places), np.inf)
        np.minimum.at(fastest, row, seconds)
        columns = {name: law_terms(size, nodes, ranks, rate, name, collective) for name in algorithms}
        # One number of ranks cannot separate the constant part of the latency from the growing one.
        if len(np.unique(ranks)) == 1 or collective == POINT_TO_POINT:
            for columns_of_algorithm in columns.values():
                columns_of_algorithm[:, 0] = 0.0
        return cls(columns, seconds, log_sizes, column, places, row, seconds > 2 * fastest[row], collective)


def _fit_mode(
    points: _BenchmarkPoints, algorithm: str, mode: str, link: np.ndarray, processors: np.ndarray
) -> Law:
    """Return the law of one mode by least squares of relative errors, without negative coefficients.

    Non-negative least squares: Lawson & Hanson 1974, chapter 23. `link` and `processors` mark the points
    whose bytes take the time of either, [points]. For LARGEST, the fit is iterated until each point keeps its
    largest term.
    """
    columns, seconds = points.columns[algorithm], points.seconds
    used = columns * np.column_stack([np.ones((len(columns), 2)), link, processors])
    of_bytes = points.of_bytes
    for _ in range(MAX_ITERATIONS if mode == LARGEST else 1):
        counted = np.column_stack([~of_bytes, ~of_bytes, of_bytes, of_bytes]) if mode == LARGEST else True
        coefficients = nnls(used * counted / seconds[:, None], np.ones(len(seconds)))[0]
        before = of_bytes
        of_bytes = bytes_time(columns * coefficients, mode) > columns[:, :2] @ coefficients[:2]
        if (of_bytes == before).all():
            break
    law_s = message_time(columns * coefficients, mode)
    deviation = np.full((len(points.places), len(points.log_sizes)), np.nan)
    deviation[points.row, points.column] = np.log(seconds / np.maximum(law_s, MIN_TIME_S))
    mean = np.nanmean(deviation, axis=0)
    factors = np.exp(np.vstack([np.where(np.isnan(deviation), mean, deviation), mean]))
    df = int((~np.isnan(deviation)).sum()) - deviation.shape[1]
    misfit = float(np.sqrt(np.nansum((deviation - mean) ** 2) / df)) if df else np.nan
    start_s, step_s, link_time, cost_s = map(float, coefficients)
    return Law(
        algorithm, mode, start_s, step_s, link_time, cost_s, points.log_sizes, factors,
        tuple(map(tuple, points.places.tolist())), misfit, points.collective,
    )  # fmt: skip


@functools.cache
def message_rule(framework: str) -> CommunicationKeys:
    """Return how a framework makes messages of gradients; one message at the end if it declares nothing."""
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
class Network:
    """The collective benchmark of a study.

    Attributes:
        points: Its points (`benchmark_points`), None for no benchmark.
        largest_bytes: Size of the largest message that will be predicted.
        is_smooth: The same law at all places, measured or not, so that curves over nodes are smooth. Without
            a measured link rate, no message is faster than the link at its full rate.
    """

    points: pd.DataFrame | None = None
    largest_bytes: float = np.inf
    is_smooth: bool = False
    _laws: dict[tuple[Carrier, str], Law | None] = field(default_factory=dict, init=False, repr=False)

    def smooth(self) -> "Network":
        """Return the benchmark with the same law at all places."""
        return Network(self.points, self.largest_bytes, is_smooth=True)

    @property
    def carriers(self) -> list[Carrier]:
        """Frameworks and devices with a law of all-reduce."""
        if self.points is None:
            return []
        pairs = self.points[["framework", "device"]].drop_duplicates().itertuples(index=False, name=None)
        return [carrier for carrier in pairs if self.law(carrier)]

    @property
    def rates(self) -> list[float]:
        """Link rates at which it ran, in bytes/s."""
        return [] if self.points is None else sorted(self.points["link_bytes_s"].dropna().unique())

    def leave_out(self, nodes: Sequence[float], rates: Sequence[float]) -> "Network":
        """Return the benchmark without these numbers of nodes and link rates."""
        if self.points is None:
            return self
        left_out = self.points["nodes"].isin(nodes) | self.points["link_bytes_s"].isin(rates)
        return Network(self.points[~left_out], self.largest_bytes)

    def law(self, carrier: Carrier, collective: str = ALL_REDUCE) -> Law | None:
        """Return the law of a carrier's collective, or None if it was not benchmarked."""
        if self.points is None:
            return None
        if (carrier, collective) not in self._laws:
            names = (self.points[name] for name in ("framework", "device", "collective"))
            own = np.logical_and.reduce(
                [column == level for column, level in zip(names, (*carrier, collective), strict=True)]
            )
            fitted = fit_law(self.points[own], self.largest_bytes)
            if fitted and self.is_smooth:
                fitted = replace(fitted, link=fitted.link or 1.0, places=(), factors=fitted.factors[-1:])
            self._laws[carrier, collective] = fitted
        return self._laws[carrier, collective]

    def seconds(
        self,
        carrier: Carrier,
        collective: str,
        place: tuple[np.ndarray, np.ndarray, np.ndarray],
        size: np.ndarray,
    ) -> np.ndarray:
        """Return the time of one message at each place, [n]; NaN if the collective was not benchmarked.

        `place` has nodes, ranks and link rates in bytes/s, [n] each; `size` bytes.
        """
        law = self.law(carrier, collective)
        return np.full(len(size), np.nan) if law is None else law.times(size, *place)[0]

    def message_s(
        self, carrier: Carrier, collective: str, nodes: float, ranks: float, rate: float, size: float
    ) -> float | None:
        """Return the time of one message; None if the collective was not benchmarked."""
        place = np.array([nodes]), np.array([ranks]), np.array([rate])
        seconds = float(self.seconds(carrier, collective, place, np.array([size]))[0])
        return None if np.isnan(seconds) else seconds


def read_benchmark(path: Path | None, cells: pd.DataFrame) -> Network:
    """Return the benchmark in network.csv, if there is one, for messages of these cells."""
    if path is None:
        return Network()
    largest = float(cells["gradient_bytes"].max()) if len(cells) else math.nan
    return Network(benchmark_points(read_table(path, "network")), np.inf if math.isnan(largest) else largest)


def ideal_seconds(collective: str, nodes: float, ranks: float, rate: float, size: float) -> float:
    """Return the time that the bytes of one message take on the links, without any latency."""
    return float(COLLECTIVES[collective].leaves(nodes, ranks / nodes) * size / rate)


def rate_text(bytes_s: float) -> str:
    """Return a link rate for people, such as 1 Gbit/s."""
    if np.isnan(bytes_s):
        return "no known rate"
    megabits = 8 * bytes_s / 1e6
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits:g} Mbit/s"
