"""The interface of prediction methods: cells to fit and cells to predict, and the predictions."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from prediction import physics


@dataclass(frozen=True)
class Fold:
    """One split of a study into cells and benchmarks to fit, and cells to predict.

    Attributes:
        title: What is left out.
        kind: The factor that is left out, one of `held_out.KINDS`.
        train: Cells to fit (`physics.measured_cells`).
        benchmarks: Points of the collective benchmark to fit (`law.benchmark_points`).
        test: Cells to predict.
    """

    title: str
    kind: str
    train: pd.DataFrame
    benchmarks: pd.DataFrame
    test: pd.DataFrame

    @functools.cached_property
    def base_model(self) -> physics.PhysicalModel:
        """The physical model before anything is fitted to cells on several nodes."""
        return physics.base_model(self.train, self.benchmarks)


@dataclass(frozen=True)
class Prediction:
    """Predictions of a fold's test cells.

    Attributes:
        seconds: Epoch times, [cells]; NaN where the method cannot predict.
        problem: Why some are NaN.
        remarks: Further notes, written to follow the method's name and a colon.
    """

    seconds: np.ndarray
    problem: str = ""
    remarks: tuple[str, ...] = ()


Method = Callable[[Fold], Prediction]


def predict_none(fold: Fold, problem: str) -> Prediction:
    """Return a prediction of no cell, for this reason."""
    return Prediction(np.full(len(fold.test), np.nan), problem)


def problem_if_missing(seconds: np.ndarray, problem: str) -> str:
    """Return the problem if some cell is not predicted, else ""."""
    return problem if np.isnan(seconds).any() else ""
