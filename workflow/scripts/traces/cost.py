"""Table `tracing`: the cost of tracing, traced over untraced epoch time of every traced cell."""

from typing import Any

import pandas as pd

from analysis import conditions, tables
from analysis.cell_means import estimate_means
from analysis.intervals import columns
from analysis.level_words import title
from analysis.records import cell_levels, successful
from common.notes import Note
from declared.factors import UNTRACED, factor_names, is_traced
from traces.cells import add_factors, estimate, level_columns

TITLE = "What tracing costs: epoch time traced over untraced, with 95 % intervals"
MAX_COST_RATIO = 1.02  # target for tracing phases
NOT_MEASURED = Note("not-measured", "No cell has successful runs both traced and untraced.")
NOT_PLANNED = Note(
    "not-planned", "No cell was planned both traced and untraced; set trace: [none, phases] in the study."
)


def untraced_cells(runs: pd.DataFrame) -> dict[str, str]:
    """Return, for every traced cell, the cell that is untraced but otherwise equal, if the study has one."""
    levels = [name for name in factor_names(runs) if name != "trace"]
    rows = cell_levels(runs)[["cell", *factor_names(runs)]].to_dict("records")
    plain = {
        tuple(str(row[name]) for name in levels): str(row["cell"]) for row in rows if row["trace"] == UNTRACED
    }
    keys = {str(row["cell"]): tuple(str(row[name]) for name in levels) for row in rows if is_traced(row)}
    return {cell: plain[key] for cell, key in keys.items() if key in plain}


def build_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each traced cell that was measured untraced, too.

    Columns: cell, untraced_cell, n, both epoch times and their ratio with intervals, p, within_blocks.
    """
    measured = set(successful(runs)["cell"])
    pairs = {
        cell: counterpart
        for cell, counterpart in untraced_cells(runs).items()
        if {cell, counterpart} <= measured
    }
    cell_means = estimate_means(runs)
    ratios = cell_means.ratios(list(pairs), list(pairs.values()))
    rows: list[dict[str, Any]] = [
        {
            "cell": cell,
            "untraced_cell": counterpart,
            "n": int(ratio["n"]),
            **columns("traced_s", cell_means.cell_mean(cell)),
            **columns("untraced_s", cell_means.cell_mean(counterpart)),
            **columns("ratio", estimate(ratio)),
            "p": ratio["p"],
            "within_blocks": ratio["within_blocks"],
        }
        for (cell, counterpart), (_, ratio) in zip(pairs.items(), ratios.iterrows(), strict=True)
    ]
    data = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", "untraced_cell", "n", "ratio"])
    order = {cell: place for place, cell in enumerate(cell_levels(runs)["cell"])}
    return data.sort_values("cell", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table; `runs`: all runs of the study."""
    data = build_rows(runs)
    if data.empty:
        why = NOT_MEASURED if untraced_cells(runs) else NOT_PLANNED
        empty = pd.DataFrame(columns=["framework"])
        return tables.Table(
            TITLE, pd.DataFrame(), empty, [why, conditions.measurement_note(runs)], ["framework"]
        )
    columns = {
        **level_columns(runs, data["cell"]),
        "n": data["n"].map(str),
        "traced (s)": tables.interval_texts(data, "traced_s"),
        "untraced (s)": tables.interval_texts(data, "untraced_s"),
        "ratio": tables.interval_texts(data, "ratio"),
        "p": [tables.p_value(p) for p in data["p"]],
    }
    sentences = [conditions.run_counts_note(runs)]
    if data["ratio_low"].notna().any():
        sentences += [conditions.comparison_note(data["within_blocks"]), "The interval is in brackets."]
    notes: list[str] = [" ".join(sentences), _verdict(data), conditions.measurement_note(runs)]
    csv_data = add_factors(runs, data).drop(columns="n_devices")
    return tables.Table(TITLE, csv_data, pd.DataFrame(columns), notes, [title("trace")])


def _verdict(data: pd.DataFrame) -> Note:
    """Return how many cells show a cost, how many one above MAX_COST_RATIO, and how many have no interval."""
    with_interval = data[data["ratio_low"].notna()]
    facts = {"cells": len(with_interval), "unknown": len(data) - len(with_interval)}
    if with_interval.empty:
        return Note("tracing-costs", "The cost of tracing is unknown without replicates.", **facts)
    n_shown, n_large = (int((with_interval["ratio_low"] > limit).sum()) for limit in (1, MAX_COST_RATIO))
    n_unsure = int((~(with_interval["ratio_high"] < MAX_COST_RATIO)).sum()) - n_large
    limit = f"{100 * (MAX_COST_RATIO - 1):.0f} %"
    sentences = [
        f"Tracing shows a cost in {n_shown} of {len(with_interval)} cells"
        + (f", of more than {limit} in {n_large}." if n_shown else "."),
        f"In {n_unsure}, the interval does not exclude {limit}." if n_unsure else "",
        f"In {facts['unknown']} more, it is unknown without replicates." if facts["unknown"] else "",
    ]
    facts |= {"shown": n_shown, "more": n_large, "unsure": n_unsure}
    return Note("tracing-costs", " ".join(filter(None, sentences)), **facts)
