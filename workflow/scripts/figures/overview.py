"""Overview: the epoch time of every cell, with its interval and its replicates."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.measured import Records, successful
from declared.figures import Declared
from figures import panels, rows
from figures.panels import Series
from figures.view import View, view

WHAT = f"Epoch time of every cell of the study. {panels.MARKERS.format('below')}"


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Rows by series and by nodes or devices, panels by the other factors that vary. The figure and its caption."""
    of = view(records.runs, asked)
    if of.ok.empty:
        return panels.not_drawn(of.runs)

    def cell(ax: Axes, one: Series, y: float, planned: pd.DataFrame) -> None:
        ok = successful(planned)
        if ok.empty:
            rows.say(ax, y, panels.NO_SUCCESS)
            return
        estimate = of.pooling.cell_mean(ok["cell"].iloc[0])
        panels.interval(ax, one.look, y, estimate, ok["epoch_time_s"], rows.BESIDE, upright=False)

    drawn, on_page, remarks = rows.draw(of, "epoch time (s)", cell, View.times)
    return drawn, on_page.caption(WHAT, *remarks)
