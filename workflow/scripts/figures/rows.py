"""Draw figures with one row per cell, by nodes or devices and series. Other factors make panels."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import panels, selection, style, value_axis
from figures.selection import Series
from figures.view import View

ROW_INCHES = 0.13
MIN_ROWS = 2  # rows of the lowest axis, because a lower one has no room for its labels
AXIS_INCHES = 0.35
MARKER_SIZE = 2.4  # smaller than on other axes, so that short bars stick out
REPLICATE_OFFSET = 0.36  # share of a row, from a mean to the ticks of its runs
REMARK_X = 0.03  # share of the axis
MAX_LABEL_SHARE = 0.5  # share of a print column; longer row labels make a figure as wide as a page
CHARACTER_INCHES = 0.055  # average width in row labels and titles

DrawCell = Callable[[Axes, Series, float, pd.DataFrame], None]
AxisValues = Callable[[View, Mapping[str, Any]], tuple[pd.Series, pd.DataFrame]]


def draw_rows(
    view: View, label: str, draw_cell: DrawCell, values: AxisValues
) -> tuple[Figure, View, list[str]]:
    """Return the figure, the part of the view that fits its page, and notes on its axes for the caption.

    Args:
        view: The cells to draw.
        label: Label of the axis of values.
        draw_cell: Draws one row, given axes, series, y and planned runs.
        values: Returns values of runs, and low, high and n of cells, for the panels that share an axis.
    """
    row_in = panel_height(view)
    view = view.fit_to_page(row_in + panels.titles_height(view.panel_levels))
    panel_levels = view.panel_levels
    n_rows, n_columns, width = panels.layout(len(panel_levels))
    label_in = CHARACTER_INCHES * max((len(text) for _, _, text in view.rows), default=0)
    if _titles_overlap(view, n_columns, width) or label_in > MAX_LABEL_SHARE * width:
        width = style.PAGE_INCHES
    figure = style.new_figure(width, n_rows * (row_in + panels.titles_height(panel_levels)))
    axis_factors = panels.duration_factors(view.panel_factors)
    axes = panels.create_axes(figure, (n_rows, n_columns), len(panel_levels), share_x=not axis_factors)
    notes: list[str] = []
    for ax, levels in zip(axes, panel_levels, strict=True):
        panel_runs = selection.rows_at(view.runs, levels)
        for y, (series, size_levels, _) in enumerate(view.rows):
            if len(planned := selection.rows_at(series.select(panel_runs), size_levels)):
                draw_cell(ax, series, y, planned)
        draw_separators(ax, view)
        ax.set_title(panels.panel_title(levels))
        run_values, means = values(view, {name: levels[name] for name in axis_factors})
        notes += value_axis.scale_value_axis(ax, run_values, means, axis="x", axis_name=view.axis_name)
        if run_values.empty:
            ax.set_xticks([])
        ax.set_xlabel(label)
    axes[0].set_yticks(range(len(view.rows)), [text for _, _, text in view.rows])
    axes[0].set_ylim(len(view.rows) - 0.4, -0.6)
    return figure, view, notes


def draw_separators(ax: Axes, view: View) -> None:
    """Draw a line between rows of different numbers of nodes or devices, if several series have each."""
    for y in view.first_rows_of_groups if len(view.series) > 1 else ():
        ax.axhline(y - 0.5, color=style.MUTED, linewidth=0.4)


def panel_height(view: View) -> float:
    """Return the height of a panel with its axis, without its title, in inches."""
    return max(MIN_ROWS, len(view.rows)) * ROW_INCHES + AXIS_INCHES


def _titles_overlap(view: View, n_columns: int, width: float) -> bool:
    """Return whether any title is wider than its panel, given the room that row labels take."""
    label_characters = max((len(text) for _, _, text in view.rows), default=0)
    lines = [line for levels in view.panel_levels for line in panels.panel_title(levels).splitlines()]
    panel_characters = (width / CHARACTER_INCHES - label_characters) / n_columns
    return max(map(len, lines), default=0) > panel_characters


def write_remark(ax: Axes, y: float, text: str) -> None:
    """Write a remark in the row of a cell."""
    remark = ax.text(REMARK_X, y, text, transform=ax.get_yaxis_transform())
    remark.set(va="center", color=style.MUTED, fontsize=style.SMALL_FONT_SIZE)
