"""Draw power over time: one panel per cell, with the run of median epoch time."""

import textwrap
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.energy import SCOPE_TITLES
from analysis.level_words import cell_words
from analysis.records import Records, cell_levels
from common.notes import Note
from common.text import number_of
from declared.figure_specs import FigureSpec
from figures import captions, legends, panels, style
from figures.view import build_view

PANEL_INCHES = 1.35
MAX_PANELS = 12
SCOPE_STYLES: dict[str, dict[str, Any]] = {
    "node": {"color": style.INK, "linestyle": "-"},
    "package": {"color": "#00518c", "linestyle": "--"},
    "device": {"color": "#c8420a", "linestyle": "-."},
}
LEAD = "Power over time of the run with the median epoch time of each cell. One line per machine; {}."
EPOCH_BANDS = "Shaded: epochs; validation runs between them."
IDLE_NOTE = Note("idle-power-drawn", "Dotted: idle power before the session's first run.")
NO_METER = Note("no-meter", "no run recorded power over time: the machines have no meter")


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with time since the first epoch, and its caption."""
    view = replace(
        build_view(records.runs, spec), series_factors=["framework"]
    )  # panels are cells, so colour is free for the scope
    power = records.table("power")
    power = power[power["run_id"].isin(set(view.ok["run_id"]))]
    if power.empty:
        return panels.empty_figure(view.runs, captions.NO_SUCCESS if view.ok.empty else NO_METER)
    runs = _median_runs(view.ok[view.ok["run_id"].isin(set(power["run_id"]))])
    n_left_out = len(runs) - MAX_PANELS
    runs = runs[:MAX_PANELS]
    names = cell_words(view.runs)
    titles = {run.cell: textwrap.fill(names[run.cell], panels.TITLE_CHARACTERS) for run in runs}
    scopes = [scope for scope in SCOPE_STYLES if scope in set(power["scope"])]
    title_in = panels.TITLE_ROW_INCHES * max(text.count("\n") + 1 for text in titles.values())
    max_columns = panels.wide_columns(len(runs))
    untitled: list[dict[str, Any]] = [{} for _ in runs]
    grid = panels.create_grid(
        untitled, PANEL_INCHES + title_in, len(scopes), max_columns=max_columns, share_x=False
    )
    has_idle = False
    for ax, run in zip(grid.axes, runs, strict=True):
        epochs = records.epochs[records.epochs["run_id"] == run.run_id]
        has_idle |= _draw_run(ax, run, power[power["run_id"] == run.run_id], epochs)
        ax.set_title(titles[run.cell])
    grid.axes[0].set_ylim(bottom=0)
    grid.label("time since the first epoch (s)", "power (W)")
    handles = [Line2D([], [], label=scope, linewidth=1, **SCOPE_STYLES[scope]) for scope in scopes]
    legends.place_legend(grid.figure, handles)
    meanings = "; ".join(f"{scope}: {SCOPE_TITLES[scope]}" for scope in scopes)
    text = f"{number_of(n_left_out, 'cell')} more are not drawn; a `filter` shows them."
    return grid.figure, view.caption(
        Note("heading", LEAD.format(meanings), scopes=scopes),
        EPOCH_BANDS,
        IDLE_NOTE if has_idle else "",
        Note("cells-left-out", text, cells=n_left_out) if n_left_out > 0 else "",
        with_intervals=False,
    )


def _median_runs(ok: pd.DataFrame) -> list[Any]:
    """Return the run of every cell at or right below the median epoch time, in the order of tables."""
    ordered = ok.sort_values("epoch_time_s", kind="stable")
    median_runs = {
        run.cell: run
        for _, cell_runs in ordered.groupby("cell")
        for run in cell_runs.iloc[[(len(cell_runs) - 1) // 2]].itertuples()
    }
    return [median_runs[cell] for cell in cell_levels(ok)["cell"]]


def _draw_run(ax: Axes, run: Any, power: pd.DataFrame, epochs: pd.DataFrame) -> bool:
    """Draw the lines of one run over its epochs; return whether its idle power is drawn."""
    opened_at = epochs["opened_at"].astype(float)
    start = float(opened_at.min()) if opened_at.notna().any() else float(power["t"].min())
    durations = epochs["closed_time_s"].fillna(epochs["epoch_time_s"])
    for opened, duration in zip(opened_at - start, durations, strict=True):
        if np.isfinite(opened):
            ax.axvspan(opened, opened + duration, color=style.LEVEL_BAND, zorder=0, linewidth=0)
    is_idle_drawn = False
    for (scope, _), rows in power.sort_values("t").groupby(["scope", "host"], sort=True):
        ax.plot(rows["t"] - start, rows["watt"], linewidth=0.9, zorder=3, **SCOPE_STYLES[scope])
    for scope in sorted(set(power["scope"])):
        watts = getattr(run, f"idle_{scope}_w")
        if pd.notna(watts):
            gpus = (run.n_devices - run.nodes * (run.device == "hybrid")) / max(1, power["host"].nunique())
            n_units = gpus if scope == "device" else 1
            colour = SCOPE_STYLES[scope]["color"]
            ax.axhline(float(watts) * n_units, color=colour, linewidth=0.8, linestyle=":", zorder=2)
            is_idle_drawn = True
    ax.grid(True, axis="y")
    return is_idle_drawn
