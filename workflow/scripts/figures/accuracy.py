"""Draw training and validation accuracy, or perplexity, over epochs, optimizer steps or wall time."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from analysis import intervals
from analysis.measured import Records, successful
from common.notes import Note
from declared.figures import FigureSpec
from figures import panels, style
from figures.panels import Series
from figures.view import View, build_view

PANEL_INCHES = 1.2
SMALL_PANEL_INCHES = 1.0  # if there are more panels than LARGE_PANELS
LARGE_PANELS = 12
SMALL_GRID_COLUMNS = 6
SMALL_TITLE_CHARACTERS = 16
MAX_MARKED_EPOCHS = 20  # of a line whose markers are not shifted
MARKER_SIZE = 2.4
MAX_EPOCH_TICKS = 4
TICK_LABELS_INCHES = 0.15  # between the panels
MARGIN = 0.05  # of the axis, on both sides
SINGLE_EPOCH_OFFSET = 0.08  # of the axis, between series that have a single epoch
BAR_OFFSET = 0.012  # of the axis, between markers and bars of several series
MIN_RUNS_FOR_INTERVAL = 3  # fewer runs are drawn one by one
MAX_BANDS = 3  # series of a panel with bands; more get bars, because bands would cover each other
MAX_BARS = 10  # of a series, if its markers and bars are shifted
MIN_AXIS_SPAN = 0.02  # of an accuracy
DOT_SIZE = 1.4
PARTS = {"train": "training", "validation": "validation"}  # panels, from the top


@dataclass(frozen=True)
class Quantity:
    """A quantity that is drawn.

    Attributes:
        column: Name of its columns without the part.
        heading: Its name in the caption.
        label: Axis label without the part.
        minimum: Smallest possible value.
        maximum: Largest possible value.
        unit_multiplier: Factor to the unit of the axis.
        explanation: An endnote of the caption.
    """

    column: str
    heading: str
    label: str
    minimum: float
    maximum: float
    unit_multiplier: float = 1.0
    explanation: str = ""

    @property
    def responses(self) -> dict[str, str]:
        """The columns of its panels from the top, with the name of the part of each."""
        return {f"{part}_{self.column}": part_name for part, part_name in PARTS.items()}


QUANTITIES = {
    "accuracy": Quantity("accuracy", "Accuracy", "accuracy (%)", 0, 1, 100),
    "perplexity": Quantity(
        "perplexity",
        "Perplexity",
        "perplexity",
        1,
        math.inf,
        explanation=Note(
            "perplexity",
            "Perplexity is exp(loss), the loss being the mean cross-entropy of the next token; its axis "
            "is logarithmic.",
        ),
    ),
}


@dataclass(frozen=True)
class Axis:
    """A quantity on the x axis: its name in the caption, its label, an endnote, and whether it is a count."""

    heading: str
    label: str
    explanation: str = ""
    integer: bool = True


AXES = {
    "epochs": Axis("epochs", "epoch"),
    "updates": Axis(
        "updates",
        "updates",
        Note("updates", "Updates are optimizer steps, one per gradient all-reduce, from the first epoch on."),
    ),
    "wall_time": Axis(
        "wall time",
        "wall time (s)",
        Note(
            "wall-time",
            "Wall time covers epochs and validations from the first epoch on, which includes warm-up, "
            "without start-up, averaged over replicates. A curve begins at the end of its first epoch, late "
            "where the first step takes long, as with compilation or the set-up of communication.",
        ),
        integer=False,
    ),
}
HEADING = "{} in {} over {}. Lines: means"
INTERVALS_PHRASE = "; {}: 95 % t intervals."
SHIFTED_NOTE = Note("shifted-sideways", "Markers and bars are shifted sideways.")
DOTS_NOTE = Note("single-runs-drawn", "Dots: runs of cells with fewer than three.")


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, panels.Caption]:
    """Return the figure, with training above validation for each combination of factors, and its caption."""
    view = build_view(records.runs, spec)
    x_axis, quantity = AXES[spec.x or "epochs"], QUANTITIES[spec.y or "accuracy"]
    titles_in = panels.titles_height(view.panels, SMALL_TITLE_CHARACTERS)
    view = view.fit_to_page(len(PARTS) * SMALL_PANEL_INCHES + titles_in, SMALL_GRID_COLUMNS)
    epochs = _epochs(records, view, spec.x or "epochs")
    responses = [name for name in quantity.responses if name in epochs and epochs[name].notna().any()]
    if not responses or epochs["x"].isna().all():
        missing = x_axis.heading if responses else quantity.column
        cause = Note("not-recorded", f"no {missing} was recorded", quantity=missing)
        return panels.empty_figure(view.runs, panels.NO_SUCCESS if epochs.empty else cause)
    recorded_runs = epochs.groupby(["cell", "epoch"])[responses].count().stack()  # runs that recorded it
    recorded_runs = recorded_runs[recorded_runs > 0]
    panel_runs = [panels.rows_at(view.ok, levels) for levels in view.panels]
    n_series = max(sum(len(series.select(runs)) > 0 for series in view.series) for runs in panel_runs)
    interval_mark = "bands" if n_series <= MAX_BANDS and epochs["epoch"].nunique() > 1 else "bars"
    has_bands = interval_mark == "bands"
    figure = _draw_panels(view, epochs, responses, (x_axis, quantity), has_bands=has_bands)
    has_interval = recorded_runs >= MIN_RUNS_FOR_INTERVAL
    parts = [quantity.responses[response] for response in responses]
    text = HEADING.format(quantity.heading, " and ".join(parts), x_axis.heading)
    text += INTERVALS_PHRASE.format(interval_mark) if has_interval.any() else "."
    heading = Note("heading", text, quantity=quantity.column, parts=parts, over=x_axis.heading)
    dots = "" if has_interval.all() else DOTS_NOTE
    shifted = SHIFTED_NOTE if x_axis.integer and not has_bands and n_series > 1 else ""
    apart = _distance_note(view, epochs, {name: quantity.responses[name] for name in responses}, quantity)
    endnotes = [quantity.explanation, x_axis.explanation]
    return figure, view.caption(heading, dots, apart, shifted, endnotes=endnotes, counted=recorded_runs)


def _distance_note(view: View, epochs: pd.DataFrame, parts: dict[str, str], quantity: Quantity) -> str:
    """Return how far the curves of a panel are apart, in points of accuracy; "" for other quantities."""
    if not math.isfinite(quantity.maximum):
        return ""
    means = epochs.groupby(["cell", "epoch"])[list(parts)].mean()
    distances = []
    for levels in view.panels:
        cells = set(panels.rows_at(view.ok, levels)["cell"])
        by_epoch = means[means.index.get_level_values("cell").isin(cells)].groupby("epoch")
        distances.append((by_epoch.max() - by_epoch.min())[by_epoch.size() > 1].stack())
    apart = quantity.unit_multiplier * pd.concat(distances).astype(float).dropna()
    if apart.empty:
        return ""
    largest, median = float(apart.max()), float(apart.median())
    text = f"Curves of a panel: up to {largest:.2g} points apart, median {median:.2g}."
    return Note("curves-apart", text, largest=largest, median=median)


def _draw_panels(
    view: View,
    epochs: pd.DataFrame,
    responses: list[str],
    content: tuple[Axis, Quantity],
    *,
    has_bands: bool,
) -> Figure:
    """Draw a panel of training above one of validation for each combination of factors."""
    x_axis, quantity = content
    legend_series = [series for series in view.series if len(series.select(view.ok))]
    rows = epochs.groupby("cell").indices
    panel_levels = view.panels
    is_small = len(panel_levels) > LARGE_PANELS
    max_columns, panel_in = (
        (SMALL_GRID_COLUMNS, SMALL_PANEL_INCHES) if is_small else (panels.MAX_GRID_COLUMNS, PANEL_INCHES)
    )
    characters = SMALL_TITLE_CHARACTERS if is_small else panels.TITLE_CHARACTERS
    n_bands, n_columns, width = panels.layout(len(panel_levels), max_columns)
    separate_axes = x_axis is AXES["updates"] and len(panel_levels) > 1
    pair_in = (
        len(responses) * panel_in
        + panels.titles_height(panel_levels, characters)
        + TICK_LABELS_INCHES * separate_axes
    )
    figure = style.new_figure(
        width, n_bands * pair_in + 0.15 + panels.legend_height(len(legend_series), width)
    )
    axes = figure.subplots(
        n_bands * len(responses), n_columns, squeeze=False, sharex=not separate_axes, sharey="row"
    )
    for ax in axes.flat:
        ax.set_axis_off()
        ax.autoscale(False)  # it is slow with dozens of panels that share axes
    for band in range(n_bands):
        band_levels = panel_levels[band * n_columns : (band + 1) * n_columns]
        cells = {cell for levels in band_levels for cell in panels.rows_at(view.ok, levels)["cell"]}
        for row, response in enumerate(responses):
            _set_y_axis(axes[band * len(responses) + row, 0], quantity, epochs, response, cells)
    by_epoch = epochs.groupby(["cell", "epoch"])["x"]  # runs are drawn one by one where they are few
    drawn_x = by_epoch.transform("mean").where(
        by_epoch.transform("count") >= MIN_RUNS_FOR_INTERVAL, epochs["x"]
    )
    for panel, levels in enumerate(panel_levels):
        band, column = divmod(panel, n_columns)
        panel_runs = successful(panels.rows_at(view.runs, levels))
        axis_runs = panel_runs if separate_axes else view.ok
        limits = _axis_limits(drawn_x[epochs["cell"].isin(set(axis_runs["cell"]))], integer=x_axis.integer)
        for row, response in enumerate(responses):
            ax = axes[band * len(responses) + row, column]
            ax.set_axis_on()
            ax.set_xlim(*limits)
            for position, series in enumerate(view.series):
                indices = [rows[cell] for cell in series.select(panel_runs)["cell"].unique() if cell in rows]
                if indices:
                    # Neither lines nor bars move on an axis of time, which is measured.
                    middle = (len(view.series) - 1) / 2
                    place = (position - middle) * (limits[1] - limits[0]) if x_axis.integer else 0.0
                    _draw_curve(
                        ax,
                        series,
                        epochs.iloc[np.concatenate(indices)],
                        (response, quantity),
                        place,
                        has_bands=has_bands,
                    )
            if not ax.lines:
                panels.write_remark(ax, view.absence_reason(panels.rows_at(view.runs, levels)), 24)
            if row == 0:
                ax.set_title(panels.panel_title(levels, characters))
            if column == 0:
                ax.set_ylabel(f"{quantity.responses[response]}\n{quantity.label}")
            last = row == len(responses) - 1
            ax.tick_params(labelbottom=last and (separate_axes or panel + n_columns >= len(panel_levels)))
            ax.grid(True)
            ax.xaxis.set_major_locator(
                FixedLocator(_epoch_ticks(epochs["epoch"], MAX_EPOCH_TICKS - is_small))
                if x_axis is AXES["epochs"]
                else MaxNLocator(3 if is_small else 4, integer=x_axis.integer, min_n_ticks=2)
            )
    figure.supxlabel(x_axis.label, fontsize=style.FONT_SIZE)
    panels.add_legend(figure, legend_series)
    return figure


def _epoch_ticks(epochs: pd.Series, max_ticks: int) -> list[int]:
    """Return the first epoch, others at equal distances, and the last one."""
    first, last = int(epochs.min()), int(epochs.max())
    step = max(1, math.ceil((last - first) / (max_ticks - 1)))
    return sorted({*range(first, last - step // 2, step), last})


def _epochs(records: Records, view: View, x: str) -> pd.DataFrame:
    """Return the epochs of the drawn runs, with the position `x` of their end.

    It has no rows if no run succeeded.
    """
    if view.ok.empty:
        return pd.DataFrame()
    epochs = records.epochs_of(view.runs)
    has_perplexity = epochs["run_id"].isin(set(view.runs.loc[view.runs["perplexity"].notna(), "run_id"]))
    for part in PARTS:
        losses = epochs[f"{part}_loss"].astype(float).where(has_perplexity)
        epochs = epochs.assign(**{f"{part}_perplexity": np.exp(losses)})
    if x == "epochs":
        return epochs.assign(x=epochs["epoch"].astype(float))
    epochs = epochs.sort_values("epoch", kind="stable")
    increments = (
        epochs["n_allreduces"]
        if x == "updates"
        else epochs["epoch_time_s"] + epochs["validation_time_s"].fillna(0.0)
    )
    return epochs.assign(x=increments.astype(float).groupby(epochs["run_id"], sort=False).cumsum())


def _set_y_axis(ax: Axes, quantity: Quantity, epochs: pd.DataFrame, response: str, cells: set[str]) -> None:
    """Set the y axis that the panels of a row share, which draw the column `response` of `cells`.

    It shows all runs, and intervals that need little more axis. Without any value it is that of all cells.
    """
    drawn = epochs[epochs["cell"].isin(cells)]
    epochs = drawn if drawn[response].notna().any() else epochs
    values = epochs[response].to_numpy(float)
    smallest, largest = np.nanmin(values), np.nanmax(values)
    if not math.isfinite(quantity.maximum):
        ax.set_yscale("log")
        panels.set_round_ticks(ax.yaxis)
        ax.set_ylim(max(quantity.minimum, 0.9 * smallest), 1.1 * largest)
        return
    span = max(largest - smallest, MIN_AXIS_SPAN)
    lows = pd.concat([_means(rows, response, quantity)["low"] for _, rows in epochs.groupby("cell")])
    smallest = panels.extend_end(smallest, lows, smallest - panels.AXIS_EXTENSION * span)
    margin = MARGIN * max(largest - smallest, MIN_AXIS_SPAN)
    low, high = max(quantity.minimum, smallest - margin), min(largest + margin, quantity.maximum + margin)
    ax.set_ylim(quantity.unit_multiplier * low, quantity.unit_multiplier * high)


def _means(epochs: pd.DataFrame, response: str, quantity: Quantity) -> pd.DataFrame:
    """Return the means of a cell by epoch, with intervals from MIN_RUNS_FOR_INTERVAL runs on."""
    means = intervals.means(
        epochs[response], epochs["epoch"], minimum=quantity.minimum, maximum=quantity.maximum
    )
    bounds = ["low", "high"]
    means[bounds] = means[bounds].where(means["n"] >= MIN_RUNS_FOR_INTERVAL)
    return means


def _axis_limits(x: pd.Series, *, integer: bool) -> tuple[float, float]:
    """Return the limits of the x axis. Times start at 0; counts have a margin on both sides."""
    first, last = x.min(), x.max()
    if pd.isna(first):
        return 0.0, 1.0
    if not integer:
        return 0.0, (1 + MARGIN) * last
    if not last > first:
        return first - 0.5, last + 0.5
    return first - MARGIN * (last - first), last + MARGIN * (last - first)


def _draw_curve(
    ax: Axes,
    series: Series,
    epochs: pd.DataFrame,
    content: tuple[str, Quantity],
    place: float,
    *,
    has_bands: bool,
) -> None:
    """Draw one series of a panel.

    Args:
        ax: The panel.
        series: The series.
        epochs: Its epochs.
        content: The column to draw, and its quantity.
        place: Number of the series, counted from the middle one, times the width of the axis.
        has_bands: Draw intervals as bands instead of bars.
    """
    response, quantity = content
    means = _means(epochs, response, quantity)
    if means.empty:
        return
    is_single = len(means) == 1
    x = epochs.groupby("epoch")["x"].mean().reindex(means.index).to_numpy(float)
    x = x + place * SINGLE_EPOCH_OFFSET * is_single
    colour = series.style.colour
    is_shifted = not (has_bands or is_single or place == 0)
    step = max(1, math.ceil(len(x) / (MAX_BARS if is_shifted else MAX_MARKED_EPOCHS)))
    marked_x = x + place * BAR_OFFSET * is_shifted
    low, high = (quantity.unit_multiplier * means[bound].to_numpy() for bound in ("low", "high"))
    if has_bands:
        ax.fill_between(x, low, high, color=colour, alpha=style.BAND_ALPHA, linewidth=0)
    else:
        ax.vlines(marked_x[::-step], low[::-step], high[::-step], color=colour, linewidth=0.7)
    epochs_of_few_runs = epochs[epochs["epoch"].isin(means.index[means["n"] < MIN_RUNS_FOR_INTERVAL])]
    if len(epochs_of_few_runs):
        shift = place * SINGLE_EPOCH_OFFSET * is_single
        values = quantity.unit_multiplier * epochs_of_few_runs[response].astype(float)
        dots = ax.plot(epochs_of_few_runs["x"] + shift, values, "o", color=colour)[0]
        dots.set(markersize=DOT_SIZE, markeredgewidth=0)
    values = quantity.unit_multiplier * means["value"].to_numpy()
    line: dict[str, Any] = {"color": series.style.colour, "linestyle": series.style.line, "linewidth": 0.8}
    marker = panels.marker_style(series.style) | {"markersize": MARKER_SIZE, "markeredgewidth": 0.5}
    if is_shifted:
        ax.plot(x, values, **line)
        ax.plot(marked_x[::-step], values[::-step], zorder=3, **marker)
    else:
        ax.plot(x, values, markevery=step, **marker | line)
