"""Epoch times adjusted by the reference beside every run: analysis of covariance (Fisher, Statistical Methods for Research Workers, 4th ed.
(1932), section 49.1; Montgomery, Design and Analysis of Experiments, 8th ed. (2013), section 15.3), where it predicts runs better.

A run is adjusted by how far its reference lies from the mean of its block, among the runs of one setting (as many ranks on as many
nodes and cores): a fixed work takes another time in another setting, and that is no disturbance. Logarithms, with one slope for all cells:

    adjusted log time = log time - slope x (log reference - mean log reference of the block's runs of the same setting)

So a cell's mean stays what it is without adjustment: that of the blocks as they were, which are in its interval as ever. What is taken out is
that in some blocks it had a better or a worse moment than the others. Moments are random, for the order of runs is: the mean has no bias,
whatever the slope is, and a slope that noise of the reference makes too small (Cochran, Biometrics 13, 1957) takes out less, no more. A cell
that has its setting for itself is not adjusted. The slope is that of least squares beside cells and blocks; it takes a degree of freedom, and
its error is in the intervals by the distance of the cell's references from those of others (`Adjusted`).

Adjusted means are shown only where they are known to help: LEAST_GAIN by cross-validation, each run left out in turn, with SLOPE_DF
degrees of freedom for the slope at least, and where the cells of a setting have the same reference (p above SAME): a work that a cell's
own training slows, or another library, must not be taken for the machine's doing. Both are chosen by simulation (make statistics-test).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import special

from analysis import intervals
from analysis.intervals import ROUNDING
from analysis.measured import successful
from analysis.pooling import FEWEST_BLOCKS, Pooling, Values, after_blocks, pooled

LEAST_GAIN = 0.05  # the share by which the root mean square error of runs that are left out has to fall
FEWEST_DF = 6  # of the slope
SAME = 0.01  # the least p of the test that the cells of a setting have the same reference
SETTING = ("reference_kind", "nodes", "ranks", "cores_per_rank", "device")
FINER = (*SETTING, "framework")  # whose libraries may do the same work in another time


@dataclass(frozen=True)
class Slope:
    """What a unit of the covariate changes the response by, beside cells and blocks: its standard error, its degrees of freedom, the
    root mean square errors of runs that are left out, with it (`error_with`) and without."""

    value: float
    error: float
    df: int
    error_with: float
    error_without: float

    @property
    def gain(self) -> float:
        """The share by which the covariate makes the error of a run that is left out smaller; negative where it makes it larger."""
        return 1 - self.error_with / self.error_without if self.error_without else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % t interval of the value."""
        low, high = intervals.t_interval(self.value, self.error, self.df)
        return float(low), float(high)


@dataclass(frozen=True)
class Adjusted(Pooling):
    """As `Pooling`, of adjusted times. `slope`; `moments`: by run the logarithm of the reference less that of its block's mean.

    The error of a mean has that of the slope beside it, times the mean moment of the cell (Montgomery, section 15.3).
    """

    slope: Slope
    moments: Values

    @cached_property
    def cells(self) -> pd.DataFrame:
        """As those of `Pooling`, with the error of the slope."""
        rows = super().cells
        moment = np.array([self.moments.groups[cell].mean() for cell in rows.index], dtype=float)
        error = np.hypot(rows["s"] / np.sqrt(rows["n"]), self.slope.error * moment)
        low, high = intervals.t_interval(0.0, error, rows["df"])
        return rows.assign(low=rows["mean"] * np.exp(low), high=rows["mean"] * np.exp(high))

    def _compared(self, to: Sequence[str], base: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
        seconds, logs = super()._compared(to, base)
        moments = self.moments.compared(to, base, FEWEST_BLOCKS)
        of_slope = self.slope.error * (moments["to"] - moments["base"]).abs()
        scale = (seconds["to"] + seconds["base"]) / 2
        return (
            seconds.assign(error=np.hypot(seconds["error"], of_slope * scale)),
            logs.assign(error=np.hypot(logs["error"], of_slope)),
        )


@dataclass(frozen=True)
class Adjustment:
    """What the reference does for a study: `plain` as ever, `adjusted` where that is better, else `why` it is not made.

    `slope`: where it can be told; `correlation`: of log epoch time and log reference beside cells and blocks.
    """

    plain: Pooling
    why: str
    adjusted: Adjusted | None = None
    slope: Slope | None = None
    correlation: float = math.nan

    @property
    def narrower(self) -> float:
        """The share by which the intervals of means are narrower, median of the cells; NaN where nothing is adjusted."""
        if self.adjusted is None:
            return math.nan
        return float(1 - (half_widths(self.adjusted) / half_widths(self.plain)).median())


def half_widths(pooling: Pooling) -> "pd.Series[float]":
    """By cell: half of the 95 % interval of its mean epoch time on the log scale, and so a share of the mean; NaN without one."""
    rows = pooling.cells
    return np.log(rows["high"] / rows["low"]) / 2


def adjustment(runs: pd.DataFrame) -> Adjustment:
    """The adjustment of a study's runs."""
    plain, ok = pooled(runs), successful(runs)
    known = ok["reference_s"].notna()
    if not known.any():
        return Adjustment(plain, "no run has a reference")
    if not known.all():
        return Adjustment(plain, f"{int((~known).sum())} of {len(ok)} runs have no reference")
    if ok["reference_kind"].nunique() > 1:
        return Adjustment(plain, "runs have references of several kinds")
    y, x = (np.log(ok[name].to_numpy(float)) for name in ("epoch_time_s", "reference_s"))
    cell = pd.factorize(ok["cell"])[0]
    block = ok.groupby(["session", "block"], dropna=False).ngroup().to_numpy()
    alike = next((found for names in (SETTING, FINER) if (found := _moments(x, cell, block, ok, names)) is not None), None)
    if alike is None:
        return Adjustment(plain, "cells of one setting differ in their reference, and so it may be their own doing")
    slope, correlation = fitted(y, alike, cell, block)
    if slope is None:
        return Adjustment(plain, "no two runs of a block and a setting can be compared", None, None)
    if slope.df < FEWEST_DF:
        why = f"too few runs: {slope.df} degrees of freedom for its slope, {FEWEST_DF} needed"
        return Adjustment(plain, why, None, slope, correlation)
    if slope.gain < LEAST_GAIN or slope.value < 0:
        return Adjustment(plain, "it does not predict runs better", None, slope, correlation)
    times = ok["epoch_time_s"].to_numpy(float) * np.exp(-slope.value * alike)
    changed = ok.assign(epoch_time_s=times, moment=alike)
    seconds = Values.of(changed, "epoch_time_s")
    made = Adjusted(seconds.log.groups, 1, seconds, slope, Values.of(changed, "moment"))
    return Adjustment(plain, "", made, slope, correlation)


def _moments(x: np.ndarray, cell: np.ndarray, block: np.ndarray, ok: pd.DataFrame, names: Sequence[str]) -> np.ndarray | None:
    """x [runs] less the mean of its block and setting; None where the cells of a setting differ in it (F test beside blocks)."""
    setting = ok.groupby(list(names), dropna=False).ngroup().to_numpy()
    place = pd.Series(list(zip(block, setting, strict=True)))
    moments = x - pd.Series(x).groupby(place).transform("mean").to_numpy()
    moments[np.abs(moments) < ROUNDING] = 0.0
    return moments if _same(moments, cell, pd.factorize(place)[0]) else None


def _same(moments: np.ndarray, cell: np.ndarray, place: np.ndarray) -> bool:
    """Whether nothing shows that cells differ in `moments` [runs], which have mean 0 in every place."""
    left, lost = after_blocks(moments, cell, place)
    cells = len(np.unique(cell))
    df, free = len(moments) - cells - lost, len(moments) - len(np.unique(place))
    of_cells, error = float((moments**2).sum() - (left**2).sum()), float((left**2).sum())
    if df < 1 or free <= df or error == 0:
        return True
    return bool(special.fdtrc(free - df, df, (of_cells / (free - df)) / (error / df)) >= SAME)


def fitted(y: np.ndarray, x: np.ndarray, cell: np.ndarray, block: np.ndarray) -> tuple[Slope | None, float]:
    """The slope of y over x [runs] beside cells and blocks, and their correlation there; None where x does not vary.

    Errors of runs that are left out are residuals over 1 - leverage (PRESS; Allen, Technometrics 16, 1974); of runs that cells and blocks fit
    alone they are not known.
    """
    left, lost = after_blocks(y, cell, block)
    of_x, _ = after_blocks(x, cell, block)
    df, squares = len(y) - len(np.unique(cell)) - lost - 1, float(of_x @ of_x)
    if df < 1 or squares < ROUNDING:
        return None, math.nan
    value = float(left @ of_x) / squares
    rest = left - value * of_x
    outside = 1 - leverages(cell, block)
    known = outside - of_x**2 / squares > 1e-9
    errors = [np.sqrt(np.mean((part[known] / (outside - taken)[known]) ** 2)) for part, taken in ((rest, of_x**2 / squares), (left, 0.0))]
    size = float(np.sqrt((left @ left) * squares))
    slope = Slope(value, math.sqrt(float(rest @ rest) / df / squares), df, *map(float, errors))
    return slope, float(left @ of_x) / size if size else 0.0


def leverages(cell: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The leverages [runs] of the two-way additive model of cells and blocks."""
    n = np.bincount(cell)[cell]
    columns = pd.get_dummies(pd.Series(block), drop_first=True, dtype=float)
    columns = (columns - columns.groupby(cell).transform("mean")).to_numpy(copy=True)
    columns[np.abs(columns) < ROUNDING] = 0.0
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return 1 / n + (left[:, values > 1e-10 * values.max(initial=0)] ** 2).sum(axis=1)
