"""Predicted against measured: each cell as the regression on all other cells predicts it, a panel for each model and response."""

import math
from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import tables
from analysis.measured import Records
from analysis.regression import Fit, Response, fit_all
from common.notes import Note
from common.text import number_of
from declared.figures import Declared
from figures import panels, style
from figures.style import Look
from figures.view import view

PANEL_IN = 1.35
MARGIN = 1.25  # of the axes beyond the smallest and the largest measured mean
BEYOND = 2.0  # how far beyond them predictions are drawn where they are
MANY_CELLS = 200
MOST_VECTOR = 2000  # markers; of more, the vector files have an image
WHAT = "Cell means predicted by regression, each from all other cells, against measured ones. On the line, both agree."
HOW = (
    "Both axes are logarithmic. MAPE is the mean of |predicted − measured| / measured over the markers; p is that of the F test of lack of fit "
    "(see the table of regression)."
)


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """The figure and its caption."""
    of = view(records.runs, asked)
    fits = fit_all(of.runs)
    if all(each.problem for each in fits.values()):
        problem = next(iter(fits.values())).problem
        return panels.not_drawn(of.runs, panels.NO_SUCCESS if of.ok.empty else problem)
    models = list(dict.fromkeys(model for _, model in fits))
    shape = (len(fits) // len(models), len(models))
    told = [one for one in of.series if len(one.of(of.ok))]
    named = told if len(told) > 1 else []
    above = panels.legend_height(len(named), style.COLUMN_IN) if named else 0
    drawn = style.figure(style.COLUMN_IN, shape[0] * (PANEL_IN + 2 * panels.TITLE_ROW_IN) + 0.15 + above)
    axes = panels.grid(drawn, shape, len(fits), share_x=False, share_y=False)
    drawn_as = [(one.look, set(one.of(of.runs)["cell"])) for one in told]
    outside = 0
    for ax, ((response, model), each) in zip(axes, fits.items(), strict=True):
        outside += _panel(ax, each, drawn_as)
        ax.set_title(_title(response, model, each))
        ax.set_xlabel(f"measured ({response.unit})")
        if ax in axes[:: shape[1]]:
            ax.set_ylabel(f"predicted ({response.unit})")
    if named:
        panels.legend(drawn, named, lines=False)
    return drawn, of.caption(WHAT, _not_fitted(fits), _at_edges(outside), notes=[HOW], with_intervals=False)


def _not_fitted(fits: Mapping[tuple[Response, str], Fit]) -> str:
    """Which models were not fitted, and why; empty for none."""
    problems = dict.fromkeys((model, each.problem) for (_, model), each in fits.items() if each.problem)
    text = "; ".join(f"the {model} model was not fitted: {problem}" for model, problem in problems)
    return Note("models-not-fitted", f"Empty: {text}.", models=[model for model, _ in problems]) if problems else ""


def _at_edges(outside: int) -> str:
    """How many predictions are drawn at the edges; empty for none."""
    text = f"Drawn at the edges: {number_of(outside, 'prediction')} beyond the axes or below 0."
    return Note("predictions-at-edges", text, predictions=outside) if outside else ""


def _panel(ax: Axes, each: Fit, drawn_as: list[tuple[Look, set[str]]]) -> int:
    """The cells of a model; `drawn_as`: the look of each series and its cells. How many lie outside."""
    points = each.cells.dropna(subset=["without_cell"]) if not each.problem else pd.DataFrame()
    if points.empty:
        ax.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
        panels.say(ax, "not fitted" if each.problem else "no cell can be predicted from the others", 24)
        return 0
    low, high = each.cells["measured"].min() / MARGIN, each.cells["measured"].max() * MARGIN
    bottom, top = low / BEYOND, high * BEYOND
    ax.plot([low, high], [low, high], color=style.MUTED, linewidth=0.7, zorder=1)
    shown = points["without_cell"].clip(bottom * 1.1, top / 1.1)
    for look, cells in drawn_as:
        own = points["cell"].isin(cells)
        if not own.any():  # of markers without a place the layout takes the figure's corner
            continue
        small = panels.marker(look) | {"markersize": 2.6 if len(each.cells) < MANY_CELLS else 1.6}
        ax.plot(
            points.loc[own, "measured"],
            shown[own],
            zorder=3,
            clip_on=False,
            rasterized=len(points) > MOST_VECTOR,
            **small,
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    panels.round_numbers(ax.xaxis, high / low, most=3)
    panels.round_numbers(ax.yaxis, top / bottom)
    ax.set_xlim(low, high)
    ax.set_ylim(bottom, top)
    ax.grid(True)
    return int((shown != points["without_cell"]).sum())


def _title(response: Response, model: str, each: Fit) -> str:
    mape = each.statistics.get("without cell: MAPE (%)", math.nan)
    p = each.statistics.get("lack of fit: p", math.nan)
    said = [
        *([f"MAPE {mape:.1f} %"] if not math.isnan(mape) else []),
        *([f"p {tables.p_value(p) if p < 0.001 else f'= {p:.3f}'}"] if not math.isnan(p) else []),
    ]
    return f"{response.name}, {model}" + (f"\n{', '.join(said)}" if said else "")
