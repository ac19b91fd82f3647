"""Terms of the linear and the quadratic model, and which of them a design can estimate.

The linear model has an intercept and main effects. The quadratic model adds squares of the numeric factors
and all two-way interactions. Numeric factors are centred at their mean over the rows; categorical factors
have treatment coding against their base level.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.conditions import SITE_DEFAULTS
from analysis.level_words import combination_text, title
from analysis.records import has_words, levels_in_order, varying
from declared.factors import is_numeric

TOLERANCE = 1e-9

Columns = dict[str, np.ndarray]  # Term -> one value per row.


def is_treated_as_number(runs: pd.DataFrame, factor: str) -> bool:
    """Return whether models treat a factor as numeric: levels are numbers, and none defers to the site."""
    defers = (runs[factor] == SITE_DEFAULTS.get(factor, np.nan)).any()
    return is_numeric(factor) and not has_words(runs, factor) and not defers


def base_level(runs: pd.DataFrame, factor: str) -> Any:
    """Return the level that the other levels of a categorical factor are compared with."""
    return levels_in_order(runs, factor)[0]


def main_effect_columns(runs: pd.DataFrame) -> dict[str, Columns]:
    """Return factor -> its columns, for each varying factor."""
    effects: dict[str, Columns] = {}
    for factor in varying(runs):
        if is_treated_as_number(runs, factor):
            x = runs[factor].to_numpy(float)
            effects[factor] = {title(factor): x - x.mean()}
        else:
            levels = levels_in_order(runs, factor)[1:]
            effects[factor] = {
                combination_text({factor: level}): (runs[factor] == level).to_numpy(float) for level in levels
            }
    return effects


def linear_columns(runs: pd.DataFrame) -> Columns:
    """Return the columns of intercept and main effects."""
    columns = {"intercept": np.ones(len(runs))}
    for terms in main_effect_columns(runs).values():
        columns |= terms
    return columns


def quadratic_columns(runs: pd.DataFrame) -> Columns:
    """Return the columns of intercept, main effects, squares and two-way interactions."""
    columns = linear_columns(runs)
    effects = main_effect_columns(runs)
    for factor, terms in effects.items():
        if is_treated_as_number(runs, factor):
            columns |= {f"{name}²": x**2 for name, x in terms.items()}
    for terms_a, terms_b in itertools.combinations(effects.values(), 2):
        columns |= {
            f"{a} × {b}": x * y for (a, x), (b, y) in itertools.product(terms_a.items(), terms_b.items())
        }
    return columns


MODELS: dict[str, Callable[[pd.DataFrame], Columns]] = {
    "linear": linear_columns,
    "quadratic": quadratic_columns,
}


def split_estimable(columns: Columns) -> tuple[list[str], list[str]]:
    """Return the terms that are linearly independent of earlier terms, and the others.

    Uses Gram-Schmidt in the order of the terms, twice, because one pass leaves rounding errors.
    """
    estimable: list[str] = []
    refused: list[str] = []
    basis = np.empty((len(next(iter(columns.values()))), len(columns)), order="F")
    for name, x in columns.items():
        before = basis[:, : len(estimable)]
        rest = x - before @ (before.T @ x)
        rest -= before @ (before.T @ rest)
        size = float(np.linalg.norm(rest))
        if size > TOLERANCE * float(np.linalg.norm(x)):
            basis[:, len(estimable)] = rest / size
            estimable.append(name)
        else:
            refused.append(name)
    return estimable, refused
