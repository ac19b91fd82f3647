"""Epoch time, speed-up and efficiency of unmeasured cells on many nodes and other links, with intervals."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.measured import levels_in_order, treatments
from prediction import physics
from prediction.law import Law
from prediction.physics import PhysicalModel

FACTORS = ["framework", "device", "model", "dataset", "batch_size"]
LEVELS = (0.8, 0.5)  # efficiencies
BANDS = ["speedup", "efficiency"]


def node_counts(max_nodes: int) -> np.ndarray:
    """Return numbers of nodes from 1 to `max_nodes`: all up to 16, then eight in each doubling.

    The numbers below a maximum do not depend on it.
    """
    counts = np.r_[
        1:17, (16 * 2 ** (np.arange(1, 8 * np.log2(max(max_nodes, 16) / 16) + 1) / 8)).round(), max_nodes
    ]
    return np.unique(counts[counts <= max_nodes]).astype(int)


def hypothetical_cells(cases: pd.DataFrame, rates: Sequence[float], max_nodes: int) -> pd.DataFrame:
    """Return cells like `physics.measured_cells` for each case on all `node_counts` at all rates.

    A node has one replica, and there are at most as many nodes as batches in the data set.

    Args:
        cases: One cell on several nodes for each case, with `samples`.
        rates: Link rates in bytes/s.
        max_nodes: The largest number of nodes.
    """
    cells = cases.drop(columns=["nodes", "rate"]).merge(
        pd.DataFrame({"nodes": node_counts(max_nodes)}), how="cross"
    )
    cells = cells.merge(pd.DataFrame({"rate": list(rates)}), how="cross")
    nodes = cells["nodes"].astype(float)
    local = cells["batch_size"] / nodes.where(cells["batch_scope"] == "global", 1.0)
    steps = cells["samples"] / (nodes * local)
    counted = {"ranks": nodes, "replicas": nodes, "nodes": nodes, "local_batch": local, "steps": steps}
    hypothetical = cells.assign(**counted, n_allreduces=steps / cells["sync_every"])
    return hypothetical[(steps >= 1) & (local >= 1)].reset_index(drop=True)


def study_cases(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the combinations of FACTORS with cells on several nodes, at the base level of each treatment."""
    distributed = cells[cells["replicas"] > 1]
    for name in treatments(cells):
        distributed = distributed[distributed[name] == levels_in_order(cells, name)[0]]
    return distributed.drop_duplicates(FACTORS).sort_values(FACTORS).reset_index(drop=True)


def predict_curves(model: PhysicalModel, cells: pd.DataFrame) -> pd.DataFrame:
    """Return `hypothetical_cells` with epoch_time_s, and speedup and efficiency relative to one node."""
    seconds = pd.Series(model.predict(cells), index=cells.index)
    base = (
        seconds.where(cells["nodes"] == 1)
        .groupby([cells[name] for name in [*FACTORS, "rate"]])
        .transform("max")
    )
    return cells.assign(
        epoch_time_s=seconds, speedup=base / seconds, efficiency=base / seconds / cells["nodes"]
    )


def drop_incomplete_curves(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the curves that have a prediction at every number of nodes."""
    is_complete = (
        curves["speedup"].notna().groupby([curves[name] for name in [*FACTORS, "rate"]]).transform("all")
    )
    return curves[is_complete.astype(bool)].reset_index(drop=True)


def generalize(model: PhysicalModel) -> PhysicalModel:
    """Return the model with the same law at all places, measured or not, so that curves are smooth.

    Without a measured link rate, no message is faster than the link at its full rate.
    """

    def smooth(law: Law) -> Law:
        return replace(law, link=law.link or 1.0, places=(), factors=law.factors[-1:])

    laws = {carrier: {name: smooth(law) for name, law in own.items()} for carrier, own in model.laws.items()}
    return replace(model, laws=laws)


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
    of_curve = [*FACTORS, "rate"]
    for names, curve in curves[[*of_curve, "nodes", *BANDS]].groupby(of_curve, sort=False):
        nodes, efficiency = curve["nodes"].to_numpy(), curve["efficiency"].to_numpy()
        best = int(np.argmax(curve["speedup"].to_numpy()))
        nodes_at_level = {
            f"nodes_at_{100 * level:.0f}": max_nodes_above(nodes, efficiency, level) for level in LEVELS
        }
        greatest = {
            "greatest_speedup": curve["speedup"].iloc[best],
            "at_nodes": nodes[best],
            "most_nodes": nodes[-1],
        }
        rows.append({**dict(zip(of_curve, names, strict=True)), **nodes_at_level, **greatest})
    levels = [f"nodes_at_{100 * level:.0f}" for level in LEVELS]
    names = [*of_curve, *levels, "greatest_speedup", "at_nodes", "most_nodes"]
    return pd.DataFrame(rows, columns=names)


def refit_resampled(
    cells: pd.DataFrame, benchmarks: pd.DataFrame, model: PhysicalModel, rng: np.random.Generator
) -> PhysicalModel:
    """Return the model fitted to cells and benchmarks resampled with their measured log-normal noise.

    The noise of cells is the pooled coefficient of variation of those on one node or on several; see
    `benchmark_noise`.
    """
    single = (cells["nodes"] == 1).to_numpy()
    overall = np.nan_to_num(
        physics.pooled_cv(cells)
    )  # for a group without replicates; 0 without any replicates
    alone, distributed = (
        np.nan_to_num(physics.pooled_cv(cells[own]), nan=overall) for own in (single, ~single)
    )
    cv = np.where(single, alone, distributed)
    times = cells["epoch_time_s"] * np.exp(
        cv / np.sqrt(cells["n"].to_numpy(float)) * rng.standard_normal(len(cells))
    )
    seconds = benchmarks["seconds"] * np.exp(
        benchmark_noise(benchmarks, model) * rng.standard_normal(len(benchmarks))
    )
    return generalize(physics.fit_model(cells.assign(epoch_time_s=times), benchmarks.assign(seconds=seconds)))


def benchmark_noise(benchmarks: pd.DataFrame, model: PhysicalModel) -> np.ndarray:
    """Return the standard deviation of the logarithm of each benchmark point, [points].

    It is the misfit of the carrier's law, or the spread between rounds if that is larger or alone known; 0
    with one place and one round.
    """
    names = zip(physics.carriers(benchmarks), benchmarks["collective"], strict=True)
    misfit = np.array([law.misfit if (law := model.law(*name)) else np.nan for name in names])
    keys = [benchmarks[name] for name in ("collective", "framework", "device")]
    squares = (benchmarks["error"].astype(float) ** 2).groupby(keys).transform("mean")
    return np.nan_to_num(np.fmax(misfit, np.sqrt(squares.to_numpy(float))))


def add_bands(
    curves: pd.DataFrame, rows: pd.DataFrame, draws: Sequence[tuple[pd.DataFrame, pd.DataFrame]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables with columns <name>_low and <name>_high: 2.5 and 97.5 % quantiles over `draws`.

    Args:
        curves: The curves of `predict_curves`.
        rows: The rows of `summarize_curves`.
        draws: BANDS of the curves, and the rows, of each refitted model.
    """
    curve_refits, row_refits = zip(*draws, strict=True)
    for frame, name, refits in [
        *((curves, name, curve_refits) for name in BANDS),
        *((rows, name, row_refits) for name in rows.columns if name.startswith(("nodes_at", "greatest"))),
    ]:
        values = np.array([refit[name].to_numpy(float) for refit in refits])
        frame[f"{name}_low"], frame[f"{name}_high"] = np.quantile(
            values, [0.025, 0.975], axis=0, method="nearest"
        )
    return curves, rows
