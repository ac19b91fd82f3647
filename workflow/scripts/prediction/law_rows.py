"""The rows of the law: cells with message times by the collective benchmark, and with shares of meshes.

Two tables describe cells. The one of `inputs.measured_cells` has factors, and counts and times of an epoch;
the law's (`law.LAW_COLUMNS`) has counts and times of an optimizer step. In this package, the first is called
`cells`, the second `law_rows` or `rows`.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from declared.mesh import mesh_of
from declared.models import find_graph
from models.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from models.messages import count_gathers
from prediction.law import Array
from prediction.mesh_step import MeshStep, NetworkScale, Timer, describe_step
from prediction.message_times import CollectiveBenchmark, ideal_seconds, message_limits, message_rule

SMALL_MESSAGE_BYTES = 8.0  # Size of additional messages, which have no gradients.


def law_rows(cells: pd.DataFrame, benchmark: CollectiveBenchmark, update_share: float = 0.0) -> pd.DataFrame:
    """Return the rows of cells with `law.LAW_COLUMNS` and `law.OPTIONAL_LAW_COLUMNS`.

    Args:
        cells: Cells in the columns of `inputs.measured_cells`.
        benchmark: The collective benchmark, which times their messages.
        update_share: Share of the update in fixed_s (`StudyPredictor.update_shares`).
    """
    n_devices = cells["n_devices"].astype(float)
    columns = pd.DataFrame(
        {
            "framework": cells["framework"],
            "gradient_bytes": cells["gradient_bytes"],
            "nodes": cells["nodes"].astype(float),
            "devices_per_node": n_devices / cells["nodes"],
            "n_devices": n_devices,
            "local_batch": cells["local_batch"],
            "n_passes": cells["batches_per_epoch"] / cells["n_allreduces"],
            "tensor": 1,
            "pipeline": 1,
            "sharded": cells["framework"].map(lambda name: message_rule(name).messages == "units"),
            "rate": cells["rate"],
            "inside_rate": cells["inside_rate"],
            "benchmarked_messages_s": _step_messages_s(cells, benchmark),
            "nominal_messages_s": np.nan,
            "uses_mesh_formula": cells["uses_mesh"],
        }
    )
    if "epoch_time_s" in cells:
        optimizer_step_s, sd = (cells[name] / cells["n_allreduces"] for name in ("epoch_time_s", "sd"))
        columns = columns.assign(optimizer_step_s=optimizer_step_s, n=cells["n"], sd=sd)
    if not cells["uses_mesh"].any():
        return columns
    rows = zip(cells.to_dict("records"), columns.to_dict("records"), strict=True)
    with_meshes = [
        plain | (_mesh_columns(row, benchmark, update_share) if row["uses_mesh"] else {})
        for row, plain in rows
    ]
    return pd.DataFrame(with_meshes, index=cells.index)


def is_unknown_mesh(rows: pd.DataFrame) -> np.ndarray:
    """Return which rows use the formula of meshes and have a message of unknown time."""
    is_unknown = rows["benchmarked_messages_s"].isna() & rows["nominal_messages_s"].isna()
    return (rows["uses_mesh_formula"] & is_unknown).to_numpy(bool)


def _step_messages_s(cells: pd.DataFrame, benchmark: CollectiveBenchmark) -> Array:
    """Return seconds of the messages of an optimizer step by the benchmark, [cells]; 0 on one node."""
    seconds = np.where(cells["nodes"] > 1, np.nan, 0.0)
    is_timed = (cells["nodes"] > 1) & ~cells["uses_mesh"].astype(bool)
    for framework_device, rows in cells.groupby(["framework", "device"]).indices.items():
        rows = rows[is_timed.to_numpy()[rows]]
        group = cells.iloc[rows]
        if group.empty:
            continue
        rule = message_rule(framework_device[0])
        nodes, ranks, rate = (group[name].to_numpy(float) for name in ("nodes", "ranks", "rate"))
        sizes = group["gradient_bytes"].to_numpy(float)
        time_messages = functools.partial(benchmark.times, framework_device, scale=(nodes, ranks, rate))
        batches_per_step = (group["batches_per_epoch"] / group["n_allreduces"]).to_numpy(float)
        gather_s, scatter_s = (time_messages(kind, size=sizes) for kind in (ALL_GATHER, REDUCE_SCATTER))
        step_s = time_messages(ALL_REDUCE, size=sizes)
        if rule.messages == "units" and not np.isnan([gather_s, scatter_s]).any():
            step_s = count_gathers(batches_per_step) * gather_s + scatter_s
        n_small = group["training_loop"].map(lambda loop, rule=rule: rule.extra.get(loop, 0)).to_numpy(float)
        if n_small.any():
            small_s = time_messages(ALL_REDUCE, size=np.full(len(group), SMALL_MESSAGE_BYTES))
            step_s = step_s + batches_per_step * n_small * small_s
        seconds[rows] = step_s
    return seconds


def _mesh_columns(
    row: Mapping[str, Any], benchmark: CollectiveBenchmark, update_share: float
) -> dict[str, float]:
    """Return the columns that differ for a cell that uses a mesh; NaN if a message's time is unknown.

    A registered model uses the formula of meshes (prediction.mesh_step). Any other model is taken as divided
    evenly among the ranks of a replica, which the law itself describes: `uses_mesh_formula` is then False.
    """
    graph = find_graph(row["model"], row["dataset"])
    batches_per_step = row["batches_per_epoch"] / row["n_allreduces"]
    missing = {"benchmarked_messages_s": math.nan, "nominal_messages_s": math.nan}
    mesh = mesh_of(row["parallelism"], row["ranks"])
    if graph is None:
        n_passes = batches_per_step * (row["microbatches"] if mesh.pipeline > 1 else 1)
        return {
            "n_passes": n_passes,
            # From the global batch, because ranks that share a sequence also divide it, but are not an axis
            # of a mesh.
            "local_batch": row["samples"] / row["n_allreduces"] / (n_passes * row["ranks"]),
            "tensor": mesh.tensor, "pipeline": mesh.pipeline, "sharded": mesh.sharded > 1,
            "uses_mesh_formula": False,
        }  # fmt: skip
    if row["nodes"] < 2:
        return missing
    scale = NetworkScale(row["nodes"], row["ranks"], row["rate"])

    def describe(timer: Timer) -> MeshStep | None:
        limit = message_limits(message_rule(row["framework"]))[1]
        return describe_step(graph, mesh, round(row["local_batch"]), row, scale, timer, limit)

    benchmarked = describe(functools.partial(benchmark.time_of_one, (row["framework"], row["device"])))
    nominal = describe(ideal_seconds) if not math.isnan(row["rate"]) else None
    step = benchmarked or nominal
    if step is None:
        return missing
    # The update is part of fixed_s, but is done once a step, and grows with a rank's share of the parameters
    # instead of the operators.
    calls = (1 - update_share) * step.calls + update_share * step.updated / batches_per_step
    return {
        "benchmarked_messages_s": benchmarked.messages_s if benchmarked else math.nan,
        "nominal_messages_s": nominal.messages_s if nominal else math.nan,
        "work": step.work, "calls": calls, "updated": step.updated, "n_blocking": step.n_blocking,
    }  # fmt: skip
