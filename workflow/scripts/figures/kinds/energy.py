"""Draw energy per epoch against epoch time, with lines of equal power and the Pareto front."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from analysis import energy as energies
from analysis.cell_means import estimate_column_means
from analysis.energy import EnergyScope, choose_scope
from analysis.records import Records
from common.notes import Note
from common.units import ENERGIES, choose_unit
from declared.figure_specs import FigureSpec
from figures import captions, panels, style
from figures.kinds import pareto
from figures.view import build_view

MAX_POWER_LINES = 6
MIN_LINE_LENGTH = 0.25  # share of the panel's side
POWER_LINE = (0, (1, 1.5))
LEAD = (
    "Energy per epoch against epoch time. Each marker is a cell: means over its runs, with their intervals. "
    "Energy: {}."
)
PER_SCOPE = {"node": "per machine", "package": "per machine (CPU packages)", "device": "per GPU"}
NO_ENERGY = Note("no-energy", "no run recorded energy")
HOW_TO_READ = "Energy covers the same samples as epoch time. Dotted lines: equal mean power."


def cell_energy(runs: pd.DataFrame, meters: EnergyScope) -> pd.DataFrame:
    """Return energy per epoch in J (mean, low, high, n) of each metered cell."""
    return estimate_column_means(energies.energy_of_runs(runs, meters), "energy_j").cell_statistics


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with a marker per cell, and its caption."""
    view = build_view(records.runs, spec)
    meters = choose_scope(records.runs)
    energy = cell_energy(records.runs, meters) if meters else pd.DataFrame()
    energy = energy[energy.index.isin(set(view.ok["cell"]))]
    if meters is None or energy.empty:
        if view.ok.empty:
            return panels.empty_figure(view.runs)
        return panels.empty_figure(view.runs, NO_ENERGY, energies.WHY_NO_ENERGY)
    unit, unit_name, _ = choose_unit(energy["mean"], ENERGIES)
    points = pareto.locate_cells(view, view.cell_means.cell_statistics, energy, unit)
    labels = "epoch time (s)", f"energy per epoch ({unit_name})"
    figure, view, notes = pareto.draw_cells(view, points, labels, lambda ax: _draw_power_lines(ax, unit))
    without_energy = [cell for cell in dict.fromkeys(view.ok["cell"]) if cell not in energy.index]
    return figure, view.caption(
        Note("heading", LEAD.format(meters.title), scope=meters.scope),
        idle_note(view.ok, meters),
        *notes,
        energies.cells_without_energy_note(without_energy),
        energies.other_scope_note(meters),
        endnotes=[HOW_TO_READ],
    )


def idle_note(ok: pd.DataFrame, meters: EnergyScope) -> str:
    """Return a sentence on the idle power of a machine or GPU; "" if it was not measured."""
    watts = ok[f"idle_{meters.scope}_w"].dropna().astype(float) if meters.scope else pd.Series(dtype=float)
    if meters.scope is None or watts.empty:
        return ""
    smallest, largest = _power_text(float(f"{watts.min():.3g}")), _power_text(float(f"{watts.max():.3g}"))
    span = smallest if smallest == largest else f"{smallest} to {largest}"
    text = f"Idle: {span} {PER_SCOPE[meters.scope]}."
    return Note("idle-power", text, least=watts.min(), most=watts.max(), scope=meters.scope)


def _draw_power_lines(ax: Axes, unit: float) -> None:
    """Draw lines of equal mean power with labels, except those that only cross a corner."""
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
    if largest > pareto.LOG_FROM_RATIO * smallest:
        for subs in ((1, 2, 5), (1, 3), (1,)):
            powers = np.array(LogLocator(10, subs=subs).tick_values(smallest, largest))
            if ((powers > smallest) & (powers < largest)).sum() <= MAX_POWER_LINES:
                break
    return powers[(powers > smallest) & (powers < largest)]


def _power_text(watts: float) -> str:
    return f"{watts / 1000:g} kW" if watts >= 1000 else f"{watts:g} W"
