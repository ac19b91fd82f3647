"""Training and validation accuracy over epochs: the study's series, panels by the other factors that vary."""

import sys

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import intervals
from analysis.measured import Records, series_factors, successful, varying
from common.errors import exit_status
from figures import panels, style
from figures.panels import Series

PANEL_IN = 1.15
SMALL_PANEL_IN = 0.95  # where there are more than
LARGE_PANELS = 12
SMALL_PANELS_IN_PAGE = 6
SMALL_TITLE_CHARACTERS = 18
BESIDE = 0.08  # of an epoch, between points of the only one
RESPONSES = {"train_accuracy": "training", "validation_accuracy": "validation"}
WHAT = (
    "Training accuracy (upper panel of each pair) and validation accuracy (lower panel) over epochs, by {series}: "
    "lines are means over replicates, bands their intervals (bars, where there is one epoch); the markers tell the {kind}s "
    "apart and stand at some epochs only."
)


def draw(records: Records) -> tuple[Figure, str]:
    """Two panels, training above validation, for each combination of the other factors. The figure and its caption."""
    runs = records.runs
    series, told_apart = panels.all_series(runs), panels.told_apart(runs)
    what = WHAT.format(series=told_apart, kind=told_apart.split()[0])
    epochs = records.epochs if len(successful(runs)) else pd.DataFrame()
    responses = [name for name in RESPONSES if name in epochs and epochs[name].notna().any()]
    if not responses:
        text = "no successful run" if epochs.empty else "no accuracy was recorded"
        return panels.nothing(style.figure(style.COLUMN_IN, 1.4), text), panels.caption(runs, what, of_time=False)
    told = [one for one in series if len(one.of(epochs))]
    shown, unseen = panels.most(panels.combinations(runs, varying(runs, but=series_factors(runs))))
    small = len(shown) > LARGE_PANELS
    across, panel_in = (SMALL_PANELS_IN_PAGE, SMALL_PANEL_IN) if small else (panels.PANELS_IN_PAGE, PANEL_IN)
    characters = SMALL_TITLE_CHARACTERS if small else panels.TITLE_CHARACTERS
    bands, columns, width = panels.layout(len(shown), across)
    height = (
        bands * (len(responses) * panel_in + panels.titles_height(shown, characters))
        + 0.15
        + panels.legend_height(len(told), width)
    )
    drawn = style.figure(width, height)
    axes = drawn.subplots(bands * len(responses), columns, squeeze=False, sharex=True, sharey=True)
    for ax in axes.flat:
        ax.set_axis_off()
    for panel, levels in enumerate(shown):
        band, column = divmod(panel, columns)
        here = panels.at(epochs, levels)
        for row, response in enumerate(responses):
            ax = axes[band * len(responses) + row, column]
            ax.set_axis_on()
            for position, one in enumerate(series):
                _curve(ax, one, here, response, (position, len(series)))
            if here.empty:
                panels.say(ax, "no successful run")
            if row == 0:
                ax.set_title(panels.panel_title(levels, characters))
            if column == 0:
                ax.set_ylabel(f"{RESPONSES[response]}\naccuracy (%)")
            if panel + columns >= len(shown) and row == len(responses) - 1:
                ax.tick_params(labelbottom=True)
            ax.grid(True)
            ax.set_ylim(0, 103)
            if epochs["epoch"].max() == 1:
                ax.set_xlim(0.5, 1.5)
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=2))
    drawn.supxlabel("epoch", fontsize=style.FONT_SIZE)
    panels.legend(drawn, told)
    return drawn, panels.caption(runs, what, unseen, of_time=False)


def _curve(ax: Axes, one: Series, epochs: pd.DataFrame, response: str, place: tuple[int, int]) -> None:
    """One series; `place`: its number, and how many there are. A single epoch is a point with a bar, beside the others'."""
    means = [
        (epoch, intervals.mean(values, minimum=0, maximum=1))
        for epoch, values in one.of(epochs).groupby("epoch")[response]
        if values.notna().any()
    ]
    if not means:
        return
    position, series = place
    alone = len(means) == 1
    x = [epoch + (position - (series - 1) / 2) * BESIDE * alone for epoch, _ in means]
    look = one.look
    low, high = (
        [100 * bound for bound in bounds] for bounds in ([e.low for _, e in means], [e.high for _, e in means])
    )
    if alone:
        ax.vlines(x, low, high, color=look.colour, linewidth=0.9)
    ax.fill_between(x, low, high, color=look.colour, alpha=style.BAND_ALPHA, linewidth=0)
    ax.plot(
        x,
        [100 * estimate.value for _, estimate in means],
        **panels.marker(look)
        | {"linestyle": look.line, "linewidth": 0.8, "markevery": slice(0 if alone else position, None, series)},
    )


def main(argv: list[str] | None = None) -> None:
    """Draw the figure."""
    panels.program(draw, __doc__, argv)


if __name__ == "__main__":
    sys.exit(exit_status(main))
