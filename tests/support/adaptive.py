"""Simulate many adaptive campaigns with known true values at once, and compute the results of each.

A campaign adds blocks until a rule is satisfied. The formulas are those of `analysis.cell_means`, on arrays
[studies, cells, blocks] with NaN for a cell without a run; tests compare both. Every cell has a run in each of
the first blocks, so any two cells share at least three blocks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import special

from analysis.cell_means import MAX_PRIOR_DF, MIN_SHARED_BLOCKS, MIN_VARIANCE_RATIO
from analysis.intervals import CONFIDENCE
from declared.replicates import MIN_POOLED_DF
from replication.stopping import MIN_CELL_DF

Rule = Callable[["Report"], np.ndarray]  # returns which cells get a run in the next block, [studies, cells]
# Half of the prior's degrees of freedom (descending), and the variance of log variances at each (ascending).
HALF_PRIOR_DF = np.exp(np.linspace(math.log(1e-4), math.log(1e6), 20001))[::-1]
LOG_VARIANCE = special.polygamma(1, HALF_PRIOR_DF)


def prior_of(variances: np.ndarray, df: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `cell_means.estimate_prior` of each row of variances [studies, cells]; NaN for cells without one.

    Returns:
        Typical variances and their degrees of freedom without an upper limit, both [studies].
    """
    has_variance = ~np.isnan(variances)
    if has_variance.sum(axis=1).max() < 2:
        return np.full(len(variances), np.nan), np.zeros(len(variances))
    n_variances = has_variance.sum(axis=1)
    middle = np.nanmedian(variances, axis=1, keepdims=True)
    half = np.where(has_variance, df / 2, 1.0)
    digamma, trigamma = special.digamma(half), special.zeta(2.0, half)
    logs = np.where(
        has_variance,
        np.log(np.maximum(variances, MIN_VARIANCE_RATIO * middle)) + np.log(half) - digamma,
        np.nan,
    )
    mean = np.nanmean(logs, axis=1)
    apart = np.nanvar(logs, axis=1, ddof=1) - np.where(has_variance, trigamma, 0).sum(axis=1) / n_variances
    is_homogeneous = apart <= special.polygamma(1, 1e6)
    of_prior = 2 * np.exp(
        np.interp(np.log(np.where(is_homogeneous, 1.0, apart)), np.log(LOG_VARIANCE), np.log(HALF_PRIOR_DF))
    )
    pooled = np.nansum(variances * df, axis=1) / np.where(has_variance, df, 0).sum(axis=1)
    variance = np.where(
        is_homogeneous, pooled, np.exp(mean + special.digamma(of_prior / 2) - np.log(of_prior / 2))
    )
    return variance, np.where(is_homogeneous, np.inf, of_prior)


@dataclass(frozen=True)
class Report:
    """The statistics of campaigns.

    Attributes:
        log: Logarithms of epoch times, [studies, cells, blocks], NaN without a run.
    """

    log: np.ndarray

    @cached_property
    def n(self) -> np.ndarray:
        """Number of runs of each cell, [studies, cells]."""
        return (~np.isnan(self.log)).sum(axis=2)

    @cached_property
    def own(self) -> np.ndarray:
        """Variance of each cell, [studies, cells]."""
        return np.nanvar(self.log, axis=2, ddof=1)

    @cached_property
    def prior(self) -> tuple[np.ndarray, np.ndarray]:
        """Typical variance of all cells and its degrees of freedom, both [studies]."""
        return prior_of(self.own, self.n - 1.0)

    @cached_property
    def in_blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Block effects, from the runs that are not alone in their block.

        Returns:
            Whether a cell has such a run in a block, deviations from cells' means, and residuals after block
            effects, each [studies, cells, blocks]; degrees of freedom lost to blocks, and residual ones, both
            [studies].
        """
        has_run = ~np.isnan(self.log)
        in_block = has_run.sum(axis=1)
        has_run &= (in_block > 1)[:, None]
        in_block = np.where(in_block > 1, in_block, 0)
        n = np.maximum(has_run.sum(axis=2), 1)
        values = np.where(has_run, self.log, 0.0)
        deviations = np.where(has_run, values - (values.sum(axis=2) / n)[:, :, None], 0.0)
        weights = has_run / np.sqrt(n)[:, :, None]
        blocks = self.log.shape[2]
        matrix = -np.swapaxes(weights, 1, 2) @ weights
        used = in_block > 0
        matrix += np.eye(blocks) * np.where(used, in_block, 1.0)[:, None]
        matrix += (used[:, :, None] & used[:, None]) / np.maximum(used.sum(axis=1), 1)[
            :, None, None
        ]  # one level is free
        effects = np.linalg.solve(matrix, deviations.sum(axis=1)[..., None])[..., 0]
        fitted = np.where(has_run, effects[:, None], 0.0)
        left = np.where(has_run, deviations - (fitted - (fitted.sum(axis=2) / n)[:, :, None]), 0.0)
        lost = np.maximum(used.sum(axis=1) - 1, 0)
        return (
            has_run,
            deviations,
            left,
            lost,
            np.maximum(0, (np.maximum(has_run.sum(axis=2), 1) - 1).sum(axis=1) - lost),
        )

    @cached_property
    def freedom(self) -> np.ndarray:
        """`CellMeans.max_mean_df`, [studies]."""
        df = (self.n - 1.0).sum(axis=1)
        total = (self.own * (self.n - 1)).sum(axis=1)
        _, deviations, left, lost, _ = self.in_blocks
        of_blocks = np.maximum(0.0, (deviations**2).sum(axis=(1, 2)) - (left**2).sum(axis=(1, 2)))
        with np.errstate(all="ignore"):
            squares = np.where(lost > 0, of_blocks**2 / lost, 0) + (total - of_blocks) ** 2 / (df - lost)
            return np.minimum(df, total**2 / squares)

    @cached_property
    def means(self) -> np.ndarray:
        """Logarithms of cells' mean epoch times, [studies, cells]."""
        return np.log(np.nanmean(np.exp(self.log), axis=2))

    def moderated(self, max_prior_df: float = MAX_PRIOR_DF) -> tuple[np.ndarray, np.ndarray]:
        """Return moderated standard deviations and their degrees of freedom, both [studies, cells]."""
        variance, df = moderated(self.own, self.n - 1.0, *self.prior, max_prior_df)
        return np.sqrt(variance), np.minimum(df, self.freedom[:, None])

    @cached_property
    def pooled_half_widths(self) -> np.ndarray:
        """Relative half-widths of intervals of means with the standard deviation pooled over all cells.

        Its shape is [studies, cells].
        """
        df = (self.n - 1.0).sum(axis=1)
        s = np.sqrt((self.own * (self.n - 1)).sum(axis=1) / df)
        return np.sinh(quantile(self.freedom)[:, None] * s[:, None] / np.sqrt(self.n))

    def half(self, confidence: float = CONFIDENCE, max_prior_df: float = MAX_PRIOR_DF) -> np.ndarray:
        """Return half-widths of the intervals of cells' means, relative to the means, [studies, cells]."""
        s, df = self.moderated(max_prior_df)
        return np.sinh(quantile(df, confidence) * s / np.sqrt(self.n))

    @cached_property
    def covered(self) -> np.ndarray:
        """Whether the intervals of cells' means cover the true value, 1 s, [studies, cells]."""
        s, df = self.moderated()
        return np.abs(self.means) < quantile(df) * s / np.sqrt(self.n)

    def ratios(self, to: np.ndarray, base: np.ndarray, max_prior_df: float = MAX_PRIOR_DF) -> "Ratios":
        """Return the ratios of the cells with indices `to` over those with indices `base`."""
        has_run, _, left, _, df = self.in_blocks
        counts = np.maximum(has_run.sum(axis=2) - 1.0, 0)
        share = (df / counts.sum(axis=1))[:, None]
        with np.errstate(all="ignore"):
            variances = np.where(counts > 0, (left**2).sum(axis=2) / counts / share, np.nan)
        typical, of_prior = prior_of(variances, counts * share)
        is_shared = has_run[:, to] & has_run[:, base]
        n = is_shared.sum(axis=2)
        assert n.min() >= MIN_SHARED_BLOCKS
        to_log, base_log = (np.where(is_shared, self.log[:, cells], np.nan) for cells in (to, base))
        variance, own_df = moderated(
            np.nanvar(to_log - base_log, axis=2, ddof=1), n - 1.0, 2 * typical, of_prior, max_prior_df
        )
        value = np.log(np.nanmean(np.exp(to_log), axis=2) / np.nanmean(np.exp(base_log), axis=2))
        return Ratios(
            value,
            np.nanmean(to_log - base_log, axis=2),
            np.sqrt(variance / n),
            np.minimum(own_df, df[:, None]),
            df,
        )


class Ratios(NamedTuple):
    """Ratios of pairs of cells, each attribute [studies, pairs] except `block_df`.

    Attributes:
        value: Logarithm of the ratio of means.
        difference: Difference of mean logarithms.
        error: Standard error of the difference.
        df: Degrees of freedom of the standard error.
        block_df: Degrees of freedom of the spread of all cells within blocks, [studies].
    """

    value: np.ndarray
    difference: np.ndarray
    error: np.ndarray
    df: np.ndarray
    block_df: np.ndarray

    @property
    def half(self) -> np.ndarray:
        """Half-widths of the intervals, relative to the ratios."""
        return np.sinh(quantile(self.df) * self.error)

    @property
    def covered(self) -> np.ndarray:
        """Whether the intervals cover the true ratio, 1."""
        return np.abs(self.value) < quantile(self.df) * self.error

    @property
    def differ(self) -> np.ndarray:
        """Whether p is below 0.05."""
        return np.abs(self.difference) > quantile(self.df) * self.error


def quantile(df: np.ndarray, confidence: float = CONFIDENCE) -> np.ndarray:
    """Return the quantile of Student's t for a two-sided interval."""
    return special.stdtrit(df, (1 + confidence) / 2)


def moderated(
    own: np.ndarray, df: np.ndarray, typical: np.ndarray, of_prior: np.ndarray, max_prior_df: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return `VariancePrior.moderated` of variances [studies, cells] with the typical variance of each study."""
    of_prior = np.minimum(of_prior, max_prior_df)[:, None]
    with np.errstate(all="ignore"):
        weight = np.where(of_prior > 0, 1 / (1 + df / of_prior), 0.0)
    return weight * np.where(of_prior > 0, typical[:, None], 0.0) + (1 - weight) * own, of_prior + df


def naive(until: float) -> Rule:
    """Return the rule that stops as soon as the reported interval is narrow enough."""
    return lambda report: report.half() > until


def chosen(until: float) -> Rule:
    """Return the rule of `replication.stopping.judge_cells`."""

    def refine(report: Report) -> np.ndarray:
        is_estimated = (report.moderated(math.inf)[1] >= MIN_CELL_DF) & (report.freedom >= MIN_POOLED_DF)[
            :, None
        ]
        return ~is_estimated | (np.maximum(report.half(), report.half(max_prior_df=math.inf)) > until)

    return refine


def chosen_of_pairs(until: float) -> Rule:
    """Return the chosen rule for contrasts of cells 1 and 2, 3 and 4, and so on."""

    def refine(report: Report) -> np.ndarray:
        to = np.arange(0, report.log.shape[1], 2)
        reported, unlimited = report.ratios(to, to + 1), report.ratios(to, to + 1, math.inf)
        is_estimated = (unlimited.df >= MIN_CELL_DF) & (unlimited.block_df >= MIN_POOLED_DF)[:, None]
        return np.repeat(~is_estimated | (np.maximum(reported.half, unlimited.half) > until), 2, axis=1)

    return refine


def noise_of_block(
    rng: np.random.Generator, active: np.ndarray, correlation: float, last: np.ndarray
) -> np.ndarray:
    """Return the noise of one block's runs, in random order, each correlated with the run before it.

    `last` [studies] is the noise of the last run of the previous block; it is updated.
    """
    noise = rng.standard_normal(active.shape)
    if not correlation:
        return noise
    order = np.argsort(np.where(active, rng.random(active.shape), 2.0), axis=1)
    rows = np.arange(len(active))
    for place in range(active.shape[1]):
        cell = order[:, place]
        is_active = active[rows, cell]
        value = np.where(
            is_active, correlation * last + math.sqrt(1 - correlation**2) * noise[rows, cell], last
        )
        noise[rows, cell] = value
        last[:] = value
    return noise


def campaign(
    rng: np.random.Generator,
    spread: np.ndarray,
    at_least: int,
    at_most: int,
    refine: Rule,
    of_blocks: float = 0.0,
    correlation: float = 0.0,
) -> Report:
    """Simulate studies of cells with these standard deviations of logarithms [studies, cells].

    After `at_least` blocks, only cells that `refine` returns get a run in the next block.
    """
    log = np.full((*spread.shape, at_most), np.nan)
    active = np.ones(spread.shape, dtype=bool)
    last = rng.standard_normal(len(spread))
    for block in range(at_most):
        noise = noise_of_block(rng, active, correlation, last)
        value = (
            noise * spread
            + of_blocks * rng.standard_normal((len(spread), 1))
            - (spread**2 + of_blocks**2) / 2
        )
        log[:, :, block] = np.where(active, value, np.nan)
        if block + 1 >= at_least and block + 1 < at_most:
            unfinished = np.flatnonzero(active.any(axis=1))
            active = np.zeros_like(active)
            if not len(unfinished):
                break
            active[unfinished] = refine(Report(log[unfinished, :, : block + 1]))
    return Report(log)
