"""Table of epoch times adjusted for machine speed by analysis of covariance, if this predicts runs better.

Two covariates measure machine speed:

    reference = log of the reference benchmark's time right before and right after the run (runs.reference)
    lost_cpu_time = -log(1 - w)      w: share of CPU time that a hypervisor or other processes take

`lost_cpu_time` is used only if a run lost more than MIN_LOST_SHARE. Smaller shares are work of the kernel and
of Ringside's supervision, which can depend on the cell.

Logarithms are adjusted, with one slope per covariate for all cells, by each run's distance from the
campaign's mean:

    log adjusted time = log time - (sum of slope x distance - log of the mean of exp(sum of slope x distance))
    distance = (covariate - mean of the block's runs of the same setting) + (mean of the block's runs -
    campaign's mean)

So a time is divided by a power of the covariate, and arithmetic means stay arithmetic means. Runs have the
same setting if they have equally many ranks, nodes and cores in one environment. In different settings the
reference benchmark takes different times even on an idle machine. The block's part of the distance is
estimated from all of its runs, each relative to the mean of its setting. A cell that is alone in its setting
is adjusted for blocks only.

Runs are in random order, so all cells have the same distances on average. Adjusted means are therefore
comparable without bias, whatever the slope. Noise in a covariate attenuates its slope (Cochran, Biometrics 13
(1957)), so less is removed. Intervals hold for the average machine speed of this campaign, not for a busier
machine.

Slopes are least squares estimates within cells and blocks (Fisher, Statistical Methods for Research Workers,
4th ed. (1932), section 49.1; Montgomery, Design and Analysis of Experiments, 8th ed. (2013), section 15.3).
Their error enters intervals through a cell's mean distance (`AdjustedMeans`).

A covariate is used only if it reduces cross-validated error by MIN_IMPROVEMENT with a positive slope
(forward selection; Miller, Subset Selection in Regression, 2nd ed. (2002)), if the slope has MIN_SLOPE_DF
degrees of freedom, and if the cells of a setting do not differ in the covariate (p above MIN_HOMOGENEITY_P):
a load that a cell causes itself must not be attributed to the machine. The test only detects differences
beyond noise.
`lost_cpu_time` is measured during training. If a cell itself causes a part, its adjusted mean is too small by
that part. Selection favours covariates that fit by chance, so it costs SELECTION_DF degrees of freedom in
addition to one per slope. The constants come from simulations with 2 to 12 cells, 3 to 8 blocks that differ
by 0 to 20 %, correlations of 0 to 0.97, and equal and unequal spreads (make statistics-test;
docs/explanation/statistics.md).

Better predictions within blocks do not always narrow the intervals of means: if blocks change a covariate but
not epoch times, adjusting adds to the spread between blocks. So means are adjusted only if their intervals
become narrower by MIN_IMPROVEMENT (median), and ratios within blocks only if their own intervals do. The
simulations include this choice (benchmarks/adjusted_coverage.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import special

from analysis import conditions, intervals, tables
from analysis.cell_means import (
    MIN_SHARED_BLOCKS,
    CellMeans,
    Values,
    after_blocks,
    estimate_means,
    name_bounds,
)
from analysis.covariance import MIN_IMPROVEMENT, Slopes, fit_slopes, select_slopes
from analysis.intervals import ROUNDING, Estimate
from analysis.level_words import level_texts
from analysis.records import block_of, cache_last, cell_levels, successful
from common.notes import Note

TITLE = "Epoch times adjusted for machine speed during each run, with 95 % intervals, next to the plain means"
REFERENCE, LOST_CPU_TIME = "reference", "lost_cpu_time"
COVARIATE_TITLES = {REFERENCE: "the reference benchmark", LOST_CPU_TIME: "the CPU time lost"}
MIN_LOST_SHARE = conditions.NOTABLE_STEAL_SHARE
MAX_LOST_SHARE = 0.99  # The covariate of a share of 1 would be infinite.
SELECTION_DF = 1
MIN_HOMOGENEITY_P = 0.01
SETTING = ("reference_kind", "nodes", "ranks", "cores_per_rank", "device", "environment_digest")
SAME_SETTING = "of one environment with equally many nodes, ranks and cores"
NO_SLOPE = Note("no-slope", f"too few runs of one block, {SAME_SETTING}, differ in the reference benchmark")
METHOD = Note(
    "analysis-of-covariance",
    "Analysis of covariance of log epoch time, one slope for all cells (Fisher 1932; Montgomery 2013, "
    "chapter 15): machine speed is taken as its distance from the campaign's mean, among runs "
    f"{SAME_SETTING}. Slopes are estimated within blocks, and intervals include their error.",
)
MIN_IMPROVEMENT_TEXT = f"at least {100 * MIN_IMPROVEMENT:g} %"
NO_BETTER = Note("no-better", f"errors or intervals would not decrease by {MIN_IMPROVEMENT_TEXT}")
NO_REFERENCE = Note("no-reference", "no successful run has a reference benchmark (key reference of the site)")


@dataclass(frozen=True)
class AdjustedMeans(CellMeans):
    """The means of adjusted epoch times.

    The error of a mean includes the error of the slopes times the cell's mean distances (Montgomery, section
    15.3). The error of a ratio includes the error of the slopes times the difference of both distances.

    Attributes:
        slopes: Slopes of the covariates.
        distances: For each slope, how far the covariate of each run is from the mean of all runs (`distance`
            in the module's formula). Slope x distance is subtracted from the run's log time, to first order.
    """

    slopes: Slopes
    distances: tuple[Values, ...]

    def error_of_slopes(self, distance: np.ndarray) -> np.ndarray:
        """Return the standard error [n] of slopes times `distance` [n, slopes], given the selection."""
        covariance = self.slopes.covariance * self.slopes.df / (self.slopes.df - SELECTION_DF)
        return np.sqrt(np.einsum("ni,ij,nj->n", distance, covariance, distance))

    @cached_property
    def cell_statistics(self) -> pd.DataFrame:
        """As `CellMeans.cell_statistics`, with the error of the slopes in low and high."""
        rows = super().cell_statistics
        means = [[values.by_cell[cell].mean() for values in self.distances] for cell in rows.index]
        distance = np.array(means, dtype=float).reshape(len(rows), len(self.distances))
        error = np.hypot(rows["s"] / np.sqrt(rows["n"]), self.error_of_slopes(distance))
        low, high = intervals.t_interval(0.0, error, rows["df"])
        return rows.assign(low=rows["mean"] * np.exp(low), high=rows["mean"] * np.exp(high))

    def _compare_pairs(
        self, first: Sequence[str], second: Sequence[str]
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        seconds, logs = super()._compare_pairs(first, second)
        compared = [values.compare_pairs(first, second, MIN_SHARED_BLOCKS) for values in self.distances]
        error = self.error_of_slopes(
            np.column_stack([(rows["first"] - rows["second"]).to_numpy(float) for rows in compared])
        )
        scale = (seconds["first"] + seconds["second"]) / 2
        return (
            seconds.assign(error=np.hypot(seconds["error"], error * scale)),
            logs.assign(error=np.hypot(logs["error"], error)),
        )


@dataclass(frozen=True)
class SpeedAdjustment:
    """Adjustment of a study's epoch times for machine speed.

    Attributes:
        plain: Means of the measured epoch times.
        reason_unadjusted: Why nothing is adjusted; "" if means or ratios are.
        adjusted_means: Means of the adjusted epoch times; None if neither means nor ratios are adjusted.
        slopes_alone: Slope of each covariate without the other one, from runs with a reference benchmark.
        covariates: Covariates of these runs, less the mean of their block and setting, a column each.
        times: Adjusted epoch times of the runs, s; None if nothing is adjusted.
        unused: Covariate -> why it is not used.
    """

    plain: CellMeans
    reason_unadjusted: str = ""
    adjusted_means: AdjustedMeans | None = None
    slopes_alone: Mapping[str, Slopes] = field(default_factory=dict)
    covariates: pd.DataFrame = field(default_factory=pd.DataFrame)
    times: "pd.Series[float] | None" = None
    unused: Mapping[str, str] = field(default_factory=dict)

    @property
    def leading_covariate(self) -> str | None:
        """The covariate that was selected first, or else predicts runs best alone; None without any slope."""
        if self.adjusted_means:
            return self.adjusted_means.slopes.covariates[0]
        return max(self.slopes_alone, key=lambda name: self.slopes_alone[name].gain, default=None)

    @property
    def reported_means(self) -> AdjustedMeans | None:
        """`adjusted_means`, or None if adjusting narrows intervals of means by less than MIN_IMPROVEMENT."""
        return self.adjusted_means if self.mean_narrowing >= MIN_IMPROVEMENT else None

    @property
    def adjusts_ratios(self) -> bool:
        """Whether ratios within blocks are adjusted: if it narrows their intervals by MIN_IMPROVEMENT."""
        return self.ratio_narrowing >= MIN_IMPROVEMENT

    def ratios(self, numerator: Sequence[str], denominator: Sequence[str]) -> pd.DataFrame:
        """Return value, low and high of each pair's adjusted ratio; same arguments as `CellMeans.ratios`.

        Values are NaN for pairs that are not adjusted. Pairs of independent groups are adjusted if means are.
        """
        if self.adjusted_means is None:
            return pd.DataFrame(math.nan, index=range(len(numerator)), columns=["value", "low", "high"])
        rows = self.adjusted_means.ratios(numerator, denominator)
        is_adjusted = np.where(
            rows["within_blocks"] > 0, self.adjusts_ratios, self.reported_means is not None
        )
        return rows[["value", "low", "high"]].where(pd.Series(is_adjusted, index=rows.index), axis="index")

    @cached_property
    def mean_narrowing(self) -> float:
        """Share by which adjusting narrows intervals of means, median over cells; NaN without adjustment."""
        if self.adjusted_means is None:
            return math.nan
        return float(1 - (self.adjusted_means.half_widths / self.plain.half_widths).median())

    @cached_property
    def ratio_narrowing(self) -> float:
        """The same for ratios of consecutive cells within blocks."""
        if self.adjusted_means is None:
            return math.nan
        names = list(self.plain.values_by_cell)
        adjusted_ratios, plain_ratios = (
            cell_means.ratios(names[1:], names[:-1]) for cell_means in (self.adjusted_means, self.plain)
        )
        width = np.log(adjusted_ratios["high"] / adjusted_ratios["low"]) / np.log(
            plain_ratios["high"] / plain_ratios["low"]
        )
        return float(1 - width[plain_ratios["within_blocks"] > 0].median())


@cache_last(
    "cell",
    "session",
    "block",
    "status",
    "epoch_time_s",
    "reference_s",
    "steal_share",
    "other_cpu_share",
    *SETTING,
)
def adjust_for_speed(runs: pd.DataFrame) -> SpeedAdjustment:
    """Adjust a study's epoch times for machine speed; `adjusted_means` is None if that gains too little."""
    plain, ok = estimate_means(runs), successful(runs)
    referenced = ok[ok["reference_s"].notna()]
    if referenced.empty:
        return SpeedAdjustment(plain, NO_REFERENCE)
    covariates, y = covariates_of(referenced), np.log(referenced["epoch_time_s"].to_numpy(float))
    cell, block, setting = pd.factorize(referenced["cell"])[0], block_of(referenced), setting_of(referenced)
    block_setting = pd.factorize(pd.MultiIndex.from_arrays([block, setting]))[0]
    centred = covariates.apply(_centred, group=block_setting, raw=True)
    unused: dict[str, str] = {}
    for name in centred:
        title = COVARIATE_TITLES[name]
        if centred[name].isna().any():
            unused[name] = Note("not-recorded", f"not all runs record {title}", covariate=name)
        elif not _is_homogeneous(centred[name].to_numpy(), cell, block_setting):
            text = f"cells {SAME_SETTING} differ in {title}, which they may cause themselves"
            unused[name] = Note("cells-differ", text, covariate=name)
    centred = centred.drop(columns=list(unused))
    alone = {name: slopes for name in centred if (slopes := fit_slopes(y, centred[[name]], cell, block))}
    slopes = select_slopes(y, centred[list(alone)], cell, block)
    if missing := len(ok) - len(referenced):
        text = f"{missing} of {len(ok)} runs have no reference benchmark"
        reason: str = Note("some-without-reference", text, lacking=missing, runs=len(ok))
    else:
        reason = _no_better_note(alone) if alone else unused.get(REFERENCE) or NO_SLOPE
    if missing or slopes is None:
        return SpeedAdjustment(plain, reason, None, alone, centred, unused=unused)
    names = list(slopes.covariates)
    distance = _distances_from_mean(covariates[names], centred[names], block, setting)
    factor = np.exp(distance @ slopes.values)
    times = referenced["epoch_time_s"].astype(float) * factor.mean() / factor
    seconds = Values.from_runs(referenced.assign(epoch_time_s=times), "epoch_time_s")
    distance = distance - (factor[:, None] * distance).mean(axis=0) / factor.mean()
    distances = tuple(
        Values.from_runs(referenced.assign(distance=column), "distance") for column in distance.T
    )
    lost_df = SELECTION_DF + len(slopes.values)
    means = AdjustedMeans(seconds.log.by_cell, lost_df, seconds, slopes, distances)
    result = SpeedAdjustment(plain, "", means, alone, centred, times, unused)
    return (
        result
        if result.reported_means or result.adjusts_ratios
        else replace(result, reason_unadjusted=NO_BETTER, adjusted_means=None, times=None)
    )


def _no_better_note(alone: Mapping[str, Slopes]) -> Note:
    """Return by how little the best single covariate reduces cross-validated error."""
    gain = max(slopes.gain for slopes in alone.values())
    if not 0 < gain < MIN_IMPROVEMENT:  # for example, because a slope is negative
        return NO_BETTER
    text = f"that would lower cross-validated errors by only {tables.number(100 * gain, 2)} %"
    return Note(NO_BETTER.code, text)


def _distances_from_mean(
    covariates: pd.DataFrame, centred: pd.DataFrame, block: np.ndarray, setting: np.ndarray
) -> np.ndarray:
    """Return the distance of covariates from the campaign's mean, [runs, covariates].

    It is the distance within block and setting, `centred`, plus the distance of the block, which is 0 for a
    run that is alone in its block.
    """
    of_blocks = [_mean(_centred(column, setting), block) for column in covariates.to_numpy().T]
    shared = (np.bincount(block)[block] > 1)[:, None]
    return centred.to_numpy() + np.where(shared, np.column_stack(of_blocks), 0.0)


def covariates_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the covariates of runs that have a reference benchmark, one column each.

    `lost_cpu_time` is present only if a run lost more than MIN_LOST_SHARE. It is NaN for runs that do not
    record it.
    """
    covariates = {REFERENCE: np.log(runs["reference_s"].astype(float))}
    lost_share = runs["steal_share"].astype(float) + runs["other_cpu_share"].astype(float)
    if lost_share.max() > MIN_LOST_SHARE:
        covariates[LOST_CPU_TIME] = -np.log1p(-lost_share.clip(0.0, MAX_LOST_SHARE))
    return pd.DataFrame(covariates, index=runs.index)


def adjusted_times(runs: pd.DataFrame) -> "pd.Series[float]":
    """Return the epoch times of successful runs in s: adjusted if means are adjusted, else as measured."""
    ok = successful(runs)
    plain = ok["epoch_time_s"].astype(float)
    if "reference_s" not in ok or ok["reference_s"].isna().all():
        return plain
    result = adjust_for_speed(runs)
    return plain if result.reported_means is None or result.times is None else result.times


def setting_of(runs: pd.DataFrame) -> np.ndarray:
    """Return a number for each run's setting; on an idle machine, runs of one have equal references."""
    return runs.groupby(list(SETTING), dropna=False).ngroup().to_numpy()


def _mean(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the mean of x in the group of each run, [runs]."""
    return (np.bincount(group, x) / np.bincount(group))[group]


def _centred(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return x [runs] less the mean of its group; rounding errors become 0."""
    centred = x - _mean(x, group)
    return np.where(np.abs(centred) < ROUNDING, 0.0, centred)


def _is_homogeneous(covariate: np.ndarray, cell: np.ndarray, block_setting: np.ndarray) -> bool:
    """Return whether an F test finds no difference of `covariate` between cells.

    `covariate` [runs] is centred within block and setting.
    """
    residual, block_df = after_blocks(covariate, cell, block_setting)
    df = len(covariate) - len(np.unique(cell)) - block_df
    cell_df = len(np.unique(cell)) + block_df - len(np.unique(block_setting))
    error = float(residual @ residual)
    if df < 1 or cell_df < 1 or not error:
        return True
    f = (float(covariate @ covariate) - error) / cell_df / (error / df)
    return bool(special.fdtrc(cell_df, df, f) >= MIN_HOMOGENEITY_P)


def summarize(runs: pd.DataFrame, result: SpeedAdjustment) -> pd.DataFrame:
    """Return a row per cell with plain and adjusted means; no rows if means are not adjusted.

    Columns: factors, n, epoch_time_s and adjusted_s with bounds (s), change (of the mean, a share), width (of
    the adjusted interval, as a share of the plain one).
    """
    if result.reported_means is None:
        return pd.DataFrame(columns=["cell"])
    plain, adjusted = result.plain.cell_statistics, result.reported_means.cell_statistics
    rows = cell_levels(runs).set_index("cell", drop=False)
    rows = rows[rows.index.isin(plain.index)]
    rows["n"] = plain["n"].reindex(rows.index)
    for name, means in (("epoch_time_s", plain), ("adjusted_s", adjusted)):
        rows = rows.join(name_bounds(means, name))
    rows["change"] = rows["adjusted_s"] / rows["epoch_time_s"] - 1
    rows["width"] = (result.reported_means.half_widths / result.plain.half_widths).reindex(rows.index)
    return rows.reset_index(drop=True)


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table of a study; it has no rows if means are not adjusted."""
    result = adjust_for_speed(runs)
    data = summarize(runs, result)
    if result.reported_means is None:
        why = interval_gain_note(result) or adjusted_tables_note(result)
        notes = [
            why,
            slopes_note(result),
            METHOD if result.adjusted_means else "",
            conditions.measurement_note(runs),
        ]
        display = pd.DataFrame(columns=["cell"], dtype=str)
        return tables.Table(TITLE, data, display, notes)
    texts = level_texts(data, runs)
    texts["n"] = data["n"].map(str)
    for name, heading in (("epoch_time_s", "epoch time (s)"), ("adjusted_s", "adjusted (s)")):
        bounds = data[[name, f"{name}_low", f"{name}_high"]].astype(float)
        texts[heading] = [tables.interval(Estimate(*row)) for row in bounds.itertuples(index=False)]
    decimals = tables.change_decimals(data["change"])
    texts["change (%)"] = [tables.change(share, decimals) for share in data["change"]]
    texts["width"] = data["width"].map(lambda share: tables.number(share, 2))
    notes = [
        conditions.paragraph(
            "adjusted-beside-plain",
            [
                "Plain means stay the result.",
                conditions.run_counts_note(runs),
                (
                    "Adjusted: at the campaign's average machine speed. Width: width of the adjusted "
                    "interval over that of the plain one."
                ),
            ],
        ),
        interval_gain_note(result),
        slopes_note(result),
        conditions.paragraph(
            "what-adjusted-means-hold-for",
            [METHOD, "Adjusted means and their intervals hold for the machine speed of this campaign only."],
        ),
        conditions.measurement_note(runs),
    ]
    return tables.Table(TITLE, data, pd.DataFrame(texts), notes)


def interval_gain_note(result: SpeedAdjustment) -> str:
    """Return a note on how much adjusting narrows intervals; "" if nothing is adjusted."""
    if result.adjusted_means is None:
        return ""
    is_means, is_ratios = result.reported_means is not None, result.adjusts_ratios
    text = (
        f"Intervals of adjusted means are {_width_change(result.mean_narrowing)} (median), those of adjusted "
        f"ratios within blocks {_width_change(result.ratio_narrowing)}. Adjusting requires "
        f"{MIN_IMPROVEMENT_TEXT}: {' and '.join(['means'] * is_means + ['ratios'] * is_ratios)} are adjusted."
    )
    return Note(
        "intervals-narrower",
        text,
        means=result.mean_narrowing,
        ratios=result.ratio_narrowing,
        means_adjusted=is_means,
        ratios_adjusted=is_ratios,
    )


def adjusted_tables_note(result: SpeedAdjustment) -> Note:
    """Return a note on which numbers are adjusted, and by which covariates, or why no number is."""
    if result.adjusted_means is None:
        return Note(
            "epoch-times-not-adjusted",
            f"Epoch times are not adjusted: {result.reason_unadjusted}.",
            why=result.reason_unadjusted,
        )
    names, means = result.adjusted_means.slopes.covariates, result.reported_means is not None
    by = " and ".join(COVARIATE_TITLES[name] for name in names)
    places = ["means in table `adjusted`"] * means + ["ratios in table `effects`"] * result.adjusts_ratios
    text = f"Adjusted by {by}: {' and '.join(places)}."
    return Note("adjusted-numbers", text, means=means, ratios=result.adjusts_ratios, covariates=names)


def _width_change(share: float) -> str:
    if math.isnan(share):
        return "unknown"
    return f"{tables.number(100 * abs(share))} % {'narrower' if share > 0 else 'wider'}"


def slopes_note(result: SpeedAdjustment) -> str:
    """Return a note on the slopes of log epoch time within cells and blocks; "" without any."""
    if result.leading_covariate is None:
        return ""
    alone = [
        f"{tables.interval(slopes.estimates[0])} % for 1 % of {COVARIATE_TITLES[name]} (correlation "
        f"{tables.number(slopes.correlation, 2)})"
        for name, slopes in result.slopes_alone.items()
    ]
    chosen = (
        result.adjusted_means.slopes
        if result.adjusted_means
        else result.slopes_alone[result.leading_covariate]
    )
    by = " and ".join(COVARIATE_TITLES[name] for name in chosen.covariates)
    dropped = " ".join(f"Not used: {why}." for why in result.unused.values())
    text = (
        "Among the runs of a block, each compared with the mean of its cell, an epoch takes longer by "
        f"{' and by '.join(alone)}. With {by}, cross-validated errors "
        f"{'fall' if chosen.gain >= 0 else 'rise'} by {tables.number(100 * abs(chosen.gain), 2)} % "
        f"(adjusting requires a decrease by {MIN_IMPROVEMENT_TEXT}). {dropped}"
    ).rstrip()
    return Note(
        "slopes",
        text,
        slopes={name: slopes.estimates[0] for name, slopes in result.slopes_alone.items()},
        gain=chosen.gain,
        unused=list(result.unused.values()),
    )
