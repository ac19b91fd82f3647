"""Cells that nobody measured: epoch times, speed-up and efficiency on many nodes at other links, and how sure they are."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.measured import levels_in_order, treatments
from prediction import physics
from prediction.law import Law
from prediction.physics import Physics

FACTORS = ["framework", "device", "model", "dataset", "batch_size"]
LEVELS = (0.8, 0.5)  # of efficiency
BANDS = ["speedup", "efficiency"]


def counts(most: int) -> np.ndarray:
    """Numbers of nodes from 1 to `most`, every one up to 16 and then eight in each doubling, whatever `most` is."""
    every = np.r_[1:17, (16 * 2 ** (np.arange(1, 8 * np.log2(max(most, 16) / 16) + 1) / 8)).round(), most]
    return np.unique(every[every <= most]).astype(int)


def hypothetical(cases: pd.DataFrame, rates: Sequence[float], most: int) -> pd.DataFrame:
    """`prepared`-like cells of every case (a one-replica cell, with `samples`) on all numbers of nodes, at all rates (bytes/s).

    A node has one replica. There are no more nodes than batches in the data set.
    """
    cells = cases.drop(columns=["nodes", "rate"]).merge(pd.DataFrame({"nodes": counts(most)}), how="cross")
    cells = cells.merge(pd.DataFrame({"rate": list(rates)}), how="cross")
    nodes = cells["nodes"].astype(float)
    local = cells["batch_size"] / nodes.where(cells["batch_scope"] == "global", 1.0)
    steps = cells["samples"] / (nodes * local)
    counted = {"ranks": nodes, "replicas": nodes, "nodes": nodes, "local_batch": local, "steps": steps}
    made = cells.assign(**counted, exchanges=steps / cells["sync_every"])
    return made[(steps >= 1) & (local >= 1)].reset_index(drop=True)


def cases(cells: pd.DataFrame) -> pd.DataFrame:
    """The study's combinations of FACTORS that have cells on several nodes, at the base level of every treatment."""
    several = cells[cells["replicas"] > 1]
    for name in treatments(cells):
        several = several[several[name] == levels_in_order(cells, name)[0]]
    return several.drop_duplicates(FACTORS).sort_values(FACTORS).reset_index(drop=True)


def curves(made: Physics, cells: pd.DataFrame) -> pd.DataFrame:
    """`hypothetical` cells with epoch_time_s, speedup and efficiency; the base is the same model on one node."""
    seconds = pd.Series(made.predict(cells), index=cells.index)
    base = seconds.where(cells["nodes"] == 1).groupby([cells[name] for name in [*FACTORS, "rate"]]).transform("max")
    return cells.assign(epoch_time_s=seconds, speedup=base / seconds, efficiency=base / seconds / cells["nodes"])


def answerable(drawn: pd.DataFrame) -> pd.DataFrame:
    """The `curves` whose every number of nodes has a prediction: one node alone says nothing of several."""
    known = drawn["speedup"].notna().groupby([drawn[name] for name in [*FACTORS, "rate"]]).transform("all")
    return drawn[known.astype(bool)].reset_index(drop=True)


def anywhere(made: Physics) -> Physics:
    """`made` for any place: the law is the same whether or not a place was swept, so that curves are smooth.

    Where the sweeps say nothing of links, no message is faster than the link at its whole rate.
    """

    def smooth(one: Law) -> Law:
        return replace(one, link=one.link or 1.0, places=(), factors=one.factors[-1:])

    laws = {carrier: {name: smooth(one) for name, one in own.items()} for carrier, own in made.laws.items()}
    return replace(made, laws=laws)


def last_above(nodes: np.ndarray, efficiency: np.ndarray, level: float) -> float:
    """The largest number of nodes up to which efficiency stays at `level` or above; infinite where it always does."""
    below = np.flatnonzero(efficiency < level)
    if not len(below):
        return np.inf
    right = int(below[0])
    if right == 0:
        return 0.0
    share = (efficiency[right - 1] - level) / (efficiency[right - 1] - efficiency[right])
    between = np.log(nodes[right - 1]) + share * (np.log(nodes[right]) - np.log(nodes[right - 1]))
    return float(min(np.floor(np.exp(between) + 1e-9), nodes[right] - 1))


def answers(drawn: pd.DataFrame) -> pd.DataFrame:
    """A row per case and rate: the last number of nodes above every level of efficiency, the greatest speed-up and its nodes."""
    rows = []
    of_curve = [*FACTORS, "rate"]
    for names, curve in drawn[[*of_curve, "nodes", *BANDS]].groupby(of_curve, sort=False):
        nodes, efficiency = curve["nodes"].to_numpy(), curve["efficiency"].to_numpy()
        best = int(np.argmax(curve["speedup"].to_numpy()))
        found = {f"nodes_at_{100 * level:.0f}": last_above(nodes, efficiency, level) for level in LEVELS}
        greatest = {"greatest_speedup": curve["speedup"].iloc[best], "at_nodes": nodes[best], "most_nodes": nodes[-1]}
        rows.append({**dict(zip(of_curve, names, strict=True)), **found, **greatest})
    levels = [f"nodes_at_{100 * level:.0f}" for level in LEVELS]
    names = [*of_curve, *levels, "greatest_speedup", "at_nodes", "most_nodes"]
    return pd.DataFrame(rows, columns=names)


def redrawn(cells: pd.DataFrame, sweeps: pd.DataFrame, made: Physics, rng: np.random.Generator) -> Physics:
    """The model fitted to cells and sweeps drawn anew around what was measured: log-normal, with the noise that they have.

    Of cells the pooled coefficient of variation of those on one node, or on several; of sweeps `sweep_noise`.
    """
    single = (cells["nodes"] == 1).to_numpy()
    every = np.nan_to_num(physics.pooled_cv(cells))  # of a group without replicates; 0 where there are none at all
    alone, several = (np.nan_to_num(physics.pooled_cv(cells[own]), nan=every) for own in (single, ~single))
    cv = np.where(single, alone, several)
    times = cells["epoch_time_s"] * np.exp(cv / np.sqrt(cells["n"].to_numpy(float)) * rng.standard_normal(len(cells)))
    seconds = sweeps["seconds"] * np.exp(sweep_noise(sweeps, made) * rng.standard_normal(len(sweeps)))
    return anywhere(physics.fit(cells.assign(epoch_time_s=times), sweeps.assign(seconds=seconds)))


def sweep_noise(sweeps: pd.DataFrame, made: Physics) -> np.ndarray:
    """Of each of the sweeps' points the noise of its logarithm, [points]: the misfit of its carrier's law, or what rounds
    differ by where that is larger, or is all that is known; 0 with one place and one round."""
    names = zip(physics.carriers(sweeps), sweeps["collective"], strict=True)
    misfit = np.array([law.misfit if (law := made.law(*name)) else np.nan for name in names])
    alike = [sweeps[name] for name in ("collective", "framework", "device")]
    squares = (sweeps["error"].astype(float) ** 2).groupby(alike).transform("mean")
    return np.nan_to_num(np.fmax(misfit, np.sqrt(squares.to_numpy(float))))


def with_bands(
    drawn: pd.DataFrame, rows: pd.DataFrame, draws: Sequence[tuple[pd.DataFrame, pd.DataFrame]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both with columns <name>_low and <name>_high: the 2.5 and 97.5 % quantiles over `draws`, the BANDS of both by other models."""
    again, found = zip(*draws, strict=True)
    for frame, name, many in [
        *((drawn, name, again) for name in BANDS),
        *((rows, name, found) for name in rows.columns if name.startswith(("nodes_at", "greatest"))),
    ]:
        values = np.array([one[name].to_numpy(float) for one in many])
        frame[f"{name}_low"], frame[f"{name}_high"] = np.quantile(values, [0.025, 0.975], axis=0, method="nearest")
    return drawn, rows
