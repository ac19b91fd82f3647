"""Table of prediction errors: each method predicts cells on several nodes that were held out of its fit.

The folds hold out the largest number of nodes, the two largest, each batch size, each link rate, each
strategy with model parallelism, and two corners: cells that are extreme in all factors are predicted from
cells that are extreme in none. Collective benchmarks at held-out node counts or rates are not used either. A
second CSV has every prediction. Bands are the law's own (`StudyPredictor.predict`). The docstring of
prediction.projection says how scaling projections differ.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, intervals, tables
from analysis.intervals import Estimate
from analysis.level_words import combination_text, treatment_text
from analysis.records import read_timing_runs, treatments, varying, with_batch_numbers
from common.notes import Note
from common.options import run_program
from declared.factors import MIN_LEVELS_TO_HOLD_OUT
from environments.built import read_built
from prediction.inputs import (
    adjusted_note,
    exclusion_note,
    heterogeneous_note,
    is_heterogeneous,
    measured_cells,
    pooled_cv,
)
from prediction.message_times import CollectiveBenchmark, rate_text, read_benchmark
from prediction.methods import LAW, NOT_HELD_OUT, Fold, Method, Prediction, methods

TITLE = "Errors of predicted epoch times, of cells on several nodes that were held out of the fit"
COMMON_CELLS = Note(
    "common-cells",
    "Common cells: cells that every method predicts, except methods that predict none of the held-out "
    "cells. Compare methods on the common cells.",
)
MESHES = (
    "With model parallelism, the law multiplies the computation of one device by each rank's share of the "
    "operators, and takes each message from the benchmark of its collective, or its bytes at the link rate."
)
GROUP_ON_NODE = (
    "Meshes with a group of ranks on one node are not predicted, because benchmarks do not measure within a "
    "node."
)
NOTHING_TO_PREDICT = Note(
    "nothing-to-predict",
    "Nothing to predict: needs cells on several nodes, and others with counted batches and all-reduces.",
)
NOTHING_HELD_OUT = Note(
    "nothing-held-out",
    "No cells can be held out: that needs more node counts, batch sizes, link rates or strategies.",
)
METHODS = Note(
    "methods",
    "The law: computation of a device, and the cost of more nodes in several forms (flat ring, "
    "hierarchical, tree, by the collective benchmark, growing with the logarithm of nodes), each fitted to "
    "the cells that are not held out, with weak priors from nominal rates, and averaged by how well each "
    "predicts one of these cells from the others. By hand: the smallest scale, plus 2 (n − 1) / n × "
    "gradient bytes at the link's rate, nothing fitted.",
)
COUNTED = Note("all-left-out", "All that was left out: a cell counts once for each fold that holds it out.")
IN_SAMPLE = "nothing (fit)"
# Kinds of folds that hold out cells.
KINDS = ("nodes", "batch size", "link rate", "corner", "strategy")
ALL = "all that was left out"
_percent_text = partial(tables.change, decimals=1)
EMULATED = Note(
    "emulated", "Nodes are emulated: this tests the methods on the loopback of one machine, not on a network."
)


def make_folds(cells: pd.DataFrame, benchmark: CollectiveBenchmark) -> Iterator[Fold]:
    """Yield the folds of a study; the first one holds out nothing.

    Args:
        cells: The study's `inputs.measured_cells`.
        benchmark: Its collective benchmark.
    """
    is_multi_node = cells["nodes"] > 1
    nodes, batches, rates = (
        sorted(cells.loc[is_multi_node, name].dropna().unique()) for name in ("nodes", "batch_size", "rate")
    )

    def make_fold(kind: str, name: str, **held_levels: list[float]) -> Fold:
        # Cells on one node have no link and no strategy, so they are not held out with a rate or a strategy.
        multi_node_only = ("rate", "parallelism")
        is_held_out = [
            cells[factor].isin(levels) & ((factor not in multi_node_only) | is_multi_node)
            for factor, levels in held_levels.items()
        ]
        kept_benchmark = benchmark.hold_out(held_levels.get("nodes", []), held_levels.get("rate", []))
        train = cells[~np.logical_or.reduce(is_held_out)] if is_held_out else cells
        test = cells[np.logical_and.reduce([is_multi_node, *is_held_out])]
        return Fold(name, kind, train.reset_index(drop=True), kept_benchmark, test.reset_index(drop=True))

    yield make_fold(NOT_HELD_OUT, IN_SAMPLE)
    if len(nodes) >= MIN_LEVELS_TO_HOLD_OUT["nodes"]:
        yield make_fold("nodes", f"{nodes[-1]:g} nodes", nodes=nodes[-1:])
    if len(nodes) > 2:
        yield make_fold("nodes", f"{nodes[-2]:g} and {nodes[-1]:g} nodes", nodes=nodes[-2:])
    for batch in batches if len(batches) >= MIN_LEVELS_TO_HOLD_OUT["batch_size"] else []:
        yield make_fold("batch size", f"batch size {batch}", batch_size=[batch])
    for rate in rates if len(rates) >= MIN_LEVELS_TO_HOLD_OUT["bandwidth"] else []:
        yield make_fold("link rate", f"links of {rate_text(rate)}", rate=[rate])
    strategies = cells.loc[is_multi_node, "parallelism"].unique()
    for strategy in strategies if cells["uses_mesh"].any() and len(strategies) > 1 else []:
        yield make_fold("strategy", f"parallelism {strategy}", parallelism=[strategy])
    for text, end in (("most", 0), ("least", -1)):
        held_levels = {
            name: [levels[index]]
            for name, levels, index, min_levels in (
                ("nodes", nodes, -1, MIN_LEVELS_TO_HOLD_OUT["nodes"]),
                ("batch_size", batches, end, MIN_LEVELS_TO_HOLD_OUT["batch_size"]),
                ("rate", rates, end, MIN_LEVELS_TO_HOLD_OUT["bandwidth"]),
            )
            if len(levels) >= min_levels
        }
        if len(held_levels) > 1:
            yield make_fold("corner", f"corner of {text} communication", **held_levels)


def evaluate(
    cells: pd.DataFrame, benchmark: CollectiveBenchmark, by_name: Mapping[str, Method]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return every prediction of every held-out cell, and a row for each fold and method.

    `summarize_method` makes the rows. If several folds hold out cells, the last rows pool ALL of them.
    """
    fold_tables: list[pd.DataFrame] = []
    rows: list[dict[str, Any]] = []
    predictions: dict[str, Prediction] = {}
    for fold in make_folds(cells, benchmark):
        if fold.test.empty:
            continue
        predictions = {name: method(fold) for name, method in by_name.items()}
        test = fold.test.assign(left_out=fold.title, kind=fold.kind)
        tests = [
            test.assign(
                method=name,
                predicted_s=prediction.seconds,
                predicted_s_low=prediction.low,
                predicted_s_high=prediction.high,
            )
            for name, prediction in predictions.items()
        ]
        fold_table = pd.concat(tests, ignore_index=True)
        fold_table["error"] = fold_table["predicted_s"] / fold_table["epoch_time_s"] - 1
        fold_table["common"] = is_common(fold_table)
        fold_tables.append(fold_table)
        rows += summarize_methods(fold_table, predictions)
    held_out = [fold_table for fold_table in fold_tables if fold_table["kind"].iloc[0] in KINDS]
    if len(held_out) > 1:
        pooled = pd.concat(held_out, ignore_index=True)
        pooled = pooled.assign(common=is_common(pooled), left_out=ALL)
        for row in summarize_methods(pooled, predictions):
            # The rows of folds have the remarks, and the reasons for cells without a prediction.
            rows.append(row | {"remarks": None, "problem": None if row["predicted"] else row["problem"]})
    columns = [
        "left_out", "kind", "method", "cell", *varying(cells), "rate", "n_devices", "epoch_time_s", "sd", "n",
        "predicted_s", "predicted_s_low", "predicted_s_high", "error",
    ]  # fmt: skip
    every = pd.concat(fold_tables) if fold_tables else pd.DataFrame(columns=columns)
    return every[list(dict.fromkeys(columns))], pd.DataFrame(rows)


def is_common(predictions: pd.DataFrame) -> np.ndarray:
    """Return which predictions are of cells that all methods predict, except methods that predict none."""
    predicted = predictions[predictions["predicted_s"].notna()]
    by_all = predicted.groupby(["left_out", "cell"])["method"].nunique() == predicted["method"].nunique()
    return pd.MultiIndex.from_frame(predictions[["left_out", "cell"]]).isin(by_all.index[by_all])


def summarize_methods(
    fold_table: pd.DataFrame, predictions: Mapping[str, Prediction]
) -> list[dict[str, Any]]:
    """Return the `summarize_method` row of each method in one fold, compared with the law."""
    by_method = dict(iter(fold_table.groupby("method", sort=False)))
    by_law = by_method.get(LAW)
    return [
        summarize_method(by_method[name], predictions[name], by_law if name != LAW else None)
        for name in by_method
    ]


def summarize_method(
    fold_table: pd.DataFrame, prediction: Prediction, by_law: pd.DataFrame | None = None
) -> dict[str, Any]:
    """Return bias, MAPE and worst cell of one method in one fold, as shares.

    `mape_common` is the MAPE of the common cells. `beyond` is the mean absolute error minus the law's
    (`by_law`) over cells that both predict. `in_band` is the share of measurements within the method's 90 %
    bands. `noise` is the MAPE of a method that knows the true means: the mean absolute value of normal noise
    is sqrt(2 / pi) times its standard deviation. MAPE and `beyond` have bounds of a bootstrap over cells.
    """
    errors = fold_table["error"].dropna()
    mape = intervals.bootstrap_mean(errors.abs().to_numpy(), fold_table["cell"][errors.index].to_numpy())
    worst = errors.abs().idxmax() if len(errors) else None
    beyond = Estimate(math.nan)
    if by_law is not None:
        # Both tables have the same cells in the same order.
        excess = fold_table["error"].abs().to_numpy() - by_law["error"].abs().to_numpy()
        is_paired = ~np.isnan(excess)
        beyond = intervals.bootstrap_mean(excess[is_paired], fold_table["cell"].to_numpy()[is_paired])
    return {
        "left_out": fold_table["left_out"].iloc[0],
        "method": fold_table["method"].iloc[0],
        "cells": len(fold_table),
        "predicted": len(errors),
        "bias": errors.mean(),
        **intervals.columns("mape", mape),
        **intervals.columns("beyond", beyond),
        "common": int(fold_table["common"].sum()),
        "mape_common": fold_table.loc[fold_table["common"], "error"].abs().mean(),
        "in_band": _band_share(fold_table),
        "worst": errors[worst] if worst is not None else math.nan,
        "worst_cell": fold_table["cell"][worst] if worst is not None else None,
        "noise": math.sqrt(2 / math.pi) * pooled_cv(fold_table, of_means=True),
        "problem": prediction.problem or None if len(errors) < len(fold_table) else None,
        "remarks": " ".join(prediction.notes) or None,
    }


def _band_share(fold_table: pd.DataFrame) -> float:
    """Return the share of measured times within their bands; NaN for a method without bands."""
    banded = fold_table.dropna(subset=["predicted_s_low", "predicted_s_high"])
    if banded.empty:
        return math.nan
    low, high = (banded[f"predicted_s_{end}"].astype(float) for end in ("low", "high"))
    return float(((low <= banded["epoch_time_s"]) & (banded["epoch_time_s"] <= high)).mean())


def table(runs: pd.DataFrame, cells: pd.DataFrame, rows: pd.DataFrame) -> tables.Table:
    """Return the table of a study; `rows` from `evaluate`."""
    text_columns = ["left out", "method", "worst cell"]
    site_notes = [
        EMULATED if conditions.is_emulated(runs) else "",
        adjusted_note(runs),
        exclusion_note(runs, include_meshes=True),
        heterogeneous_note(runs),
        conditions.measurement_note(runs),
    ]
    if rows.empty or (rows["left_out"] == IN_SAMPLE).all():
        data, display = (
            pd.DataFrame(columns=names) for names in (["left_out", "method", "mape"], ["left out"])
        )
        notes = [NOTHING_TO_PREDICT if rows.empty else NOTHING_HELD_OUT, *filter(None, site_notes)]
        return tables.Table(TITLE, data, display, notes, text_columns)
    is_first, has_predictions = rows["left_out"] != rows["left_out"].shift(), rows["predicted"] > 0
    counts = zip(rows["predicted"], rows["cells"], strict=True)
    not_predicted = "not predicted: " + rows["problem"].fillna("")
    columns = {
        "left out": rows["left_out"].where(is_first, ""),
        "method": rows["method"],
        "cells": [f"{k}" if k == n else f"{k} of {n}" for k, n in counts],
        "bias (%)": rows["bias"].map(_percent_text),
        "MAPE (%)": _interval_texts(rows, "mape"),
        "beyond the law (points)": _interval_texts(rows, "beyond"),
        "common cells": rows["common"].map(str).where(is_first, ""),
        "MAPE, common (%)": rows["mape_common"].map(_percent_text),
        "in band (%)": rows["in_band"].map(_percent_text),
        "worst (%)": rows["worst"].map(_percent_text),
        "MAPE by noise (%)": rows["noise"].map(_percent_text).where(is_first, ""),
        "worst cell": rows["worst_cell"].map(_cell_labels(cells)).where(has_predictions, not_predicted),
    }
    incomplete = rows[(rows["predicted"] < rows["cells"]) & has_predictions]
    incomplete = incomplete.sort_values("problem", kind="stable").drop_duplicates("method").sort_index()
    if incomplete.empty:
        del columns["common cells"], columns["MAPE, common (%)"]
    error = (
        "Error: predicted divided by measured mean epoch time, minus 1. Bias is its mean, MAPE the mean of "
        "its absolute value, worst the largest, with its sign. Beyond the law: mean absolute error minus "
        "that of the law, over cells that both predict; above 0, the law is better. In band: measurements "
        "within the law's 90 % bands. In brackets: 95 % intervals of a bootstrap over cells (BCa, "
        f"{intervals.RESAMPLES:,} samples), with {intervals.MIN_CLUSTERS} cells or more. Only "
        "cells on several nodes are predicted. MAPE by noise: the MAPE of a method that knows the true "
        "means, which is not 0 because measured means scatter: √(2/π) times the pooled coefficient of "
        "variation of these cells' means over replicates. By chance a method can be slightly below it; a "
        "method that saw these cells can be far below."
    )
    notes = [
        Note("error", error),
        COUNTED if ALL in set(rows["left_out"]) else "",
        "" if incomplete.empty else COMMON_CELLS,
        METHODS,
        _mesh_note(cells[cells["uses_mesh"]]),
        *_method_notes(rows, incomplete.dropna(subset="problem")),
        *site_notes,
    ]
    data, fold_starts = rows.dropna(axis="columns", how="all"), rows.index[is_first].tolist()
    notes = list(filter(None, notes))
    return tables.Table(TITLE, data, pd.DataFrame(columns), notes, text_columns, fold_starts[1:])


def _method_notes(rows: pd.DataFrame, incomplete: pd.DataFrame) -> Iterator[Note]:
    """Yield why methods do not predict cells, and their remarks with the folds that they are about."""
    for name, problem in zip(incomplete["method"], incomplete["problem"], strict=True):
        text = f"{name} does not predict some cells: {problem}."
        yield Note("method-leaves-out", text, method=name, problem=problem)
    remarks = rows.dropna(subset=["remarks"]).groupby(["method", "remarks"], sort=False)["left_out"].agg(list)
    for (method, remark), folds in remarks.items():
        text = f"{method} ({conditions.join_names(folds)}): {remark}"
        yield Note("method-remark", text, method=method, left_out=folds, remark=remark)


def _cell_labels(cells: pd.DataFrame) -> dict[str, str]:
    """Return each cell's varying levels as text, with the link rate, by cell name."""
    treated, has_rates = treatments(cells), cells["rate"].nunique(dropna=False) > 1
    names = varying(cells, exclude=["bandwidth", *treated])
    labels = {}
    for row in cells.to_dict("records"):
        texts = [combination_text({name: row[name] for name in names})]
        texts += [treatment_text({name: row[name] for name in treated})] if treated else []
        texts += [f"links of {rate_text(row['rate'])}"] if has_rates else []
        labels[str(row["cell"])] = ", ".join(texts)
    return labels


def _interval_texts(rows: pd.DataFrame, name: str) -> list[str]:
    """Return shares in per cent as text, with their bounds if they have any."""
    value, low, high = (
        rows[f"{name}{end}"].astype(float).map(_percent_text) for end in ("", "_low", "_high")
    )
    return value.where(rows[f"{name}_low"].isna(), value + " [" + low + ", " + high + "]").tolist()


def _mesh_note(meshes: pd.DataFrame) -> str:
    """Return a note on how cells with model parallelism are predicted, "" without such cells."""
    if meshes.empty:
        return ""
    within = bool((meshes["ranks"] > meshes["nodes"]).any())
    return Note("meshes", f"{MESHES} {GROUP_ON_NODE}" if within else MESHES, ranks_within_nodes=within)


def main(*, runs: Path, out: Path, network: Path | None = None, extrap: Path | None = None) -> None:
    """Write the table of prediction errors, and a CSV of every prediction.

    Args:
        runs: runs.csv of the study
        out: files to write, without their suffix
        network: network.csv of the study, if there is a collective benchmark
        extrap: compare with Extra-P, too: the environment.json of containers/extrap
    """
    python = Path(read_built(extrap)["python"]["executable"]) if extrap else None
    measured = with_batch_numbers(read_timing_runs(runs))
    cells = measured_cells(measured[~is_heterogeneous(measured)], include_meshes=True)
    every, rows = evaluate(cells, read_benchmark(network, cells), methods(python))
    tables.write_csv(every, out.with_name(f"{out.name}_cells.csv"))
    tables.write(table(measured, cells, rows), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
