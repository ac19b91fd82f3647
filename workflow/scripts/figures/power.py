"""Power over time of a run: a panel for every cell, in it the run whose epoch time is the cell's median."""

import textwrap
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.energy import SCOPE_TITLES
from analysis.measured import Records, cell_words, cells
from common.notes import Note
from common.text import number_of
from declared.figures import Declared
from figures import panels, style
from figures.view import view

PANEL_IN = 1.35
MOST = 12  # panels
LOOKS: dict[str, dict[str, Any]] = {
    "node": {"color": style.INK, "linestyle": "-"},
    "package": {"color": "#00518c", "linestyle": "--"},
    "device": {"color": "#c8420a", "linestyle": "-."},
}
WHAT = "Power over time, of one run of each cell, that with the median epoch time. A line is one machine; {}."
BANDS = "Grey: epochs; between them are validations."
IDLE = Note("idle-power-drawn", "Dotted: idle power before the session's first run.")
NOTHING = Note("no-meter", "no run has power over time: the machines have no meter")


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Panels are cells, time counts from the start of the first epoch. The figure and its caption."""
    seen = replace(
        view(records.runs, asked), colour=["framework"]
    )  # panels are cells: nothing is told by colour but the scope
    power = records.table("power")
    power = power[power["run_id"].isin(set(seen.ok["run_id"]))]
    if power.empty:
        return panels.not_drawn(seen.runs, panels.NO_SUCCESS if seen.ok.empty else NOTHING)
    chosen = _median_runs(seen.ok[seen.ok["run_id"].isin(set(power["run_id"]))])
    left_out = len(chosen) - MOST
    chosen = chosen[:MOST]
    words = cell_words(seen.runs)
    titles = {run.cell: textwrap.fill(words[run.cell], panels.TITLE_CHARACTERS) for run in chosen}
    rows, columns, width = panels.layout(len(chosen), panels.few_columns(len(chosen)))
    scopes = [scope for scope in LOOKS if scope in set(power["scope"])]
    above = panels.legend_height(len(scopes), width)
    title_in = panels.TITLE_ROW_IN * max(text.count("\n") + 1 for text in titles.values())
    drawn = style.figure(width, rows * (PANEL_IN + title_in) + 0.15 + above)
    axes = panels.grid(drawn, (rows, columns), len(chosen), share_x=False)
    idle = False
    for ax, run in zip(axes, chosen, strict=True):
        epochs = records.epochs[records.epochs["run_id"] == run.run_id]
        idle |= _panel(ax, run, power[power["run_id"] == run.run_id], epochs)
        ax.set_title(titles[run.cell])
    for ax in axes[::columns]:
        ax.set_ylabel("power (W)")
    axes[0].set_ylim(bottom=0)
    drawn.supxlabel("time since the first epoch (s)", fontsize=style.FONT_SIZE)
    handles = [Line2D([], [], label=scope, linewidth=1, **LOOKS[scope]) for scope in scopes]
    drawn.legend(handles=handles, loc="outside upper center", ncols=panels.legend_columns(width))
    whose = "; ".join(f"{scope}: {SCOPE_TITLES[scope]}" for scope in scopes)
    return drawn, seen.caption(
        Note("heading", WHAT.format(whose), scopes=scopes),
        BANDS,
        IDLE if idle else "",
        _left_out(left_out),
        with_intervals=False,
    )


def _left_out(cells: int) -> str:
    """How many cells are not drawn; empty for none."""
    text = f"{number_of(cells, 'cell')} more are not drawn; a `filter` shows them."
    return Note("cells-left-out", text, cells=cells) if cells > 0 else ""


def _median_runs(ok: pd.DataFrame) -> list[Any]:
    """Of every cell the run whose epoch time is its median, or the next below it; in the order of tables."""
    ordered = ok.sort_values("epoch_time_s", kind="stable")
    found = {run.cell: run for _, of in ordered.groupby("cell") for run in of.iloc[[(len(of) - 1) // 2]].itertuples()}
    return [found[cell] for cell in cells(ok)["cell"]]


def _panel(ax: Axes, run: Any, power: pd.DataFrame, epochs: pd.DataFrame) -> bool:
    """The lines of one run over its epochs; whether its idle power is drawn."""
    opened = epochs["opened_at"].astype(float)
    start = float(opened.min()) if opened.notna().any() else float(power["t"].min())
    for at, lasts in zip(opened, epochs["closed_time_s"].fillna(epochs["epoch_time_s"]), strict=True):
        if np.isfinite(at):
            ax.axvspan(at - start, at - start + lasts, color=style.LEVEL, zorder=0, linewidth=0)
    drawn = False
    for (scope, _), rows in power.sort_values("t").groupby(["scope", "host"], sort=True):
        ax.plot(rows["t"] - start, rows["watt"], linewidth=0.9, zorder=3, **LOOKS[scope])
    for scope in sorted(set(power["scope"])):
        watts = getattr(run, f"idle_{scope}_w")
        if pd.notna(watts):
            accelerators = (run.replicas - run.nodes * (run.device == "hybrid")) / max(1, power["host"].nunique())
            units = accelerators if scope == "device" else 1
            ax.axhline(float(watts) * units, color=LOOKS[scope]["color"], linewidth=0.8, linestyle=":", zorder=2)
            drawn = True
    ax.grid(True, axis="y")
    return drawn
