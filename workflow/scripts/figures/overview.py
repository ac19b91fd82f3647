"""Draw the epoch time of every cell, with its interval and its replicates."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.measured import Records, successful
from declared.figures import Declared
from figures import panels, rows
from figures.panels import Series
from figures.view import View, build_view

HEADING = f"Epoch time of every cell. {panels.MARKERS}"


def draw(records: Records, declaration: Declared) -> tuple[Figure, panels.Caption]:
    """Return the figure, with rows by series and by nodes or devices, and its caption."""
    view = build_view(records.runs, declaration)
    if view.ok.empty:
        return panels.empty_figure(view.runs)

    def draw_cell(ax: Axes, series: Series, y: float, planned: pd.DataFrame) -> None:
        ok = successful(planned)
        if ok.empty:
            rows.write_remark(ax, y, panels.NO_SUCCESS)
            return
        estimate = view.pooling.cell_mean(ok["cell"].iloc[0])
        panels.draw_interval(
            ax, series.style, y, estimate, ok["epoch_time_s"], rows.REPLICATE_OFFSET, vertical=False
        )

    figure, on_page, remarks = rows.draw(view, "epoch time (s)", draw_cell, View.times)
    return figure, on_page.caption(HEADING, *remarks)
