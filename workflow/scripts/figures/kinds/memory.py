"""Draw the peak memory of a rank against epoch time, by strategy, on several nodes."""

from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from analysis.records import Records, peak_memory_bytes
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, legends, marks, panels, selection
from figures.kinds.strategies import multi_node_view

PANEL_INCHES = 1.6
MARGIN = 0.15  # share of an axis
OUT_OF_MEMORY_PLACE = 0.92  # place on the axis of memory of strategies that ran out of it
MB = 1e6
LEAD = (
    "Epoch time over the peak memory of a rank, by strategy. Markers: means over runs; bars: 95 % intervals "
    "of epoch times."
)
NO_MEMORY = Note("no-memory", "no successful run on several nodes reports its memory")
NOT_FROM_ZERO = Note(captions.NOT_FROM_ZERO.code, "The memory axis does not start at 0.")
BEST_CORNER = "Strategies to the lower left need less of both."
MEMORY_NOTE = (
    "Memory of a rank: peak allocation on its GPU, or on CPUs its peak resident set, including program and "
    "libraries."
)


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with panels by all factors that vary besides strategies, and its caption."""
    view = multi_node_view(records, spec)
    memory = peak_memory(view.ok)
    if memory.empty:
        return panels.empty_figure(view.runs, NO_MEMORY)
    max_columns = panels.wide_columns(len(view.panel_levels))
    view = view.fit_to_page(PANEL_INCHES + panels.titles_height(view.panel_levels), max_columns)
    all_series = [replace(series, name=series.name.removeprefix("parallelism ")) for series in view.series]
    grid = panels.create_grid(
        view.panel_levels,
        PANEL_INCHES,
        len(view.series),
        max_columns=max_columns,
        around_in=0.2,
        share_x=False,
        share_y=False,
    )
    for ax, levels in zip(grid.axes, view.panel_levels, strict=True):
        panel_runs = selection.rows_at(view.ok, levels)
        for series in all_series:
            for cell in dict.fromkeys(series.select(panel_runs)["cell"]):
                if cell in memory.index:
                    mean, no_runs = view.cell_means.cell_mean(cell), pd.Series(dtype=float)
                    marks.draw_interval(ax, series.style, memory[cell] / MB, mean, no_runs, 0.0)
        ax.margins(MARGIN)
        ax.set_ylim(0, None)
        ax.set_title(panels.panel_title(levels))
        ax.grid(True)
        planned = selection.rows_at(view.runs, levels)
        if panel_runs.empty:
            panels.write_remark(ax, view.absence_reason(planned))
        ran_out = planned[planned["cell"].isin(view.out_of_memory)]
        styles = [series.style for series in all_series if len(series.select(ran_out))]
        marks.mark_out_of_memory(ax, OUT_OF_MEMORY_PLACE, styles, ax.transAxes)
    grid.label("peak memory of a rank (MB)", "epoch time (s)")
    legends.add_legend(grid.figure, all_series, lines=False)
    return grid.figure, view.caption(LEAD, BEST_CORNER, NOT_FROM_ZERO, endnotes=[MEMORY_NOTE])


def peak_memory(ok: pd.DataFrame) -> pd.Series:
    """Return, by cell, bytes of the rank that needs most (mean over runs), on its GPU or resident."""
    return peak_memory_bytes(ok).groupby(ok["cell"]).mean().dropna()
