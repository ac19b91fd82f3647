"""Draw training and validation accuracy, or perplexity, over epochs, optimizer steps or wall time."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import intervals
from analysis.measured import Records, successful
from common.notes import Note
from declared.figures import Declared
from figures import panels, style
from figures.panels import Series
from figures.view import View, build_view

PANEL_INCHES = 1.15
SMALL_PANEL_INCHES = 0.95  # if there are more panels than LARGE_PANELS
LARGE_PANELS = 12
SMALL_GRID_COLUMNS = 6
SMALL_TITLE_CHARACTERS = 18
MAX_MARKED_EPOCHS = 20  # epochs
TICK_LABELS_INCHES = 0.12  # between the panels
MARGIN = 0.05  # of the axis, on both sides
SINGLE_EPOCH_OFFSET = 0.08  # of the axis, between series that have a single epoch
PARTS = {"train": "training", "validation": "validation"}  # panels, from the top


@dataclass(frozen=True)
class Quantity:
    """A quantity that is drawn.

    Attributes:
        column: Name of its columns without the part.
        heading: Its name in the caption.
        label: Axis label.
        minimum: Smallest possible value.
        maximum: Largest possible value.
        scale: Factor to the unit of the axis.
        explanation: A note for the caption.
    """

    column: str
    heading: str
    label: str
    minimum: float
    maximum: float
    scale: float = 1.0
    explanation: str = ""

    @property
    def responses(self) -> dict[str, str]:
        """Return the columns of its panels from the top, with the name of the part of each."""
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
            (
                "Perplexity is exp(loss), the loss being the mean cross-entropy of the next token; its axis "
                "is logarithmic."
            ),
        ),
    ),
}


@dataclass(frozen=True)
class Axis:
    """A quantity on the x axis: its name in the caption, its label, a note, and whether it is a count."""

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
            (
                "Wall time covers epochs and validations from the first epoch on, without start-up, averaged "
                "over replicates."
            ),
        ),
        integer=False,
    ),
}
HEADING = (
    "{} in training (upper panels) and validation (lower panels) over {}. Lines: means; bands or bars: 95 % "
    "t intervals; markers at {} epochs."
)


def draw(records: Records, declaration: Declared) -> tuple[Figure, panels.Caption]:
    """Return the figure, training above validation for each combination of factors, and its caption."""
    view, x_axis, quantity = (
        build_view(records.runs, declaration),
        AXES[declaration.x or "epochs"],
        QUANTITIES[declaration.y or "accuracy"],
    )
    small_panels_in = len(PARTS) * SMALL_PANEL_INCHES + panels.titles_height(
        view.panels, SMALL_TITLE_CHARACTERS
    )
    view = view.fit_to_page(small_panels_in, SMALL_GRID_COLUMNS)
    epochs = _epochs(records, view, declaration.x or "epochs")
    # Series with the same x values cover each other, so each has markers at some of them only.
    thinned = x_axis.integer or (len(epochs) and epochs["epoch"].max() > MAX_MARKED_EPOCHS)
    heading = _heading_note(quantity, x_axis, "some" if thinned else "all")
    responses = [name for name in quantity.responses if name in epochs and epochs[name].notna().any()]
    if not responses or epochs["x"].isna().all():
        cause = (
            panels.NO_SUCCESS
            if epochs.empty
            else Note("not-recorded", f"no {quantity.column} was recorded", quantity=quantity.column)
            if not responses
            else Note("no-axis", f"no {x_axis.heading}", axis=x_axis.heading)
        )
        return panels.empty_figure(view.runs, cause)
    legend_series = [series for series in view.series if len(successful(series.select(view.runs)))]
    rows = epochs.groupby("cell").indices
    panel_levels = view.panels
    is_small = len(panel_levels) > LARGE_PANELS
    max_columns, panel_in = (
        (SMALL_GRID_COLUMNS, SMALL_PANEL_INCHES) if is_small else (panels.MAX_GRID_COLUMNS, PANEL_INCHES)
    )
    characters = SMALL_TITLE_CHARACTERS if is_small else panels.TITLE_CHARACTERS
    n_bands, n_columns, width = panels.layout(len(panel_levels), max_columns)
    # Models differ in time and number of steps, so every pair of panels has its own axis.
    separate_axes = bool(panels.duration_factors(view.facet)) and x_axis is not AXES["epochs"]
    pair_in = (
        len(responses) * panel_in
        + panels.titles_height(panel_levels, characters)
        + TICK_LABELS_INCHES * separate_axes
    )
    figure = style.new_figure(
        width, n_bands * pair_in + 0.15 + panels.legend_height(len(legend_series), width)
    )
    axes = figure.subplots(
        n_bands * len(responses), n_columns, squeeze=False, sharex=not separate_axes, sharey=True
    )
    for ax in axes.flat:
        ax.set_axis_off()
        ax.autoscale(False)  # it is slow with dozens of panels that share axes
    _set_y_axis(axes.flat[0], quantity, epochs[responses])
    for panel, levels in enumerate(panel_levels):
        band, column = divmod(panel, n_columns)
        panel_runs = successful(panels.rows_at(view.runs, levels))
        axis_runs = (
            panels.rows_at(view.ok, {name: levels[name] for name in panels.duration_factors(view.facet)})
            if separate_axes
            else view.ok
        )
        limits = _axis_limits(
            epochs[epochs["cell"].isin(set(axis_runs["cell"]))]["x"], integer=x_axis.integer
        )
        for row, response in enumerate(responses):
            ax = axes[band * len(responses) + row, column]
            ax.set_axis_on()
            ax.set_xlim(*limits)
            for position, series in enumerate(view.series):
                indices = [rows[cell] for cell in series.select(panel_runs)["cell"].unique() if cell in rows]
                if indices:
                    first = position % epochs["epoch"].nunique()
                    markevery = slice(first, None, len(view.series)) if thinned else slice(None)
                    shift = (
                        (position - (len(view.series) - 1) / 2)
                        * SINGLE_EPOCH_OFFSET
                        * (limits[1] - limits[0])
                    )
                    _draw_curve(
                        ax,
                        series,
                        epochs.iloc[np.concatenate(indices)],
                        (response, quantity),
                        (markevery, shift),
                    )
            if not ax.lines:
                panels.write_remark(ax, panels.NO_SUCCESS if panel_runs.empty else "not recorded")
            if row == 0:
                ax.set_title(panels.panel_title(levels, characters))
            if column == 0:
                ax.set_ylabel(f"{quantity.responses[response]}\n{quantity.label}")
            last = row == len(responses) - 1
            ax.tick_params(labelbottom=last and (separate_axes or panel + n_columns >= len(panel_levels)))
            ax.grid(True)
            ax.xaxis.set_major_locator(
                MaxNLocator(4 if separate_axes else 5, integer=x_axis.integer, min_n_ticks=2)
            )
    figure.supxlabel(x_axis.label, fontsize=style.FONT_SIZE)
    panels.add_legend(figure, legend_series)
    recorded_runs = epochs.groupby(["cell", "epoch"])[responses].count().stack()  # runs that recorded it
    return figure, view.caption(
        heading, notes=[quantity.explanation, x_axis.explanation], counted=recorded_runs[recorded_runs > 0]
    )


def _heading_note(quantity: Quantity, axis: Axis, marked_epochs: str) -> str:
    """Return what is drawn over what, and which epochs have markers."""
    text = HEADING.format(quantity.heading, axis.heading, marked_epochs)
    return Note("heading", text, quantity=quantity.column, over=axis.heading)


def _epochs(records: Records, view: View, x: str) -> pd.DataFrame:
    """Return the epochs of the drawn runs, with `x`, the position of the end of the epoch.

    No row if no run succeeded.
    """
    if view.ok.empty:
        return pd.DataFrame()
    epochs = records.epochs_of(view.runs)
    has_perplexity = epochs["run_id"].isin(set(view.runs.loc[view.runs["perplexity"].notna(), "run_id"]))
    epochs = epochs.assign(
        **{
            f"{part}_perplexity": np.exp(epochs[f"{part}_loss"].astype(float).where(has_perplexity))
            for part in PARTS
        }
    )
    if x == "epochs":
        return epochs.assign(x=epochs["epoch"].astype(float))
    epochs = epochs.sort_values("epoch", kind="stable")
    increments = (
        epochs["n_allreduces"]
        if x == "updates"
        else epochs["epoch_time_s"] + epochs["validation_time_s"].fillna(0.0)
    )
    return epochs.assign(x=increments.astype(float).groupby(epochs["run_id"], sort=False).cumsum())


def _set_y_axis(ax: Axes, quantity: Quantity, values: pd.DataFrame) -> None:
    """Set the y axis that all panels share."""
    if math.isfinite(quantity.maximum):
        ax.set_ylim(quantity.scale * quantity.minimum, 1.03 * quantity.scale * quantity.maximum)
        return
    ax.set_yscale("log")
    smallest, largest = np.nanmin(values.to_numpy(float)), np.nanmax(values.to_numpy(float))
    ax.set_ylim(max(quantity.minimum, 0.9 * smallest), 1.1 * largest)


def _axis_limits(x: pd.Series, *, integer: bool) -> tuple[float, float]:
    """Return the limits of an axis with a margin; around a single value they are about as wide as it."""
    first, last = x.min(), x.max()
    if pd.isna(first):
        return 0.0, 1.0
    if not last > first:
        return (first - 0.5, last + 0.5) if integer else (0.5 * first, 1.5 * last)
    return first - MARGIN * (last - first), last + MARGIN * (last - first)


def _draw_curve(
    ax: Axes,
    series: Series,
    epochs: pd.DataFrame,
    content: tuple[str, Quantity],
    placement: tuple[slice, float],
) -> None:
    """Draw one series.

    `content` is the column and its quantity; `placement` is which points have markers, and the offset of a
    single epoch.
    """
    response, quantity = content
    means = intervals.means(
        epochs[response], epochs["epoch"], minimum=quantity.minimum, maximum=quantity.maximum
    )
    if means.empty:
        return
    marked, shift = placement
    is_single = len(means) == 1
    x = epochs.groupby("epoch")["x"].mean().reindex(means.index).to_numpy(float) + shift * is_single
    series_style = series.style
    low, high = (quantity.scale * means[bound].to_numpy() for bound in ("low", "high"))
    if is_single:
        ax.vlines(x, low, high, color=series_style.colour, linewidth=0.9)
    ax.fill_between(x, low, high, color=series_style.colour, alpha=style.BAND_ALPHA, linewidth=0)
    ax.plot(
        x,
        quantity.scale * means["value"].to_numpy(),
        **panels.marker_style(series_style)
        | {
            "linestyle": series_style.line,
            "linewidth": 0.8,
            "markevery": slice(None) if is_single else marked,
        },
    )
