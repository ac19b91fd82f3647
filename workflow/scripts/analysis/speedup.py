"""Table of speed-up and efficiency, each with its base in seconds.

The base of a cell is the framework in its `base` column, undistributed, at the same levels of every other factor but
nodes and their devices.
Factors that mean nothing to one replica (batches per exchange: it exchanges nothing) need not be equal where the base
has one level of them only. Without such a cell the base is the framework's own cell with one replica.
"""

import math
from collections.abc import Sequence

import pandas as pd

from analysis import conditions, tables
from analysis.intervals import COLUMNS, Estimate, columns
from analysis.measured import cells, factors, level_text, successful, title, varying
from analysis.pooling import pooled
from common.notes import Note

WITHOUT_EFFECT_ON_ONE_REPLICA = (
    "sync_every", "batch_scope", "lr_scaling", "bandwidth", "parallelism", "microbatches", "schedule", "sharding",
)  # fmt: skip


def base_cells(runs: pd.DataFrame) -> dict[str, str]:
    """The base cell of every cell that has one among the cells with a successful run."""
    return _on_one_replica(runs, ("base", "framework"), "batch_size")


def first_cells(runs: pd.DataFrame) -> dict[str, str]:
    """Of every cell the measured one on one replica with its framework, batch size and all else, where there is one."""
    return _on_one_replica(runs, ("framework",), "batch_size")


def own_cells(runs: pd.DataFrame) -> dict[str, str]:
    """Of every cell the measured one on one replica with its framework, local batch and all else, where there is one."""
    return _on_one_replica(runs, ("framework",), "local_batch")


def _on_one_replica(runs: pd.DataFrame, of: Sequence[str], batch: str) -> dict[str, str]:
    """Cell -> measured cell on one replica of the first framework in its columns `of` that has one at its levels.

    `batch`: the column that must be equal for batches to be.
    """
    rows = cells(runs)
    local = runs.drop_duplicates("cell").set_index("cell")["local_batch"]
    rows = rows.assign(local_batch=rows["cell"].map(local).fillna(rows["batch_size"]))
    measured = rows[rows["cell"].isin(set(successful(runs)["cell"])) & (rows["replicas"] == 1)]
    everywhere = [*varying(rows, but=["framework", "nodes", "devices_per_node", "batch_size"]), batch]
    compared = {
        name: [f for f in everywhere if f not in WITHOUT_EFFECT_ON_ONE_REPLICA or f in varying(group)]
        for name, group in rows[rows["replicas"] == 1].groupby("framework")
    }
    at_levels = {
        (framework, *levels): cell
        for framework, group in measured.groupby("framework")
        for cell, *levels in group[["cell", *compared[framework]]].itertuples(index=False)
    }
    found = {}
    for cell in rows.itertuples(index=False):
        for framework in (getattr(cell, name) for name in of):
            levels = [getattr(cell, name) for name in compared.get(framework, [])]
            if (framework, *levels) in at_levels:
                found[cell.cell] = at_levels[framework, *levels]
                break
    return found


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per measured cell: epoch time, base and its epoch time, speed-up and efficiency, with intervals."""
    found = base_cells(runs)
    pooling = pooled(runs)
    by_cell = cells(runs).set_index("cell", drop=False)
    ratios = pooling.ratios(list(found.values()), list(found))
    speedups = dict(zip(found, (Estimate(*row) for row in ratios[COLUMNS].itertuples(index=False)), strict=True))
    within_blocks = dict(zip(found, ratios["within_blocks"], strict=True))
    rows = []
    for cell in by_cell.loc[by_cell.index.isin(list(pooling.samples))].itertuples(index=False):
        base = found.get(cell.cell)
        own = pooling.of(cell.cell)
        reference = pooling.of(base) if base else Estimate(float("nan"))
        if base is None:
            speedup = Estimate(float("nan"))
        elif base == cell.cell:
            speedup = Estimate(1.0)
        else:
            speedup = speedups[cell.cell]
        replicas = int(cell.replicas)
        rows.append(
            {
                "cell": cell.cell,
                **{name: getattr(cell, name) for name in factors()},
                "replicas": replicas,
                "n": own.n,
                **columns("epoch_time_s", own),
                "base_cell": base,
                "base_framework": by_cell.at[base, "framework"] if base else None,
                "base_n": reference.n,
                **columns("base_epoch_time_s", reference),
                **columns("speedup", speedup),
                **columns("efficiency", _divided(speedup, replicas)),
                **columns("karp_flatt", karp_flatt(speedup, replicas)),
                "within_blocks": math.nan if base == cell.cell else within_blocks.get(cell.cell, math.nan),
            }
        )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", *factors(), "base_cell", "within_blocks"])


def _divided(estimate: Estimate, by: int) -> Estimate:
    return Estimate(estimate.value / by, estimate.low / by, estimate.high / by)


def karp_flatt(speedup: Estimate, replicas: float) -> Estimate:
    """The serial fraction e = (1 / S - 1 / p) / (1 - 1 / p) that a speed-up S on p replicas shows; NaN for p = 1.

    Karp & Flatt, Measuring Parallel Processor Performance, CACM 33(5), 1990. It falls with S, so that its interval is that
    of S, turned round. Below 0 the speed-up is more than p, above 1 it is a slow-down.
    """
    if replicas <= 1:
        return Estimate(float("nan"))
    shown = [(1 / s - 1 / replicas) / (1 - 1 / replicas) for s in (speedup.value, speedup.high, speedup.low)]
    return Estimate(shown[0], shown[1], shown[2], speedup.n)


def table(runs: pd.DataFrame) -> tables.Table:
    """The table of speed-ups of a study."""
    data = compare(runs)
    notes = [
        conditions.counts(runs),
        "Speed-up: mean epoch time of the base divided by that of the cell. Efficiency: speed-up divided by replicas. "
        + (conditions.compared(data["within_blocks"]) or "Speed-ups have no intervals."),
        "Serial fraction: determined from the measurement, (1/S − 1/p) / (1 − 1/p) with speed-up S on p replicas (Karp & Flatt "
        "1990); its interval follows from that of S. It includes all that does not shrink with the replicas, also communication and the "
        "cost of the framework. Above 1, replicas slow the epoch down; below 0, the speed-up is more than p.",
        "Base: the undistributed framework named in the row, at the same levels of all other factors that it varies; "
        "where there is none, the framework's own cell with one replica. "
        "A row that is its own base has speed-up 1 by definition, without an interval.",
        conditions.replicas(runs),
        conditions.setting(runs),
    ]
    if data.empty:
        return tables.Table("Speed-up and efficiency", data, pd.DataFrame(columns=["framework"]), notes, ["framework"])
    without = data.loc[data["base_cell"].isna(), "cell"].tolist()
    if without:
        text = f"Without a successful base: {conditions.named(without)}."
        notes.insert(2, Note("cells-without-base", text, cells=without))
    shown = {title(name): data[name].map(level_text) for name in ["framework", *varying(runs, but=["framework"])]}
    if (data["replicas"] != data["nodes"]).any():
        shown["replicas"] = data["replicas"].map(str)
    shown["epoch time (s)"] = _shown(data, "epoch_time_s")
    shown["base"] = data["base_framework"].where(data["base_framework"].notna(), tables.DASH)
    shown["base (s)"] = _shown(data, "base_epoch_time_s")
    shown["speed-up"] = _shown(data, "speedup")
    shown["efficiency"] = _shown(data, "efficiency")
    shown["serial fraction"] = _shown(data, "karp_flatt")
    return tables.Table(
        title="Speed-up and efficiency of epoch time with their base in seconds",
        data=data.drop(columns=[name for name in factors() if data[name].isna().all()]),
        shown=pd.DataFrame(shown),
        notes=[note for note in notes if note],
        words=[*(title(name) for name in ("framework", "model", "dataset")), "base"],
    )


def _shown(data: pd.DataFrame, name: str) -> list[str]:
    bounds = data[[name, f"{name}_low", f"{name}_high"]]
    return [tables.interval(Estimate(*row)) for row in bounds.itertuples(index=False)]
