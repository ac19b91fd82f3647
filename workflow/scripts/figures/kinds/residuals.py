"""Draw residuals of log epoch times against normal quantiles, cell means and run order."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.checks import lattice_note, remove_blocks, residuals
from analysis.records import Records, successful
from common.notes import Note
from common.text import number_of
from declared.figure_specs import FigureSpec
from figures import blocks, captions, legends, panels, style, value_axis
from figures.selection import Series
from figures.view import build_view

HEIGHT_INCHES = 2.1
MAX_VECTOR_DOTS = 2000  # more runs would make vector files too large to open
LOG_FROM_RATIO = 5
DOT_STYLE = style.dots("o", 1.6, "#004488") | {"alpha": 0.7}
OUTLIER_STYLE = style.dots("x", 4, "#bb5566", 1.0)
SESSION_LINE: Mapping[str, Any] = {
    "color": style.MUTED,
    "linewidth": 0.8,
    "linestyle": (0, (4, 2)),
    "zorder": 1,
}
# The first sentence is the heading of the figure in a report, so it has no colon.
LEAD = "Residuals of log epoch times within cells{}, against normal quantiles{} cell means{}."
BLOCKS_REMOVED = " Left and middle: block means removed, too."
SEARCH_NOTE = (
    "Outliers are searched one at a time, because an outlier shifts the mean of its cell away from the other "
    "runs."
)
LISTED_NOTE = "The table `checks` lists the outliers."
BLOCKS_NOTE = Note("block-means-drawn", "Black lines: means of blocks.")
SESSIONS_NOTE = Note("session-starts-drawn", "Dashed line: a session starts.")
NO_SPREAD = Note("no-spread", "no two runs of a cell differ")
HOW_TO_READ = (
    "Left: externally studentized residuals; normal ones lie on the line. Over cell means: a funnel shape "
    "means that the spread changes with the time. Over run order: every other block is shaded; numbers above "
    "are those of the blocks."
)


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with two or three panels side by side and a colour per series, and its caption."""
    runs, view = records.runs, build_view(records.runs, spec)
    all_residuals = residuals(runs)
    data = all_residuals[all_residuals["studentized"].notna()]
    # Comparisons are within blocks, and the table `checks` tests normality of what remains then.
    after_blocks = remove_blocks(all_residuals).loc[data.index]
    has_blocks = not after_blocks["residual"].equals(data["residual"])
    if data.empty:
        return panels.empty_figure(runs, captions.NO_SUCCESS if successful(runs).empty else NO_SPREAD)
    has_order = _has_order(data)
    bands = blocks.find_bands(data.assign(left=data["order"] - 0.5, right=data["order"] + 0.5), "residual")
    series_cells = [(series, set(series.select(runs)["cell"])) for series in view.series]
    is_of_series = [(series, data["cell"].isin(cells)) for series, cells in series_cells]
    dots = [(series, selected & ~data["outlier"]) for series, selected in is_of_series if selected.any()]
    legend = [
        Line2D([], [], label=series.name, **_dot_style(series) | {"markersize": 3})
        for series, _ in (dots if len(dots) > 1 else [])
    ]
    if data["outlier"].any():
        legend.append(Line2D([], [], label="outlier", **OUTLIER_STYLE))
    above_in = legends.handles_height(legend, style.PAGE_INCHES) if legend else 0
    figure = style.new_figure(style.PAGE_INCHES, HEIGHT_INCHES + above_in)
    normal, fitted, *order_axes = figure.subplots(1, 3 if has_order else 2)
    percent = 100 * data["residual"]
    quantiles = after_blocks["normal_quantile"]
    _draw_dots(normal, quantiles, after_blocks["studentized"], data["outlier"], dots)
    ends = np.array([quantiles.min(), quantiles.max()])
    normal.plot(ends, ends, color=style.MUTED, linewidth=0.7, zorder=1)
    normal.set_xlabel("normal quantile")
    normal.set_ylabel("studentized residual")
    _draw_dots(fitted, np.exp(data["fitted_log"]), 100 * after_blocks["residual"], data["outlier"], dots)
    if np.ptp(data["fitted_log"]) > math.log(LOG_FROM_RATIO):
        fitted.set_xscale("log")
        value_axis.set_round_ticks(fitted.xaxis)
    fitted.set_xlabel("geometric mean of the cell (s)")
    fitted.set_ylabel("residual (%)")
    for order in order_axes:
        _draw_dots(order, data["order"], percent, data["outlier"], dots)
        blocks.shade_bands(order, bands)
        blocks.name_bands(order, bands, prefix="")
        blocks.draw_means(order, bands, 100 * bands["residual"])
        _draw_session_starts(order, data)
        order.set_xlabel("run, in order (bands: blocks)" if data["block"].nunique() > 1 else "run, in order")
        order.set_ylabel("residual within cells (%)" if has_blocks else "residual (%)")
    for ax in (fitted, *order_axes):
        ax.axhline(0, color=style.MUTED, linewidth=0.7, zorder=1)
    if legend:
        legends.place_legend(figure, legend)
    return figure, captions.compose_caption(
        runs,
        _lead(has_order, has_blocks),
        _outliers_note(data),
        SESSIONS_NOTE if has_order and data["session"].nunique() > 1 else "",
        BLOCKS_NOTE if has_order and 1 < len(bands) <= blocks.MAX_BANDS else "",
        _lattice_sentence(data),
        endnotes=[HOW_TO_READ, SEARCH_NOTE, LISTED_NOTE if data["outlier"].any() else ""],
        with_intervals=False,
    )


def _lead(has_order: bool, has_blocks: bool) -> str:
    """Return what the panels show."""
    axes = (",", " and run order") if has_order else (" and", "")
    if has_blocks and has_order:
        return LEAD.format("", *axes) + BLOCKS_REMOVED
    return LEAD.format(" and blocks" if has_blocks else "", *axes)


def _dot_style(series: Series) -> dict[str, Any]:
    """Return the style of the dots of a series; baselines have their hollow marker instead."""
    dot = DOT_STYLE | {"color": series.style.colour, "marker": series.style.marker, "markersize": 2.2}
    if series.style.filled:
        return dot
    return dot | style.dots(series.style.marker, 2.4, series.style.colour, 0.5) | {"markerfacecolor": "white"}


def _draw_dots(
    ax: Axes, x: pd.Series, y: pd.Series, outlier: pd.Series, dots: Sequence[tuple[Series, pd.Series]]
) -> None:
    """Draw the runs of each series, and outliers as crosses."""
    for series, is_own in dots:
        ax.plot(x[is_own], y[is_own], rasterized=len(x) > MAX_VECTOR_DOTS, zorder=2, **_dot_style(series))
    ax.plot(x[outlier], y[outlier], zorder=3, **OUTLIER_STYLE)
    ax.grid(True)


def _draw_session_starts(ax: Axes, data: pd.DataFrame) -> None:
    """Draw a dashed line where a session starts, except at the first one."""
    if data["session"].notna().all() and data["session"].nunique() > 1:
        for start in data.loc[data["session"] != data["session"].shift(), "order"].iloc[1:]:
            ax.axvline(start - 0.5, **SESSION_LINE)


def _has_order(data: pd.DataFrame) -> bool:
    """Return whether the order of runs is known: their starts or, unless measured elsewhere, their plan."""
    return bool(data["by_clock"].all() or data["block"].notna().any())


def _lattice_sentence(data: pd.DataFrame) -> str:
    """Return that residuals cannot be normal, since runs lie on a lattice; "" if they do not."""
    lattice = lattice_note(data)
    return Note("lattice", f"On a lattice, not normal: {lattice}.", **lattice.facts) if lattice else ""


def _outliers_note(data: pd.DataFrame) -> str:
    count = int(data["outlier"].sum())
    if not count:
        return Note("no-outlier", "No run has a Bonferroni-corrected p below 5 %.")
    text = f"Crosses: {number_of(count, 'outlier')} (Bonferroni-corrected p below 5 %), kept."
    return Note("outliers", text, runs=count)
