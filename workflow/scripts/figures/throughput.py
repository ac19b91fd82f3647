"""Draw throughput over nodes: one line per series with 95 % intervals, and ideal scaling."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import cells
from analysis.intervals import Estimate
from analysis.measured import Records, size_factor_name, title, title_with_unit
from common.notes import Note
from declared.figures import Declared
from figures import lines, panels, style
from figures.lines import Scale
from figures.panels import Series
from figures.view import View, build_view

PANEL_INCHES = 1.45
RATE = "throughput_samples_s"
HEADING = (
    "Throughput by {}. Markers: harmonic means; bars: 95 % intervals; ticks: single runs; long dashes: ideal."
)
HOW_TO_READ = (
    "Throughput: training samples per second on all devices together; its interval is that of epoch time, "
    "inverted. Ideal: the throughput at the smallest scale of a series, growing in proportion. Lines between "
    "markers only guide the eye."
)


def draw(records: Records, declaration: Declared) -> tuple[Figure, panels.Caption]:
    """Return the figure, with panels by the other factors that vary, and its caption."""
    view = build_view(records.runs, declaration)
    if view.ok.empty:
        return panels.empty_figure(view.runs)
    factor = size_factor_name(view.runs)
    if view.runs[factor].nunique() == 1:
        return panels.empty_figure(
            view.runs, Note("one-level", f"{title(factor)} does not vary", factor=factor)
        )
    rates = cell_rates(view)
    measured_panels = panels.nonempty_panels(view.panels, rates)
    view = view.fit_to_page(
        PANEL_INCHES + panels.titles_height(measured_panels), panel_levels=measured_panels
    )
    panel_levels = panels.nonempty_panels(view.panels, rates)
    drawn_series = [series for series in view.series if len(series.select(rates))]
    rows, columns, width = panels.layout(len(panel_levels))
    above = panels.legend_height(len(drawn_series) + 1, width)
    figure = style.new_figure(
        width, rows * (PANEL_INCHES + panels.titles_height(panel_levels)) + 0.15 + above
    )
    axis_factors = panels.duration_factors(view.facet)
    axes = panels.create_axes(figure, (rows, columns), len(panel_levels), share_y=not axis_factors)
    scale = lines.factor_scale(view.runs, factor, len(drawn_series))
    shifts = panels.dodge_offsets([series.name for series in drawn_series], scale.gap)
    remarks: list[str] = []
    for ax, levels in zip(axes, panel_levels, strict=True):
        for series in drawn_series:
            _draw_series(
                ax, series, series.select(panels.rows_at(rates, levels)), view.ok, scale, shifts[series.name]
            )
        axis_levels = {name: levels[name] for name in axis_factors}
        measured = panels.rows_at(view.ok, axis_levels)[RATE].astype(float)
        remarks += panels.scale_value_axis(
            ax, measured, panels.rows_at(rates, axis_levels), quantity="throughput"
        )
        scale.apply(ax)
        ax.set_title(panels.panel_title(levels))
    for ax in axes[::columns]:
        ax.set_ylabel("throughput (samples/s)")
    figure.supxlabel(title_with_unit(factor), fontsize=style.FONT_SIZE)
    ideal = Line2D([], [], color=style.MUTED, linewidth=0.7, linestyle=lines.IDEAL_LINE, label="ideal")
    panels.add_legend(figure, drawn_series, [ideal])
    return figure, view.caption(
        HEADING.format(title(factor)), *remarks, notes=[HOW_TO_READ, scale.axis_note(title(factor))]
    )


def cell_rates(view: View) -> pd.DataFrame:
    """Return samples per second of each drawn cell: `mean`, `low`, `high`, `n`, `scale`, factors."""
    means = cells.summarize(view.study).set_index("cell")[
        [f"{RATE}_mean", f"{RATE}_low", f"{RATE}_high", "n"]
    ]
    means.columns = pd.Index(["mean", "low", "high", "n"])
    rates = view.cells.join(means, on="cell")
    return rates.assign(scale=rates[size_factor_name(view.runs)]).dropna(subset=["mean"]).sort_values("scale")


def _draw_series(
    ax: Axes, series: Series, rates: pd.DataFrame, ok: pd.DataFrame, scale: Scale, shift: float
) -> None:
    """Draw one series of one panel: means with intervals and runs, and ideal scaling."""
    x = rates["scale"].map(scale.positions).to_numpy(float) + shift
    ax.plot(x, rates["mean"], color=series.style.colour, linestyle=series.style.line, zorder=2)
    for place, cell in zip(x, rates.itertuples(), strict=True):
        runs = ok.loc[ok["cell"] == cell.cell, RATE].astype(float)
        panels.draw_interval(
            ax, series.style, place, Estimate(cell.mean, cell.low, cell.high), runs, scale.replicate_offset
        )
    if len(rates) > 1:
        sizes = np.linspace(rates["scale"].iloc[0], max(scale.positions), 50)
        ideal = rates["mean"].iloc[0] * sizes / sizes[0]
        ax.plot(
            scale.position(sizes),
            ideal,
            color=series.style.colour,
            linewidth=0.7,
            linestyle=lines.IDEAL_LINE,
            zorder=1,
        )
