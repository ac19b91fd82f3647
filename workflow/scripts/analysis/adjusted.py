"""Table of epoch times adjusted by the reference beside every run, where that predicts runs better: analysis of covariance.

It is one of logarithms, with one slope for all cells, and with how far the reference of a run lies from the campaign's mean:

    log adjusted time = log time - (slope x covariate - log of the mean of exp(slope x covariate) of all runs)
    covariate = (log reference - mean of the block's runs of the same setting) + (mean of the block's runs - mean of the campaign)

that is, time over the power of the reference: arithmetic means stay such, and are those at the campaign's mean reference. Runs
are of one setting where they have as many ranks on as many nodes and cores, in one environment: elsewhere the same work takes another time,
and that is no disturbance. So what a block has is told by all of its runs, each beside the mean of its setting, and what a run has beside that
by those of its setting. Of a cell that has its setting for itself only what blocks do is taken out.

Runs are in random order, so that a cell's covariates are those of others on average, and its adjusted mean has no bias beside others, whatever
the slope is. Noise of the reference makes the slope too small (Cochran, Biometrics 13 (1957)), which takes out less, no more. An interval does not
say what a campaign on a machine that is busier on the whole would measure: that is another mean reference.

The slope is that of least squares beside cells and blocks (Fisher, Statistical Methods for Research Workers, 4th ed. (1932), section
49.1; Montgomery, Design and Analysis of Experiments, 8th ed. (2013), section 15.3). Its error is in intervals by the distance of a cell's
mean covariate from that of the others (`Adjusted`).

There are adjusted means only where LEAST_GAIN is gained by cross-validation, each run left out in turn, with a slope above 0 that
has FEWEST_DF degrees of freedom, and where the cells of a setting have the same reference (p above SAME): what a cell's own training or
libraries do to the work must not be taken for the machine's doing. What is chosen for having little error has less by luck, too. So the choice
costs a degree of freedom as the slope does (LOST). The constants are chosen by simulation of the whole procedure with 2 to 12 cells, 3 to 8
blocks of 0 to 20 %, correlations of 0 to 0.97, equal and unequal spreads: with LOST = 1 intervals of ratios hold the truth up to 2.2 percentage
points less often than plain ones, with 2 up to 1.2, and those of means no less often on average (make statistics-test; docs/explanation/statistics.md).

Better predictions within blocks need not make means more certain: where blocks move the reference and not epoch times, or by more than the
slope says, taking out their covariates adds to the spread between blocks. So means are adjusted only where their intervals get narrower
(median), and ratios within blocks only where theirs do. That choice, too, is in the simulations (tests/bench/adjusted_coverage.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import special

from analysis import conditions, intervals, tables
from analysis.intervals import ROUNDING, Estimate
from analysis.measured import block_of, cells, level_text, successful, title, varying
from analysis.pooling import FEWEST_BLOCKS, Pooling, Values, after_blocks, pooled
from common.text import number_of

TITLE = "Epoch times adjusted by the reference beside every run, with 95 % intervals, beside the plain means"
LEAST_GAIN = 0.05  # the share by which the root mean square error of runs that are left out has to fall
FEWEST_DF = 5  # of the slope
LOST = 2  # degrees of freedom: by the slope, and by the choice
SAME = 0.01  # the least p of the test that the cells of a setting have the same reference
SETTING = ("reference_kind", "nodes", "ranks", "cores_per_rank", "device", "environment_digest")
ALIKE = "of one environment with as many nodes, ranks and cores"
UNLIKE = f"cells {ALIKE} differ in their reference, which may be their own doing"
APART = f"no block has two runs {ALIKE}"
SINGLE = "no cell has two successful runs"
NO_SLOPE = "its slope cannot be told from so few runs"
CONSTANT = "the reference was the same beside all runs of a block"
METHOD = (
    "Analysis of covariance of log epoch time, one slope for all cells (Fisher 1932; Montgomery 2013, chapter 15): the reference of a run "
    f"counts by its distance from the campaign's mean, among runs {ALIKE}. The slope is told within blocks, and its error is in the "
    "intervals."
)
WIDER = "neither intervals of means nor of ratios get narrower"
NO_BETTER = "it predicts runs no better than the means of cells do"
MARGIN = f"{100 * LEAST_GAIN:g} % at least"


@dataclass(frozen=True)
class Slope:
    """What a unit of the covariate changes the response by, beside cells and blocks, with its standard error and degrees of freedom;
    `correlation`: of both, beside cells and blocks; root mean square errors of runs that are left out, with the covariate and without."""

    value: float
    error: float
    df: int
    correlation: float
    error_with: float
    error_without: float

    @property
    def gain(self) -> float:
        """The share by which the covariate makes the error of a run that is left out smaller; negative where it makes it larger."""
        return 1 - self.error_with / self.error_without if self.error_without else 0.0

    @property
    def estimate(self) -> Estimate:
        """The value with its 95 % t interval."""
        low, high = intervals.t_interval(self.value, self.error, self.df)
        return Estimate(self.value, float(low), float(high))


@dataclass(frozen=True)
class Adjusted(Pooling):
    """As `Pooling`, of adjusted times. `covariates`: of the runs, what a change of the slope changes the logarithm of their times by, negative.

    The error of a mean has that of the slope in it, times the mean covariate of the cell (Montgomery, section 15.3); that of a ratio
    times the distance of both.
    """

    slope: Slope
    covariates: Values

    @property
    def slope_error(self) -> float:
        """The standard error of the slope, from so many degrees of freedom as are left."""
        return self.slope.error * math.sqrt(self.slope.df / (self.slope.df + 1 - self.lost))

    @cached_property
    def cells(self) -> pd.DataFrame:
        """As those of `Pooling`, with the error of the slope in low and high."""
        rows = super().cells
        covariate = np.array([self.covariates.groups[cell].mean() for cell in rows.index], dtype=float)
        error = np.hypot(rows["s"] / np.sqrt(rows["n"]), self.slope_error * covariate)
        low, high = intervals.t_interval(0.0, error, rows["df"])
        return rows.assign(low=rows["mean"] * np.exp(low), high=rows["mean"] * np.exp(high))

    def _compared(self, to: Sequence[str], base: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
        seconds, logs = super()._compared(to, base)
        covariates = self.covariates.compared(to, base, FEWEST_BLOCKS)
        of_slope = self.slope_error * (covariates["to"] - covariates["base"]).abs()
        scale = (seconds["to"] + seconds["base"]) / 2
        return (
            seconds.assign(error=np.hypot(seconds["error"], of_slope * scale)),
            logs.assign(error=np.hypot(logs["error"], of_slope)),
        )


@dataclass(frozen=True)
class Adjustment:
    """What the reference does for a study: the `plain` means, the `adjusted` ones, or `why` there are none.

    `slope`: where it can be told, of the runs that have a reference; `covariates`: how far their logarithms lie from the mean of their block and
    setting, by the index of `runs`; none where cells of a setting differ. `times`: the runs' adjusted times.
    """

    plain: Pooling
    why: str = ""
    adjusted: Adjusted | None = None
    slope: Slope | None = None
    covariates: "pd.Series[float] | None" = None
    times: "pd.Series[float] | None" = None

    @property
    def means(self) -> Adjusted | None:
        """The adjusted means, where their intervals are narrower."""
        return self.adjusted if self.narrower > 0 else None

    @property
    def of_ratios(self) -> bool:
        """Whether ratios within blocks are adjusted: where their intervals are narrower."""
        return self.narrower_ratios > 0

    def ratios(self, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
        """value, low and high of the adjusted ratio of each pair of cells (`Pooling.ratios`); missing where it is not adjusted. Cells that are
        compared as independent groups are so by their means."""
        if self.adjusted is None:
            return pd.DataFrame(math.nan, index=range(len(to)), columns=["value", "low", "high"])
        rows = self.adjusted.ratios(to, base)
        shown = np.where(rows["within_blocks"] > 0, self.of_ratios, self.means is not None)
        return rows[["value", "low", "high"]].where(pd.Series(shown, index=rows.index), axis="index")

    @cached_property
    def narrower(self) -> float:
        """The share by which the intervals of means are narrower, median of the cells; NaN where nothing is adjusted."""
        if self.adjusted is None:
            return math.nan
        return float(1 - (self.adjusted.half_widths / self.plain.half_widths).median())

    @cached_property
    def narrower_ratios(self) -> float:
        """The same of ratios within blocks, for the most common number of runs."""
        if self.adjusted is None:
            return math.nan
        n = int(self.plain.cells["n"].mode().max())
        (one, df), (other, other_df) = (of.resolution(n) for of in (self.adjusted, self.plain))
        ends = [intervals.t_interval(0.0, of.sd, freedom)[1] for of, freedom in ((one, df), (other, other_df))]
        return float(1 - ends[0] / ends[1])


def adjustment(runs: pd.DataFrame) -> Adjustment:
    """The adjustment of a study's runs."""
    plain, ok = pooled(runs), successful(runs)
    told = ok[ok["reference_s"].notna()]
    if told.empty:
        return Adjustment(plain, untold(runs))
    lacking = f"{len(ok) - len(told)} of {len(ok)} runs have no reference" if len(told) < len(ok) else ""
    x, y = (np.log(told[name].to_numpy(float)) for name in ("reference_s", "epoch_time_s"))
    cell = pd.factorize(told["cell"])[0]
    block = block_of(told)
    setting = setting_of(told)
    place = pd.factorize(pd.MultiIndex.from_arrays([block, setting]))[0]
    covariate = _centred(x, place)
    if not _same(covariate, cell, place):
        return Adjustment(plain, lacking or UNLIKE)
    slope, covariates = fitted(y, covariate, cell, block), pd.Series(covariate, index=told.index)
    if slope is None:
        return Adjustment(plain, lacking or _no_slope(covariate, cell, place), covariates=covariates)
    if why := lacking or _useless(slope):
        return Adjustment(plain, why, None, slope, covariates)
    shared = np.bincount(block)[block] > 1
    covariate = covariate + np.where(shared, _mean(_centred(x, setting), block), 0.0)
    factor = np.exp(slope.value * covariate)
    times = told["epoch_time_s"].astype(float) * factor.mean() / factor
    changed = told.assign(epoch_time_s=times, covariate=covariate - (factor * covariate).mean() / factor.mean())
    seconds = Values.of(changed, "epoch_time_s")
    adjusted = Adjusted(seconds.log.groups, LOST, seconds, slope, Values.of(changed, "covariate"))
    found = Adjustment(plain, "", adjusted, slope, covariates, times)
    return found if found.means or found.of_ratios else Adjustment(plain, WIDER, None, slope, covariates)


def untold(runs: pd.DataFrame) -> str:
    """Why no run has a reference that counts."""
    if successful(runs).empty:
        return "no successful run"
    if runs["reference_s"].notna().any():
        return "no successful run has a reference"
    return "no run has a reference (key reference of the site)"


def adjusted_times(runs: pd.DataFrame) -> "pd.Series[float]":
    """The epoch times of the successful runs in s, adjusted where means are, plain where they are not."""
    ok = successful(runs)
    plain = ok["epoch_time_s"].astype(float)
    if "reference_s" not in ok or ok["reference_s"].isna().all():
        return plain
    found = adjustment(runs)
    return plain if found.means is None or found.times is None else found.times


def setting_of(runs: pd.DataFrame) -> np.ndarray:
    """The number of each run's setting: in one of them the reference should always take as long."""
    return runs.groupby(list(SETTING), dropna=False).ngroup().to_numpy()


def _no_slope(covariate: np.ndarray, cell: np.ndarray, place: np.ndarray) -> str:
    """Why there is no slope."""
    if np.bincount(cell).max() < 2:
        return SINGLE
    if np.bincount(place).max() < 2:
        return APART
    return NO_SLOPE if covariate.any() else CONSTANT


def _useless(slope: Slope) -> str:
    """Why nothing is adjusted; empty where it helps."""
    if slope.df < FEWEST_DF:
        return f"with so few runs its slope has {number_of(slope.df, 'degree')} of freedom, {FEWEST_DF} are needed"
    return NO_BETTER if slope.gain < LEAST_GAIN or slope.value <= 0 else ""


def _mean(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The mean of x in the group of each run, [runs]."""
    return (np.bincount(group, x) / np.bincount(group))[group]


def _centred(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """x [runs] less the mean of its group; 0 where that is rounding."""
    left = x - _mean(x, group)
    return np.where(np.abs(left) < ROUNDING, 0.0, left)


def _same(covariate: np.ndarray, cell: np.ndarray, place: np.ndarray) -> bool:
    """Whether nothing shows that cells differ in `covariate` [runs], whose mean is 0 in every place (F test beside places)."""
    left, lost = after_blocks(covariate, cell, place)
    df, of_cells = len(covariate) - len(np.unique(cell)) - lost, len(np.unique(cell)) + lost - len(np.unique(place))
    error = float(left @ left)
    if df < 1 or of_cells < 1 or not error:
        return True
    f = (float(covariate @ covariate) - error) / of_cells / (error / df)
    return bool(special.fdtrc(of_cells, df, f) >= SAME)


def fitted(y: np.ndarray, x: np.ndarray, cell: np.ndarray, block: np.ndarray) -> Slope | None:
    """The slope of y over x [runs] beside cells and blocks (codes); None where x does not vary or nothing is left. A run that is alone in its
    block tells nothing of it.

    The error of a run that is left out is its residual over 1 - leverage (PRESS; Allen, Technometrics 16 (1974)); runs that nothing else
    tells of are left out of both.
    """
    shared = np.bincount(block)[block] > 1
    y, x = y[shared], x[shared]
    cell, block = (np.unique(codes[shared], return_inverse=True)[1] for codes in (cell, block))
    left, lost = after_blocks(y, cell, block)
    of_x, _ = after_blocks(x, cell, block)
    df, squares = len(y) - len(np.unique(cell)) - lost - 1, float(of_x @ of_x)
    if df < 1 or squares < ROUNDING:
        return None
    covered, own = leverages(cell, block), of_x**2 / squares
    value = float(left @ of_x) / squares
    rest = left - value * of_x
    known = covered + own < 1 - 1e-9
    with_x, without = rest[known] / (1 - covered - own)[known], left[known] / (1 - covered)[known]
    size = math.sqrt(float(left @ left) * squares)
    return Slope(
        value,
        math.sqrt(float(rest @ rest) / df / squares),
        df,
        float(left @ of_x) / size if size else 0.0,
        *(float(np.sqrt(np.mean(errors**2))) if known.any() else 0.0 for errors in (with_x, without)),
    )


def leverages(cell: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The leverages [runs] of the two-way additive model of cells and blocks (codes 0, 1, ...)."""
    columns = pd.get_dummies(pd.Series(block), drop_first=True, dtype=float)
    columns = (columns - columns.groupby(cell).transform("mean")).to_numpy(copy=True)
    columns[np.abs(columns) < ROUNDING] = 0.0
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return 1 / np.bincount(cell)[cell] + (left[:, values > 1e-10 * values.max(initial=0)] ** 2).sum(axis=1)


def summarize(runs: pd.DataFrame, found: Adjustment) -> pd.DataFrame:
    """A row per cell: its factors, n, plain and adjusted mean epoch time with bounds (s), change (of the mean, a share), width (of the
    interval, as a share of the plain one). No rows where means are not adjusted."""
    if found.means is None:
        return pd.DataFrame(columns=["cell"])
    plain, adjusted = found.plain.cells, found.means.cells
    rows = cells(runs).set_index("cell", drop=False)
    rows = rows[rows.index.isin(plain.index)]
    rows["n"] = plain["n"].reindex(rows.index)
    for name, of in (("epoch_time_s", plain), ("adjusted_s", adjusted)):
        for part, end in (("mean", ""), ("low", "_low"), ("high", "_high")):
            rows[f"{name}{end}"] = of[part].reindex(rows.index)
    rows["change"] = rows["adjusted_s"] / rows["epoch_time_s"] - 1
    rows["width"] = (found.means.half_widths / found.plain.half_widths).reindex(rows.index)
    return rows.reset_index(drop=True)


def table(runs: pd.DataFrame) -> tables.Table:
    """The table of a study; without rows where the reference does not help, or there is none."""
    found = adjustment(runs)
    data = summarize(runs, found)
    if found.means is None:
        why = said(found) if found.adjusted else f"Nothing is adjusted: {found.why}."
        notes = [why, told(found), METHOD if found.adjusted else "", conditions.setting(runs)]
        shown = pd.DataFrame(columns=["cell"], dtype=str)
        return tables.Table(TITLE, data, shown, [note for note in notes if note])
    texts = {title(name): data[name].map(level_text) for name in ["framework", *varying(runs, but=["framework"])]}
    texts["n"] = data["n"].map(str)
    for name, heading in (("epoch_time_s", "epoch time (s)"), ("adjusted_s", "adjusted (s)")):
        bounds = data[[name, f"{name}_low", f"{name}_high"]].astype(float)
        texts[heading] = [tables.interval(Estimate(*row)) for row in bounds.itertuples(index=False)]
    texts["change (%)"] = data["change"].map(tables.change)
    texts["width"] = data["width"].map(lambda share: tables.number(share, 2))
    notes = [
        f"Plain means stay the result. {conditions.counts(runs)} Adjusted: at the campaign's mean reference. Width: of the adjusted interval, "
        "as a share of the plain one.",
        said(found),
        told(found),
        f"{METHOD} Adjusted means and their intervals hold for this campaign's mean reference, and for no other.",
        conditions.setting(runs),
    ]
    words = [title(name) for name in ("framework", "model", "dataset")]
    return tables.Table(TITLE, data, pd.DataFrame(texts), [note for note in notes if note], words)


def said(found: Adjustment) -> str:
    """What adjusting brings, in a sentence; empty where nothing is adjusted."""
    if found.adjusted is None:
        return ""
    means, ratios = _narrower(found.narrower), _narrower(found.narrower_ratios)
    if found.means is None:
        return (
            f"Means are not adjusted: their intervals would be {means} (median). Ratios within blocks are (table effects): their intervals "
            f"are {ratios}."
        )
    if not found.of_ratios:
        return (
            f"Intervals of adjusted means are {means} (median). Ratios within blocks are not adjusted: their intervals would be {ratios}."
            if math.isfinite(found.narrower_ratios)
            else f"Intervals of adjusted means are {means} (median)."
        )
    return f"Intervals of adjusted means are {means} (median), those of adjusted ratios within blocks (table effects) {ratios}."


def holds(found: Adjustment) -> str:
    """Which tables have adjusted numbers, or why none has, in a sentence."""
    if found.adjusted is None:
        return f"Epoch times are not adjusted by it: {found.why}."
    if found.means and found.of_ratios:
        return "The tables adjusted and effects have means and ratios adjusted by it."
    return "The table " + ("adjusted has means" if found.means else "effects has ratios") + " adjusted by it."


def _narrower(share: float) -> str:
    percent = round(100 * share)
    return f"{abs(percent)} % {'narrower' if share > 0 else 'wider'}" if percent else "as wide"


def told(found: Adjustment) -> str:
    """How log epoch time goes with the log reference, less what cells and blocks have; empty where that cannot be told."""
    if found.slope is None:
        return ""
    slope = found.slope
    percent = round(100 * slope.gain)
    better = f"{abs(percent)} % {'smaller' if percent > 0 else 'larger'}" if percent else "as large"
    return (
        f"Among runs of one block, each compared with the mean of its cell, a reference that takes 1 % longer goes with an epoch that takes {tables.difference(slope.estimate)} % longer "
        f"(correlation {tables.number(slope.correlation, 2)}). With it, errors of runs that are left out in turn are {better} "
        f"(adjusted where {MARGIN} are gained)."
    )
