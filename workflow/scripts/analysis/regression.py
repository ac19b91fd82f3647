"""Regression of epoch time and throughput on all varying factors: a linear and a quadratic model of each.

The models are fitted by ordinary least squares over runs (statsmodels) on the terms of `analysis.terms`.
Standard errors and the test of lack of fit also hold for unequal variances. Cross-validation leaves out cells
and levels of the size factor, such as node counts.
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
from analysis.cell_means import MAX_SPREAD_RATIO, Spread
from analysis.intervals import ALL_THE_SAME, NO_VARIATION, is_constant
from analysis.records import size_factor_name, successful
from analysis.terms import MODELS, Columns, split_estimable
from common.notes import Note
from common.text import number_of
from declared.responses import EPOCH_TIME, RESPONSES, Response

LACK_OF_FIT = (
    "Lack of fit: F test of the differences between the cells' means and {}, relative to the spread of "
    f"replicates. If Bartlett's test rejects equal spreads, or the largest is more than {MAX_SPREAD_RATIO:g} "
    "times the smallest, it uses the spread of each cell (Brown & Forsythe 1974, degrees of freedom of "
    "Mehrotra 1997)."
)
TERM_COLUMNS = [
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
REGRESSED = (EPOCH_TIME, RESPONSES["throughput"])
EXACT_FIT = 1e-6  # Errors by cell up to this share of the standard error are rounding errors.


@dataclass(frozen=True)
class Fit:
    """A fitted model.

    Attributes:
        terms: A row per term, with TERM_COLUMNS.
        statistics: Statistics by name, as in the table.
        refused: Terms that the design cannot estimate.
        unsure: Terms without a standard error, because they depend on a single run.
        runs: cell, measured, fitted and residual of each run.
        cells: A row per cell: cell, n, measured and fitted means, level, and the predictions from the other
            cells (`without_cell`) and from the other levels (`without_level`).
        problem: Why there is no model, else "".
    """

    terms: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=TERM_COLUMNS))
    statistics: dict[str, float] = field(default_factory=dict)
    refused: Sequence[str] = ()
    unsure: Sequence[str] = ()
    runs: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=["cell", "measured", "fitted", "residual"])
    )
    cells: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=["cell", "n", "measured", "fitted"])
    )
    problem: str = ""

    @property
    def exact(self) -> list[str]:
        """Terms without an error by cell in a model with such errors, because it fits their cells exactly."""
        is_missing = self.terms["standard_error_by_cell"].isna()
        is_exact = is_missing & self.terms["standard_error"].gt(0)
        return [] if is_missing.all() else self.terms.loc[is_exact, "term"].tolist()


Fits = dict[tuple[Response, str], Fit]


def printed_model(model: str, fit: Fit) -> str:
    """Return the printed name of a model: a quadratic one without a square has only interactions."""
    has_square = bool(fit.problem) or any("²" in term for term in fit.terms["term"])
    return model if model != "quadratic" or has_square else "with interactions"


def fit_all(runs: pd.DataFrame) -> Fits:
    """Fit both models of both responses to the successful runs."""
    ok = successful(runs)
    fits = {}
    for response, (model, columns_of) in itertools.product(REGRESSED, MODELS.items()):
        measured = ok[ok[response.column].notna()]
        level = measured[size_factor_name(measured)].to_numpy()
        values = measured[response.column].to_numpy(float)
        fits[response, model] = fit(values, columns_of(measured), measured["cell"].to_numpy(), level)
    return fits


def fit(y: np.ndarray, columns: Columns, cell: np.ndarray, level: np.ndarray) -> Fit:
    """Fit y by least squares on the estimable columns.

    Args:
        y: Response [runs].
        columns: Term -> column [runs], equal in all runs of a cell.
        cell: Cell of each run [runs].
        level: Level of each run [runs], such as its number of nodes. Cross-validation leaves out all runs of
            a level together.
    """
    n = len(y)
    if n == 0:
        return Fit(problem=Note("no-successful-run", "no successful run"))
    estimable_terms, refused = split_estimable(columns)
    if n <= len(estimable_terms):
        text = f"too few runs: {n} for {number_of(len(estimable_terms), 'coefficient')}"
        return Fit(
            refused=refused, problem=Note("too-few-runs", text, runs=n, coefficients=len(estimable_terms))
        )
    if is_constant(y):
        return Fit(refused=refused, problem=ALL_THE_SAME)
    x = np.column_stack([columns[name] for name in estimable_terms])
    size = np.linalg.norm(x, axis=0)
    x /= size
    fitted = OLS(y, x).fit()
    runs = pd.DataFrame(
        {"cell": cell, "measured": y, "fitted": fitted.fittedvalues, "residual": fitted.resid}
    )
    of_cell = runs.groupby("cell", sort=False)
    first = of_cell.head(1).index
    cells = of_cell[["measured", "fitted"]].mean().reset_index()
    cells.insert(1, "n", of_cell.size().to_numpy())
    weighted = x[first], cells["measured"].to_numpy(), cells["n"].to_numpy(float)
    cells["without_cell"] = leave_out.predict_each_cell(*weighted)
    cells["level"] = level[first]
    cells["without_level"] = leave_out.predict_each_level(*weighted, cells["level"].tolist())
    terms = _terms(
        estimable_terms,
        fitted,
        size,
        vif(x[first], weighted[2]),
        errors_by_cell(fitted, pd.factorize(cell)[0]),
    )
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
        # The model fits all cells of such a term exactly, so they do not show how others would move it.
        by_cell = np.where(by_cell <= EXACT_FIT * errors, math.nan, by_cell)
        t = np.where(np.isnan(errors), math.nan, fitted.params / errors)
        p_by_cell = 2 * stats.t.sf(np.abs(fitted.params / by_cell), freedom)
    by_unit = [fitted.params, errors, fitted.params - half, fitted.params + half, by_cell, fitted.bse]
    estimate, error, low, high, by_cell, classical = (values / size for values in by_unit)
    p = 2 * stats.t.sf(np.abs(t), fitted.df_resid)
    columns = [names, estimate, error, t, p, low, high, by_cell, p_by_cell, classical, inflation]
    return pd.DataFrame(dict(zip(TERM_COLUMNS, columns, strict=True)))


def errors_by_cell(fitted: RegressionResults, cell: np.ndarray) -> tuple[np.ndarray, int]:
    """Return standard errors of the coefficients clustered by cell, and their degrees of freedom, cells - 1.

    They measure how the coefficients would change with other cells, because the model's misfit of a cell is
    an error that its runs share. NaN if there are no more cells than coefficients. Liang & Zeger, Biometrika
    73, 1986; correction for few clusters: Cameron & Miller, J. Human Resources 50, 2015.
    """
    cells, coefficients = int(cell.max()) + 1, fitted.model.exog.shape[1]
    if cells <= coefficients:
        return np.full(coefficients, math.nan), 0
    with np.errstate(invalid="ignore"):  # Rounding can give values below 0 if a single cell decides.
        robust = fitted.get_robustcov_results("cluster", groups=cell, use_correction=True, use_t=True)
        return np.asarray(robust.bse), cells - 1


def robust_errors(fitted: RegressionResults) -> np.ndarray:
    """Return HC3 standard errors of the coefficients (MacKinnon & White, J. Econometrics 29, 1985).

    The fit passes through a run of leverage 1 whatever its value, so its residual says nothing. A coefficient
    that depends on such a run has NaN. The other errors are computed without such runs.
    """
    x, y, inverse = fitted.model.exog, fitted.model.endog, fitted.model.pinv_wexog
    is_determined = fitted.get_influence().hat_matrix_diag <= leave_out.MAX_LEVERAGE
    if is_determined.all():
        return np.asarray(fitted.HC3_se)
    estimable_terms = [
        int(name)
        for name in split_estimable({str(i): column for i, column in enumerate(x[is_determined].T)})[0]
    ]
    errors = np.full(x.shape[1], math.nan)
    if estimable_terms:
        errors[estimable_terms] = OLS(y[is_determined], x[is_determined][:, estimable_terms]).fit().HC3_se
    depends = np.abs(inverse[:, ~is_determined]).max(axis=1) > 1e-9 * np.abs(inverse).max(axis=1)
    errors[depends] = math.nan
    return errors


def vif(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Return the variance inflation factors of the columns of x [cells, terms]; NaN for the intercept.

    They are the diagonal of the inverse correlation matrix (Belsley, Kuh & Welsch, Regression Diagnostics,
    1980, section 3.1), where statsmodels fits a regression per column. n is the number of runs [cells].
    """
    centred = np.sqrt(n)[:, None] * (x[:, 1:] - np.average(x[:, 1:], axis=0, weights=n))
    inverse = np.linalg.pinv(centred / np.linalg.norm(centred, axis=0))
    return np.concatenate([[math.nan], (inverse**2).sum(axis=1)])


def _statistics(fitted: RegressionResults, runs: pd.DataFrame, cells: pd.DataFrame) -> dict[str, float]:
    n, coefficients = fitted.model.exog.shape
    statistics = {
        "n (runs)": n,
        "cells": len(cells),
        "coefficients": coefficients,
        "residual d.f.": int(fitted.df_resid),
    }
    statistics |= {
        "R²": float(fitted.rsquared) if coefficients > 1 else math.nan,
        "adjusted R²": float(fitted.rsquared_adj) if coefficients > 1 else math.nan,
        "AICc": float(aicc(fitted.llf, n, coefficients + 1))
        if fitted.ssr > NO_VARIATION * fitted.uncentered_tss
        else math.nan,
        "residual s.d.": math.sqrt(fitted.mse_resid),
    }
    statistics |= lack_of_fit(runs, fitted.model.exog)
    for left_out in ("cell", "level"):
        errors = errors_without(cells, left_out)
        statistics |= {
            f"without {left_out}: cells predicted": errors.predicted,
            f"without {left_out}: RMSE": errors.rmse,
            f"without {left_out}: MAPE (%)": 100 * errors.mape,
            f"without {left_out}: worst (%)": 100 * errors.worst,
        }
    return {name: value if math.isfinite(value) else math.nan for name, value in statistics.items()}


def errors_without(cells: pd.DataFrame, left_out: str) -> leave_out.Errors:
    """Return the errors of predictions without each cell or level; `left_out` is "cell" or "level"."""
    return leave_out.prediction_errors(
        cells["measured"].to_numpy(float),
        cells[f"without_{left_out}"].to_numpy(float),
        cells["cell"].tolist(),
    )


def lack_of_fit(runs: pd.DataFrame, x: np.ndarray) -> dict[str, float]:
    """Test the misfit of cell means against the spread of replicates.

    This is the F test of Draper & Smith, Applied Regression Analysis, 3rd ed. (1998), section 2.1, or
    `_heteroscedastic_f` if the spreads of cells differ. F is NaN without replicates, without more cells than
    coefficients, or if all replicates are equal.

    Args:
        runs: cell, measured, and residual of least squares.
        x: Columns of the model [runs, coefficients], of full rank and equal within a cell.
    """
    code, cells = pd.factorize(runs["cell"])
    measured, n = runs["measured"].to_numpy(float), np.bincount(code).astype(float)
    within = measured - (np.bincount(code, measured) / n)[code]
    pure = missed = 0.0
    f, df, pure_df, has_own_spreads = (
        math.nan,
        float(len(cells) - x.shape[1]),
        float(len(runs) - len(cells)),
        False,
    )
    if df > 0 and pure_df > 0:
        pure, all_of_it = (float((values**2).sum()) for values in (within, runs["residual"].to_numpy(float)))
        missed = max(all_of_it - pure, 0.0)
    if pure > NO_VARIATION * float((measured**2).sum()):
        f = (missed / df) / (pure / pure_df)
        in_order, ends = measured[np.argsort(code, kind="stable")], np.cumsum(n.astype(int))[:-1]
        if has_own_spreads := Spread(dict(zip(cells, np.split(in_order, ends), strict=True)), 0).differ:
            first = ~runs["cell"].duplicated().to_numpy()
            variance = np.where(n > 1, np.bincount(code, within**2) / np.maximum(n - 1, 1), pure / pure_df)
            f, df, pure_df = _heteroscedastic_f(missed, x[first], n, variance, pure_df)
    return {
        "lack of fit: F": f,
        "lack of fit: d.f.": df,
        "pure error: d.f.": pure_df,
        "lack of fit: p": float(stats.f.sf(f, df, pure_df)) if math.isfinite(f) else math.nan,
        "lack of fit: own spreads": float(has_own_spreads),
    }


def _heteroscedastic_f(
    missed: float, x: np.ndarray, n: np.ndarray, variance: np.ndarray, pure_df: float
) -> tuple[float, float, float]:
    """Return F and its degrees of freedom if the variances of cells differ.

    The sum of squares of the misfit is compared with its expectation from the variance of each cell. For an
    intercept alone it is the test of Brown & Forsythe (Technometrics 16, 1974) with the degrees of freedom of
    Mehrotra (Commun. Stat. Simul. Comput. 26, 1997), as in anova_oneway of statsmodels; otherwise it is the
    ANOVA-type statistic of Brunner, Dette & Munk (JASA 92, 1997). A cell with one run gets the variance of
    all replicates.

    Args:
        missed: Sum of squares of the misfit.
        x: Columns of the model [cells, coefficients].
        n: Runs [cells].
        variance: Variance of runs [cells].
        pure_df: Degrees of freedom of all replicates.
    """
    q, _ = np.linalg.qr(np.sqrt(n)[:, None] * x)
    leverage = (q**2).sum(axis=1)
    expected = (1 - leverage) * variance
    squares = ((1 - 2 * leverage) * variance**2).sum() + ((q.T @ (variance[:, None] * q)) ** 2).sum()
    df = expected.sum() ** 2 / squares
    error_df = expected.sum() ** 2 / (expected**2 / np.where(n > 1, n - 1, pure_df)).sum()
    return missed / float(expected.sum()), float(df), float(error_df)
