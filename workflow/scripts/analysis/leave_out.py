"""How well least squares predict the cells that they were not fitted to: each cell left out, or a whole level of a factor.

All replicates of a cell have the same terms, so that least squares over runs are those over cell means, weighted by their
number of runs. Arrays: terms x [cells, terms] of full column rank, means y [cells], runs n [cells].
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from statsmodels.regression.linear_model import OLS

ALONE = 1 - 1e-9  # a leverage above it: the fit goes through the point, whatever it is
OUTSIDE = 1e-7  # the share of a row that must lie outside what was fitted, so that it cannot be predicted


@dataclass(frozen=True)
class Errors:
    """Errors of predicted cells: (predicted - measured) / measured, root mean square in the response's unit."""

    predicted: int
    rmse: float
    mape: float
    worst: float
    worst_cell: str


def each_cell(x: np.ndarray, y: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Mean of each cell as the others predict it; NaN where they cannot. From the PRESS residuals of statsmodels."""
    root = np.sqrt(n)
    with np.errstate(all="ignore"):
        influence = OLS(root * y, root[:, None] * x).fit().get_influence()
        left_out = y - influence.resid_press / root
    return np.where(influence.hat_matrix_diag > ALONE, math.nan, left_out)


def each_level(x: np.ndarray, y: np.ndarray, n: np.ndarray, level: Sequence[Hashable]) -> np.ndarray:
    """Mean of each cell as the cells at other levels predict it; NaN where they cannot. `level`: one per cell."""
    predicted = np.full(len(y), math.nan)
    for rows in pd.Series(range(len(y))).groupby(np.asarray(level)).indices.values():
        others = np.ones(len(y), dtype=bool)
        others[rows] = False
        if others.any():
            predicted[rows] = predict(x[others], y[others], n[others], x[rows])
    return predicted


def predict(x: np.ndarray, y: np.ndarray, n: np.ndarray, new: np.ndarray) -> np.ndarray:
    """What least squares over (x, y, n), of any rank, predict at the rows `new`; NaN where that is not determined."""
    size = np.linalg.norm(np.vstack([x, new]), axis=0)
    x, new = (part / np.where(size > 0, size, 1) for part in (x, new))
    root = np.sqrt(n)
    left, values, right = np.linalg.svd(root[:, None] * x, full_matrices=False)
    has = values > 1e-10 * values.max(initial=0)
    spanned = right[has]
    coefficients = spanned.T @ ((left[:, has].T @ (root * y)) / values[has])
    outside = np.linalg.norm(new - new @ spanned.T @ spanned, axis=1)
    return np.where(outside > OUTSIDE * np.linalg.norm(new, axis=1), math.nan, new @ coefficients)


def errors(measured: np.ndarray, predicted: np.ndarray, cells: Sequence[str]) -> Errors:
    """The errors of the cells that are predicted."""
    known = np.flatnonzero(~np.isnan(predicted))
    if not len(known):
        return Errors(0, math.nan, math.nan, math.nan, "")
    error = predicted[known] - measured[known]
    relative = error / measured[known]
    worst = int(np.argmax(np.abs(relative)))
    return Errors(
        len(known),
        float(np.sqrt(np.mean(error**2))),
        float(np.mean(np.abs(relative))),
        float(relative[worst]),
        cells[known[worst]],
    )
