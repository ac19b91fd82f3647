"""Draw figures with one stacked bar per cell, by nodes or devices and series. Other factors make panels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from figures import legends, panels, rows, selection, style
from figures.view import NOT_RECORDED, View

MAX_LABEL_CHARACTERS = 50  # characters of row labels, times panels, that fit a print column
MIN_VISIBLE_SHARE = 0.002  # share of the longest bar

DrawMore = Callable[[Axes, float, pd.Series, float], None]


def draw_stacks(
    view: View,
    data: pd.DataFrame,
    label: str,
    part_style: Callable[[str], Mapping[str, Any]],
    legend_handles: Callable[[Sequence[str]], list[Patch]],
    draw_more: DrawMore | None = None,
    *,
    absence: str = "no phases",
    bar: float = 0.62,
    has_one_axis: bool = False,
    margin: float = 1.0,
) -> tuple[Figure, View]:
    """Return the figure, and the part of the view that fits its page.

    Args:
        view: The cells to draw.
        data: Length of each part [cells, parts], with the parts in the order of a bar.
        label: Label of the x axis.
        part_style: Returns the style of a part.
        legend_handles: Returns the legend entries of the parts.
        draw_more: Draws on top of a bar, given axes, y, row of `data`, and half the height of the bar.
        absence: Remark on a cell that has a successful run but no data.
        bar: Height of a bar relative to a row.
        has_one_axis: Whether all panels share the x axis; by default those of one model and data set do.
        margin: Length of the x axis relative to the longest bar.
    """
    row_in = rows.panel_height(view)
    view = view.fit_to_page(row_in + panels.titles_height(view.panel_levels))
    panel_levels, view_rows, cells = view.panel_levels, view.rows, view.cells
    longest = float(data.sum(axis=1).max())
    parts = [name for name in data if data[name].max() > MIN_VISIBLE_SHARE * longest]
    n_rows, columns, width = panels.layout(len(panel_levels), panels.wide_columns(len(panel_levels)))
    if len(panel_levels) * max(len(text) for _, _, text in view_rows) > MAX_LABEL_CHARACTERS:
        width = style.PAGE_INCHES
    handles = legend_handles(parts)
    above_in = legends.handles_height(handles, width)
    figure = style.new_figure(width, n_rows * (row_in + panels.titles_height(panel_levels)) + above_in)
    axis_factors = [] if has_one_axis else panels.duration_factors(view.panel_factors)
    axes = panels.create_axes(figure, (n_rows, columns), len(panel_levels), share_x=not axis_factors)
    for ax, levels in zip(axes, panel_levels, strict=True):
        panel_cells = selection.rows_at(cells, levels)
        for y, (series, size_levels, _) in enumerate(view_rows):
            for cell in selection.rows_at(series.select(panel_cells), size_levels)["cell"]:
                if cell not in data.index:
                    reason = view.absence_reason(view.runs[view.runs["cell"] == cell])
                    rows.write_remark(ax, y, absence if reason == NOT_RECORDED else reason)
                    continue
                _draw_bar(ax, y, data.loc[cell, parts], part_style, bar)
                if draw_more:
                    draw_more(ax, y, data.loc[cell], bar / 2)
        rows.draw_separators(ax, view)
        axis_cells = selection.rows_at(cells, {name: levels[name] for name in axis_factors})["cell"]
        longest_bar = data.loc[data.index.isin(axis_cells), parts].sum(axis=1).max()
        ax.set_xlim(0, margin * longest_bar if longest_bar > 0 else 1)
        ax.grid(True, axis="x")
        ax.tick_params(axis="y", length=0)
        ax.set_title(panels.panel_title(levels))
    axes[0].set_yticks(range(len(view_rows)), [text for _, _, text in view_rows])
    axes[0].set_ylim(len(view_rows) - 0.4, -0.6)
    figure.supxlabel(label, fontsize=style.FONT_SIZE)
    legends.place_legend(figure, handles)
    return figure, view


def _draw_bar(
    ax: Axes, y: float, parts: pd.Series, part_style: Callable[[str], Mapping[str, Any]], height: float
) -> None:
    """Draw the parts of a cell end to end."""
    start = np.cumsum(parts.to_numpy()) - parts.to_numpy()
    for (name, length), begin in zip(parts.items(), start, strict=True):
        if length > 0:
            ax.barh(y, length, left=begin, height=height, zorder=2, **part_style(str(name)))
