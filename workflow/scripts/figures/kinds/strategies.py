"""Draw epoch time of each strategy by link rate: lines as predicted, markers as measured."""

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis.records import Records
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, legends, marks, panels, selection, value_axis
from figures.selection import Series
from figures.view import View, build_view, filtered
from prediction.message_times import rate_text

PANEL_INCHES = 1.6
DODGE_SHARE = 0.5  # share of the distance between two rates that all series take
MARGIN = 0.08  # share of the axis, at either end
LEAD = "Epoch time of each strategy by link rate. Markers: measured means; bars: 95 % intervals; ticks: runs."
LINES_NOTE = Note("predicted-lines", "Lines: predicted from one node and the collective benchmark.")
DASHES_NOTE = Note(
    "predicted-dashes",
    "Dashes: predicted from one node and the collective benchmark, at links of unknown rate.",
)
NOTHING_TO_DRAW = Note("nothing-to-draw", "no successful run on several nodes, and nothing predicted")
HOW_TO_READ = (
    "Nothing is fitted to runs on several nodes, so the lines exist before these runs. Both axes are "
    "logarithmic."
)


def multi_node_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs on several nodes, or all runs if there are none."""
    multi_node = runs[runs["nodes"] > 1]
    return multi_node if len(multi_node) else runs


def multi_node_view(records: Records, spec: FigureSpec) -> View:
    """Return the view of the cells on several nodes, or of all cells if there are none."""
    return replace(build_view(multi_node_runs(records.runs), spec), unfiltered_runs=records.runs)


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with panels by all factors except strategies and links, and its caption."""
    view, predicted = multi_node_view(records, spec), filtered(records.table("crossover"), spec)
    if view.ok.empty and predicted.empty:
        return panels.empty_figure(view.runs, NOTHING_TO_DRAW)
    max_columns = panels.wide_columns(len(view.panel_levels))
    view = view.fit_to_page(PANEL_INCHES + panels.titles_height(view.panel_levels), max_columns)
    grid = panels.create_grid(
        view.panel_levels,
        PANEL_INCHES,
        len(view.series),
        max_columns=max_columns,
        around_in=0.3,
        share_y=False,
    )
    all_rates = pd.concat(
        [view.runs["bandwidth_bytes_s"], *([predicted["rate"]] if len(predicted) else [])]
    ).astype(float)
    distinct_rates = all_rates.unique()
    ticks = dict(zip(_positions(distinct_rates), map(rate_text, distinct_rates), strict=True))
    rates = sorted(ticks)
    all_series = [replace(series, name=series.name.removeprefix("parallelism ")) for series in view.series]
    span = max(float(np.ptp(rates)), 1.0)
    shifts = marks.dodge_offsets(
        [series.name for series in all_series], DODGE_SHARE * min([*np.diff(rates), 1.0]) / len(all_series)
    )
    for ax, levels in zip(grid.axes, view.panel_levels, strict=True):
        panel_runs = selection.rows_at(view.ok, levels)
        panel_predicted = selection.rows_at(
            predicted, {name: level for name, level in levels.items() if name in predicted}
        )
        for series in all_series:
            _draw_predicted(ax, series, panel_predicted, shifts[series.name])
            _draw_measured(ax, series, panel_runs, view, shifts[series.name])
        ran_out = selection.rows_at(view.runs[view.runs["cell"].isin(view.out_of_memory)], levels)
        for rate, runs in ran_out.groupby("bandwidth_bytes_s", dropna=False):
            styles = [series.style for series in all_series if len(series.select(runs))]
            marks.mark_out_of_memory(ax, _positions(np.array([rate], dtype=float))[0], styles)
        ax.set_yscale("log")
        value_axis.set_round_ticks(ax.yaxis)
        ax.set_xlim(rates[0] - MARGIN * span, rates[-1] + MARGIN * span)
        ax.set_xticks(rates, [ticks[rate] for rate in rates], rotation=30, ha="right")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_title(panels.panel_title(levels))
        ax.grid(True, axis="y")
    grid.label("link rate of a node", "epoch time (s)")
    legends.add_legend(grid.figure, all_series)
    line_note = "" if predicted.empty else LINES_NOTE if any(rates) else DASHES_NOTE
    return grid.figure, view.caption(LEAD, line_note, endnotes=[HOW_TO_READ])


def _positions(bytes_s: np.ndarray) -> list[float]:
    """Return positions on the axis: logarithms of rates, 0 for an unknown rate."""
    positions: list[float] = np.nan_to_num(np.log10(bytes_s)).tolist()
    return positions


def _draw_predicted(ax: Axes, series: Series, predicted: pd.DataFrame, shift: float) -> None:
    """Draw the line of one series through all rates, or a dash at a single rate."""
    known_levels = {name: level for name, level in series.levels.items() if name in predicted}
    series_rows = (
        selection.rows_at(predicted, known_levels).sort_values("rate") if len(predicted) else predicted
    )
    if series_rows.empty:
        return
    x = np.array(_positions(series_rows["rate"].to_numpy(float)))
    y = series_rows["predicted_s"].to_numpy(float)
    if len(series_rows) == 1:
        ax.plot(x + shift, y, color=series.style.colour, marker="_", markersize=7, linestyle="none", zorder=2)
    else:
        ax.plot(x, y, color=series.style.colour, linestyle=series.style.line, linewidth=0.9, zorder=2)


def _draw_measured(ax: Axes, series: Series, panel_runs: pd.DataFrame, view: View, shift: float) -> None:
    """Draw the means of one series, with intervals and runs."""
    for cell, runs in series.select(panel_runs).groupby("cell"):
        x = _positions(runs["bandwidth_bytes_s"].to_numpy(float))[0] + shift
        marks.draw_interval(
            ax, series.style, x, view.cell_means.cell_mean(str(cell)), runs["epoch_time_s"], 0.0
        )
