"""Figures with a row for each cell: rows by series and by nodes or devices, panels by the other factors that vary."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import panels, style
from figures.panels import Series
from figures.view import View

ROW_IN = 0.13
AXIS_IN = 0.35
BESIDE = 0.36  # of a row, from a mean to the ticks of its runs
ALONE = 0.03  # of the axis, from its start to a remark
SMALL = 5.5  # points

Drawn = Callable[[Axes, Series, float, pd.DataFrame], None]
Times = Callable[[View, Mapping[str, Any]], tuple[pd.Series, pd.DataFrame]]


def draw(of: View, label: str, cell: Drawn, times: Times) -> tuple[Figure, View, list[str]]:
    """The figure, what of the view is on its page, and what the caption must say of its axes. `label`: of the axis of time.

    `cell` draws one row, given its planned runs; `times` of the levels that share an axis: those of runs, and the cells' means with
    low, high and n.
    """
    row_in = len(of.rows) * ROW_IN + AXIS_IN
    of = of.on_a_page(row_in + panels.titles_height(of.panels))
    shown = of.panels
    height, columns, width = panels.layout(len(shown))
    drawn = style.figure(width, height * (row_in + panels.titles_height(shown)))
    scaled_by = panels.scaled_by(of.facet)
    axes = panels.grid(drawn, (height, columns), len(shown), share_x=not scaled_by)
    remarks: list[str] = []
    for ax, levels in zip(axes, shown, strict=True):
        here = panels.at(of.runs, levels)
        for y, (one, along, _) in enumerate(of.rows):
            if len(planned := panels.at(one.of(here), along)):
                cell(ax, one, y, planned)
            if y and one != of.rows[y - 1][0]:
                ax.axhline(y - 0.5, color=style.GRID, linewidth=0.4)
        ax.set_title(panels.panel_title(levels))
        own, means = times(of, {name: levels[name] for name in scaled_by})
        remarks += panels.time_axis(ax, own, means, axis="x")
        if own.empty:
            ax.set_xticks([])
        ax.set_xlabel(label)
    axes[0].set_yticks(range(len(of.rows)), [text for _, _, text in of.rows])
    axes[0].set_ylim(len(of.rows) - 0.4, -0.6)
    return drawn, of, remarks


def say(ax: Axes, y: float, text: str) -> None:
    """A remark in the place of a cell."""
    remark = ax.text(ALONE, y, text, transform=ax.get_yaxis_transform())
    remark.set(va="center", color=style.MUTED, fontsize=SMALL)
