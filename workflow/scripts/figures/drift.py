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
from analysis.adjusted import (
    COVARIATE_TITLES,
    REFERENCE,
    SAME_SETTING,
    WITHHELD,
    Adjustment,
    adjusted_tables_note,
    adjustment,
    no_reference_reason,
)
from analysis.measured import Records
from common.notes import Note
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
VISIBLE = 0.02  # of the height of a panel: bars that are lower are not seen
DEVIATION = {REFERENCE: "reference: deviation (%)", WITHHELD: "time withheld: deviation (%)"}
OTHERS_UNTOLD = "no run tells what others took"
CUTS = "Hatched: gaps that are cut, with what they last. "
WHAT = "The machine over the campaign, by a fixed piece of work beside every run (reference)."
HOW = (
    "Top: the reference, from right before a run to right after it, above the median of runs {alike}. Middle: epoch "
    "times above the mean of their cell. {bands}{cuts}Bottom: processor time that others had. Right: a dot per run. Deviation: "
    "how far it lies from what its cell and its block have. {withheld}The slope is that of least squares, with its 95 % band."
)


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Three panels over time and one beside them. The figure and its caption; `asked` says nothing that matters here."""
    runs = records.runs
    data = drift.drift_by_run(runs)
    if data.empty:
        return panels.not_drawn(runs, no_reference_reason(runs))
    found = adjustment(runs)
    data, time, unit = _placed(data, records.every_run)
    drawn = style.figure(style.PAGE_IN, HEIGHT_IN)
    grid = drawn.add_gridspec(3, 2, width_ratios=WIDTHS, height_ratios=HEIGHTS)
    bottom = drawn.add_subplot(grid[2, 0])
    top, middle = (drawn.add_subplot(grid[row, 0], sharex=bottom) for row in (0, 1))
    beside = drawn.add_subplot(grid[:, 1])
    bands = _bands(data)
    for ax in (top, middle, bottom):
        _shade(ax, bands)
        ax.grid(True, axis="y")
    _reference(top, data)
    middle.plot(data["middle"], 100 * (data["epoch_time"] - 1), rasterized=len(data) > MOST_VECTOR, zorder=2, **DOT)
    for ax, column in ((top, "reference"), (middle, "epoch_time")):
        ax.axhline(0, color=style.MUTED, linewidth=0.7, zorder=1)
        _levels(ax, bands, column)
        ax.tick_params(labelbottom=False)
    stolen = _shares(bottom, data)
    top.set_ylabel("reference:\nabove usual (%)")
    middle.set_ylabel("epoch time:\nabove mean (%)")
    bottom.set_ylabel("others'\nCPU (%)")
    drawn.align_ylabels([top, middle, bottom])
    _time_axis(bottom, time, unit)
    if time is not None:
        for ax in (top, middle, bottom):
            timeline.cuts(ax, time, sum(middle.get_ylim()) / 2 if ax is middle else None)
    _over_reference(beside, runs, found)
    drawn.legend(handles=_legend(data, bands, stolen), loc="outside upper center", ncols=5)
    return drawn, panels.caption(
        runs,
        WHAT,
        *_found(found),
        _waits(data),
        _stolen(data, stolen),
        notes=[
            _how(bands, time, found),
            _lacking(data),
        ],
        with_intervals=False,
    )


def _placed(data: pd.DataFrame, every_run: pd.DataFrame) -> tuple[pd.DataFrame, Time | None, str]:
    """The runs with their places on the axis (left, right, middle), the axis of time, and its label. The axis is that of the figure timeline,
    over every run that started; without clocks it is their order."""
    ran = timeline.that_ran(every_run)
    if not data.index.isin(ran.index).all():
        order = np.arange(1.0, len(data) + 1)
        return data.assign(left=order - 0.4, right=order + 0.4, middle=order), None, "run, in order"
    time, ran = timeline.axis_of(ran), ran.loc[data.index]
    left, right = time.at(ran["start_h"].to_numpy()), time.at(ran["end_h"].to_numpy())
    return data.assign(left=left, right=right, middle=(left + right) / 2), time, ""


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


def _levels(ax: Axes, bands: pd.DataFrame, column: str) -> None:
    """A line at the mean of each block."""
    if len(bands) <= MOST_BANDS:
        for left, right, value in bands[["left", "right", column]].itertuples(index=False):
            ax.plot([left, right], [100 * math.expm1(value / 100)] * 2, color=style.INK, linewidth=1.0, zorder=4)


def _reference(ax: Axes, data: pd.DataFrame) -> None:
    """A line from before to after each run; a triangle where it waited."""
    data = data[data["reference"].notna()]
    percent = 100 * (data[["before", "after"]].to_numpy(float) - 1)
    ends = np.stack(
        [np.column_stack([data["left"], percent[:, 0]]), np.column_stack([data["right"], percent[:, 1]])], 1
    )
    lines = LineCollection(list(ends), colors=BLUE, linewidths=0.8, alpha=0.45, zorder=2)
    lines.set_rasterized(len(data) > MOST_VECTOR)
    ax.add_collection(lines)
    ax.plot(data["middle"], 100 * (data["reference"] - 1), zorder=3, rasterized=len(data) > MOST_VECTOR, **DOT)
    drawn = np.append(percent.ravel(), [0.0, *(100 * (data["reference"] - 1))])
    low, high = float(np.nanmin(drawn)), float(np.nanmax(drawn))
    room = (high - low or 1.0) * np.array([0.08, 0.2])  # below, and above, where triangles stand
    ax.set_ylim(low - room[0], high + room[1])
    waited = data["waited_s"] > 0
    ax.plot(data.loc[waited, "left"], [0.96] * int(waited.sum()), transform=ax.get_xaxis_transform(), **WAITED)


def _shares(ax: Axes, data: pd.DataFrame) -> bool:
    """What a hypervisor took, as bars from 0; what other programs did, as lines across. Whether any bar is high enough to be seen."""
    width = data["right"] - data["left"]
    stolen, foreign = (100 * data[name] for name in ("steal_share", "foreign_cpu_share"))
    if stolen.isna().all() and foreign.isna().all():
        panels.say(ax, OTHERS_UNTOLD)
        return False
    highest = max(1.0, 1.1 * float(np.nanmax([stolen.max(), foreign.max()])))
    bars = ax.bar(data["left"], stolen.fillna(0.0), width, align="edge", color=RED, linewidth=0, zorder=2)
    for bar in bars:
        bar.set_rasterized(len(data) > MOST_VECTOR)
    ax.hlines(foreign, data["left"], data["right"], colors=YELLOW, linewidth=1.2, zorder=3)
    ax.set_ylim(0, highest)
    return bool(stolen.max() >= VISIBLE * highest)


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
    """Epoch time over the covariate that predicts it best, beside cells and blocks, with the slope and its 95 % band."""
    data = 100 * (drift.covariate_and_time(runs, found) - 1)
    if found.leading is None or data.empty:
        panels.say(ax, f"No slope: {found.why}", 24)
        ax.set_axis_off()
        return
    ax.set_xlabel(DEVIATION[found.leading])
    ax.set_ylabel("epoch time: deviation (%)")
    ax.plot(data["covariate"], data["epoch_time"], rasterized=len(data) > MOST_VECTOR, zorder=2, **DOT)
    x = np.linspace(data["covariate"].min(), data["covariate"].max(), 50)
    logs, slope = np.log1p(x / 100), found.alone[found.leading].estimates[0]
    lines = [100 * np.expm1(value * logs) for value in (slope.value, slope.low, slope.high)]
    ax.plot(x, lines[0], color=style.INK, linewidth=1.0, zorder=4)
    ax.fill_between(x, lines[1], lines[2], color=style.INK, alpha=style.BAND_ALPHA, linewidth=0, zorder=1)
    ax.set_title(f"slope {tables.difference(slope)}")
    ax.grid(True)


def _legend(data: pd.DataFrame, bands: pd.DataFrame, stolen: bool) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], label="run", color=BLUE, linewidth=0.8, marker="o", markersize=1.8, markeredgewidth=0),
    ]
    if len(bands) <= MOST_BANDS:
        handles.append(Line2D([], [], label="mean of a block", color=style.INK, linewidth=1.0))
    if stolen:
        handles.append(Patch(facecolor=RED, label="CPU of a hypervisor"))
    if data["foreign_cpu_share"].notna().any():
        handles.append(Line2D([], [], label="CPU of other programs", color=YELLOW, linewidth=1.2))
    if (data["waited_s"] > 0).any():
        handles.append(Line2D([], [], label="waited for a quiet machine", **WAITED))
    return handles


def _how(bands: pd.DataFrame, time: Time | None, found: Adjustment) -> str:
    """How the figure is read."""
    cuts = 0 if time is None else len(time.cuts)
    parts = {"bands": _of_bands(bands), "cuts": CUTS if cuts else "", "withheld": _of_withheld(found)}
    return Note("how-to-read", HOW.format(alike=SAME_SETTING, **parts), cuts=cuts)


def _of_withheld(found: Adjustment) -> str:
    return (
        "Time withheld: a share w that others and a hypervisor had counts as 1 / (1 − w). "
        if found.leading == WITHHELD
        else ""
    )


def _of_bands(bands: pd.DataFrame) -> str:
    if len(bands) > MOST_BANDS:
        return "Blocks change too often to be shown. "
    return "White and grey bands are blocks, with a line at the mean of each. " if len(bands) > 1 else ""


def _found(found: Adjustment) -> list[str]:
    """How each goes with epoch times, and whether means are adjusted."""
    if not found.alone:
        return [adjusted_tables_note(found)]
    numbers = " and ".join(
        f"{tables.number(of.correlation, 2)} ({COVARIATE_TITLES[name]})" for name, of in found.alone.items()
    )
    text = f"Within cells and blocks the correlation with epoch time is {numbers}."
    correlations = {name: of.correlation for name, of in found.alone.items()}
    return [Note("correlation", text, **correlations), adjusted_tables_note(found)]


def _waits(data: pd.DataFrame) -> str:
    waited = int((data["waited_s"] > 0).sum())
    return Note("runs-waited", f"{number_of(waited, 'run')} waited for a quiet machine.", runs=waited) if waited else ""


def _stolen(data: pd.DataFrame, shown: bool) -> str:
    most = float(data["steal_share"].max())
    text = f"A hypervisor took {tables.percent(most)} % of a run at most."
    return "" if shown or math.isnan(most) else Note("steal-not-seen", text, most=most)


def _lacking(data: pd.DataFrame) -> str:
    lacking = int(data["reference"].isna().sum())
    text = f"Without a reference: {number_of(lacking, 'run')}; the top panel has none of them."
    return Note("runs-without-reference", text, runs=lacking) if lacking else ""
