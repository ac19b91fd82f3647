"""Table of strategies: what dividing a training in other ways than by samples asks of a rank by formula (models.messages), beside what
was measured: memory, bytes sent, and the share of a step in which a pipeline idles.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import conditions, tables
from analysis.measured import cells, factors, level_text, successful, title, varying
from common.errors import InputError
from common.notes import Note
from declared.frameworks import has_strategies
from declared.mesh import is_mesh, mesh_of
from declared.models import model_graph
from models.collectives import MESH_COLLECTIVES
from models.messages import bubble, needs

TITLE = "What each strategy asks of a rank"
NEEDS = ("parameters", "gradients", "optimizer", "activations")
UNVARIED = Note(
    "parallelism-does-not-vary",
    "The study has one level of parallelism; give it several, such as [data, data-tensor2], and this table compares them.",
)
NO_MESH = Note("no-mesh", "No cell's ranks are a mesh of a model that is described here.")
HOW = (
    "Memory and bytes by formula are those of the rank that needs most, without what libraries keep beside; activations are the outputs of all "
    "operators for the samples whose backward pass is still to come. Bytes are those of one optimizer step; a ring sends 2 (n − 1) / n of what it "
    "all-reduces. Measured memory is the largest of a rank, with its program; measured bytes are those of an interface, so the formula beside them is "
    "that of all its ranks."
)
BY_LAYER = Note("divided-by-layer", "Cells whose layers are divided each by itself are in the table simulated.")


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per cell whose ranks are a mesh, plain ones too: the factors, the needs of the rank that needs most, what a rank sends
    in a step by kind, `sent_formula_bytes` and `sent_bytes` (of an interface in a step), and the largest measured memory."""
    ok = successful(runs)
    by_cell = ok.groupby("cell")
    measured = pd.DataFrame(
        {
            "sent_bytes": (ok["sent_bytes"].astype(float) / ok["exchanges"].astype(float)).groupby(ok["cell"]).mean(),
            "memory_peak_bytes": by_cell["memory_peak_bytes"].mean(),
            "device_memory_peak_bytes": by_cell["device_memory_peak_bytes"].mean(),
        }
    )
    first = runs.drop_duplicates("cell").set_index("cell")
    rows = []
    for levels in cells(runs)[["cell", *factors()]].to_dict("records"):
        run = first.loc[levels["cell"]]
        if made := of_cell(levels, run):
            rows.append({**levels, "ranks": int(run["ranks"]), **made, **_of(measured, str(levels["cell"]))})
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell"])


def of_cell(levels: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, float] | None:
    """What the formulas say of a cell; None where its ranks are no mesh, or its model is not described here. Ranks that divide each layer by
    itself are no mesh on any level."""
    ranks = int(run["ranks"])
    if not is_mesh(levels["parallelism"]) or has_strategies(str(levels["framework"])):
        return None
    try:
        graph, mesh = model_graph(levels["model"], levels["dataset"]), mesh_of(levels["parallelism"], ranks)
        told = {**levels, "microbatches": int(levels["microbatches"]), "sync_every": int(levels["sync_every"])}
        found = needs(graph, mesh, int(run["local_batch"]), told)
    except (InputError, KeyError, ValueError):
        return None
    most = max(found, key=lambda need: need.memory)
    sends = max(found, key=lambda need: sum(need.sent.values()))
    totals = [sum(need.sent.values()) for need in found]
    interface = math.nan  # whose bytes are counted: of all ranks of one machine, or of a node with one rank
    if run["placement"] == "emulated":
        interface = sum(totals) * ranks / len(found)
    elif ranks == int(levels["nodes"]):
        interface = max(totals)
    return {
        **{f"{name}_bytes": getattr(most, name) for name in NEEDS},
        "needed_bytes": most.memory,
        **{f"{kind}_bytes": sends.sent[kind] for kind in MESH_COLLECTIVES},
        "bubble": bubble(mesh, told["microbatches"]),
        "sent_formula_bytes": interface,
    }


def _of(measured: pd.DataFrame, cell: str) -> dict[str, float]:
    return measured.loc[cell].to_dict() if cell in measured.index else dict.fromkeys(measured, math.nan)


def table(runs: pd.DataFrame) -> tables.Table:
    """The table of a study; without rows where parallelism does not vary and no cell divides more than samples."""
    if runs["parallelism"].nunique() < 2:
        nothing = pd.DataFrame(columns=["cell"], dtype=str)
        return tables.Table(TITLE, nothing, nothing, [UNVARIED])
    data = summarize(runs)
    if data.empty:
        return tables.Table(
            TITLE,
            data,
            data,
            [NO_MESH, conditions.setting(runs)],
        )
    named = ["framework", *varying(runs, but=["framework"])]
    shown = {title(name): data[name].map(level_text) for name in named}
    for heading, name in (
        ("parameters", "parameters"),
        ("gradients", "gradients"),
        ("optimizer state", "optimizer"),
        ("activations", "activations"),
    ):
        shown[f"{heading} (MB)"] = _mb(data[f"{name}_bytes"])
    shown["peak memory (MB)"] = _mb(data["device_memory_peak_bytes"].fillna(data["memory_peak_bytes"]))
    for kind in MESH_COLLECTIVES:
        if data[f"{kind}_bytes"].any():
            shown[f"{kind.replace('_', '-')} (MB)"] = _mb(data[f"{kind}_bytes"])
    if data["bubble"].any():
        shown["bubble (%)"] = data["bubble"].map(tables.percent)
    if data["sent_formula_bytes"].notna().any():
        shown["sent, by formula (MB)"] = _mb(data["sent_formula_bytes"])
    shown["sent, measured (MB)"] = _mb(data["sent_bytes"])
    words = [title(name) for name in ("framework", "model", "dataset", "parallelism", "schedule", "sharding")]
    by_layer = [BY_LAYER] if runs["framework"].map(has_strategies).any() else []
    notes = [conditions.counts(runs), HOW, *by_layer, conditions.setting(runs)]
    return tables.Table(TITLE, data, pd.DataFrame(shown), notes, words)


def _mb(values: pd.Series) -> pd.Series:
    return values.astype(float).map(lambda value: tables.DASH if math.isnan(value) else f"{value / 1e6:.3g}")
