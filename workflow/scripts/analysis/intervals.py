"""Compute means, comparisons and their intervals for values of replicates: independent runs, one value each.

Quantiles and tests come from scipy. `analysis.cell_means` has the intervals of mean epoch times.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy  # Loads its parts when they are used, because scipy.stats is slow to import.

from common.notes import Note

CONFIDENCE = 0.95
SIGNIFICANCE_LEVEL = 0.05
ROUNDING = 1e-12  # Differences of logarithms below it are rounding errors.
NO_VARIATION = 1e-20  # Shares of the sum of squares up to it are rounding errors.
MIN_CLUSTERS = 6  # Fewer clusters have too few distinct resamples.
RESAMPLES, SEED = 5000, 1
ALL_THE_SAME = Note("all-values-the-same", "all values are the same")
ESTIMATE_COLUMNS = ["value", "low", "high", "n"]


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval, or a prediction with its band.

    Attributes:
        value: The estimate; NaN without data.
        low: Lower bound; NaN without an interval.
        high: Upper bound.
        n: Number of values behind it, such as runs; 0 if unknown.
        cv: Their coefficient of variation, standard deviation over mean; NaN if unknown.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    cv: float = math.nan

    def times(self, factor: float) -> "Estimate":
        """Return `factor` times the estimate, such as the same quantity in another unit."""
        return replace(self, value=factor * self.value, low=factor * self.low, high=factor * self.high)


def columns(name: str, estimate: Estimate) -> dict[str, float]:
    """Return an estimate as the three columns name, name_low and name_high."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def estimate_of(row: Mapping[str, Any] | pd.Series, name: str) -> Estimate:
    """Return the estimate in the columns name, name_low and name_high of a row, the reverse of `columns`."""
    return Estimate(float(row[name]), float(row[f"{name}_low"]), float(row[f"{name}_high"]))


def means(
    values: pd.Series, group: pd.Series, minimum: float = -math.inf, maximum: float = math.inf
) -> pd.DataFrame:
    """Return value, low, high, n and cv of each group that has a value, as `mean` does."""
    summary = values.astype(float).groupby(group).agg(["mean", "std", "count"])
    m, s, n = (summary[name].to_numpy(float) for name in ("mean", "std", "count"))
    low, high = t_interval(m, s / np.sqrt(n), n - 1)
    data = {
        "value": m,
        "low": np.maximum(low, minimum),
        "high": np.minimum(high, maximum),
        "n": n.astype(int),
    }
    with np.errstate(all="ignore"):
        data["cv"] = s / np.abs(m)
    return pd.DataFrame(data, index=summary.index)[n > 0]


def mean(values: Sequence[float], minimum: float = -math.inf) -> Estimate:
    """Return the arithmetic mean m of n values with its t interval and coefficient of variation s / m.

    The interval is m -+ t(n - 1) s / sqrt(n), cut at `minimum`; there is none for n = 1.
    Formula: Jain, The Art of Computer Systems Performance Analysis (1991), section 13.2.
    """
    x = _present(values)
    n = len(x)
    if n == 0:
        return Estimate(math.nan)
    m = float(x.mean())
    if n == 1:
        return Estimate(m, n=1)
    s = float(x.std(ddof=1))
    low, high = map(float, t_interval(m, s / math.sqrt(n), n - 1))
    return Estimate(m, max(low, minimum), high, n, s / abs(m) if m else math.nan)


def is_constant(values: np.ndarray) -> bool:
    """Return whether values [n] differ only by rounding."""
    if not values.any():
        return True
    shares = values / np.abs(values).max()
    return bool(((shares - shares.mean()) ** 2).sum() <= NO_VARIATION * (shares**2).sum())


def t_interval(
    middle: np.ndarray | float, error: np.ndarray | float, df: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of Student's 95 % t interval around `middle` with a standard error.

    The width is 0 for a standard error of 0; bounds are NaN without degrees of freedom.
    """
    half = scipy.special.stdtrit(df, (1 + CONFIDENCE) / 2) * error
    return middle - half, middle + half


def harmonic_mean(rates: Sequence[float]) -> Estimate:
    """Return the harmonic mean of positive rates, the inverse of the mean of 1 / rate, with its interval.

    The interval is a t interval of the logarithm of the mean, whose standard error is that of the mean
    divided by the mean (delta method). Unlike an inverted t interval of the mean, it has an upper end however
    few rates there are. Choice of mean: Hoefler & Belli (SC'15), rule 3.
    """
    inverse = mean([1 / rate for rate in _present(rates)])
    value, factor = 1 / inverse.value, math.exp((inverse.high - inverse.value) / inverse.value)
    return Estimate(value, value / factor, value * factor, inverse.n, inverse.cv)


def bootstrap_mean(values: np.ndarray, cluster: np.ndarray) -> Estimate:
    """Return the mean of clustered values with the BCa interval of a bootstrap over clusters.

    The seed is fixed, so equal values give equal intervals. There is no interval below MIN_CLUSTERS clusters.
    Formula: Efron, J. Am. Stat. Assoc. 82 (1987), by scipy; resampling of clusters: Davison & Hinkley (1997),
    section 3.8.

    Args:
        values: Values [n].
        cluster: Cluster of each value [n].
    """
    if not len(values):
        return Estimate(math.nan)
    mean = float(np.mean(values))
    clusters = (
        pd.DataFrame({"value": values, "cluster": cluster}).groupby("cluster")["value"].agg(["sum", "count"])
    )
    if len(clusters) < MIN_CLUSTERS:
        return Estimate(mean, n=len(clusters))
    means = (clusters["sum"] / clusters["count"]).to_numpy()
    if is_constant(means):
        return Estimate(mean, mean, mean, len(clusters))
    interval = scipy.stats.bootstrap(
        (clusters["sum"].to_numpy(float), clusters["count"].to_numpy(float)),
        lambda total, count, axis: total.sum(axis=axis) / count.sum(axis=axis),
        n_resamples=RESAMPLES,
        paired=True,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Estimate(mean, float(interval.low), float(interval.high), len(clusters))


def equivalence_p(
    difference: np.ndarray, error: np.ndarray, df: np.ndarray | float, low: float, high: float
) -> np.ndarray:
    """Return p of two one-sided t tests that a difference lies outside (`low`, `high`), [n].

    A small p shows that the difference lies inside. Without a standard error p is 0 inside and 1 outside.
    Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987).
    """
    with np.errstate(all="ignore"):
        above = scipy.special.stdtr(df, -(difference - low) / error)
        below = scipy.special.stdtr(df, (difference - high) / error)
    inside = (low < difference) & (difference < high)
    return np.where(np.asarray(error) == 0, 1.0 - inside, np.maximum(above, below))


def welch(groups: Mapping[str, np.ndarray], first: Sequence[str], second: Sequence[str]) -> pd.DataFrame:
    """Compare pairs of independent groups (Welch 1947, by scipy).

    Returns:
        A row per pair: means `first` and `second`, sizes first_n and second_n, and the standard error of the
        difference of the means with its degrees of freedom, NaN if a group has fewer than two values. The
        mean of an absent group is NaN.
    """
    empty = np.array([])
    pairs = [(groups.get(a, empty), groups.get(b, empty)) for a, b in zip(first, second, strict=True)]
    sizes = np.array([(len(x), len(y)) for x, y in pairs], dtype=int).reshape(-1, 2)
    error, df = np.full(len(pairs), math.nan), np.full(len(pairs), math.nan)
    for size in np.unique(sizes[(sizes > 1).all(axis=1)], axis=0):
        rows = np.flatnonzero((sizes == size).all(axis=1))
        x, y = (np.stack([pairs[row][side] for row in rows]) for side in (0, 1))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # Groups of equal values cause warnings.
            df[rows] = scipy.stats.ttest_ind(x, y, axis=1, equal_var=False).df
        equal = (np.ptp(x, axis=1) == 0) & (np.ptp(y, axis=1) == 0)
        error[rows] = np.where(equal, 0.0, np.hypot(scipy.stats.sem(x, axis=1), scipy.stats.sem(y, axis=1)))
    means = {"first": _group_means(groups, first), "second": _group_means(groups, second)}
    n = {"first_n": sizes[:, 0], "second_n": sizes[:, 1]}
    return pd.DataFrame({**means, **n, "error": error, "df": df})


def welch_error(
    squares: np.ndarray, df: np.ndarray, second_squares: np.ndarray, second_df: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard error of differences of two independent means, and its degrees of freedom, [n].

    Welch (Biometrika 34, 1947); degrees of freedom by Satterthwaite (Biometrics 2, 1946).

    Args:
        squares: Squared standard errors of the means, s^2 / n.
        df: Degrees of freedom of s.
        second_squares: Squared standard errors of the means that are subtracted.
        second_df: Degrees of freedom of their s.
    """
    total = squares + second_squares
    with np.errstate(all="ignore"):
        welch_df = total**2 / (squares**2 / df + second_squares**2 / second_df)
        return np.sqrt(total), np.where(total == 0, np.minimum(df, second_df), welch_df)


def paired(first: np.ndarray, second: np.ndarray) -> pd.DataFrame:
    """Compare `first` and `second` [pairs, blocks] over the blocks in which both have a value.

    Returns:
        The columns of `welch`; the error is that of the mean difference, as in the paired t test.
    """
    missing = np.isnan(first) | np.isnan(second)
    shared = [pd.DataFrame(np.where(missing, math.nan, values)) for values in (first, second)]
    difference = shared[0] - shared[1]
    n = difference.count(axis=1)
    error = difference.sem(axis=1).where(difference.max(axis=1) > difference.min(axis=1), 0.0).where(n > 1)
    means = {"first": shared[0].mean(axis=1), "second": shared[1].mean(axis=1)}
    return pd.DataFrame({**means, "first_n": n, "second_n": n, "error": error, "df": n - 1.0})


def difference_intervals(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return value, low, high, n (the smaller) and p of the differences in `welch` or `paired`."""
    value = pairs["first"] - pairs["second"]
    low, high = t_interval(value, pairs["error"], pairs["df"])
    p = two_sided_p(value, pairs["error"], pairs["df"])
    n = pairs[["first_n", "second_n"]].min(axis=1)
    return pd.DataFrame({"value": value, "low": low, "high": high, "n": n, "p": p})


def two_sided_p(difference: np.ndarray, error: np.ndarray, df: np.ndarray) -> np.ndarray:
    """Return p of Student's t test that a difference is 0.

    Without a standard error p is 1 for no difference and 0 for any.
    """
    with np.errstate(all="ignore"):
        p = 2 * scipy.special.stdtr(df, -np.abs(difference) / error)
    return np.where(np.asarray(error) == 0, (np.abs(difference) < ROUNDING).astype(float), p)


def holm(p: Sequence[float]) -> list[float]:
    """Correct p values by Holm's step-down method (Scand. J. Statist. 6, 1979); NaN is not counted."""
    values = np.array(p, dtype=float)
    ascending = np.argsort(values)[: np.sum(~np.isnan(values))]  # NaN is sorted last
    times = np.arange(len(ascending), 0, -1)
    values[ascending] = np.minimum(np.maximum.accumulate(values[ascending] * times), 1)
    return [float(value) for value in values]


def simultaneous_ratios(ratios: pd.DataFrame) -> pd.DataFrame:
    """Return bounds of the ratios of a family that exclude 1 if and only if Holm's p is below the level.

    The bounds are Bonferroni's, which cover all n ratios of the family with a probability of 95 % or more:
    log half-width t(df, 1 - 0.05 / 2n) in place of t(df, 0.975). Holm's step-down rejects more than they do.
    Where it does, the interval ends at 1 without including it, as do the bounds that are compatible with
    Holm's method (Strassburger & Bretz, Stat. Med. 27, 2008; Guilbaud, Biom. J. 50, 2008). All verdicts are
    also true with a probability of 95 % or more, but bounds and verdicts together only with about 90 % in the
    worst case. Ratios of arithmetic means are centred a little off the logarithms that are tested, so an
    interval that is not rejected is extended to 1 where needed.

    Args:
        ratios: value, low, high (each ratio's own 95 % interval), df, and p that it is 1, as returned by
            `CellMeans.ratios`. Rows without p are not part of the family.

    Returns:
        low and high; NaN without p.
    """
    value, low, high, df, p = (ratios[name].to_numpy(float) for name in ("value", "low", "high", "df", "p"))
    n = max(1, int((~np.isnan(p)).sum()))
    with np.errstate(all="ignore"):
        wider = scipy.special.stdtrit(df, 1 - SIGNIFICANCE_LEVEL / (2 * n))
        wider /= scipy.special.stdtrit(df, (1 + CONFIDENCE) / 2)
        low, high = value * (low / value) ** wider, value * (high / value) ** wider
    differs = np.array(holm(p.tolist())) < SIGNIFICANCE_LEVEL
    above_1, below_1 = np.maximum(low, np.nextafter(1.0, 2.0)), np.minimum(high, np.nextafter(1.0, 0.0))
    low = np.select([differs & (value >= 1), ~differs], [above_1, np.minimum(low, 1)], low)
    high = np.select([differs & (value < 1), ~differs], [below_1, np.maximum(high, 1)], high)
    return pd.DataFrame({"low": low, "high": high}, index=ratios.index)


def p_text(p: float) -> str:
    """Return a p value in words for a sentence, such as `p = 0.03`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.{p_decimals(p)}f}"


def p_decimals(p: float) -> int:
    """Return the decimals of a p value: three, or four if three would round it up to the level."""
    return 4 if p < SIGNIFICANCE_LEVEL and round(p, 3) >= SIGNIFICANCE_LEVEL else 3


def _group_means(groups: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    means = {name: groups[name].mean() for name in set(names) if len(groups.get(name, ()))}
    return np.array([means.get(name, math.nan) for name in names], dtype=float)


def _present(values: Sequence[float]) -> np.ndarray:
    x = np.asarray(values, dtype=float)
    return x[~np.isnan(x)]
