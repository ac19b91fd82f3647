"""Table of parallelization strategies: memory, bytes sent and bubble, by formula and measured.

The formulas are those of `models.messages`.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import conditions, tables
from analysis.level_words import level_texts, title
from analysis.records import cell_levels, peak_memory_bytes, successful
from common.errors import InputError
from common.notes import Note
from declared.factors import factor_names
from declared.frameworks import has_strategies
from declared.mesh import is_mesh, mesh_of
from declared.models import find_graph
from models.collectives import MESH_COLLECTIVES
from models.messages import step_demands
from models.pipelines import bubble

TITLE = "Memory and bytes of each strategy per rank"
NEEDS = ("parameters", "gradients", "optimizer", "activations")
PARALLELISM_CONSTANT = Note(
    "parallelism-does-not-vary",
    "The study has one level of parallelism. With several, such as [data, data-tensor2], this table compares "
    "them.",
)
NO_MESH = Note("no-mesh", "In no cell do ranks form a mesh of a registered model.")
METHOD_NOTE = (
    "Memory and bytes by formula are those of the rank that needs the most, without what libraries allocate "
    "in addition. Activations are the outputs of all operators for samples that await their backward pass. "
    "Bytes are those of one optimizer step; a ring sends 2 (n − 1) / n of what it all-reduces. Measured "
    "memory is the largest of a rank, program included. Measured bytes are those of an interface, so the "
    "formula in that column counts all of its ranks."
)
BY_LAYER = Note("divided-by-layer", "Cells with a strategy per layer are in the table simulated.")


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell whose ranks form a mesh, data parallelism included.

    Columns: factors, ranks, memory of the rank that needs the most, bytes by kind of collective that the
    busiest rank sends in an optimizer step, bubble, `sent_formula_bytes` and `sent_bytes` (of an interface in
    an optimizer step), and measured memory.
    """
    ok = successful(runs)
    by_cell = ok.groupby("cell")
    measured = pd.DataFrame(
        {
            "sent_bytes": (ok["sent_bytes"].astype(float) / ok["n_allreduces"].astype(float))
            .groupby(ok["cell"])
            .mean(),
            "memory_peak_bytes": by_cell["memory_peak_bytes"].mean(),
            "device_memory_peak_bytes": by_cell["device_memory_peak_bytes"].mean(),
        }
    )
    first = runs.drop_duplicates("cell").set_index("cell")
    rows = []
    for levels in cell_levels(runs)[["cell", *factor_names(runs)]].to_dict("records"):
        run = first.loc[levels["cell"]]
        if requirements := cell_requirements(levels, run):
            rows.append(
                {
                    **levels,
                    "ranks": int(run["ranks"]),
                    **requirements,
                    **_measured_values(measured, str(levels["cell"])),
                }
            )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell"])


def cell_requirements(levels: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, float] | None:
    """Return memory, bytes and bubble of a cell by formula.

    Returns:
        The values by name; None if the ranks form no mesh, each layer has its own strategy, the model is not
        registered, or a batch is a fraction of a sample.
    """
    ranks = int(run["ranks"])
    if (
        run["local_batch"] < 1
        or not is_mesh(levels["parallelism"])
        or has_strategies(str(levels["framework"]))
    ):
        return None
    try:
        graph, mesh = find_graph(levels["model"], levels["dataset"]), mesh_of(levels["parallelism"], ranks)
        if graph is None:
            return None
        mesh_levels = {
            **levels,
            "microbatches": int(levels["microbatches"]),
            "sync_every": int(levels["sync_every"]),
        }
        rank_demands = step_demands(graph, mesh, int(run["local_batch"]), mesh_levels)
    except (InputError, ValueError):
        return None
    largest = max(rank_demands, key=lambda demand: demand.memory)
    largest_sender = max(rank_demands, key=lambda demand: sum(demand.sent.values()))
    totals = [sum(demand.sent.values()) for demand in rank_demands]
    interface = math.nan  # It counts the bytes of all ranks of a machine, or of a node's only rank.
    if run["placement"] == "emulated":
        interface = sum(totals) * ranks / len(rank_demands)
    elif ranks == int(levels["nodes"]):
        interface = max(totals)
    return {
        **{f"{name}_bytes": getattr(largest, name) for name in NEEDS},
        "needed_bytes": largest.memory,
        **{f"{kind}_bytes": largest_sender.sent[kind] for kind in MESH_COLLECTIVES},
        "bubble": bubble(mesh, mesh_levels["microbatches"], str(levels["schedule"])),
        "sent_formula_bytes": interface,
    }


def _measured_values(measured: pd.DataFrame, cell: str) -> dict[str, float]:
    return measured.loc[cell].to_dict() if cell in measured.index else dict.fromkeys(measured, math.nan)


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table of a study; no rows unless parallelism varies and a cell's ranks form a mesh."""
    if runs["parallelism"].nunique() < 2:
        empty = pd.DataFrame(columns=["cell"], dtype=str)
        return tables.Table(TITLE, empty, empty, [PARALLELISM_CONSTANT])
    data = summarize(runs)
    if data.empty:
        return tables.Table(
            TITLE,
            data,
            data,
            [NO_MESH, conditions.measurement_note(runs)],
        )
    display = level_texts(data, runs)
    for heading, name in (
        ("parameters", "parameters"),
        ("gradients", "gradients"),
        ("optimizer state", "optimizer"),
        ("activations", "activations"),
    ):
        display[f"{heading} (MB)"] = megabyte_texts(data[f"{name}_bytes"])
    display["peak memory (MB)"] = megabyte_texts(peak_memory_bytes(data))
    for kind in MESH_COLLECTIVES:
        if data[f"{kind}_bytes"].any():
            display[f"{kind.replace('_', '-')} (MB)"] = megabyte_texts(data[f"{kind}_bytes"])
    if data["bubble"].any():
        display["bubble (%)"] = data["bubble"].map(tables.percent)
    if data["sent_formula_bytes"].notna().any():
        display["sent, by formula (MB)"] = megabyte_texts(data["sent_formula_bytes"])
    display["sent, measured (MB)"] = megabyte_texts(data["sent_bytes"])
    words = [title(name) for name in ("parallelism", "schedule", "sharding")]
    by_layer = [BY_LAYER] if runs["framework"].map(has_strategies).any() else []
    notes = [
        conditions.run_counts_note(runs),
        METHOD_NOTE,
        conditions.shared_interface_note(runs),
        *by_layer,
        conditions.measurement_note(runs),
    ]
    return tables.Table(TITLE, data, pd.DataFrame(display), notes, words)


def megabyte_texts(values: pd.Series) -> pd.Series:
    """Return bytes in MB, a dash where there are none."""
    return values.astype(float).map(lambda value: tables.DASH if math.isnan(value) else f"{value / 1e6:.3g}")
