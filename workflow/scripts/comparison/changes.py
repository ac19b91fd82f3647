"""By how much each cell's epoch time differs between two campaigns: ratios with intervals, p values corrected for their number.

Two campaigns share no block, so their cells are independent groups (Welch 1947), with the spreads that each campaign's own
intervals have (analysis.pooling), and degrees of freedom by Satterthwaite (Biometrics 2, 1946).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis import intervals, tables
from analysis.intervals import LEVEL
from analysis.measured import level_text, title, varying
from analysis.pooling import Pooling, pooled
from common.notes import Note
from comparison.matched import Compared

TITLE = "Epoch times of the cells of two campaigns, with 95 % intervals"
CHANGES = ("slower", "faster")
UNCHANGED, UNKNOWN = "no change shown", "no interval"


def changes(compared: Compared) -> pd.DataFrame:
    """A row per compared cell: cell, the factors that vary, from_n, from_s, to_n, to_s, ratio with bounds, p, p_holm, change.

    ratio = mean epoch time in the other campaign over that in the base; change: slower or faster in the other (p_holm < 0.05), no change shown, or
    no interval, where a cell has one run and its campaign no spread that all cells share.
    """
    data = compared.cells[compared.cells["cell"].isin(compared.common)].reset_index(drop=True)
    data = data[["cell", *varying(data)]]
    means, errors, freedom, n = zip(
        *(_of(pooled(runs), compared.common) for runs in (compared.base, compared.other)), strict=True
    )
    squares = [error**2 for error in errors]
    error = np.sqrt(squares[0] + squares[1])
    with np.errstate(all="ignore"):
        df = error**4 / (squares[0] ** 2 / freedom[0] + squares[1] ** 2 / freedom[1])
    df = np.where(error == 0, np.minimum(*freedom), df)
    change = np.log(means[1]) - np.log(means[0])
    low, high = intervals.t_interval(change, error, df)
    p = intervals.two_sided(change, error, df)
    data = data.assign(from_n=n[0], from_s=means[0], to_n=n[1], to_s=means[1])
    data = data.assign(ratio=np.exp(change), ratio_low=np.exp(low), ratio_high=np.exp(high), p=p)
    data["p_holm"] = intervals.holm(p.tolist())
    sides = np.where(data["ratio"] > 1, *CHANGES)
    data["change"] = np.where(data["p_holm"] < LEVEL, sides, np.where(np.isnan(p), UNKNOWN, UNCHANGED))
    return data


def _of(pooling: Pooling, cells: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of these cells the means in s, the standard errors of their logarithms, the degrees of freedom of these, and n."""
    own = pooling.cells.loc[list(cells)]
    mean, s, df, n = (own[name].to_numpy(float) for name in ("mean", "s", "df", "n"))
    return mean, s / np.sqrt(n), df, n.astype(int)


def table(compared: Compared) -> tables.Table:
    """The table of a comparison."""
    data = changes(compared)
    a, b = compared.names
    varied = [name for name in data if name in varying(compared.cells)]
    shown = {title(name): data[name].map(level_text) for name in varied} or {"cell": data["cell"]}
    shown |= {
        f"{a} (s)": data["from_s"].map(tables.number),
        f"{b} (s)": data["to_s"].map(tables.number),
        "n": [f"{x}, {y}" for x, y in zip(data["from_n"], data["to_n"], strict=True)],
        "ratio": _ratios(data),
        "p (Holm)": data["p_holm"].map(tables.p_value),
        "change": data["change"],
    }
    notes = [
        summary(compared, data),
        *_how(compared, data),
        compared.algorithms,
        differing(compared),
        not_compared(compared),
    ]
    words = [title(name) for name in ("framework", "model", "dataset", "training_loop")] + ["cell", "change"]
    return tables.Table(TITLE, data, pd.DataFrame(shown), [note for note in notes if note], words)


def summary(compared: Compared, data: pd.DataFrame) -> Note:
    """How many cells changed and how far, in a sentence or two."""
    a, b = compared.names
    said = [_counted(data, change) for change in (*CHANGES, UNCHANGED, UNKNOWN) if (data["change"] == change).any()]
    mean = float(np.exp(np.log(data["ratio"]).mean()))
    text = f"From {a} to {b}, of {_cells(len(data))}: {', '.join(said)}. Geometric mean of the ratios {tables.number(mean)}."
    unchanged = data[data["change"] == UNCHANGED]
    if len(unchanged) and unchanged["ratio_high"].max() > unchanged["ratio_low"].min():
        text += (
            f" Cells with no change shown may still differ: their intervals reach from {tables.number(unchanged['ratio_low'].min())} "
            f"to {tables.number(unchanged['ratio_high'].max())}."
        )
    counts = data["change"].value_counts().to_dict()
    return Note("changes", text, base=a, other=b, cells=len(data), by_change=counts, mean_ratio=mean)


def _counted(data: pd.DataFrame, change: str) -> str:
    own = data.loc[data["change"] == change, "ratio"]
    if change not in CHANGES:
        return f"{len(own)} with {change}"
    ends = dict.fromkeys(tables.number(size, 2) for size in sorted(100 * (own - 1).abs()))
    by = [next(iter(ends)), *list(ends)[1:][-1:]]
    return f"{len(own)} {change} by {' to '.join(by)} %"


def _how(compared: Compared, data: pd.DataFrame) -> list[str]:
    a, b = compared.names
    families = int(data["p"].notna().sum())
    return [
        f"Ratio: mean epoch time in {b} divided by that in {a}; below 1, {b} is faster. n: successful runs in {a} and in {b}. "
        "Intervals are 95 % t intervals of the difference of mean logarithms, as of independent groups (Welch, Satterthwaite), "
        "with the same standard deviations as the campaigns' own tables. Intervals are not corrected for multiple comparisons.",
        Note(
            "p-of-ratios", f"p: that the ratio is 1, two-sided, corrected by Holm's method for {families} comparisons."
        )
        if families
        else Note("no-p-values", "No p values: they need two replicates per cell."),
        "Two campaigns share no session: differences between their days are part of every ratio, and no interval covers them.",
    ]


def differing(compared: Compared) -> Note:
    """What may explain a change, in a sentence."""
    found = compared.differences
    if not found:
        text = "The records show no other difference between the compared runs: a change would come from the machine itself."
        return Note("no-other-difference", text)
    alone = "" if len(found) == 1 else " A change cannot be attributed to one of these alone."
    return Note("differences", f"What differs between the compared runs: {'; '.join(found)}.{alone}", notes=found)


def not_compared(compared: Compared) -> str:
    """The cells that are not compared, by reason, in a sentence; empty for none."""
    by_reason: dict[Note, list[str]] = {}
    for cell, why in compared.refused.items():
        by_reason.setdefault(why, []).append(cell)
    said = [f"{why}: {_named(own)}" for why, own in by_reason.items()]
    return Note("not-compared", f"Not compared: {'; '.join(said)}.", cells=by_reason) if said else ""


def _named(cells: Sequence[str], most: int = 4) -> str:
    return ", ".join(cells[:most]) + (f" and {len(cells) - most} more" if len(cells) > most else "")


def _ratios(data: pd.DataFrame) -> list[str]:
    rows = data[["ratio", "ratio_low", "ratio_high"]].itertuples(index=False)
    return [tables.difference(intervals.Estimate(float(row[0]), float(row[1]), float(row[2]))) for row in rows]


def _cells(count: int) -> str:
    return "1 compared cell" if count == 1 else f"{count} compared cells"
