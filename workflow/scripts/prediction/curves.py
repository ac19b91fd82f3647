"""Predicted times, speed-ups and node hours of a case at many numbers of nodes, with 90 % bands."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.measured import levels_in_order, treatment_text, treatments
from declared.factors import is_custom
from prediction.study import StudyLaw

FACTORS = ["framework", "device", "model", "dataset", "treatment", "batch_size"]
CURVE = [*FACTORS, "rate"]
LEVELS = (0.8, 0.5)  # efficiencies
BANDS = ["epoch_time_s", "speedup", "efficiency", "throughput_samples_s", "node_hours", "cost"]
ENDS = ("", "_low", "_high")
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
    cases: pd.DataFrame, rates: Sequence[float], counts: np.ndarray, *, is_epoch_known: bool = True
) -> pd.DataFrame:
    """Return cells like `cells.measured_cells` for each case on all numbers of nodes at all rates.

    A node has as many replicas as in its case, and there are at most as many replicas as batches in the data
    set, where that is known. With model parallelism, a device takes its case's share of a batch.

    Args:
        cases: One cell for each case, with `samples`.
        rates: Link rates in bytes/s; none: that of each case.
        counts: Numbers of nodes.
        is_epoch_known: False where `samples` is any number, as of measurements made elsewhere.
    """
    per_node = (cases["replicas"] / cases["nodes"]).round().clip(lower=1)
    share = cases["samples"] / (cases["steps"] * cases["replicas"] * cases["local_batch"])
    cells = cases.assign(per_node=per_node, share=share.where(cases["is_mesh"], 1.0)).drop(columns="nodes")
    cells = cells.merge(pd.DataFrame({"nodes": counts}), how="cross")
    if len(rates):
        cells = cells.drop(columns="rate").merge(pd.DataFrame({"rate": list(rates)}), how="cross")
    nodes = cells["nodes"].astype(float)
    replicas = nodes * cells["per_node"]
    local = cells["batch_size"] / replicas.where(cells["batch_scope"] == "global", 1.0)
    steps = cells["samples"] / (replicas * local * cells["share"])
    counted = {"ranks": replicas, "replicas": replicas, "nodes": nodes, "local_batch": local, "steps": steps}
    hypothetical = cells.assign(**counted, n_allreduces=steps / cells["sync_every"])
    smallest = np.minimum(cells["local_batch"], 1.0)  # measured elsewhere also a fraction of a sample
    return hypothetical[((steps >= 1) | (not is_epoch_known)) & (local >= smallest)].reset_index(drop=True)


def study_cases(cells: pd.DataFrame) -> pd.DataFrame:
    """Return one cell for each combination of FACTORS, on several nodes where there are such cells.

    Of treatments, parallelism and factors of the user's own are told apart by the column `treatment`; of all
    others the base level is taken.
    """
    is_distributed = cells["nodes"] > 1
    cases = cells[is_distributed] if is_distributed.any() else cells
    named = [name for name in treatments(cells) if name == "parallelism" or is_custom(name)]
    for name in treatments(cells):
        if name not in named:
            position = cases[name].map({level: at for at, level in enumerate(levels_in_order(cells, name))})
            base = position.groupby([cases[own] for own in named]).transform("min") if named else 0
            cases = cases[position == base]
    words = [treatment_text(levels) for levels in cases[named].to_dict("records")]
    # The share of a batch that a device takes may change with the nodes: that on most nodes is the nearest.
    largest_first = (-cases["nodes"] * cases["is_mesh"]).sort_values(kind="stable").index
    cases = cases.assign(treatment=words).loc[largest_first].drop_duplicates(FACTORS)
    return cases.sort_values(FACTORS).reset_index(drop=True)


def predict_curves(law: StudyLaw, cells: pd.DataFrame) -> pd.DataFrame:
    """Return `hypothetical_cells` with BANDS but cost; speed-up and efficiency are relative to one node.

    Columns that end in `_low` and `_high` have the ends of 90 % bands, up to perfect scaling. Curves that
    lack a prediction at some number of nodes are left out.
    """
    times = law.predict(cells)
    curves, one_node = cells.assign(epoch_time_s=times.seconds), cells["nodes"] == 1
    groups = [cells[name] for name in CURVE]
    base = curves["epoch_time_s"].where(one_node).groupby(groups, dropna=False).transform("max")
    # A longer time is a lower speed-up.
    for end, opposite, own in zip(
        ENDS, ("", "_high", "_low"), (times.seconds, times.high, times.low), strict=True
    ):
        speedup = np.minimum(base / own, np.maximum(base / times.seconds, cells["nodes"]))
        seconds = (base / speedup).where(~one_node, own)
        curves[f"speedup{end}"] = speedup.where(~one_node, 1.0)
        curves[f"efficiency{end}"] = curves[f"speedup{end}"] / cells["nodes"]
        curves[f"throughput_samples_s{end}"] = cells["samples"] / seconds
        curves[f"epoch_time_s{opposite}"] = seconds
        curves[f"node_hours{opposite}"] = cells["nodes"] * seconds / SECONDS_PER_HOUR
    is_complete = (base / times.seconds).notna().groupby(groups, dropna=False).transform("all")
    return curves[is_complete.astype(bool)].reset_index(drop=True)


def max_nodes_above(nodes: np.ndarray, efficiency: np.ndarray, level: float) -> float:
    """Return the largest number of nodes with an efficiency of at least `level`; inf if it never drops."""
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
    """Return the last number of nodes above each of LEVELS, and the largest speed-up, of one curve."""
    nodes = curve["nodes"].to_numpy()
    best = int(np.argmax(curve["speedup"].to_numpy()))
    row = {}
    for end in ENDS:
        efficiency = curve[f"efficiency{end}"].to_numpy()
        for level in LEVELS:
            row[f"nodes_at_{100 * level:.0f}{end}"] = max_nodes_above(nodes, efficiency, level)
        row[f"greatest_speedup{end}"] = curve[f"speedup{end}"].iloc[best]
    return row | {"at_nodes": nodes[best], "most_nodes": nodes[-1]}
