"""Draw simulated against measured step time of each strategy, one marker per cell on several ranks.

Cells on a single rank agree by construction: their difference is added to all cells of the model.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import conditions
from analysis.records import Records, levels_in_order
from common.notes import Note
from declared.figure_specs import FigureSpec
from declared.mesh import RANDOM, split_strategy
from figures import captions, legends, marks, panels, style, value_axis
from figures.selection import Series
from figures.view import filtered

PANEL_INCHES = 2.2
MAX_TICKS = 5
MAX_PANELS = 6
AIMED_ERROR, BOUND_ERROR = 0.10, 0.30  # the second is from Jia, Zaharia & Aiken (MLSys 2019, section 8.4)
MARKER_SIZE = 4.0
LEAD = (
    "Step time by each strategy, simulated and measured, one marker per cell on several ranks. Bars: 95 % "
    "intervals."
)
LINES_SENTENCE = (
    f"Line: both equal; inner band: {100 * AIMED_ERROR:g} % apart; outer band: {100 * BOUND_ERROR:g} %."
)
NOTHING_SIMULATED = Note("nothing-simulated", "no strategy was both simulated and measured")
HOW_TO_READ = (
    "Simulated from separately timed parts of layers, messages and collectives, plus the time of one rank "
    "beyond its simulation: nothing is fitted to the drawn cells. Both axes are logarithmic."
)


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure of the table `simulated`, with one panel per model, and its caption."""
    table = records.table("simulated")
    multi_rank = (
        filtered(table[table["step_s"].notna() & (table["ranks"] > 1)], spec) if len(table) else table
    )
    rows = multi_rank[multi_rank["error"].notna()] if len(multi_rank) else multi_rank
    if rows.empty:
        return panels.empty_figure(records.runs, NOTHING_SIMULATED)
    rows = rows.assign(
        expected_s=rows["simulated_s"] + rows["rest_s"].fillna(0),
        kind=[split_strategy(level)[0] for level in rows["parallelism"]],
    )
    kinds = list(dict.fromkeys(split_strategy(level)[0] for level in levels_in_order(rows, "parallelism")))
    kinds = sorted(kinds, key=lambda kind: kind == RANDOM)
    series = [
        Series(kind, {"kind": kind}, series_style)
        for kind, series_style in zip(kinds, style.TREATMENT_STYLES, strict=False)
    ]
    models = levels_in_order(rows, "model")
    drawn_models, n_left_out = models[:MAX_PANELS], len(models) - MAX_PANELS
    grid = panels.create_grid(
        [{"model": model} for model in drawn_models],
        PANEL_INCHES,
        len(series),
        max_columns=3,
        around_in=0.3,
        share_x=False,
        share_y=False,
    )
    for ax, model in zip(grid.axes, drawn_models, strict=True):
        _draw_model(ax, rows[rows["model"] == model], series)
        if len(models) > 1:
            ax.set_title(model)
    grid.label("measured time of a step (ms)", "simulated (ms)")
    legends.add_legend(grid.figure, series, lines=False)
    absolute_errors = rows["error"].abs()
    text = (
        f"Errors: {100 * absolute_errors.mean():.1f} % on average, {100 * absolute_errors.max():.1f} % at "
        "most."
    )
    errors = Note("errors", text, mean=absolute_errors.mean(), most=absolute_errors.max())
    text = f"{n_left_out} of {len(models)} models are not drawn; the table has them."
    left_out_note = Note("models-left-out", text, models=n_left_out)
    n_missing = len(multi_rank) - len(rows)
    text = f"Measured cells that are not drawn: {n_missing}; the table says why."
    missing_note = Note("measured-cells-left-out", text, cells=n_missing)
    setting = conditions.measurement_note(records.runs)
    sentences = [
        LEAD,
        errors,
        LINES_SENTENCE,
        left_out_note if n_left_out > 0 else "",
        missing_note if n_missing else "",
        setting,
    ]
    first = [LEAD, errors, setting, LINES_SENTENCE]
    return grid.figure, captions.split_caption(sentences, [HOW_TO_READ], keep_first=first)


def _draw_model(ax: Axes, rows: pd.DataFrame, series: list[Series]) -> None:
    """Draw the cells of one model, in ms, on two equal axes."""
    times = 1e3 * rows[["step_s", "expected_s"]].to_numpy(float)
    low, high = times.min() / 1.25, times.max() * 1.25
    ends = np.array([low, high])
    for share, shade in ((BOUND_ERROR, 0.4), (AIMED_ERROR, 1.0)):
        ax.fill_between(
            ends, ends / (1 + share), ends * (1 + share), color=style.GRID, alpha=shade, linewidth=0
        )
    ax.plot(ends, ends, color=style.MUTED, linewidth=0.7, zorder=1)
    for one_series in series:
        series_rows = one_series.select(rows)
        x, y = 1e3 * series_rows["step_s"].to_numpy(float), 1e3 * series_rows["expected_s"].to_numpy(float)
        bounds = 1e3 * series_rows[["step_s_low", "step_s_high"]].to_numpy(float)
        errors = np.nan_to_num(np.abs(bounds.T - x))
        ax.errorbar(x, y, xerr=errors, fmt="none", ecolor=one_series.style.colour, elinewidth=0.7, zorder=2)
        ax.plot(x, y, zorder=3, **marks.marker_style(one_series.style) | {"markersize": MARKER_SIZE})
    for axis, scale, limits in (
        (ax.xaxis, ax.set_xscale, ax.set_xlim),
        (ax.yaxis, ax.set_yscale, ax.set_ylim),
    ):
        scale("log")
        value_axis.set_round_ticks(axis, MAX_TICKS)
        limits(low, high)
    ax.set_aspect("equal")
