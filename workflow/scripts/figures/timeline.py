"""The campaign as it ran: a bar for every run over the hours since the first one started, and what went wrong."""

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

from analysis.measured import Records
from common.notes import Note
from common.text import duration, number_of
from declared.figures import Declared
from figures import panels, style
from figures.panels import Series
from figures.view import View, filtered, view

LANE_IN = 0.12
BELOW_ROW_IN = 0.2
TALLEST_IN = 8.2
BAR, NARROW = 0.78, 0.44  # of a lane: a bar, and its start-up, which is told from others' training in grey, too
RUNS_IN_COLUMN, RUNS_IN_ROW = 60, 90
MOST_LANES = 24
MOST_VECTOR = 2000  # runs; more bars than this would make a file that no one opens
CUT_FROM = 0.15  # a gap that is longer than this share of the time in runs is cut,
CUT_WIDTH = 0.03  # to this share of a row
MOST_CUTS = 12
LIGHT = 0.4  # of the colour is left in a start-up
BANDS = ("#e4e4e4", "#c4c4c4")
BAND_FONT = 5
TICKS = (4, 8)  # of a column, of a page
ROUND_ROWS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
ROUND_TICKS = (1, 2, 2.5, 5, 10)
UNITS = ((1.0, "hours"), (1 / 60, "minutes"), (1 / 3600, "seconds"))
FEWEST_UNITS = 2  # that a campaign lasts, of the unit of its axis
SYMBOLS = {"failed": "X", "timeout": "D", "invalid": "o"}
NOT_TOLD = "host not told"
WHAT = "The campaign over time. Each bar is a run{}."
HOW = (
    "The light, narrow part of a bar is start-up, until all ranks reached the first barrier; the dark part is the rest."
)
CUTS = Note("gaps-cut", "Hatched: gaps that are cut, with what they last.")
IN_ROWS = Note("rows-go-on", "Time goes on from row to row.")
NOT_STARTED = Note("not-started", "no run started")
NO_CLOCK = Note("no-clock", "no run tells when it started and ended")
COVERED = Note("bars-cover", "Bars of runs in one lane that ran at the same time cover each other.")
WHITE = (
    "White: no run, for example while a session starts, the network is swept, or an attempt runs that leaves no record."
)


@dataclass(frozen=True)
class Time:
    """The axis of time: hours since the first start at `hours` stand at `axis`, linear between; `cuts` are the long gaps."""

    hours: np.ndarray
    axis: np.ndarray
    cuts: np.ndarray

    def at(self, hours: np.ndarray | float) -> np.ndarray:
        """Where these hours stand."""
        return np.interp(hours, self.hours, self.axis)

    def ticks(self, low: float, high: float, most: int, unit: float = 1.0) -> tuple[list[float], list[str]]:
        """Places and texts of about `most` round numbers of the unit, so many hours, between two places; none within a cut."""
        step = unit * _round((high - low) / most / unit, ROUND_TICKS)
        found: list[tuple[float, str]] = []
        for start, end in self.hours.reshape(-1, 2):
            for count in range(math.ceil(start / step - 1e-9), math.floor(end / step + 1e-9) + 1):
                place = float(self.at(count * step))
                apart = not found or place - found[-1][0] > step / 2
                if apart and low - 1e-9 <= place <= high + 1e-9:
                    found.append((place, f"{count * step / unit:.6g}"))
        return [place for place, _ in found], [text for _, text in found]


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Lanes are hosts, or series on one machine; the axis goes on in rows where there are many runs. Figure and caption."""
    seen = replace(view(records.runs, asked), runs=filtered(records.every_run, asked))
    ran = that_ran(seen.runs)
    if ran.empty:
        return panels.not_drawn(seen.runs, NOT_STARTED if seen.runs["started_at"].isna().all() else NO_CLOCK)
    lanes, bars = _lanes(ran, seen.series)
    by_host = lanes[0] != seen.series[0].name
    strips, time = _strips(ran), axis_of(ran)
    page = len(ran) > RUNS_IN_COLUMN
    width = style.PAGE_IN if page else style.COLUMN_IN
    handles = _legend(ran, seen.series if by_host else [])
    above = panels.legend_height(len(handles), width)
    row_in = LANE_IN * (len(lanes) + len(strips)) + BELOW_ROW_IN
    rows, length = _rows(float(time.axis[-1]), len(ran), int((TALLEST_IN - above) / row_in))
    unit, unit_name = unit_of(time)
    drawn = style.figure(width, rows * row_in + 0.1 + above)
    axes = drawn.subplots(rows, 1, squeeze=False, sharey=True)[:, 0]
    for row, ax in enumerate(axes):
        low, high = row * length, (row + 1) * length
        ax.set_xlim(low, high)
        _bars(ax, bars, time, seen.series)
        for number, bands in enumerate(strips.values()):
            _bands(ax, bands, time, number - len(strips), BAND_FONT / 72 / width * length)
        cuts(ax, time, (len(lanes) - 1) / 2)
        _symbols(ax, bars, time)
        ax.set_xticks(*time.ticks(low, high, TICKS[page], unit))
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(-len(strips), len(lanes)), [*strips, *lanes])
    axes[0].set_ylim(len(lanes) - 0.45, -len(strips) - 0.55)
    axes[-1].set_xlabel(f"{unit_name} since the first run started")
    drawn.legend(handles=handles, loc="outside upper center", ncols=panels.legend_columns(width))
    return drawn, seen.caption(
        _heading(seen, by_host),
        _span(ran),
        CUTS if len(time.cuts) else "",
        _covered(bars),
        *_not_drawn(seen.runs, ran),
        notes=[HOW, IN_ROWS if rows > 1 else "", WHITE, _bands_sentence(ran, strips)],
        with_intervals=False,
    )


def _heading(seen: View, by_host: bool) -> str:
    """What the figure shows, and what its lanes are."""
    lanes = ", on each of its nodes" if by_host else f", in lanes by {seen.told_apart.partition(' (')[0]}"
    return Note("heading", WHAT.format(lanes), lanes=["host"] if by_host else seen.colour)


def that_ran(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that tell when they started and ended, in the order in which they started.

    Hours since the first start: start_h, ready_h (end of start-up; NaN where it is not told), end_h.
    """
    start, end = (
        pd.to_datetime(runs[name], utc=True, format="ISO8601", errors="coerce") for name in ("started_at", "ended_at")
    )
    known = start.notna() & end.notna() & (end >= start)
    ran = runs[known].assign(at=start[known]).sort_values("at", kind="stable")
    since = (start[ran.index] - start[known].min()).dt.total_seconds()
    lasted = (end - start)[ran.index].dt.total_seconds()
    ready = ran["startup_s"].astype(float).clip(upper=lasted)
    return ran.assign(start_h=since / 3600, ready_h=(since + ready) / 3600, end_h=(since + lasted) / 3600)


def _lanes(ran: pd.DataFrame, series: Sequence[Series]) -> tuple[list[str], pd.DataFrame]:
    """The names of the lanes from the top, and a row for each bar: run (its place in `ran`), lane, series, hours.

    Lanes are hosts where runs were on several, and as many as can be told apart; else series.
    """
    bars = ran[["start_h", "ready_h", "end_h", "status"]].reset_index(drop=True)
    bars["run"] = np.arange(len(ran))
    bars["series"] = -1
    for number, one in enumerate(series):
        bars.loc[ran.index.isin(one.of(ran).index), "series"] = number
    hosts = ran["hosts"].fillna("").str.split().reset_index(drop=True)
    names = sorted({name for several in hosts for name in several}, key=_by_number)
    if not 1 < len(names) <= MOST_LANES:
        others = (bars["series"] < 0).any()
        lane = bars["series"].where(bars["series"] >= 0, len(series))
        return [*(one.name for one in series), *(["others"] if others else [])], bars.assign(lane=lane)
    place = {name: lane for lane, name in enumerate(names)} | {NOT_TOLD: len(names)}
    untold = (hosts.str.len() == 0).any()
    each = hosts.map(lambda several: several or [NOT_TOLD]).explode().map(place)
    bars = bars.loc[each.index].assign(lane=each.to_numpy(int)).reset_index(drop=True)
    return [*names, *([NOT_TOLD] if untold else [])], bars


def _by_number(name: str) -> list[tuple[int, str]]:
    """A key that sorts node2 before node10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _gaps(ran: pd.DataFrame) -> np.ndarray:
    """From when until when no run ran, in hours [gaps, 2]."""
    start, until = ran["start_h"].to_numpy(), np.maximum.accumulate(ran["end_h"].to_numpy())
    after = np.flatnonzero(start[1:] > until[:-1])
    return np.column_stack([until[after], start[after + 1]])


def axis_of(ran: pd.DataFrame) -> Time:
    """The axis over the whole campaign, long gaps cut."""
    total = max(float(ran["end_h"].max()), 1 / 3600)
    gaps = _gaps(ran)
    lengths = gaps[:, 1] - gaps[:, 0]
    long = lengths > CUT_FROM * (total - lengths.sum())
    if long.sum() > MOST_CUTS:
        long[:] = False
    cuts = gaps[long]
    hours = np.concatenate([[0.0], cuts.ravel(), [total]])
    lasts = np.diff(hours)
    lasts[1::2] = CUT_WIDTH * (total - lengths[long].sum()) / math.ceil(len(ran) / RUNS_IN_ROW)
    return Time(hours, np.concatenate([[0.0], np.cumsum(lasts)]), cuts)


def unit_of(time: Time) -> tuple[float, str]:
    """The unit of an axis, in hours, and its name."""
    return next(each for each in UNITS if float(time.hours[-1]) >= FEWEST_UNITS * each[0] or each is UNITS[-1])


def _rows(length: float, runs: int, most: int) -> tuple[int, float]:
    """How many rows the axis goes over, and the length of each: round where there are several."""
    rows = min(math.ceil(runs / RUNS_IN_ROW), max(1, most))
    if rows == 1:
        return 1, length
    width = _round(length / rows, ROUND_ROWS)
    return math.ceil(length / width - 1e-9), width


def _round(least: float, digits: Sequence[float]) -> float:
    """The smallest of `digits`, times a power of ten, that is at least this."""
    ten = 10.0 ** math.floor(math.log10(least))
    return next(ten * digit for digit in digits if ten * digit >= least * (1 - 1e-9))


def _within(ax: Axes, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """What of it reaches into the panel."""
    left, right = ax.get_xlim()
    return (high >= left) & (low <= right)


def _boxes(
    ax: Axes, left: np.ndarray, right: np.ndarray, y: np.ndarray | float, *, height: float = BAR, **look: Any
) -> None:
    """Bars as one collection: thousands are drawn at once."""
    if not len(left):
        return
    middle = np.broadcast_to(y, left.shape)
    top, bottom = middle - height / 2, middle + height / 2
    corners = np.stack([left, bottom, left, top, right, top, right, bottom], axis=1).reshape(-1, 4, 2)
    boxes = PolyCollection(list(corners), **({"linewidths": 0} | look))
    boxes.set_in_layout(False)
    ax.add_collection(boxes, autolim=False)


def _bars(ax: Axes, bars: pd.DataFrame, time: Time, series: Sequence[Series]) -> None:
    """The runs of a row: start-up light, the rest in the series' colour; only framed where start-up is not told."""
    start, end = time.at(bars["start_h"].to_numpy()), time.at(bars["end_h"].to_numpy())
    here = _within(ax, start, end)
    told = bars["ready_h"].notna().to_numpy()
    ready = time.at(bars["ready_h"].fillna(bars["end_h"]).to_numpy())
    full = np.array([to_rgb(one.look.colour) for one in series] + [to_rgb(style.MUTED)])[bars["series"].to_numpy()]
    lane = bars["lane"].to_numpy(float)
    look = {"rasterized": len(bars) > MOST_VECTOR}
    shown = here & told
    _boxes(ax, start[shown], ready[shown], lane[shown], height=NARROW, facecolors=_light(full[shown]), **look)
    _boxes(ax, ready[shown], end[shown], lane[shown], facecolors=full[shown], **look)
    framed = here & ~told
    _boxes(
        ax,
        start[framed],
        end[framed],
        lane[framed],
        facecolors="white",
        edgecolors=full[framed],
        linewidths=0.6,
        **look,
    )


def _light(colour: np.ndarray) -> np.ndarray:
    return 1 - LIGHT * (1 - colour)


def _strips(ran: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Blocks and sessions in time: name of the strip -> a row for each stretch of runs of one, with hours and its number.

    None where there is one of a kind; sessions only, where they are not the blocks.
    """
    session = pd.Series(pd.factorize(ran["session"])[0] + 1, index=ran.index)
    numbers = {"session": session, "block": ran["block"].astype(int)}
    if len(pd.DataFrame(numbers).drop_duplicates()) == ran["block"].nunique() == session.nunique():
        del numbers["session"]
    strips = {}
    for name, number in numbers.items():
        if number.nunique() > 1:
            stretch = number.ne(number.shift()).cumsum()
            by = ran.assign(number=number).groupby(stretch)
            strips[name] = by.agg(start_h=("start_h", "min"), end_h=("end_h", "max"), number=("number", "first"))
    return strips


def _bands(ax: Axes, bands: pd.DataFrame, time: Time, y: float, digit: float) -> None:
    """One strip: light and dark in turn, with the number where there is room for it; a digit is narrower than `digit`."""
    left, right = time.at(bands["start_h"].to_numpy()), time.at(bands["end_h"].to_numpy())
    here = _within(ax, left, right)
    shade = np.array([to_rgb(colour) for colour in BANDS])[np.arange(len(bands)) % 2]
    _boxes(ax, left[here], right[here], y, facecolors=shade[here], rasterized=len(bands) > MOST_VECTOR)
    low, high = ax.get_xlim()
    for start, end, number in zip(left[here], right[here], bands["number"][here], strict=True):
        start, end = max(start, low), min(end, high)
        if end - start > digit * len(str(number)):
            ax.text((start + end) / 2, y, str(number), fontsize=BAND_FONT, ha="center", va="center_baseline")


def cuts(ax: Axes, time: Time, at: float | None) -> None:
    """Long gaps, hatched, with what they last at this height."""
    for start, end in time.cuts:
        left, right = (float(place) for place in time.at(np.array([start, end])))
        if right < ax.get_xlim()[0] or left > ax.get_xlim()[1]:
            continue
        ax.axvspan(left, right, facecolor="white", edgecolor=style.GRID, hatch="//////", linewidth=0)
        middle = (left + right) / 2
        if at is None or not ax.get_xlim()[0] <= middle <= ax.get_xlim()[1]:
            continue
        said = ax.text(middle, at, duration(3600 * (end - start)))  # may be higher than few lanes
        said.set(rotation=90, ha="center", va="center", fontsize=BAND_FONT, color=style.INK)
        said.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})


def _symbols(ax: Axes, bars: pd.DataFrame, time: Time) -> None:
    """A symbol on the first bar of every run that did not succeed."""
    bad = bars[bars["status"].isin(SYMBOLS)].drop_duplicates("run")
    middle = time.at(((bad["start_h"] + bad["end_h"]) / 2).to_numpy())
    here = _within(ax, middle, middle)
    for status, marker in SYMBOLS.items():
        shown = here & (bad["status"] == status).to_numpy()
        ax.plot(
            middle[shown],
            bad["lane"].to_numpy(float)[shown],
            rasterized=len(bars) > MOST_VECTOR,
            scalex=False,
            scaley=False,
            zorder=4,
            **_symbol(marker),
        )


def _symbol(marker: str) -> dict[str, Any]:
    return {
        "linestyle": "none",
        "marker": marker,
        "markersize": 4.5,
        "color": style.INK,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def _legend(ran: pd.DataFrame, series: Sequence[Series]) -> list[Patch | Line2D]:
    """The series that ran, what is light and dark (framed: in grey they could be series), and the symbols with how many there are of each."""
    told = ran["ready_h"].notna()
    handles: list[Patch | Line2D] = [
        Patch(facecolor=one.look.colour, label=one.name) for one in series if len(one.of(ran))
    ]
    if told.any():
        muted = np.array(to_rgb(style.MUTED))
        handles += [
            Patch(facecolor=tuple(_light(muted)), edgecolor=style.INK, label="start-up"),
            Patch(facecolor=tuple(muted), edgecolor=style.INK, label="training"),
        ]
    if not told.all():
        handles.append(Patch(facecolor="white", edgecolor=style.MUTED, label="start-up not told"))
    counts = ran["status"].value_counts()
    handles += [
        Line2D([], [], label=f"{status} ({counts[status]})", **_symbol(marker))
        for status, marker in SYMBOLS.items()
        if status in counts
    ]
    return handles


def _span(ran: pd.DataFrame) -> str:
    """How long it took, how much of it was in runs, and the longest gap."""
    first = ran["at"].min()
    total = float(ran["end_h"].max())
    last = first + pd.Timedelta(hours=total)
    lengths = np.diff(_gaps(ran), axis=1)
    until = f"{last:%H:%M}" if last.date() == first.date() else f"{last:%Y-%m-%d %H:%M}"
    longest = f"; longest gap {duration(3600 * lengths.max())}" if len(lengths) else ""
    share = 1 - lengths.sum() / total if total else 1.0
    took = f"{100 * share:.0f} % of {duration(3600 * total)} in runs{longest}"
    text = f"{number_of(len(ran), 'run')} from {first:%Y-%m-%d %H:%M} to {until} UTC, {took}."
    longest_s = 3600 * float(lengths.max()) if len(lengths) else 0.0
    facts = {"first": first, "last": last, "total_s": 3600 * total, "share": share, "longest_gap_s": longest_s}
    return Note("campaign-span", text, runs=len(ran), **facts)


def _bands_sentence(ran: pd.DataFrame, strips: dict[str, pd.DataFrame]) -> str:
    sessions = ran["session"].nunique()
    counted = f"{number_of(ran['block'].nunique(), 'block')} in {number_of(sessions, 'session')}" if sessions else ""
    if "session" not in strips and "block" in strips and sessions > 1:
        counted = f"{number_of(sessions, 'block')}, each in a session of its own"
    facts = {"strips": list(strips), "blocks": ran["block"].nunique(), "sessions": sessions}
    if not strips:
        return Note("blocks", f"{counted}.", **facts) if counted else ""
    return Note("blocks", f"Grey strips: {counted}." if counted else "Grey strip: blocks.", **facts)


def _covered(bars: pd.DataFrame) -> str:
    """A sentence where runs of one lane ran at the same time."""
    ordered = bars.sort_values(["lane", "start_h"])
    until = ordered.groupby("lane")["end_h"].cummax().groupby(ordered["lane"]).shift()
    if not (ordered["start_h"] < until - 1 / 3600).any():
        return ""
    return COVERED


def _not_drawn(runs: pd.DataFrame, ran: pd.DataFrame) -> list[str]:
    never, earlier = len(runs) - len(ran), int(ran["unfinished_attempts"].notna().sum())
    said: list[str] = []
    if never:
        text = f"Not drawn: {number_of(never, 'run')} without a start or an end."
        said.append(Note("runs-without-times", text, runs=never))
    if earlier:
        text = f"{number_of(earlier, 'run')} had earlier attempts, which left no times and are not drawn."
        said.append(Note("earlier-attempts", text, runs=earlier))
    return said
