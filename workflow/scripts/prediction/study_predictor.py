"""Predict epoch times of a study.

A series is the cells of one framework, device, model and data set, and of the same levels of all other
factors that computation depends on (`StudyPredictor.computation_factors`), at several scales. Each series has
a law of its own (`law.OptimizerStepLaw`). An epoch has an optimizer step for each of its all-reduces; the
column `n_allreduces` counts them on one device too, although nothing is sent there.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from common.notes import Note
from common.text import join_words
from declared.factors import MODEL_AND_DATASET, factor_names
from declared.models import find_graph
from prediction.inputs import PARALLELISM_FACTORS, WITHIN_SERIES_FACTORS, measured_cells
from prediction.law import (
    BACKWARD_SHARE,
    MIN_BATCH_SIZES,
    MISFIT_WARNING,
    Array,
    OptimizerStepLaw,
    OptimizerStepPrediction,
    join_steps,
    predict_optimizer_steps,
    split_by_devices_per_node,
)
from prediction.law_rows import is_unknown_mesh, law_rows
from prediction.message_times import CollectiveBenchmark, benchmark_points, message_rule


@dataclass(frozen=True)
class Prediction:
    """Predicted epoch times of cells, by the law or another method.

    Attributes:
        seconds: Epoch times, [cells]; NaN for cells that the method cannot predict.
        problem: Why cells are not predicted.
        notes: Remarks on the method, such as fits that miss their own cells.
        low: Lower ends of 90 % bands, [cells]; NaN for a method without bands.
        high: Upper ends.
    """

    seconds: Array
    problem: str = ""
    notes: tuple[Note, ...] = ()
    low: Array | float = math.nan
    high: Array | float = math.nan


class SeriesPart(NamedTuple):
    """Cells of one series to predict.

    Attributes:
        positions: Where these cells are in the table that was split.
        measured: `law_rows` of the measured cells that inform them.
        new: `law_rows` of the cells to predict.
    """

    positions: np.ndarray
    measured: pd.DataFrame
    new: pd.DataFrame


class Computation(NamedTuple):
    """Seconds on one device: fixed_s + b sample_s for a batch of b samples, update_s for an update.

    NaN: not measured. `fixed_s` or `update_s` is 0 if the measured cells cannot separate it.
    """

    fixed_s: float
    sample_s: float
    update_s: float


@dataclass(frozen=True)
class StudyPredictor:
    """Predicts epoch times from a study's measured cells and its collective benchmark.

    Attributes:
        cells: Measured cells (`inputs.measured_cells`).
        benchmark: The collective benchmark; no points if there is none.
    """

    cells: pd.DataFrame
    benchmark: CollectiveBenchmark = field(default_factory=CollectiveBenchmark)

    @functools.cached_property
    def computation_factors(self) -> list[str]:
        """Factors besides framework and device that vary and that computation depends on.

        Cells that differ in one of them belong to different series.
        """
        fixed = (*WITHIN_SERIES_FACTORS, *PARALLELISM_FACTORS, "device")
        names = [name for name in factor_names(self.cells) if name not in fixed]
        return [name for name in [*names, "lbann_layout"] if self.cells[name].nunique(dropna=False) > 1]

    def informing_cells(self, levels: Mapping[str, Any]) -> pd.DataFrame:
        """Return the measured cells that inform the prediction of a cell with these levels.

        They have the same framework, device and `computation_factors`. If none of them is on one device, the
        cells of the baseline framework on one device are added.
        """
        has_levels = pd.Series(True, index=self.cells.index)
        for name in ["device", *self.computation_factors]:
            has_levels &= self.cells[name].isin([levels[name]]) | (
                self.cells[name].isna() & pd.isna(levels[name])
            )
        measured = self.cells[has_levels & (self.cells["framework"] == levels["framework"])]
        if (measured["n_devices"] == 1).any():
            return measured
        is_baseline = (self.cells["framework"] == levels["baseline"]) & (self.cells["n_devices"] == 1)
        return pd.concat([self.cells[has_levels & is_baseline], measured], ignore_index=True)

    def fit_device_computation(self, levels: Mapping[str, Any]) -> Computation:
        """Fit the computation of one device, measured with the framework of the levels or its baseline."""
        measured = self.informing_cells(levels)
        alone = measured[(measured["n_devices"] == 1) & ~measured["uses_mesh"]]
        return fit_computation(alone) if len(alone) else Computation(math.nan, math.nan, math.nan)

    @functools.cached_property
    def update_shares(self) -> dict[tuple[Any, ...], float]:
        """Share of the update in fixed_s, by framework, device and `computation_factors`.

        Without accumulation on one device, fixed_s includes the update. Its share is estimated across models,
        because the update grows with the parameters, and the rest of fixed_s with the number of operators.
        """
        alone = self.cells[(self.cells["n_devices"] == 1) & ~self.cells["uses_mesh"]]
        names, rows = ["framework", "device", *self.computation_factors], []
        for levels, group in alone.groupby(names, dropna=False):
            graph = find_graph(*group[["model", "dataset"]].iloc[0])
            computation = fit_computation(group)
            if graph and computation.fixed_s and not computation.update_s:
                by_name = dict(zip(names, levels, strict=True))
                key = [level for name, level in by_name.items() if name not in MODEL_AND_DATASET]
                rows.append((str(key), levels, computation.fixed_s, len(graph.operators), graph.parameters))
        columns = ["key_without_model", "levels", "fixed_s", "operators", "parameters"]
        shares: dict[tuple[Any, ...], float] = {}
        for _, group in pd.DataFrame(rows, columns=columns).groupby("key_without_model"):
            sizes = group[["operators", "parameters"]].to_numpy(float)
            fixed_s = group["fixed_s"].to_numpy(float)
            if len(np.unique(sizes, axis=0)) > 1:
                _, parameter_s = nnls(sizes / fixed_s[:, None], np.ones(len(group)))[0]
                model_shares = np.minimum(parameter_s * sizes[:, 1] / fixed_s, 1.0).tolist()
                shares |= dict(zip(group["levels"], model_shares, strict=True))
        return shares

    def split_series(self, cells: pd.DataFrame) -> Iterator[SeriesPart]:
        """Yield the cells of each series to predict, with the measured cells that inform them.

        Skips meshes with a message of unknown time, and series without measurements.
        """
        names = ["framework", "baseline", "device", *self.computation_factors]
        for positions in cells.groupby(names, dropna=False, sort=False).indices.values():
            levels = cells.iloc[positions[0]].to_dict()
            key = tuple(levels[name] for name in ["framework", "device", *self.computation_factors])
            baseline_key = (levels["baseline"], *key[1:])
            share = self.update_shares.get(key, self.update_shares.get(baseline_key, 0.0))
            measured = law_rows(self.informing_cells(levels), self.benchmark, share)
            new = law_rows(cells.iloc[positions], self.benchmark, share)
            measured, is_unknown = measured[~is_unknown_mesh(measured)], is_unknown_mesh(new)
            if len(measured) and not is_unknown.all():
                yield SeriesPart(positions[~is_unknown], measured, new[~is_unknown])

    def law_of_curve(self, cells: pd.DataFrame) -> tuple[OptimizerStepLaw, pd.DataFrame]:
        """Return the law of one curve, and the `law_rows` of its cells.

        Args:
            cells: Cells of one series, all with the same number of devices per node.
        """
        (part,) = self.split_series(cells)
        ((_, law, rows),) = split_by_devices_per_node(part.measured, part.new)
        return law, rows

    def predict(self, cells: pd.DataFrame) -> Prediction:
        """Predict epoch times.

        Args:
            cells: Cells in the columns of `inputs.measured_cells`; epoch_time_s, n and sd are not used.
        """
        parts: list[tuple[np.ndarray, OptimizerStepPrediction]] = []
        notes: list[Note] = []
        misfits: dict[str, float] = {}
        for positions, measured, new in self.split_series(cells):
            steps = predict_optimizer_steps(measured, new)
            parts.append((positions, steps))
            notes += _unseen_batch_notes(cells.iloc[positions], steps)
            framework = str(cells["framework"].iloc[positions[0]])
            misfits[framework] = max(misfits.get(framework, 0.0), steps.misfit)
        steps = join_steps(len(cells), parts)
        n_allreduces = cells["n_allreduces"].to_numpy(float)
        seconds, low, high = (n_allreduces * step_s for step_s in (steps.seconds, steps.low, steps.high))
        return Prediction(seconds, "", (*notes, *_misfit_note(misfits)), low, high)


def fit_computation(alone: pd.DataFrame) -> Computation:
    """Fit the computation of cells on one device by non-negative least squares of relative errors."""
    batches, n_allreduces, local_batch = (
        alone[name].to_numpy() for name in ("batches_per_epoch", "n_allreduces", "local_batch")
    )
    counts = np.column_stack([batches, batches * local_batch, n_allreduces])
    columns = counts / alone["epoch_time_s"].to_numpy()[:, None]
    # Several batch sizes separate fixed_s from sample_s, and several accumulations update_s from both.
    estimable = [len(set(local_batch)) > 1, True, len(set(np.round(n_allreduces / batches, 6))) > 1]
    coefficients = np.zeros(3)
    coefficients[estimable] = nnls(columns[:, estimable], np.ones(len(alone)))[0]
    return Computation(*coefficients.tolist())


def shortest_epochs(runs: pd.DataFrame, network: pd.DataFrame) -> dict[str, float]:
    """Return a lower bound of the epoch time of each measured cell, in seconds by cell name.

    Computation is measured on one device. Messages take the time of the collective benchmark. Frameworks that
    send during the backward pass overlap as much as fits into it. No rank waits for another.

    Args:
        runs: runs.csv of the study.
        network: network.csv of the study.
    """
    if network.empty:
        return {}
    cells = cells_with_costs(runs, network)
    batch_s = cells["fixed_s"] + cells["sample_s"] * cells["local_batch"]
    overlaps = cells["framework"].map(lambda name: message_rule(name).messages != "ends").astype(bool)
    exposed_s = np.maximum(
        cells["benchmarked_messages_s"] - BACKWARD_SHARE * batch_s.where(overlaps, 0.0), 0.0
    )
    seconds = cells["batches_per_epoch"] * batch_s + cells["n_allreduces"] * (cells["update_s"] + exposed_s)
    return seconds.set_axis(cells["cell"]).dropna().to_dict()


def cells_with_costs(runs: pd.DataFrame, network: pd.DataFrame) -> pd.DataFrame:
    """Return `inputs.measured_cells` with the computation of one device and the time of messages.

    Added columns: the fields of Computation, and `benchmarked_messages_s` of an optimizer step, 0 on one
    device. NaN: unknown.

    Args:
        runs: runs.csv of the study.
        network: network.csv of the study.
    """
    cells = measured_cells(runs)
    predictor = StudyPredictor(cells, CollectiveBenchmark(benchmark_points(network)))
    rows = [predictor.fit_device_computation(row) for row in cells.to_dict("records")]
    cells[list(Computation._fields)] = np.array(rows).reshape(-1, len(Computation._fields))
    benchmarked_messages_s = law_rows(cells, predictor.benchmark)["benchmarked_messages_s"]
    return cells.assign(benchmarked_messages_s=benchmarked_messages_s.where(cells["n_devices"] > 1, 0.0))


def _unseen_batch_notes(cells: pd.DataFrame, steps: OptimizerStepPrediction) -> list[Note]:
    """Return a note on batch sizes without a prediction; [] if there are none."""
    notes = []
    framework = str(cells["framework"].iloc[0])
    if steps.unseen_batch.any():
        batches = sorted(set(cells["local_batch"][steps.unseen_batch]))
        text = (
            f"Not predicted with {framework}: batch sizes that were not measured "
            f"({', '.join(f'{batch:g}' for batch in batches)} samples per device). That would need "
            f"{MIN_BATCH_SIZES} measured batch sizes, because computation is a line over the batch size."
        )
        notes.append(Note("unseen-batch", text, framework=framework, batches=batches))
    return notes


def _misfit_note(misfits: Mapping[str, float]) -> list[Note]:
    """Return a note on frameworks for which the law misses its own measured cells; [] if it misses none."""
    large = {name: misfit for name, misfit in misfits.items() if misfit > MISFIT_WARNING}
    if not large:
        return []
    listed = join_words([f"{100 * misfit:.1f} % ({name})" for name, misfit in large.items()])
    text = (
        f"The law misses the measured cells by {listed}, root mean square: its predictions are less certain."
    )
    return [Note("misfit", text, misfits=large)]
