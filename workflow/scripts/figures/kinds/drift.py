"""Draw machine speed over a campaign: reference benchmark, epoch times and background load."""

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
    LOST_CPU_TIME,
    NO_REFERENCE,
    REFERENCE,
    SAME_SETTING,
    SpeedAdjustment,
    adjust_for_speed,
    adjusted_tables_note,
)
from analysis.records import Records
from common.notes import Note
from common.run_status import RunStatus
from common.text import number_of
from declared.figure_specs import FigureSpec
from figures import blocks, captions, panels, style
from figures.kinds import timeline
from figures.kinds.residuals import DOT_STYLE, MAX_VECTOR_DOTS
from figures.kinds.timeline import Time

HEIGHT_INCHES = 3.1
WIDTHS = (2.7, 1.0)  # relative widths of the panels over time and of the panel on the right
HEIGHTS = (1.15, 1.15, 0.8)
BLUE, RED, YELLOW = "#004488", "#bb5566", "#ddaa33"
WAIT_MARKER = style.dots("v", 3, style.INK)
CUT_MARKER = style.dots("^", 3.5, BLUE)
OPEN_MARKER = style.dots("o", 2.6, "white", 0.8) | {"markeredgecolor": YELLOW}
LIMIT_LINE: dict[str, Any] = {"color": style.INK, "linewidth": 0.7, "linestyle": (0, (4, 2))}
# The axis of the reference ends at MIN_AXIS_CUT (%), or further out if many runs deviate by more.
MIN_AXIS_CUT = 50.0
CUT_QUANTILE, CUT_REACH = 0.9, 1.5  # the quantile of deviations, and its multiple that stays on the axis
MAX_CUT_LABELS = 4
MAX_LEGEND_ROW = 6  # entries in one row of the legend
MIN_VISIBLE_SHARE = 0.02  # share of a panel's height from which a bar is visible
DEVIATION = {REFERENCE: "reference: deviation (%)", LOST_CPU_TIME: "CPU time lost: deviation (%)"}
NO_SHARES = "no run records background load"
LEAD = "Machine speed over the campaign, by a reference benchmark around every run."
HOW_TO_READ = (
    "Top: reference benchmark times, from before to after each run, relative to the median of runs "
    f"{SAME_SETTING}. Middle: epoch times relative to the mean of their cell. Every other block is shaded; a "
    "line is at the mean of each. Bottom: CPU time that the runs did not get, as CPU steal (taken by the "
    "hypervisor) and as background load (used by other processes). Right: a dot per "
    "run; the fit uses all of them, with their full values. Deviation: distance from the value that cell and "
    "block predict. CPU time lost: a share w of others and of the hypervisor counts as 1 / (1 − w). The "
    "slope is fitted by least squares, with its 95 % band."
)
EXCLUDED_NOTE = Note("excluded-runs-drawn", "Open: excluded runs.")


def draw(records: Records, _spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with three panels over time and one on the right, and its caption."""
    runs = records.runs
    data = drift.drift_by_run(runs)
    if data.empty:
        return panels.empty_figure(runs, NO_REFERENCE)
    adjusted = adjust_for_speed(runs)
    data, excluded, time, unit = _add_positions(data, records.every_run)
    figure = style.new_figure(style.PAGE_INCHES, HEIGHT_INCHES)
    grid = figure.add_gridspec(3, 2, width_ratios=WIDTHS, height_ratios=HEIGHTS)
    bottom = figure.add_subplot(grid[2, 0])
    top, middle = (figure.add_subplot(grid[row, 0], sharex=bottom) for row in (0, 1))
    covariate_ax = figure.add_subplot(grid[:, 1])
    logs = {name: np.log(data[name]) for name in ("reference", "epoch_time")}
    bands = blocks.find_bands(data.assign(**logs), *logs)
    for ax in (top, middle, bottom):
        blocks.shade_bands(ax, bands)
        ax.grid(True, axis="y")
    blocks.name_bands(top, bands)
    n_beyond = _draw_reference(top, data, bands)
    dots: dict[str, Any] = DOT_STYLE | {"rasterized": len(data) > MAX_VECTOR_DOTS}
    middle.plot(data["middle"], 100 * (data["epoch_time"] - 1), zorder=2, **dots)
    for ax, column in ((top, "reference"), (middle, "epoch_time")):
        ax.axhline(0, color=style.MUTED, linewidth=0.7, zorder=1)
        blocks.draw_means(ax, bands, 100 * np.expm1(bands[column]))
        ax.tick_params(labelbottom=False)
    is_steal_visible = _draw_shares(bottom, data)
    limit = _draw_excluded(bottom, excluded)
    top.set_ylabel("reference:\ndeviation (%)")
    middle.set_ylabel("epoch time:\ndeviation (%)")
    bottom.set_ylabel("CPU time\nlost (%)")
    figure.align_ylabels([top, middle, bottom])
    _set_time_axis(bottom, time, unit)
    if time is not None:
        for ax in (top, middle, bottom):
            timeline.draw_cuts(ax, time, sum(middle.get_ylim()) / 2 if ax is middle else None)
    _draw_epoch_time_over_covariate(covariate_ax, runs, adjusted)
    handles = _legend_handles(data, bands, is_steal_visible)
    handles += _excluded_handles(excluded, limit)
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles) if len(handles) <= MAX_LEGEND_ROW else 4,
    )
    return figure, captions.compose_caption(
        runs,
        LEAD,
        EXCLUDED_NOTE if len(excluded) else "",
        _extreme_block_note(bands),
        *_adjustment_notes(adjusted),
        _cut_note(n_beyond),
        _waits_note(data),
        _steal_note(data, is_steal_visible),
        endnotes=[
            HOW_TO_READ,
            timeline.CUTS_NOTE if time is not None and len(time.cuts) else "",
            _missing_reference_note(data),
        ],
        with_intervals=False,
    )


def _add_positions(
    data: pd.DataFrame, every_run: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, Time | None, str]:
    """Return runs with left, right and middle on the x axis, the excluded runs alike, time axis, and a label.

    The axis is the same as in the figure `timeline`, over every run that started. Without clocks, positions
    are the order of the runs, no excluded run has a position, the time axis is None, and the label says so.
    Excluded runs are those that started, recorded background load, and are not among `data`.
    """
    ran = timeline.started_runs(every_run)
    if not data.index.isin(ran.index).all():
        order = np.arange(1.0, len(data) + 1)
        return data.assign(left=order - 0.4, right=order + 0.4, middle=order), ran[:0], None, "run, in order"
    time = timeline.time_axis(ran)
    left, right = time.position(ran["start_h"].to_numpy()), time.position(ran["end_h"].to_numpy())
    positions = pd.DataFrame({"left": left, "right": right, "middle": (left + right) / 2}, index=ran.index)
    is_excluded = (ran["status"] != RunStatus.OK) & ran["other_cpu_share"].notna()
    return data.join(positions), ran[is_excluded].join(positions), time, ""


def _draw_reference(ax: Axes, data: pd.DataFrame, bands: pd.DataFrame) -> int:
    """Draw a line from before to after each run, and a triangle where a run waited.

    The axis is cut where single runs would squash all others; lines of the runs on it are whole. Returns the
    number of runs beyond it.
    """
    data = data[data["reference"].notna()]
    percent = 100 * (data[["before", "after"]].to_numpy(float) - 1)
    ends = np.stack(
        [np.column_stack([data["left"], percent[:, 0]]), np.column_stack([data["right"], percent[:, 1]])], 1
    )
    lines = LineCollection(list(ends), colors=BLUE, linewidths=0.8, alpha=0.45, zorder=2)
    lines.set_rasterized(len(data) > MAX_VECTOR_DOTS)
    ax.add_collection(lines)
    dots: dict[str, Any] = DOT_STYLE | {"rasterized": len(data) > MAX_VECTOR_DOTS}
    ax.plot(data["middle"], 100 * (data["reference"] - 1), zorder=3, **dots)
    deviations = 100 * (data["reference"] - 1)
    block_means = 100 * np.expm1(bands["reference"].to_numpy())
    cut = max(MIN_AXIS_CUT, CUT_REACH * float(deviations.abs().quantile(CUT_QUANTILE)))
    is_shown, was_shown = deviations.abs() <= cut, None
    while not is_shown.equals(was_shown):  # the line of a run that is shown can bring another run into view
        was_shown = is_shown
        low, high = _reference_ends(np.append(percent[is_shown.to_numpy()].ravel(), [0.0, *block_means]))
        is_shown = is_shown | deviations.between(low, high)
    ax.set_ylim(low, high)
    starts = data.loc[data["waited_s"] > 0, "left"]
    ax.plot(starts, [0.96] * len(starts), transform=ax.get_xaxis_transform(), **WAIT_MARKER)
    _mark_beyond(ax, data.loc[~is_shown, "middle"], deviations[~is_shown])
    return int((~is_shown).sum())


def _reference_ends(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of an axis that shows these values (%), with room for triangles at the upper end."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return low - 0.08 * (high - low or 1.0), high + 0.2 * (high - low or 1.0)


def _mark_beyond(ax: Axes, middle: pd.Series, deviations: pd.Series) -> None:
    """Draw an arrow at the edge for each run beyond the axis, and the values of the largest ones."""
    height = np.where(deviations > 0, 0.86, 0.08)
    ax.plot(middle, height, transform=ax.get_xaxis_transform(), **CUT_MARKER)
    for run in deviations.abs().nlargest(MAX_CUT_LABELS).index:
        text = ax.annotate(
            f"{deviations[run]:+.0f} %",
            (middle[run], 0.86 if deviations[run] > 0 else 0.08),
            xycoords=ax.get_xaxis_transform(),
            xytext=(4, 0),
            textcoords="offset points",
        )
        text.set(va="center", fontsize=style.SMALL_FONT_SIZE, color=style.INK)


def _draw_shares(ax: Axes, data: pd.DataFrame) -> bool:
    """Draw CPU steal as bars and background load as lines; return whether any bar is visible."""
    width = data["right"] - data["left"]
    steal, other_cpu = (100 * data[name] for name in ("steal_share", "other_cpu_share"))
    if steal.isna().all() and other_cpu.isna().all():
        panels.write_remark(ax, NO_SHARES)
        return False
    highest = max(1.0, 1.1 * float(np.nanmax([steal.max(), other_cpu.max()])))
    bars = ax.bar(data["left"], steal.fillna(0.0), width, align="edge", color=RED, linewidth=0, zorder=2)
    for bar in bars:
        bar.set_rasterized(len(data) > MAX_VECTOR_DOTS)
    ax.hlines(other_cpu, data["left"], data["right"], colors=YELLOW, linewidth=1.2, zorder=3)
    ax.set_ylim(0, highest)
    return bool(steal.max() >= MIN_VISIBLE_SHARE * highest)


def _draw_excluded(ax: Axes, excluded: pd.DataFrame) -> float | None:
    """Draw the background load of excluded runs, and return its limit (%) if a line is drawn at it."""
    if excluded.empty:
        return None
    load = 100 * excluded["other_cpu_share"].astype(float)
    ax.plot(excluded["middle"], load, clip_on=False, zorder=4, **OPEN_MARKER)
    limits = 100 * excluded["max_other_cpu_share"].dropna().unique()
    limit = float(limits[0]) if len(limits) == 1 and limits[0] < 100 else None
    ax.set_ylim(0, max(ax.get_ylim()[1], 1.1 * load.max(), 1.1 * (limit or 0.0)))
    if limit is not None:
        ax.axhline(limit, zorder=1, **LIMIT_LINE)
    return limit


def _set_time_axis(ax: Axes, time: Time | None, label: str) -> None:
    if time is None:
        ax.set_xlabel(label)
        return
    unit, name = timeline.axis_unit(time)
    ends = float(time.axis[0]), float(time.axis[-1])
    ax.set_xlim(*ends)
    ax.set_xticks(*time.ticks(*ends, timeline.MAX_TICKS[1], unit))
    ax.set_xlabel(f"{name} since the first run started")


def _draw_epoch_time_over_covariate(ax: Axes, runs: pd.DataFrame, adjusted: SpeedAdjustment) -> None:
    """Draw epoch time over its best covariate, within cells and blocks, with slope and 95 % band."""
    data = 100 * (drift.covariate_and_time(runs, adjusted) - 1)
    if adjusted.leading_covariate is None or data.empty:
        panels.write_remark(ax, f"No slope: {adjusted.reason_unadjusted}", 24)
        ax.set_axis_off()
        return
    ax.set_xlabel(DEVIATION[adjusted.leading_covariate])
    ax.set_ylabel("epoch time: deviation (%)")
    ax.plot(
        data["covariate"], data["epoch_time"], rasterized=len(data) > MAX_VECTOR_DOTS, zorder=2, **DOT_STYLE
    )
    x = np.linspace(data["covariate"].min(), data["covariate"].max(), 50)
    logs, slope = np.log1p(x / 100), adjusted.slopes_alone[adjusted.leading_covariate].estimates[0]
    lines = [100 * np.expm1(value * logs) for value in (slope.value, slope.low, slope.high)]
    ax.plot(x, lines[0], color=style.INK, linewidth=1.0, zorder=4)
    ax.fill_between(x, lines[1], lines[2], color=style.INK, alpha=style.BAND_ALPHA, linewidth=0, zorder=1)
    ax.set_title(f"slope {tables.interval(slope)}")
    ax.grid(True)


def _legend_handles(data: pd.DataFrame, bands: pd.DataFrame, is_steal_visible: bool) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D(
            [],
            [],
            label="reference, before and after a run",
            color=BLUE,
            linewidth=0.8,
            marker="o",
            markersize=1.8,
            markeredgewidth=0,
        )
    ]
    if len(bands) <= blocks.MAX_BANDS:
        handles.append(Line2D([], [], label="mean of a block", color=style.INK, linewidth=1.0))
    if is_steal_visible:
        handles.append(Patch(facecolor=RED, label="CPU steal"))
    if data["other_cpu_share"].notna().any():
        handles.append(Line2D([], [], label="background load", color=YELLOW, linewidth=1.2))
    if (data["waited_s"] > 0).any():
        handles.append(Line2D([], [], label="waited for an idle machine", **WAIT_MARKER))
    return handles


def _excluded_handles(excluded: pd.DataFrame, limit: float | None) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    if len(excluded):
        handles.append(Line2D([], [], label="excluded run", **OPEN_MARKER))
    if limit is not None:
        handles.append(Line2D([], [], label=f"limit ({limit:.3g} %)", **LIMIT_LINE))
    return handles


def _adjustment_notes(adjusted: SpeedAdjustment) -> list[str]:
    """Return notes on the correlation of covariates with epoch time, and on whether means are adjusted."""
    if not adjusted.slopes_alone:
        return [adjusted_tables_note(adjusted)]
    numbers = " and ".join(
        f"{tables.number(covariate.correlation, 2)} with {COVARIATE_TITLES[name]}"
        for name, covariate in adjusted.slopes_alone.items()
    )
    text = f"Within cells and blocks, epoch time correlates by {numbers}."
    correlations = {name: covariate.correlation for name, covariate in adjusted.slopes_alone.items()}
    return [Note("correlation", text, **correlations), adjusted_tables_note(adjusted)]


def _extreme_block_note(bands: pd.DataFrame) -> str:
    """Return how far the block whose epoch times deviate most is from the others; "" for a single block."""
    measured = bands.dropna(subset=["block", "reference", "epoch_time"])
    if len(measured) < 2:
        return ""
    block = measured.loc[measured["epoch_time"].abs().idxmax()]
    reference, epoch_time = (math.expm1(block[name]) for name in ("reference", "epoch_time"))
    text = (
        f"Block {block['block']:g} deviates most: reference {100 * reference:+.1f} %, "
        f"epoch times {100 * epoch_time:+.1f} %."
    )
    return Note("extreme-block", text, block=block["block"], reference=reference, epoch_time=epoch_time)


def _cut_note(n_runs: int) -> str:
    """Return that the axis of the reference is cut, and below how many runs; "" if it shows all."""
    text = "Arrow: beyond the axis." if n_runs == 1 else "Arrows: beyond the axis."
    return Note("axis-cut", text, runs=n_runs) if n_runs else ""


def _waits_note(data: pd.DataFrame) -> str:
    n_waited = int((data["waited_s"] > 0).sum())
    text = f"{number_of(n_waited, 'run')} waited for an idle machine."
    return Note("runs-waited", text, runs=n_waited) if n_waited else ""


def _steal_note(data: pd.DataFrame, is_visible: bool) -> str:
    largest = float(data["steal_share"].max())
    text = f"CPU steal is {tables.percent(largest)} % of a run at most."
    return "" if is_visible or math.isnan(largest) else Note("steal-not-seen", text, most=largest)


def _missing_reference_note(data: pd.DataFrame) -> str:
    n_missing = int(data["reference"].isna().sum())
    text = f"Without a reference benchmark: {number_of(n_missing, 'run')}, which the top panel leaves out."
    return Note("runs-without-reference", text, runs=n_missing) if n_missing else ""
