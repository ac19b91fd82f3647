"""Draw cost or carbon dioxide against time, one marker per cell, with the Pareto front.

`draw_cells` also draws other quantities against time, such as energy (figures.energy).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.cell_means import estimate_response_means
from analysis.cost import pareto_front
from analysis.level_words import title
from analysis.records import Records, size_factor_name
from analysis.responses import with_response
from common.notes import Note
from common.units import CARBON_MASSES, Unit, choose_unit
from declared.figure_specs import FigureSpec
from declared.responses import EPOCH_TIME, RESPONSES, TO_TARGET
from figures import captions, legends, marks, panels, selection, style, value_axis
from figures.selection import Series
from figures.view import View, build_view

PANEL_INCHES = 1.6
MARGIN = 1.18  # factor between the ends of intervals and of the axis
LOG_FROM_RATIO = 5
LABEL_DISTANCE = 0.16  # share of a panel's width; closer markers share a label
FRONT_STYLE: dict[str, Any] = {
    "color": style.INK,
    "linewidth": 0.7,
    "linestyle": (0, (4, 1.5)),
    "drawstyle": "steps-post",
    "zorder": 2,
}
LEAD = "{} against {}. Each marker is a cell: means over its runs, with their intervals."
PARETO = Note("pareto-front", "Dashed: Pareto front (no cell of the panel needs less of both).")
LOGARITHMIC = Note("logarithmic-axes", "Both axes are logarithmic.")
CUT_NOTE = Note("intervals-cut", "Intervals are cut at the axis limits.")
MEAN_BOUNDS = {"mean": "", "low": "_low", "high": "_high"}


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure of the response `y`, by default cost, and its caption."""
    response = RESPONSES[spec.y or "cost"]
    time = RESPONSES["time_to_accuracy"] if response.name in TO_TARGET else EPOCH_TIME
    runs = records.runs
    for quantity in (time, response):
        runs = with_response(runs, quantity, lambda: records.epochs, spec.target)
    view = build_view(runs, spec, response)
    if view.ok.empty:
        return panels.empty_figure(view.runs, view.missing_cause)
    values = view.cell_means.cell_statistics
    unit = Unit(1.0, view.response.unit) if response.is_money else choose_unit(values["mean"], CARBON_MASSES)
    points = locate_cells(view, estimate_response_means(runs, time).cell_statistics, values, unit.size)
    labels = time.label, f"{response.title} ({unit.name})"
    figure, view, notes = draw_cells(view, points, labels)
    lead = LEAD.format(response.capitalized_title, time.title)
    return figure, view.caption(
        Note("heading", lead, response=response.name), *notes, endnotes=view.response_notes
    )


def locate_cells(view: View, x: pd.DataFrame, y: pd.DataFrame, unit: float = 1.0) -> pd.DataFrame:
    """Return a row per cell with factors, size, x, and y in `unit`, with their bounds.

    Args:
        view: The cells to draw.
        x: Mean, low and high by cell.
        y: The same; cells without a mean are left out.
        unit: Unit of y.
    """
    rows = view.cells.set_index("cell", drop=False)
    rows = rows[rows.index.isin(y.index[y["mean"].notna()])]
    columns = {
        f"{axis}{end}": (by_cell[part].fillna(by_cell["mean"]) / size).reindex(rows.index)
        for axis, by_cell, size in (("x", x, 1.0), ("y", y, unit))
        for part, end in MEAN_BOUNDS.items()
    }
    return rows.assign(size=rows[size_factor_name(view.runs)], **columns)


def draw_cells(
    view: View,
    points: pd.DataFrame,
    labels: tuple[str, str],
    draw_lines: Callable[[Axes], None] | None = None,
) -> tuple[Figure, View, list[str]]:
    """Return a figure with a marker per cell and the Pareto front, the part of the view on it, and its notes.

    Args:
        view: The cells to draw. Numbers of nodes or devices are written beside the markers if they vary.
        points: The rows of `locate_cells`.
        labels: Labels of the axes.
        draw_lines: Draws further lines once the limits of a panel are set.
    """
    measured_panels = [levels for levels in view.panel_levels if len(selection.rows_at(points, levels))]
    view = view.fit_to_page(
        PANEL_INCHES + panels.titles_height(measured_panels), panel_levels=measured_panels
    )
    points = points[points["cell"].isin(set(view.cells["cell"]))]
    axis_factors = panels.duration_factors(view.panel_factors)
    panel_levels = [levels for levels in view.panel_levels if len(selection.rows_at(points, levels))]
    legend_series = [series for series in view.series if len(series.select(points))]
    grid = panels.create_grid(
        panel_levels,
        PANEL_INCHES,
        len(legend_series),
        max_columns=panels.wide_columns(len(panel_levels)),
        share_x=not axis_factors,
        share_y=not axis_factors,
    )
    is_cut, has_front, is_numbered = False, False, points["size"].nunique() > 1
    for ax, levels in zip(grid.axes, panel_levels, strict=True):
        axis_points = selection.rows_at(points, {name: levels[name] for name in axis_factors})
        is_cut |= _set_axes(ax, axis_points)
        panel_points = selection.rows_at(points, levels)
        has_front |= _draw_front(ax, panel_points)
        for series in legend_series:
            _draw_markers(ax, series, series.select(panel_points))
        if is_numbered:
            _draw_numbers(ax, panel_points)
        if draw_lines is not None:
            draw_lines(ax)
        ax.set_title(panels.panel_title(levels))
    grid.label(*labels)
    legends.add_legend(grid.figure, legend_series, lines=False)
    size_factor = size_factor_name(view.runs)
    numbers_note = Note(
        "numbers-beside-markers", f"Numbers beside markers: {title(size_factor)}.", factor=size_factor
    )
    notes = [
        PARETO if has_front else "",
        numbers_note if is_numbered else "",
        LOGARITHMIC if grid.axes[0].get_xscale() == "log" else "",
        CUT_NOTE if is_cut else "",
    ]
    return grid.figure, view, notes


def _set_axes(ax: Axes, points: pd.DataFrame) -> bool:
    """Set axes that show the points and, up to MAX_INTERVAL_REACH, their intervals.

    Both axes are logarithmic if one spans a wide range, so that lines of equal power stay parallel.

    Returns:
        Whether an interval is cut.
    """
    ends = {}
    for axis in "xy":
        middle, low, high = (points[f"{axis}{end}"] for end in ("", "_low", "_high"))
        ends[axis] = (
            max(low.min(), middle.min() / value_axis.MAX_INTERVAL_REACH),
            min(high.max(), middle.max() * value_axis.MAX_INTERVAL_REACH),
        )
    log = any(high > LOG_FROM_RATIO * low for low, high in ends.values())
    if log:
        ax.set(xscale="log", yscale="log")
        value_axis.set_round_ticks(ax.xaxis, max_ticks=4)
        value_axis.set_round_ticks(ax.yaxis)
    ax.set(**{f"{name}lim": (low / MARGIN, high * MARGIN) for name, (low, high) in ends.items()})
    ax.grid(True)
    return any(
        (points[f"{axis}_low"] < low).any() or (points[f"{axis}_high"] > high).any()
        for axis, (low, high) in ends.items()
    )


def _draw_front(ax: Axes, points: pd.DataFrame) -> bool:
    """Draw the Pareto front of the cells' means as steps; return whether it has several cells."""
    front = pareto_front(points, "x", "y")
    if len(front) < 2:
        return False
    ax.plot(front["x"], front["y"], **FRONT_STYLE)
    return True


def _draw_markers(ax: Axes, series: Series, points: pd.DataFrame) -> None:
    """Draw the cells of one series with both intervals."""
    bars: dict[str, Any] = {"colors": series.style.colour, "linewidth": 0.9, "zorder": 3}
    min_x, min_y = ax.get_xlim()[0], ax.get_ylim()[0]
    ax.hlines(points["y"], points["x_low"].clip(lower=min_x), points["x_high"], **bars)
    ax.vlines(points["x"], points["y_low"].clip(lower=min_y), points["y_high"], **bars)
    ax.plot(points["x"], points["y"], zorder=4, **marks.marker_style(series.style))


def _draw_numbers(ax: Axes, points: pd.DataFrame) -> None:
    """Write numbers of nodes or devices to the lower left of markers; close markers share one."""
    positions: dict[Any, list[np.ndarray]] = {}
    for x, y, number in points.sort_values("y")[["x", "y", "size"]].itertuples(index=False):
        position, numbered = ax.transData.transform((x, y)), positions.setdefault(number, [])
        if any(np.hypot(*(position - earlier)) < LABEL_DISTANCE * ax.bbox.width for earlier in numbered):
            continue
        numbered.append(position)
        label = ax.annotate(str(number), (x, y), (-2.2, -1.8), textcoords="offset points", zorder=5)
        label.set(ha="right", va="top", fontsize=style.SMALL_FONT_SIZE, color=style.INK)
