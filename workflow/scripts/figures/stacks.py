"""Draw figures with one stacked bar per cell, by series and nodes or devices; other factors make panels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.measured import OUT_OF_MEMORY_MARK
from figures import panels, rows, style
from figures.view import View

BAR = 0.62  # of a row
MAX_LABEL_CHARACTERS = 50  # of row labels, times panels, in one print column
MIN_VISIBLE_SHARE = 0.002  # of the longest bar

DrawMore = Callable[[Axes, float, pd.Series, float], None]


def draw(
    view: View,
    data: pd.DataFrame,
    part_style: Callable[[str], Mapping[str, Any]],
    label: str,
    legend_handles: Callable[[Sequence[str]], list[Patch]],
    draw_more: DrawMore | None = None,
) -> tuple[Figure, View]:
    """Return the figure, and the part of the view that fits its page.

    Args:
        view: The cells to draw.
        data: Length of each part (columns, in the order of a bar) of each cell (rows).
        part_style: Returns the style of a part.
        label: Label of the x axis.
        legend_handles: Returns the legend entries of the parts.
        draw_more: Draws more of a cell, given its axes, y, row of `data`, and the distance from y to the
            end of the bar.
    """
    row_in = len(view.rows) * rows.ROW_INCHES + rows.AXIS_INCHES
    view = view.fit_to_page(row_in + panels.titles_height(view.panels))
    panel_levels, view_rows, cells = view.panels, view.rows, view.cells
    longest = float(data.sum(axis=1).max())
    parts = [name for name in data if data[name].max() > MIN_VISIBLE_SHARE * longest]
    n_rows, columns, width = panels.layout(len(panel_levels), panels.wide_columns(len(panel_levels)))
    if len(panel_levels) * max(len(text) for _, _, text in view_rows) > MAX_LABEL_CHARACTERS:
        width = style.PAGE_INCHES
    handles = legend_handles(parts)
    above_in = panels.handles_height(handles, width)
    figure = style.new_figure(width, n_rows * (row_in + panels.titles_height(panel_levels)) + above_in)
    axis_factors = panels.duration_factors(view.facet)
    axes = panels.create_axes(figure, (n_rows, columns), len(panel_levels), share_x=not axis_factors)
    for ax, levels in zip(axes, panel_levels, strict=True):
        panel_cells = panels.rows_at(cells, levels)
        for y, (series, scale_levels, _) in enumerate(view_rows):
            planned = panels.rows_at(series.select(panel_cells), scale_levels)["cell"].tolist()
            if not planned:
                continue
            if planned[0] not in data.index:
                is_out_of_memory = planned[0] in view.out_of_memory
                rows.write_remark(ax, y, OUT_OF_MEMORY_MARK if is_out_of_memory else "no phases")
                continue
            _draw_bar(ax, y, data.loc[planned[0], parts], part_style)
            if draw_more:
                draw_more(ax, y, data.loc[planned[0]], BAR / 2)
            if y and series != view_rows[y - 1][0]:
                ax.axhline(y - 0.5, color=style.GRID, linewidth=0.4, zorder=1)
        axis_cells = panels.rows_at(cells, {name: levels[name] for name in axis_factors})["cell"]
        longest_bar = data[data.index.isin(axis_cells)].sum(axis=1).max()
        ax.set_xlim(0, longest_bar if longest_bar > 0 else 1)
        ax.grid(True, axis="x")
        ax.tick_params(axis="y", length=0)
        ax.set_title(panels.panel_title(levels))
    axes[0].set_yticks(range(len(view_rows)), [text for _, _, text in view_rows])
    axes[0].set_ylim(len(view_rows) - 0.4, -0.6)
    figure.supxlabel(label, fontsize=style.FONT_SIZE)
    panels.place_legend(figure, handles)
    return figure, view


def _draw_bar(ax: Axes, y: float, parts: pd.Series, part_style: Callable[[str], Mapping[str, Any]]) -> None:
    """Draw the parts of a cell end to end."""
    start = np.cumsum(parts.to_numpy()) - parts.to_numpy()
    for (name, length), left in zip(parts.items(), start, strict=True):
        if length > 0:
            ax.barh(y, length, left=left, height=BAR, zorder=2, **part_style(str(name)))
