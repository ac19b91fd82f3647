"""Memory against time: the largest memory of a rank and the epoch time of each strategy on several nodes."""

from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.measured import Records
from common.notes import Note
from declared.figures import Declared
from figures import panels, style
from figures.panels import Series
from figures.strategies import several
from figures.view import View

PANEL_IN = 1.6
ROOM = 0.15  # of an axis, beyond what it shows
MB = 1e6
WHAT = "Epoch time over the largest memory of a rank, by strategy. Markers: means over runs; bars: 95 % intervals of epoch times."
NO_MEMORY = Note("no-memory", "no successful run on several nodes told its memory")
TO_SEE = "Strategies to the lower left take less of both."
OF_RANK = "Memory of a rank: the largest on its accelerator, or on processors its largest resident set, with its program and libraries."


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Panels by all that varies beside strategies. The figure and its caption."""
    of = several(records, asked)
    memory = of_cells(of.ok)
    if memory.empty:
        return panels.not_drawn(of.runs, NO_MEMORY)
    across = panels.few_columns(len(of.panels))
    of = of.on_a_page(PANEL_IN + panels.titles_height(of.panels), across)
    series = [replace(one, name=one.name.removeprefix("parallelism ")) for one in of.series]
    rows, columns, width = panels.layout(len(of.panels), across)
    above = panels.legend_height(len(of.series), width)
    drawn = style.figure(width, rows * (PANEL_IN + panels.titles_height(of.panels)) + 0.2 + above)
    axes = panels.grid(drawn, (rows, columns), len(of.panels), share_x=False, share_y=False)
    for ax, levels in zip(axes, of.panels, strict=True):
        here = panels.at(of.ok, levels)
        for one in series:
            _cells(ax, one, one.of(here), of, memory)
        ax.margins(ROOM)
        ax.set_ylim(0, None)
        ax.set_title(panels.panel_title(levels))
        ax.grid(True)
        if here.empty:
            panels.say(ax, panels.NO_SUCCESS)
    for ax in axes[::columns]:
        ax.set_ylabel("epoch time (s)")
    drawn.supxlabel("memory of a rank (MB)", fontsize=style.FONT_SIZE)
    panels.legend(drawn, series, lines=False)
    return drawn, of.caption(WHAT, TO_SEE, "The axis of memory does not begin at 0.", notes=[OF_RANK])


def of_cells(ok: pd.DataFrame) -> pd.Series:
    """Cell -> bytes of the rank that needs most, mean over runs: on its accelerator, else of its resident set."""
    told = ok["device_memory_peak_bytes"].astype(float).fillna(ok["memory_peak_bytes"].astype(float))
    return told.groupby(ok["cell"]).mean().dropna()


def _cells(ax: Axes, one: Series, runs: pd.DataFrame, of: View, memory: pd.Series) -> None:
    """The cells of one series."""
    for cell in dict.fromkeys(runs["cell"]):
        if cell in memory.index:
            panels.interval(ax, one.look, memory[cell] / MB, of.pooling.cell_mean(cell), pd.Series(dtype=float), 0.0)
