"""Draw the response of every cell, such as its epoch time, with its interval and its replicates."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.cell_means import MIN_SHARED_BLOCKS
from analysis.records import Records
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, marks, panels, rows
from figures.selection import Series
from figures.view import View, build_response_view

LEAD = f"{{}} of every cell. {captions.MARKERS}"
TESTS_NOTE = Note(
    "tests-within-blocks",
    "Bars include differences between blocks; tests compare cells within blocks (table `effects`).",
)


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with a row per cell, and its caption."""
    view = build_response_view(records, spec)
    if view.ok.empty:
        return panels.empty_figure(view.runs, view.missing_cause)

    def draw_cell(ax: Axes, series: Series, y: float, planned: pd.DataFrame) -> None:
        measured = view.measured(planned)
        if measured.empty:
            rows.write_remark(ax, y, view.absence_reason(planned))
            return
        estimate = view.estimate(measured["cell"].iloc[0])
        marks.draw_interval(
            ax,
            series.style,
            y,
            estimate,
            view.values(measured),
            rows.REPLICATE_OFFSET,
            vertical=False,
            marker_size=rows.MARKER_SIZE,
        )

    figure, on_page, axis_notes = rows.draw_rows(view, view.response.label, draw_cell, View.values_and_means)
    lead = LEAD.format(view.response.capitalized_title)
    has_blocks = view.ok["cell"].nunique() > 1 and view.ok["block"].nunique() >= MIN_SHARED_BLOCKS
    tests_note = TESTS_NOTE if has_blocks else ""
    return figure, on_page.caption(lead, *axis_notes, tests_note, endnotes=view.response_notes)
