"""The time of one all-reduce by message size, nodes and the link's rate: a law fitted to the sweeps of the network.

    seconds = start + step x g(p) + both(2 (N - 1) / N x bytes x link / rate, 2 (p - 1) / p x bytes x cost)

with p ranks on N nodes. g is p - 1 for a ring and log2 p for a tree (Thakur, Rabenseifner & Gropp, Int. J. High Perform.
Comput. Appl. 19, 2005, section 4.5). A byte takes time on the link (1 / link is the share of its rate that is reached) and
of the processors (cost); `both` is the larger of the two where a library works on one part of a message while another one
travels, or their sum. A ring is taken unless the sweeps say otherwise. Where one rate is known, all is the link's,
where none, all is the processors'. What a library does differently with messages of different sizes is kept as a factor by
size: measurement over law, of the same nodes and rate where they were measured, otherwise the geometric mean.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from network.fit import measured

GROWTH: dict[str, Callable[[np.ndarray], np.ndarray]] = {"ring": lambda p: p - 1.0, "tree": np.log2}
BEYOND = 4  # the largest message that the law is fitted to over the largest that is used: times are no straight line
PLACE = ["nodes", "ranks", "link_bytes_s"]
LEAST_GAIN = 0.05  # by which what is not the default must fit better
EXACT = 1e-6  # a misfit that is none
LEAST_LINK = 0.95  # nothing is faster than the link, but for bursts


@dataclass(frozen=True)
class Law:
    """A law. `start_s` and `step_s` make the latency, `link` is 1 / share, `cost_s` is per byte.

    `factors`: the correction by size [places + 1, sizes], the last row for places that were not measured; `log_sizes`:
    logarithms of the sizes; `places`: (nodes, ranks, rate) of the rows. `misfit`: standard deviation of log(measured / law)
    about the factor by size.
    """

    algorithm: str
    at_once: bool
    start_s: float
    step_s: float
    link: float
    cost_s: float
    log_sizes: np.ndarray = field(default_factory=lambda: np.zeros(2))
    factors: np.ndarray = field(default_factory=lambda: np.ones((1, 2)))
    places: tuple[tuple[float, float, float], ...] = ()
    misfit: float = 0.0

    def at(self, nodes: np.ndarray, ranks: np.ndarray, rate: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Function of message sizes in bytes [n] -> seconds [n] at these places; `rate` in bytes/s, NaN: not shaped."""
        columns = terms(np.ones(len(nodes)), nodes, ranks, rate, self.algorithm) * self.coefficients
        fixed, per_byte = columns[:, :2].sum(axis=1), both(columns, self.at_once)
        rows = {place: row for row, place in enumerate(self.places)}
        known = [rows.get(place, -1) for place in zip(nodes, ranks, np.nan_to_num(rate), strict=True)]
        curves = self.factors[known]
        every = np.arange(len(nodes))

        def seconds(size: np.ndarray) -> np.ndarray:
            position = np.interp(np.log(np.maximum(size, 1)), self.log_sizes, np.arange(len(self.log_sizes)))
            left = np.minimum(position.astype(int), len(self.log_sizes) - 2)
            weight = position - left
            factor = (1 - weight) * curves[every, left] + weight * curves[every, left + 1]
            return (fixed + per_byte * size) * factor

        return seconds

    @property
    def coefficients(self) -> np.ndarray:
        """Those of `terms`, [4]."""
        return np.array([self.start_s, self.step_s, self.link, self.cost_s])


def both(columns: np.ndarray, at_once: bool) -> np.ndarray:
    """The last two of four columns put together, [n, 4] -> [n]."""
    return columns[:, 2:].max(axis=1) if at_once else columns[:, 2:].sum(axis=1)


def terms(size: np.ndarray, nodes: np.ndarray, ranks: np.ndarray, rate: np.ndarray, algorithm: str) -> np.ndarray:
    """What the law's four coefficients are multiplied by, [n, 4]; zeros for one rank."""
    size, nodes, ranks, rate = (np.asarray(x, float) for x in (size, nodes, ranks, rate))
    per_rate = np.nan_to_num(1 / rate)
    across, among = 2 * (nodes - 1) / nodes, 2 * (ranks - 1) / ranks
    return np.column_stack([ranks > 1, GROWTH[algorithm](ranks), across * size * per_rate, among * size])


def points(network: pd.DataFrame) -> pd.DataFrame:
    """network.csv -> a row per framework, device, place and size: `seconds`, the mean over rounds of the rounds' medians.

    A rate that is not known is NaN.
    """
    keys = ["framework", "device", *PLACE, "bytes"]
    rounds = measured(network).groupby([*keys, "round"], dropna=False)["seconds"].median()
    return rounds.groupby(level=keys, dropna=False).mean().reset_index().astype(dict.fromkeys(keys[2:], float))


def fit(sweeps: pd.DataFrame, largest_bytes: float = np.inf) -> Law | None:
    """The law of one carrier's `points`, None without two sizes. `largest_bytes`: of the messages that will be asked for.

    Of the ways in which bytes take time, a later one must fit better by LEAST_GAIN; a sum must not need more than the link's
    rate. Three numbers of ranks tell a tree from a ring.
    """
    used = sweeps[sweeps["bytes"] <= max(BEYOND * largest_bytes, np.sort(sweeps["bytes"].unique())[:2].max(initial=0))]
    if used["bytes"].nunique() < 2:
        return None
    rate = used["link_bytes_s"].fillna(np.inf).to_numpy()
    limited = [rate <= slowest for slowest in np.unique(rate)[::-1]]
    # which rows the link takes time in, which the processors: the link in all; both; the link up to some rate
    ways = [(True, link, ~link | np.isinf(rate)) for link in [*limited, *[rate < 0] * (len(limited) > 1)]]
    ways[1:1] = [(False, rate > 0, rate > 0)] * (len(limited) > 1)
    best: Law | None = None
    for algorithm in GROWTH if used["ranks"].nunique() > 2 else list(GROWTH)[:1]:
        for at_once, link, processors in ways:
            law = _fitted(used, algorithm, at_once, link, processors)
            if best is None or (
                law.misfit + EXACT < (1 - LEAST_GAIN) * best.misfit and (at_once or law.link > LEAST_LINK)
            ):
                best = law
    return best


def _fitted(sweeps: pd.DataFrame, algorithm: str, at_once: bool, link: np.ndarray, processors: np.ndarray) -> Law:
    """Least squares of relative errors, no coefficient below 0 (Lawson & Hanson 1974, chapter 23).

    `link`, `processors`: the rows in which bytes take the time of either, [rows].
    """
    size, nodes, ranks, rate = (sweeps[name].to_numpy() for name in ("bytes", *PLACE))
    columns = terms(size, nodes, ranks, rate, algorithm)
    columns[:, 0] *= sweeps["ranks"].nunique() > 1  # a latency at one number of ranks grows as the algorithm says
    seconds = sweeps["seconds"].to_numpy()
    used = columns * np.column_stack([np.ones((len(columns), 2)), link, processors])
    coefficients = nnls(used / seconds[:, None], np.ones(len(seconds)))[0]
    start_s, step_s, link_time, cost_s = map(float, coefficients)
    law_s = columns[:, :2] @ coefficients[:2] + both(columns * coefficients, at_once)
    sizes, column = np.unique(np.log(size), return_inverse=True)
    places, row = np.unique(sweeps[PLACE].fillna(0.0).to_numpy(), axis=0, return_inverse=True)
    off = np.full((len(places), len(sizes)), np.nan)
    off[row, column] = np.log(seconds / law_s)
    mean = np.nanmean(off, axis=0)
    factors = np.exp(np.vstack([np.where(np.isnan(off), mean, off), mean]))
    misfit = float(np.nanstd(off - mean))
    found = tuple((float(row[0]), float(row[1]), float(row[2])) for row in places)
    return Law(algorithm, at_once, start_s, step_s, link_time, cost_s, sizes, factors, found, misfit)


def rate_text(bytes_s: float) -> str:
    """A link's rate as a person writes it: 1 Gbit/s."""
    if np.isnan(bytes_s):
        return "no known rate"
    megabits = 8 * bytes_s / 1e6
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits:g} Mbit/s"
