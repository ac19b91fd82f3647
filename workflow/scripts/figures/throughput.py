"""Throughput over nodes: a line per series with 95 % intervals, and what it would be if throughput grew as nodes do."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import cells
from analysis.intervals import Estimate
from analysis.measured import Records, scale_factor, title, title_with_unit
from common.notes import Note
from declared.figures import Declared
from figures import lines, panels, style
from figures.lines import Scale
from figures.panels import Series
from figures.scaling import IDEAL
from figures.view import View, view

PANEL_IN = 1.45
RATE = "throughput_samples_s"
WHAT = "Throughput by {}. Markers: harmonic means; bars: 95 % intervals; ticks beside them: single runs; long dashes: ideal."
HOW = (
    "Throughput: training samples per second on all devices together; its interval is that of epoch time, inverted. "
    "Ideal: the throughput at the smallest scale of a series, growing in proportion. Lines between markers only guide the eye."
)


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Return the figure, with panels by the other factors that vary, and its caption."""
    seen = view(records.runs, asked)
    if seen.ok.empty:
        return panels.not_drawn(seen.runs)
    along = scale_factor(seen.runs)
    if seen.runs[along].nunique() == 1:
        return panels.not_drawn(seen.runs, Note("one-level", f"{title(along)} does not vary", factor=along))
    rates = cell_rates(seen)
    worth = panels.among(seen.panels, rates)
    seen = seen.on_a_page(PANEL_IN + panels.titles_height(worth), shown=worth)
    shown = panels.among(seen.panels, rates)
    drawn_series = [series for series in seen.series if len(series.of(rates))]
    rows, columns, width = panels.layout(len(shown))
    above = panels.legend_height(len(drawn_series) + 1, width)
    drawn = style.figure(width, rows * (PANEL_IN + panels.titles_height(shown)) + 0.15 + above)
    scaled_by = panels.scaled_by(seen.facet)
    axes = panels.grid(drawn, (rows, columns), len(shown), share_y=not scaled_by)
    scale = lines.scale_of_axis(seen.runs, along, len(drawn_series))
    shifts = panels.dodge([series.name for series in drawn_series], scale.gap)
    remarks: list[str] = []
    for ax, levels in zip(axes, shown, strict=True):
        for series in drawn_series:
            _line(ax, series, series.of(panels.at(rates, levels)), seen.ok, scale, shifts[series.name])
        alike = {name: levels[name] for name in scaled_by}
        measured = panels.at(seen.ok, alike)[RATE].astype(float)
        remarks += panels.time_axis(ax, measured, panels.at(rates, alike), quantity="throughput")
        scale.on(ax)
        ax.set_title(panels.panel_title(levels))
    for ax in axes[::columns]:
        ax.set_ylabel("throughput (samples/s)")
    drawn.supxlabel(title_with_unit(along), fontsize=style.FONT_SIZE)
    ideal = Line2D([], [], color=style.MUTED, linewidth=0.7, linestyle=IDEAL, label="ideal")
    panels.legend(drawn, drawn_series, [ideal])
    return drawn, seen.caption(WHAT.format(title(along)), *remarks, notes=[HOW, scale.said(title(along))])


def cell_rates(seen: View) -> pd.DataFrame:
    """Return a row per drawn cell with a successful run: its factors, `scale`, and mean, low and high of its samples per second, n."""
    means = cells.summarize(seen.study).set_index("cell")[[f"{RATE}_mean", f"{RATE}_low", f"{RATE}_high", "n"]]
    means.columns = pd.Index(["mean", "low", "high", "n"])
    rates = seen.cells.join(means, on="cell")
    return rates.assign(scale=rates[scale_factor(seen.runs)]).dropna(subset=["mean"]).sort_values("scale")


def _line(ax: Axes, series: Series, rates: pd.DataFrame, ok: pd.DataFrame, scale: Scale, shift: float) -> None:
    """One series of one panel: its means with intervals and runs, and its ideal."""
    x = rates["scale"].map(scale.positions).to_numpy(float) + shift
    ax.plot(x, rates["mean"], color=series.look.colour, linestyle=series.look.line, zorder=2)
    for place, cell in zip(x, rates.itertuples(), strict=True):
        runs = ok.loc[ok["cell"] == cell.cell, RATE].astype(float)
        panels.interval(ax, series.look, place, Estimate(cell.mean, cell.low, cell.high), runs, scale.beside)
    if len(rates) > 1:
        sizes = np.linspace(rates["scale"].iloc[0], max(scale.positions), 50)
        ideal = rates["mean"].iloc[0] * sizes / sizes[0]
        ax.plot(scale.at(sizes), ideal, color=series.look.colour, linewidth=0.7, linestyle=IDEAL, zorder=1)
