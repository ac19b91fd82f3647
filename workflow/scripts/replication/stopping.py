"""Decide whether a cell has enough runs: pure functions of measurements and a study's stopping rule.

A rule that stops as soon as an interval is narrow enough favours cells whose standard deviation is small by
chance, so the reported intervals cover the true value in less than 95 % of studies (Anscombe, J. R. Stat.
Soc. B 15, 1953; Chow & Robbins, Ann. Math. Stat. 36, 1965). With three runs per cell, a stricter confidence
level does not correct that. Therefore the standard deviation must be well known before it decides, as after
the first stage of Stein (Ann. Math. Stat. 16, 1945). A cell stops only if it has MIN_CELL_DF, and all cells
together have MIN_POOLED_DF degrees of freedom, and if its interval is narrow in two ways: as reported, and
with a standard deviation moderated by all cells without the limit of analysis.cell_means.

Simulations of other rules are in docs/explanation/statistics.md: more runs after the interval is narrow
(Hall, Ann. Stat. 9, 1981; Mukhopadhyay & de Silva, Sequential Methods and Their Applications, 2009), stricter
levels, the pooled standard deviation of all cells, fewer interim analyses.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.cell_means import MAX_PRIOR_DF, CellMeans, estimate_means
from analysis.intervals import t_interval
from analysis.records import timing_runs
from declared.factors import factor_names
from declared.replicates import MIN_POOLED_DF, Replicates
from plan.decisions import BY_CHANCE, NO, NOT_ASKED, YES

# Minimum degrees of freedom of a cell's moderated standard deviation; MIN_POOLED_DF is the minimum of all
# cells together. With fewer, intervals cover the true value too rarely; with more, campaigns only need more
# runs (make bench-stopping).
MIN_CELL_DF = 8.0


def judge_cells(runs: pd.DataFrame, rule: Replicates) -> pd.DataFrame:
    """Return the verdict of the stopping rule for each cell.

    Returns:
        A row per cell with these columns:
            n: Number of successful runs.
            half_width: Half of the 95 % interval of the mean, relative to the mean. If the rule has
                contrasts, of the cell's widest ratio instead; NaN for a cell without one.
            pooled_df: Degrees of freedom of the standard deviation of all cells together.
            reached: One of plan.decisions.REACHED. "By chance" means that the interval is narrow, but that
                the standard deviation is not known well enough.
            refine: Whether the cell gets another run: it has a successful one, and fewer than `at_most`.
    """
    timed_runs = timing_runs(runs)
    cell_means = estimate_means(timed_runs)
    limit = math.nan if rule.until is None else rule.until
    widths = (
        _contrast_widths(timed_runs, cell_means, rule.contrasts)
        if rule.contrasts
        else _cell_widths(cell_means)
    )
    judged = widths.index if rule.contrasts else timed_runs["cell"].unique()
    verdicts = pd.DataFrame(index=pd.Index(runs["cell"].unique(), name="cell"))
    verdicts["n"] = cell_means.cell_statistics["n"].reindex(verdicts.index).fillna(0).astype(int)
    verdicts[["half_width", "moderated_width", "df", "pooled_df"]] = widths.reindex(verdicts.index)
    not_asked = ~verdicts.index.isin(judged)
    precise = (verdicts["half_width"] <= limit).to_numpy()
    enough = (
        (verdicts["moderated_width"] <= limit)
        & (verdicts["df"] >= MIN_CELL_DF)
        & (verdicts["pooled_df"] >= MIN_POOLED_DF)
    )
    n_runs = runs.groupby("cell").size().reindex(verdicts.index)
    verdicts["reached"] = np.select([not_asked, precise & enough, precise], [NOT_ASKED, YES, BY_CHANCE], NO)
    verdicts["refine"] = (
        verdicts["reached"].isin([BY_CHANCE, NO]) & (verdicts["n"] > 0) & (n_runs < rule.at_most)
    )
    return verdicts.drop(columns=["moderated_width", "df"])


def expected_runs(verdicts: pd.DataFrame, rule: Replicates) -> pd.Series:
    """Return the expected final number of runs of each cell.

    The half width of the interval of a logarithm is arcsinh(half_width). It shrinks with 1 / sqrt(n) and with
    Student's t; each cell contributes n - 1 degrees of freedom.
    """
    n = verdicts["n"].to_numpy(float)
    with np.errstate(all="ignore"):
        spread = (
            np.arcsinh(verdicts["half_width"]) * np.sqrt(n) / t_interval(0.0, 1.0, n - 1 + MAX_PRIOR_DF)[1]
        )
        per_run = verdicts["pooled_df"] / (n - 1)
    n_needed = runs_to_target(spread.to_numpy(float), rule, per_run.to_numpy(float))
    n_needed = np.maximum(n_needed, np.minimum(n + 1, rule.at_most))
    return pd.Series(
        np.where(verdicts["refine"], n_needed, n.clip(rule.at_least)).astype(int), index=verdicts.index
    )


def runs_to_target(spread: np.ndarray | float, rule: Replicates, cells: np.ndarray | float) -> np.ndarray:
    """Return the number of runs that cells are expected to need.

    Args:
        spread: Standard deviations of the logarithm of epoch times, with the variance of blocks. If it is
            NaN, a cell needs `at_most` runs.
        rule: The study's stopping rule.
        cells: Number of cells, or the degrees of freedom that one more run of each cell adds.
    """
    spread, cells = np.broadcast_arrays(np.asarray(spread, dtype=float), np.asarray(cells, dtype=float))
    if rule.until is None:
        return np.full(spread.shape, rule.at_least)
    n = np.arange(rule.at_least, rule.at_most + 1)
    prior_df = np.where(cells > 1, MAX_PRIOR_DF, 0.0)[..., None]
    _, half = t_interval(0.0, spread[..., None] / np.sqrt(n), n - 1 + prior_df)
    # n - 2 instead of n - 1, because cells need about one run more than in the best case.
    enough = (half <= math.asinh(rule.until)) & ((n - 2) * cells[..., None] >= MIN_POOLED_DF)
    return np.where(enough.any(axis=-1), n[enough.argmax(axis=-1)], rule.at_most)


def _cell_widths(cell_means: CellMeans) -> pd.DataFrame:
    """Return by cell the columns half_width (as reported), moderated_width, df and pooled_df.

    moderated_width and df come from standard deviations that are moderated without the limit MAX_PRIOR_DF.
    """
    moderated = replace(cell_means, max_prior_df=math.inf).cell_statistics
    return pd.DataFrame(
        {
            "half_width": _relative_half_width(cell_means.cell_statistics, "mean"),
            "moderated_width": _relative_half_width(moderated, "mean"),
            "df": moderated["df"],
            "pooled_df": cell_means.max_mean_df,
        }
    )


def _contrast_widths(
    runs: pd.DataFrame, cell_means: CellMeans, contrasts: Mapping[str, tuple[Any, ...]]
) -> pd.DataFrame:
    """Return the columns of `_cell_widths` by cell, of its widest contrast; NaN if one has no interval."""
    pairs = pd.DataFrame(_pairs(runs, contrasts), columns=["to", "base"])
    columns = ["half_width", "moderated_width", "df", "pooled_df"]
    pairs[columns] = math.nan
    measured = pairs[["to", "base"]].isin(list(cell_means.values_by_cell)).all(axis="columns")
    if measured.any():
        to, base = (pairs.loc[measured, end].tolist() for end in ("to", "base"))
        reported, moderated = (
            cell_means.ratios(to, base),
            replace(cell_means, max_prior_df=math.inf).ratios(to, base),
        )
        total_df = np.where(
            reported["within_blocks"] > 0, cell_means.residual_spread.df, cell_means.max_mean_df
        )
        widths = {
            "half_width": _relative_half_width(reported, "value"),
            "moderated_width": _relative_half_width(moderated, "value"),
            "df": moderated["df"],
            "pooled_df": total_df,
        }
        pairs.loc[measured, columns] = pd.DataFrame(widths)[columns].to_numpy(float)
    by_end = pd.concat([pairs.set_index(end)[columns] for end in ("to", "base")]).groupby(level=0)
    widest = {"half_width": "max", "moderated_width": "max", "df": "min", "pooled_df": "min"}
    return pd.DataFrame({name: getattr(by_end[name], end)(skipna=False) for name, end in widest.items()})


def _relative_half_width(intervals: pd.DataFrame, value: str) -> pd.Series:
    return (intervals["high"] - intervals["low"]) / (2 * intervals[value])


def _pairs(runs: pd.DataFrame, contrasts: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of cells that differ only in one factor of `contrasts`, between two of its levels."""
    cells = runs.drop_duplicates("cell")
    for name, levels in contrasts.items():
        constant = [factor for factor in factor_names(cells) if factor != name]
        chosen = cells[cells[name].isin(levels)]
        for _, group in chosen.groupby(constant, dropna=False, sort=False):
            yield from itertools.combinations(group["cell"], 2)
