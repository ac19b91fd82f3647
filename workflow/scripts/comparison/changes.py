"""Compute ratios of epoch times between two campaigns by cell, with intervals and corrected p-values.

Campaigns share no block, so a cell's runs in each are independent groups (Welch 1947). Each campaign has its
own standard deviations (analysis.cell_means). Degrees of freedom are by Satterthwaite (Biometrics 2, 1946).
"""

import numpy as np
import pandas as pd

from analysis import intervals, tables
from analysis.cell_means import estimate_means
from analysis.conditions import join_names
from analysis.intervals import SIGNIFICANCE_LEVEL
from analysis.level_words import level_text, title
from analysis.records import varying
from common.notes import Note
from common.text import number_of
from comparison.matched import Compared

TITLE = "Epoch times of the cells of two campaigns, with 95 % intervals"
# Verdicts.
CHANGES = SLOWER, FASTER = "slower", "faster"
UNCHANGED, UNKNOWN = "no change shown", "no interval"


def changes(compared: Compared) -> pd.DataFrame:
    """Compare the mean epoch times of two campaigns, cell by cell.

    Returns:
        A row per cell: cell, the factors that vary, from_n, from_s (base), to_n, to_s (other campaign), ratio
        with bounds, p, p_holm, verdict. The ratio is the mean in the other campaign over the mean in the
        base. The verdict is "slower" or "faster" (p_holm < 0.05), "no change shown", or "no interval" if the
        cell has a single run in a campaign whose cells do not show a typical variance either
        (`cell_means.estimate_prior`).
    """
    data = compared.cells[compared.cells["cell"].isin(compared.common)].reset_index(drop=True)
    data = data[["cell", *varying(data)]]
    base_means, other_means = (
        estimate_means(runs).cell_statistics.loc[compared.common]
        for runs in (compared.base_runs, compared.other_runs)
    )
    log_ratio, error, df = log_ratios(other_means, base_means)
    low, high = intervals.t_interval(log_ratio, error, df)
    p = intervals.two_sided_p(log_ratio, error, df)
    for end, means in (("from", base_means), ("to", other_means)):
        data[f"{end}_n"], data[f"{end}_s"] = means["n"].to_numpy(), means["mean"].to_numpy()
    data = data.assign(ratio=np.exp(log_ratio), ratio_low=np.exp(low), ratio_high=np.exp(high), p=p)
    data["p_holm"] = intervals.holm(p.tolist())
    directions = np.where(data["ratio"] > 1, SLOWER, FASTER)
    data["verdict"] = np.where(
        data["p_holm"] < SIGNIFICANCE_LEVEL, directions, np.where(np.isnan(p), UNKNOWN, UNCHANGED)
    )
    return data


def log_ratios(
    numerator: pd.DataFrame, denominator: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the log ratios of means of independent groups, their standard errors and df, [rows].

    Args:
        numerator: Columns mean, s (standard deviation of logarithms), n, and df of s, such as those of
            `CellMeans.cell_statistics`.
        denominator: The same columns, row by row.
    """
    (mean, s, n, df), (base_mean, base_s, base_n, base_df) = (
        means[["mean", "s", "n", "df"]].to_numpy(float).T for means in (numerator, denominator)
    )
    error, welch_df = intervals.welch_error(s**2 / n, df, base_s**2 / base_n, base_df)
    return np.log(mean / base_mean), error, welch_df


def table(compared: Compared) -> tables.Table:
    """Return the table of compared cells, with notes on what else differs and what is not compared."""
    data = changes(compared)
    base_name, other_name = compared.names
    varied = [name for name in data if name in varying(compared.cells)]
    columns = {title(name): data[name].map(level_text) for name in varied} or {"cell": data["cell"]}
    columns |= {
        f"{base_name} (s)": tables.mean_texts(data, "from_s", "ratio"),
        f"{other_name} (s)": tables.mean_texts(data, "to_s", "ratio"),
        "n": [f"{x}, {y}" for x, y in zip(data["from_n"], data["to_n"], strict=True)],
        "ratio": tables.interval_texts(data, "ratio"),
        "p (Holm)": data["p_holm"].map(tables.p_value),
        "change": data["verdict"],
    }
    notes = [
        summary(compared, data),
        f"Ratio: mean epoch time in {other_name} divided by that in {base_name}; below 1, {other_name} is "
        f"faster. n: successful runs in {base_name} and in {other_name}. Intervals are 95 % t intervals of "
        "the difference of mean logarithms of independent groups (Welch, Satterthwaite), with the same "
        "standard deviations as the tables of each campaign. They are not corrected for several "
        "comparisons.",
        "p: two-sided, for a ratio of 1, corrected by Holm's method for all comparisons.",
        "The campaigns share no session: every ratio includes what differed between their days, which no "
        "interval covers.",
        compared.algorithms,
        differing(compared),
        not_compared(compared),
    ]
    left_aligned = [title("training_loop"), "cell", "change"]
    return tables.Table(TITLE, data, pd.DataFrame(columns), notes, left_aligned)


def summary(compared: Compared, data: pd.DataFrame) -> Note:
    """Return how many cells changed, and the geometric mean of their ratios."""
    base_name, other_name = compared.names
    counts = data["verdict"].value_counts().to_dict()
    parts = [
        f"{counts[verdict]} {'' if verdict in CHANGES else 'with '}{verdict}"
        for verdict in (*CHANGES, UNCHANGED, UNKNOWN)
        if verdict in counts
    ]
    mean = float(np.exp(np.log(data["ratio"]).mean()))
    text = (
        f"From {base_name} to {other_name}, of {number_of(len(data), 'compared cell')}: {', '.join(parts)}. "
        f"Geometric mean of the ratios {tables.number(mean)}."
    )
    unchanged = data[data["verdict"] == UNCHANGED]
    if len(unchanged):
        low, high = unchanged["ratio_low"].min(), unchanged["ratio_high"].max()
        text += (
            " Cells with no change shown can still differ: their intervals reach from "
            f"{tables.number(low)} to {tables.number(high)}."
        )
    return Note(
        "changes", text, base=base_name, other=other_name, cells=len(data), by_change=counts, mean_ratio=mean
    )


def differing(compared: Compared) -> Note:
    """Return a note on what else differs between the campaigns and can explain a change."""
    differences = compared.differences
    if not differences:
        text = (
            "The records show no other difference between the compared runs, so a change comes from the "
            "machine itself."
        )
        return Note("no-other-difference", text)
    caution = "" if len(differences) == 1 else " A change cannot be attributed to one of these alone."
    return Note(
        "differences",
        f"What differs between the compared runs: {'; '.join(differences)}.{caution}",
        notes=differences,
    )


def not_compared(compared: Compared) -> str:
    """Return a note on the cells that are not compared, by reason; "" if all are."""
    by_reason: dict[Note, list[str]] = {}
    for cell, reason in compared.refused.items():
        by_reason.setdefault(reason, []).append(cell)
    parts = [f"{reason}: {join_names(cells)}" for reason, cells in by_reason.items()]
    return Note("not-compared", f"Not compared: {'; '.join(parts)}.", cells=by_reason) if parts else ""
