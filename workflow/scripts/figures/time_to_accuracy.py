"""Time to an accuracy: how long each cell trains until validation reaches a target, and which cells never do."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import time_to_accuracy
from analysis.intervals import Estimate
from analysis.measured import Records
from common.text import number_of
from declared.figures import Declared
from figures import panels, style
from figures.overview import AXIS_IN, BESIDE, ROW_IN
from figures.panels import Series
from figures.view import view

ALONE = 0.03  # of the axis, from its start to a remark
BEYOND = 4  # points from the axis' end to the remark on runs that never arrive
SMALL = 5.5  # points
WHAT = (
    "Time to a validation accuracy of {:.4g} % in every cell. Markers: means; bars: 95 % intervals; ticks: single runs."
)
NEVER = "Open arrows: {} where some runs never reach it; beside them: how many."


def draw(records: Records, asked: Declared) -> tuple[Figure, str]:
    """Rows by series and by nodes or devices, panels by the other factors that vary. The figure and its caption."""
    target = float(asked.target or 0)
    of = view(records.runs, asked)
    found = time_to_accuracy.of_runs(of.runs, records.epochs, target)
    data = time_to_accuracy.summarize(of.runs, records.epochs, target).set_index("cell")
    if not data["n"].any():
        return panels.not_drawn(of.runs, "no successful run" if of.ok.empty else time_to_accuracy.NOT_TOLD)
    if not data["reached"].any():
        best = f"the greatest of a run is {100 * found['best'].max():.3g} %"
        return panels.not_drawn(of.runs, f"no run reached an accuracy of {100 * target:.4g} %; {best}")
    row_in = len(of.rows) * ROW_IN + AXIS_IN
    of = of.on_a_page(row_in + panels.titles_height(of.panels))
    shown = of.panels
    height, columns, width = panels.layout(len(shown))
    drawn = style.figure(width, height * (row_in + panels.titles_height(shown)))
    scaled_by = panels.scaled_by(of.facet)
    axes = panels.grid(drawn, (height, columns), len(shown), share_x=not scaled_by)
    remarks: list[str] = []
    for ax, levels in zip(axes, shown, strict=True):
        here = panels.at(of.cells, levels)
        for y, (one, along, _) in enumerate(of.rows):
            for cell in panels.at(one.of(here), along)["cell"]:
                if cell not in data.index:
                    _say(ax, y, "no successful run")
                elif not data.loc[cell, "n"]:
                    _say(ax, y, time_to_accuracy.NOT_TOLD)
                else:
                    _cell(ax, one, y, data.loc[cell], found.loc[found["cell"] == cell, "time_to_accuracy_s"].dropna())
            if y and one != of.rows[y - 1][0]:
                ax.axhline(y - 0.5, color=style.GRID, linewidth=0.4)
        ax.set_title(panels.panel_title(levels))
        alike = set(panels.at(of.cells, {name: levels[name] for name in scaled_by})["cell"])
        times = found.loc[found["cell"].isin(alike), "time_to_accuracy_s"].dropna()
        means = data[data.index.isin(alike)].rename(columns=lambda name: name.removeprefix("time_to_accuracy_s_"))
        remarks += panels.time_axis(ax, times, means, axis="x")
        if times.empty:
            ax.set_xticks([])
        ax.set_xlabel("time to accuracy (s)")
    axes[0].set_yticks(range(len(of.rows)), [text for _, _, text in of.rows])
    axes[0].set_ylim(len(of.rows) - 0.4, -0.6)
    drawn_cells = data[data.index.isin(set(of.cells["cell"]))]
    never = int((drawn_cells["reached"] < drawn_cells["n"]).sum())
    return drawn, of.caption(
        WHAT.format(100 * target),
        time_to_accuracy.untold(of.runs, drawn_cells),
        NEVER.format(number_of(never, "cell")) if never else "",
        *remarks,
        notes=[time_to_accuracy.HOW],
        counted=drawn_cells["n"],
    )


def _cell(ax: Axes, one: Series, y: float, row: pd.Series, times: pd.Series) -> None:
    """The mean time of a cell with its runs; where a run never arrives, the runs that do, and an arrow at the end of the axis."""
    if row["reached"] == row["n"]:
        ends = (row[f"time_to_accuracy_s{end}"] for end in ("", "_low", "_high"))
        panels.interval(ax, one.look, y, Estimate(*ends), times, BESIDE, upright=False)
        return
    panels.replicates(ax, one.look, y + BESIDE, times, upright=False)
    across = ax.get_yaxis_transform()
    arrow = panels.marker(one.look) | {"marker": panels.ARROWS["x"][1], "markerfacecolor": "white"}
    ax.plot([1], [y], transform=across, clip_on=False, zorder=6, **arrow)
    said = f"{row['n'] - row['reached']} of {row['n']} never"
    remark = ax.annotate(
        said, (1, y), (BEYOND, 0), across, "offset points", annotation_clip=False
    )  # where no run stands
    remark.set(va="center", color=style.MUTED, fontsize=SMALL)


def _say(ax: Axes, y: float, text: str) -> None:
    remark = ax.text(ALONE, y, text, transform=ax.get_yaxis_transform())
    remark.set(va="center", color=style.MUTED, fontsize=SMALL)
