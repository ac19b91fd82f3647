"""Draw the campaign as it ran: a bar for every run over time, and symbols for unsuccessful runs."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.records import Records
from common.notes import Note
from common.run_status import RunStatus
from common.text import format_duration, number_of
from declared.figure_specs import FigureSpec
from figures import blocks, captions, legends, panels, style
from figures.selection import Series
from figures.view import View, build_view, filtered

LANE_INCHES = 0.12
MIN_LANES_INCHES = 0.6  # so that a duration, which is written upright, fits beside few lanes
BELOW_ROW_INCHES = 0.2
BLOCK_NAMES_INCHES = 0.12
MAX_HEIGHT_INCHES = 8.2
BAR, STARTUP_BAR = 0.78, 0.44  # shares of a lane; start-up is distinct in grey by its width
RUNS_IN_COLUMN, RUNS_IN_ROW = 60, 90
MAX_LANES = 24
MAX_VECTOR_BARS = 2000  # more bars would make vector files too large to open
CUT_FROM = 0.15  # share of the time in runs; longer gaps are cut
CUT_WIDTH = (0.06, 0.03)  # share of a row that a cut takes, in a figure of column and of page width
MAX_CUTS = 12
LIGHT_SHARE = 0.4  # share of the colour in the bar of start-up
MAX_TICKS = (4, 8)  # in a figure of column and of page width
ROUND_ROWS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
ROUND_TICKS = (1, 2, 2.5, 5, 10)
END_TICK_SHARE = 0.6  # smallest distance of the tick at the end from the last round one, in steps
UNITS = ((1.0, "hours"), (1 / 60, "minutes"), (1 / 3600, "seconds"))
MIN_UNITS = 2  # a campaign lasts at least this many units of its axis
SYMBOLS = {RunStatus.OOM: "s", RunStatus.FAILED: "X", RunStatus.TIMEOUT: "D", RunStatus.INVALID: "o"}
UNKNOWN_HOST = "unknown host"
DISCARDED_HATCH = "...."
LEAD = "Timeline of the campaign. Each bar is a run{}."
HOW_TO_READ = (
    "The narrow part of a bar is start-up, until all ranks reached the first barrier; the wide part is the "
    "rest."
)
CUTS_NOTE = Note("gaps-cut", "Hatched: gaps that are cut, with their duration.")
BLOCKS_NOTE = Note("blocks-shaded", "Every other block is shaded; numbers above are those of the blocks.")
ROWS_NOTE = Note("rows-go-on", "Time continues from row to row.")
NOT_STARTED = Note("not-started", "no run started")
NO_CLOCK = Note("no-clock", "no run recorded when it started and ended")
GAPS_SENTENCE = (
    "Blank: no run, for example while a session starts, the collective benchmark runs, the first block is "
    "drawn after its end, or an attempt runs that leaves no record."
)


@dataclass(frozen=True)
class Time:
    """The time axis, with long gaps cut.

    Attributes:
        hours: Hours since the first start.
        axis: Position of each of `hours` on the axis, which is linear in between.
        cuts: Start and end of the long gaps in hours, [gaps, 2].
    """

    hours: np.ndarray
    axis: np.ndarray
    cuts: np.ndarray

    def position(self, hours: np.ndarray | float) -> np.ndarray:
        """Return the positions of these hours."""
        return np.interp(hours, self.hours, self.axis)

    def ticks(
        self, low: float, high: float, max_ticks: int, unit: float = 1.0
    ) -> tuple[list[float], list[str]]:
        """Return positions and labels of about `max_ticks` round multiples of `unit` hours, outside cuts.

        The end of the axis also gets a tick, unless the last one is close to it.
        """
        step = unit * _round_up((high - low) / max_ticks / unit, ROUND_TICKS)
        ticks: list[tuple[float, str]] = []
        for start, end in self.hours.reshape(-1, 2):
            for count in range(math.ceil(start / step - 1e-9), math.floor(end / step + 1e-9) + 1):
                position = float(self.position(count * step))
                is_apart = not ticks or position - ticks[-1][0] > step / 2
                if is_apart and low - 1e-9 <= position <= high + 1e-9:
                    ticks.append((position, f"{count * step / unit:.6g}"))
        end = float(self.axis[-1])
        if low < end <= high and (not ticks or end - ticks[-1][0] > END_TICK_SHARE * step):
            ticks.append((end, f"{float(self.hours[-1]) / unit:.3g}"))
        return [position for position, _ in ticks], [text for _, text in ticks]


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with lanes by host or by series, and its caption."""
    view = replace(build_view(records.runs, spec), runs=filtered(records.every_run, spec))
    ran = started_runs(view.runs)
    if ran.empty:
        return panels.empty_figure(
            view.runs, NOT_STARTED if view.runs["started_at"].isna().all() else NO_CLOCK
        )
    lanes, bars = _make_lanes(ran, view.series)
    by_host = lanes[0] != view.series[0].name
    time = time_axis(ran)
    is_page_wide = len(ran) > RUNS_IN_COLUMN
    width = style.PAGE_INCHES if is_page_wide else style.COLUMN_INCHES
    discarded = _discarded_attempts(ran)
    handles = _legend_handles(ran, view.series if by_host else [])
    if n_discarded := int(discarded["runs"].sum()):
        text = number_of(n_discarded, "discarded attempt")
        handles.append(Patch(label=text, facecolor="white", edgecolor=style.MUTED, hatch=DISCARDED_HATCH))
    above_in = legends.handles_height(handles, width)
    bands = _block_bands(ran, time)
    names_in = BLOCK_NAMES_INCHES if 1 < len(bands) <= blocks.MAX_NAMED_BLOCKS else 0.0
    row_in = names_in + max(MIN_LANES_INCHES, LANE_INCHES * len(lanes)) + BELOW_ROW_INCHES
    rows, length = _row_layout(float(time.axis[-1]), len(ran), int((MAX_HEIGHT_INCHES - above_in) / row_in))
    unit, unit_name = axis_unit(time)
    figure = style.new_figure(width, rows * row_in + 0.1 + above_in)
    axes = figure.subplots(rows, 1, squeeze=False, sharey=True)[:, 0]
    for row, ax in enumerate(axes):
        low, high = row * length, (row + 1) * length
        ax.set_xlim(low, high)
        blocks.shade_bands(ax, bands)
        visible = bands.assign(left=bands["left"].clip(low), right=bands["right"].clip(upper=high))
        blocks.name_bands(ax, visible[visible["left"] < visible["right"]])
        _draw_bars(ax, bars, time, view.series)
        draw_cuts(ax, time, (len(lanes) - 1) / 2)
        _draw_discarded(ax, time, discarded)
        _draw_symbols(ax, bars, time)
        ax.set_xticks(*time.ticks(low, high, MAX_TICKS[is_page_wide], unit))
        ax.spines["left"].set_visible(False)
        ax.spines["bottom"].set_bounds(low, min(high, float(time.axis[-1])))
        ax.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(lanes)), lanes)
    axes[0].set_ylim(len(lanes) - 0.45, -0.55)
    axes[-1].set_xlabel(f"{unit_name} since the first run started")
    legends.place_legend(figure, handles)
    return figure, view.caption(
        _heading_note(view, by_host),
        _span_note(ran),
        CUTS_NOTE if len(time.cuts) else "",
        _repeated_note(n_discarded),
        *_not_drawn_notes(view.runs, ran),
        endnotes=[
            HOW_TO_READ,
            BLOCKS_NOTE if len(bands) > 1 else "",
            ROWS_NOTE if rows > 1 else "",
            GAPS_SENTENCE,
        ],
        with_intervals=False,
    )


def _heading_note(view: View, by_host: bool) -> str:
    """Return the lead of the caption, which says what lanes are."""
    lanes = (
        ", on each of its nodes" if by_host else f", in lanes by {view.series_description.partition(' (')[0]}"
    )
    return Note("heading", LEAD.format(lanes), lanes=["host"] if by_host else view.series_factors)


def started_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that recorded start and end, in the order of their starts.

    Hours since the first start: `start_h`, `ready_h` (end of start-up; NaN if unknown), `end_h`.
    """
    start, end = (
        pd.to_datetime(runs[name], utc=True, format="ISO8601", errors="coerce")
        for name in ("started_at", "ended_at")
    )
    has_clock = start.notna() & end.notna() & (end >= start)
    ran = runs[has_clock].assign(at=start[has_clock]).sort_values("at", kind="stable")
    since_s = (start[ran.index] - start[has_clock].min()).dt.total_seconds()
    lasted_s = (end - start)[ran.index].dt.total_seconds()
    ready = ran["startup_s"].astype(float).clip(upper=lasted_s)
    return ran.assign(
        start_h=since_s / 3600, ready_h=(since_s + ready) / 3600, end_h=(since_s + lasted_s) / 3600
    )


def _block_bands(ran: pd.DataFrame, time: Time) -> pd.DataFrame:
    """Return `blocks.find_bands` of runs on the time axis, without rows if blocks overlap in time."""
    start, end = (time.position(ran[name].to_numpy()) for name in ("start_h", "end_h"))
    bands = blocks.find_bands(ran.assign(left=start, right=end))
    is_overlapping = (bands["left"] < bands["right"].cummax().shift()).any()
    return bands[:0] if is_overlapping else bands


def _make_lanes(ran: pd.DataFrame, series: Sequence[Series]) -> tuple[list[str], pd.DataFrame]:
    """Return the names of lanes from the top, and a row per bar: run, lane, series, hours.

    `run` is the position in `ran`. Lanes are hosts if there are 2 to MAX_LANES, or else series.
    """
    bars = ran[["start_h", "ready_h", "end_h", "status"]].reset_index(drop=True)
    bars["run"] = np.arange(len(ran))
    bars["series"] = -1
    for number, one_series in enumerate(series):
        bars.loc[ran.index.isin(one_series.select(ran).index), "series"] = number
    hosts = ran["hosts"].fillna("").str.split().reset_index(drop=True)
    names = sorted({name for host_names in hosts for name in host_names}, key=_natural_key)
    if not 1 < len(names) <= MAX_LANES:
        has_unnamed = (bars["series"] < 0).any()
        lane = bars["series"].where(bars["series"] >= 0, len(series))
        names = [one_series.name for one_series in series]
        return [*names, *(["others"] if has_unnamed else [])], bars.assign(lane=lane)
    lane_of_host = {name: lane for lane, name in enumerate(names)} | {UNKNOWN_HOST: len(names)}
    has_unknown = (hosts.str.len() == 0).any()
    lane_of_bar = hosts.map(lambda host_names: host_names or [UNKNOWN_HOST]).explode().map(lane_of_host)
    bars = bars.loc[lane_of_bar.index].assign(lane=lane_of_bar.to_numpy(int)).reset_index(drop=True)
    return [*names, *([UNKNOWN_HOST] if has_unknown else [])], bars


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts node2 before node10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _gaps(ran: pd.DataFrame) -> np.ndarray:
    """Return start and end of the times without a run, in hours, [gaps, 2]."""
    start, until = ran["start_h"].to_numpy(), np.maximum.accumulate(ran["end_h"].to_numpy())
    after = np.flatnonzero(start[1:] > until[:-1])
    return np.column_stack([until[after], start[after + 1]])


def time_axis(ran: pd.DataFrame) -> Time:
    """Return the axis over the whole campaign, with long gaps cut."""
    total = max(float(ran["end_h"].max()), 1 / 3600)
    gaps = _gaps(ran)
    lengths = gaps[:, 1] - gaps[:, 0]
    long = lengths > CUT_FROM * (total - lengths.sum())
    if long.sum() > MAX_CUTS:
        long[:] = False
    cuts = gaps[long]
    hours = np.concatenate([[0.0], cuts.ravel(), [total]])
    lasts = np.diff(hours)
    lasts[1::2] = (
        CUT_WIDTH[len(ran) > RUNS_IN_COLUMN]
        * (total - lengths[long].sum())
        / math.ceil(len(ran) / RUNS_IN_ROW)
    )
    return Time(hours, np.concatenate([[0.0], np.cumsum(lasts)]), cuts)


def axis_unit(time: Time) -> tuple[float, str]:
    """Return the unit of an axis in hours, and its name."""
    return next(unit for unit in UNITS if float(time.hours[-1]) >= MIN_UNITS * unit[0] or unit is UNITS[-1])


def _row_layout(length: float, runs: int, max_rows: int) -> tuple[int, float]:
    """Return the number of rows that the axis is split into, and their length; round if there are several."""
    rows = min(math.ceil(runs / RUNS_IN_ROW), max(1, max_rows))
    if rows == 1:
        return 1, length
    width = _round_up(length / rows, ROUND_ROWS)
    return math.ceil(length / width - 1e-9), width


def _round_up(least: float, digits: Sequence[float]) -> float:
    """Return the smallest of `digits`, times a power of ten, that is at least `least`."""
    ten = 10.0 ** math.floor(math.log10(least))
    return next(ten * digit for digit in digits if ten * digit >= least * (1 - 1e-9))


def _is_in_panel(ax: Axes, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return which intervals reach into the panel."""
    left, right = ax.get_xlim()
    return (high >= left) & (low <= right)


def _draw_boxes(
    ax: Axes, left: np.ndarray, right: np.ndarray, y: np.ndarray, *, height: float = BAR, **options: Any
) -> None:
    """Draw bars as one collection, which is fast with thousands of them."""
    if not len(left):
        return
    top, bottom = y - height / 2, y + height / 2
    corners = np.stack([left, bottom, left, top, right, top, right, bottom], axis=1).reshape(-1, 4, 2)
    boxes = PolyCollection(list(corners), **({"linewidths": 0} | options))
    boxes.set_in_layout(False)
    ax.add_collection(boxes, autolim=False)


def _draw_bars(ax: Axes, bars: pd.DataFrame, time: Time, series: Sequence[Series]) -> None:
    """Draw the runs of a row: start-up light, the rest in the colour of the series.

    Runs of unknown start-up are only framed.
    """
    start, end = time.position(bars["start_h"].to_numpy()), time.position(bars["end_h"].to_numpy())
    is_visible = _is_in_panel(ax, start, end)
    has_startup = bars["ready_h"].notna().to_numpy()
    ready = time.position(bars["ready_h"].fillna(bars["end_h"]).to_numpy())
    palette = [to_rgb(one_series.style.colour) for one_series in series] + [to_rgb(style.MUTED)]
    colours, lane = np.array(palette)[bars["series"].to_numpy()], bars["lane"].to_numpy(float)

    def draw_part(part: np.ndarray, left: np.ndarray, right: np.ndarray, **options: Any) -> None:
        _draw_boxes(
            ax, left[part], right[part], lane[part], rasterized=len(bars) > MAX_VECTOR_BARS, **options
        )

    is_divided, is_framed = is_visible & has_startup, is_visible & ~has_startup
    light = _lighten(colours[is_divided])
    draw_part(is_divided, start, ready, height=STARTUP_BAR, facecolors=light)
    draw_part(is_divided, ready, end, facecolors=colours[is_divided])
    frame = {"facecolors": "white", "edgecolors": colours[is_framed], "linewidths": 0.6}
    draw_part(is_framed, start, end, **frame)


def _lighten(colour: np.ndarray) -> np.ndarray:
    return 1 - LIGHT_SHARE * (1 - colour)


def draw_cuts(ax: Axes, time: Time, height: float | None) -> None:
    """Draw long gaps, hatched, with their duration at this height; None omits the duration."""
    for start, end in time.cuts:
        left, right = (float(position) for position in time.position(np.array([start, end])))
        if right < ax.get_xlim()[0] or left > ax.get_xlim()[1]:
            continue
        ax.axvspan(left, right, facecolor="white", edgecolor=style.GRID, hatch="//////", linewidth=0)
        middle = (left + right) / 2
        if height is None or not ax.get_xlim()[0] <= middle <= ax.get_xlim()[1]:
            continue
        text = ax.text(middle, height, format_duration(3600 * (end - start)))
        text.set(rotation=90, ha="center", va="center", fontsize=style.SMALL_FONT_SIZE, color=style.INK)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})


def _discarded_attempts(ran: pd.DataFrame) -> pd.DataFrame:
    """Return where first attempts of repeated runs were, which left no record: start, end (h) and runs.

    Runs are in the order of their plan, so first attempts lie between the planned neighbours of their runs.
    Without such a gap, as where several runs share the time, nothing is returned for them.
    """
    planned = ran.sort_index()
    is_repeated = planned["attempt"].fillna(1) > 1
    rows = []
    for _, stretch in planned[is_repeated].groupby((~is_repeated).cumsum()[is_repeated]):
        before, after = planned[planned.index < stretch.index[0]], planned[planned.index > stretch.index[-1]]
        if len(before) and len(after) and before["end_h"].iloc[-1] < after["start_h"].iloc[0]:
            rows.append((before["end_h"].iloc[-1], after["start_h"].iloc[0], len(stretch)))
    return pd.DataFrame(rows, columns=["start_h", "end_h", "runs"])


def _draw_discarded(ax: Axes, time: Time, discarded: pd.DataFrame) -> None:
    """Hatch the times of discarded attempts, over all lanes."""
    for start, end in discarded[["start_h", "end_h"]].itertuples(index=False):
        left, right = (float(position) for position in time.position(np.array([start, end])))
        if right > ax.get_xlim()[0] and left < ax.get_xlim()[1]:
            span = ax.axvspan(left, right, facecolor="none", edgecolor=style.MUTED, hatch=DISCARDED_HATCH)
            span.set(linewidth=0, zorder=0)


def _draw_symbols(ax: Axes, bars: pd.DataFrame, time: Time) -> None:
    """Draw a symbol on the upper edge of the first bar of every run that did not succeed."""
    bad = bars[bars["status"].isin(SYMBOLS)].drop_duplicates("run")
    middle = time.position(((bad["start_h"] + bad["end_h"]) / 2).to_numpy())
    is_visible = _is_in_panel(ax, middle, middle)
    for status, marker in SYMBOLS.items():
        is_shown = is_visible & (bad["status"] == status).to_numpy()
        symbols = ax.plot(
            middle[is_shown],
            bad["lane"].to_numpy(float)[is_shown] - BAR / 2,
            rasterized=len(bars) > MAX_VECTOR_BARS,
            scalex=False,
            scaley=False,
            zorder=4,
            clip_on=False,
            **_symbol_style(marker),
        )
        symbols[0].set_in_layout(False)


def _symbol_style(marker: str) -> dict[str, Any]:
    return style.dots(marker, 3.6, style.INK, 0.4) | {"markeredgecolor": "white"}


def _legend_handles(ran: pd.DataFrame, series: Sequence[Series]) -> list[Patch | Line2D]:
    """Return legend entries: series that ran, start-up and the rest, and symbols with their counts.

    Patches of both parts are framed, because without a frame they look like grey series.
    """
    has_startup = ran["ready_h"].notna()
    handles: list[Patch | Line2D] = [
        Patch(facecolor=one_series.style.colour, label=one_series.name)
        for one_series in series
        if len(one_series.select(ran))
    ]
    if has_startup.any():
        muted = np.array(to_rgb(style.MUTED))
        handles += [
            Patch(facecolor=tuple(_lighten(muted)), edgecolor=style.INK, label="start-up"),
            Patch(facecolor=tuple(muted), edgecolor=style.INK, label="rest of the run"),
        ]
    if not has_startup.all():
        handles.append(Patch(facecolor="white", edgecolor=style.MUTED, label="unknown start-up"))
    counts = ran["status"].value_counts()
    handles += [
        Line2D([], [], label=f"{status} ({counts[status]})", **_symbol_style(marker))
        for status, marker in SYMBOLS.items()
        if status in counts
    ]
    return handles


def _span_note(ran: pd.DataFrame) -> str:
    """Return how long the campaign took, the share of time in runs, and the longest gap."""
    first = ran["at"].min()
    total = float(ran["end_h"].max())
    last = first + pd.Timedelta(hours=total)
    gaps = _gaps(ran)
    lengths = np.diff(gaps, axis=1)
    until = f"{last:%H:%M}" if last.date() == first.date() else f"{last:%Y-%m-%d %H:%M}"
    longest = ""
    if len(lengths):
        after = _ended_block(ran, float(gaps[lengths.argmax(), 0]))
        longest = f"; longest gap {format_duration(3600 * lengths.max())}{after}"
    share = 1 - lengths.sum() / total if total else 1.0
    took = f"{100 * share:.0f} % of {format_duration(3600 * total)} in runs{longest}"
    text = f"{number_of(len(ran), 'run')} from {first:%Y-%m-%d %H:%M} to {until} UTC, {took}."
    return Note("campaign-span", text, runs=len(ran), first=first, total_s=3600 * total, share=share)


def _ended_block(ran: pd.DataFrame, hours: float) -> str:
    """Return after which block there is a gap that begins at `hours`; "" within a block."""
    before, after = (
        ran.loc[is_there, "block"] for is_there in (ran["end_h"] <= hours, ran["start_h"] > hours)
    )
    if before.isna().any() or after.isna().any() or not before.max() < after.min():
        return ""
    return f" after block {before.max():g}"


def _repeated_note(n_discarded: int) -> str:
    text = f"{number_of(n_discarded, 'run')} {'was' if n_discarded == 1 else 'were'} repeated later."
    return Note("runs-repeated", text, runs=n_discarded) if n_discarded else ""


def _not_drawn_notes(runs: pd.DataFrame, ran: pd.DataFrame) -> list[str]:
    """Return which runs and attempts are not drawn."""
    n_without_times, n_retried = len(runs) - len(ran), int(ran["unfinished_attempts"].notna().sum())
    notes: list[str] = []
    if n_without_times:
        text = f"Not drawn: {number_of(n_without_times, 'run')} without a start or an end."
        notes.append(Note("runs-without-times", text, runs=n_without_times))
    if n_retried:
        runs_text = number_of(n_retried, "run")
        text = f"{runs_text} had earlier attempts, which recorded no times and are not drawn."
        notes.append(Note("earlier-attempts", text, runs=n_retried))
    return notes
