"""Draw ratios with their intervals, row by row: of two campaigns, or of a campaign and published numbers."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.measured import treatment_text, varying
from comparison.changes import differing, summary
from comparison.matched import Compared
from figures import panels, style

ROW_INCHES, AXIS_INCHES = 0.12, 0.5
MAX_ROWS = 60  # fits on a printed page
# Tol's high contrast, as in figures of treatments; other verdicts are muted and hollow.
COLOURS = {"slower": "#bb5566", "faster": "#004488", "within": style.INK}


def draw(compared: Compared, data: pd.DataFrame) -> tuple[Figure, str]:
    """Return the figure and its caption.

    Rows are cells in the order of tables, limited to the MAX_ROWS cells that differ most.
    """
    rows = farthest(data)
    varied = [name for name in varying(compared.cells) if name in rows]
    labels = [
        treatment_text({name: row[name] for name in varied}) or row["cell"] for _, row in rows.iterrows()
    ]
    x_label = f"epoch time, {compared.names[1]} over {compared.names[0]}"
    drawn = draw_ratios(rows.assign(verdict=rows["change"]), labels, x_label)
    notes = (
        selection_note(rows, data),
        summary(compared, data),
        compared.algorithms,
        differing(compared),
    )
    caption = (
        f"Mean epoch time in {compared.names[1]} divided by that in {compared.names[0]}, cell by cell, on a "
        "logarithmic axis. Bars are 95 % intervals, not corrected for the number of cells. Filled markers "
        "have p < 0.05 after Holm's correction for all cells: red is slower, blue is faster. "
        f"{' '.join(filter(None, notes))}"
    )
    return drawn, caption


def farthest(data: pd.DataFrame) -> pd.DataFrame:
    """Return the MAX_ROWS rows whose ratios differ most from 1, in their order."""
    farthest = np.abs(np.log(data["ratio"])).sort_values(ascending=False, kind="stable").index[:MAX_ROWS]
    return data.loc[sorted(farthest)]


def selection_note(rows: pd.DataFrame, data: pd.DataFrame) -> str:
    """Return how many rows are drawn, "" if all are."""
    if len(rows) == len(data):
        return ""
    return f"Only the {len(rows)} of {len(data)} rows that differ most are drawn; the table has all."


def draw_ratios(
    rows: pd.DataFrame, labels: Sequence[str], x_label: str, margin: float | None = None
) -> Figure:
    """Return a figure with the column `ratio` and its interval, row by row, coloured by `verdict`."""
    drawn = style.new_figure(style.PAGE_INCHES, len(rows) * ROW_INCHES + AXIS_INCHES)
    ax = drawn.subplots()
    if margin is not None:
        ax.axvspan(1 / (1 + margin), 1 + margin, color=style.LEVEL_BAND, zorder=0)
    ax.axvline(1, color=style.INK, linewidth=0.6, zorder=1)
    for y, row in enumerate(rows.itertuples()):
        colour = COLOURS.get(row.verdict, style.MUTED)
        ax.plot([row.ratio_low, row.ratio_high], [y, y], color=colour, linewidth=0.9, solid_capstyle="butt")
        filling = colour if row.verdict in COLOURS else "white"
        ax.plot([row.ratio], [y], "o", color=colour, markerfacecolor=filling, markersize=3)
    ax.set_yticks(range(len(rows)), labels)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xscale("log")
    ends = rows[["ratio", "ratio_low", "ratio_high"]].to_numpy(float)
    least = 1.02 if margin is None else 1 + margin
    low, high = min(np.nanmin(ends), 1 / least), max(np.nanmax(ends), least)
    ax.set_xlim(low / 1.02, high * 1.02)
    panels.set_round_ticks(ax.xaxis, panels.MANY_TICKS)
    ax.grid(True, axis="x")
    ax.set_xlabel(x_label)
    return drawn
