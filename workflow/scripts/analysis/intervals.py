"""Means over replicates and their confidence intervals. Replicates are independent runs; each gives one number.

Quantiles, tests and corrections are scipy's and statsmodels'. Intervals of epoch times are made in `analysis.pooling`.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy  # which loads its parts when they are used: its tests are slow to import, and few programs make any

from common.notes import Note

CONFIDENCE = 0.95
LEVEL = 0.05  # a smaller p is called significant
ROUNDING = 1e-12  # of a logarithm
NO_VARIATION = 1e-20  # a share of the sum of squares that is rounding
FEWEST_CLUSTERS = 6  # of fewer, resamples are too much alike
RESAMPLES, SEED = 5000, 1
ALL_THE_SAME = Note("all-values-the-same", "all values are the same")
COLUMNS = ["value", "low", "high", "n"]


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval; `low` and `high` are NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    cv: float = math.nan


def columns(name: str, estimate: Estimate) -> dict[str, float]:
    """An estimate as three columns."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def means(values: pd.Series, group: pd.Series, minimum: float = -math.inf, maximum: float = math.inf) -> pd.DataFrame:
    """For each group that has a value, by its name: value, low, high, n, cv; as `mean`."""
    summary = values.astype(float).groupby(group).agg(["mean", "std", "count"])
    m, s, n = (summary[name].to_numpy(float) for name in ("mean", "std", "count"))
    low, high = t_interval(m, s / np.sqrt(n), n - 1)
    data = {"value": m, "low": np.maximum(low, minimum), "high": np.minimum(high, maximum), "n": n.astype(int)}
    with np.errstate(all="ignore"):
        data["cv"] = s / np.abs(m)
    return pd.DataFrame(data, index=summary.index)[n > 0]


def mean(
    values: Sequence[float], minimum: float = -math.inf, maximum: float = math.inf, confidence: float = CONFIDENCE
) -> Estimate:
    """Arithmetic mean m of n values, m -+ t(n - 1) s / sqrt(n) cut at what the quantity can be, and CV = s / m.

    No interval for n = 1. Formula: Jain, The Art of Computer Systems Performance Analysis (1991), section 13.2.
    """
    x = _present(values)
    n = len(x)
    if n == 0:
        return Estimate(math.nan)
    m = float(x.mean())
    if n == 1:
        return Estimate(m, n=1)
    s = float(x.std(ddof=1))
    low, high = t_interval(m, s / math.sqrt(n), n - 1, confidence)
    return Estimate(m, max(float(low), minimum), min(float(high), maximum), n, s / abs(m) if m else math.nan)


def one_value(values: np.ndarray) -> bool:
    """Whether numbers [n] differ by no more than rounding."""
    if not values.any():
        return True
    shares = values / np.abs(values).max()
    return bool(((shares - shares.mean()) ** 2).sum() <= NO_VARIATION * (shares**2).sum())


def t_interval(
    middle: np.ndarray | float, error: np.ndarray | float, df: np.ndarray | float, confidence: float = CONFIDENCE
) -> tuple[np.ndarray, np.ndarray]:
    """Student's t interval around `middle` with its standard error; no width where that is 0, NaN without freedom."""
    half = scipy.special.stdtrit(df, (1 + confidence) / 2) * error
    return middle - half, middle + half


def harmonic_mean(rates: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Harmonic mean of positive rates: 1 / (mean of 1 / rate), its interval the inverse of that mean's t-interval.

    No interval where that of the inverse reaches 0. Which mean: Hoefler & Belli (SC'15), rule 3.
    """
    inverse = mean([1 / rate for rate in _present(rates)], confidence=confidence)
    if math.isnan(inverse.value):
        return inverse
    bounded = inverse.low > 0
    return Estimate(
        1 / inverse.value,
        1 / inverse.high if bounded else math.nan,
        1 / inverse.low if bounded else math.nan,
        inverse.n,
        inverse.cv,
    )


def bootstrap_mean(values: np.ndarray, cluster: np.ndarray, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of values [n] that are like each other within a cluster [n], and the BCa interval of a bootstrap over clusters.

    No interval for fewer than FEWEST_CLUSTERS of them. The same values have the same interval: what is drawn starts with one seed.
    Formula: Efron, J. Am. Stat. Assoc. 82 (1987), by scipy; whole clusters: Davison & Hinkley (1997), section 3.8.
    """
    if not len(values):
        return Estimate(math.nan)
    mean = float(np.mean(values))
    known = pd.DataFrame({"value": values, "cluster": cluster}).groupby("cluster")["value"].agg(["sum", "count"])
    if len(known) < FEWEST_CLUSTERS:
        return Estimate(mean, n=len(known))
    means = (known["sum"] / known["count"]).to_numpy()
    if one_value(means):
        return Estimate(mean, mean, mean, len(known))
    found = scipy.stats.bootstrap(
        (known["sum"].to_numpy(float), known["count"].to_numpy(float)),
        lambda total, count, axis: total.sum(axis=axis) / count.sum(axis=axis),
        n_resamples=RESAMPLES,
        paired=True,
        vectorized=True,
        confidence_level=confidence,
        method="BCa",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Estimate(mean, float(found.low), float(found.high), len(known))


def equivalence(
    difference: np.ndarray, error: np.ndarray, df: np.ndarray | float, low: float, high: float
) -> np.ndarray:
    """p of two one-sided t tests that a difference with this standard error lies outside (`low`, `high`), [n]; small: it lies inside.

    Where the error is 0, 0 inside and 1 outside. Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987).
    """
    with np.errstate(all="ignore"):
        above = scipy.special.stdtr(df, -(difference - low) / error)
        below = scipy.special.stdtr(df, (difference - high) / error)
    inside = (low < difference) & (difference < high)
    return np.where(np.asarray(error) == 0, 1.0 - inside, np.maximum(above, below))


def welch(groups: Mapping[str, np.ndarray], to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
    """A row per pair of groups, taken as independent: their means `to` and `base`, their sizes n and base_n, the standard
    error of the difference of the means and its degrees of freedom (Welch 1947, by scipy).

    No error where a group has one value, nothing where it is absent.
    """
    nothing = np.array([])
    pairs = [(groups.get(a, nothing), groups.get(b, nothing)) for a, b in zip(to, base, strict=True)]
    sizes = np.array([(len(x), len(y)) for x, y in pairs], dtype=int).reshape(-1, 2)
    error, df = np.full(len(pairs), math.nan), np.full(len(pairs), math.nan)
    for size in np.unique(sizes[(sizes > 1).all(axis=1)], axis=0):
        rows = np.flatnonzero((sizes == size).all(axis=1))
        x, y = (np.stack([pairs[row][side] for row in rows]) for side in (0, 1))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # groups of equal values
            df[rows] = scipy.stats.ttest_ind(x, y, axis=1, equal_var=False).df
        equal = (np.ptp(x, axis=1) == 0) & (np.ptp(y, axis=1) == 0)
        error[rows] = np.where(equal, 0.0, np.hypot(scipy.stats.sem(x, axis=1), scipy.stats.sem(y, axis=1)))
    means = {"to": _means(groups, to), "base": _means(groups, base)}
    return pd.DataFrame({**means, "n": sizes[:, 0], "base_n": sizes[:, 1], "error": error, "df": df})


def paired(to: np.ndarray, base: np.ndarray) -> pd.DataFrame:
    """As `welch`, of rows of `to` and `base` [pairs, blocks], over the blocks in which both have a value (not NaN).

    The error is that of the mean of their differences, as in the paired t test.
    """
    unknown = np.isnan(to) | np.isnan(base)
    one, other = (pd.DataFrame(np.where(unknown, math.nan, values)) for values in (to, base))
    difference = one - other
    n = difference.count(axis=1)
    error = difference.sem(axis=1).where(difference.max(axis=1) > difference.min(axis=1), 0.0).where(n > 1)
    means = {"to": one.mean(axis=1), "base": other.mean(axis=1)}
    return pd.DataFrame({**means, "n": n, "base_n": n, "error": error, "df": n - 1.0})


def bounded(pairs: pd.DataFrame) -> pd.DataFrame:
    """Of each pair (`welch`, `paired`) the difference of the means: value, low, high, n (the smaller), p that it is 0."""
    value = pairs["to"] - pairs["base"]
    low, high = t_interval(value, pairs["error"], pairs["df"])
    p = two_sided(value, pairs["error"], pairs["df"])
    return pd.DataFrame({"value": value, "low": low, "high": high, "n": pairs[["n", "base_n"]].min(axis=1), "p": p})


def two_sided(difference: np.ndarray, error: np.ndarray, df: np.ndarray) -> np.ndarray:
    """p of Student's t test that a difference with this standard error is 0; where that is 0, 1 for none and 0 for any."""
    with np.errstate(all="ignore"):
        p = 2 * scipy.special.stdtr(df, -np.abs(difference) / error)
    return np.where(np.asarray(error) == 0, (np.abs(difference) < ROUNDING).astype(float), p)


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected for their number by Holm's step-down method (Scand. J. Statist. 6, 1979); NaN stays and counts not."""
    values = np.array(p, dtype=float)
    ascending = np.argsort(values)[: np.sum(~np.isnan(values))]  # NaN comes last
    times = np.arange(len(ascending), 0, -1)
    values[ascending] = np.minimum(np.maximum.accumulate(values[ascending] * times), 1)
    return [float(value) for value in values]


def p_text(p: float) -> str:
    """A p value in a sentence."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _means(groups: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    found = {name: groups[name].mean() for name in set(names) if len(groups.get(name, ()))}
    return np.array([found.get(name, math.nan) for name in names], dtype=float)


def _present(values: Sequence[float]) -> np.ndarray:
    x = np.asarray(values, dtype=float)
    return x[~np.isnan(x)]
