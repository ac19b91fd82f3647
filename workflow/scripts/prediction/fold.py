"""What every way of predicting gets, cells to fit and cells to predict, and what it gives back."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from prediction import physics


@dataclass(frozen=True)
class Fold:
    """Cells and sweeps to fit, and cells to predict (`physics.prepared`, `law.points`); `title`: what is
    left out, `kind`: of which factor."""

    title: str
    kind: str
    train: pd.DataFrame
    sweeps: pd.DataFrame
    test: pd.DataFrame

    @functools.cached_property
    def plain(self) -> physics.Physics:
        """The physical model before anything is fitted to cells on several nodes."""
        return physics.plain(self.train, self.sweeps)


@dataclass(frozen=True)
class Prediction:
    """Seconds of a fold's test cells, [cells]; why some are NaN; and what else must be said of them, in words that go on
    after the method's name and a colon."""

    seconds: np.ndarray
    problem: str = ""
    remarks: tuple[str, ...] = ()


Method = Callable[[Fold], Prediction]


def none_of(fold: Fold, problem: str) -> Prediction:
    """No cell of the fold is predicted, for this reason."""
    return Prediction(np.full(len(fold.test), np.nan), problem)


def unless_all(seconds: np.ndarray, problem: str) -> str:
    """The problem where some cell is not predicted, else nothing."""
    return problem if np.isnan(seconds).any() else ""
