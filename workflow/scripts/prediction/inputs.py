"""The cells of a study, measured or planned, with the columns that predictions need.

In all tables of this package, `rate` is the rate of a node's links in one direction, and `inside_rate` the
rate of a device's links inside a node, both in bytes/s; NaN: unknown.
"""

import math

import numpy as np
import pandas as pd

from analysis import conditions
from analysis.adjusted import adjusted_times
from analysis.decomposition import gradient_bytes
from analysis.records import count_steps, scale_to_dataset, successful, with_device_count
from common.notes import Note
from declared.factors import PARALLELISM_OPTIONS, factor_names, factors_without_effect_on
from declared.frameworks import has_strategies
from declared.mesh import NOT_MESHES, PLAIN, exceeds_data_parallelism, is_mesh, mesh_of, sizes_of
from declared.models import find_graph
from models.graph import BYTES

# Cells that differ only in these factors belong to one series, which one law describes: it has terms for
# devices, samples, batches and the network, and assumes that the rest do not change the time of a batch.
# The framework is here because `StudyPredictor.informing_cells` compares it itself, to add cells of the
# baseline.
WITHIN_SERIES_FACTORS = (
    "framework", "nodes", "devices_per_node", "batch_size", "sync_every", "batch_scope", "bandwidth",
    "shares", *factors_without_effect_on("time", "memory"),
)  # fmt: skip
# prediction.mesh_step predicts how these change computation and messages.
PARALLELISM_FACTORS = ("parallelism", *PARALLELISM_OPTIONS)
HETEROGENEOUS = Note(
    "heterogeneous",
    "Cells with heterogeneous nodes or ranks are excluded, because the law assumes that all have the same "
    "speed. The table hybrid predicts them.",
)
ADJUSTED = Note(
    "adjusted",
    "Epoch times are adjusted for machine speed (table `adjusted`), both those fitted and those compared "
    "with predictions.",
)
INTEGER_COLUMNS = ["nodes", "ranks", "n_devices", "sync_every"]
EXCLUSION_CAUSES = {
    "uncounted": "batches or all-reduces were not counted",
    "divided": "they use model parallelism",
    "of_strategies": "their strategy partitions each layer separately, which is simulated, not predicted",
}
# Columns of a cell besides factors and measured times. Most of them are known before runs.
CELL_COLUMNS = [
    "local_batch", "batches_per_epoch", "n_allreduces", "rate", "inside_rate", "gradient_bytes", "samples",
]  # fmt: skip


def measured_cells(runs: pd.DataFrame, include_meshes: bool = False) -> pd.DataFrame:
    """Return a row for each measured cell.

    Columns: factors, INTEGER_COLUMNS, CELL_COLUMNS, epoch_time_s, n (runs), sd, and what `uses_mesh` and
    `lbann_layout` return. Epoch times are adjusted for machine speed (`adjusted.adjusted_times`). The
    batches and all-reduces of an epoch are scaled to the samples of the data set, as epoch times are.

    Args:
        runs: runs.csv of the study. Cells with uncounted batches or with a strategy per layer are excluded.
        include_meshes: Include cells that use a mesh.
    """
    ok = count_steps(successful(runs))
    ok = ok.assign(epoch_time_s=adjusted_times(runs).reindex(ok.index))
    ok = _add_plan_columns(ok[~has_layer_strategy(ok)])
    ok = ok if include_meshes else ok[~ok["uses_mesh"]]
    ok = ok.assign(
        batches_per_epoch=scale_to_dataset(ok, "steps"), n_allreduces=scale_to_dataset(ok, "n_allreduces")
    )
    by_cell = ok.groupby("cell", sort=False)
    level_columns = [name for name in [*factor_names(runs), "baseline"] if name not in INTEGER_COLUMNS]
    cells = by_cell[[*level_columns, *INTEGER_COLUMNS, *CELL_COLUMNS, "uses_mesh", "lbann_layout"]].first()
    times = by_cell["epoch_time_s"]
    cells = cells.assign(epoch_time_s=times.mean(), n=times.size(), sd=times.std())
    if "bandwidth" in cells:  # The level "site" is not a number.
        cells["bandwidth"] = (8 * cells["rate"] / 1e6).fillna(cells["bandwidth"])
    cells = cells.dropna(subset=["batches_per_epoch", "n_allreduces"])
    kinds = dict.fromkeys(INTEGER_COLUMNS, int) | dict.fromkeys(CELL_COLUMNS, float)
    return cells.astype(kinds).reset_index()


def planned_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the planned cells on several nodes, in the columns of `measured_cells` except times."""
    cells = (
        runs[(runs["nodes"] > 1) & ~has_layer_strategy(runs)].drop_duplicates("cell").reset_index(drop=True)
    )
    cells = _add_plan_columns(cells)
    n_allreduces = cells["samples"] / cells["effective_batch"].astype(float)
    batches_per_epoch = n_allreduces * cells["sync_every"].astype(int)
    cells = cells.assign(batches_per_epoch=batches_per_epoch, n_allreduces=n_allreduces)
    columns = ["cell", *factor_names(runs), "baseline", "ranks", "n_devices", *CELL_COLUMNS]
    kinds = dict.fromkeys(INTEGER_COLUMNS, int) | {"local_batch": float}
    return cells[[*columns, "uses_mesh", "lbann_layout"]].astype(kinds)


def _add_plan_columns(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the columns of `measured_cells` that do not depend on their times."""
    unknown, has_mesh = pd.Series(np.nan, index=runs.index), uses_mesh(runs)
    division = [
        math.prod(mesh_of(level, int(ranks)).sizes[axis] for axis in ("tensor", "pipeline")) if split else 1
        for level, ranks, split in zip(runs["parallelism"], runs["ranks"], has_mesh, strict=True)
    ]
    # Runs state the bytes of a device; cells have the bytes of the whole model.
    stated = runs.get("gradient_bytes", unknown).astype(float) * division
    stated = stated.fillna(BYTES * runs.get("parameters", unknown).astype(float))
    levels = runs.reindex(columns=["model", "dataset", "precision", "reduce_dtype"]).to_dict("records")
    registered = pd.Series(
        [gradient_bytes(row["model"], row["dataset"], row) for row in levels], index=runs.index, dtype=float
    )
    return with_device_count(runs).assign(
        rate=runs["bandwidth_bytes_s"].astype(float),
        inside_rate=runs.get("inside_bandwidth_bytes_s", unknown).astype(float),
        gradient_bytes=stated.fillna(registered),
        samples=runs["samples_per_epoch"].astype(float),
        uses_mesh=has_mesh,
        lbann_layout=lbann_layout(runs),
    )


def pooled_cv(cells: pd.DataFrame, of_means: bool = False) -> float:
    """Return the coefficient of variation of runs, or of means, pooled over cells; NaN without replicates.

    Args:
        cells: Cells with n, sd and epoch_time_s.
        of_means: Whether to return it for the means of cells instead of single runs.
    """
    replicated = cells[cells["n"] > 1]
    if replicated.empty:
        return math.nan
    n, cv = replicated["n"].to_numpy(float), (replicated["sd"] / replicated["epoch_time_s"]).to_numpy(float)
    return float(np.sqrt(np.average(cv**2 / (n if of_means else 1), weights=n - 1)))


def exclusion_note(runs: pd.DataFrame, include_meshes: bool = False) -> str:
    """Return a note on the cells that predictions cannot use, "" if there are none.

    These are cells with uncounted batches or all-reduces, with a strategy per layer, and, without
    `include_meshes`, with model parallelism.
    """
    counts = count_steps(successful(runs)).groupby("cell", sort=False)[["steps", "n_allreduces"]].count()
    divided = [] if include_meshes else runs.loc[uses_mesh(runs), "cell"].unique().tolist()
    cells = {
        "uncounted": counts.index[(counts == 0).any(axis=1)].tolist(),
        "divided": divided,
        "of_strategies": runs.loc[has_layer_strategy(runs), "cell"].unique().tolist(),
    }
    sentences = [
        f"Excluded, because {EXCLUSION_CAUSES[kind]}: {conditions.join_names(names)}."
        for kind, names in cells.items()
        if names
    ]
    return Note("cells-left-out", " ".join(sentences), **cells) if sentences else ""


def lbann_layout(runs: pd.DataFrame) -> pd.Series:
    """Return LBANN's layout of layers or data, which its computation depends on; PLAIN elsewhere."""
    return runs["parallelism"].where(runs["parallelism"].isin(NOT_MESHES), PLAIN)


def uses_mesh(runs: pd.DataFrame) -> pd.Series:
    """Return which runs train on a mesh: with model parallelism or sharding, not data parallelism alone."""
    pairs = zip(runs["parallelism"], runs["ranks"], strict=True)
    return pd.Series(
        [exceeds_data_parallelism(level, int(ranks)) for level, ranks in pairs], index=runs.index, dtype=bool
    )


def can_add_nodes(cells: pd.DataFrame) -> pd.Series:
    """Return which cells that use a mesh the law predicts on any number of nodes.

    More nodes have to add replicas or shards. And the model must not be registered, so that it is taken as
    divided evenly: a registered model is partitioned layer by layer, differently for each number of ranks.
    """
    can_add = []
    for level, model, dataset in zip(cells["parallelism"], cells["model"], cells["dataset"], strict=True):
        sizes = sizes_of(level) if is_mesh(level) else {}
        # A size of None takes the remaining ranks.
        has_open_axis = None in (sizes.get("data", 0), sizes.get("sharded", 0))
        can_add.append(has_open_axis and not find_graph(model, dataset))
    return cells["uses_mesh"] & pd.Series(can_add, index=cells.index, dtype=bool)


def has_layer_strategy(runs: pd.DataFrame) -> pd.Series:
    """Return which runs partition each layer separately, by a parallelization strategy."""
    return runs["framework"].map(has_strategies).astype(bool)


def heterogeneous_note(runs: pd.DataFrame) -> str:
    """Return a note on cells with heterogeneous nodes or ranks, "" if there are none."""
    return HETEROGENEOUS if is_heterogeneous(runs).any() else ""


def adjusted_note(runs: pd.DataFrame) -> str:
    """Return a note that epoch times are adjusted for machine speed, "" if they are not."""
    measured = successful(runs)["epoch_time_s"].astype(float)
    return "" if measured.equals(adjusted_times(runs)) else ADJUSTED


def is_heterogeneous(runs: pd.DataFrame) -> pd.Series:
    """Return which runs belong to cells with nodes or ranks of different speed or samples."""
    reported = runs[["cpu_shares", "rank_samples"]].notna().any(axis=1)
    return reported.groupby(runs["cell"]).transform("any")
