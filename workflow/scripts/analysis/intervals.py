"""Means over replicates and their confidence intervals. Replicates are independent runs; each gives one number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval; `low` and `high` are NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    cv: float = math.nan


def t_quantile(df: float, confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile of Student's t: P(|T| <= t) = confidence."""
    return float(stdtrit(df, (1 + confidence) / 2))


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
    half = t_quantile(n - 1, confidence) * s / math.sqrt(n)
    return Estimate(m, max(m - half, minimum), min(m + half, maximum), n, s / abs(m) if m else math.nan)


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


def ratio(numerator: Sequence[float], denominator: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Ratio of the arithmetic means of two independent groups of positive values, its interval on the log scale.

    log(mean) has variance s^2 / (n m^2) (delta method); the degrees of freedom of the difference of two logs are those
    of Welch (1947) and Satterthwaite (1946): (v1 + v2)^2 / (v1^2 / (n1 - 1) + v2^2 / (n2 - 1)).
    No interval where a group has one value. `n` is the size of the smaller group.
    """
    x, y = _present(numerator), _present(denominator)
    n = min(len(x), len(y))
    if n == 0:
        return Estimate(math.nan)
    value = float(x.mean() / y.mean())
    if n == 1:
        return Estimate(value, n=1)
    v1, v2 = (float(g.var(ddof=1)) / (len(g) * float(g.mean()) ** 2) for g in (x, y))
    if v1 + v2 == 0:
        return Estimate(value, value, value, n)
    df = (v1 + v2) ** 2 / (v1**2 / (len(x) - 1) + v2**2 / (len(y) - 1))
    factor = math.exp(t_quantile(df, confidence) * math.sqrt(v1 + v2))
    return Estimate(value, value / factor, value * factor, n)


def difference(one: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Arithmetic mean of `one` less that of `other`, two independent groups, with the interval of Welch (1947).

    No interval where a group has one value. `n` is the size of the smaller group.
    """
    x, y = _present(one), _present(other)
    n = min(len(x), len(y))
    if n == 0:
        return Estimate(math.nan)
    value = float(x.mean() - y.mean())
    if n == 1:
        return Estimate(value, n=1)
    variance, df = _welch(x, y)
    half = t_quantile(df, confidence) * math.sqrt(variance) if variance else 0.0
    return Estimate(value, value - half, value + half, n)


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided p of Welch's t test (1947) that two independent groups of positive values have the same mean logarithm.

    NaN where a group has fewer than two values.
    """
    x, y = (np.log(_present(group)) for group in (one, other))
    if min(len(x), len(y)) < 2:
        return math.nan
    gap = abs(float(x.mean() - y.mean()))
    variance, df = _welch(x, y)
    if variance == 0:
        return 0.0 if gap else 1.0
    return float(2 * stdtr(df, -gap / math.sqrt(variance)))


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected for their number by Holm's step-down method (Scand. J. Statist. 6, 1979); NaN stays and counts not."""
    values = np.asarray(p, dtype=float)
    known = np.flatnonzero(~np.isnan(values))
    ascending = known[np.argsort(values[known], kind="stable")]
    corrected = values.copy()
    corrected[ascending] = np.minimum(np.maximum.accumulate(values[ascending] * np.arange(len(known), 0, -1)), 1)
    return [float(value) for value in corrected]


def _welch(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Variance of the difference of two means, and its degrees of freedom (Welch 1947, Satterthwaite 1946)."""
    v1, v2 = (float(group.var(ddof=1)) / len(group) for group in (x, y))
    if v1 + v2 == 0:
        return 0.0, math.inf
    return v1 + v2, (v1 + v2) ** 2 / (v1**2 / (len(x) - 1) + v2**2 / (len(y) - 1))


def _present(values: Sequence[float]) -> np.ndarray:
    x = np.asarray(values, dtype=float)
    return x[~np.isnan(x)]
