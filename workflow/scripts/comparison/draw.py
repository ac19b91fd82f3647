"""Draw the ratio of every compared cell with its interval."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.level_words import treatment_text
from analysis.records import varying
from comparison.changes import CHANGES, differing, summary
from comparison.matched import Compared
from figures import style, value_axis

ROW_INCHES, AXIS_INCHES = 0.12, 0.5
MAX_ROWS = 60  # More would not fit on a printed page.
COLOURS = {CHANGES[0]: "#bb5566", CHANGES[1]: "#004488"}  # Tol's high contrast, as in figures of treatments


def draw(compared: Compared, data: pd.DataFrame) -> tuple[Figure, str]:
    """Return the figure and its caption.

    Rows are the MAX_ROWS cells that differ most, in the order of tables. `data` are the rows of `changes`.
    """
    farthest = np.abs(np.log(data["ratio"])).sort_values(ascending=False, kind="stable").index[:MAX_ROWS]
    rows = data.loc[sorted(farthest)]
    drawn = style.new_figure(style.PAGE_INCHES, len(rows) * ROW_INCHES + AXIS_INCHES)
    ax = drawn.subplots()
    ax.axvline(1, color=style.INK, linewidth=0.6, zorder=1)
    for y, row in enumerate(rows.itertuples()):
        colour = COLOURS.get(row.verdict, style.MUTED)
        ax.plot([row.ratio_low, row.ratio_high], [y, y], color=colour, linewidth=0.9, solid_capstyle="butt")
        ax.plot(
            [row.ratio],
            [y],
            "o",
            color=colour,
            markerfacecolor=colour if row.verdict in CHANGES else "white",
            markersize=3,
        )
    varied = [name for name in varying(compared.cells) if name in rows]
    labels = [
        treatment_text({name: row[name] for name in varied}) or row["cell"] for _, row in rows.iterrows()
    ]
    ax.set_yticks(range(len(rows)), labels)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xscale("log")
    ends = rows[["ratio", "ratio_low", "ratio_high"]].to_numpy(float)
    low, high = min(np.nanmin(ends), 1 / 1.02), max(np.nanmax(ends), 1.02)
    ax.set_xlim(low / 1.02, high * 1.02)
    value_axis.set_round_ticks(ax.xaxis, value_axis.MANY_TICKS)
    ax.grid(True, axis="x")
    ax.set_xlabel(f"epoch time, {compared.names[1]} over {compared.names[0]}")
    selection = (
        f"Only the {len(rows)} of {len(data)} cells that differ most are drawn; the table has all."
        if len(rows) < len(data)
        else ""
    )
    notes = (selection, summary(compared, data), compared.algorithms, differing(compared))
    caption = (
        f"Mean epoch time in {compared.names[1]} divided by that in {compared.names[0]}, cell by cell, on a "
        "logarithmic axis. Bars are 95 % intervals, not corrected for the number of cells. Filled markers "
        "have p < 0.05 after Holm's correction for all cells: red is slower, blue is faster. "
        f"{' '.join(filter(None, notes))}"
    )
    return drawn, caption
