"""Overview: the epoch time of every cell, with its interval and its replicates."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.measured import Records, successful
from analysis.pooling import Pooling
from declared.figures import Declared
from figures import panels, style
from figures.view import Row, view

ROW_IN = 0.13
BESIDE = 0.36
AXIS_IN = 0.35
WHAT = f"Epoch time of every cell of the study. {panels.MARKERS.format('below')}"


def draw(records: Records, asked: Declared) -> tuple[Figure, str]:
    """Rows by series and by nodes or devices, panels by the other factors that vary. The figure and its caption."""
    of = view(records.runs, asked)
    if of.ok.empty:
        return panels.not_drawn(of.runs)
    row_in = len(of.rows) * ROW_IN + AXIS_IN
    of = of.on_a_page(row_in + panels.titles_height(of.panels))
    shown = of.panels
    height, columns, width = panels.layout(len(shown))
    drawn = style.figure(width, height * (row_in + panels.titles_height(shown)))
    scaled_by = panels.scaled_by(of.facet)
    axes = panels.grid(drawn, (height, columns), len(shown), share_x=not scaled_by)
    remarks: list[str] = []
    for ax, levels in zip(axes, shown, strict=True):
        _panel(ax, panels.at(of.runs, levels), of.rows, of.pooling)
        ax.set_title(panels.panel_title(levels))
        remarks += panels.time_axis(ax, *of.times({name: levels[name] for name in scaled_by}), axis="x")
        ax.set_xlabel("epoch time (s)")
    axes[0].set_yticks(range(len(of.rows)), [text for _, _, text in of.rows])
    axes[0].set_ylim(len(of.rows) - 0.4, -0.6)
    return drawn, of.caption(WHAT, *remarks)


def _panel(ax: Axes, runs: pd.DataFrame, rows: Sequence[Row], pooling: Pooling) -> None:
    for y, (one, levels, _) in enumerate(rows):
        planned = panels.at(one.of(runs), levels)
        ok = successful(planned)
        if len(ok):
            estimate = pooling.of(ok["cell"].iloc[0])
            panels.interval(ax, one.look, y, estimate, ok["epoch_time_s"], BESIDE, upright=False)
        elif len(planned):
            said = ax.text(0.03, y, "no successful run", transform=ax.get_yaxis_transform())
            said.set(va="center", color=style.MUTED, fontsize=5.5)
        if y and one != rows[y - 1][0]:
            ax.axhline(y - 0.5, color=style.GRID, linewidth=0.4)
