"""The prediction methods that are compared: each predicts the epoch times of a fold's test cells.

A method uses only the fold's training part. If it cannot predict a cell, the time is NaN and `problem` names
the reason.
"""

import functools
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.records import one_line
from common.errors import InputError
from common.notes import Note
from declared.factors import factor_names
from prediction import compared_models
from prediction.message_times import CollectiveBenchmark
from prediction.study_predictor import Prediction, StudyPredictor

PROGRAM = Path(__file__).with_name("extra_p.py")
# Extra-P breaks ties between equally good models by rounding errors, which differ between processors.
ONE_ARITHMETIC = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"}
MIN_LEVELS = 5  # Extra-P needs this many values of a parameter.
FEW_LEVELS = Note(
    "few-levels",
    f"it needs {MIN_LEVELS} values of each parameter; with fewer it still fits a model, with a warning.",
)
NOT_DETERMINED = Note("not-determined", "the remaining cells of the same treatment do not determine it")
ONE_VALUE = Note("one-value", "a parameter has one value")
NO_PARAMETER = Note("no-parameter", "no parameter has two values")
TIMEOUT_S = 300
LAW = "law"
NOT_HELD_OUT = "nothing"  # Kind of the fold that tests on the cells it was fitted to.


@dataclass(frozen=True)
class Fold:
    """One split of a study into cells and benchmarks to fit, and cells to predict.

    Attributes:
        title: What is held out.
        kind: What held-out cells have in common, one of `held_out.KINDS`; NOT_HELD_OUT for the first fold.
        train: Cells to fit (`inputs.measured_cells`).
        benchmark: The collective benchmark to fit.
        test: Cells to predict.
    """

    title: str
    kind: str
    train: pd.DataFrame
    benchmark: CollectiveBenchmark
    test: pd.DataFrame

    @functools.cached_property
    def predictor(self) -> StudyPredictor:
        """The predictor that is fitted to the training part."""
        return StudyPredictor(self.train, self.benchmark)


Method = Callable[[Fold], Prediction]


def predict_by_law(fold: Fold) -> Prediction:
    """Predict by the optimizer-step law; a batch size without a prediction is the problem, not a remark."""
    prediction = fold.predictor.predict(fold.test)
    unseen = [note for note in prediction.notes if note.code == "unseen-batch"]
    notes = tuple(note for note in prediction.notes if note not in unseen)
    return replace(prediction, problem=next(iter(unseen), NOT_DETERMINED), notes=notes)


def compared_method(model: compared_models.Model) -> Method:
    """Return another model of a step, fitted to the cells of the same framework that also inform the law.

    Only the model by hand also uses the baseline's cells on one device, if the framework has none.
    """

    def predict(fold: Fold) -> Prediction:
        seconds = np.full(len(fold.test), np.nan)
        for rows, measured, new in fold.predictor.split_series(fold.test):
            if model is not compared_models.predict_by_hand:
                measured = measured[measured["framework"] == new["framework"].iloc[0]]
            if len(measured):
                seconds[rows] = model(measured, new)
        seconds = seconds * fold.test["n_allreduces"].to_numpy(float)
        return Prediction(seconds, NOT_DETERMINED)

    return predict


def extra_p_method(python: Path) -> Method:
    """Return Extra-P, run by `python`, with one model for each framework, model, data set and treatment."""

    def predict(fold: Fold) -> Prediction:
        jobs, rows, has_few_levels = [], [], False
        treated = [
            name for name in factor_names(fold.train) if name not in ("nodes", "batch_size", "bandwidth")
        ]
        axes = ["nodes", "batch_size"] + ["rate"] * (fold.train["rate"].nunique(dropna=False) > 1)
        keys = [name for name in treated if fold.train[name].nunique(dropna=False) > 1] or ["framework"]
        test = fold.test.assign(row=np.arange(len(fold.test)))
        for levels, targets in test.groupby(keys, dropna=False):
            train = fold.train[(fold.train[keys] == list(levels)).all(axis=1)]
            used = [axis for axis in axes if train[axis].nunique() > 1]
            if not used or any(targets[axis].nunique() > 1 for axis in axes if axis not in used):
                continue
            has_few_levels = has_few_levels or any(train[axis].nunique() < MIN_LEVELS for axis in used)
            points = _mean_by_coordinates(train, used)
            coordinates = targets[used].astype(float).to_numpy().tolist()
            jobs.append({"parameters": used, "points": points, "wanted": coordinates})
            rows.append(targets["row"].to_numpy())
        seconds = np.full(len(fold.test), np.nan)
        if not jobs:
            return Prediction(seconds, NO_PARAMETER)
        try:
            answers = _run_extra_p(python, jobs)
        except InputError as error:
            return Prediction(seconds, Note(error.code, str(error)))
        for target_rows, answer in zip(rows, answers, strict=True):
            seconds[target_rows] = np.array(answer["predicted"], float)
        return Prediction(seconds, ONE_VALUE, (FEW_LEVELS,) if has_few_levels else ())

    return predict


def _mean_by_coordinates(cells: pd.DataFrame, axes: Sequence[str]) -> list[tuple[list[float], list[float]]]:
    """Return coordinates and mean epoch time of each cell; a cell on one node counts at every link rate."""
    if "rate" in axes:
        single = cells["nodes"] == 1
        rates = pd.DataFrame({"rate": sorted(cells["rate"].dropna().unique())})
        everywhere = cells[single].drop(columns="rate").merge(rates, how="cross")
        cells = pd.concat([cells[~single], everywhere], ignore_index=True)
    means = cells.groupby(list(axes))["epoch_time_s"].mean().reset_index()
    return [([float(x) for x in coordinates], [mean]) for *coordinates, mean in means.itertuples(index=False)]


def _run_extra_p(python: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return Extra-P's answer to each job (prediction.extra_p).

    Raises:
        InputError: If Extra-P fails or takes longer than TIMEOUT_S.
    """
    try:
        done = subprocess.run(
            [str(python), str(PROGRAM)],
            input=json.dumps(jobs),
            env=os.environ | ONE_ARITHMETIC,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=True,
        )
        answers: list[dict[str, Any]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise InputError("program-failed", f"Extra-P failed: {one_line(error)[:160]}") from None
    return answers


def methods(python: Path | None = None) -> dict[str, Method]:
    """Return the methods by their names in the table, with Extra-P if its interpreter is given."""
    by_name: dict[str, Method] = {LAW: predict_by_law}
    by_name |= {name: compared_method(model) for name, model in compared_models.MODELS.items()}
    return by_name | ({"Extra-P": extra_p_method(python)} if python else {})
