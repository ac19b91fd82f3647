"""Regression of epoch time and of throughput on all factors that vary: a linear and a quadratic model of each, fitted.

Ordinary least squares over runs (statsmodels) on the terms of `analysis.terms`, with standard errors and a test of lack
of fit that hold where variances differ, and errors at cells and at node counts that were left out.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.regression.linear_model import OLS, RegressionResults
from statsmodels.tools.eval_measures import aicc

from analysis import leave_out
from analysis.intervals import ALL_THE_SAME, NO_VARIATION, one_value
from analysis.measured import scale_factor, successful
from analysis.pooling import MOST_APART, Spread
from analysis.terms import MODELS, Columns, estimable
from common.notes import Note
from common.text import number_of

LACK_OF_FIT = (
    "Lack of fit: F test of the differences between the cells' means and {}, relative to the spread of replicates. If Bartlett's test rejects "
    f"equal spreads, or the largest is more than {MOST_APART:g} times the smallest, it uses each cell's own spread "
    "(Brown & Forsythe 1974, degrees of freedom of Mehrotra 1997)."
)
TERM = [
    "term",
    "estimate",
    "standard_error",
    "t",
    "p",
    "low",
    "high",
    "standard_error_by_cell",
    "p_by_cell",
    "standard_error_equal_variances",
    "vif",
]


@dataclass(frozen=True)
class Response:
    """What is regressed: its column of runs.csv, its name and unit."""

    column: str
    name: str
    unit: str

    @property
    def heading(self) -> str:
        """Name and unit, for an axis or a column."""
        return f"{self.name} ({self.unit})"


RESPONSES = (
    Response("epoch_time_s", "epoch time", "s"),
    Response("throughput_samples_s", "throughput", "samples/s"),
)


@dataclass(frozen=True)
class Fit:
    """A fitted model; `problem` says why there is none.

    terms: a row per term (TERM); statistics by name; refused: terms that the design cannot estimate; unsure: terms without
    a standard error. runs: cell, measured, fitted, residual of each run. cells: cell, n, measured, fitted (means over
    runs), and what the fit to the other cells (`without_cell`), and to the other levels (`without_level`) predicts.
    """

    terms: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=TERM))
    statistics: dict[str, float] = field(default_factory=dict)
    refused: Sequence[str] = ()
    unsure: Sequence[str] = ()
    runs: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["cell", "measured", "fitted", "residual"]))
    cells: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["cell", "n", "measured", "fitted"]))
    problem: str = ""


Fits = dict[tuple[Response, str], Fit]


def fit_all(runs: pd.DataFrame) -> Fits:
    """Both models of both responses, over the successful runs."""
    ok = successful(runs)
    fits = {}
    for response, (model, columns_of) in itertools.product(RESPONSES, MODELS.items()):
        here = ok[ok[response.column].notna()]
        level = here[scale_factor(here)].to_numpy()
        values = here[response.column].to_numpy(float)
        fits[response, model] = fit(values, columns_of(here), here["cell"].to_numpy(), level)
    return fits


def fit(y: np.ndarray, columns: Columns, cell: np.ndarray, level: np.ndarray) -> Fit:
    """Least squares of y [runs] on the estimable ones of `columns`, equal in all runs of a cell.

    `level` [runs] has what is left out as a whole: the number of nodes.
    """
    n = len(y)
    if n == 0:
        return Fit(problem=Note("no-successful-run", "no successful run"))
    kept, refused = estimable(columns)
    if n <= len(kept):
        text = f"too few runs: {n} for {number_of(len(kept), 'coefficient')}"
        return Fit(refused=refused, problem=Note("too-few-runs", text, runs=n, coefficients=len(kept)))
    if one_value(y):
        return Fit(refused=refused, problem=ALL_THE_SAME)
    x = np.column_stack([columns[name] for name in kept])
    size = np.linalg.norm(x, axis=0)
    x /= size
    fitted = OLS(y, x).fit()
    runs = pd.DataFrame({"cell": cell, "measured": y, "fitted": fitted.fittedvalues, "residual": fitted.resid})
    of_cell = runs.groupby("cell", sort=False)
    first = of_cell.head(1).index
    cells = of_cell[["measured", "fitted"]].mean().reset_index()
    cells.insert(1, "n", of_cell.size().to_numpy())
    weighted = x[first], cells["measured"].to_numpy(), cells["n"].to_numpy(float)
    cells["without_cell"] = leave_out.each_cell(*weighted)
    cells["level"] = level[first]
    cells["without_level"] = leave_out.each_level(*weighted, cells["level"].tolist())
    terms = _terms(kept, fitted, size, vif(x[first], weighted[2]), errors_by_cell(fitted, pd.factorize(cell)[0]))
    return Fit(
        terms,
        _statistics(fitted, runs, cells) | {"largest VIF": terms["vif"].max()},
        refused,
        terms.loc[terms["standard_error"].isna(), "term"].tolist(),
        runs,
        cells,
    )


def _terms(
    names: Sequence[str],
    fitted: RegressionResults,
    size: np.ndarray,
    inflation: np.ndarray,
    clustered: tuple[np.ndarray, int],
) -> pd.DataFrame:
    errors, (by_cell, freedom) = robust_errors(fitted), clustered
    half = stats.t.ppf(0.975, fitted.df_resid) * errors
    with np.errstate(all="ignore"):
        t = np.where(np.isnan(errors), math.nan, fitted.params / errors)
        p_by_cell = 2 * stats.t.sf(np.abs(fitted.params / by_cell), freedom)
    by_unit = [fitted.params, errors, fitted.params - half, fitted.params + half, by_cell, fitted.bse]
    estimate, error, low, high, by_cell, classical = (values / size for values in by_unit)
    p = 2 * stats.t.sf(np.abs(t), fitted.df_resid)
    columns = [names, estimate, error, t, p, low, high, by_cell, p_by_cell, classical, inflation]
    return pd.DataFrame(dict(zip(TERM, columns, strict=True)))


def errors_by_cell(fitted: RegressionResults, cell: np.ndarray) -> tuple[np.ndarray, int]:
    """Standard errors of the coefficients, clustered by cell (Liang & Zeger, Biometrika 73, 1986; with the correction for few clusters
    of Cameron & Miller, J. Human Resources 50, 2015), and their degrees of freedom, cells - 1.

    They say what other cells would have given: what the model misses of a cell is an error that all its runs share. NaN where there
    are no more cells than coefficients.
    """
    cells, coefficients = int(cell.max()) + 1, fitted.model.exog.shape[1]
    if cells <= coefficients:
        return np.full(coefficients, math.nan), 0
    with np.errstate(invalid="ignore"):  # rounding below 0, of what a single cell decides
        robust = fitted.get_robustcov_results("cluster", groups=cell, use_correction=True, use_t=True)
        return np.asarray(robust.bse), cells - 1


def robust_errors(fitted: RegressionResults) -> np.ndarray:
    """Standard errors HC3 (MacKinnon & White, J. Econometrics 29, 1985) of the coefficients.

    NaN for a coefficient that rests on a run through which the fit goes whatever its value (leverage 1): its residual
    tells nothing of its error. The others neither need nor see that run.
    """
    x, y, inverse = fitted.model.exog, fitted.model.endog, fitted.model.pinv_wexog
    seen = fitted.get_influence().hat_matrix_diag <= leave_out.ALONE
    if seen.all():
        return np.asarray(fitted.HC3_se)
    kept = [int(name) for name in estimable({str(place): column for place, column in enumerate(x[seen].T)})[0]]
    errors = np.full(x.shape[1], math.nan)
    if kept:
        errors[kept] = OLS(y[seen], x[seen][:, kept]).fit().HC3_se
    rests = np.abs(inverse[:, ~seen]).max(axis=1) > 1e-9 * np.abs(inverse).max(axis=1)
    errors[rests] = math.nan
    return errors


def vif(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Variance inflation of each column of x [cells, terms] over the runs, n [cells]; NaN for the first, the intercept.

    The diagonal of the inverse of the columns' correlation matrix (Belsley, Kuh & Welsch, Regression Diagnostics, 1980,
    section 3.1), all at once; statsmodels' variance_inflation_factor makes a regression for each.
    """
    centred = np.sqrt(n)[:, None] * (x[:, 1:] - np.average(x[:, 1:], axis=0, weights=n))
    inverse = np.linalg.pinv(centred / np.linalg.norm(centred, axis=0))
    return np.concatenate([[math.nan], (inverse**2).sum(axis=1)])


def _statistics(fitted: RegressionResults, runs: pd.DataFrame, cells: pd.DataFrame) -> dict[str, float]:
    n, coefficients = fitted.model.exog.shape
    found = {"n (runs)": n, "cells": len(cells), "coefficients": coefficients, "residual d.f.": int(fitted.df_resid)}
    found |= {
        "R²": float(fitted.rsquared) if coefficients > 1 else math.nan,
        "adjusted R²": float(fitted.rsquared_adj) if coefficients > 1 else math.nan,
        "AICc": float(aicc(fitted.llf, n, coefficients + 1))
        if fitted.ssr > NO_VARIATION * fitted.uncentered_tss
        else math.nan,
        "residual s.d.": math.sqrt(fitted.mse_resid),
    }
    found |= lack_of_fit(runs, fitted.model.exog)
    for what in ("cell", "level"):
        errors = errors_without(cells, what)
        found |= {
            f"without {what}: cells predicted": errors.predicted,
            f"without {what}: RMSE": errors.rmse,
            f"without {what}: MAPE (%)": 100 * errors.mape,
            f"without {what}: worst (%)": 100 * errors.worst,
        }
    return {name: value if math.isfinite(value) else math.nan for name, value in found.items()}


def errors_without(cells: pd.DataFrame, what: str) -> leave_out.Errors:
    """Of the cells' predictions without their `what`, cell or level."""
    return leave_out.errors(
        cells["measured"].to_numpy(float), cells[f"without_{what}"].to_numpy(float), cells["cell"].tolist()
    )


def lack_of_fit(runs: pd.DataFrame, x: np.ndarray) -> dict[str, float]:
    """Test of what a model misses of the cells' means against what replicates differ by.

    `runs`: cell, measured, residual of least squares; x [runs, coefficients]: its columns, of full rank and equal within a cell.
    NaN without replicates, without cells to spare, and where all replicates are equal. The F test of Draper & Smith, Applied
    Regression Analysis, 3rd ed. (1998), section 2.1; where cells do not share one spread, `_own_spreads`.
    """
    code, cells = pd.factorize(runs["cell"])
    measured, n = runs["measured"].to_numpy(float), np.bincount(code).astype(float)
    within = measured - (np.bincount(code, measured) / n)[code]
    pure = missed = 0.0
    f, df, pure_df, own = math.nan, float(len(cells) - x.shape[1]), float(len(runs) - len(cells)), False
    if df > 0 and pure_df > 0:
        pure, all_of_it = (float((values**2).sum()) for values in (within, runs["residual"].to_numpy(float)))
        missed = max(all_of_it - pure, 0.0)
    if pure > NO_VARIATION * float((measured**2).sum()):
        f = (missed / df) / (pure / pure_df)
        in_order, ends = measured[np.argsort(code, kind="stable")], np.cumsum(n.astype(int))[:-1]
        if own := Spread(dict(zip(cells, np.split(in_order, ends), strict=True)), 0).differ:
            first = ~runs["cell"].duplicated().to_numpy()
            variance = np.where(n > 1, np.bincount(code, within**2) / np.maximum(n - 1, 1), pure / pure_df)
            f, df, pure_df = _own_spreads(missed, x[first], n, variance, pure_df)
    return {
        "lack of fit: F": f,
        "lack of fit: d.f.": df,
        "pure error: d.f.": pure_df,
        "lack of fit: p": float(stats.f.sf(f, df, pure_df)) if math.isfinite(f) else math.nan,
        "lack of fit: own spreads": float(own),
    }


def _own_spreads(
    missed: float, x: np.ndarray, n: np.ndarray, variance: np.ndarray, pure_df: float
) -> tuple[float, float, float]:
    """F and its degrees of freedom where cells have variances of their own; x [cells, coefficients], n and variance [cells].

    The sum of squares that is missed is held against what these variances alone would make of it. For a model with an
    intercept alone it is Brown & Forsythe's test (Technometrics 16, 1974) with the degrees of freedom of Mehrotra (Commun. Stat.
    Simul. Comput. 26, 1997), for which there is statsmodels' anova_oneway; for any other the ANOVA-type statistic of Brunner,
    Dette & Munk (JASA 92, 1997). A cell with one run is given the others' variance.
    """
    q, _ = np.linalg.qr(np.sqrt(n)[:, None] * x)
    leverage = (q**2).sum(axis=1)
    expected = (1 - leverage) * variance
    squares = ((1 - 2 * leverage) * variance**2).sum() + ((q.T @ (variance[:, None] * q)) ** 2).sum()
    df = expected.sum() ** 2 / squares
    error_df = expected.sum() ** 2 / (expected**2 / np.where(n > 1, n - 1, pure_df)).sum()
    return missed / float(expected.sum()), float(df), float(error_df)
