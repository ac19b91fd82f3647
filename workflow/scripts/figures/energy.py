"""Energy of an epoch against its time: a point for every cell, with lines of equal power, and the cells that nothing beats in both."""

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
from analysis.measured import Records, scale_factor, title
from common.notes import Note
from declared.figures import Declared
from figures import panels, style
from figures.panels import Series
from figures.view import View, view

PANEL_IN = 1.6
MARGIN = 1.12  # of an axis, beyond the ends of intervals
LOG_FROM_RATIO = 5
MOST_POWERS = 6
SHORTEST = 0.25  # line of equal power, of the panel's side
SMALL = 5.2  # points
CORNERS = ((1, 1), (-1, -1), (1, -1), (-1, 1))  # right, up: series whose markers are close do not write over each other
POWER_LINE = (0, (1, 1.5))
FRONT: dict[str, Any] = {
    "color": style.INK,
    "linewidth": 0.7,
    "linestyle": (0, (4, 1.5)),
    "drawstyle": "steps-post",
    "zorder": 2,
}
WHAT = (
    "Energy of an epoch against its time. Each marker is a cell: means over its runs, with their intervals. Energy: {}."
)
PER = {"node": "a machine", "package": "the packages of a machine", "device": "an accelerator"}
PARETO = Note("pareto-front", "Dashed: Pareto front (no cell of the panel takes less of both).")
NO_ENERGY = Note("no-energy", "no record has energy")
LOGARITHMIC = Note("logarithmic-axes", "Both axes are logarithmic.")
CUT = Note("intervals-cut", "Intervals are cut where they leave the axes.")
HOW = "Energy is for the same samples as epoch time. Dotted lines: equal mean power."


def of_cells(runs: pd.DataFrame, told: EnergyScope) -> pd.DataFrame:
    """By cell with a run that tells it: energy of an epoch in J (value, low, high, n), scaled as epoch times are."""
    found = energies.pool_response(energies.energy_of_runs(runs, told), "energy_j").cells
    return found.rename(columns={"mean": "value"})[["value", "low", "high", "n"]]


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Series by colour, nodes as numbers beside the markers, panels by the other factors that vary. Figure and caption."""
    seen = view(records.runs, asked)
    told_of = choose_scope(records.runs)
    energy = of_cells(records.runs, told_of) if told_of else pd.DataFrame()
    energy = energy[energy.index.isin(set(seen.ok["cell"]))]
    if told_of is None or energy.empty:
        if seen.ok.empty:
            return panels.not_drawn(seen.runs)
        return panels.not_drawn(seen.runs, NO_ENERGY, energies.WHY_NO_ENERGY)
    unit, unit_name = energies.choose_unit(energy["value"])
    points = _points(seen, energy, unit)
    worth = [levels for levels in seen.panels if len(panels.at(points, levels))]
    seen = seen.on_a_page(PANEL_IN + panels.titles_height(worth), shown=worth)
    points = points[points["cell"].isin(set(seen.cells["cell"]))]
    scaled_by = panels.scaled_by(seen.facet)
    shown = [levels for levels in seen.panels if len(panels.at(points, levels))]
    told = [one for one in seen.series if len(one.of(points))]
    rows, columns, width = panels.layout(len(shown), panels.few_columns(len(shown)))
    above = panels.legend_height(len(told), width)
    drawn = style.figure(width, rows * (PANEL_IN + panels.titles_height(shown)) + 0.15 + above)
    axes = panels.grid(drawn, (rows, columns), len(shown), share_x=not scaled_by, share_y=not scaled_by)
    cut, fronts, numbered = False, False, points["scale"].nunique() > 1
    for ax, levels in zip(axes, shown, strict=True):
        alike = panels.at(points, {name: levels[name] for name in scaled_by})
        cut |= _scales(ax, alike)
        here = panels.at(points, levels)
        fronts |= _front(ax, here)
        for number, one in enumerate(told):
            _markers(ax, one, one.of(here), CORNERS[number % len(CORNERS)] if numbered else None)
        _powers(ax, unit)
        ax.set_title(panels.panel_title(levels))
    for ax in axes[::columns]:
        ax.set_ylabel(f"energy of an epoch ({unit_name})")
    drawn.supxlabel("epoch time (s)", fontsize=style.FONT_SIZE)
    panels.legend(drawn, told, lines=False)
    scale = scale_factor(seen.runs)
    numbers = Note("numbers-beside-markers", f"Numbers beside markers: {title(scale)}.", factor=scale)
    untold = [cell for cell in dict.fromkeys(seen.ok["cell"]) if cell not in energy.index]
    return drawn, seen.caption(
        Note("heading", WHAT.format(told_of.title), scope=told_of.scope),
        PARETO if fronts else "",
        idle(seen.ok, told_of),
        numbers if numbered else "",
        LOGARITHMIC if axes[0].get_xscale() == "log" else "",
        CUT if cut else "",
        energies.cells_without_energy_note(untold),
        energies.other_scope_note(told_of),
        notes=[HOW, _untold(untold)],
    )


def _untold(cells: Sequence[str]) -> str:
    """Which cells have no energy; empty for none."""
    return (
        Note("cells-without-energy", f"Without energy: {conditions.join_names(cells)}.", cells=cells) if cells else ""
    )


def idle(ok: pd.DataFrame, told: EnergyScope) -> str:
    """What one machine, or accelerator, takes when nobody trains, in a sentence; empty where nobody measured it."""
    watts = ok[f"idle_{told.scope}_w"].dropna().astype(float) if told.scope else pd.Series(dtype=float)
    if told.scope is None or watts.empty:
        return ""
    least, most = _power_text(float(f"{watts.min():.3g}")), _power_text(float(f"{watts.max():.3g}"))
    text = f"Idle: {least if least == most else f'{least} to {most}'} {PER[told.scope]}."
    return Note("idle-power", text, least=watts.min(), most=watts.max(), scope=told.scope)


def _points(seen: View, energy: pd.DataFrame, unit: float) -> pd.DataFrame:
    """A row per cell with energy: its factors, scale (nodes or devices), time and energy with their bounds, in s and `unit`."""
    rows = seen.cells.set_index("cell", drop=False)
    rows = rows[rows.index.isin(energy.index)]
    times = seen.pooling.cells.reindex(rows.index)
    found = energy.reindex(rows.index) / unit
    return rows.assign(
        scale=rows[scale_factor(seen.runs)],
        x=times["mean"],
        x_low=times["low"].fillna(times["mean"]),
        x_high=times["high"].fillna(times["mean"]),
        y=found["value"],
        y_low=found["low"].fillna(found["value"]),
        y_high=found["high"].fillna(found["value"]),
    )


def _scales(ax: Axes, points: pd.DataFrame) -> bool:
    """Axes that hold the points and their intervals as far as CUT_AT allows; whether one is cut.

    Both are logarithmic, so that equal powers are parallel lines, where one has values far apart.
    """
    ends = {}
    for axis in "xy":
        middle, low, high = (points[f"{axis}{end}"] for end in ("", "_low", "_high"))
        ends[axis] = (max(low.min(), middle.min() / panels.CUT_AT), min(high.max(), middle.max() * panels.CUT_AT))
    log = any(high > LOG_FROM_RATIO * low for low, high in ends.values())
    if log:
        ax.set(xscale="log", yscale="log")
        panels.round_numbers(ax.xaxis, ends["x"][1] / ends["x"][0])
        panels.round_numbers(ax.yaxis, ends["y"][1] / ends["y"][0])
    ax.set(**{f"{name}lim": (low / MARGIN, high * MARGIN) for name, (low, high) in ends.items()})
    ax.grid(True)
    return any(
        (points[f"{axis}_low"] < low).any() or (points[f"{axis}_high"] > high).any()
        for axis, (low, high) in ends.items()
    )


def _front(ax: Axes, points: pd.DataFrame) -> bool:
    """The Pareto front of the cells' means, as steps; whether there is one of several cells."""
    by_time = points.sort_values(["x", "y"])
    best = by_time[by_time["y"] < by_time["y"].cummin().shift(fill_value=np.inf)]
    if len(best) < 2:
        return False
    ax.plot(best["x"], best["y"], **FRONT)
    return True


def _markers(ax: Axes, one: Series, points: pd.DataFrame, corner: tuple[int, int] | None) -> None:
    """The cells of one series, each with both intervals, and its number of nodes at a corner of its marker."""
    bars: dict[str, Any] = {"colors": one.look.colour, "linewidth": 0.9, "zorder": 3}
    least_x, least_y = ax.get_xlim()[0], ax.get_ylim()[0]
    ax.hlines(points["y"], points["x_low"].clip(lower=least_x), points["x_high"], **bars)
    ax.vlines(points["x"], points["y_low"].clip(lower=least_y), points["y_high"], **bars)
    ax.plot(points["x"], points["y"], zorder=4, **panels.marker(one.look))
    if corner is None:
        return
    right, up = corner
    for x, y, number in points[["x", "y", "scale"]].itertuples(index=False):
        said = ax.annotate(str(number), (x, y), (2.2 * right, 1.8 * up), textcoords="offset points", zorder=5)
        said.set(ha="left" if right > 0 else "right", va="bottom" if up > 0 else "top")
        said.set(fontsize=SMALL, color=one.look.colour)


def _powers(ax: Axes, unit: float) -> None:
    """Lines of equal mean power, named where they leave the axes; none that would only cross a corner."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    to_axes = ax.transScale + ax.transLimits
    for power in _round_powers(max(bottom, 1e-9 * top) / right, top / left):
        x = np.array([max(left, bottom / power), min(right, top / power)])
        start, end = to_axes.transform(np.column_stack([x, power * x]))
        if np.hypot(*(end - start)) < SHORTEST:
            continue
        ax.plot(x, power * x, color=style.MUTED, linewidth=0.7, linestyle=POWER_LINE, zorder=1)
        at_side = x[1] == right
        said = ax.text(x[1], power * x[1], _power_text(power * unit), zorder=1.5, fontsize=SMALL, color=style.MUTED)
        said.set(ha="right" if at_side else "center", va="center" if at_side else "top")
        said.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.3})
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)


def _round_powers(least: float, most: float) -> np.ndarray:
    """A few round powers between these, in whatever unit."""
    few = np.array(MaxNLocator(MOST_POWERS, steps=[1, 2, 2.5, 5, 10]).tick_values(least, most))
    if most > LOG_FROM_RATIO * least:
        for subs in ((1, 2, 5), (1, 3), (1,)):
            few = np.array(LogLocator(10, subs=subs).tick_values(least, most))
            if ((few > least) & (few < most)).sum() <= MOST_POWERS:
                break
    return few[(few > least) & (few < most)]


def _power_text(watts: float) -> str:
    return f"{watts / 1000:g} kW" if watts >= 1000 else f"{watts:g} W"
