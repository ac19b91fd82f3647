"""The ways of predicting epoch times that are compared: each takes a fold and gives a number for every cell left out.

A number is NaN where a method cannot predict; `problem` then says why. What a method may look at is the fold's training part.
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
from prediction import baselines, exchange, law, physics
from prediction.fold import Fold, Method, Prediction, none_of, unless_all
from prediction.law import Law

PROGRAM = Path(__file__).with_name("extra_p.py")
# of forms that fit alike it takes the one that rounding favours, so that the same records gave other predictions on other processors
ONE_ARITHMETIC = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"}
FEWEST_LEVELS = 5
FEW = Note(
    "few-levels",
    f"it asks for {FEWEST_LEVELS} values of each parameter; where fewer are left it models all the same, with a warning.",
)
NO_SWEEP = Note("no-sweep", "no sweep of the network at the nodes and rates that are left")
NO_SINGLE_NODE = Note("no-run-on-one-node", "no run on one node")
NO_RATE = Note("no-link-rate", "the site names no rate of its links")
NO_CELL = Note("no-cell", "no cell is left")
ONE_VALUE = Note("one-value", "a parameter has one value")
NO_PARAMETER = Note("no-parameter", "no parameter has two values")
LIMIT_S = 300
PHYSICS = "physical model"


def with_terms(*terms: str) -> Method:
    """The physical model with these fitted numbers at most."""

    def predict(fold: Fold) -> Prediction:
        made = physics.fitted(fold.plain, fold.train, terms)
        seconds = made.predict(fold.test)
        return Prediction(seconds, unless_all(seconds, NO_SINGLE_NODE) if made.laws else NO_SWEEP)

    return predict


def by_hand(fold: Fold) -> Prediction:
    """Nothing fitted to a run on several nodes or to a sweep: computation, and 2 (n - 1) / n x gradient bytes, or what a mesh sends, at the
    link's rate."""
    ideal = Law("ring", law.PIPELINED, 0.0, 0.0, 1.0, 0.0)
    laws = {name: replace(ideal, collective=name) for name in MESH_COLLECTIVES}
    made = replace(fold.plain, laws=dict.fromkeys(physics.carriers(fold.test), laws), whole=True)
    unknown = fold.test["rate"].isna().to_numpy()
    seconds = np.where(unknown, np.nan, made.predict(fold.test))
    return Prediction(seconds, unless_all(seconds, NO_RATE if unknown.any() else NO_SINGLE_NODE))


def regression(columns: Callable[[pd.DataFrame], Columns]) -> Method:
    """Least squares of relative errors, as predictions are judged by, on the terms of analysis.terms.

    Terms that the training part cannot tell from those before them are left out, and named. A cell with a level, or a
    combination of levels, of which the training part has none is not predicted.
    """

    def predict(fold: Fold) -> Prediction:
        if fold.train.empty:
            return none_of(fold, NO_CELL)
        both = pd.concat([fold.train, fold.test], ignore_index=True)
        first = len(fold.train)
        new = [
            name
            for name in factors()
            if fold.train[name].nunique(dropna=False) == 1 and both[name].nunique(dropna=False) > 1
        ]
        if new:
            return none_of(fold, Note("one-level", f"one level of {', '.join(new)} is left", factors=new))
        made = columns(both)
        kept, dropped = split_estimable({name: np.asarray(x)[:first] for name, x in made.items()})
        if len(kept) > first:
            text = f"{first} cells for {len(kept)} coefficients"
            return none_of(fold, Note("too-few-cells", text, cells=first, coefficients=len(kept)))
        x = np.column_stack([np.asarray(made[name], float) for name in kept])
        y = fold.train["epoch_time_s"].to_numpy(float)
        root = np.sqrt(fold.train["n"].to_numpy(float))
        found = np.linalg.lstsq(x[:first] * (root / y)[:, None], root, rcond=None)[0]
        unseen = [name for name in dropped if not made[name][:first].any()]
        unknown = (
            np.any([made[name][first:] != 0 for name in unseen], axis=0) if unseen else np.zeros(len(fold.test), bool)
        )
        absent = [name for name in dropped if name not in unseen]
        left = f"without {conditions.join_names(absent)}, which the cells that are left do not determine."
        text = f"none of the cells that are left has {conditions.join_names(unseen)}"
        return Prediction(
            np.where(unknown, np.nan, x[first:] @ found),
            Note("unseen-levels", text, terms=unseen) if unknown.any() else "",
            (Note("terms-left-out", left, terms=absent),) if absent else (),
        )

    return predict


def extra_p(python: Path) -> Method:
    """Extra-P by the interpreter of its environment, one model for each framework, model, data set and treatment."""

    def predict(fold: Fold) -> Prediction:
        jobs, rows, few = [], [], False
        treated = [name for name in factors() if name not in ("nodes", "batch_size", "bandwidth")]
        axes = ["nodes", "batch_size"] + ["rate"] * (fold.train["rate"].nunique(dropna=False) > 1)
        keys = [name for name in treated if fold.train[name].nunique(dropna=False) > 1] or ["framework"]
        left = fold.test.assign(row=np.arange(len(fold.test)))
        for levels, wanted in left.groupby(keys, dropna=False):
            own = fold.train[(fold.train[keys] == list(levels)).all(axis=1)]
            used = [axis for axis in axes if own[axis].nunique() > 1]
            if not used or any(wanted[axis].nunique() > 1 for axis in axes if axis not in used):
                continue
            few = few or any(own[axis].nunique() < FEWEST_LEVELS for axis in used)
            points = [[[float(x) for x in place], times] for place, times in _points(own, used)]
            jobs.append(
                {"parameters": used, "points": points, "wanted": wanted[used].astype(float).to_numpy().tolist()}
            )
            rows.append(wanted["row"].to_numpy())
        seconds = np.full(len(fold.test), np.nan)
        if not jobs:
            return none_of(fold, NO_PARAMETER)
        try:
            answers = _answers(python, jobs)
        except InputError as error:
            return none_of(fold, Note(error.code, str(error)))
        for place, answer in zip(rows, answers, strict=True):
            seconds[place] = np.array(answer["predicted"], float)
        remarks = (FEW,) if few else ()
        return Prediction(seconds, unless_all(seconds, ONE_VALUE), remarks)

    return predict


def _points(cells: pd.DataFrame, axes: Sequence[str]) -> list[tuple[Sequence[float], list[float]]]:
    """Coordinates and the mean of each cell; what one node takes stands at every rate, since none is used there."""
    if "rate" in axes:
        single = cells["nodes"] == 1
        rates = pd.DataFrame({"rate": sorted(cells["rate"].dropna().unique())})
        everywhere = cells[single].drop(columns="rate").merge(rates, how="cross")
        cells = pd.concat([cells[~single], everywhere], ignore_index=True)
    means = cells.groupby(list(axes))["epoch_time_s"].mean()
    return [(place if isinstance(place, tuple) else (place,), [mean]) for place, mean in means.items()]


def _answers(python: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Extra-P's answers. InputError where it breaks down, or takes too long."""
    try:
        done = subprocess.run(
            [str(python), str(PROGRAM)],
            input=json.dumps(jobs),
            env=os.environ | ONE_ARITHMETIC,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=True,
        )
        answers: list[dict[str, Any]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise InputError("program-failed", f"Extra-P broke down: {one_line(error)[:160]}") from None
    return answers


def methods(frameworks: Iterable[str], python: Path | None = None) -> dict[str, Method]:
    """The methods by their names in the table, for a study of these frameworks; Extra-P by `python`, where there is one."""
    made: dict[str, Method] = {PHYSICS: with_terms(*physics.TERMS), "without waiting": with_terms("hidden", "dispatch")}
    if any(exchange.streams(name) for name in frameworks):
        made["without hiding"] = with_terms("scatter", "dispatch")
    made["by hand"] = by_hand
    for swept in (False, True):
        also = " with the sweep" if swept else ""
        made |= {f"Ernest{also}": baselines.ernest(swept), f"log-linear{also}": baselines.log_linear(swept)}
    made |= {f"{name} regression": regression(columns) for name, columns in MODELS.items()}
    return made | ({"Extra-P": extra_p(python)} if python else {})
