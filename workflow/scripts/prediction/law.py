"""The time of one collective by message size, nodes and the link's rate: a law fitted to the sweeps of the network.

    latency = start + step x g(p)
    link = leaves(N, p / N) x bytes x link / rate          processors = sent(p) x bytes x cost

with p ranks on N nodes; of all-reduce, leaves and sent are 2 (N - 1) / N and 2 (p - 1) / p (models.collectives has those of
the others). g is p - 1 for a ring and log2 p for a tree (Thakur, Rabenseifner & Gropp, Int. J. High Perform.
Comput. Appl. 19, 2005, section 4.5), and does not grow from point to point; 1 / link is the share of its rate that is reached. How the three make the time of a
message is asked of the sweeps, in this order: latency + the larger of the others, as where parts of a message are worked on
while others travel; latency + link + processors; the largest of the three, as where small messages wait for processors
that have nothing left to do with large ones. Where one rate is known, all is the link's, where none, all is the processors'. What
a library does differently with messages of different sizes is kept as a factor by size: measurement over law, of the same
nodes and rate where they were measured, otherwise the geometric mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from models.collectives import ALL_REDUCE, COLLECTIVES, POINT_TO_POINT
from network.fit import measured

GROWTH: dict[str, Callable[[np.ndarray], np.ndarray]] = {"ring": lambda p: p - 1.0, "tree": np.log2}
NEIGHBOURS = "neighbours"
_GROWTH: dict[str, Callable[[np.ndarray], np.ndarray]] = {**GROWTH, NEIGHBOURS: np.ones_like}
BEYOND = 4  # the largest message that the law is fitted to over the largest that is used: times are no straight line
PIPELINED, SUM, LARGEST = "pipelined", "sum", "largest"
ROUNDS = 8  # of asking which term is the largest
PLACE = ["nodes", "ranks", "link_bytes_s"]
LEAST_GAIN = 0.05  # by which what is not the default must fit better
TINY_S = 1e-12
EXACT = 1e-6  # a misfit that is none
LEAST_LINK = 0.95  # nothing is faster than the link, but for bursts


@dataclass(frozen=True)
class Law:
    """A law. `start_s` and `step_s` make the latency, `link` is 1 / share, `cost_s` is per byte.

    `factors`: the correction by size [places + 1, sizes], the last row for places that were not measured; `log_sizes`:
    logarithms of the sizes; `places`: (nodes, ranks, rate) of the rows. `misfit`: standard deviation of log(measured / law)
    about the factor by size; NaN at one place, where it cannot be told.
    """

    algorithm: str
    way: str
    start_s: float
    step_s: float
    link: float
    cost_s: float
    log_sizes: np.ndarray = field(default_factory=lambda: np.zeros(2))
    factors: np.ndarray = field(default_factory=lambda: np.ones((1, 2)))
    places: tuple[tuple[float, float, float], ...] = ()
    misfit: float = np.nan
    collective: str = ALL_REDUCE

    def at(self, nodes: np.ndarray, ranks: np.ndarray, rate: np.ndarray) -> "Here":
        """The law at these places, [n] each; `rate` in bytes/s, NaN: not shaped."""
        columns = terms(np.ones(len(nodes)), nodes, ranks, rate, self.algorithm, self.collective) * self.coefficients
        rows = {place: row for row, place in enumerate(self.places)}
        known = [rows.get(place, -1) for place in zip(nodes, ranks, np.nan_to_num(rate), strict=True)]
        return Here(self.way, columns, self.log_sizes, self.factors[known])

    @property
    def coefficients(self) -> np.ndarray:
        """Those of `terms`, [4]."""
        return np.array([self.start_s, self.step_s, self.link, self.cost_s])


@dataclass(frozen=True)
class Here:
    """A law at some places, [n]: what its terms are there for one byte, [n, 4], and the factors by size, [n, sizes]."""

    way: str
    columns: np.ndarray
    log_sizes: np.ndarray
    factors: np.ndarray

    def seconds(self, size: np.ndarray) -> np.ndarray:
        """One collective of messages of these sizes in bytes, [n] -> [n]; NaN of a size that is not known."""
        position = np.interp(np.log(np.maximum(size, 1)), self.log_sizes, np.arange(len(self.log_sizes)))
        left = np.minimum(np.nan_to_num(position).astype(int), len(self.log_sizes) - 2)
        weight, every = position - left, np.arange(len(size))
        factor = (1 - weight) * self.factors[every, left] + weight * self.factors[every, left + 1]
        return together(self.columns * scaled(size), self.way) * factor

    def occupied(self, size: np.ndarray) -> np.ndarray:
        """The part of it in which no other message gets on: link or processors are busy, [n] -> [n]."""
        return np.minimum(bytes_time(self.columns * scaled(size), self.way), self.seconds(size))


def scaled(size: np.ndarray) -> np.ndarray:
    """What the four columns of one byte are multiplied by for a message of `size` bytes, [n] -> [n, 4]."""
    return np.column_stack([np.ones((len(size), 2)), size, size])


def bytes_time(columns: np.ndarray, way: str) -> np.ndarray:
    """The time that the bytes take, [n, 4] -> [n]."""
    return columns[:, 2:].sum(axis=1) if way == SUM else columns[:, 2:].max(axis=1)


def together(columns: np.ndarray, way: str) -> np.ndarray:
    """The time of a message from its terms, [n, 4] -> [n]."""
    latency = np.maximum(columns[:, :2].sum(axis=1), 0.0)
    return np.maximum(latency, bytes_time(columns, way)) if way == LARGEST else latency + bytes_time(columns, way)


def terms(
    size: np.ndarray,
    nodes: np.ndarray,
    ranks: np.ndarray,
    rate: np.ndarray,
    algorithm: str,
    collective: str = ALL_REDUCE,
) -> np.ndarray:
    """What the law's four coefficients are multiplied by, [n, 4]; zeros for one rank."""
    size, nodes, ranks, rate = (np.asarray(x, float) for x in (size, nodes, ranks, rate))
    per_rate, kind, several = np.nan_to_num(1 / rate), COLLECTIVES[collective], ranks > 1
    across, among = kind.leaves(nodes, ranks / nodes) * (nodes > 1), kind.sent(ranks) * several
    return np.column_stack([several, _GROWTH[algorithm](ranks) * several, across * size * per_rate, among * size])


def points(network: pd.DataFrame) -> pd.DataFrame:
    """network.csv -> a row per collective, framework, device, place and size: `seconds`, the mean over rounds of the rounds' medians;
    `error`, the standard error of its logarithm by what rounds differ by, NaN for one round.

    A rate that is not known is NaN.
    """
    keys = ["collective", "framework", "device", *PLACE, "bytes"]
    ok = measured(network)
    rounds = ok.fillna({"device": "site"}).groupby([*keys, "round"], dropna=False)["seconds"].median()
    of_point = rounds.groupby(level=keys, dropna=False)
    logs = np.log(rounds).groupby(level=keys, dropna=False)
    found = pd.DataFrame({"seconds": of_point.mean(), "error": logs.std() / np.sqrt(logs.size())})
    return found.reset_index().astype(dict.fromkeys(keys[3:], float))


def fit(sweeps: pd.DataFrame, largest_bytes: float = np.inf) -> Law | None:
    """The law of one carrier's `points` of one collective, None without two sizes. `largest_bytes`: of the messages that will be
    asked for.

    Of the ways in which bytes take time, a later one must fit better by LEAST_GAIN; a sum must not need more than the link's
    rate. Three numbers of ranks tell a tree from a ring.
    """
    used = sweeps[sweeps["bytes"] <= max(BEYOND * largest_bytes, np.sort(sweeps["bytes"].unique())[:2].max(initial=0))]
    if used["bytes"].nunique() < 2:
        return None
    rate = used["link_bytes_s"].fillna(np.inf).to_numpy()
    limited = [rate <= slowest for slowest in np.unique(rate)[::-1]]
    several = len(limited) > 1
    # in which rows bytes take the link's time, and in which the processors'
    split = [(link, ~link | np.isinf(rate)) for link in [*limited, *[rate < 0] * several]]
    ways = [(PIPELINED, *split[0]), *[(SUM, rate > 0, rate > 0)] * several, *((PIPELINED, *one) for one in split[1:])]
    ways += [(LARGEST, *one) for one in split]
    best: Law | None = None
    collective = str(used["collective"].iloc[0])
    algorithms = list(GROWTH) if used["ranks"].nunique() > 2 else list(GROWTH)[:1]
    if collective == POINT_TO_POINT:
        algorithms = [NEIGHBOURS]
    swept = _Swept.of(used, algorithms, collective)
    for algorithm in algorithms:
        for way, link, processors in ways:
            law = _fitted(swept, algorithm, way, link, processors)
            if best is None or (law.misfit + EXACT < (1 - LEAST_GAIN) * best.misfit and _possible(law)):
                best = law
    return best


def _possible(law: Law) -> bool:
    """Nothing is faster than the link; a sum that says so is none."""
    return law.way != SUM or law.link > LEAST_LINK


@dataclass(frozen=True)
class _Swept:
    """The points of one carrier, [points]: `row` and `column` of each in a table of `places` (rate 0: not known) by `log_sizes`.

    `of_bytes`: which take twice as long as the fastest one of their place.
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
    def of(cls, sweeps: pd.DataFrame, algorithms: Sequence[str], collective: str) -> "_Swept":
        """Those of `points`, with their `terms` by each of these algorithms."""
        size, nodes, ranks, rate, seconds = (sweeps[name].to_numpy() for name in ("bytes", *PLACE, "seconds"))
        log_sizes, column = np.unique(np.log(size), return_inverse=True)
        places, row = np.unique(np.column_stack([nodes, ranks, np.nan_to_num(rate)]), axis=0, return_inverse=True)
        least = np.full(len(places), np.inf)
        np.minimum.at(least, row, seconds)
        columns = {name: terms(size, nodes, ranks, rate, name, collective) for name in algorithms}
        if len(np.unique(ranks)) == 1 or collective == POINT_TO_POINT:  # a latency grows as the algorithm says
            for one in columns.values():
                one[:, 0] = 0.0
        return cls(columns, seconds, log_sizes, column, places, row, seconds > 2 * least[row], collective)


def _fitted(swept: _Swept, algorithm: str, way: str, link: np.ndarray, processors: np.ndarray) -> Law:
    """Least squares of relative errors, no coefficient below 0 (Lawson & Hanson 1974, chapter 23).

    `link`, `processors`: the points in which bytes take the time of either, [points]. Of the largest of terms it is asked
    again and again which one that is in every point.
    """
    columns, seconds = swept.columns[algorithm], swept.seconds
    used = columns * np.column_stack([np.ones((len(columns), 2)), link, processors])
    of_bytes, before = swept.of_bytes, None
    for _ in range(ROUNDS if way == LARGEST else 1):
        told = np.column_stack([~of_bytes, ~of_bytes, of_bytes, of_bytes]) if way == LARGEST else np.ones(used.shape)
        coefficients = nnls(used * told / seconds[:, None], np.ones(len(seconds)))[0]
        of_bytes, before = bytes_time(columns * coefficients, way) > (columns[:, :2] @ coefficients[:2]), of_bytes
        if (of_bytes == before).all():
            break
    start_s, step_s, link_time, cost_s = map(float, coefficients)
    law_s = together(columns * coefficients, way)
    off = np.full((len(swept.places), len(swept.log_sizes)), np.nan)
    off[swept.row, swept.column] = np.log(seconds / np.maximum(law_s, TINY_S))
    mean = np.nanmean(off, axis=0)
    factors = np.exp(np.vstack([np.where(np.isnan(off), mean, off), mean]))
    df = int((~np.isnan(off)).sum()) - off.shape[1]
    misfit = float(np.sqrt(np.nansum((off - mean) ** 2) / df)) if df else np.nan
    found = tuple((float(row[0]), float(row[1]), float(row[2])) for row in swept.places)
    return Law(
        algorithm, way, start_s, step_s, link_time, cost_s, swept.log_sizes, factors, found, misfit, swept.collective
    )


def rate_text(bytes_s: float) -> str:
    """A link's rate as a person writes it: 1 Gbit/s."""
    if np.isnan(bytes_s):
        return "no known rate"
    megabits = 8 * bytes_s / 1e6
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits:g} Mbit/s"
