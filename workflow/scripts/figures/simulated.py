"""Time of a step by each strategy: as it was simulated, over as it was measured. A marker for each cell on several ranks whose layers are divided by
themselves; one on a single rank is met by what is added to all cells of its model."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import conditions
from analysis.measured import Records, levels_in_order
from common.notes import Note
from common.text import number_of
from declared.figures import Declared
from declared.mesh import RANDOM, kind_of
from figures import panels, style
from figures.panels import Series
from figures.view import filtered

PANEL_IN = 2.2
MOST_PANELS = 6
AIM, BOUND = 0.10, 0.30  # the second is that of Jia, Zaharia & Aiken (MLSys 2019, section 8.4)
MARKER = 4.0
WHAT = "Time of a training step by each strategy, simulated and measured; one marker per cell on several ranks, bars: 95 % intervals of the measured mean."
LINES = f"Line: both alike; dark band: {100 * AIM:g} % apart; light band: {100 * BOUND:g} %."
NOTHING = Note("nothing-simulated", "no strategy was both simulated and measured")
HOW = (
    "Simulated from what parts of layers, messages and sweeps took by themselves, and what one rank takes beyond its simulation: nothing is fitted to the "
    "cells that are drawn. Both axes are logarithmic."
)


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Panels by model. The figure and its caption, of the table that strategies.simulated wrote."""
    table = records.table("simulated")
    several = filtered(table[table["step_s"].notna() & (table["ranks"] > 1)], asked) if len(table) else table
    rows = several[several["error"].notna()] if len(several) else several
    if rows.empty:
        return panels.not_drawn(records.runs, NOTHING)
    rows = rows.assign(
        expected_s=rows["simulated_s"] + rows["rest_s"].fillna(0),
        kind=[kind_of(level)[0] for level in rows["parallelism"]],
    )
    kinds = list(dict.fromkeys(kind_of(level)[0] for level in levels_in_order(rows, "parallelism")))
    kinds = sorted(kinds, key=lambda kind: kind == RANDOM)
    series = [Series(kind, {"kind": kind}, look) for kind, look in zip(kinds, style.TREATMENT_LOOKS, strict=False)]
    models = levels_in_order(rows, "model")
    seen, left = models[:MOST_PANELS], len(models) - MOST_PANELS
    down, columns, width = panels.layout(len(seen), 3)
    above = panels.legend_height(len(series), width)
    drawn = style.figure(width, down * (PANEL_IN + panels.TITLE_ROW_IN) + 0.3 + above)
    axes = panels.grid(drawn, (down, columns), len(seen), share_x=False, share_y=False)
    for ax, model in zip(axes, seen, strict=True):
        _panel(ax, rows[rows["model"] == model], series)
        if len(models) > 1:
            ax.set_title(model)
    for ax in axes[::columns]:
        ax.set_ylabel("simulated (ms)")
    drawn.supxlabel("measured time of a step (ms)", fontsize=style.FONT_SIZE)
    panels.legend(drawn, series, lines=False)
    off = rows["error"].abs()
    text = f"Errors: {100 * off.mean():.1f} % on average, {100 * off.max():.1f} % at most."
    errors = Note("errors", text, mean=off.mean(), most=off.max())
    unseen = Note("models-left-out", f"{left} of {len(models)} models are not drawn; the table has them.", models=left)
    lost = len(several) - len(rows)
    text = f"{number_of(lost, 'measured cell')} {'is' if lost == 1 else 'are'} not drawn: the table says why."
    lacking = Note("measured-cells-left-out", text, cells=lost) if lost else ""
    said = [WHAT, errors, LINES, unseen if left > 0 else "", lacking, conditions.setting_note(records.runs)]
    return drawn, panels.two_paragraphs(said, [HOW], first=[WHAT, errors, LINES])


def _panel(ax: Axes, rows: pd.DataFrame, series: list[Series]) -> None:
    """The cells of one model, in ms, on two axes that are alike."""
    times = 1e3 * rows[["step_s", "expected_s"]].to_numpy(float)
    low, high = times.min() / 1.25, times.max() * 1.25
    ends = np.array([low, high])
    for share, shade in ((BOUND, 0.4), (AIM, 1.0)):
        ax.fill_between(ends, ends / (1 + share), ends * (1 + share), color=style.GRID, alpha=shade, linewidth=0)
    ax.plot(ends, ends, color=style.MUTED, linewidth=0.7, zorder=1)
    for one in series:
        own = one.of(rows)
        x, y = 1e3 * own["step_s"].to_numpy(float), 1e3 * own["expected_s"].to_numpy(float)
        bounds = 1e3 * own[["step_s_low", "step_s_high"]].to_numpy(float)
        errors = np.nan_to_num(np.abs(bounds.T - x))
        ax.errorbar(x, y, xerr=errors, fmt="none", ecolor=one.look.colour, elinewidth=0.7, zorder=2)
        ax.plot(x, y, zorder=3, **panels.marker(one.look) | {"markersize": MARKER})
    for axis, scale, limits in ((ax.xaxis, ax.set_xscale, ax.set_xlim), (ax.yaxis, ax.set_yscale, ax.set_ylim)):
        scale("log")
        panels.round_numbers(axis, high / low)
        limits(low, high)
    ax.set_aspect("equal")
