"""Epoch time, speed-up and efficiency of unmeasured cells on many nodes and other links, with 90 % bands."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.measured import levels_in_order, treatments
from prediction.study import StudyLaw

FACTORS = ["framework", "device", "model", "dataset", "batch_size"]
CURVE = [*FACTORS, "rate"]
LEVELS = (0.8, 0.5)  # efficiencies
BANDS = ["speedup", "efficiency"]
ENDS = ("", "_low", "_high")


def node_counts(max_nodes: int) -> np.ndarray:
    """Return numbers of nodes from 1 to `max_nodes`: all up to 16, then eight in each doubling.

    The numbers below a maximum do not depend on it.
    """
    counts = np.r_[
        1:17, (16 * 2 ** (np.arange(1, 8 * np.log2(max(max_nodes, 16) / 16) + 1) / 8)).round(), max_nodes
    ]
    return np.unique(counts[counts <= max_nodes]).astype(int)


def hypothetical_cells(
    cases: pd.DataFrame, rates: Sequence[float], max_nodes: int, *, is_epoch_known: bool = True
) -> pd.DataFrame:
    """Return cells like `cells.measured_cells` for each case on all `node_counts` at all rates.

    A node has as many replicas as in its case, and there are at most as many replicas as batches in the data
    set, where that is known.

    Args:
        cases: One cell on several nodes for each case, with `samples`.
        rates: Link rates in bytes/s.
        max_nodes: The largest number of nodes.
        is_epoch_known: False where `samples` is any number, as of measurements made elsewhere.
    """
    per_node = (cases["replicas"] / cases["nodes"]).round().clip(lower=1)
    cells = cases.assign(per_node=per_node).drop(columns=["nodes", "rate"])
    cells = cells.merge(pd.DataFrame({"nodes": node_counts(max_nodes)}), how="cross")
    cells = cells.merge(pd.DataFrame({"rate": list(rates)}), how="cross")
    nodes = cells["nodes"].astype(float)
    replicas = nodes * cells["per_node"]
    local = cells["batch_size"] / replicas.where(cells["batch_scope"] == "global", 1.0)
    steps = cells["samples"] / (replicas * local)
    counted = {"ranks": replicas, "replicas": replicas, "nodes": nodes, "local_batch": local, "steps": steps}
    hypothetical = cells.assign(**counted, n_allreduces=steps / cells["sync_every"])
    smallest = np.minimum(cells["local_batch"], 1.0)  # measured elsewhere also a fraction of a sample
    return hypothetical[((steps >= 1) | (not is_epoch_known)) & (local >= smallest)].reset_index(drop=True)


def study_cases(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the combinations of FACTORS with cells on several nodes, at the base level of each treatment."""
    distributed = cells[cells["nodes"] > 1]
    for name in treatments(cells):
        distributed = distributed[distributed[name] == levels_in_order(cells, name)[0]]
    return distributed.drop_duplicates(FACTORS).sort_values(FACTORS).reset_index(drop=True)


def predict_curves(law: StudyLaw, cells: pd.DataFrame) -> pd.DataFrame:
    """Return `hypothetical_cells` with epoch_time_s, and speedup and efficiency relative to one node.

    Columns that end in `_low` and `_high` have the ends of 90 % bands, up to perfect scaling. Curves
    that lack a prediction at some number of nodes are left out.
    """
    times = law.predict(cells)
    curves, one_node = cells.assign(epoch_time_s=times.seconds), cells["nodes"] == 1
    base = curves["epoch_time_s"].where(one_node).groupby([cells[name] for name in CURVE]).transform("max")
    # A longer time is a lower speed-up.
    for end, seconds in zip(ENDS, (times.seconds, times.high, times.low), strict=True):
        speedup = np.minimum(base / seconds, np.maximum(base / times.seconds, cells["nodes"]))
        curves[f"speedup{end}"] = speedup.where(~one_node, 1.0)
        curves[f"efficiency{end}"] = curves[f"speedup{end}"] / cells["nodes"]
    is_complete = (base / times.seconds).notna().groupby([cells[name] for name in CURVE]).transform("all")
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


def summarize_curves(curves: pd.DataFrame) -> pd.DataFrame:
    """Return, for each case and rate, the last number of nodes above each level and the largest speed-up."""
    rows = []
    names = [f"nodes_at_{100 * level:.0f}" for level in LEVELS]
    for case, curve in curves.groupby(CURVE, sort=False):
        nodes = curve["nodes"].to_numpy()
        best = int(np.argmax(curve["speedup"].to_numpy()))
        row = dict(zip(CURVE, case, strict=True))
        for end in ENDS:
            efficiency = curve[f"efficiency{end}"].to_numpy()
            for name, level in zip(names, LEVELS, strict=True):
                row[f"{name}{end}"] = max_nodes_above(nodes, efficiency, level)
            row[f"greatest_speedup{end}"] = curve[f"speedup{end}"].iloc[best]
        rows.append({**row, "at_nodes": nodes[best], "most_nodes": nodes[-1]})
    banded = [f"{name}{end}" for name in [*names, "greatest_speedup"] for end in ENDS]
    return pd.DataFrame(rows, columns=[*CURVE, *banded, "at_nodes", "most_nodes"])
