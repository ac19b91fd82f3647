"""How far the runs of a cell spread, and what two cells differ by: the one place where intervals of epoch times are made.

Times are compared as ratios, so spreads are those of their natural logarithms; a cell's number stays its arithmetic mean
(Hoefler & Belli, SC'15, rule 3). All cells have one standard deviation where they share it, else each its own. Whether
they share it is asked of Bartlett's test, which wants normal logarithms and takes heavy tails for unequal spreads; then
each cell keeps its own, which is the careful answer. With few runs the test sees little: six cells of three runs, one with
three times the spread, mostly pass it, and that cell's interval holds the truth in 75 % of studies. So cells are pooled only
where most have three runs, and no standard deviation is more than 3.5 times another. By simulation with normal logarithms
the noisiest cell's interval then holds in 88 % or more: 6 cells of 3 runs, one or half of them with 2 or 3 times the spread
of the others, 12 of 5 and one with twice, 40 of 3 or 5. The worst found is 85 %: 12 cells of 10 runs, one with twice the
spread.

Cells are compared within blocks, since designs are of randomized complete ones: over the blocks in which both have a run,
so that what a block does to both is in neither the ratio nor its error. The spread is what cells and blocks leave of the
logarithms (two-way additive model by least squares; Montgomery, Design and Analysis of Experiments, 8th ed. (2013), section
4.1), one for all cells where these share it before blocks are taken out and after, else that of the two cells' differences
(paired t test). Student's t grows fast where few degrees of freedom are left, so a comparison needs FEWEST_DF of them; two
cells that share fewer blocks are compared as independent groups, whose intervals blocks can only make too wide. A run is in
the block that it was planned for where it was made in one session with the others. A cell's own mean keeps blocks in its
spread: another replicate would be in another block. Where that spread is pooled, what blocks add to it is known from the blocks
alone, however many cells there are (`Pooling.freedom`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import scipy

from analysis import intervals
from analysis.intervals import LEVEL, ROUNDING, Estimate, p_text
from analysis.measured import successful

FEWEST = 3  # runs of most cells
MOST_APART = 3.5  # the largest of these spreads over the smallest
FEWEST_BLOCKS = 3  # that two cells share
FEWEST_DF = 4  # Student's t is at most a fifth above that of twice as many; with two it is half as large again
_last: dict[bytes, "Pooling"] = {}


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
        block = runs.groupby(["session", "block"], dropna=False).ngroup().to_numpy()
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
class Spread:
    """How far values, such as logarithms of epoch times, spread within cells.

    `groups`: cell -> values. `lost`: degrees of freedom that something else than the cells' means took from them.
    """

    groups: dict[str, np.ndarray]
    lost: int

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

    @property
    def holds(self) -> bool:
        """Whether all cells are taken to have one standard deviation."""
        return not self.against

    @cached_property
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
        if np.median([len(x) for x in self.several]) < FEWEST:
            return f"most cells have fewer than {FEWEST} runs, too few to see whether they share one ({test})"
        if self.apart > MOST_APART:
            return f"the largest is {self.apart:.2g} times the smallest ({test}; {MOST_APART:g} times at most is asked for)"
        return ""


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
        s, df = (self.sd, self.freedom) if self.holds else (log_sd, np.asarray(n) - 1)
        low, high = intervals.t_interval(0.0, s / np.sqrt(n), df)
        return mean * np.exp(low), mean * np.exp(high)

    @cached_property
    def within(self) -> Spread:
        """The spread of what cells and blocks leave of the logarithms."""
        log = self.seconds.log.blocks
        cell, block = np.nonzero(log.notna().to_numpy())
        residual, lost = after_blocks(log.to_numpy()[cell, block], cell, block)
        parts = np.split(residual, np.flatnonzero(np.diff(cell)) + 1)
        return Spread(dict(zip(log.index[np.unique(cell)], parts, strict=False)), lost)

    @cached_property
    def freedom(self) -> float:
        """The degrees of freedom of `sd`, the spread of a cell's mean, by Satterthwaite (Biometrics 2, 1946): at most `df`.

        Blocks move all of their cells together, so that what they add to the variance is known from the blocks alone, however many
        cells there are. With as many runs of every cell in every block that is the error of a mean in randomized complete blocks.
        """
        logs, within = self.seconds.log.blocks, self.within
        about_means = float((logs.sub(logs.mean(axis="columns"), axis="index") ** 2).sum(axis=None))
        of_blocks = max(0.0, about_means - (within.sd**2 * within.df if within.df else 0.0))
        others = self.sd**2 * self.df - of_blocks
        squares = [part**2 / df for part, df in ((of_blocks, within.lost), (others, self.df - within.lost)) if df]
        return min(float(self.df), (self.sd**2 * self.df) ** 2 / sum(squares)) if sum(squares) else float(self.df)

    @cached_property
    def holds_within(self) -> bool:
        """Whether comparisons within blocks have one spread for all cells: they share it, and Bartlett's test after blocks, which
        can hide what differs, does not speak against it."""
        return self.holds and self.within.p >= LEVEL and self.within.df >= FEWEST_DF

    @property
    def fewest_blocks(self) -> int:
        """How many blocks two cells must share to be compared within them."""
        return FEWEST_BLOCKS if self.holds_within else FEWEST_DF + 1

    def resolution(self, n: int) -> tuple[Spread, float]:
        """The spread on which comparisons of two cells of n runs rest, `within` blocks or `self`, and its degrees of freedom."""
        if n >= self.fewest_blocks and self.within.df >= FEWEST_DF:
            return self.within, self.within.df if self.holds_within else n - 1
        return self, self.freedom if self.holds else 2 * n - 2

    def ratios(self, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
        """A row per pair of cells: ratio of mean epoch times, its interval, n (the smaller), p that it is 1; within_blocks:
        in how many the cells are compared, 0 as independent groups, missing without an interval.

        log(ratio) has the error of the difference of mean logarithms (delta method).
        """
        seconds, logs = self._compared(to, base)
        value = seconds["to"] / seconds["base"]
        low, high = intervals.t_interval(0.0, logs["error"], logs["df"])
        blocks = logs["within_blocks"].where(np.isfinite(logs["error"]))
        return intervals.bounded(logs).assign(
            value=value, low=value * np.exp(low), high=value * np.exp(high), within_blocks=blocks
        )

    def differences(self, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
        """A row per pair of cells: difference of mean epoch times in s, its interval, n (the smaller)."""
        return intervals.bounded(self._compared(to, base)[0]).drop(columns="p")

    def _compared(self, to: Sequence[str], base: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Of each pair what `Values.compared` says of its seconds and of its logarithms, with errors of spreads that are pooled.

        By the delta method the error of a difference in s has the spreads times the means in it, and what blocks do to it: as
        much as to logarithms, times the difference. Its degrees of freedom are Satterthwaite's (Biometrics 2, 1946).
        """
        seconds, logs = (values.compared(to, base, self.fewest_blocks) for values in (self.seconds, self.seconds.log))
        within = logs["within_blocks"] > 0
        inside = (self.within.sd, self.within.df) if self.holds_within else (math.nan, math.nan)
        outside = (self.sd, self.freedom) if self.holds else (math.nan, math.nan)
        sd, df = (np.where(within, *both) for both in zip(inside, outside, strict=True))
        mean, base_mean, n, base_n = (seconds[name].to_numpy(float) for name in ("to", "base", "n", "base_n"))
        with np.errstate(all="ignore"):
            variance = sd**2 * (1 / n + 1 / base_n)
            of_runs = sd**2 * (mean**2 / n + base_mean**2 / base_n)
            of_blocks = (mean - base_mean) ** 2 * np.maximum(self.sd**2 - sd**2, 0) / n
            together = of_runs + of_blocks
            df_seconds = together**2 / (of_runs**2 / df + of_blocks**2 / np.maximum(n - 1, 1))
        for pairs, squared, own_df in ((logs, variance, df), (seconds, together, df_seconds)):
            pairs["error"] = np.where(np.isnan(sd), pairs["error"], np.sqrt(squared))
            pairs["df"] = np.where(np.isnan(sd), pairs["df"], own_df)
        return seconds, logs


def pooled(runs: pd.DataFrame) -> Pooling:
    """The spread of all successful runs of a study. The last one is kept: what makes a table and its notes ask for it in turn."""
    ok = successful(runs)[["cell", "session", "block", "epoch_time_s"]]
    content = pd.util.hash_pandas_object(ok, index=False).to_numpy().tobytes()
    if content not in _last:
        seconds = Values.of(ok, "epoch_time_s")
        _last.clear()
        _last[content] = Pooling(seconds.log.groups, 0, seconds)
    return _last[content]


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
