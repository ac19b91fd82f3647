"""Draw a heat map of a response: one field per cell, with its mean and its interval as numbers."""

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis import tables
from analysis.intervals import Estimate
from analysis.level_words import axis_label, level_text, treatment_text
from analysis.records import Records, cell_levels, levels_in_order, varying
from common.notes import Note
from declared.factors import MODEL_AND_DATASET
from declared.figure_specs import FigureSpec
from figures import captions, panels, selection, style, value_axis
from figures.view import View, build_response_view

COLOURS = "cividis"  # sequential, and the same to readers with and without colour blindness
COLOUR_ENDS = 0.12, 0.98  # the part of the scale that is used, without the darkest colours
LOG_FROM_RATIO = 3
MAX_COMMON_DECIMALS_RATIO = 5  # ratio of means beyond which each has its own decimals
FIELD_INCHES = 0.31
AROUND_FIELDS_INCHES = 0.75  # height of the axis below the fields and of the scale of colours
MIN_FIELD_WIDTH_IN = 0.9
CHARACTER_INCHES, SMALL_CHARACTER_INCHES = 0.06, 0.055
DARK_BELOW = 0.5  # luminance of a field whose text is white
LUMINANCE = (0.2126, 0.7152, 0.0722)  # weights of red, green and blue
MEAN_OFFSET, INTERVAL_OFFSET = -0.18, 0.23  # shares of a field, from its middle
EMPTY_CHARACTERS = 14  # characters per line in a field without a value
SINGLE_RUN = "†"
LEAD = "{} as a heat map. Numbers: means with 95 % intervals; yellow: larger."
SINGLE_RUNS = f"{SINGLE_RUN}: a single run."
EMPTY_FIELDS = Note("empty-fields", "Blank fields: cells that the study does not have.")


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with panels by data set and model and by `facet`, and its caption."""
    view = build_response_view(records, spec)
    if view.ok.empty:
        return panels.empty_figure(view.runs, view.missing_cause)
    x = str(spec.x)
    view, columns, names = arrange(view, x)
    panel_in = len(columns) * _field_width(view)
    row_levels = ordered_rows(view, names)
    labels = [row_text(levels) for levels in row_levels]
    height_in = len(row_levels) * FIELD_INCHES
    label_in = CHARACTER_INCHES * max(map(len, labels))
    across = _panels_across(label_in, panel_in)
    view = view.fit_to_page(height_in + panels.titles_height(view.panel_levels), across)
    panel_levels = view.panel_levels
    row_levels = ordered_rows(view, names)  # without the rows of panels that do not fit the page
    labels, height_in = [row_text(levels) for levels in row_levels], len(row_levels) * FIELD_INCHES
    n_columns = min(len(panel_levels), across)
    n_rows = math.ceil(len(panel_levels) / n_columns)
    is_wide = label_in + n_columns * panel_in > style.COLUMN_INCHES
    width = style.PAGE_INCHES if is_wide else style.COLUMN_INCHES
    figure = style.new_figure(
        width, n_rows * (height_in + panels.titles_height(panel_levels)) + AROUND_FIELDS_INCHES
    )
    axes = panels.create_axes(figure, (n_rows, n_columns), len(panel_levels))
    is_logarithmic = has_logarithmic_colours(view)
    norm = (LogNorm if is_logarithmic else Normalize)(*_range_of_means(view))
    colours = ScalarMappable(norm, ListedColormap(palette()))
    n_decimals = common_decimals(view)
    for ax, levels in zip(axes, panel_levels, strict=True):
        planned = selection.rows_at(view.runs, levels)
        for y, row in enumerate(row_levels):
            for column, level in enumerate(columns):
                runs = selection.rows_at(planned, row | {x: level})
                _draw_field(ax, (column, y), view, runs, colours, n_decimals)
        ax.set_title(panels.panel_title(levels))
        ax.set_xlim(-0.5, len(columns) - 0.5)
        ax.set_ylim(len(row_levels) - 0.5, -0.5)
        ax.set_xticks(range(len(columns)), [level_text(level) for level in columns])
        ax.set_yticks(range(len(row_levels)), labels)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    for ax in axes[-n_columns:]:
        ax.set_xlabel(axis_label(view.runs, x))
    bar = figure.colorbar(colours, ax=axes, location="bottom", aspect=60, pad=0.02, fraction=0.04)
    bar.set_label(view.response.label)
    bar.outline.set_visible(False)
    if is_logarithmic:
        value_axis.set_round_ticks(bar.ax.xaxis, value_axis.MANY_TICKS)
    drawn = view.ok.groupby("cell").size()
    n_fields = len(panel_levels) * len(row_levels) * len(columns)
    return figure, view.caption(
        Note("heading", LEAD.format(view.response.capitalized_title), response=view.response.name),
        Note("single-runs", SINGLE_RUNS, cells=int((drawn == 1).sum())) if (drawn == 1).any() else "",
        EMPTY_FIELDS if n_fields > view.runs["cell"].nunique() else "",
        endnotes=[
            *view.response_notes,
            Note("logarithmic-colours", "The colour scale is logarithmic.") if is_logarithmic else "",
        ],
    )


def arrange(view: View, x: str) -> tuple[View, list[Any], list[str]]:
    """Return the view of a heat map with its panels, the levels of columns, and the factors of rows."""
    columns = levels_in_order(view.runs, x)
    view, names = _place_factors(view, len(columns) * _field_width(view))
    return view, columns, names


def palette() -> list[str]:
    """Return the colours of fields, from the smallest value to the largest."""
    colours = matplotlib.colormaps[COLOURS](np.linspace(*COLOUR_ENDS, 256))
    return [to_hex(colour) for colour in colours]


def _field_width(view: View) -> float:
    """Return the width in inches that the longest interval needs."""
    n_decimals = common_decimals(view)
    texts = (_interval_text(view.estimate(cell), n_decimals) for cell in dict.fromkeys(view.ok["cell"]))
    longest = max(len(text.partition(" ")[2]) for text in texts)
    return max(MIN_FIELD_WIDTH_IN, SMALL_CHARACTER_INCHES * longest)


def common_decimals(view: View) -> int | None:
    """Return the decimals that most fields need, so that all have the same; None if means are far apart."""
    estimates = [view.estimate(cell) for cell in dict.fromkeys(view.ok["cell"])]
    needed = [
        tables.decimals(estimate.value, error)
        for estimate in estimates
        if (error := tables.half_width(estimate)) is not None
    ]
    if not needed or _ratio_of_means(view) > MAX_COMMON_DECIMALS_RATIO:
        return None
    return max(Counter(needed).items(), key=lambda entry: (entry[1], entry[0]))[0]


def _interval_text(estimate: Estimate, n_decimals: int | None) -> str:
    """Return the mean and its interval with these decimals, or with those that its own interval gives."""
    if n_decimals is None:
        return tables.interval(estimate)
    return tables.interval_with_decimals(estimate, n_decimals)


def _place_factors(view: View, panel_in: float) -> tuple[View, list[str]]:
    """Return the view with its panels, and the factors whose combinations are rows.

    Rows are series, and all other factors make panels. If the panels, each `panel_in` wide, do not fit in one
    row, factors of panels become factors of rows, the last one first, as long as the rows fit a page. The
    `facet` of the spec stays or, without one, model and data set, whose times differ most.
    """
    names = [name for name in view.series_factors if name in varying(view.runs)]
    panel_factors, fixed = list(view.panel_factors), view.spec.facet or MODEL_AND_DATASET
    while movable := [name for name in panel_factors if name not in fixed]:
        rows = ordered_rows(view, names)
        label_in = CHARACTER_INCHES * max((len(row_text(row)) for row in rows), default=0)
        n_rows = len(ordered_rows(view, [*names, movable[-1]]))
        is_one_row = view.runs.groupby(panel_factors, dropna=False).ngroups <= _panels_across(
            label_in, panel_in
        )
        if is_one_row or n_rows * FIELD_INCHES > panels.PAGE_PANELS_INCHES:
            break
        panel_factors.remove(movable[-1])
        names.append(movable[-1])
    return replace(view, series_factors=["framework"], panel_factors=panel_factors), names


def _panels_across(label_in: float, panel_in: float) -> int:
    """Return how many panels of this width fit a page next to row labels."""
    return max(1, int((style.PAGE_INCHES - label_in - 0.15) / panel_in))


def ordered_rows(view: View, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the levels of each row, in the order of tables."""
    return [dict(row) for row in cell_levels(view.runs)[list(names)].drop_duplicates().to_dict("records")]


def row_text(levels: dict[str, Any]) -> str:
    """Return the label of a row."""
    framework = levels.get("framework", "")
    treatment = treatment_text({name: level for name, level in levels.items() if name != "framework"})
    return ", ".join(part for part in (framework, treatment) if part)


def has_logarithmic_colours(view: View) -> bool:
    """Return whether the drawn means span LOG_FROM_RATIO."""
    return _ratio_of_means(view) > LOG_FROM_RATIO


def _ratio_of_means(view: View) -> float:
    least, largest = _range_of_means(view)
    return largest / least


def _range_of_means(view: View) -> tuple[float, float]:
    means = [view.estimate(cell).value for cell in dict.fromkeys(view.ok["cell"])]
    return min(means), max(means)


def _draw_field(
    ax: Axes,
    position: tuple[int, int],
    view: View,
    planned: pd.DataFrame,
    colours: ScalarMappable,
    n_decimals: int | None,
) -> None:
    """Draw one cell of the study: its colour, its mean, and its interval or the mark of a single run."""
    if planned.empty:
        return
    x, y = position
    measured = view.measured(planned)
    if measured.empty:
        text = textwrap.fill(view.absence_reason(planned), EMPTY_CHARACTERS)
        ax.text(x, y, text, ha="center", va="center", color=style.MUTED, fontsize=style.SMALL_FONT_SIZE)
        return
    estimate = view.estimate(str(measured["cell"].iloc[0]))
    shade = colours.to_rgba(np.array([estimate.value]))[0]
    ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=shade, edgecolor="white", linewidth=1.0))
    ink = "white" if float(np.dot(shade[:3], LUMINANCE)) < DARK_BELOW else style.INK
    value, _, bounds = _interval_text(estimate, n_decimals).partition(" [")
    if len(measured) == 1:
        ax.text(x, y, f"{value}{SINGLE_RUN}", ha="center", va="center", color=ink)
        return
    ax.text(x, y + MEAN_OFFSET, value, ha="center", va="center", color=ink)
    if bounds:
        label = ax.text(x, y + INTERVAL_OFFSET, f"[{bounds}", ha="center", va="center", color=ink)
        label.set_fontsize(style.SMALL_FONT_SIZE)
