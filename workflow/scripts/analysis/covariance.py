"""Analysis of covariance within cells and blocks: slopes of covariates, selected by cross-validation."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import intervals
from analysis.cell_means import after_blocks
from analysis.intervals import ROUNDING, Estimate

MIN_IMPROVEMENT = 0.05  # A covariate must reduce the error of left-out runs by this share.
MIN_SLOPE_DF = 5


@dataclass(frozen=True)
class Slopes:
    """Slopes of a response over covariates, within cells and blocks.

    Attributes:
        covariates: Names of the covariates [k].
        values: Change of the response per unit of each covariate, the other ones constant [k].
        covariance: Covariance of the slopes [k, k].
        df: Degrees of freedom of the residual.
        correlation: Correlation of the response with its prediction; with the sign of a single slope.
        error_with: Root mean square error of left-out runs with the covariates.
        error_without: The same without covariates.
    """

    covariates: tuple[str, ...]
    values: np.ndarray
    covariance: np.ndarray
    df: int
    correlation: float
    error_with: float
    error_without: float

    @property
    def gain(self) -> float:
        """Share by which the covariates reduce the error of left-out runs; negative if they increase it."""
        return 1 - self.error_with / self.error_without if self.error_without else 0.0

    @property
    def estimates(self) -> list[Estimate]:
        """Slopes with their 95 % t intervals."""
        low, high = intervals.t_interval(self.values, np.sqrt(self.covariance.diagonal()), self.df)
        return [
            Estimate(float(value), float(a), float(b))
            for value, a, b in zip(self.values, low, high, strict=True)
        ]


def select_slopes(y: np.ndarray, x: pd.DataFrame, cell: np.ndarray, block: np.ndarray) -> Slopes | None:
    """Return the slopes of the covariates that improve cross-validated error, or None (forward selection).

    Each step adds the covariate with the smallest error of left-out runs, if it reduces this error by
    MIN_IMPROVEMENT. All slopes must be positive and have MIN_SLOPE_DF degrees of freedom.

    Args:
        y: Response [runs].
        x: Covariates [runs, k].
        cell: Cell code of each run [runs].
        block: Block code of each run [runs].
    """
    chosen: Slopes | None = None
    while candidates := [name for name in x if chosen is None or name not in chosen.covariates]:
        names = chosen.covariates if chosen else ()
        tried = [fit_slopes(y, x[[*names, name]], cell, block) for name in candidates]
        useful = [
            slopes for slopes in tried if slopes and slopes.df >= MIN_SLOPE_DF and (slopes.values > 0).all()
        ]
        best = min(useful, key=lambda slopes: slopes.error_with, default=None)
        if best is None:
            break
        before = chosen.error_with if chosen else best.error_without
        if not best.error_with < (1 - MIN_IMPROVEMENT) * before:
            break
        chosen = best
    return chosen


def fit_slopes(y: np.ndarray, x: pd.DataFrame, cell: np.ndarray, block: np.ndarray) -> Slopes | None:
    """Fit the slopes of y over the columns of x within cells and blocks; same arguments as `select_slopes`.

    Runs that are alone in their block are left out, because they carry no information within blocks. The
    error of a left-out run is its residual over 1 - leverage (PRESS; Allen, Technometrics 16 (1974)). Runs
    that the others do not determine count in neither error.

    Returns:
        The slopes; None if a covariate is constant or collinear, or if no degree of freedom is left.
    """
    shared = np.bincount(block)[block] > 1
    cell, block = (np.unique(codes[shared], return_inverse=True)[1] for codes in (cell, block))
    y_residual, lost = after_blocks(y[shared], cell, block)
    x_residual = np.column_stack(
        [after_blocks(column, cell, block)[0] for column in x.to_numpy(float)[shared].T]
    )
    squares = x_residual.T @ x_residual
    df = len(y_residual) - len(np.unique(cell)) - lost - len(squares)
    if df < 1 or (squares.diagonal() < ROUNDING).any() or np.linalg.cond(squares) > 1 / ROUNDING:
        return None
    inverse = np.linalg.inv(squares)
    covered, of_slopes = leverages(cell, block), np.einsum("ni,ij,nj->n", x_residual, inverse, x_residual)
    values = inverse @ x_residual.T @ y_residual
    predicted = x_residual @ values
    rest = y_residual - predicted
    predictable = covered + of_slopes < 1 - 1e-9
    error_with, error_without = (
        rest[predictable] / (1 - covered - of_slopes)[predictable],
        y_residual[predictable] / (1 - covered)[predictable],
    )
    size = math.sqrt(float(y_residual @ y_residual) * float(predicted @ predicted))
    sign = math.copysign(1.0, values[0]) if len(values) == 1 else 1.0
    return Slopes(
        tuple(x),
        values,
        inverse * float(rest @ rest) / df,
        df,
        sign * float(y_residual @ predicted) / size if size else 0.0,
        *(
            float(np.sqrt(np.mean(errors**2))) if predictable.any() else 0.0
            for errors in (error_with, error_without)
        ),
    )


def leverages(cell: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return the leverages [runs] of the two-way additive model of cells and blocks (codes 0, 1, ...)."""
    columns = pd.get_dummies(pd.Series(block), drop_first=True, dtype=float)
    columns = (columns - columns.groupby(cell).transform("mean")).to_numpy(copy=True)
    columns[np.abs(columns) < ROUNDING] = 0.0
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return 1 / np.bincount(cell)[cell] + (left[:, values > 1e-10 * values.max(initial=0)] ** 2).sum(axis=1)
