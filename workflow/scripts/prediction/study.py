"""Predict epoch times of a study: a law of prediction for each framework, device and treatment."""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from analysis.measured import factors
from common.notes import Note
from declared.mesh import mesh_of
from declared.models import find_graph
from models.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from prediction import law
from prediction.cells import NOT_COMPUTATION, STRATEGY_FACTORS, measured_cells
from prediction.law import Array, Law, Steps
from prediction.message_times import Network, benchmark_points, ideal_seconds, message_limits, message_rule
from prediction.strategies import MeshStep, Place, Timer, describe_step

OF_MODEL = ("model", "dataset")
SMALL_BYTES = 8.0  # size of additional messages, which have no gradients


@dataclass(frozen=True)
class Prediction:
    """Predicted epoch times of cells, by the law or another method.

    Attributes:
        seconds: Epoch times, [cells]; NaN where the method cannot predict.
        problem: Why some are NaN.
        notes: What is to be said of the method, such as fits that miss their own cells.
        low: Lower ends of 90 % bands, [cells], of a method that has them.
        high: Upper ends.
    """

    seconds: Array
    problem: str = ""
    notes: tuple[Note, ...] = ()
    low: Array | float = math.nan
    high: Array | float = math.nan


@dataclass(frozen=True)
class StudyLaw:
    """The law of a study's cells and of its collective benchmark.

    Attributes:
        cells: Measured cells (`cells.measured_cells`).
        network: The collective benchmark; no points where there is none.
    """

    cells: pd.DataFrame
    network: Network = field(default_factory=Network)

    @functools.cached_property
    def keys(self) -> list[str]:
        """Factors that computation depends on, besides framework and device, and that vary."""
        fixed = (*NOT_COMPUTATION, *STRATEGY_FACTORS, "device")
        costs = [name for name in factors(self.cells) if name not in fixed]
        return [name for name in [*costs, "computes"] if self.cells[name].nunique(dropna=False) > 1]

    def series(self, levels: Mapping[str, Any]) -> pd.DataFrame:
        """Return the measured cells that inform a cell with these levels.

        They have its framework, device and `keys`. Where none of them is on one device, those of the baseline
        framework on one device belong to them.
        """
        is_alike = pd.Series(True, index=self.cells.index)
        for name in ["device", *self.keys]:
            is_alike &= self.cells[name].isin([levels[name]]) | (
                self.cells[name].isna() & pd.isna(levels[name])
            )
        measured = self.cells[is_alike & (self.cells["framework"] == levels["framework"])]
        if (measured["replicas"] == 1).any():
            return measured
        is_baseline = (self.cells["framework"] == levels["baseline"]) & (self.cells["replicas"] == 1)
        return pd.concat([self.cells[is_alike & is_baseline], measured], ignore_index=True)

    def costs(self, levels: Mapping[str, Any]) -> Array:
        """Return alpha, beta and u of one device (`fit_computation`), NaN if it was not measured alone.

        It is that of the framework, or else of its baseline.
        """
        measured = self.series(levels)
        alone = measured[(measured["replicas"] == 1) & ~measured["is_mesh"]]
        return fit_computation(alone) if len(alone) else np.full(3, np.nan)

    @functools.cached_property
    def update_shares(self) -> dict[tuple[Any, ...], float]:
        """Share of the update in alpha, the constant part of a batch, by framework, device and `keys`.

        Without accumulation on one device, alpha contains the update. It is estimated across models: the
        update grows with the parameters, the other part of alpha with the number of operators.
        """
        alone = self.cells[(self.cells["replicas"] == 1) & ~self.cells["is_mesh"]]
        names, rows = ["framework", "device", *self.keys], []
        for levels, group in alone.groupby(names, dropna=False):
            graph = find_graph(*group[["model", "dataset"]].iloc[0])
            alpha, _, update = fit_computation(group)
            if graph and alpha and not update:
                treatment = [level for name, level in zip(names, levels, strict=True) if name not in OF_MODEL]
                rows.append((str(treatment), levels, alpha, len(graph.operators), graph.parameters))
        models = pd.DataFrame(rows, columns=["treatment", "levels", "alpha", "operators", "parameters"])
        shares: dict[tuple[Any, ...], float] = {}
        for _, group in models.groupby("treatment"):
            sizes, alpha = group[["operators", "parameters"]].to_numpy(float), group["alpha"].to_numpy(float)
            if len(np.unique(sizes, axis=0)) > 1:
                _, parameter_s = nnls(sizes / alpha[:, None], np.ones(len(group)))[0]
                of_models = np.minimum(parameter_s * sizes[:, 1] / alpha, 1.0).tolist()
                shares |= dict(zip(group["levels"], of_models, strict=True))
        return shares

    def split_series(self, cells: pd.DataFrame) -> Iterator[tuple[np.ndarray, pd.DataFrame, pd.DataFrame]]:
        """Yield rows of `cells` of a series, the `law_columns` of its measured cells, and those of the rows.

        Cells with a message of unknown time are left out, and series without measured cells.
        """
        names = ["framework", "baseline", "device", *self.keys]
        for rows in cells.groupby(names, dropna=False, sort=False).indices.values():
            levels = cells.iloc[rows[0]].to_dict()
            key = tuple(levels[name] for name in ["framework", "device", *self.keys])
            baseline_key = (levels["baseline"], *key[1:])
            share = self.update_shares.get(key, self.update_shares.get(baseline_key, 0.0))
            measured, new = (
                law_columns(part, self.network, share) for part in (self.series(levels), cells.iloc[rows])
            )
            unknown = _is_unknown_mesh(new)
            measured = measured[~_is_unknown_mesh(measured)]
            if len(measured) and not unknown.all():
                yield rows[~unknown], measured, new[~unknown]

    def joint_law(self, cells: pd.DataFrame) -> tuple[Law, pd.DataFrame]:
        """Return the law of cells of one series whose nodes have as many devices, and its columns of them."""
        _, measured, new = next(self.split_series(cells))
        _, fitted, prepared = next(law.split_places(measured, new))
        return fitted, prepared

    def predict(self, cells: pd.DataFrame) -> Prediction:
        """Return epoch times of cells like `cells.measured_cells`, without measurements."""
        parts: list[tuple[np.ndarray, Steps]] = []
        notes: list[Note] = []
        for rows, measured, new in self.split_series(cells):
            steps = law.predict_steps(measured, new)
            parts.append((rows, steps))
            notes += _notes(cells.iloc[rows], steps)
        steps = law.join_steps(len(cells), parts)
        count = cells["n_allreduces"].to_numpy(float)
        seconds, low, high = (count * step_s for step_s in (steps.seconds, steps.low, steps.high))
        return Prediction(seconds, "", tuple(notes), low, high)


def fit_computation(alone: pd.DataFrame) -> Array:
    """Return alpha, beta and u of cells on one device by non-negative least squares of relative errors, [3].

    A batch of b samples takes alpha + beta b, an update u. Inseparable coefficients are 0.
    """
    steps, n_allreduces, batch = (alone[name].to_numpy() for name in ("steps", "n_allreduces", "local_batch"))
    columns = (
        np.column_stack([steps, steps * batch, n_allreduces]) / alone["epoch_time_s"].to_numpy()[:, None]
    )
    estimable = [len(set(batch)) > 1, True, len(set(np.round(n_allreduces / steps, 6))) > 1]
    coefficients = np.zeros(3)
    coefficients[estimable] = nnls(columns[:, estimable], np.ones(len(alone)))[0]
    return coefficients


def shortest_epochs(runs: pd.DataFrame, network: pd.DataFrame) -> dict[str, float]:
    """Return lower bounds of the epoch times of measured cells, in seconds by cell name.

    Computation is that of one device, divided among all replicas. Messages take what the collective benchmark
    says; frameworks that send during the backward pass overlap all of it. No rank waits for another.

    Args:
        runs: runs.csv of the study.
        network: network.csv of the study.
    """
    if network.empty:
        return {}
    cells = cells_with_costs(runs, network)
    batch_s = cells["batch_s"] + cells["sample_s"] * cells["local_batch"]
    overlaps = cells["framework"].map(lambda name: message_rule(name).messages != "ends").astype(bool)
    exposed_s = np.maximum(cells["message_s"] - law.BACKWARD_SHARE * batch_s.where(overlaps, 0.0), 0.0)
    seconds = cells["steps"] * batch_s + cells["n_allreduces"] * (cells["update_s"] + exposed_s)
    return seconds.set_axis(cells["cell"]).dropna().to_dict()


def cells_with_costs(runs: pd.DataFrame, network: pd.DataFrame) -> pd.DataFrame:
    """Return `cells.measured_cells` with the costs of one device and of messages; NaN: unknown.

    Columns: `batch_s`, `sample_s`, `update_s` (`StudyLaw.costs`), and `message_s` of a step, 0 for one rank.

    Args:
        runs: runs.csv of the study.
        network: network.csv of the study.
    """
    cells = measured_cells(runs)
    study = StudyLaw(cells, Network(benchmark_points(network)))
    costs = np.array([study.costs(row) for row in cells.to_dict("records")]).reshape(-1, 3)
    cells[["batch_s", "sample_s", "update_s"]] = costs
    message_s = law_columns(cells, study.network)["message_s"]
    return cells.assign(message_s=message_s.where(cells["replicas"] > 1, 0.0))


def _notes(cells: pd.DataFrame, steps: Steps) -> list[Note]:
    """Return what is to be said of the predictions of one series."""
    notes = []
    framework = str(cells["framework"].iloc[0])
    if steps.unseen_batch.any():
        batches = sorted(set(cells["local_batch"][steps.unseen_batch]))
        text = (
            f"Not predicted with {framework}: batches that were not measured "
            f"({', '.join(f'{batch:g}' for batch in batches)} samples a device), because fewer than "
            f"{law.MIN_BATCHES} others were. A line of computation over batches needs two."
        )
        notes.append(Note("unseen-batch", text, framework=framework, batches=batches))
    if steps.misfit > law.MISFIT_WARNING:
        text = (
            f"The law misses the measured cells of {framework} themselves by {100 * steps.misfit:.1f} % "
            "(root mean square), so that predictions are less certain."
        )
        notes.append(Note("misfit", text, framework=framework, misfit=steps.misfit))
    return notes


def law_columns(cells: pd.DataFrame, network: Network, update_share: float = 0.0) -> pd.DataFrame:
    """Return cells in the law's columns (prediction.law); `update_share`: see `StudyLaw.update_shares`."""
    replicas, accumulation = cells["replicas"].astype(float), cells["steps"] / cells["n_allreduces"]
    columns = pd.DataFrame(
        {
            "framework": cells["framework"],
            "gradient_bytes": cells["gradient_bytes"],
            "nodes": cells["nodes"].astype(float),
            "devices_per_node": replicas / cells["nodes"],
            "ranks": replicas,
            "local_batch": cells["local_batch"],
            "accumulation": accumulation,
            "tensor": 1,
            "pipeline": 1,
            "sharded": cells["framework"].map(lambda name: message_rule(name).messages == "units"),
            "rate_out": cells["rate"],
            "rate_in": cells["inside_rate"],
            "message_s": _message_s(cells, network),
            "hierarchical_s": np.nan,
            "is_mesh": cells["is_mesh"],
        }
    )
    if "epoch_time_s" in cells:
        step_s, sd = cells["epoch_time_s"] / cells["n_allreduces"], cells["sd"] / cells["n_allreduces"]
        columns = columns.assign(step_s=step_s, n=cells["n"], sd=sd)
    if not cells["is_mesh"].any():
        return columns
    rows = zip(cells.to_dict("records"), columns.to_dict("records"), strict=True)
    divided = [
        plain | (_mesh_columns(row, network, update_share) if row["is_mesh"] else {}) for row, plain in rows
    ]
    return pd.DataFrame(divided, index=cells.index)


def _is_unknown_mesh(columns: pd.DataFrame) -> np.ndarray:
    """Return which cells of `law_columns` have model parallelism with a message of unknown time."""
    unknown = columns["message_s"].isna() & columns["hierarchical_s"].isna()
    return (columns["is_mesh"] & unknown).to_numpy(bool)


def _message_s(cells: pd.DataFrame, network: Network) -> Array:
    """Return seconds of the messages of an optimizer step by the benchmark, [cells]; 0 on one node."""
    seconds = np.where(cells["nodes"] > 1, np.nan, 0.0)
    for carrier, rows in cells.groupby(["framework", "device"]).indices.items():
        rows = rows[(cells["nodes"].to_numpy()[rows] > 1) & ~cells["is_mesh"].to_numpy(bool)[rows]]
        group = cells.iloc[rows]
        if group.empty:
            continue
        rule = message_rule(carrier[0])
        nodes, ranks, rate = (group[name].to_numpy(float) for name in ("nodes", "ranks", "rate"))
        place = nodes, ranks, rate
        sizes = group["gradient_bytes"].to_numpy(float)
        batches = (group["steps"] / group["n_allreduces"]).to_numpy(float)
        shards = [network.seconds(carrier, kind, place, sizes) for kind in (ALL_GATHER, REDUCE_SCATTER)]
        reduced = network.seconds(carrier, ALL_REDUCE, place, sizes)
        if rule.messages == "units" and not any(np.isnan(shard_s).any() for shard_s in shards):
            # Each batch gathers in its backward pass, the first also in its forward pass; one reduces.
            reduced = (batches + 1) * shards[0] + shards[1]
        extra = group["training_loop"].map(lambda loop, rule=rule: rule.extra.get(loop, 0)).to_numpy(float)
        if extra.any():
            small = np.full(len(group), SMALL_BYTES)
            reduced = reduced + batches * extra * network.seconds(carrier, ALL_REDUCE, place, small)
        seconds[rows] = reduced
    return seconds


def _mesh_columns(row: Mapping[str, Any], network: Network, update_share: float) -> dict[str, float]:
    """Return the columns of a cell with model parallelism that differ; NaN messages if one is not known.

    A model that is not registered is taken as divided evenly.
    """
    graph = find_graph(row["model"], row["dataset"])
    missing = {"message_s": math.nan, "hierarchical_s": math.nan}
    mesh, place = mesh_of(row["parallelism"], row["ranks"]), Place(row["nodes"], row["ranks"], row["rate"])
    if graph is None:
        n_microbatches = row["microbatches"] if mesh.pipeline > 1 else 1
        accumulation = row["steps"] / row["n_allreduces"] * n_microbatches
        return {
            "accumulation": accumulation,
            # By the global batch: ranks that share a sequence divide it, too, but are no axis of a mesh.
            "local_batch": row["samples"] / row["n_allreduces"] / (accumulation * row["ranks"]),
            "tensor": mesh.tensor, "pipeline": mesh.pipeline, "sharded": mesh.sharded > 1, "is_mesh": False,
        }  # fmt: skip
    if row["nodes"] < 2:
        return missing

    def describe(timer: Timer) -> MeshStep | None:
        limit = message_limits(message_rule(row["framework"]))[1]
        return describe_step(graph, mesh, round(row["local_batch"]), row, place, timer, limit)

    carrier = (row["framework"], row["device"])
    benchmarked = describe(functools.partial(network.message_s, carrier))
    nominal = describe(ideal_seconds) if not math.isnan(row["rate"]) else None
    step = benchmarked or nominal
    if step is None:
        return missing
    accumulation = row["steps"] / row["n_allreduces"]
    calls = (1 - update_share) * step.calls + update_share * step.updated / accumulation
    return {
        "message_s": benchmarked.message_s if benchmarked else math.nan,
        "hierarchical_s": nominal.message_s if nominal else math.nan,
        "work": step.work, "calls": calls, "updated": step.updated, "n_blocking": step.n_blocking,
    }  # fmt: skip
