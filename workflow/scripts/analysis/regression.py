"""Regression of epoch time and of throughput on all factors that vary: a linear and a quadratic model, side by side.

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

from analysis import conditions, leave_out, tables
from analysis.intervals import LEVEL, NO_VARIATION, one_value
from analysis.measured import level_text, scale_factor, successful, title, varying
from analysis.pooling import MOST_APART, Spread
from analysis.terms import MODELS, Columns, base_level, estimable, takes_numbers

STARS = {0.001: "***", 0.01: "**", LEVEL: "*"}
SHOWN = [
    "n (runs)",
    "cells",
    "R²",
    "adjusted R²",
    "AICc",
    "residual s.d.",
    "largest VIF",
    "lack of fit: F",
    "lack of fit: p",
    *(
        f"without {what}: {part}"
        for what in ("cell", "level")
        for part in ("cells predicted", "RMSE", "MAPE (%)", "worst (%)")
    ),
]
LARGE_VIF = 10
LACK_OF_FIT = (
    "Lack of fit: F test of what {} misses of the cells' means against what replicates differ by; where Bartlett's test says that "
    f"cells do not share one spread of replicates, or the largest is above {MOST_APART:g} times the smallest, with each cell's own "
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
        return Fit(problem="no successful run")
    kept, refused = estimable(columns)
    if n <= len(kept):
        return Fit(refused=refused, problem=f"too few runs: {n} for {len(kept)} coefficients")
    if one_value(y):
        return Fit(refused=refused, problem="all values are the same")
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
    terms = _terms(kept, fitted, size, vif(x[first], weighted[2]))
    return Fit(
        terms,
        _statistics(fitted, runs, cells) | {"largest VIF": terms["vif"].max()},
        refused,
        terms.loc[terms["standard_error"].isna(), "term"].tolist(),
        runs,
        cells,
    )


def _terms(names: Sequence[str], fitted: RegressionResults, size: np.ndarray, inflation: np.ndarray) -> pd.DataFrame:
    errors = robust_errors(fitted)
    half = stats.t.ppf(0.975, fitted.df_resid) * errors
    with np.errstate(all="ignore"):
        t = np.where(np.isnan(errors), math.nan, fitted.params / errors)
    by_unit = [fitted.params, errors, fitted.params - half, fitted.params + half, fitted.bse]
    estimate, error, low, high, classical = (values / size for values in by_unit)
    p = 2 * stats.t.sf(np.abs(t), fitted.df_resid)
    return pd.DataFrame(dict(zip(TERM, [names, estimate, error, t, p, low, high, classical, inflation], strict=True)))


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
        errors = _errors(cells, what)
        found |= {
            f"without {what}: cells predicted": errors.predicted,
            f"without {what}: RMSE": errors.rmse,
            f"without {what}: MAPE (%)": 100 * errors.mape,
            f"without {what}: worst (%)": 100 * errors.worst,
        }
    return {name: value if math.isfinite(value) else math.nan for name, value in found.items()}


def _errors(cells: pd.DataFrame, what: str) -> leave_out.Errors:
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


def tidy(fits: Fits) -> pd.DataFrame:
    """One row per response, model and term or statistic, with all digits."""
    parts = []
    for (response, model), each in fits.items():
        of = {"response": response.name, "unit": response.unit, "model": model}
        named = each.terms.rename(columns={"term": "name"})
        refused = pd.DataFrame({"name": list(each.refused)})
        found = pd.DataFrame({"name": list(each.statistics), "estimate": list(each.statistics.values())})
        for kind, part in (("term", named), ("refused", refused), ("statistic", found)):
            parts.append(part.assign(**of, kind=kind))
    columns = ["response", "unit", "model", "kind", "name", *TERM[1:]]
    return pd.concat([part for part in parts if len(part)] or parts[:1]).reindex(columns=columns)


def by_cell(fits: Fits) -> pd.DataFrame:
    """One row per response, model and cell: what was measured, fitted, and predicted by the fit without it."""
    parts = [
        each.cells.assign(response=response.name, unit=response.unit, model=model)
        for (response, model), each in fits.items()
    ]
    data = pd.concat([part for part in parts if len(part)] or parts[:1])
    return data[
        ["response", "unit", "model", *(name for name in parts[0] if name not in ("response", "unit", "model"))]
    ]


def table(runs: pd.DataFrame, fits: Fits) -> tables.Table:
    """All four models in one table for a paper, with what could not be estimated in the notes."""
    names = list(dict.fromkeys(name for each in fits.values() for name in each.terms["term"]))
    levels = _levels(runs)
    said = {name: _in_words(name, levels) for name in SHOWN if levels or not name.startswith("without level")}
    shown = {"": [*names, *said.values()]}
    for (response, model), each in fits.items():
        rows = each.terms.set_index("term").reindex(names)
        shown[f"{response.heading}: {model}"] = [
            *(entry(*row) for row in rows[["estimate", "standard_error", "p"]].itertuples(index=False)),
            *(_statistic(name, each.statistics) for name in said),
        ]
    return tables.Table(
        title="Linear and quadratic regression of epoch time and of throughput",
        data=tidy(fits),
        shown=pd.DataFrame(shown),
        notes=[note for note in _notes(runs, fits) if note],
        words=[""],
        parts=[len(names)],
    )


def _levels(runs: pd.DataFrame) -> str:
    """What is left out as a whole, in one word; empty where it does not vary."""
    factor = scale_factor(successful(runs))
    if factor not in varying(successful(runs)):
        return ""
    return "node count" if factor == "nodes" else "device count"


def _in_words(statistic: str, levels: str) -> str:
    for what, words in (("cell", "cell"), ("level", levels)):
        statistic = statistic.replace(f"without {what}", f"leave one {words} out")
    return statistic


def entry(estimate: float, error: float, p: float) -> str:
    """`estimate (standard error)stars`, with the decimals of two significant digits of the error."""
    if math.isnan(estimate):
        return tables.DASH
    if not error > 0:
        return tables.number(estimate)
    decimals = max(0, 1 - math.floor(math.log10(float(f"{error:.1e}"))))
    if decimals > 6:
        both = f"{tables.number(estimate, 2)} ({tables.number(error, 2)})"
    else:
        both = f"{round(estimate, decimals) + 0.0:.{decimals}f} ({error:.{decimals}f})".replace("-", "−")
    return both + next((stars for limit, stars in STARS.items() if p < limit), "")


def _statistic(name: str, statistics: dict[str, float]) -> str:
    value = statistics.get(name, math.nan)
    if math.isnan(value):
        return tables.DASH
    if name.endswith(("(runs)", "cells", "predicted")):
        return f"{value:.0f}"
    if name == "lack of fit: F":
        return f"{tables.number(value)} ({_df(statistics['lack of fit: d.f.'])}, {_df(statistics['pure error: d.f.'])})"
    if name == "lack of fit: p":
        return tables.p_value(value)
    if name.endswith("(%)"):
        return f"{value:+.1f}".replace("-", "−") if "worst" in name else f"{value:.1f}"
    return f"{value:.3f}" if name.endswith("R²") else tables.number(value)


def _df(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() or value >= 100 else f"{value:.1f}"


def _notes(runs: pd.DataFrame, fits: Fits) -> list[str]:
    ok = successful(runs)
    factors = varying(ok)
    numeric = [name for name in factors if takes_numbers(ok, name)]
    base = [f"{title(name)} {level_text(base_level(ok, name))}" for name in factors if name not in numeric]
    means = [f"{title(name)} {tables.number(ok[name].mean())}" for name in numeric]
    fitted = {key: each for key, each in fits.items() if not each.problem}
    notes = [
        "Ordinary least squares over the successful runs; each gives one value, its mean epoch time or the samples of an "
        "epoch over it. Entries are estimates (standard errors), * p < 0.05, ** p < 0.01, *** p < 0.001 (two-sided t tests, "
        "not corrected for the number of terms). Standard errors are HC3 (MacKinnon & White 1985): they hold where longer "
        "times vary more. Blocks are not in the models."
        if fitted
        else "",
        f"Factors: {', '.join(title(name) for name in factors)}." if factors else "No factor varies.",
        f"Categorical factors are compared with their base level: {', '.join(base)}." if base else "",
        f"Numeric factors are taken less their mean over the runs: {', '.join(means)}; so the intercept is a run with these "
        "and the base levels, and with interactions a main effect is the slope there."
        if means
        else "",
    ]
    for (_, model), each in fits.items():
        if each.problem:
            notes.append(f"The {model} model was not fitted: {each.problem}.")
        if each.refused:
            notes.append(
                f"Refused in the {model} model, since this design cannot tell them from terms before them "
                f"({len(each.refused)}): {', '.join(each.refused)}."
            )
        if each.unsure:
            notes.append(
                f"Without a standard error in the {model} model, since they rest on a single run: {', '.join(each.unsure)}."
            )
    if not fitted:
        return [*dict.fromkeys(notes), conditions.circumstances(runs), conditions.shortfall(runs)]
    notes += [
        "AICc is that of a Gaussian likelihood whose variance counts as a parameter; it compares models of the same response. "
        "VIF: by how much correlation with other terms inflates a term's variance. F of lack of fit with its degrees of freedom.",
        LACK_OF_FIT.format("a model") + _own(fitted),
        _misfit(fitted),
        _inflated(fitted),
        *_left_out(fitted, _levels(runs)),
        conditions.circumstances(runs),
        conditions.shortfall(runs),
        conditions.constants(runs),
    ]
    return list(dict.fromkeys(notes))


def _own(fits: Fits) -> str:
    """Of which responses cells do not share one spread, in a sentence with a space before it."""
    names = dict.fromkeys(key[0].name for key, each in fits.items() if each.statistics["lack of fit: own spreads"])
    return f" Here so of {' and '.join(names)}." if names else ""


def _misfit(fits: Fits) -> str:
    missed = [_name(key) for key, each in fits.items() if each.statistics["lack of fit: p"] < LEVEL]
    if missed:
        return (
            f"More is missed than replicates explain (p < {LEVEL}): {'; '.join(missed)}. "
            "Read such coefficients as averages over this design, not as a law."
        )
    tested = any(not math.isnan(each.statistics["lack of fit: p"]) for each in fits.values())
    return "" if tested else "Lack of fit cannot be tested: it needs replicates, and more cells than coefficients."


def _inflated(fits: Fits) -> str:
    large = {
        f"{name} ({model})": value
        for (_, model), each in fits.items()
        for name, value in each.terms[["term", "vif"]].itertuples(index=False)
        if value > LARGE_VIF
    }
    return f"VIF above {LARGE_VIF}: {', '.join(large)}. Such estimates trade against each other." if large else ""


def _left_out(fits: Fits, levels: str) -> list[str]:
    """What leaving out means, which cells are worst, and which cannot be predicted."""
    said = [
        "Leave one cell out: the mean of a cell is predicted from the other cells"
        + (f"; leave one {levels} out: from the cells with another {levels}" if levels else "")
        + ". RMSE is in the response's unit, MAPE the mean of |predicted − measured| / measured, the worst has its sign."
        + ("" if levels else " Only one node count was measured, so that none can be left out.")
    ]
    for what, words in (("cell", "cell"), ("level", levels)):
        if not words:
            continue
        worst = {_name(key): _errors(each.cells, what) for key, each in fits.items()}
        named = [f"{errors.worst_cell} ({name})" for name, errors in worst.items() if errors.predicted]
        said.append(f"Worst, leaving one {words} out: {'; '.join(named)}." if named else "")
        if any(errors.worst < -1 for errors in worst.values()):
            said.append("An error below −100 % is a prediction below zero, which a model with straight lines can make.")
        for (_, model), each in fits.items():
            unknown = each.cells[each.cells[f"without_{what}"].isna()]
            if len(unknown):
                said.append(
                    f"Leaving one {words} out, the {model} model cannot predict {len(unknown)} of {len(each.cells)} cells "
                    f"from the others, so that they do not count: {_unpredicted(each.cells, unknown, what, words)}."
                )
    return said


def _unpredicted(cells: pd.DataFrame, unknown: pd.DataFrame, what: str, words: str) -> str:
    """Whole levels by their level, other cells by their name."""
    if what == "cell":
        return conditions.named(unknown["cell"].tolist())
    counts = unknown.groupby("level").size()
    whole = [level for level, count in counts.items() if count == (cells["level"] == level).sum()]
    said = [f"all with {words} {', '.join(map(level_text, whole))}"] if whole else []
    rest = unknown.loc[~unknown["level"].isin(whole), "cell"].tolist()
    return " and ".join([*said, *([conditions.named(rest)] if rest else [])])


def _name(key: tuple[Response, str]) -> str:
    return f"{key[0].name}, {key[1]}"
