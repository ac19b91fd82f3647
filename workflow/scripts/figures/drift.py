"""How quick the machine was over the campaign: the reference beside every run, epoch times and what others took, over time; and one over
the other."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import drift, tables
from analysis.adjusted import Adjustment, adjustment
from analysis.measured import Records, successful
from common.text import number_of
from declared.figures import Declared
from figures import panels, style, timeline
from figures.residuals import BAND, DOT, MOST_BANDS, MOST_VECTOR
from figures.timeline import Time

HEIGHT_IN = 3.1
WIDTHS = (2.7, 1.0)  # of time, and of the panel beside it
HEIGHTS = (1.15, 1.15, 0.8)
BLUE, RED, YELLOW = "#004488", "#bb5566", "#ddaa33"
WAITED: dict[str, Any] = {
    "linestyle": "none",
    "marker": "v",
    "markersize": 3,
    "color": style.INK,
    "markeredgewidth": 0,
}
NOTHING = "no run has a reference beside it"
WHAT = "The machine over the campaign, by a fixed piece of work beside every run (reference)."
HOW = (
    "Top: the reference, from right before a run to right after it, above its median in one environment on as many nodes, ranks and cores. Middle: epoch "
    "times above the mean of their cell. {bands}Bottom: shares of processor time that a hypervisor and other programs took. Right: epoch time over "
    "the reference, both less what is of their cell and block, with the slope of least squares and its 95 % band."
)


def draw(records: Records, asked: Declared) -> tuple[Figure, str]:
    """Three panels over time and one beside them. The figure and its caption; `asked` says nothing that matters here."""
    runs = records.runs
    data = drift.by_run(runs)
    if data.empty:
        return panels.not_drawn(runs, "no successful run" if successful(runs).empty else NOTHING)
    found = adjustment(runs)
    data, time, unit = _placed(data)
    drawn = style.figure(style.PAGE_IN, HEIGHT_IN)
    grid = drawn.add_gridspec(3, 2, width_ratios=WIDTHS, height_ratios=HEIGHTS)
    bottom = drawn.add_subplot(grid[2, 0])
    top, middle = (drawn.add_subplot(grid[row, 0], sharex=bottom) for row in (0, 1))
    beside = drawn.add_subplot(grid[:, 1])
    bands = _bands(data)
    for ax in (top, middle, bottom):
        _shade(ax, bands)
        _cut(ax, time)
        ax.grid(True, axis="y")
    _reference(top, data)
    middle.plot(data["middle"], 100 * (data["epoch_time"] - 1), rasterized=len(data) > MOST_VECTOR, zorder=2, **DOT)
    for ax, column in ((top, "reference"), (middle, "epoch_time")):
        ax.axhline(0, color=style.MUTED, linewidth=0.7, zorder=1)
        _levels(ax, bands, column)
        ax.tick_params(labelbottom=False)
    _shares(bottom, data)
    top.set_ylabel("reference (%)")
    middle.set_ylabel("epoch time (%)")
    bottom.set_ylabel("taken (%)")
    drawn.align_ylabels([top, middle, bottom])
    _time_axis(bottom, time, unit)
    _over_reference(beside, runs, found)
    drawn.legend(handles=_legend(data), loc="outside upper center", ncols=5)
    return drawn, panels.caption(
        runs,
        WHAT,
        _found(found),
        _waits(data),
        notes=[HOW.format(bands=_of_bands(data, bands)), _lacking(runs, data)],
        with_intervals=False,
    )


def _placed(data: pd.DataFrame) -> tuple[pd.DataFrame, Time | None, str]:
    """The runs with their places on the axis (left, right, middle), the axis of time, and its label. Without clocks the axis is their order."""
    ran = timeline.that_ran(data.assign(startup_s=math.nan))
    if len(ran) < len(data):
        order = np.arange(1.0, len(data) + 1)
        return data.assign(left=order - 0.4, right=order + 0.4, middle=order), None, "run, in order"
    time = timeline.axis_of(ran)
    left, right = time.at(ran["start_h"].to_numpy()), time.at(ran["end_h"].to_numpy())
    return ran.assign(left=left, right=right, middle=(left + right) / 2), time, ""


def _bands(data: pd.DataFrame) -> pd.DataFrame:
    """Stretches of runs of one block of a session: from, to (places), means of reference and epoch_time (%)."""
    change = (data[["session", "block"]].ne(data[["session", "block"]].shift())).any(axis=1).cumsum()
    percent = data.assign(reference=100 * np.log(data["reference"]), epoch_time=100 * np.log(data["epoch_time"]))
    return percent.groupby(change).agg(
        left=("left", "min"),
        right=("right", "max"),
        reference=("reference", "mean"),
        epoch_time=("epoch_time", "mean"),
    )


def _shade(ax: Axes, bands: pd.DataFrame) -> None:
    """Every other block on grey."""
    if len(bands) <= MOST_BANDS:
        for band in bands[1::2].itertuples():
            ax.axvspan(band.left, band.right, color=BAND, linewidth=0, zorder=0)


def _cut(ax: Axes, time: Time | None) -> None:
    """Long gaps, hatched."""
    for start, end in [] if time is None else time.cuts:
        left, right = (float(place) for place in time.at(np.array([start, end])))  # type: ignore[union-attr]
        ax.axvspan(left, right, facecolor="white", edgecolor=style.GRID, hatch="//////", linewidth=0)


def _levels(ax: Axes, bands: pd.DataFrame, column: str) -> None:
    """A line at the mean of each block."""
    if len(bands) <= MOST_BANDS:
        for left, right, value in bands[["left", "right", column]].itertuples(index=False):
            ax.plot([left, right], [100 * math.expm1(value / 100)] * 2, color=style.INK, linewidth=1.0, zorder=4)


def _reference(ax: Axes, data: pd.DataFrame) -> None:
    """A line from before to after each run; a triangle where it waited."""
    percent = 100 * (data[["before", "after"]].to_numpy(float) - 1)
    ends = np.stack(
        [np.column_stack([data["left"], percent[:, 0]]), np.column_stack([data["right"], percent[:, 1]])], 1
    )
    lines = LineCollection(list(ends), colors=BLUE, linewidths=0.8, alpha=0.45, zorder=2)
    lines.set_rasterized(len(data) > MOST_VECTOR)
    ax.add_collection(lines)
    ax.plot(data["middle"], 100 * (data["reference"] - 1), zorder=3, rasterized=len(data) > MOST_VECTOR, **DOT)
    waited = data["waited_s"] > 0
    ax.plot(data.loc[waited, "left"], [0.96] * int(waited.sum()), transform=ax.get_xaxis_transform(), **WAITED)


def _shares(ax: Axes, data: pd.DataFrame) -> None:
    """What a hypervisor took, as bars from 0; what other programs did, as lines across."""
    width = data["right"] - data["left"]
    stolen, foreign = (100 * data[name] for name in ("steal_share", "foreign_cpu_share"))
    if stolen.isna().all() and foreign.isna().all():
        panels.say(ax, "no run tells what others took")
        return
    bars = ax.bar(data["left"], stolen.fillna(0.0), width, align="edge", color=RED, linewidth=0, zorder=2)
    for bar in bars:
        bar.set_rasterized(len(data) > MOST_VECTOR)
    ax.hlines(foreign, data["left"], data["right"], colors=YELLOW, linewidth=1.2, zorder=3)
    ax.set_ylim(0, max(1.0, 1.1 * float(np.nanmax([stolen.max(), foreign.max()]))))


def _time_axis(ax: Axes, time: Time | None, label: str) -> None:
    if time is None:
        ax.set_xlabel(label)
        return
    unit, name = timeline.unit_of(time)
    ends = float(time.axis[0]), float(time.axis[-1])
    ax.set_xlim(*ends)
    ax.set_xticks(*time.ticks(*ends, timeline.TICKS[1], unit))
    ax.set_xlabel(f"{name} since the first run started")


def _over_reference(ax: Axes, runs: pd.DataFrame, found: Adjustment) -> None:
    """Epoch time over the reference, beside cells and blocks, with the slope and its 95 % band."""
    ax.set_xlabel("reference beside cell and block (%)")
    ax.set_ylabel("epoch time beside cell and block (%)")
    data = 100 * (drift.beside(runs, found) - 1)
    if found.slope is None or data.empty:
        panels.say(ax, found.why or "no two runs can be compared", 24)
        return
    ax.plot(data["reference"], data["epoch_time"], rasterized=len(data) > MOST_VECTOR, zorder=2, **DOT)
    x = np.linspace(data["reference"].min(), data["reference"].max(), 50)
    logs, slope = np.log1p(x / 100), found.slope.estimate
    lines = [100 * np.expm1(value * logs) for value in (slope.value, slope.low, slope.high)]
    ax.plot(x, lines[0], color=style.INK, linewidth=1.0, zorder=4)
    ax.fill_between(x, lines[1], lines[2], color=style.INK, alpha=style.BAND_ALPHA, linewidth=0, zorder=1)
    ax.set_title(f"slope {tables.difference(slope)}")
    ax.grid(True)


def _legend(data: pd.DataFrame) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], label="run", color=BLUE, linewidth=0.8, marker="o", markersize=1.8, markeredgewidth=0),
        Line2D([], [], label="mean of a block", color=style.INK, linewidth=1.0),
    ]
    if data["steal_share"].notna().any():
        handles.append(Patch(facecolor=RED, label="by a hypervisor"))
    if data["foreign_cpu_share"].notna().any():
        handles.append(Line2D([], [], label="by other programs", color=YELLOW, linewidth=1.2))
    if (data["waited_s"] > 0).any():
        handles.append(Line2D([], [], label="waited for a quiet machine", **WAITED))
    return handles


def _of_bands(data: pd.DataFrame, bands: pd.DataFrame) -> str:
    if len(bands) > MOST_BANDS:
        return "Blocks change too often to be shown. "
    return "White and grey bands are blocks, with a line at the mean of each. " if len(bands) > 1 else ""


def _found(found: Adjustment) -> str:
    """How both go together, and whether means are adjusted."""
    if found.slope is None:
        return f"Epoch times are not adjusted by it: {found.why}."
    together = f"Beside cells and blocks the correlation of epoch time and reference is {tables.number(found.slope.correlation, 2)}."
    used = (
        "The table adjusted has means adjusted by it."
        if found.adjusted
        else f"Epoch times are not adjusted by it: {found.why}."
    )
    return f"{together} {used}"


def _waits(data: pd.DataFrame) -> str:
    waited = int((data["waited_s"] > 0).sum())
    return f"{number_of(waited, 'run')} waited for a quiet machine." if waited else ""


def _lacking(runs: pd.DataFrame, data: pd.DataFrame) -> str:
    lacking = len(successful(runs)) - len(data)
    return f"Without a reference, and not drawn: {number_of(lacking, 'run')}." if lacking else ""
