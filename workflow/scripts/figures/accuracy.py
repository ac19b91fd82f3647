"""Training and validation accuracy, or perplexity, over epochs, updates or wall time: the study's series, panels by the other factors."""

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
from figures.view import View, view

PANEL_IN = 1.15
SMALL_PANEL_IN = 0.95  # where there are more than
LARGE_PANELS = 12
SMALL_PANELS_IN_PAGE = 6
SMALL_TITLE_CHARACTERS = 18
MOST_MARKERS = 20  # epochs
LABELS_IN = 0.12  # of ticks between the panels
MARGIN = 0.05  # of the axis, on both sides
BESIDE = 0.08  # of the axis, between points of the only epoch
PARTS = {"train": "training", "validation": "validation"}  # the panels, from above


@dataclass(frozen=True)
class Quantity:
    """What is drawn: the name of its columns without the part, in the heading, at the axis, the least and the most that it can be,
    the factor to the axis' unit, and a sentence of its own."""

    column: str
    heading: str
    label: str
    least: float
    most: float
    scale: float = 1.0
    means: str = ""

    @property
    def responses(self) -> dict[str, str]:
        """The columns of its panels, from above, and what part each is of."""
        return {f"{part}_{self.column}": said for part, said in PARTS.items()}


QUANTITIES = {
    "accuracy": Quantity("accuracy", "Accuracy", "accuracy (%)", 0, 1, 100),
    "perplexity": Quantity(
        "perplexity",
        "Perplexity",
        "perplexity",
        1,
        math.inf,
        means=Note(
            "perplexity",
            "Perplexity is exp(loss), the loss being the mean cross-entropy of the next token; its axis is logarithmic.",
        ),
    ),
}


@dataclass(frozen=True)
class Axis:
    """What accuracy is drawn over: in the heading, at the axis, and in a sentence of its own."""

    heading: str
    label: str
    means: str = ""
    whole: bool = True  # numbers are counted


AXES = {
    "epochs": Axis("epochs", "epoch"),
    "updates": Axis(
        "updates",
        "updates",
        Note("updates", "Updates are optimizer steps, one for each exchange, from the first epoch on."),
    ),
    "wall_time": Axis(
        "wall time",
        "wall time (s)",
        Note(
            "wall-time",
            "Wall time is that of epochs and validations from the first epoch on, the mean over replicates; start-up is not in it.",
        ),
        whole=False,
    ),
}
WHAT = (
    "{} in training (upper panels) and validation (lower panels) over {}. Lines: means; bands or bars: 95 % t intervals; markers at "
    "{} epochs."
)


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Two panels, training above validation, for each combination of the other factors. The figure and its caption."""
    of, axis, quantity = view(records.runs, asked), AXES[asked.x or "epochs"], QUANTITIES[asked.y or "accuracy"]
    small_in = len(PARTS) * SMALL_PANEL_IN + panels.titles_height(of.panels, SMALL_TITLE_CHARACTERS)
    of = of.on_a_page(small_in, SMALL_PANELS_IN_PAGE)
    epochs = _epochs(records, of, asked.x or "epochs")
    # Series that have the same places cover each other, so that each has its markers at some of them.
    thinned = axis.whole or (len(epochs) and epochs["epoch"].max() > MOST_MARKERS)
    what = _heading(quantity, axis, "some" if thinned else "all")
    responses = [name for name in quantity.responses if name in epochs and epochs[name].notna().any()]
    if not responses or epochs["x"].isna().all():
        why = (
            panels.NO_SUCCESS
            if epochs.empty
            else Note("not-recorded", f"no {quantity.column} was recorded", quantity=quantity.column)
            if not responses
            else Note("no-axis", f"no {axis.heading}", axis=axis.heading)
        )
        return panels.not_drawn(of.runs, why)
    told = [one for one in of.series if len(successful(one.of(of.runs)))]
    rows = epochs.groupby("cell").indices
    shown = of.panels
    small = len(shown) > LARGE_PANELS
    across, panel_in = (SMALL_PANELS_IN_PAGE, SMALL_PANEL_IN) if small else (panels.PANELS_IN_PAGE, PANEL_IN)
    characters = SMALL_TITLE_CHARACTERS if small else panels.TITLE_CHARACTERS
    bands, columns, width = panels.layout(len(shown), across)
    # Models take other times and steps: then every pair of panels has its own axis.
    apart = bool(panels.scaled_by(of.facet)) and axis is not AXES["epochs"]
    pair_in = len(responses) * panel_in + panels.titles_height(shown, characters) + LABELS_IN * apart
    drawn = style.figure(width, bands * pair_in + 0.15 + panels.legend_height(len(told), width))
    axes = drawn.subplots(bands * len(responses), columns, squeeze=False, sharex=not apart, sharey=True)
    for ax in axes.flat:
        ax.set_axis_off()
        ax.autoscale(False)  # for dozens of panels that share their axes, it takes most of the time
    _set_y(axes.flat[0], quantity, epochs[responses])
    for panel, levels in enumerate(shown):
        band, column = divmod(panel, columns)
        here = successful(panels.at(of.runs, levels))
        alike = panels.at(of.ok, {name: levels[name] for name in panels.scaled_by(of.facet)}) if apart else of.ok
        ends = _ends(epochs[epochs["cell"].isin(set(alike["cell"]))]["x"], whole=axis.whole)
        for row, response in enumerate(responses):
            ax = axes[band * len(responses) + row, column]
            ax.set_axis_on()
            ax.set_xlim(*ends)
            for position, one in enumerate(of.series):
                own = [rows[cell] for cell in one.of(here)["cell"].unique() if cell in rows]
                if own:
                    first = position % epochs["epoch"].nunique()
                    every = slice(first, None, len(of.series)) if thinned else slice(None)
                    shift = (position - (len(of.series) - 1) / 2) * BESIDE * (ends[1] - ends[0])
                    _curve(ax, one, epochs.iloc[np.concatenate(own)], (response, quantity), (every, shift))
            if not ax.lines:
                panels.say(ax, panels.NO_SUCCESS if here.empty else "not recorded")
            if row == 0:
                ax.set_title(panels.panel_title(levels, characters))
            if column == 0:
                ax.set_ylabel(f"{quantity.responses[response]}\n{quantity.label}")
            last = row == len(responses) - 1
            ax.tick_params(labelbottom=last and (apart or panel + columns >= len(shown)))
            ax.grid(True)
            ax.xaxis.set_major_locator(MaxNLocator(4 if apart else 5, integer=axis.whole, min_n_ticks=2))
    drawn.supxlabel(axis.label, fontsize=style.FONT_SIZE)
    panels.legend(drawn, told)
    behind = epochs.groupby(["cell", "epoch"])[responses].count().stack()  # runs that recorded it
    return drawn, of.caption(what, notes=[quantity.means, axis.means], counted=behind[behind > 0])


def _heading(quantity: Quantity, axis: Axis, marked: str) -> str:
    """What is drawn over what; `marked`: which epochs have markers."""
    text = WHAT.format(quantity.heading, axis.heading, marked)
    return Note("heading", text, quantity=quantity.column, over=axis.heading)


def _epochs(records: Records, of: View, x: str) -> pd.DataFrame:
    """The epochs of the runs that are drawn, with `x`: what the end of the epoch stands at; no row where none succeeded."""
    if of.ok.empty:
        return pd.DataFrame()
    epochs = records.epochs_of(of.runs)
    told = epochs["run_id"].isin(set(of.runs.loc[of.runs["perplexity"].notna(), "run_id"]))
    epochs = epochs.assign(
        **{f"{part}_perplexity": np.exp(epochs[f"{part}_loss"].astype(float).where(told)) for part in PARTS}
    )
    if x == "epochs":
        return epochs.assign(x=epochs["epoch"].astype(float))
    epochs = epochs.sort_values("epoch", kind="stable")
    each = epochs["exchanges"] if x == "updates" else epochs["epoch_time_s"] + epochs["validation_time_s"].fillna(0.0)
    return epochs.assign(x=each.astype(float).groupby(epochs["run_id"], sort=False).cumsum())


def _set_y(ax: Axes, quantity: Quantity, values: pd.DataFrame) -> None:
    """The y axis, which all panels share."""
    if math.isfinite(quantity.most):
        ax.set_ylim(quantity.scale * quantity.least, 1.03 * quantity.scale * quantity.most)
        return
    ax.set_yscale("log")
    least, most = np.nanmin(values.to_numpy(float)), np.nanmax(values.to_numpy(float))
    ax.set_ylim(max(quantity.least, 0.9 * least), 1.1 * most)


def _ends(x: pd.Series, *, whole: bool) -> tuple[float, float]:
    """The limits of an axis: those of what is drawn, with a margin; where there is one number, about as wide as it."""
    first, last = x.min(), x.max()
    if pd.isna(first):
        return 0.0, 1.0
    if not last > first:
        return (first - 0.5, last + 0.5) if whole else (0.5 * first, 1.5 * last)
    return first - MARGIN * (last - first), last + MARGIN * (last - first)


def _curve(ax: Axes, one: Series, epochs: pd.DataFrame, what: tuple[str, Quantity], place: tuple[slice, float]) -> None:
    """One series; `what`: the column; `place`: which points have a marker, and how far a single epoch's point is shifted."""
    response, quantity = what
    means = intervals.means(epochs[response], epochs["epoch"], minimum=quantity.least, maximum=quantity.most)
    if means.empty:
        return
    marked, shift = place
    alone = len(means) == 1
    x = epochs.groupby("epoch")["x"].mean().reindex(means.index).to_numpy(float) + shift * alone
    look = one.look
    low, high = (quantity.scale * means[bound].to_numpy() for bound in ("low", "high"))
    if alone:
        ax.vlines(x, low, high, color=look.colour, linewidth=0.9)
    ax.fill_between(x, low, high, color=look.colour, alpha=style.BAND_ALPHA, linewidth=0)
    ax.plot(
        x,
        quantity.scale * means["value"].to_numpy(),
        **panels.marker(look)
        | {"linestyle": look.line, "linewidth": 0.8, "markevery": slice(None) if alone else marked},
    )
