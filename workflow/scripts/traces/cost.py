"""Table of what tracing costs: of every traced cell the ratio of its epoch time to that of the same cell untraced."""

from typing import Any

import pandas as pd

from analysis import conditions, tables
from analysis.intervals import columns
from analysis.measured import cells, factors, level_text, successful, title, varying
from analysis.pooling import pooled
from common.notes import Note
from declared.factors import UNTRACED, is_traced
from traces.cells import estimate, texts

TITLE = "What tracing costs: epoch time traced over untraced, with 95 % intervals"
LITTLE = 1.02  # the ratio that a trace of phases should stay below
NOT_MEASURED = Note("not-measured", "No cell has successful runs both traced and untraced.")
NOT_PLANNED = Note(
    "not-planned", "No cell was planned both traced and untraced; say trace: [none, phases] in the study."
)


def untraced_cells(runs: pd.DataFrame) -> dict[str, str]:
    """Every traced cell -> the cell that differs from it in nothing but that it is not traced, where the study has one."""
    levels = [name for name in factors() if name != "trace"]
    rows = cells(runs)[["cell", *factors()]].to_dict("records")
    plain = {tuple(str(row[name]) for name in levels): str(row["cell"]) for row in rows if row["trace"] == UNTRACED}
    found = {str(row["cell"]): plain.get(tuple(str(row[name]) for name in levels)) for row in rows if is_traced(row)}
    return {cell: other for cell, other in found.items() if other}


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per traced cell that was measured untraced, too: cell, untraced_cell, n, both times, their ratio with interval, p."""
    measured = set(successful(runs)["cell"])
    pairs = {cell: other for cell, other in untraced_cells(runs).items() if {cell, other} <= measured}
    pooling = pooled(runs)
    ratios = pooling.ratios(list(pairs), list(pairs.values()))
    rows: list[dict[str, Any]] = [
        {
            "cell": cell,
            "untraced_cell": other,
            "n": int(ratio["n"]),
            **columns("traced_s", pooling.cell_mean(cell)),
            **columns("untraced_s", pooling.cell_mean(other)),
            **columns("ratio", estimate(ratio)),
            "p": ratio["p"],
            "within_blocks": ratio["within_blocks"],
        }
        for (cell, other), (_, ratio) in zip(pairs.items(), ratios.iterrows(), strict=True)
    ]
    data = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", "untraced_cell", "n", "ratio"])
    order = {cell: place for place, cell in enumerate(cells(runs)["cell"])}
    return data.sort_values("cell", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)


def table(runs: pd.DataFrame) -> tables.Table:
    """The table. `runs`: all of the study."""
    data = compare(runs)
    if data.empty:
        said = [NOT_MEASURED if untraced_cells(runs) else NOT_PLANNED, conditions.setting_note(runs)]
        return tables.Table(TITLE, pd.DataFrame(), pd.DataFrame(columns=["framework"]), said, ["framework"])
    rows = cells(runs).set_index("cell")
    names = ["framework", *varying(runs, but=["framework"])]
    shown = {
        **{title(name): data["cell"].map(rows[name]).map(level_text) for name in names},
        "n": data["n"].map(str),
        "traced (s)": texts(data, "traced_s"),
        "untraced (s)": texts(data, "untraced_s"),
        "ratio": texts(data, "ratio"),
        "p": [tables.p_value(p) for p in data["p"]],
    }
    notes = [
        " ".join([conditions.run_counts_note(runs), *(_compared(data) if data["ratio_low"].notna().any() else ())]),
        _verdict(data),
        conditions.setting_note(runs),
    ]
    full = {name: data["cell"].map(rows[name]) for name in factors() if rows[name].notna().any()}
    listed = pd.concat([data[["cell"]], pd.DataFrame(full), data.drop(columns="cell")], axis=1)
    words = [title(name) for name in ("framework", "model", "dataset", "trace")]
    return tables.Table(TITLE, listed, pd.DataFrame(shown), [note for note in notes if note], words)


def _compared(data: pd.DataFrame) -> list[str]:
    return [conditions.comparison_note(data["within_blocks"]), "In brackets the interval."]


def _verdict(data: pd.DataFrame) -> Note:
    """Return how many cells show a cost, where it is more than LITTLE, and where nobody can tell: without an interval."""
    known = data[data["ratio_low"].notna()]
    facts = {"cells": len(known), "unknown": len(data) - len(known)}
    if known.empty:
        return Note("tracing-costs", "What tracing costs cannot be told without replicates.", **facts)
    shown, more = int((known["ratio_low"] > 1).sum()), int((known["ratio_low"] > LITTLE).sum())
    unsure = int((~(known["ratio_high"] < LITTLE)).sum()) - more
    limit = f"{100 * (LITTLE - 1):.0f} %"
    said = [
        f"Tracing shows a cost in {shown} of {len(known)} cells"
        + (f", of more than {limit} in {more}." if shown else "."),
        f"In {unsure}, the interval does not exclude {limit}." if unsure else "",
        f"In {facts['unknown']} more, it cannot be told without replicates." if facts["unknown"] else "",
    ]
    return Note("tracing-costs", " ".join(filter(None, said)), **facts, shown=shown, more=more, unsure=unsure)
