"""The terms of the linear and of the quadratic model: a column per term, and which of them a design can estimate.

linear: intercept and main effects. quadratic: these, squares of the numeric factors and all two-way interactions.
Numeric factors are taken less their mean over the rows, categorical ones have treatment coding against their base level.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.conditions import THE_SITES
from analysis.measured import combination_text, levels_in_order, title, varying
from declared.factors import is_numeric

TOLERANCE = 1e-9

Columns = dict[str, np.ndarray]  # term -> one value per row


def takes_numbers(runs: pd.DataFrame, factor: str) -> bool:
    """Whether the model takes the levels of `factor` as numbers; a level that leaves it to the site is none."""
    return is_numeric(factor) and not (runs[factor] == THE_SITES.get(factor, np.nan)).any()


def base_level(runs: pd.DataFrame, factor: str) -> Any:
    """The level that the others of a categorical factor are compared with."""
    return levels_in_order(runs, factor)[0]


def main_effects(runs: pd.DataFrame) -> dict[str, Columns]:
    """The columns of each factor that varies."""
    effects: dict[str, Columns] = {}
    for factor in varying(runs):
        if takes_numbers(runs, factor):
            x = runs[factor].to_numpy(float)
            effects[factor] = {title(factor): x - x.mean()}
        else:
            others = levels_in_order(runs, factor)[1:]
            effects[factor] = {
                combination_text({factor: level}): (runs[factor] == level).to_numpy(float) for level in others
            }
    return effects


def linear(runs: pd.DataFrame) -> Columns:
    """Intercept and main effects."""
    columns = {"intercept": np.ones(len(runs))}
    for terms in main_effects(runs).values():
        columns |= terms
    return columns


def quadratic(runs: pd.DataFrame) -> Columns:
    """Intercept, main effects, squares, two-way interactions."""
    columns = linear(runs)
    effects = main_effects(runs)
    for factor, terms in effects.items():
        if takes_numbers(runs, factor):
            columns |= {f"{name}²": x**2 for name, x in terms.items()}
    for one, other in itertools.combinations(effects.values(), 2):
        columns |= {f"{a} × {b}": x * y for (a, x), (b, y) in itertools.product(one.items(), other.items())}
    return columns


MODELS: dict[str, Callable[[pd.DataFrame], Columns]] = {"linear": linear, "quadratic": quadratic}


def estimable(columns: Columns) -> tuple[list[str], list[str]]:
    """The terms that add something to those before them, and those that do not (Gram-Schmidt, in order, twice)."""
    kept: list[str] = []
    refused: list[str] = []
    basis = np.empty((len(next(iter(columns.values()))), len(columns)), order="F")
    for name, x in columns.items():
        before = basis[:, : len(kept)]
        rest = x - before @ (before.T @ x)
        rest -= before @ (before.T @ rest)
        size = float(np.linalg.norm(rest))
        if size > TOLERANCE * float(np.linalg.norm(x)):
            basis[:, len(kept)] = rest / size
            kept.append(name)
        else:
            refused.append(name)
    return kept, refused
