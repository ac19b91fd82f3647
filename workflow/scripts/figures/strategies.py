"""Epoch time of each strategy by the rate of the links: lines as predicted from one node and the sweeps, markers as measured."""

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis.measured import Records
from common.notes import Note
from declared.figures import Declared
from figures import panels, style
from figures.panels import Series
from figures.view import View, filtered, view
from prediction.law import rate_text

PANEL_IN = 1.6
DODGED, ROOM = 0.5, 0.08  # of the space between two rates, for all series; of the axis, at its ends
WHAT = "Epoch time of each strategy by the rate of the links. Markers: measured means; bars: 95 % intervals; small markers beside: runs."
LINES = Note("predicted-lines", "Lines: predicted from one node and the sweeps of the network.")
DASHES = Note("predicted-dashes", "Dashes: predicted from one node and the sweeps, at links whose rate is not known.")
NOTHING = Note("nothing-to-draw", "no successful run on several nodes, and nothing predicted")
HOW = "Nothing is fitted to runs on several nodes, so that the lines are there before these runs are. Both axes are logarithmic."


def several(records: Records, asked: Declared) -> View:
    """What is drawn of the cells on several nodes; of all cells where there are none."""
    runs = records.runs
    kept = runs[runs["nodes"] > 1]
    return replace(view(kept if len(kept) else runs, asked), study=runs)


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Panels by all that varies beside strategies and links. The figure and its caption."""
    of, predicted = several(records, asked), filtered(records.table("crossover"), asked)
    if of.ok.empty and predicted.empty:
        return panels.not_drawn(of.runs, NOTHING)
    across = panels.few_columns(len(of.panels))
    of = of.on_a_page(PANEL_IN + panels.titles_height(of.panels), across)
    rows, columns, width = panels.layout(len(of.panels), across)
    above = panels.legend_height(len(of.series), width)
    drawn = style.figure(width, rows * (PANEL_IN + panels.titles_height(of.panels)) + 0.3 + above)
    axes = panels.grid(drawn, (rows, columns), len(of.panels), share_y=False)
    known = pd.concat([of.runs["bandwidth_bytes_s"], *([predicted["rate"]] if len(predicted) else [])]).astype(float)
    ticks = {place: rate_text(rate) for rate, place in zip(known.unique(), _places(known.unique()), strict=True)}
    rates = sorted(ticks)
    series = [replace(one, name=one.name.removeprefix("parallelism ")) for one in of.series]
    reach = max(float(np.ptp(rates)), 1.0)
    shifts = panels.dodge([one.name for one in series], DODGED * min([*np.diff(rates), 1.0]) / len(series))
    for ax, levels in zip(axes, of.panels, strict=True):
        here = panels.at(of.ok, levels)
        told = panels.at(predicted, {name: level for name, level in levels.items() if name in predicted})
        for one in series:
            _predicted(ax, one, told, shifts[one.name])
            _measured(ax, one, here, of, shifts[one.name])
        ax.set_yscale("log")
        panels.round_numbers(ax.yaxis, float(np.divide(*ax.get_ylim()[::-1])))
        ax.set_xlim(rates[0] - ROOM * reach, rates[-1] + ROOM * reach)
        ax.set_xticks(rates, [ticks[rate] for rate in rates], rotation=30, ha="right")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_title(panels.panel_title(levels))
        ax.grid(True, axis="y")
    for ax in axes[::columns]:
        ax.set_ylabel("epoch time (s)")
    drawn.supxlabel("rate of a node's link", fontsize=style.FONT_SIZE)
    panels.legend(drawn, series)
    line = "" if predicted.empty else LINES if any(rates) else DASHES
    return drawn, of.caption(WHAT, line, notes=[HOW])


def _places(bytes_s: np.ndarray) -> list[float]:
    """Places on the axis: logarithms of rates; 0 of one that is not known."""
    places: list[float] = np.nan_to_num(np.log10(bytes_s)).tolist()
    return places


def _predicted(ax: Axes, one: Series, told: pd.DataFrame, shift: float) -> None:
    """The line of one series, through all rates; where there is one alone a dash."""
    named = {name: level for name, level in one.levels.items() if name in told}
    own = panels.at(told, named).sort_values("rate") if len(told) else told
    if own.empty:
        return
    x, y = np.array(_places(own["rate"].to_numpy(float))), own["predicted_s"].to_numpy(float)
    if len(own) == 1:
        ax.plot(x + shift, y, color=one.look.colour, marker="_", markersize=7, linestyle="none", zorder=2)
    else:
        ax.plot(x, y, color=one.look.colour, linestyle=one.look.line, linewidth=0.9, zorder=2)


def _measured(ax: Axes, one: Series, here: pd.DataFrame, of: View, shift: float) -> None:
    """The means of one series, with intervals and runs."""
    for cell, runs in one.of(here).groupby("cell"):
        x = _places(runs["bandwidth_bytes_s"].to_numpy(float))[0] + shift
        panels.interval(ax, one.look, x, of.pooling.cell_mean(str(cell)), runs["epoch_time_s"], 0.0)
