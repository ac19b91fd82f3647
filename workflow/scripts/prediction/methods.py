"""The prediction methods that are compared: each predicts the epoch times of a fold's test cells.

A method uses only the fold's training part. A prediction is NaN where the method cannot predict, and
`problem` says why.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions
from analysis.measured import factors, one_line
from analysis.terms import MODELS, Columns, split_estimable
from common.errors import InputError
from common.notes import Note
from models.collectives import MESH_COLLECTIVES
from prediction import baselines, communication, law, physics
from prediction.fold import Fold, Method, Prediction, predict_none, problem_if_missing
from prediction.law import Law

PROGRAM = Path(__file__).with_name("extra_p.py")
# Extra-P breaks ties between equally good models by rounding errors, which differ between processors.
ONE_ARITHMETIC = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"}
MIN_LEVELS = 5
FEW_LEVELS = Note(
    "few-levels",
    f"it needs {MIN_LEVELS} values of each parameter; with fewer it still fits a model, with a warning.",
)
NO_BENCHMARK = Note("no-collective-benchmark", "no collective benchmark at the remaining nodes and rates")
NO_SINGLE_NODE = Note("no-run-on-one-node", "no run on one node")
NO_RATE = Note("no-link-rate", "the site declares no link rate")
NO_CELL = Note("no-cell", "no cell remains")
ONE_VALUE = Note("one-value", "a parameter has one value")
NO_PARAMETER = Note("no-parameter", "no parameter has two values")
TIMEOUT_S = 300
PHYSICS = "physical model"


def physical_method(*terms: str) -> Method:
    """Return the physical model, which may fit these terms (`physics.TERMS`)."""

    def predict(fold: Fold) -> Prediction:
        model = physics.fit_terms(fold.base_model, fold.train, terms)
        seconds = model.predict(fold.test)
        return Prediction(
            seconds, problem_if_missing(seconds, NO_SINGLE_NODE) if model.laws else NO_BENCHMARK
        )

    return predict


def predict_by_hand(fold: Fold) -> Prediction:
    """Predict by computation plus 2 (n - 1) / n x gradient bytes, or a mesh's messages, at the link rate.

    Nothing is fitted to runs on several nodes or to a benchmark.
    """
    ideal = Law("ring", law.PIPELINED, 0.0, 0.0, 1.0, 0.0)
    laws = {name: replace(ideal, collective=name) for name in MESH_COLLECTIVES}
    model = replace(
        fold.base_model, laws=dict.fromkeys(physics.carriers(fold.test), laws), single_allreduce=True
    )
    unknown = fold.test["rate"].isna().to_numpy()
    seconds = np.where(unknown, np.nan, model.predict(fold.test))
    return Prediction(seconds, problem_if_missing(seconds, NO_RATE if unknown.any() else NO_SINGLE_NODE))


def regression_method(columns: Callable[[pd.DataFrame], Columns]) -> Method:
    """Return least squares of relative errors on the terms of analysis.terms.

    Errors are relative because predictions are judged by relative errors. Terms that the training part cannot
    separate from earlier ones are omitted and named. A cell with a level, or a combination of levels, that
    the training part lacks is not predicted.
    """

    def predict(fold: Fold) -> Prediction:
        if fold.train.empty:
            return predict_none(fold, NO_CELL)
        all_cells = pd.concat([fold.train, fold.test], ignore_index=True)
        n_train = len(fold.train)
        new_factors = [
            name
            for name in factors()
            if fold.train[name].nunique(dropna=False) == 1 and all_cells[name].nunique(dropna=False) > 1
        ]
        if new_factors:
            return predict_none(
                fold, Note("one-level", f"one level of {', '.join(new_factors)} remains", factors=new_factors)
            )
        terms = columns(all_cells)
        estimable_terms, dropped = split_estimable(
            {name: np.asarray(x)[:n_train] for name, x in terms.items()}
        )
        if len(estimable_terms) > n_train:
            text = f"{n_train} cells for {len(estimable_terms)} coefficients"
            return predict_none(
                fold, Note("too-few-cells", text, cells=n_train, coefficients=len(estimable_terms))
            )
        x = np.column_stack([np.asarray(terms[name], float) for name in estimable_terms])
        y = fold.train["epoch_time_s"].to_numpy(float)
        root = np.sqrt(fold.train["n"].to_numpy(float))
        coefficients = np.linalg.lstsq(x[:n_train] * (root / y)[:, None], root, rcond=None)[0]
        unseen = [name for name in dropped if not terms[name][:n_train].any()]
        is_unseen = (
            np.any([terms[name][n_train:] != 0 for name in unseen], axis=0)
            if unseen
            else np.zeros(len(fold.test), bool)
        )
        omitted = [name for name in dropped if name not in unseen]
        remark = f"without {conditions.join_names(omitted)}, which the remaining cells do not determine."
        text = f"none of the remaining cells has {conditions.join_names(unseen)}"
        return Prediction(
            np.where(is_unseen, np.nan, x[n_train:] @ coefficients),
            Note("unseen-levels", text, terms=unseen) if is_unseen.any() else "",
            (Note("terms-left-out", remark, terms=omitted),) if omitted else (),
        )

    return predict


def extra_p_method(python: Path) -> Method:
    """Return Extra-P, run by `python`, with one model for each framework, model, data set and treatment."""

    def predict(fold: Fold) -> Prediction:
        jobs, rows, has_few_levels = [], [], False
        treated = [name for name in factors() if name not in ("nodes", "batch_size", "bandwidth")]
        axes = ["nodes", "batch_size"] + ["rate"] * (fold.train["rate"].nunique(dropna=False) > 1)
        keys = [name for name in treated if fold.train[name].nunique(dropna=False) > 1] or ["framework"]
        test = fold.test.assign(row=np.arange(len(fold.test)))
        for levels, targets in test.groupby(keys, dropna=False):
            own = fold.train[(fold.train[keys] == list(levels)).all(axis=1)]
            used = [axis for axis in axes if own[axis].nunique() > 1]
            if not used or any(targets[axis].nunique() > 1 for axis in axes if axis not in used):
                continue
            has_few_levels = has_few_levels or any(own[axis].nunique() < MIN_LEVELS for axis in used)
            points = [[[float(x) for x in place], times] for place, times in _mean_by_coordinates(own, used)]
            jobs.append(
                {
                    "parameters": used,
                    "points": points,
                    "wanted": targets[used].astype(float).to_numpy().tolist(),
                }
            )
            rows.append(targets["row"].to_numpy())
        seconds = np.full(len(fold.test), np.nan)
        if not jobs:
            return predict_none(fold, NO_PARAMETER)
        try:
            answers = _run_extra_p(python, jobs)
        except InputError as error:
            return predict_none(fold, Note(error.code, str(error)))
        for place, answer in zip(rows, answers, strict=True):
            seconds[place] = np.array(answer["predicted"], float)
        remarks = (FEW_LEVELS,) if has_few_levels else ()
        return Prediction(seconds, problem_if_missing(seconds, ONE_VALUE), remarks)

    return predict


def _mean_by_coordinates(
    cells: pd.DataFrame, axes: Sequence[str]
) -> list[tuple[Sequence[float], list[float]]]:
    """Return coordinates and mean epoch time of each cell; a cell on one node counts at every link rate."""
    if "rate" in axes:
        single = cells["nodes"] == 1
        rates = pd.DataFrame({"rate": sorted(cells["rate"].dropna().unique())})
        everywhere = cells[single].drop(columns="rate").merge(rates, how="cross")
        cells = pd.concat([cells[~single], everywhere], ignore_index=True)
    means = cells.groupby(list(axes))["epoch_time_s"].mean()
    return [(place if isinstance(place, tuple) else (place,), [mean]) for place, mean in means.items()]


def _run_extra_p(python: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return Extra-P's answers.

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


def methods(frameworks: Iterable[str], python: Path | None = None) -> dict[str, Method]:
    """Return the methods by their names in the table, with Extra-P if its interpreter is given."""
    by_name: dict[str, Method] = {
        PHYSICS: physical_method(*physics.TERMS),
        "without waiting": physical_method("hidden", "dispatch"),
    }
    if any(communication.can_overlap(name) for name in frameworks):
        by_name["without hiding"] = physical_method("scatter", "dispatch")
    by_name["by hand"] = predict_by_hand
    for with_benchmark in (False, True):
        suffix = " with the benchmark" if with_benchmark else ""
        by_name |= {
            f"Ernest{suffix}": baselines.ernest(with_benchmark),
            f"log-linear{suffix}": baselines.log_linear(with_benchmark),
        }
    by_name |= {f"{name} regression": regression_method(columns) for name, columns in MODELS.items()}
    return by_name | ({"Extra-P": extra_p_method(python)} if python else {})
