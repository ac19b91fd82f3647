"""Table of speed-up and efficiency, each with its baseline in seconds.

The baseline of a cell is the cell of the framework in its `baseline` column on a single device, at the same
levels of every factor except nodes and devices. Factors without effect on one device (such as gradient
accumulation) may differ if the baseline has a single level of them. Without such a cell the baseline is the
framework's own cell on one device. Series that were measured elsewhere often begin at a whole node or more.
Their baseline is the cell with the fewest devices, and efficiency is relative to it.
"""

import math
from collections.abc import Sequence

import pandas as pd

from analysis import conditions, tables
from analysis.cell_means import CellMeans, estimate_means
from analysis.intervals import ESTIMATE_COLUMNS, Estimate, columns
from analysis.level_words import level_texts
from analysis.records import cell_levels, groups_by, measured_elsewhere, successful, varying
from common.notes import Note
from common.text import number_of
from declared.factors import NODES_AND_DEVICES, factor_names

WITHOUT_EFFECT_ON_ONE_DEVICE = (
    "sync_every", "batch_scope", "lr_scaling", "bandwidth", "parallelism", "microbatches", "schedule",
    "sharding",
)  # fmt: skip

SHARED_BLOCKS = (
    " Ratios are of means over the blocks in which both cells have a usable run; they can differ from the "
    "quotient of the printed means."
)


def baseline_cells(runs: pd.DataFrame) -> dict[str, str]:
    """Map cells to their measured baseline cell; cells without one are left out."""
    baselines = _one_device_cells(runs, ("baseline", "framework"), "batch_size")
    if not measured_elsewhere(runs):
        return baselines
    return {cell: baselines.get(cell, fewest) for cell, fewest in _fewest_devices_cells(runs).items()}


def with_baseline_ratios(rows: pd.DataFrame, runs: pd.DataFrame, cell_means: CellMeans) -> pd.DataFrame:
    """Return rows by cell with baseline_cell, and ratio to it with bounds, of the means of the cells.

    The ratio of a baseline to itself is 1 and has no bounds.
    """
    baselines = {
        cell: baseline_cell
        for cell, baseline_cell in baseline_cells(runs).items()
        if {cell, baseline_cell} <= set(rows.index)
    }
    ratios = cell_means.ratios(numerator=list(baselines), denominator=list(baselines.values()))
    ratios = ratios.set_index(pd.Index(list(baselines)))
    baseline_of = rows["cell"].map(baselines)
    is_own = rows["cell"] == baseline_of
    bounds = {
        f"ratio{end}": ratios[part].reindex(rows.index).mask(is_own, math.nan if end else 1.0)
        for part, end in (("value", ""), ("low", "_low"), ("high", "_high"))
    }
    return rows.assign(baseline_cell=baseline_of, **bounds)


def _fewest_devices_cells(runs: pd.DataFrame) -> dict[str, str]:
    """Map measured cells to the cell with the fewest devices among those that differ in size only.

    A cell that no other one differs from in nodes and devices alone is mapped to itself.
    """
    cells = successful(runs).drop_duplicates("cell").sort_values("n_devices", kind="stable")
    names = varying(runs, exclude=NODES_AND_DEVICES)
    groups = groups_by(cells, names)["cell"]
    return dict(zip(cells["cell"], groups.transform("first"), strict=True))


def one_device_cells_by_batch_size(runs: pd.DataFrame) -> dict[str, str]:
    """Map cells to the framework's own measured cell on one device with the same `batch_size`.

    A series over nodes begins there: with a global batch, one device has all samples of a step.
    """
    return _one_device_cells(runs, ("framework",), "batch_size")


def one_device_cells_by_local_batch(runs: pd.DataFrame) -> dict[str, str]:
    """Map cells to the framework's own measured cell on one device with the same `local_batch`.

    A step there computes as much as a step of each replica, so its time is that of computation.
    """
    return _one_device_cells(runs, ("framework",), "local_batch")


def _one_device_cells(runs: pd.DataFrame, framework_columns: Sequence[str], batch: str) -> dict[str, str]:
    """Map cells to measured cells on one device at the same levels.

    `batch` and all varying factors except framework, nodes and devices have to match. A factor without effect
    on one device has to match only if it varies among the framework's cells on one device. Example:
    `sync_every` varies over 1 and 4. If pytorch-single was planned with 1 only, its cell matches cells with 1
    and with 4. If it was planned with both, each cell matches the one at the same level.

    Args:
        runs: Runs of the study.
        framework_columns: Columns that name the framework of the baseline; the first one with a match counts.
        batch: The column that must be equal for equal batches.
    """
    rows = cell_levels(runs)
    local = runs.drop_duplicates("cell").set_index("cell")["local_batch"]
    rows = rows.assign(local_batch=rows["cell"].map(local).fillna(rows["batch_size"]))
    measured = rows[rows["cell"].isin(set(successful(runs)["cell"])) & (rows["n_devices"] == 1)]
    candidates = [*varying(rows, exclude=["framework", "nodes", "devices_per_node", "batch_size"]), batch]
    factors_to_match = {
        name: [f for f in candidates if f not in WITHOUT_EFFECT_ON_ONE_DEVICE or f in varying(group)]
        for name, group in rows[rows["n_devices"] == 1].groupby("framework")
    }
    at_levels = {
        (framework, *levels): cell
        for framework, group in measured.groupby("framework")
        for cell, *levels in group[["cell", *factors_to_match[framework]]].itertuples(index=False)
    }
    matches = {}
    for cell in rows.itertuples(index=False):
        for framework in (getattr(cell, name) for name in framework_columns):
            levels = [getattr(cell, name) for name in factors_to_match.get(framework, [])]
            if (framework, *levels) in at_levels:
                matches[cell.cell] = at_levels[framework, *levels]
                break
    return matches


def build_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per measured cell: epoch time, baseline, speed-up and efficiency, with intervals."""
    baselines = baseline_cells(runs)
    cell_means = estimate_means(runs)
    by_cell = cell_levels(runs).set_index("cell", drop=False)
    ratios = cell_means.ratios(numerator=list(baselines.values()), denominator=list(baselines))
    estimates = (Estimate(*row) for row in ratios[ESTIMATE_COLUMNS].itertuples(index=False))
    speedups = dict(zip(baselines, estimates, strict=True))
    within_blocks = dict(zip(baselines, ratios["within_blocks"], strict=True))
    rows = []
    for cell in by_cell.loc[by_cell.index.isin(list(cell_means.values_by_cell))].itertuples(index=False):
        baseline = baselines.get(cell.cell)
        mean = cell_means.cell_mean(cell.cell)
        reference = cell_means.cell_mean(baseline) if baseline else Estimate(float("nan"))
        is_own = baseline == cell.cell
        speedup = Estimate(1.0) if is_own else speedups.get(cell.cell, Estimate(math.nan))
        n_devices = int(cell.n_devices)
        baseline_n_devices = int(by_cell.at[baseline, "n_devices"]) if baseline else 1
        rows.append(
            {
                "cell": cell.cell,
                **{name: getattr(cell, name) for name in factor_names(by_cell)},
                "n_devices": n_devices,
                "n": mean.n,
                **columns("epoch_time_s", mean),
                "baseline_cell": baseline,
                "baseline_framework": by_cell.at[baseline, "framework"] if baseline else None,
                "baseline_n_devices": baseline_n_devices,
                "baseline_n": reference.n,
                **columns("baseline_epoch_time_s", reference),
                **columns("speedup", speedup),
                **columns("efficiency", _divide(speedup, n_devices / baseline_n_devices)),
                **columns("karp_flatt", karp_flatt(speedup, n_devices if baseline_n_devices == 1 else 1)),
                "within_blocks": math.nan if is_own else within_blocks.get(cell.cell, math.nan),
            }
        )
    names = ["cell", *factor_names(by_cell), "baseline_cell", "baseline_n_devices", "within_blocks"]
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else names)


def accumulates_as_baseline(data: pd.DataFrame) -> pd.Series:
    """Return whether each row of the table has as many gradient accumulation steps as its baseline.

    A row without a baseline counts as equal. Otherwise its speed-up contains what accumulation saves.
    """
    if "sync_every" not in data:
        return pd.Series(True, index=data.index)
    steps = dict(zip(data["cell"], data["sync_every"], strict=True))
    return data["baseline_cell"].map(steps).fillna(data["sync_every"]) == data["sync_every"]


def accumulation_note(data: pd.DataFrame) -> str:
    """Say how many rows have another gradient accumulation than their baseline; "" if there are none."""
    count = int((~accumulates_as_baseline(data)).sum())
    text = (
        f"{number_of(count, 'cell')} with gradient accumulation {'is' if count == 1 else 'are'} compared "
        "with a baseline without it: the speed-up includes what accumulation saves."
    )
    return Note("other-accumulation-than-baseline", text, cells=count) if count else ""


def _divide(estimate: Estimate, by: float) -> Estimate:
    return Estimate(estimate.value / by, estimate.low / by, estimate.high / by)


def karp_flatt(speedup: Estimate, n_devices: float) -> Estimate:
    """Return the serial fraction e = (1 / S - 1 / p) / (1 - 1 / p) of a speed-up S on p > 1 devices.

    Karp & Flatt, Measuring Parallel Processor Performance, CACM 33(5), 1990. The fraction decreases with S,
    so its bounds are those of S in reverse. A negative value means a speed-up above p, a value above 1 a
    slow-down.
    """
    if n_devices <= 1:
        return Estimate(float("nan"))
    fractions = [
        (1 / s - 1 / n_devices) / (1 - 1 / n_devices) for s in (speedup.value, speedup.high, speedup.low)
    ]
    return Estimate(fractions[0], fractions[1], fractions[2], speedup.n)


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table of speed-ups of a study."""
    data = build_rows(runs)
    has_larger_baselines = bool((data["baseline_n_devices"] > 1).any())
    notes = [
        conditions.run_counts_note(runs),
        (
            "Speed-up: mean epoch time of the baseline divided by that of the cell. Efficiency: speed-up "
            "divided by the ratio of the numbers of devices. "
        )
        + (conditions.comparison_note(data["within_blocks"]) or "Speed-ups have no intervals.")
        + (SHARED_BLOCKS if (data["within_blocks"] > 0).any() else ""),
        "Serial fraction: determined from the measurement, (1/S − 1/p) / (1 − 1/p) with speed-up S on p "
        "devices (Karp & Flatt 1990); its interval follows from that of S. It includes everything that more "
        "devices do not shorten, such as communication and the cost of the framework. Above 1, more devices "
        "slow the epoch down; below 0, the speed-up is more than p.",
        "Baseline: the single-device framework named in the row, at the same levels of all other factors "
        "that it varies. Without it, the framework's own cell on one device, or on the fewest devices if "
        "runs were measured elsewhere. A row that is its own baseline has speed-up 1 by definition, without "
        "an interval.",
        accumulation_note(data),
        conditions.device_count_note(runs),
        conditions.measurement_note(runs),
    ]
    if data.empty:
        return tables.Table(
            "Speed-up and efficiency", data, pd.DataFrame(columns=["framework"]), notes, ["framework"]
        )
    without_baseline = data.loc[data["baseline_cell"].isna(), "cell"].tolist()
    if without_baseline:
        text = f"Without a successful baseline: {conditions.join_names(without_baseline)}."
        notes.insert(2, Note("cells-without-baseline", text, cells=without_baseline))
    display = level_texts(data, runs)
    if (data["n_devices"] != data["nodes"]).any():
        display["devices"] = data["n_devices"].map(str)
    display["epoch time (s)"] = tables.interval_texts(data, "epoch_time_s")
    display["baseline"] = data["baseline_framework"].where(data["baseline_framework"].notna(), tables.DASH)
    display["baseline (s)"] = tables.interval_texts(data, "baseline_epoch_time_s")
    if has_larger_baselines:
        display["on devices"] = data["baseline_n_devices"].map(str)
    display["speed-up"] = tables.interval_texts(data, "speedup")
    display["efficiency"] = tables.interval_texts(data, "efficiency")
    if data["karp_flatt"].notna().any() or not has_larger_baselines:
        display["serial fraction"] = tables.interval_texts(data, "karp_flatt")
    return tables.Table(
        title="Speed-up and efficiency of epoch time with their baseline in seconds",
        data=data.drop(
            columns=[
                *(name for name in factor_names(data) if data[name].isna().all()),
                *([] if has_larger_baselines else ["baseline_n_devices"]),
            ]
        ),
        display=pd.DataFrame(display),
        notes=notes,
        left_aligned=["baseline"],
    )
