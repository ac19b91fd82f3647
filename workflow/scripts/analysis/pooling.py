"""How far the runs of a cell spread, and what two cells differ by: the one place where intervals of epoch times are made.

Times are compared as ratios, so spreads are those of their natural logarithms; a cell's number stays its arithmetic mean
(Hoefler & Belli, SC'15, rule 3). With three runs a cell says little of its own variance, and no two cells need have the same. So
variances are moderated, always (Smyth, Stat. Appl. Genet. Mol. Biol. 3(1), 2004, as in limma): a cell's variance is the mean of its own
and of that which is typical of all cells, weighted with their degrees of freedom; those of the typical one say how alike the
cells' variances are, and are estimated from them (`prior_of`), MOST_PRIOR at most. There is no test that switches from one method to
another, which would switch on noise.

MOST_PRIOR is chosen by simulation, 3 and 5 runs of 4 to 60 cells, normal logarithms, equal spreads of 10 %, spreads of 5 to 20 %, half
of the cells with twice and one with three times the spread of the others, without and with blocks of 10 % and autocorrelation of 0.5
(make statistics-test; docs/explanation/statistics.md has the table): a larger one makes intervals narrower, and those of the noisiest
cell hold the truth too seldom.

Cells are compared within blocks, since designs are of randomized complete ones: over the blocks in which both have a run,
so that what a block does to both is in neither the ratio nor its error. The variance is that of the two cells' differences (paired t
test), moderated by what cells and blocks leave of all logarithms (two-way additive model by least squares; Montgomery, Design and
Analysis of Experiments, 8th ed. (2013), section 4.1). Two cells that share fewer than FEWEST_BLOCKS blocks are compared as independent
groups, whose intervals blocks can only make too wide. A run is in the block that it was planned for where it was made in one session
with the others. A cell's own mean keeps blocks in its spread: another replicate would be in another block. What blocks add to it is
known from the blocks alone, however many cells there are (`Pooling.freedom`).
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
from analysis.intervals import LEVEL, ROUNDING, Estimate
from analysis.measured import block_of, last_kept, successful

FEWEST_BLOCKS = 3  # that two cells share
FEWEST_DF = 4  # of a paired test without moderation: Student's t is at most a fifth above that of twice as many
MOST_PRIOR = 2.0  # degrees of freedom of what is typical of all cells
SMALLEST = 1e-5  # of the median of variances, which a variance of 0 is taken for
MOST_APART = 3.5  # the largest of the cells' spreads over the smallest, from which on one for all is doubtful


@dataclass(frozen=True)
class Values:
    """One response of the runs: `groups`, cell -> its values; `blocks` [cells, blocks] the same, NaN where a cell has no run.

    A run that is alone in its block is not in `blocks`. Where a cell has several runs in a block, blocks are not those of a
    complete design, and there is NaN alone.
    """

    groups: dict[str, np.ndarray]
    blocks: pd.DataFrame

    @classmethod
    def of(cls, runs: pd.DataFrame, column: str) -> "Values":
        """The values of a column of runs.csv that has one for all of `runs`."""
        values = runs[column].to_numpy(float)
        groups = {str(cell): values[rows] for cell, rows in runs.groupby("cell").indices.items()}
        block = block_of(runs)
        table = pd.DataFrame({"cell": runs["cell"].to_numpy(str), "block": block, "value": values})
        table = table[table.duplicated("block", keep=False)]
        if table.empty or table.duplicated(["cell", "block"]).any():
            return cls(groups, pd.DataFrame(math.nan, index=list(groups), columns=[0]))
        return cls(groups, table.pivot(index="cell", columns="block", values="value"))

    @cached_property
    def log(self) -> "Values":
        """Their natural logarithms."""
        return Values({cell: np.log(x) for cell, x in self.groups.items()}, np.log(self.blocks))

    def compared(self, to: Sequence[str], base: Sequence[str], fewest: int = FEWEST_DF + 1) -> pd.DataFrame:
        """A row per pair of cells as of `intervals.paired` where they share `fewest` blocks, else as of `intervals.welch`;
        within_blocks: how many they are, 0 for independent groups."""
        shared = intervals.paired(*(self.blocks.reindex(list(cells)).to_numpy(float) for cells in (to, base)))
        apart = np.flatnonzero(shared["n"] < fewest)
        ends = (np.asarray(cells, dtype=object)[apart].tolist() for cells in (to, base))
        pairs = intervals.welch(self.groups, *ends).set_index(apart)
        within = shared.assign(within_blocks=shared["n"]).drop(apart)
        return pd.concat([within, pairs.assign(within_blocks=0)]).sort_index()

    def differences(self, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
        """A row per pair of cells: difference of means with its interval, n, p (`intervals.bounded`), by their own spreads."""
        return intervals.bounded(self.compared(to, base))


@dataclass(frozen=True)
class Prior:
    """What is typical of the variances of all cells, and as how many degrees of freedom it counts beside a cell's own; 0: nothing."""

    variance: float
    df: float

    def moderated(
        self, own: np.ndarray, df: np.ndarray, typical: np.ndarray | float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Variances `own` with `df` degrees of freedom, moderated, and their degrees of freedom. `typical`: of the same quantity."""
        if not self.df:
            return own, df
        of_all, weight = self.variance if typical is None else typical, 1 / (1 + df / self.df)
        return weight * of_all + (1 - weight) * np.where(df > 0, own, 0.0), self.df + df


def prior_of(variances: np.ndarray, df: np.ndarray, most: float) -> Prior:
    """What is typical of variances [cells] with these degrees of freedom (Smyth 2004, section 6.2), weighing `most` at most.

    By the mean and the variance of their logarithms, if each is a chi square over its degrees of freedom, times a variance that is
    itself scaled inverse chi square. Nothing is typical of fewer than two, or where all are 0.
    """
    if len(variances) < 2 or not variances.any():
        return Prior(math.nan, 0.0)
    logs = np.log(np.maximum(variances, SMALLEST * np.median(variances[variances > 0])))
    logs += np.log(df / 2) - special.digamma(df / 2)
    mean, apart = float(logs.mean()), float(logs.var(ddof=1) - special.polygamma(1, df / 2).mean())
    if apart <= special.polygamma(1, 1e6):  # no further apart than their degrees of freedom make them
        return Prior(float((variances * df).sum() / df.sum()), most)
    of_prior = 2 * optimize.brentq(lambda half: special.polygamma(1, half) - apart, 1e-6, 1e6)
    variance = math.exp(mean + special.digamma(of_prior / 2) - math.log(of_prior / 2))
    return Prior(variance, min(of_prior, most))


@dataclass(frozen=True)
class Spread:
    """How far values, such as logarithms of epoch times, spread within cells.

    `groups`: cell -> values. `lost`: degrees of freedom that something else than the cells' means took from them. `most`: degrees of
    freedom of what is typical of all cells, at most, in place of MOST_PRIOR.
    """

    groups: dict[str, np.ndarray]
    lost: int
    most: float | None = field(default=None, kw_only=True)

    @cached_property
    def several(self) -> list[np.ndarray]:
        """The values of the cells that have two or more."""
        return [x for x in self.groups.values() if len(x) > 1]

    @cached_property
    def spreads(self) -> np.ndarray:
        """The standard deviations of the cells with two values or more, [cells]."""
        return np.array([_sd(x) for x in self.several])

    @cached_property
    def df(self) -> int:
        """The degrees of freedom of `sd`."""
        return max(0, sum(len(x) - 1 for x in self.several) - self.lost)

    @cached_property
    def sd(self) -> float:
        """The standard deviation pooled over cells; NaN without degrees of freedom."""
        squares = sum(s**2 * (len(x) - 1) for s, x in zip(self.spreads, self.several, strict=True))
        return math.sqrt(squares / self.df) if self.df else math.nan

    @cached_property
    def kept(self) -> float:
        """The share of the cells' degrees of freedom that is not lost. What is lost is lost by all cells alike."""
        return self.df / sum(len(x) - 1 for x in self.several) if self.df else 1.0

    @cached_property
    def prior(self) -> Prior:
        """What is typical of the cells' variances."""
        if not self.df:
            return Prior(math.nan, 0.0)
        counts = np.array([len(x) - 1 for x in self.several])
        most = MOST_PRIOR if self.most is None else self.most
        return prior_of(self.spreads**2 / self.kept, counts * self.kept, most)

    @cached_property
    def bartlett(self) -> tuple[float, float]:
        """Statistic and p of Bartlett's test that all cells have one standard deviation; NaN where it cannot be made."""
        if len(self.several) < 2 or not self.spreads.all():
            return math.nan, math.nan
        test = scipy.stats.bartlett(*self.several)
        return float(test.statistic), float(test.pvalue)

    @property
    def statistic(self) -> float:
        """That of Bartlett's test."""
        return self.bartlett[0]

    @property
    def p(self) -> float:
        """That of Bartlett's test."""
        return self.bartlett[1]

    @property
    def apart(self) -> float:
        """The largest of `spreads` over the smallest; infinite where only one of them is 0, NaN with none."""
        with np.errstate(all="ignore"):
            return float(self.spreads.max() / self.spreads.min()) if len(self.spreads) else math.nan

    @property
    def differ(self) -> bool:
        """Whether the values show that cells do not share one standard deviation."""
        return self.p < LEVEL or self.apart > MOST_APART


@dataclass(frozen=True)
class Pooling(Spread):
    """The spread of the runs' log epoch times within cells, blocks included, and what it says of cells and of pairs of them.

    `seconds`: the epoch times.
    """

    seconds: Values

    @property
    def samples(self) -> dict[str, np.ndarray]:
        """Cell -> epoch times in s."""
        return self.seconds.groups

    @cached_property
    def cells(self) -> pd.DataFrame:
        """By cell: n, mean, low, high (s), cv, log_sd; s and df: the moderated standard deviation of the logarithms and its freedom.

        The interval is mean x exp(-+ t(df) s / sqrt(n)): log(mean) has the variance of the mean logarithm, s^2 / n (delta method).
        """
        names = list(self.samples)
        n = np.array([len(times) for times in self.samples.values()], dtype=int)
        with np.errstate(all="ignore"):
            rows = [(x.mean(), _sd(x), _sd(np.log(x))) for x in self.samples.values()]
        mean, sd, log_sd = np.array(rows, dtype=float).reshape(-1, 3).T
        variance, df = self.prior.moderated(log_sd**2 / self.kept, (n - 1) * self.kept)
        s, df = np.sqrt(variance), np.minimum(df, self.freedom)
        low, high = intervals.t_interval(0.0, s / np.sqrt(n), df)
        data = {"n": n, "mean": mean, "low": mean * np.exp(low), "high": mean * np.exp(high), "cv": sd / mean}
        return pd.DataFrame({**data, "log_sd": log_sd, "s": s, "df": df}, index=pd.Index(names, name="cell"))

    @property
    def half_widths(self) -> "pd.Series[float]":
        """By cell: half of the 95 % interval of its mean on the log scale, about a share of the mean; NaN without one."""
        return np.log(self.cells["high"] / self.cells["low"]) / 2

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Cell -> its mean epoch time in s, with its interval."""
        rows = self.cells[["mean", "low", "high", "n", "cv"]].itertuples(name=None)
        return {cell: Estimate(mean, low, high, int(n), cv) for cell, mean, low, high, n, cv in rows}

    def of(self, cell: str) -> Estimate:
        """Mean epoch time of a cell in s, with its interval; NaN where it has no successful run."""
        return self.estimates.get(cell, Estimate(math.nan))

    @cached_property
    def within(self) -> Spread:
        """The spread of what cells and blocks leave of the logarithms."""
        log = self.seconds.log.blocks
        cell, block = np.nonzero(log.notna().to_numpy())
        residual, lost = after_blocks(log.to_numpy()[cell, block], cell, block)
        parts = np.split(residual, np.flatnonzero(np.diff(cell)) + 1)
        return Spread(dict(zip(log.index[np.unique(cell)], parts, strict=False)), lost + self.lost, most=self.most)

    @cached_property
    def freedom(self) -> float:
        """The degrees of freedom of `sd`, the spread of a cell's mean, by Satterthwaite (Biometrics 2, 1946): at most `df`.

        Blocks move all of their cells together, so that what they add to the variance is known from the blocks alone, however many
        cells there are. With as many runs of every cell in every block that is the error of a mean in randomized complete blocks.
        """
        if self.sd == 0:
            return float(self.df)
        logs, within = self.seconds.log.blocks, self.within
        about_means = float((logs.sub(logs.mean(axis="columns"), axis="index") ** 2).sum(axis=None))
        of_blocks = max(0.0, about_means - (within.sd**2 * within.df if within.df else 0.0))
        others = self.sd**2 * self.df - of_blocks
        blocks = within.lost - self.lost
        squares = [part**2 / df for part, df in ((of_blocks, blocks), (others, self.df - blocks)) if df]
        return min(float(self.df), (self.sd**2 * self.df) ** 2 / sum(squares)) if sum(squares) else float(self.df)

    def of_mean(self, n: int) -> float:
        """The degrees of freedom of the mean of n runs."""
        return float(min(self.prior.df + n - 1, self.freedom))

    def resolution(self, n: int) -> tuple[Spread, float]:
        """The spread on which comparisons of two cells of n runs rest, `within` blocks or `self`, and its degrees of freedom."""
        if n >= FEWEST_BLOCKS and self.within.df:
            return self.within, float(min(self.within.prior.df + n - 1, self.within.df))
        return self, float(min(2 * (self.prior.df + n - 1), self.freedom))

    def ratios(self, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
        """A row per pair of cells: ratio of mean epoch times, its interval and its degrees of freedom df, n (the smaller), p that it
        is 1; within_blocks: in how many the cells are compared, 0 as independent groups, missing without an interval.

        log(ratio) has the error of the difference of mean logarithms (delta method).
        """
        seconds, logs = self._compared(to, base)
        value = seconds["to"] / seconds["base"]
        low, high = intervals.t_interval(0.0, logs["error"], logs["df"])
        blocks = logs["within_blocks"].where(np.isfinite(logs["error"]))
        return intervals.bounded(logs).assign(
            value=value, low=value * np.exp(low), high=value * np.exp(high), df=logs["df"], within_blocks=blocks
        )

    def log_differences(self, to: Sequence[str], base: Sequence[str]) -> np.ndarray:
        """The differences of the mean logarithms of pairs of cells, over the runs that are compared, [pairs]."""
        logs = self.seconds.log.compared(to, base, FEWEST_BLOCKS)
        return (logs["to"] - logs["base"]).to_numpy(float)

    def equal(self, to: Sequence[str], base: Sequence[str], margin: float) -> np.ndarray:
        """p of each pair that its ratio of mean epoch times lies outside 1 / (1 + margin) to 1 + margin (`intervals.equivalence`)."""
        logs, limit = self._compared(to, base)[1], math.log1p(margin)
        value, error, df = (
            (logs["to"] - logs["base"]).to_numpy(float),
            *(logs[name].to_numpy(float) for name in ("error", "df")),
        )
        return intervals.equivalence(value, error, df, -limit, limit)

    def differences(self, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
        """A row per pair of cells: difference of mean epoch times in s, its interval, n (the smaller)."""
        return intervals.bounded(self._compared(to, base)[0]).drop(columns="p")

    def compared(self, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
        """A row per pair of cells: of the runs that are compared the mean epoch times `to` and `base` (s), their numbers n and base_n."""
        return self.seconds.compared(to, base, FEWEST_BLOCKS)[["to", "base", "n", "base_n"]]

    def _compared(self, to: Sequence[str], base: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Of each pair what `Values.compared` says of its seconds and of its logarithms, with moderated variances.

        What is typical of a difference of seconds is, by the delta method, what is typical of logarithms, times the means.
        """
        seconds, logs = (values.compared(to, base, FEWEST_BLOCKS) for values in (self.seconds, self.seconds.log))
        within = (logs["within_blocks"] > 0).to_numpy()
        mean, base_mean, n, base_n = (seconds[name].to_numpy(float) for name in ("to", "base", "n", "base_n"))
        prior, own = self.within.prior, self.cells[["s", "df"]]
        kept = self.within.df / (self.within.df + self.lost) if self.within.df else 1.0
        (s, df), (base_s, base_df) = (own.reindex(list(cells)).to_numpy(float).T for cells in (to, base))
        for pairs, scale, base_scale in ((logs, 1.0, 1.0), (seconds, mean, base_mean)):
            of_difference = pairs["error"].to_numpy(float) ** 2 * n
            typical = prior.variance * (scale**2 + base_scale**2) if prior.df else None
            paired, paired_df = prior.moderated(of_difference / kept, (n - 1) * kept, typical)
            of_one, of_other = (s * scale) ** 2 / n, (base_s * base_scale) ** 2 / base_n
            with np.errstate(all="ignore"):
                both = (of_one + of_other) ** 2 / (of_one**2 / df + of_other**2 / base_df)
                pairs["error"] = np.where(within, np.sqrt(paired / n), np.sqrt(of_one + of_other))
            both = np.where(of_one + of_other == 0, np.minimum(df, base_df), both)
            pairs["df"] = np.where(within, np.minimum(paired_df, self.within.df), np.minimum(both, self.freedom))
        return seconds, logs


@last_kept("status", "cell", "session", "block", "epoch_time_s")
def pooled(runs: pd.DataFrame) -> Pooling:
    """The spread of all successful runs of a study."""
    seconds = Values.of(successful(runs), "epoch_time_s")
    return Pooling(seconds.log.groups, 0, seconds)


def after_blocks(y: np.ndarray, cell: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, int]:
    """What cells and blocks leave of y [runs] (least squares of the two-way additive model), and the degrees of freedom that
    blocks take beside cells.

    Cells' means are taken out of both sides (Frisch & Waugh 1933), which gives the fit with a column for every cell.
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
    """Standard deviation; 0 for equal values, whatever rounding makes of them, and NaN for one."""
    if len(x) < 2:
        return math.nan
    return float(x.std(ddof=1)) if np.ptp(x) > 0 else 0.0
