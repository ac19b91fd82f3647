"""Draw how long each cell trains until validation reaches a target, and which cells never do."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import time_to_accuracy
from analysis.intervals import estimate_of
from analysis.records import Records
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, marks, panels, rows, selection, style, value_axis
from figures.selection import Series
from figures.view import View, build_view

REMARK_OFFSET = 4  # distance from the end of the axis in points
LEAD = f"Time to {{:.4g}} % validation accuracy. {captions.MARKERS}"
NEVER_SENTENCE = "Open: not always reached."


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with a row per cell, and its caption."""
    target = float(spec.target or 0)
    view = build_view(records.runs, spec)
    times_of_runs = time_to_accuracy.accuracy_of_runs(view.runs, records.epochs, target)
    data = time_to_accuracy.summarize(view.runs, records.epochs, target).set_index("cell")
    if not data["n"].any():
        return panels.empty_figure(
            view.runs, captions.NO_SUCCESS if view.ok.empty else time_to_accuracy.NO_ACCURACY_RECORDED
        )
    if not data["reached"].any():
        best = float(times_of_runs["best"].max())
        text = f"no run reached an accuracy of {100 * target:.4g} %; the best reached {100 * best:.3g} %"
        return panels.empty_figure(view.runs, Note("target-not-reached", text, target=target, best=best))

    def draw_cell(ax: Axes, series: Series, y: float, planned: pd.DataFrame) -> None:
        name = planned["cell"].iloc[0]
        if name not in data.index:
            rows.write_remark(ax, y, view.absence_reason(planned))
        elif not data.loc[name, "n"]:
            rows.write_remark(ax, y, time_to_accuracy.NO_ACCURACY_RECORDED)
        else:
            _draw_cell(
                ax,
                series,
                y,
                data.loc[name],
                times_of_runs.loc[times_of_runs["cell"] == name, "time_to_accuracy_s"].dropna(),
            )

    def times(view: View, levels: Mapping[str, Any]) -> tuple[pd.Series, pd.DataFrame]:
        axis_cells = set(selection.rows_at(view.cells, levels)["cell"])
        means = data[data.index.isin(axis_cells)].rename(
            columns=lambda name: name.removeprefix("time_to_accuracy_s_")
        )
        return times_of_runs.loc[times_of_runs["cell"].isin(axis_cells), "time_to_accuracy_s"].dropna(), means

    figure, view, axis_notes = rows.draw_rows(view, "time to accuracy (s)", draw_cell, times)
    drawn_cells = data[data.index.isin(set(view.cells["cell"]))]
    n_never = int((drawn_cells["reached"] < drawn_cells["n"]).sum())
    return figure, view.caption(
        [
            Note("heading", LEAD.format(100 * target), target=target),
            Note("cells-not-reaching", NEVER_SENTENCE, cells=n_never) if n_never else "",
        ],
        time_to_accuracy.runs_without_accuracy_note(view.runs, drawn_cells),
        *axis_notes,
        endnotes=[time_to_accuracy.METHOD_NOTE],
        counted=drawn_cells["n"],
    )


def _draw_cell(ax: Axes, series: Series, y: float, row: pd.Series, times: pd.Series) -> None:
    """Draw the mean time of a cell with its runs.

    If some runs never reach the target, draw the other runs, and an arrow at the end of the axis.
    """
    if row["reached"] == row["n"]:
        mean = estimate_of(row, "time_to_accuracy_s")
        sizes: dict[str, Any] = {"replicate_offset": rows.REPLICATE_OFFSET, "marker_size": rows.MARKER_SIZE}
        marks.draw_interval(ax, series.style, y, mean, times, vertical=False, **sizes)
        return
    marks.draw_replicates(ax, series.style, y + rows.REPLICATE_OFFSET, times, vertical=False)
    across = ax.get_yaxis_transform()
    arrow = marks.marker_style(series.style) | {
        "marker": value_axis.ARROWS["x"][1],
        "markerfacecolor": "white",
    }
    ax.plot([1], [y], transform=across, clip_on=False, zorder=6, **arrow)
    text = f"{row['n'] - row['reached']} of {row['n']} never"
    remark = ax.annotate(text, (1, y), (REMARK_OFFSET, 0), across, "offset points", annotation_clip=False)
    remark.set(va="center", color=style.MUTED, fontsize=style.SMALL_FONT_SIZE)
