"""Analysis of covariance beside cells and blocks: the slopes of covariates, what they bring by cross-validation, and which of them do."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import intervals
from analysis.intervals import ROUNDING, Estimate
from analysis.pooling import after_blocks

LEAST_GAIN = 0.05  # the share by which the root mean square error of runs that are left out falls with each covariate
FEWEST_DF = 5  # of a slope


@dataclass(frozen=True)
class Slopes:
    """What a unit of each of `covariates` changes the response by, beside cells, blocks and the other ones, with their covariance and degrees
    of freedom; `correlation`: of the response and what they make of it, beside cells and blocks (that of one alone has its sign); root mean
    square errors of runs that are left out, with the covariates and without."""

    covariates: tuple[str, ...]
    values: np.ndarray
    covariance: np.ndarray
    df: int
    correlation: float
    error_with: float
    error_without: float

    @property
    def gain(self) -> float:
        """The share by which the covariates make the error of a run that is left out smaller; negative where they make it larger."""
        return 1 - self.error_with / self.error_without if self.error_without else 0.0

    @property
    def estimates(self) -> list[Estimate]:
        """The values with their 95 % t intervals."""
        low, high = intervals.t_interval(self.values, np.sqrt(self.covariance.diagonal()), self.df)
        return [Estimate(float(one), float(a), float(b)) for one, a, b in zip(self.values, low, high, strict=True)]


def selected(y: np.ndarray, x: pd.DataFrame, cell: np.ndarray, block: np.ndarray) -> Slopes | None:
    """The slopes of those columns of x that earn their place (forward selection); None where none does.

    First the one with the least error of runs that are left out, where it is LEAST_GAIN smaller than without; then the next beside it, where that
    is as much smaller again. All slopes are above 0 and have FEWEST_DF.
    """
    taken: Slopes | None = None
    while left := [name for name in x if taken is None or name not in taken.covariates]:
        names = taken.covariates if taken else ()
        tried = [fitted(y, x[[*names, name]], cell, block) for name in left]
        useful = [one for one in tried if one and one.df >= FEWEST_DF and (one.values > 0).all()]
        best = min(useful, key=lambda one: one.error_with, default=None)
        if best is None:
            break
        before = taken.error_with if taken else best.error_without
        if not best.error_with < (1 - LEAST_GAIN) * before:
            break
        taken = best
    return taken


def fitted(y: np.ndarray, x: pd.DataFrame, cell: np.ndarray, block: np.ndarray) -> Slopes | None:
    """The slopes of y over the columns of x beside cells and blocks (codes); None where one does not vary, goes with the others, or nothing
    is left. A run that is alone in its block tells nothing of it.

    The error of a run that is left out is its residual over 1 - leverage (PRESS; Allen, Technometrics 16 (1974)); runs that nothing else
    tells of are left out of both.
    """
    shared = np.bincount(block)[block] > 1
    cell, block = (np.unique(codes[shared], return_inverse=True)[1] for codes in (cell, block))
    left, lost = after_blocks(y[shared], cell, block)
    of_x = np.column_stack([after_blocks(column, cell, block)[0] for column in x.to_numpy(float)[shared].T])
    squares = of_x.T @ of_x
    df = len(left) - len(np.unique(cell)) - lost - len(squares)
    if df < 1 or (squares.diagonal() < ROUNDING).any() or np.linalg.cond(squares) > 1 / ROUNDING:
        return None
    inverse = np.linalg.inv(squares)
    covered, own = leverages(cell, block), np.einsum("ni,ij,nj->n", of_x, inverse, of_x)
    values = inverse @ of_x.T @ left
    made = of_x @ values
    rest = left - made
    known = covered + own < 1 - 1e-9
    with_x, without = rest[known] / (1 - covered - own)[known], left[known] / (1 - covered)[known]
    size = math.sqrt(float(left @ left) * float(made @ made))
    sign = math.copysign(1.0, values[0]) if len(values) == 1 else 1.0
    return Slopes(
        tuple(x),
        values,
        inverse * float(rest @ rest) / df,
        df,
        sign * float(left @ made) / size if size else 0.0,
        *(float(np.sqrt(np.mean(errors**2))) if known.any() else 0.0 for errors in (with_x, without)),
    )


def leverages(cell: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The leverages [runs] of the two-way additive model of cells and blocks (codes 0, 1, ...)."""
    columns = pd.get_dummies(pd.Series(block), drop_first=True, dtype=float)
    columns = (columns - columns.groupby(cell).transform("mean")).to_numpy(copy=True)
    columns[np.abs(columns) < ROUNDING] = 0.0
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return 1 / np.bincount(cell)[cell] + (left[:, values > 1e-10 * values.max(initial=0)] ** 2).sum(axis=1)
