"""Draw energy per epoch against epoch time, with lines of equal power and the Pareto front."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from analysis import conditions
from analysis import energy as energies
from analysis.energy import EnergyScope, choose_scope
from analysis.measured import Records, size_factor_name, title
from analysis.pooling import pool_column
from common.notes import Note
from common.units import ENERGIES, choose_unit
from declared.figures import Declared
from figures import panels, style
from figures.panels import Series
from figures.view import View, build_view

PANEL_INCHES = 1.6
MARGIN = 1.12  # of an axis, beyond the ends of intervals
LOG_FROM_RATIO = 5
MAX_POWER_LINES = 6
MIN_LINE_LENGTH = 0.25  # of the panel's side
CORNERS = ((1, 1), (-1, -1), (1, -1), (-1, 1))  # right, up: labels of close markers do not overlap
POWER_LINE = (0, (1, 1.5))
FRONT_STYLE: dict[str, Any] = {
    "color": style.INK,
    "linewidth": 0.7,
    "linestyle": (0, (4, 1.5)),
    "drawstyle": "steps-post",
    "zorder": 2,
}
HEADING = (
    "Energy per epoch against epoch time. Each marker is a cell: means over its runs, with their intervals. "
    "Energy: {}."
)
PER_SCOPE = {"node": "per machine", "package": "per machine (CPU packages)", "device": "per GPU"}
PARETO = Note("pareto-front", "Dashed: Pareto front (no cell of the panel needs less of both).")
NO_ENERGY = Note("no-energy", "no run recorded energy")
LOGARITHMIC = Note("logarithmic-axes", "Both axes are logarithmic.")
CUT_NOTE = Note("intervals-cut", "Intervals are cut at the axis limits.")
HOW_TO_READ = "Energy covers the same samples as epoch time. Dotted lines: equal mean power."


def cell_energy(runs: pd.DataFrame, meters: EnergyScope) -> pd.DataFrame:
    """Return energy per epoch in J (value, low, high, n) of each metered cell, scaled as epoch times are."""
    energy = pool_column(energies.energy_of_runs(runs, meters), "energy_j").cell_statistics
    return energy.rename(columns={"mean": "value"})[["value", "low", "high", "n"]]


def draw(records: Records, declaration: Declared) -> tuple[Figure, panels.Caption]:
    """Return the figure, with series by colour and nodes as numbers beside the markers, and its caption."""
    view = build_view(records.runs, declaration)
    meters = choose_scope(records.runs)
    energy = cell_energy(records.runs, meters) if meters else pd.DataFrame()
    energy = energy[energy.index.isin(set(view.ok["cell"]))]
    if meters is None or energy.empty:
        if view.ok.empty:
            return panels.empty_figure(view.runs)
        return panels.empty_figure(view.runs, NO_ENERGY, energies.WHY_NO_ENERGY)
    unit, unit_name, _ = choose_unit(energy["value"], ENERGIES)
    points = _points(view, energy, unit)
    measured_panels = [levels for levels in view.panels if len(panels.rows_at(points, levels))]
    view = view.fit_to_page(
        PANEL_INCHES + panels.titles_height(measured_panels), panel_levels=measured_panels
    )
    points = points[points["cell"].isin(set(view.cells["cell"]))]
    axis_factors = panels.duration_factors(view.facet)
    panel_levels = [levels for levels in view.panels if len(panels.rows_at(points, levels))]
    legend_series = [series for series in view.series if len(series.select(points))]
    rows, columns, width = panels.layout(len(panel_levels), panels.wide_columns(len(panel_levels)))
    above = panels.legend_height(len(legend_series), width)
    figure = style.new_figure(
        width, rows * (PANEL_INCHES + panels.titles_height(panel_levels)) + 0.15 + above
    )
    axes = panels.create_axes(
        figure, (rows, columns), len(panel_levels), share_x=not axis_factors, share_y=not axis_factors
    )
    is_cut, has_front, is_numbered = False, False, points["scale"].nunique() > 1
    for ax, levels in zip(axes, panel_levels, strict=True):
        axis_points = panels.rows_at(points, {name: levels[name] for name in axis_factors})
        is_cut |= _set_axes(ax, axis_points)
        panel_points = panels.rows_at(points, levels)
        has_front |= _draw_front(ax, panel_points)
        for number, series in enumerate(legend_series):
            _draw_markers(
                ax,
                series,
                series.select(panel_points),
                CORNERS[number % len(CORNERS)] if is_numbered else None,
            )
        _draw_power_lines(ax, unit)
        ax.set_title(panels.panel_title(levels))
    for ax in axes[::columns]:
        ax.set_ylabel(f"energy per epoch ({unit_name})")
    figure.supxlabel("epoch time (s)", fontsize=style.FONT_SIZE)
    panels.add_legend(figure, legend_series, lines=False)
    scale = size_factor_name(view.runs)
    numbers_note = Note("numbers-beside-markers", f"Numbers beside markers: {title(scale)}.", factor=scale)
    without_energy = [cell for cell in dict.fromkeys(view.ok["cell"]) if cell not in energy.index]
    return figure, view.caption(
        Note("heading", HEADING.format(meters.title), scope=meters.scope),
        PARETO if has_front else "",
        idle_note(view.ok, meters),
        numbers_note if is_numbered else "",
        LOGARITHMIC if axes[0].get_xscale() == "log" else "",
        CUT_NOTE if is_cut else "",
        energies.cells_without_energy_note(without_energy),
        energies.other_scope_note(meters),
        notes=[HOW_TO_READ, _missing_note(without_energy)],
    )


def _missing_note(cells: Sequence[str]) -> str:
    """Return which cells have no energy; empty for none."""
    return (
        Note("cells-without-energy", f"Without energy: {conditions.join_names(cells)}.", cells=cells)
        if cells
        else ""
    )


def idle_note(ok: pd.DataFrame, meters: EnergyScope) -> str:
    """Return the idle power of a machine or GPU, in a sentence; empty if nobody measured it."""
    watts = ok[f"idle_{meters.scope}_w"].dropna().astype(float) if meters.scope else pd.Series(dtype=float)
    if meters.scope is None or watts.empty:
        return ""
    smallest, largest = _power_text(float(f"{watts.min():.3g}")), _power_text(float(f"{watts.max():.3g}"))
    text = (
        f"Idle: {smallest if smallest == largest else f'{smallest} to {largest}'} {PER_SCOPE[meters.scope]}."
    )
    return Note("idle-power", text, least=watts.min(), most=watts.max(), scope=meters.scope)


def _points(view: View, energy: pd.DataFrame, unit: float) -> pd.DataFrame:
    """Return a row per cell with energy: factors, scale, time in s and energy in `unit` with their bounds."""
    rows = view.cells.set_index("cell", drop=False)
    rows = rows[rows.index.isin(energy.index)]
    times = view.pooling.cell_statistics.reindex(rows.index)
    scaled = energy.reindex(rows.index) / unit
    return rows.assign(
        scale=rows[size_factor_name(view.runs)],
        x=times["mean"],
        x_low=times["low"].fillna(times["mean"]),
        x_high=times["high"].fillna(times["mean"]),
        y=scaled["value"],
        y_low=scaled["low"].fillna(scaled["value"]),
        y_high=scaled["high"].fillna(scaled["value"]),
    )


def _set_axes(ax: Axes, points: pd.DataFrame) -> bool:
    """Set axes that show the points and, up to MAX_INTERVAL_REACH, their intervals.

    Return whether an interval is cut.

    Both axes are logarithmic if one spans a wide range, so that lines of equal power stay parallel.
    """
    ends = {}
    for axis in "xy":
        middle, low, high = (points[f"{axis}{end}"] for end in ("", "_low", "_high"))
        ends[axis] = (
            max(low.min(), middle.min() / panels.MAX_INTERVAL_REACH),
            min(high.max(), middle.max() * panels.MAX_INTERVAL_REACH),
        )
    log = any(high > LOG_FROM_RATIO * low for low, high in ends.values())
    if log:
        ax.set(xscale="log", yscale="log")
        panels.set_round_ticks(ax.xaxis, max_ticks=4)
        panels.set_round_ticks(ax.yaxis)
    ax.set(**{f"{name}lim": (low / MARGIN, high * MARGIN) for name, (low, high) in ends.items()})
    ax.grid(True)
    return any(
        (points[f"{axis}_low"] < low).any() or (points[f"{axis}_high"] > high).any()
        for axis, (low, high) in ends.items()
    )


def _draw_front(ax: Axes, points: pd.DataFrame) -> bool:
    """Draw the Pareto front of the cells' means as steps; return whether it has several cells."""
    by_time = points.sort_values(["x", "y"])
    best = by_time[by_time["y"] < by_time["y"].cummin().shift(fill_value=np.inf)]
    if len(best) < 2:
        return False
    ax.plot(best["x"], best["y"], **FRONT_STYLE)
    return True


def _draw_markers(ax: Axes, series: Series, points: pd.DataFrame, corner: tuple[int, int] | None) -> None:
    """Draw the cells of one series with both intervals, and their number of nodes at the marker."""
    bars: dict[str, Any] = {"colors": series.style.colour, "linewidth": 0.9, "zorder": 3}
    min_x, min_y = ax.get_xlim()[0], ax.get_ylim()[0]
    ax.hlines(points["y"], points["x_low"].clip(lower=min_x), points["x_high"], **bars)
    ax.vlines(points["x"], points["y_low"].clip(lower=min_y), points["y_high"], **bars)
    ax.plot(points["x"], points["y"], zorder=4, **panels.marker_style(series.style))
    if corner is None:
        return
    right, up = corner
    for x, y, number in points[["x", "y", "scale"]].itertuples(index=False):
        label = ax.annotate(
            str(number), (x, y), (2.2 * right, 1.8 * up), textcoords="offset points", zorder=5
        )
        label.set(ha="left" if right > 0 else "right", va="bottom" if up > 0 else "top")
        label.set(fontsize=style.SMALL_FONT_SIZE, color=series.style.colour)


def _draw_power_lines(ax: Axes, unit: float) -> None:
    """Draw lines of equal mean power, labelled at the axis limits, without those that only cross a corner."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    to_axes = ax.transScale + ax.transLimits
    for power in _round_powers(max(bottom, 1e-9 * top) / right, top / left):
        x = np.array([max(left, bottom / power), min(right, top / power)])
        start, end = to_axes.transform(np.column_stack([x, power * x]))
        if np.hypot(*(end - start)) < MIN_LINE_LENGTH:
            continue
        ax.plot(x, power * x, color=style.MUTED, linewidth=0.7, linestyle=POWER_LINE, zorder=1)
        at_side = x[1] == right
        label = ax.text(
            x[1],
            power * x[1],
            _power_text(power * unit),
            zorder=1.5,
            fontsize=style.SMALL_FONT_SIZE,
            color=style.MUTED,
        )
        label.set(ha="right" if at_side else "center", va="center" if at_side else "top")
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.3})
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)


def _round_powers(smallest: float, largest: float) -> np.ndarray:
    """Return a few round powers between these limits."""
    powers = np.array(MaxNLocator(MAX_POWER_LINES, steps=[1, 2, 2.5, 5, 10]).tick_values(smallest, largest))
    if largest > LOG_FROM_RATIO * smallest:
        for subs in ((1, 2, 5), (1, 3), (1,)):
            powers = np.array(LogLocator(10, subs=subs).tick_values(smallest, largest))
            if ((powers > smallest) & (powers < largest)).sum() <= MAX_POWER_LINES:
                break
    return powers[(powers > smallest) & (powers < largest)]


def _power_text(watts: float) -> str:
    return f"{watts / 1000:g} kW" if watts >= 1000 else f"{watts:g} W"
