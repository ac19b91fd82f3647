"""The tables of a scaling projection: one of curves, and one of single numbers of nodes on them."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis import tables
from analysis.level_words import title
from prediction.curves import CURVE, EFFICIENCIES, FACTORS, SUFFIXES
from prediction.message_times import rate_text

TITLE = "How many nodes are worth it, by the rate of the links"
COUNTS_TITLE = "What numbers of nodes give, with 90 % bands"
COLUMN_TITLES = {"treatment": "treatment", "rate": "links"}  # Titles of columns that are not factors.
QUANTITIES = {
    "epoch_time_s": "epoch (s)", "speedup": "speed-up", "throughput_samples_s": "samples/s",
    "efficiency": "efficiency (%)", "node_hours": "node hours", "cost": "cost",
}  # fmt: skip


def curves_table(rows: pd.DataFrame, notes: Sequence[str]) -> tables.Table:
    """Return the table of the curves; `rows` from `projection.summarize_curves`."""
    if rows.empty:
        return tables.Table(TITLE, rows, pd.DataFrame(), list(notes))
    constant = [name for name in ("device", "treatment") if rows[name].nunique() == 1]
    columns = _case_columns(rows, [name for name in CURVE if name not in constant])
    text_columns = [*columns][:-2]
    columns["nodes worth it"] = _band_texts(rows, "worth_nodes")
    columns["next doubling gains (%)"] = [tables.number(100 * gain, 2) for gain in rows["next_gain"]]
    columns["limited by"] = rows["limit"].where(rows["limit"] != "", tables.DASH)
    for level in EFFICIENCIES:
        columns[f"nodes at {100 * level:.0f} % efficiency"] = _band_texts(rows, f"nodes_at_{100 * level:.0f}")
    columns["measure next"] = rows["measure_next"].where(rows["measure_next"] != "", tables.DASH)
    group_starts = rows.index[(rows[FACTORS] != rows[FACTORS].shift()).any(axis=1)].tolist()
    rules = group_starts[1:] if len(group_starts) < len(rows) else []
    left_aligned = [*text_columns, "limited by"]
    return tables.Table(TITLE, rows, pd.DataFrame(columns), list(notes), left_aligned, rules)


def _case_columns(rows: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    """Return the columns of `names` as text, by their headings."""
    return {
        COLUMN_TITLES.get(name) or title(name): rows[name].map(rate_text if name == "rate" else str)
        for name in names
    }


def counts_table(curves: pd.DataFrame, counts: Sequence[int]) -> tables.Table:
    """Return the table of the predictions on some numbers of nodes, by case and link rate."""
    rows = curves[curves["nodes"].isin(counts)].reset_index(drop=True)
    columns = _case_columns(rows, [name for name in CURVE if rows[name].nunique(dropna=False) > 1])
    columns["nodes"] = rows["nodes"].map("{:.0f}".format)
    for name, heading in QUANTITIES.items():
        if rows[name].notna().any():
            unit = f" ({rows['currency'].iloc[0]})" if name == "cost" and rows["currency"].iloc[0] else ""
            columns[f"{heading}{unit}"] = _band_texts(rows, name, 100 if name == "efficiency" else 1)
    return tables.Table(COUNTS_TITLE, rows, pd.DataFrame(columns), [])


def _band_texts(rows: pd.DataFrame, name: str, factor: float = 1.0) -> list[str]:
    """Return a column with its band as text; node counts at the end of the curve as "≥n"."""
    values = factor * rows[[f"{name}{suffix}" for suffix in SUFFIXES]]
    texts = values.map(tables.number)
    if "nodes" in name:
        open_ends = "≥" + rows["most_nodes"].map("{:.0f}".format)
        is_open = values.ge(rows["most_nodes"], axis=0)
        texts = values.map("{:.0f}".format).mask(is_open, open_ends, axis=0)
    return [f"{value} [{low}, {high}]" for value, low, high in texts.itertuples(index=False)]
