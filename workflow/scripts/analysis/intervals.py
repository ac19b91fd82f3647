"""Means over replicates and their confidence intervals. Replicates are independent runs; each gives one number.

Quantiles, tests and corrections are scipy's and statsmodels'. Intervals of epoch times are made in `analysis.pooling`.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

CONFIDENCE = 0.95
LEVEL = 0.05  # a smaller p is called significant
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


def t_interval(
    middle: np.ndarray | float, error: np.ndarray | float, df: np.ndarray | float, confidence: float = CONFIDENCE
) -> tuple[np.ndarray, np.ndarray]:
    """Student's t interval around `middle` with its standard error; no width where that is 0, NaN without freedom."""
    half = stats.t.ppf((1 + confidence) / 2, df) * error
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


def differences(groups: Mapping[str, np.ndarray], to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
    """A row per pair of groups: mean of `to` less that of `base` with the interval of Welch (1947), n, p.

    No interval where a group has one value, nothing where it is absent. n is the size of the smaller group.
    """
    data, half = _welch(groups, to, base)
    value = _of_groups(groups, to, np.mean) - _of_groups(groups, base, np.mean)
    return data.assign(value=value, low=value - half, high=value + half)[[*COLUMNS, "p"]]


def ratios(groups: Mapping[str, np.ndarray], to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
    """A row per pair of groups of positive values: ratio of arithmetic means, its interval on the log scale, n, p.

    Interval and p are Welch's (1947) for the mean logarithms, the interval laid around the ratio: log(mean) has the
    variance of the mean logarithm, s^2 / n, where spreads are small beside means (delta method).
    """
    data, half = _welch({name: np.log(values) for name, values in groups.items()}, to, base)
    value = _of_groups(groups, to, np.mean) / _of_groups(groups, base, np.mean)
    return data.assign(value=value, low=value * np.exp(-half), high=value * np.exp(half))[[*COLUMNS, "p"]]


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected for their number by Holm's step-down method (Scand. J. Statist. 6, 1979); NaN stays and counts not."""
    from statsmodels.stats.multitest import multipletests  # slow to import, and few programs need it

    values = np.array(p, dtype=float)
    known = ~np.isnan(values)
    if known.any():
        values[known] = multipletests(values[known], method="holm")[1]
    return [float(value) for value in values]


def p_text(p: float) -> str:
    """A p value in a sentence."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _welch(groups: Mapping[str, np.ndarray], to: Sequence[str], base: Sequence[str]) -> tuple[pd.DataFrame, np.ndarray]:
    """n and p of each pair, and half the width of its interval: scipy's test, in blocks of pairs of equal sizes."""
    nothing = np.array([])
    pairs = [(groups.get(a, nothing), groups.get(b, nothing)) for a, b in zip(to, base, strict=True)]
    sizes = np.array([(len(x), len(y)) for x, y in pairs], dtype=int).reshape(-1, 2)
    half, p = np.full(len(pairs), math.nan), np.full(len(pairs), math.nan)
    for size in np.unique(sizes[(sizes > 1).all(axis=1)], axis=0):
        rows = np.flatnonzero((sizes == size).all(axis=1))
        x, y = (np.stack([pairs[row][side] for row in rows]) for side in (0, 1))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # groups of equal values
            test = stats.ttest_ind(x, y, axis=1, equal_var=False)
            low, high = test.confidence_interval(CONFIDENCE)
        equal = (np.ptp(x, axis=1) == 0) & (np.ptp(y, axis=1) == 0)
        half[rows] = np.where(equal, 0.0, (high - low) / 2)
        p[rows] = np.where(equal, (x[:, 0] == y[:, 0]).astype(float), test.pvalue)
    return pd.DataFrame({"n": sizes.min(axis=1), "p": p}), half


def _of_groups(groups: Mapping[str, np.ndarray], names: Sequence[str], summary: object) -> np.ndarray:
    found = {name: summary(groups[name]) for name in set(names) if len(groups.get(name, ()))}  # type: ignore[operator]
    return np.array([found.get(name, math.nan) for name in names], dtype=float)


def _present(values: Sequence[float]) -> np.ndarray:
    x = np.asarray(values, dtype=float)
    return x[~np.isnan(x)]
