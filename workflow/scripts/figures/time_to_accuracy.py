"""Time to an accuracy: how long each cell trains until validation reaches a target, and which cells never do."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import time_to_accuracy
from analysis.intervals import Estimate
from analysis.measured import Records
from common.notes import Note
from common.text import number_of
from declared.figures import Declared
from figures import panels, rows, style
from figures.panels import Series
from figures.view import View, view

BEYOND = 4  # points from the axis' end to the remark on runs that never arrive
WHAT = (
    "Time to a validation accuracy of {:.4g} % in every cell. Markers: means; bars: 95 % intervals; ticks: single runs."
)
NEVER = "Open arrows: {} where some runs never reach it; beside them: how many."


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Rows by series and by nodes or devices, panels by the other factors that vary. The figure and its caption."""
    target = float(asked.target or 0)
    of = view(records.runs, asked)
    found = time_to_accuracy.accuracy_of_runs(of.runs, records.epochs, target)
    data = time_to_accuracy.summarize(of.runs, records.epochs, target).set_index("cell")
    if not data["n"].any():
        return panels.not_drawn(of.runs, panels.NO_SUCCESS if of.ok.empty else time_to_accuracy.NO_ACCURACY_RECORDED)
    if not data["reached"].any():
        best = float(found["best"].max())
        text = f"no run reached an accuracy of {100 * target:.4g} %; the greatest of a run is {100 * best:.3g} %"
        return panels.not_drawn(of.runs, Note("target-not-reached", text, target=target, best=best))

    def cell(ax: Axes, one: Series, y: float, planned: pd.DataFrame) -> None:
        name = planned["cell"].iloc[0]
        if name not in data.index:
            rows.say(ax, y, panels.NO_SUCCESS)
        elif not data.loc[name, "n"]:
            rows.say(ax, y, time_to_accuracy.NO_ACCURACY_RECORDED)
        else:
            _cell(ax, one, y, data.loc[name], found.loc[found["cell"] == name, "time_to_accuracy_s"].dropna())

    def times(of: View, levels: Mapping[str, Any]) -> tuple[pd.Series, pd.DataFrame]:
        alike = set(panels.at(of.cells, levels)["cell"])
        means = data[data.index.isin(alike)].rename(columns=lambda name: name.removeprefix("time_to_accuracy_s_"))
        return found.loc[found["cell"].isin(alike), "time_to_accuracy_s"].dropna(), means

    drawn, of, remarks = rows.draw(of, "time to accuracy (s)", cell, times)
    drawn_cells = data[data.index.isin(set(of.cells["cell"]))]
    never = int((drawn_cells["reached"] < drawn_cells["n"]).sum())
    return drawn, of.caption(
        Note("heading", WHAT.format(100 * target), target=target),
        time_to_accuracy.runs_without_accuracy_note(of.runs, drawn_cells),
        Note("cells-not-reaching", NEVER.format(number_of(never, "cell")), cells=never) if never else "",
        *remarks,
        notes=[time_to_accuracy.METHOD_NOTE],
        counted=drawn_cells["n"],
    )


def _cell(ax: Axes, one: Series, y: float, row: pd.Series, times: pd.Series) -> None:
    """The mean time of a cell with its runs; where a run never arrives, the runs that do, and an arrow at the end of the axis."""
    if row["reached"] == row["n"]:
        ends = (row[f"time_to_accuracy_s{end}"] for end in ("", "_low", "_high"))
        panels.interval(ax, one.look, y, Estimate(*ends), times, rows.BESIDE, upright=False)
        return
    panels.replicates(ax, one.look, y + rows.BESIDE, times, upright=False)
    across = ax.get_yaxis_transform()
    arrow = panels.marker(one.look) | {"marker": panels.ARROWS["x"][1], "markerfacecolor": "white"}
    ax.plot([1], [y], transform=across, clip_on=False, zorder=6, **arrow)
    said = f"{row['n'] - row['reached']} of {row['n']} never"
    remark = ax.annotate(
        said, (1, y), (BEYOND, 0), across, "offset points", annotation_clip=False
    )  # where no run stands
    remark.set(va="center", color=style.MUTED, fontsize=rows.SMALL)
