"""How far the runs of a cell spread: one standard deviation for all cells where they share it, else each cell's own.

The one place where intervals of epoch times are made, so that tables and figures show the same. Times are compared as
ratios, so spreads are those of their natural logarithms; a cell's number stays its arithmetic mean (Hoefler & Belli,
SC'15, rule 3). Whether cells share a spread is asked of Bartlett's test, which wants normal logarithms and takes heavy
tails for unequal spreads; then each cell keeps its own, which is the careful answer. With few runs the test sees little:
six cells of three runs, one with three times the spread, mostly pass it, and that cell's interval holds the truth in
75 % of studies. So cells are pooled only where most have three runs, and no standard deviation is more than 3.5 times
another. By simulation with normal logarithms the noisiest cell's interval then holds in 88 % or more: 6 cells of 3 runs,
one or half of them with 2 or 3 times the spread of the others, 12 of 5 and one with twice, 40 of 3 or 5. The worst found
is 85 %: 12 cells of 10 runs, one with twice the spread.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import stats

from analysis import intervals
from analysis.intervals import LEVEL, Estimate, p_text
from analysis.measured import successful

FEWEST = 3  # runs of most cells
MOST_APART = 3.5  # the largest of these spreads over the smallest


@dataclass(frozen=True)
class Pooling:
    """The spread of the runs' log epoch times within cells.

    `samples`: cell -> epoch times in s. `sd`: standard deviation of their logarithms pooled over cells, with `df` degrees
    of freedom; NaN with none. `statistic`, `p`: Bartlett's test that all cells have it; NaN where it cannot be made.
    """

    samples: dict[str, np.ndarray]
    sd: float
    df: int
    statistic: float
    p: float

    @property
    def holds(self) -> bool:
        """Whether all cells are taken to have one spread."""
        return not self.against

    @cached_property
    def spreads(self) -> np.ndarray:
        """The standard deviations of the logarithms of the cells with two runs or more, [cells]."""
        return np.array([_sd(np.log(x)) for x in self.samples.values() if len(x) > 1])

    @property
    def apart(self) -> float:
        """The largest of `spreads` over the smallest; infinite where only one of them is 0, NaN with none."""
        with np.errstate(all="ignore"):
            return float(self.spreads.max() / self.spreads.min()) if len(self.spreads) else math.nan

    @property
    def against(self) -> str:
        """Why each cell keeps its own spread, in words; empty where nothing speaks against one for all."""
        cells = len(self.spreads)
        if cells < 2 or not self.spreads.any():
            return "they could not be compared (Bartlett's test needs two cells with two runs that differ)"
        if not self.spreads.all():
            return "a cell's times are all equal"
        test = f"Bartlett's test, {p_text(self.p)}"
        if self.p < LEVEL:
            return f"cells do not share one ({test})"
        if np.median([len(x) for x in self.samples.values() if len(x) > 1]) < FEWEST:
            return f"most cells have fewer than {FEWEST} runs, too few to see whether they share one ({test})"
        if self.apart > MOST_APART:
            return f"the largest is {self.apart:.2g} times the smallest ({test}; {MOST_APART:g} times at most is asked for)"
        return ""

    @cached_property
    def cells(self) -> pd.DataFrame:
        """By cell: n, mean, low, high (s), cv, log_sd. The interval is mean x exp(-+ t(df) s / sqrt(n)), see `interval`."""
        names = list(self.samples)
        n = np.array([len(times) for times in self.samples.values()], dtype=int)
        with np.errstate(all="ignore"):
            rows = [(x.mean(), _sd(x), _sd(np.log(x))) for x in self.samples.values()]
        mean, sd, log_sd = np.array(rows, dtype=float).reshape(-1, 3).T
        low, high = self.interval(mean, n, log_sd)
        data = {"n": n, "mean": mean, "low": low, "high": high, "cv": sd / mean, "log_sd": log_sd}
        return pd.DataFrame(data, index=pd.Index(names, name="cell"))

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Cell -> its mean epoch time in s, with its interval."""
        rows = self.cells[["mean", "low", "high", "n", "cv"]].itertuples(name=None)
        return {cell: Estimate(mean, low, high, int(n), cv) for cell, mean, low, high, n, cv in rows}

    def of(self, cell: str) -> Estimate:
        """Mean epoch time of a cell in s, with its interval; NaN where it has no successful run."""
        return self.estimates.get(cell, Estimate(math.nan))

    def interval(
        self, mean: np.ndarray | float, n: np.ndarray | int, log_sd: np.ndarray | float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of means of n runs each; `log_sd`, their own spreads, counts where pooling does not hold.

        log(mean) has the variance of the mean logarithm, s^2 / n (delta method), and Student's t the freedom of s.
        """
        s, df = (self.sd, self.df) if self.holds else (log_sd, np.asarray(n) - 1)
        low, high = intervals.t_interval(0.0, s / np.sqrt(n), df)
        return mean * np.exp(low), mean * np.exp(high)

    def ratio(self, to: str, base: str) -> Estimate:
        """Mean epoch time of cell `to` over that of cell `base`: one row of `ratios`."""
        value, low, high, n = self.ratios([to], [base])[intervals.COLUMNS].iloc[0]
        return Estimate(float(value), float(low), float(high), int(n))

    def ratios(self, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
        """A row per pair of cells: ratio of mean epoch times, its interval on the log scale, n (the smaller), p.

        With the pooled spread, where it holds: se = s sqrt(1 / n + 1 / m), Student's t; else Welch's (`intervals.ratios`).
        """
        own = intervals.ratios(self.samples, to, base)
        if not self.holds:
            return own
        (n, _, log), (m, _, base_log) = self._sides(to, base)
        error = self.sd * np.sqrt(1 / n + 1 / m)
        low, high = intervals.t_interval(0.0, error, self.df)
        p = 2 * stats.t.sf(np.abs(log - base_log) / error, self.df)
        return own.assign(low=own["value"] * np.exp(low), high=own["value"] * np.exp(high), p=p)

    def differences(self, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
        """A row per pair of cells: difference of mean epoch times in s, its interval, n (the smaller).

        With the pooled spread, where it holds, a cell's mean has the standard error mean x s / sqrt(n) (delta method); else
        Welch's (`intervals.differences`).
        """
        own = intervals.differences(self.samples, to, base).drop(columns="p")
        if not self.holds:
            return own
        (n, mean, _), (m, base_mean, _) = self._sides(to, base)
        low, high = intervals.t_interval(own["value"], self.sd * np.sqrt(mean**2 / n + base_mean**2 / m), self.df)
        return own.assign(low=low, high=high)

    def _sides(self, to: Sequence[str], base: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Of both cells of each pair: n, mean, mean logarithm [3, pairs]; NaN where a cell has no run."""
        known = pd.DataFrame(
            [(len(times), times.mean(), np.log(times).mean()) for times in self.samples.values()],
            index=list(self.samples),
        )
        one, other = (known.reindex(list(cells)).to_numpy(float).T for cells in (to, base))
        return one, other


def pooled(runs: pd.DataFrame) -> Pooling:
    """The spread of all successful runs of a study, to be made once."""
    ok = successful(runs)
    times = ok["epoch_time_s"].to_numpy(float)
    samples = {str(cell): times[rows] for cell, rows in ok.groupby("cell").indices.items()}
    several = [np.log(x) for x in samples.values() if len(x) > 1]
    df = sum(len(x) - 1 for x in several)
    if not df:
        return Pooling(samples, math.nan, 0, math.nan, math.nan)
    spreads = [_sd(x) for x in several]
    sd = math.sqrt(sum(s**2 * (len(x) - 1) for s, x in zip(spreads, several, strict=True)) / df)
    if len(several) < 2 or not all(spreads):
        return Pooling(samples, sd, df, math.nan, math.nan)
    test = stats.bartlett(*several)
    return Pooling(samples, sd, df, float(test.statistic), float(test.pvalue))


def _sd(x: np.ndarray) -> float:
    """Standard deviation; 0 for equal values, whatever rounding makes of them, and NaN for one."""
    if len(x) < 2:
        return math.nan
    return float(x.std(ddof=1)) if np.ptp(x) > 0 else 0.0
