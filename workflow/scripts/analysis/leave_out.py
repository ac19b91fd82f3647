"""Cross-validation of least squares: errors at cells, or at levels of a factor, left out of the fit.

All replicates of a cell have the same terms, so least squares over runs equals least squares over cell means
weighted by their number of runs. Arrays: terms x [cells, terms] of full column rank, means y [cells], runs n
[cells].
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from statsmodels.regression.linear_model import OLS

MAX_LEVERAGE = 1 - 1e-9  # Beyond it, the fit passes through the point whatever its value.
MIN_OUTSIDE_SHARE = 1e-7  # A row with a larger share outside the fitted space cannot be predicted.


@dataclass(frozen=True)
class Errors:
    """Errors of predictions: number of predicted cells, RMSE in the response's unit, and relative errors."""

    predicted: int
    rmse: float
    mape: float
    worst: float
    worst_cell: str


def predict_each_cell(x: np.ndarray, y: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Predict the mean of each cell from the other cells; NaN if they do not determine it.

    Uses the PRESS residuals of statsmodels.
    """
    root = np.sqrt(n)
    with np.errstate(all="ignore"):
        influence = OLS(root * y, root[:, None] * x).fit().get_influence()
        left_out = y - influence.resid_press / root
    return np.where(influence.hat_matrix_diag > MAX_LEVERAGE, math.nan, left_out)


def predict_each_level(x: np.ndarray, y: np.ndarray, n: np.ndarray, level: Sequence[Hashable]) -> np.ndarray:
    """Predict the mean of each cell from cells at other levels; NaN if they do not determine it.

    Args:
        x: Terms [cells, terms].
        y: Means [cells].
        n: Number of runs [cells].
        level: Level of each cell [cells].
    """
    predicted = np.full(len(y), math.nan)
    for rows in pd.Series(range(len(y))).groupby(np.asarray(level)).indices.values():
        rest = np.ones(len(y), dtype=bool)
        rest[rows] = False
        if rest.any():
            predicted[rows] = predict(x[rest], y[rest], n[rest], x[rows])
    return predicted


def predict(x: np.ndarray, y: np.ndarray, n: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Predict the rows `new` by least squares over (x, y, n) of any rank; NaN for undetermined rows."""
    size = np.linalg.norm(np.vstack([x, new]), axis=0)
    x, new = (part / np.where(size > 0, size, 1) for part in (x, new))
    root = np.sqrt(n)
    left, values, right = np.linalg.svd(root[:, None] * x, full_matrices=False)
    nonzero = values > 1e-10 * values.max(initial=0)
    spanned = right[nonzero]
    coefficients = spanned.T @ ((left[:, nonzero].T @ (root * y)) / values[nonzero])
    outside = np.linalg.norm(new - new @ spanned.T @ spanned, axis=1)
    return np.where(outside > MIN_OUTSIDE_SHARE * np.linalg.norm(new, axis=1), math.nan, new @ coefficients)


def prediction_errors(measured: np.ndarray, predicted: np.ndarray, cells: Sequence[str]) -> Errors:
    """Return the errors of the cells that have a prediction."""
    predictable = np.flatnonzero(~np.isnan(predicted))
    if not len(predictable):
        return Errors(0, math.nan, math.nan, math.nan, "")
    error = predicted[predictable] - measured[predictable]
    relative = error / measured[predictable]
    worst = int(np.argmax(np.abs(relative)))
    return Errors(
        len(predictable),
        float(np.sqrt(np.mean(error**2))),
        float(np.mean(np.abs(relative))),
        float(relative[worst]),
        cells[predictable[worst]],
    )
