"""Means of a response and ratios of means, with 95 % intervals from moderated variances.

The response is epoch time, or another positive one that a caller names (declared.responses). Times are
compared as ratios, so spreads are of natural logarithms. A cell's number is the arithmetic mean m of
its n runs, or for rates the harmonic mean (Hoefler & Belli, SC'15, rule 3). By the delta method both have the
interval below, so the interval of a rate is the inverted interval of its inverse. The variance of each cell
is moderated by the variances of all cells:

    mean      m exp(-+ t(df) s / sqrt(n))              `CellMeans.cell_statistics`, the interval of a cell
    ratio     m1 / m2 exp(-+ t(df) e)                  `CellMeans.ratios`
              e^2 = d^2 / b                            within b shared blocks (paired t test)
              e^2 = s1^2 / n1 + s2^2 / n2              of independent groups (Welch)
    s^2, d^2  (w u + f v) / (w + f)                    moderated variances (`VariancePrior.moderated`)
    df        w + f, at most `CellMeans.max_mean_df` for a mean and `residual_spread.df` for a paired ratio;
              of independent groups by Welch-Satterthwaite, at most `CellMeans.max_mean_df`

v is the variance of a cell's logarithms, or of the differences of two cells within blocks, with f degrees of
freedom. u is the typical variance of all cells, and w its weight in degrees of freedom, at most MAX_PRIOR_DF
(Smyth, Stat. Appl. Genet. Mol. Biol. 3(1), 2004, as in limma).

Assumes:

* Logarithms are normal and independent, except that a block adds the same to all of its cells (two-way
  additive model; Montgomery, Design and Analysis of Experiments, 8th ed. (2013), section 4.1).
* Cells' variances are similar, but need not be equal. `estimate_prior` estimates w from how similar they are.
* Scatter is small, so log(mean) has the error of the mean logarithm (delta method).
* A run belongs to its planned block if it ran in one session with the others.

Two cells are compared within the blocks in which both have a run, if there are MIN_SHARED_BLOCKS or more, or
MIN_PAIRED_DF + 1 without moderated variances (`Values.differences`). The effect of a block on both then
cancels. Otherwise they are compared as independent groups, and block effects can only widen the interval. The
mean of a cell keeps blocks in its spread, because another replicate would be in another block.

Variances are always moderated, because three runs estimate a variance poorly. No test decides whether to,
because such a test would react to noise. MAX_PRIOR_DF comes from simulations of 3 and 5 runs of 4 to 60
cells, with equal and unequal spreads and with blocks (make bench-intervals; make statistics-test checks it).
With a larger value, intervals are narrower, but the noisiest cell's cover the true value too rarely.

The table of cell means (analysis.cells) prints the intervals of `cell_statistics`, and computes intervals of
medians itself. Other modules have the intervals of accuracy and perplexity (plain t, `intervals.means`), of
fitted scaling laws (analysis.scaling) and of adjusted times (analysis.adjusted). Predictions use none of
these: the law pools the noise of runs over cells (`prediction.law.OptimizerStepLaw.error`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
import scipy
from scipy import optimize, special

from analysis import intervals
from analysis.intervals import ROUNDING, SIGNIFICANCE_LEVEL, Estimate
from analysis.records import block_of, cache_last, currency_of, successful
from declared.responses import EPOCH_TIME, Response

MIN_SHARED_BLOCKS = 3
# Degrees of freedom that a paired t test without moderated variances needs. With 4, t is 20 % larger than
# with the 8 of two independent groups of 5 runs.
MIN_PAIRED_DF = 4
MAX_PRIOR_DF = 2.0
MIN_VARIANCE_RATIO = 1e-5  # Replaces variances of 0, which have no logarithm, times the median variance.
MAX_SPREAD_RATIO = 3.5  # If spreads differ by a larger factor, a common spread is doubtful.


@dataclass(frozen=True)
class Values:
    """One response of the runs, by cell and by block.

    Attributes:
        by_cell: Cell -> values of its runs.
        blocks: The values as a table [cells, blocks], NaN if a cell has no run in a block. Runs alone in
            their block are left out. If a cell has several runs in a block, nothing is paired: all are NaN.
    """

    by_cell: dict[str, np.ndarray]
    blocks: pd.DataFrame

    @classmethod
    def from_runs(cls, runs: pd.DataFrame, column: str) -> "Values":
        """Return the values of a column of runs.csv, which must have no missing value."""
        values = runs[column].to_numpy(float)
        by_cell = {str(cell): values[rows] for cell, rows in runs.groupby("cell").indices.items()}
        block = block_of(runs)
        table = pd.DataFrame({"cell": runs["cell"].to_numpy(str), "block": block, "value": values})
        table = table[table.duplicated("block", keep=False)]
        if table.empty or table.duplicated(["cell", "block"]).any():
            return cls(by_cell, pd.DataFrame(math.nan, index=list(by_cell), columns=[0]))
        return cls(by_cell, table.pivot(index="cell", columns="block", values="value"))

    @cached_property
    def log(self) -> "Values":
        """Natural logarithms of the values."""
        return Values({cell: np.log(x) for cell, x in self.by_cell.items()}, np.log(self.blocks))

    @cached_property
    def inverse(self) -> "Values":
        """Inverses of the values."""
        return Values({cell: 1 / x for cell, x in self.by_cell.items()}, 1 / self.blocks)

    @cached_property
    def linearized_rates(self) -> "Values":
        """Rates linearized about each cell's harmonic mean h as h (2 - h / rate).

        Their arithmetic mean is h, and their spread gives its standard error (delta method).
        """
        means = {cell: 1 / x.mean() for cell, x in self.inverse.by_cell.items()}
        h = pd.Series(means, dtype=float).reindex(self.blocks.index)
        blocks = (2 - self.inverse.blocks.mul(h, axis="index")).mul(h, axis="index")
        return Values({cell: means[cell] * (2 - means[cell] / x) for cell, x in self.by_cell.items()}, blocks)

    def compare_pairs(
        self, first: Sequence[str], second: Sequence[str], min_shared_blocks: int = MIN_PAIRED_DF + 1
    ) -> pd.DataFrame:
        """Compare pairs of cells within blocks if they share enough of them, else as independent groups.

        Returns:
            A row per pair as returned by `intervals.paired` or `intervals.welch`, with within_blocks, the
            number of shared blocks or 0.
        """
        blocks = (self.blocks.reindex(list(cells)).to_numpy(float) for cells in (first, second))
        paired = intervals.paired(*blocks)
        unpaired = np.flatnonzero(paired["first_n"] < min_shared_blocks)
        cells = (np.asarray(cells, dtype=object)[unpaired].tolist() for cells in (first, second))
        independent = intervals.welch(self.by_cell, *cells).set_index(unpaired).assign(within_blocks=0)
        paired = paired.assign(within_blocks=paired["first_n"]).drop(unpaired)
        return pd.concat([paired, independent]).sort_index()

    def differences(self, first: Sequence[str], second: Sequence[str]) -> pd.DataFrame:
        """Return the mean of each first cell less that of the second (`intervals.difference_intervals`)."""
        return intervals.difference_intervals(self.compare_pairs(first, second))


@dataclass(frozen=True)
class VariancePrior:
    """The typical variance of all cells, and its weight in degrees of freedom; 0 if none is typical."""

    variance: float
    df: float

    def moderated(
        self, variances: np.ndarray, df: np.ndarray, typical: np.ndarray | float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Move variances towards the typical variance (Smyth 2004).

        Args:
            variances: Variances [n].
            df: Their degrees of freedom [n].
            typical: Typical variance of the same quantity, if it is not `variance`.

        Returns:
            The moderated variances and their degrees of freedom.
        """
        if not self.df:
            return variances, df
        typical = self.variance if typical is None else typical
        weight = 1 / (1 + df / self.df)
        return weight * typical + (1 - weight) * np.where(df > 0, variances, 0.0), self.df + df


def estimate_prior(variances: np.ndarray, df: np.ndarray, max_df: float) -> VariancePrior:
    """Estimate the typical variance of cells (Smyth 2004, section 6.2).

    Uses mean and variance of the log variances. Each variance is a chi square over its degrees of freedom,
    times a true variance that is itself scaled inverse chi square. With fewer than two variances, or if all
    are 0, none is typical.

    Args:
        variances: Variances [cells].
        df: Their degrees of freedom [cells].
        max_df: Largest weight of the typical variance.
    """
    if len(variances) < 2 or not variances.any():
        return VariancePrior(math.nan, 0.0)
    logs = np.log(np.maximum(variances, MIN_VARIANCE_RATIO * np.median(variances[variances > 0])))
    logs += np.log(df / 2) - special.digamma(df / 2)
    mean, excess = float(logs.mean()), float(logs.var(ddof=1) - special.polygamma(1, df / 2).mean())
    if excess <= special.polygamma(1, 1e6):  # The variances differ no more than their df explain.
        return VariancePrior(float((variances * df).sum() / df.sum()), max_df)
    prior_df = 2 * optimize.brentq(lambda half: special.polygamma(1, half) - excess, 1e-6, 1e6)
    variance = math.exp(mean + special.digamma(prior_df / 2) - math.log(prior_df / 2))
    return VariancePrior(variance, min(prior_df, max_df))


@dataclass(frozen=True)
class Spread:
    """Spread of values, such as log epoch times, within cells.

    Attributes:
        spread_values: Cell -> its values, mostly logarithms.
        lost_df: Degrees of freedom taken by other parameters than the cells' means, such as blocks or slopes.
        max_prior_df: Largest weight of the typical variance, if it is not MAX_PRIOR_DF.
    """

    spread_values: dict[str, np.ndarray]
    lost_df: int
    max_prior_df: float | None = field(default=None, kw_only=True)

    @cached_property
    def replicated(self) -> list[np.ndarray]:
        """Values of the cells with two or more values."""
        return [x for x in self.spread_values.values() if len(x) > 1]

    @cached_property
    def spreads(self) -> np.ndarray:
        """Standard deviations of the cells with two or more values, [cells]."""
        return np.array([_sd(x) for x in self.replicated])

    @cached_property
    def df(self) -> int:
        """Degrees of freedom of `sd`."""
        return max(0, sum(len(x) - 1 for x in self.replicated) - self.lost_df)

    @cached_property
    def sd(self) -> float:
        """Standard deviation pooled over cells; NaN without degrees of freedom."""
        squares = sum(s**2 * (len(x) - 1) for s, x in zip(self.spreads, self.replicated, strict=True))
        return math.sqrt(squares / self.df) if self.df else math.nan

    @cached_property
    def df_share(self) -> float:
        """Share of the cells' degrees of freedom that is not lost; all cells lose the same share."""
        return self.df / sum(len(x) - 1 for x in self.replicated) if self.df else 1.0

    @cached_property
    def prior(self) -> VariancePrior:
        """Typical variance of the cells."""
        if not self.df:
            return VariancePrior(math.nan, 0.0)
        counts = np.array([len(x) - 1 for x in self.replicated])
        max_df = MAX_PRIOR_DF if self.max_prior_df is None else self.max_prior_df
        return estimate_prior(self.spreads**2 / self.df_share, counts * self.df_share, max_df)

    @cached_property
    def moderated_spreads(self) -> np.ndarray:
        """Moderated standard deviations of the cells with two or more values, with which tests are done."""
        df = np.array([len(x) - 1 for x in self.replicated]) * self.df_share
        return np.sqrt(self.prior.moderated(self.spreads**2 / self.df_share, df)[0])

    @cached_property
    def bartlett(self) -> tuple[float, float]:
        """Statistic and p of Bartlett's test of equal standard deviations; NaN if the test is undefined."""
        if len(self.replicated) < 2 or not self.spreads.all():
            return math.nan, math.nan
        test = scipy.stats.bartlett(*self.replicated)
        return float(test.statistic), float(test.pvalue)

    @property
    def statistic(self) -> float:
        """Statistic of Bartlett's test."""
        return self.bartlett[0]

    @property
    def p(self) -> float:
        """P of Bartlett's test."""
        return self.bartlett[1]

    @property
    def largest_spread_ratio(self) -> float:
        """Largest of `spreads` over the smallest; infinite if only some are 0, NaN without spreads."""
        with np.errstate(all="ignore"):
            return float(self.spreads.max() / self.spreads.min()) if len(self.spreads) else math.nan

    @property
    def differ(self) -> bool:
        """Whether the values show that the cells' standard deviations differ."""
        return self.p < SIGNIFICANCE_LEVEL or self.largest_spread_ratio > MAX_SPREAD_RATIO


@dataclass(frozen=True)
class CellMeans(Spread):
    """Means of a response by cell, and comparisons of cells, with the spread of log responses behind them.

    As a `Spread`, its `spread_values` are the logarithms, with the effects of blocks. The values themselves
    are `values_by_cell`. Of two cells that are compared, a difference is the first less the second, and a
    ratio the first over the second.

    Attributes:
        values: The response of the runs, such as epoch times in s.
        is_rate: Whether means are harmonic.
    """

    values: Values
    is_rate: bool = field(default=False, kw_only=True)

    @property
    def values_by_cell(self) -> dict[str, np.ndarray]:
        """Cell -> values of its runs, not their logarithms."""
        return self.values.by_cell

    @cached_property
    def cell_statistics(self) -> pd.DataFrame:
        """Statistics by cell: n, mean, low and high (95 %), cv, log_sd, and the moderated s with its df.

        The interval is mean x exp(-+ t(df) s / sqrt(n)): log(mean) has the variance of the mean logarithm,
        s^2 / n (delta method). It is an interval for one cell, not a simultaneous one for all. The mean of a
        single run has an interval as well if others show a typical variance (`VariancePrior.df` > 0): s^2 is
        then this variance, and df its weight w. The module's docstring lists the assumptions. For rates, cv
        is the coefficient of variation of their inverses.
        """
        names = list(self.values_by_cell)
        costs = self.values.inverse if self.is_rate else self.values
        n = np.array([len(x) for x in self.values_by_cell.values()], dtype=int)
        with np.errstate(all="ignore"):
            rows = [(x.mean(), _sd(x), _sd(np.log(x))) for x in costs.by_cell.values()]
        cost, sd, log_sd = np.array(rows, dtype=float).reshape(-1, 3).T
        mean = 1 / cost if self.is_rate else cost
        variance, df = self.prior.moderated(log_sd**2 / self.df_share, (n - 1) * self.df_share)
        s, df = np.sqrt(variance), np.minimum(df, self.max_mean_df)
        low, high = intervals.t_interval(0.0, s / np.sqrt(n), df)
        data = {"n": n, "mean": mean, "low": mean * np.exp(low), "high": mean * np.exp(high), "cv": sd / cost}
        return pd.DataFrame({**data, "log_sd": log_sd, "s": s, "df": df}, index=pd.Index(names, name="cell"))

    @property
    def half_widths(self) -> "pd.Series[float]":
        """Half the 95 % interval of each cell's mean on the log scale: about its share of the mean."""
        return np.log(self.cell_statistics["high"] / self.cell_statistics["low"]) / 2

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Cell -> mean, with its interval."""
        rows = self.cell_statistics[["mean", "low", "high", "n", "cv"]].itertuples(name=None)
        return {cell: Estimate(mean, low, high, int(n), cv) for cell, mean, low, high, n, cv in rows}

    def cell_mean(self, cell: str) -> Estimate:
        """Return the mean of a cell, with its interval; NaN without a successful run."""
        return self.estimates.get(cell, Estimate(math.nan))

    @cached_property
    def residual_spread(self) -> Spread:
        """Spread of the logarithms' residuals after cells and blocks."""
        log = self.values.log.blocks
        cell, block = np.nonzero(log.notna().to_numpy())
        residual, block_df = after_blocks(log.to_numpy()[cell, block], cell, block)
        parts = np.split(residual, np.flatnonzero(np.diff(cell)) + 1)
        return Spread(
            dict(zip(log.index[np.unique(cell)], parts, strict=False)),
            block_df + self.lost_df,
            max_prior_df=self.max_prior_df,
        )

    @cached_property
    def max_mean_df(self) -> float:
        """Largest degrees of freedom that the mean of a cell can have (Satterthwaite, Biometrics 2, 1946).

        Block effects are estimated from as many values as there are blocks, however many cells there are. If
        all cells have equally many runs in every block, it is the limit for a mean in randomized complete
        blocks. It is at most `df`.
        """
        if self.sd == 0:
            return float(self.df)
        logs, residual = self.values.log.blocks, self.residual_spread
        about_means = float((logs.sub(logs.mean(axis="columns"), axis="index") ** 2).sum(axis=None))
        block_squares = max(0.0, about_means - (residual.sd**2 * residual.df if residual.df else 0.0))
        run_squares = self.sd**2 * self.df - block_squares
        block_df = residual.lost_df - self.lost_df
        parts = ((block_squares, block_df), (run_squares, self.df - block_df))
        squares = [part**2 / df for part, df in parts if df]
        return (
            min(float(self.df), (self.sd**2 * self.df) ** 2 / sum(squares))
            if sum(squares)
            else float(self.df)
        )

    def mean_df(self, n: int) -> float:
        """Return the degrees of freedom of the mean of n runs."""
        return float(min(self.prior.df + n - 1, self.max_mean_df))

    def resolution(self, n: int) -> tuple[Spread, float]:
        """Return the spread and the df of comparisons of cells of n runs, within blocks if these suffice."""
        residual = self.residual_spread
        if n >= MIN_SHARED_BLOCKS and residual.df:
            return residual, float(min(residual.prior.df + n - 1, residual.df))
        return self, float(min(2 * (self.prior.df + n - 1), self.max_mean_df))

    def ratios(self, numerator: Sequence[str], denominator: Sequence[str]) -> pd.DataFrame:
        """Return the mean of each cell in `numerator` over the mean of its partner in `denominator`.

        log(ratio) has the error of the difference of mean logarithms (delta method).

        Returns:
            A row per pair: value, low, high, df, n (the smaller), p of a ratio of 1, and within_blocks: the
            number of blocks that are compared, 0 for independent groups, NaN without an interval.
        """
        means, logs = self._compare_pairs(numerator, denominator)
        value = means["first"] / means["second"]
        low, high = intervals.t_interval(0.0, logs["error"], logs["df"])
        blocks = logs["within_blocks"].where(np.isfinite(logs["error"]))
        return intervals.difference_intervals(logs).assign(
            value=value,
            low=value * np.exp(low),
            high=value * np.exp(high),
            df=logs["df"],
            within_blocks=blocks,
        )

    def log_differences(self, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        """Return the differences of mean logarithms of pairs of cells over the compared runs, [pairs]."""
        logs = self.values.log.compare_pairs(first, second, MIN_SHARED_BLOCKS)
        return (logs["first"] - logs["second"]).to_numpy(float)

    def equivalence_p(self, first: Sequence[str], second: Sequence[str], margin: float) -> np.ndarray:
        """Return p that each ratio of means lies outside 1 / (1 + margin) to 1 + margin."""
        logs, limit = self._compare_pairs(first, second)[1], math.log1p(margin)
        value = (logs["first"] - logs["second"]).to_numpy(float)
        error, df = (logs[name].to_numpy(float) for name in ("error", "df"))
        return intervals.equivalence_p(value, error, df, -limit, limit)

    def differences(self, first: Sequence[str], second: Sequence[str]) -> pd.DataFrame:
        """Return the difference of means of each pair, with interval and n (the smaller)."""
        return intervals.difference_intervals(self._compare_pairs(first, second)[0]).drop(columns="p")

    def pair_means(self, first: Sequence[str], second: Sequence[str]) -> pd.DataFrame:
        """Return the means `first` and `second` of each pair's compared runs, with first_n and second_n."""
        return self._compare_values(first, second)[["first", "second", "first_n", "second_n"]]

    def _compare_values(self, first: Sequence[str], second: Sequence[str]) -> pd.DataFrame:
        """Return `Values.compare_pairs` of each pair, for rates with harmonic means."""
        if not self.is_rate:
            return self.values.compare_pairs(first, second, MIN_SHARED_BLOCKS)
        inverse = self.values.inverse.compare_pairs(first, second, MIN_SHARED_BLOCKS)
        pairs = self.values.linearized_rates.compare_pairs(first, second, MIN_SHARED_BLOCKS)
        return pairs.assign(first=1 / inverse["first"], second=1 / inverse["second"])

    def _compare_pairs(
        self, first: Sequence[str], second: Sequence[str]
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the comparisons of means and of logarithms of each pair, with moderated variances.

        By the delta method, the typical variance of a difference of means is the variance of logarithms times
        the squared means.
        """
        means = self._compare_values(first, second)
        logs = self.values.log.compare_pairs(first, second, MIN_SHARED_BLOCKS)
        is_paired = (logs["within_blocks"] > 0).to_numpy()
        mean, second_mean, n, second_n = means[["first", "second", "first_n", "second_n"]].to_numpy(float).T
        residual, statistics = self.residual_spread, self.cell_statistics[["s", "df"]]
        prior, df_share = residual.prior, residual.df / (residual.df + self.lost_df) if residual.df else 1.0
        (s, df), (second_s, second_df) = (
            statistics.reindex(list(cells)).to_numpy(float).T for cells in (first, second)
        )
        for pairs, scale, second_scale in ((logs, 1.0, 1.0), (means, mean, second_mean)):
            difference_variance = pairs["error"].to_numpy(float) ** 2 * n
            typical = prior.variance * (scale**2 + second_scale**2) if prior.df else None
            paired, paired_df = prior.moderated(difference_variance / df_share, (n - 1) * df_share, typical)
            squares, second_squares = (s * scale) ** 2 / n, (second_s * second_scale) ** 2 / second_n
            welch_error, welch_df = intervals.welch_error(squares, df, second_squares, second_df)
            with np.errstate(all="ignore"):
                pairs["error"] = np.where(is_paired, np.sqrt(paired / n), welch_error)
            pairs["df"] = np.where(
                is_paired, np.minimum(paired_df, residual.df), np.minimum(welch_df, self.max_mean_df)
            )
        return means, logs


@cache_last("status", "cell", "session", "block", "epoch_time_s")
def estimate_means(runs: pd.DataFrame) -> CellMeans:
    """Return the mean epoch times of a study's cells, from all successful runs."""
    return estimate_column_means(successful(runs), EPOCH_TIME.column)


def estimate_response_means(runs: pd.DataFrame, response: Response) -> CellMeans:
    """Return the means of a response in a study's cells, from all successful runs that have it."""
    if response == EPOCH_TIME:
        return estimate_means(runs)
    measured = successful(runs).dropna(subset=response.column)
    return estimate_column_means(measured, response.column, is_rate=response.is_rate)


def measured_response(runs: pd.DataFrame, response: Response) -> Response:
    """Return the response with the currency of the runs, or epoch time if no successful run has it."""
    is_measured = response.column in runs and successful(runs)[response.column].notna().any()
    return response.with_currency(currency_of(runs)) if is_measured else EPOCH_TIME


def estimate_column_means(runs: pd.DataFrame, column: str, *, is_rate: bool = False) -> CellMeans:
    """Return the means of a column by cell; all its values are positive, and none is missing."""
    values = Values.from_runs(runs, column)
    return CellMeans(values.log.by_cell, 0, values, is_rate=is_rate)


def name_bounds(means: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return mean, low and high of `CellMeans.cell_statistics` as `column`, with the ends _low and _high."""
    named = {"mean": column, "low": f"{column}_low", "high": f"{column}_high"}
    return means[list(named)].rename(columns=named)


def after_blocks(y: np.ndarray, cell: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the residuals of y [runs] after cells and blocks, and the degrees of freedom that blocks take.

    Fits the two-way additive model by least squares. Cell means are removed from both sides, which equals a
    fit with a column per cell (Frisch & Waugh 1933).
    """
    columns = np.column_stack([y, pd.get_dummies(pd.Series(block), drop_first=True, dtype=float)])
    columns -= pd.DataFrame(columns).groupby(np.asarray(cell)).transform("mean").to_numpy()
    columns[np.abs(columns) < ROUNDING] = 0.0
    residual, blocks = columns[:, 0], columns[:, 1:]
    if not blocks.size:
        return residual, 0
    effects, _, rank, _ = np.linalg.lstsq(blocks, residual, rcond=None)
    residual = residual - blocks @ effects
    return np.where(np.abs(residual) < ROUNDING, 0.0, residual), int(rank)


def _sd(x: np.ndarray) -> float:
    """Return the standard deviation; 0 for equal values despite rounding, NaN for one value."""
    if len(x) < 2:
        return math.nan
    return float(x.std(ddof=1)) if np.ptp(x) > 0 else 0.0
