"""Draw cells in a panel: means with intervals and runs, and cells that ran out of memory."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform

from analysis.intervals import Estimate
from analysis.level_words import OUT_OF_MEMORY_MARK
from figures import style
from figures.style import SeriesStyle

SINGLE_RUN_LINE = (0, (2, 1.2))
OUT_OF_MEMORY_MARKER_POINTS = 11.0  # distance from the middle of the mark to the marker of the series
OUT_OF_MEMORY_MARKER_SIZE = 3.0
OUT_OF_MEMORY_ROW_POINTS = 8.0  # distance between marks, one above the other


class Bar(Line2D):
    """The bar of a confidence interval on a time axis."""


def dodge_offsets(names: Sequence[str], gap: float) -> dict[str, float]:
    """Return an offset for each series, `gap` apart, so that intervals at one level do not overlap."""
    middle = (len(names) - 1) / 2
    return {name: (position - middle) * gap for position, name in enumerate(names)}


def draw_interval(
    ax: Axes,
    series_style: SeriesStyle,
    x: float,
    estimate: Estimate,
    values: pd.Series,
    replicate_offset: float,
    *,
    vertical: bool = True,
    marker_size: float = style.MARKER_SIZE,
) -> None:
    """Draw the mean of a cell, its interval as a bar, and its runs as short ticks.

    The bar is dashed if the cell has a single run: its interval has the variance of other cells.

    Args:
        ax: The panel.
        series_style: Style of the series.
        x: Position on the axis of cells.
        estimate: Mean with its interval.
        values: Values of single runs; a single one is not drawn.
        replicate_offset: Distance of the ticks from the mean.
        vertical: Values are on the y axis.
        marker_size: Size of the marker in points.
    """
    bars = ([x, x], [estimate.low, estimate.high])
    point = ([x], [estimate.value])
    ax.add_line(
        Bar(
            *bars[:: 1 if vertical else -1],
            color=series_style.colour,
            linewidth=0.9,
            linestyle=SINGLE_RUN_LINE if len(values) == 1 else "-",
            solid_capstyle="butt",
            dash_capstyle="butt",
            zorder=3,
        )
    )
    marker = marker_style(series_style) | {"markersize": marker_size}
    ax.plot(*point[:: 1 if vertical else -1], zorder=4, **marker)
    if len(values) > 1:
        draw_replicates(ax, series_style, x + replicate_offset, values, vertical=vertical)


def draw_replicates(
    ax: Axes, series_style: SeriesStyle, x: float, values: pd.Series, *, vertical: bool = True
) -> None:
    """Draw the values of single runs as short ticks across their axis."""
    ticks = ([x] * len(values), values.tolist())
    # No series has these markers.
    (line,) = ax.plot(*ticks[:: 1 if vertical else -1], "_" if vertical else "|", zorder=5)
    line.set(color=series_style.colour, markersize=style.REPLICATE_SIZE, markeredgewidth=0.5)


def mark_out_of_memory(
    ax: Axes, position: float, styles: Sequence[SeriesStyle], across: Transform | None = None
) -> None:
    """Mark cells that ran out of memory at the lower end of the axis of values, one above the other.

    Args:
        ax: The panel.
        position: Position on the axis of cells.
        styles: Style of the series of each cell.
        across: Transformation of `position`; by default the axis of cells.
    """
    base = across or ax.get_xaxis_transform()
    for number, series_style in enumerate(styles):
        y = 2 + number * OUT_OF_MEMORY_ROW_POINTS
        label = ax.annotate(OUT_OF_MEMORY_MARK, (position, 0), (0, y), base, "offset points", zorder=6)
        label.set(ha="center", va="bottom", color=style.INK, fontsize=style.SMALL_FONT_SIZE)
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.2})
        shift = (-OUT_OF_MEMORY_MARKER_POINTS / 72, (y + 4) / 72)
        marker_transform = base + ScaledTranslation(*shift, ax.figure.dpi_scale_trans)
        marker = marker_style(series_style) | {"markersize": OUT_OF_MEMORY_MARKER_SIZE}
        ax.plot([position], [0], transform=marker_transform, zorder=6, scalex=False, scaley=False, **marker)


def marker_style(series_style: SeriesStyle) -> dict[str, Any]:
    """Return the marker of a series, without a line."""
    return {
        "linestyle": "none",
        "marker": series_style.marker,
        "color": series_style.colour,
        "markerfacecolor": series_style.colour if series_style.filled else "white",
        "markeredgecolor": series_style.colour,
        "markeredgewidth": 0.8,
    }
