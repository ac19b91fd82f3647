"""Draw predicted against measured cell means: each cell as predicted by the regression on all other cells."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import tables
from analysis.conditions import join_names
from analysis.intervals import p_text
from analysis.records import Records
from analysis.regression import Fit, fit_all, printed_model
from common.notes import Note
from common.text import number_of
from declared.figure_specs import FigureSpec
from declared.responses import Response
from figures import captions, legends, marks, panels, style, value_axis
from figures.style import SeriesStyle
from figures.view import View, build_view

PANEL_INCHES = 1.2  # side of a square
MARGIN = 1.15  # factor of the axes beyond the smallest and the largest mean
MAX_BEYOND = 2.2  # factor beyond the measured means; predictions further out are moved to the edge
MAX_TICKS = 3  # labels that fit side by side below a panel
ADEQUATE_FROM = 0.05  # p value of the test of lack of fit, below which a model misses the means
THOUSAND = 1000.0
EDGE = 1.04  # factor between an edge and the markers that are moved to it
SMALL_MARKERS_FROM = 200
LEAD = "Cell means predicted by regression from all others. MAPE: mean absolute percentage error."
MISSES_NOTE = Note(
    "lack-of-fit", f"With p < {ADEQUATE_FROM:g} in the F test of lack of fit, a model misses the means."
)
HOW_TO_READ = (
    "On the grey line predicted and measured means are equal. Both axes are logarithmic. MAPE is the mean of "
    "|predicted − measured| / measured over the markers. The table `regression` has the F tests."
)


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure and its caption."""
    view = build_view(records.runs, spec)
    fits = fit_all(view.runs)
    if all(fit.problem for fit in fits.values()):
        problem = next(iter(fits.values())).problem
        return panels.empty_figure(view.runs, captions.NO_SUCCESS if view.ok.empty else problem)
    models = list(dict.fromkeys(model for _, model in fits))
    shape = (len(fits) // len(models), len(models))
    drawn_series = [series for series in view.series if len(series.select(view.ok))]
    legend_series = drawn_series if len(drawn_series) > 1 else []
    above_in = legends.legend_height(len(legend_series), style.COLUMN_INCHES) if legend_series else 0
    figure = style.new_figure(
        style.COLUMN_INCHES, shape[0] * (PANEL_INCHES + 5 * panels.TITLE_ROW_INCHES) + above_in
    )
    axes = panels.create_axes(figure, shape, len(fits), share_x=False, share_y=False)
    styles = [(series.style, set(series.select(view.runs)["cell"])) for series in drawn_series]
    n_outside = 0
    for ax, ((response, model), fit) in zip(axes, fits.items(), strict=True):
        unit, unit_name = _axis_unit(response, fit)
        row_fits = [row_fit for (row_response, _), row_fit in fits.items() if row_response == response]
        n_outside += _draw_panel(ax, fit, styles, unit, _row_limits(row_fits))
        ax.set_title(_panel_title(response, model, fit))
        ax.set_xlabel(f"measured ({unit_name})")
        if ax in axes[:: shape[1]]:
            ax.set_ylabel(f"predicted\n({unit_name})")
    if legend_series:
        legends.add_legend(figure, legend_series, lines=False)
    return figure, view.caption(
        LEAD,
        MISSES_NOTE if any(_misses_means(fit) for fit in fits.values()) else "",
        _not_fitted_note(fits),
        *_not_predicted_notes(fits, view),
        _at_edges_note(n_outside),
        endnotes=[HOW_TO_READ],
        with_intervals=False,
    )


def _axis_unit(response: Response, fit: Fit) -> tuple[float, str]:
    """Return the unit of the axes: thousands for large values, which would have long tick labels."""
    thousands = len(fit.cells) > 0 and fit.cells["measured"].median() >= THOUSAND
    return (THOUSAND, f"{THOUSAND:g} {response.unit}") if thousands else (1.0, response.unit)


def _not_fitted_note(fits: Mapping[tuple[Response, str], Fit]) -> str:
    """Return which models were not fitted, and why; "" if all were."""
    problems = dict.fromkeys((model, fit.problem) for (_, model), fit in fits.items() if fit.problem)
    text = "; ".join(f"the {model} model was not fitted: {problem}" for model, problem in problems)
    return Note("models-not-fitted", f"Empty: {text}.") if problems else ""


def _not_predicted_notes(fits: Mapping[tuple[Response, str], Fit], view: View) -> list[str]:
    """Return for each model the series that are not drawn, because the other cells do not determine them."""
    missing: dict[str, dict[str, None]] = {}
    for (_, model_name), fit in fits.items():
        model = printed_model(model_name, fit)
        predicted = set() if fit.problem else set(fit.cells.dropna(subset=["without_cell"])["cell"])
        for series in view.series if predicted else ():
            if (cells := set(series.select(view.ok)["cell"])) and not cells & predicted:
                missing.setdefault(model, {})[series.name] = None
    return [
        Note(
            "series-not-predicted",
            f"{model.capitalize()}: without {join_names(list(names))}, which no other cells determine.",
            series=list(names),
        )
        for model, names in missing.items()
    ]


def _at_edges_note(n_outside: int) -> str:
    """Return how many predictions are drawn at the edges; "" for none."""
    text = f"Drawn at the edges: {number_of(n_outside, 'prediction')} beyond the axes or below 0."
    return Note("predictions-at-edges", text, predictions=n_outside) if n_outside else ""


def _predicted_cells(fit: Fit) -> pd.DataFrame:
    """Return the cells that the fit predicts from all others."""
    return pd.DataFrame() if fit.problem else fit.cells.dropna(subset=["without_cell"])


def _row_limits(fits: Sequence[Fit]) -> tuple[float, float]:
    """Return the limits of both axes of a row of panels: models of one response share them."""
    ends = []
    for fit in fits:
        if len(points := _predicted_cells(fit)):
            low, high = fit.cells["measured"].min(), fit.cells["measured"].max()
            predicted = points.loc[points["without_cell"] > 0, "without_cell"]
            ends.append(max(low / MAX_BEYOND, min(low, predicted.min())) / MARGIN)
            ends.append(min(high * MAX_BEYOND, max(high, predicted.max())) * MARGIN)
    return min(ends, default=1.0), max(ends, default=2.0)


def _draw_panel(
    ax: Axes,
    fit: Fit,
    styles: list[tuple[SeriesStyle, set[str]]],
    unit: float,
    limits: tuple[float, float],
) -> int:
    """Draw the cells of a model and return how many of them are outside of the axes.

    Args:
        ax: The panel.
        fit: The fitted model.
        styles: Style and cells of each series.
        unit: Unit of the axes.
        limits: Ends of both axes, not yet in this unit.
    """
    points = _predicted_cells(fit)
    if points.empty:
        ax.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
        panels.write_remark(
            ax, "not fitted" if fit.problem else "no cell can be predicted from the others", 24
        )
        return 0
    points = points.assign(**{name: points[name] / unit for name in ("measured", "without_cell")})
    bottom, top = (end / unit for end in limits)
    ax.plot([bottom, top], [bottom, top], color=style.MUTED, linewidth=0.7, zorder=1)
    clipped = points["without_cell"].clip(bottom * EDGE, top / EDGE)
    for series_style, cells in styles:
        in_series = points["cell"].isin(cells)
        if not in_series.any():  # the layout would place empty markers in the figure's corner
            continue
        size = 2.6 if len(fit.cells) < SMALL_MARKERS_FROM else 1.6
        marker = marks.marker_style(series_style) | {"markersize": size}
        ax.plot(points.loc[in_series, "measured"], clipped[in_series], zorder=3, clip_on=False, **marker)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        value_axis.set_round_ticks(axis, MAX_TICKS)
    ax.set_xlim(bottom, top)
    ax.set_ylim(bottom, top)
    ax.set_aspect("equal")
    ax.grid(True)
    return int((clipped != points["without_cell"]).sum())


def _panel_title(response: Response, model: str, fit: Fit) -> str:
    mape = fit.statistics.get("without cell: MAPE (%)", math.nan)
    p = fit.statistics.get("lack of fit: p", math.nan)
    n_predicted = 0 if math.isnan(mape) else fit.cells["without_cell"].notna().sum()
    lines = [
        response.title,
        printed_model(model, fit),
        *([f"MAPE {tables.number(mape, 2)} %, {n_predicted} cells"] if n_predicted else []),
        *([f"lack of fit: {p_text(p)}"] if not math.isnan(p) else []),
    ]
    return "\n".join(lines)


def _misses_means(fit: Fit) -> bool:
    """Return whether the F test of lack of fit rejects the model."""
    return bool(fit.statistics.get("lack of fit: p", math.nan) < ADEQUATE_FROM)
