"""Regression of epoch time on all factors that vary: a linear and a quadratic model, side by side.

linear: the main effects. quadratic: these, squares of the numeric factors and all two-way interactions.
Categorical factors have treatment coding against a base level. Ordinary least squares over runs (statsmodels).
"""

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from statsmodels.regression.linear_model import OLS

from analysis import conditions, tables
from analysis.measured import arguments, is_numeric, level_text, successful, title, varying
from common.errors import exit_status
from common.tables import read_table

RESPONSE = "epoch_time_s"
PREFERRED_BASE = "pytorch-single"
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Fit:
    """A fitted model: a row per term, the statistics by name; `problem` says why there is none."""

    terms: pd.DataFrame
    statistics: dict[str, float]
    aliased: list[str]
    unpredicted: list[str]
    problem: str = ""


def base_level(levels: Sequence[str]) -> str:
    """The level that the others are compared with: the undistributed pytorch-single, or the first by name."""
    return PREFERRED_BASE if PREFERRED_BASE in levels else min(levels)


def main_effects(runs: pd.DataFrame, centred: bool) -> dict[str, dict[str, np.ndarray]]:
    """The columns of each factor that varies, by term name; numeric ones as they are or less their mean."""
    effects: dict[str, dict[str, np.ndarray]] = {}
    for factor in varying(runs):
        if is_numeric(factor):
            x = runs[factor].to_numpy(float)
            effects[factor] = {title(factor): x - x.mean() if centred else x}
        else:
            levels = runs[factor].map(level_text)
            others = sorted(set(levels) - {base_level(list(levels))})
            effects[factor] = {f"{title(factor)} [{level}]": (levels == level).to_numpy(float) for level in others}
    return effects


def linear_columns(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """Intercept and main effects."""
    columns = {"intercept": np.ones(len(runs))}
    for terms in main_effects(runs, centred=False).values():
        columns |= terms
    return columns


def quadratic_columns(runs: pd.DataFrame) -> dict[str, np.ndarray]:
    """Intercept, main effects, squares, two-way interactions; numeric factors centred at their mean over the runs."""
    effects = main_effects(runs, centred=True)
    columns = {"intercept": np.ones(len(runs))}
    for terms in effects.values():
        columns |= terms
    for factor, terms in effects.items():
        if is_numeric(factor):
            columns |= {f"{name}²": x**2 for name, x in terms.items()}
    for one, other in itertools.combinations(effects.values(), 2):
        columns |= {f"{a} × {b}": x * y for (a, x), (b, y) in itertools.product(one.items(), other.items())}
    return columns


MODELS: dict[str, Callable[[pd.DataFrame], dict[str, np.ndarray]]] = {
    "linear": linear_columns,
    "quadratic": quadratic_columns,
}


def estimable(columns: dict[str, np.ndarray]) -> tuple[list[str], list[str]]:
    """The terms that add something to those before them, and the aliased ones that do not (Gram-Schmidt, in order)."""
    kept: list[str] = []
    aliased: list[str] = []
    basis = np.empty((len(next(iter(columns.values()))), 0))
    for name, x in columns.items():
        rest = x - basis @ (basis.T @ x)
        rest -= basis @ (basis.T @ rest)
        size = float(np.linalg.norm(rest))
        if size > TOLERANCE * float(np.linalg.norm(x)):
            kept.append(name)
            basis = np.column_stack([basis, rest / size])
        else:
            aliased.append(name)
    return kept, aliased


def fit(runs: pd.DataFrame, columns: dict[str, np.ndarray]) -> Fit:
    """Least squares of epoch time on the estimable ones of `columns` (name -> one value per run)."""
    n = len(runs)
    if n == 0:
        return _no_fit("no successful run")
    kept, aliased = estimable(columns)
    if n <= len(kept):
        return _no_fit(f"too few runs: {n} for {len(kept)} coefficients")
    x = np.column_stack([columns[name] for name in kept])
    y = runs[RESPONSE].to_numpy(float)
    with np.errstate(all="ignore"):
        result = OLS(y, x).fit()
        low, high = result.conf_int().T
        terms = pd.DataFrame(
            {
                "term": kept,
                "estimate_s": result.params,
                "standard_error_s": result.bse,
                "t": result.tvalues,
                "p": result.pvalues,
                "low_s": low,
                "high_s": high,
            }
        )
        statistics = {
            "R²": float(result.rsquared) if len(kept) > 1 else math.nan,
            "adjusted R²": float(result.rsquared_adj) if len(kept) > 1 else math.nan,
            "AIC": float(result.aic),
            "n (runs)": n,
            "residual degrees of freedom": int(result.df_resid),
            "residual s.d. (s)": float(math.sqrt(result.mse_resid)),
        }
    errors, unpredicted = leave_one_cell_out(x, y, runs["cell"].to_numpy())
    statistics |= {
        "leave-one-cell-out RMSE (s)": float(np.sqrt((errors["error_s"] ** 2).mean())),
        "leave-one-cell-out mean relative error (%)": float(100 * (errors["error_s"].abs() / errors["mean_s"]).mean()),
        "cells predicted": len(errors),
    }
    return Fit(terms, statistics, aliased, unpredicted)


def _no_fit(problem: str) -> Fit:
    names = ["term", "estimate_s", "standard_error_s", "t", "p", "low_s", "high_s"]
    return Fit(pd.DataFrame(columns=names), {}, [], [], problem)


def leave_one_cell_out(x: np.ndarray, y: np.ndarray, cell: np.ndarray) -> tuple[pd.DataFrame, list[str]]:
    """Error of each cell's mean when it is predicted from the other cells; the cells that these cannot predict.

    `x` is the same in all runs of a cell. With L the cell's leverage (sum over its runs) the error is the mean residual
    / (1 - L): Cook & Weisberg, Residuals and Influence in Regression (1982), section 3.4, for a group of equal rows.
    """
    q, _ = np.linalg.qr(x)
    frame = pd.DataFrame({"cell": cell, "y": y, "residual": y - q @ (q.T @ y), "leverage": np.einsum("ij,ij->i", q, q)})
    groups = frame.groupby("cell", sort=False)
    leverage = groups["leverage"].sum()
    alone = leverage > 1 - 1e-9
    means = groups[["y", "residual"]].mean()[~alone]
    errors = pd.DataFrame({"mean_s": means["y"], "error_s": means["residual"] / (1 - leverage[~alone])})
    return errors, list(leverage.index[alone])


def side_by_side(fits: dict[str, Fit]) -> pd.DataFrame:
    """One row per term and then per statistic; for each model estimate, standard error, t and p."""
    terms = list(dict.fromkeys(name for each in fits.values() for name in each.terms["term"]))
    statistics = list(dict.fromkeys(name for each in fits.values() for name in each.statistics))
    data = pd.DataFrame({"kind": ["term"] * len(terms) + ["statistic"] * len(statistics), "name": terms + statistics})
    for model, each in fits.items():
        rows = each.terms.set_index("term").reindex(terms)
        nothing = [math.nan] * len(statistics)
        data[model] = rows["estimate_s"].tolist() + [each.statistics.get(name, math.nan) for name in statistics]
        for part in ("standard_error_s", "t", "p"):
            data[f"{model}_{part}"] = rows[part].tolist() + nothing
    return data


def table(runs: pd.DataFrame, fits: dict[str, Fit]) -> tables.Table:
    """Both models in one table for a paper, with what could not be estimated in the notes."""
    data = side_by_side(fits)
    shown = {"": data["name"].tolist()}
    is_term = data["kind"] == "term"
    for model in fits:
        shown[f"{model}: estimate (s)"] = [
            tables.number(value) if term else _statistic(name, value)
            for value, term, name in zip(data[model], is_term, data["name"], strict=True)
        ]
        for part, heading, text in (
            ("standard_error_s", "s.e. (s)", tables.number),
            ("t", "t", tables.number),
            ("p", "p", tables.p_value),
        ):
            shown[f"{model}: {heading}"] = [
                text(value) if term else "" for value, term in zip(data[f"{model}_{part}"], is_term, strict=True)
            ]
    return tables.Table(
        title="Linear and quadratic regression of epoch time in seconds",
        data=data,
        shown=pd.DataFrame(shown),
        notes=[note for note in _notes(runs, fits) if note],
        words=[""],
        parts=[int(is_term.sum())],
    )


def _statistic(name: str, value: float) -> str:
    if name.startswith(("n (", "cells", "residual degrees")) and not math.isnan(value):
        return f"{value:.0f}"
    return f"{value:.3f}" if name.endswith("R²") and not math.isnan(value) else tables.number(value)


def _notes(runs: pd.DataFrame, fits: dict[str, Fit]) -> list[str]:
    ok = successful(runs)
    factors = varying(ok)
    notes = ["Ordinary least squares over the successful runs; each run gives one value, its mean epoch time."]
    if factors:
        notes.append(f"Factors: {', '.join(title(name) for name in factors)}.")
    base = [f"{title(name)} [{base_level(list(ok[name].map(level_text)))}]" for name in factors if not is_numeric(name)]
    if base:
        notes.append(f"Categorical factors have treatment coding; base level: {', '.join(base)}.")
    means = [f"{title(name)} {tables.number(ok[name].mean())}" for name in factors if is_numeric(name)]
    if means:
        notes.append(
            "The linear model takes numeric factors as they are, the quadratic one less their mean over the runs: "
            f"{', '.join(means)}."
        )
    for model, each in fits.items():
        if each.problem:
            notes.append(f"The {model} model was not fitted: {each.problem}.")
        if each.aliased:
            notes.append(
                f"Left out of the {model} model, since this design cannot tell them from terms before them "
                f"({len(each.aliased)}): {', '.join(each.aliased)}."
            )
        if each.unpredicted:
            notes.append(
                f"The {model} model cannot predict these cells from the others ({len(each.unpredicted)}), "
                f"so that they do not count in its leave-one-cell-out errors: {conditions.named(each.unpredicted)}."
            )
    if any(each.statistics for each in fits.values()):
        notes.append(
            "Leave-one-cell-out: all replicates of a cell are left out; their mean is predicted from the other cells. "
            "AIC is that of a Gaussian likelihood (-2 log L + 2 coefficients); p values are two-sided."
        )
    return [*notes, conditions.circumstances(runs), conditions.shortfall(runs), conditions.constants(runs)]


def main(argv: list[str] | None = None) -> None:
    """Fit both models; write the table of both and a CSV file of each."""
    args = arguments(__doc__).parse_args(argv)
    runs = read_table(args.runs, "runs")
    ok = successful(runs)
    fits = {model: fit(ok, columns(ok)) for model, columns in MODELS.items()}
    for model, each in fits.items():
        left_out = pd.DataFrame({"term": each.aliased, "aliased": "true"})
        all_terms = pd.concat([each.terms.assign(aliased="false"), left_out], ignore_index=True)
        tables.write_csv(all_terms, Path(f"{args.out}_{model}.csv"))
    tables.write(table(runs, fits), args.out)


if __name__ == "__main__":
    sys.exit(exit_status(main))
