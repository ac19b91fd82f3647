"""Compute ratios of epoch times between two campaigns by cell, with intervals and corrected p-values.

Campaigns share no block, so the runs of a cell are independent groups (Welch 1947). Standard deviations are
those of each campaign's own intervals (analysis.pooling), degrees of freedom are by Satterthwaite (Biometrics
2, 1946).
"""

import numpy as np
import pandas as pd

from analysis import intervals, tables
from analysis.conditions import join_names
from analysis.intervals import SIGNIFICANCE_LEVEL
from analysis.measured import level_text, title, varying
from analysis.pooling import pooled
from common.notes import Note
from common.text import number_of
from comparison.matched import Compared

TITLE = "Epoch times of the cells of two campaigns, with 95 % intervals"
CHANGES = ("slower", "faster")
UNCHANGED, UNKNOWN = "no change shown", "no interval"


def changes(compared: Compared) -> pd.DataFrame:
    """Return the changes of all compared cells.

    Returns:
        A row per cell: cell, the factors that vary, from_n, from_s, to_n, to_s, ratio with bounds, p, p_holm,
        change. The ratio is the mean epoch time in the contender over that in the base. The change is
        "slower" or "faster" (p_holm < 0.05), "no change shown", or "no interval" if the cell has a single run
        and its campaign has no pooled standard deviation.
    """
    data = compared.cells[compared.cells["cell"].isin(compared.common)].reset_index(drop=True)
    data = data[["cell", *varying(data)]]
    base, contender = (
        pooled(runs).cell_statistics.loc[compared.common] for runs in (compared.base, compared.contender)
    )
    change, error, df = log_ratios(base, contender)
    low, high = intervals.t_interval(change, error, df)
    p = intervals.two_sided_p(change, error, df)
    for end, own in (("from", base), ("to", contender)):
        data[f"{end}_n"], data[f"{end}_s"] = own["n"].to_numpy(), own["mean"].to_numpy()
    data = data.assign(ratio=np.exp(change), ratio_low=np.exp(low), ratio_high=np.exp(high), p=p)
    data["p_holm"] = intervals.holm(p.tolist())
    sides = np.where(data["ratio"] > 1, *CHANGES)
    data["change"] = np.where(
        data["p_holm"] < SIGNIFICANCE_LEVEL, sides, np.where(np.isnan(p), UNKNOWN, UNCHANGED)
    )
    return data


def log_ratios(base: pd.DataFrame, contender: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the logarithms of ratios of means of independent groups, their standard errors and df, [rows].

    Args:
        base: Mean, s (standard deviation of logarithms), n and df of s, as of `Pooling.cell_statistics`.
        contender: The same, row by row, of the means that are divided by those of the base.
    """
    sides = [own[["mean", "s", "n", "df"]].to_numpy(float).T for own in (base, contender)]
    squares = [s**2 / n for _, s, n, _ in sides]
    error = np.sqrt(sum(squares))
    with np.errstate(all="ignore"):
        parts = [square**2 / df for square, (_, _, _, df) in zip(squares, sides, strict=True)]
        df = np.where(error == 0, np.minimum(sides[0][3], sides[1][3]), error**4 / sum(parts))
    return np.log(sides[1][0] / sides[0][0]), error, df


def table(compared: Compared) -> tables.Table:
    """Return the table of a comparison."""
    data = changes(compared)
    a, b = compared.names
    varied = [name for name in data if name in varying(compared.cells)]
    columns = {title(name): data[name].map(level_text) for name in varied} or {"cell": data["cell"]}
    columns |= {
        f"{a} (s)": tables.mean_texts(data, "from_s", "ratio"),
        f"{b} (s)": tables.mean_texts(data, "to_s", "ratio"),
        "n": [f"{x}, {y}" for x, y in zip(data["from_n"], data["to_n"], strict=True)],
        "ratio": tables.interval_texts(data, "ratio"),
        "p (Holm)": data["p_holm"].map(tables.p_value),
        "change": data["change"],
    }
    notes = [
        summary(compared, data),
        f"Ratio: mean epoch time in {b} divided by that in {a}; below 1, {b} is faster. n: successful runs "
        f"in {a} and in {b}. Intervals are 95 % t intervals of the difference of mean logarithms, as of "
        "independent groups (Welch, Satterthwaite), with the same standard deviations as the campaigns' own "
        "tables. Intervals are not corrected for multiple comparisons.",
        "p: that the ratio is 1, two-sided, corrected by Holm's method for all comparisons.",
        "Two campaigns share no session: differences between their days are part of every ratio, and no "
        "interval covers them.",
        compared.algorithms,
        differing(compared),
        not_compared(compared),
    ]
    words = [title("training_loop"), "cell", "change"]
    return tables.Table(TITLE, data, pd.DataFrame(columns), notes, words)


def summary(compared: Compared, data: pd.DataFrame) -> Note:
    """Return how many cells changed, and the mean change."""
    a, b = compared.names
    counts = data["change"].value_counts().to_dict()
    parts = [
        f"{counts[change]} {'' if change in CHANGES else 'with '}{change}"
        for change in (*CHANGES, UNCHANGED, UNKNOWN)
        if change in counts
    ]
    mean = float(np.exp(np.log(data["ratio"]).mean()))
    text = (
        f"From {a} to {b}, of {number_of(len(data), 'compared cell')}: {', '.join(parts)}. Geometric mean of "
        f"the ratios {tables.number(mean)}."
    )
    unchanged = data[data["change"] == UNCHANGED]
    if len(unchanged):
        low, high = unchanged["ratio_low"].min(), unchanged["ratio_high"].max()
        text += (
            " Cells with no change shown may still differ: their intervals reach from "
            f"{tables.number(low)} to {tables.number(high)}."
        )
    return Note("changes", text, base=a, other=b, cells=len(data), by_change=counts, mean_ratio=mean)


def differing(compared: Compared) -> Note:
    """Return what else differs and may explain a change."""
    differences = compared.differences
    if not differences:
        text = (
            "The records show no other difference between the compared runs: a change would come from the "
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
    """Return the cells that are not compared, by reason, or "" if all are."""
    by_reason: dict[Note, list[str]] = {}
    for cell, reason in compared.refused.items():
        by_reason.setdefault(reason, []).append(cell)
    parts = [f"{reason}: {join_names(own)}" for reason, own in by_reason.items()]
    return Note("not-compared", f"Not compared: {'; '.join(parts)}.", cells=by_reason) if parts else ""
