"""Predicted times, speed-ups and node hours of a case at many numbers of nodes, with 90 % bands."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.level_words import treatment_text
from analysis.records import levels_in_order, treatments
from declared.factors import factor_names, is_custom
from prediction.study_predictor import StudyPredictor

FACTORS = ["framework", "device", "model", "dataset", "treatment", "batch_size"]
CURVE = [*FACTORS, "rate"]
EFFICIENCIES = (0.8, 0.5)  # The table has the numbers of nodes that keep these.
# Each has a column for each of SUFFIXES: the predicted value, and the ends of its band.
BAND_COLUMNS = ["epoch_time_s", "speedup", "efficiency", "throughput_samples_s", "node_hours", "cost"]
SUFFIXES = ("", "_low", "_high")
SECONDS_PER_HOUR = 3600.0


def node_counts(max_nodes: int) -> np.ndarray:
    """Return numbers of nodes from 1 to `max_nodes`: all up to 16, then eight in each doubling.

    The numbers below a maximum do not depend on it.
    """
    counts = np.r_[
        1:17, (16 * 2 ** (np.arange(1, 8 * np.log2(max(max_nodes, 16) / 16) + 1) / 8)).round(), max_nodes
    ]
    return np.unique(counts[counts <= max_nodes]).astype(int)


def hypothetical_cells(
    cases: pd.DataFrame, rates: Sequence[float] | None, counts: np.ndarray, *, has_sample_count: bool = True
) -> pd.DataFrame:
    """Return cells like `inputs.measured_cells` for each case on all numbers of nodes at all rates.

    Nodes have as many devices as in the case. If the size of the data set is known, there are at most as many
    devices as batches in it. With model parallelism, a device keeps its share of a batch.

    Args:
        cases: One cell for each case, with `samples`.
        rates: Link rates in bytes/s; None: each case has its own.
        counts: Numbers of nodes.
        has_sample_count: Whether `samples` is the size of the data set; measurements made elsewhere can have
            any number.
    """
    per_node = (cases["n_devices"] / cases["nodes"]).round().clip(lower=1)
    share = cases["samples"] / (cases["batches_per_epoch"] * cases["n_devices"] * cases["local_batch"])
    cells = cases.assign(per_node=per_node, share=share.where(cases["uses_mesh"], 1.0)).drop(columns="nodes")
    cells = cells.merge(pd.DataFrame({"nodes": counts}), how="cross")
    if rates is not None:
        cells = cells.drop(columns="rate").merge(pd.DataFrame({"rate": list(rates)}), how="cross")
    nodes = cells["nodes"].astype(float)
    n_devices = nodes * cells["per_node"]
    local_batch = cells["batch_size"] / n_devices.where(cells["batch_scope"] == "global", 1.0)
    batches_per_epoch = cells["samples"] / (n_devices * local_batch * cells["share"])
    hypothetical = cells.assign(
        ranks=n_devices, n_devices=n_devices, nodes=nodes, local_batch=local_batch,
        batches_per_epoch=batches_per_epoch, n_allreduces=batches_per_epoch / cells["sync_every"],
    )  # fmt: skip
    # Measurements made elsewhere can have less than one sample per device, where ranks share a sample.
    min_batch = np.minimum(cells["local_batch"], 1.0)
    is_possible = ((batches_per_epoch >= 1) | (not has_sample_count)) & (local_batch >= min_batch)
    return hypothetical[is_possible].reset_index(drop=True)


def study_cases(cells: pd.DataFrame) -> pd.DataFrame:
    """Return one cell for each combination of FACTORS, on several nodes if there are such cells.

    The column `treatment` has the levels of parallelism and of the user's factors as text. In all other
    factors of treatments (`analysis.records.treatments`), cases have the base level.
    """
    is_distributed = cells["nodes"] > 1
    cases = cells[is_distributed] if is_distributed.any() else cells
    named = [name for name in treatments(cells) if name == "parallelism" or is_custom(name)]
    for name in treatments(cells):
        if name not in named:
            order = {level: position for position, level in enumerate(levels_in_order(cells, name))}
            position = cases[name].map(order)
            base = position.groupby([cases[key] for key in named]).transform("min") if named else 0
            cases = cases[position == base]
    words = [treatment_text(levels) for levels in cases[named].to_dict("records")]
    # A device's share of a batch can change with the nodes, so the largest cell stands for more nodes.
    largest_first = (-cases["nodes"] * cases["uses_mesh"]).sort_values(kind="stable").index
    cases = cases.assign(treatment=words).loc[largest_first].drop_duplicates(FACTORS)
    return cases.sort_values(FACTORS).reset_index(drop=True)


def predict_curves(predictor: StudyPredictor, cells: pd.DataFrame) -> pd.DataFrame:
    """Predict `hypothetical_cells`: BAND_COLUMNS except cost, relative to the predicted time on one node.

    Columns with the suffixes `_low` and `_high` have the ends of 90 % bands, those of the law. No end of a
    time is shorter than ideal scaling (on n nodes, one n-th of the predicted time on one node), unless the
    prediction itself is shorter; that end then equals the prediction. Bands of speed-ups ignore the
    uncertainty of the time on one node. Curves without a prediction at some number of nodes are excluded.
    """
    times = predictor.predict(cells)
    curves, is_one_node = cells.assign(epoch_time_s=times.seconds), cells["nodes"] == 1
    groups = [cells[name] for name in CURVE]
    base_s = curves["epoch_time_s"].where(is_one_node).groupby(groups, dropna=False).transform("max")
    best_speedup = np.maximum(base_s / times.seconds, cells["nodes"])
    # The shortest time is the highest speed-up.
    for time_end, speedup_end, seconds in (
        ("", "", times.seconds), ("_low", "_high", times.low), ("_high", "_low", times.high)
    ):  # fmt: skip
        speedup = np.minimum(base_s / seconds, best_speedup)
        limited_s = (base_s / speedup).where(~is_one_node, seconds)
        curves[f"epoch_time_s{time_end}"] = limited_s
        curves[f"node_hours{time_end}"] = cells["nodes"] * limited_s / SECONDS_PER_HOUR
        curves[f"throughput_samples_s{speedup_end}"] = cells["samples"] / limited_s
        curves[f"speedup{speedup_end}"] = speedup.where(~is_one_node, 1.0)
        curves[f"efficiency{speedup_end}"] = curves[f"speedup{speedup_end}"] / cells["nodes"]
    is_complete = (base_s / times.seconds).notna().groupby(groups, dropna=False).transform("all")
    return curves[is_complete.astype(bool)].reset_index(drop=True)


def with_measured_times(curves: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Return curves with a column `measured_epoch_time_s`: the mean of the cell at a point, NaN without one.

    Args:
        curves: Curves of `predict_curves`.
        cells: Measured cells (`inputs.measured_cells`).
    """
    # The level of `bandwidth` is that of the case; `rate` has that of the point, which matters between nodes.
    levels = [name for name in factor_names(cells) if name in curves and name not in ("nodes", "bandwidth")]

    def points(table: pd.DataFrame) -> "pd.Series[str]":
        link = table["rate"].where(table["nodes"] > 1)
        columns = [*(table[name].astype(float) for name in ("nodes", "n_devices")), link.astype(float)]
        return pd.Series(
            list(zip(*columns, *(table[name] for name in levels), strict=True)), table.index
        ).map(str)

    measured = cells["epoch_time_s"].groupby(points(cells)).mean()
    return curves.assign(measured_epoch_time_s=points(curves).map(measured))


def max_nodes_above(nodes: np.ndarray, efficiency: np.ndarray, level: float) -> float:
    """Return the number of nodes up to which the efficiency stays at `level` or more; inf if it never drops.

    Between two numbers of nodes, efficiency is a line over the logarithm of nodes.
    """
    below = np.flatnonzero(efficiency < level)
    if not len(below):
        return np.inf
    right = int(below[0])
    if right == 0:
        return 0.0
    share = (efficiency[right - 1] - level) / (efficiency[right - 1] - efficiency[right])
    between = np.log(nodes[right - 1]) + share * (np.log(nodes[right]) - np.log(nodes[right - 1]))
    return float(min(np.floor(np.exp(between) + 1e-9), nodes[right] - 1))


def summarize_curve(curve: pd.DataFrame) -> dict[str, float]:
    """Return the number of nodes up to each of EFFICIENCIES, and the largest speed-up, of one curve."""
    nodes = curve["nodes"].to_numpy()
    best = int(np.argmax(curve["speedup"].to_numpy()))
    row = {}
    for end in SUFFIXES:
        efficiency = curve[f"efficiency{end}"].to_numpy()
        for level in EFFICIENCIES:
            row[f"nodes_at_{100 * level:.0f}{end}"] = max_nodes_above(nodes, efficiency, level)
        row[f"greatest_speedup{end}"] = curve[f"speedup{end}"].iloc[best]
    return row | {"at_nodes": nodes[best], "most_nodes": nodes[-1]}
