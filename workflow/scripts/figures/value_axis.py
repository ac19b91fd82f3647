"""Scale the axis of a measured quantity, and place round ticks on logarithmic axes."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import Locator, LogLocator, MaxNLocator, NullFormatter

from common.notes import Note
from figures import captions
from figures.marks import Bar

LOG_FROM_RATIO = 20
# Leading digits of labelled ticks of a logarithmic axis, densest first.
TICK_DIGITS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
MIN_ROUND_TICKS = 3  # a logarithmic axis with fewer round ticks gets evenly spaced ones
MAX_TICKS = 6
MANY_TICKS = 9  # on an axis of page width
MAX_MINOR_TICK_DECADES = 3
TICK_EXTENSION = 0.1  # share of a logarithmic axis by which an end moves to reach a tick
MAX_INTERVAL_REACH = 2  # an axis reaches at most this factor beyond the runs to show intervals
AXIS_EXTENSION = 0.3  # share of an axis by which an end moves to show an interval
MIN_ZOOMED_RATIO = 0.9  # ratio of lowest to highest value above which an axis need not start at 0
ZOOMED_MARGIN = 0.3  # share of the range of values, at either end
AXIS_MARGIN = 0.03  # share of a logarithmic axis, at either end, for half a marker
IDEAL_ROOM = 1.1  # factor between the end of an ideal and the end of the axis
MIN_RUNS_FOR_AXIS = 3  # the interval of two runs is too wide to set an axis
# Markers at the lower and the upper end, by axis.
ARROWS: Mapping[str, tuple[str, str]] = {"x": ("<", ">"), "y": ("v", "^")}


def scale_value_axis(
    ax: Axes,
    values: pd.Series,
    means: pd.DataFrame,
    axis: Literal["x", "y"] = "y",
    *,
    logarithmic: bool = False,
    from_zero: bool = True,
    axis_name: str = "time",
) -> list[str]:
    """Scale the axis of a measured quantity, such as time or throughput, and return notes for the caption.

    Call it after `marks.draw_interval`: it puts an arrow on each bar that ends beyond the axis. The axis
    starts at 0, or is logarithmic if the runs span more than LOG_FROM_RATIO. It shows all runs, and intervals
    of MIN_RUNS_FOR_AXIS runs or more as far as MAX_INTERVAL_REACH beyond the runs. It is extended by up to
    AXIS_EXTENSION to show a longer interval as a whole.

    Args:
        ax: The panel.
        values: Values of single runs.
        means: Columns `low`, `high` and `n` of each cell.
        axis: Which axis it is.
        logarithmic: Use a logarithmic axis in any case.
        from_zero: Start a linear axis at 0 even if all values are within MIN_ZOOMED_RATIO of each other.
        axis_name: Name of the axis in the note that it is logarithmic.
    """
    if values.empty:
        return []
    reliable = means[means["n"] >= MIN_RUNS_FOR_AXIS]
    smallest, largest = values.min(), values.max()
    # The Python functions skip NaN, the bounds of a missing interval.
    lowest, highest = min(smallest, reliable["low"].min()), max(largest, reliable["high"].max())
    top = min(highest, MAX_INTERVAL_REACH * largest)
    notes = list[str]()
    if logarithmic or largest / smallest > LOG_FROM_RATIO:
        bottom = max(lowest, smallest / MAX_INTERVAL_REACH)
        notes = [Note("logarithmic-value-axis", f"The {axis_name} axis is logarithmic.")]
        (ax.set_yscale if axis == "y" else ax.set_xscale)("log")
        set_round_ticks(ax.yaxis if axis == "y" else ax.xaxis)
        extension = (top / bottom) ** AXIS_EXTENSION
        bottom, top = (
            extend_end(bottom, means["low"], bottom / extension),
            extend_end(top, means["high"], top * extension),
        )
        room = max(1.1, (top / bottom) ** AXIS_MARGIN)
        limits = _reach_ticks(bottom / room, room * top)
    elif not from_zero and lowest > MIN_ZOOMED_RATIO * highest:
        room = ZOOMED_MARGIN * (highest - lowest)
        limits = lowest - room, highest + room
        notes = [captions.NOT_FROM_ZERO]
    else:
        limits = 0.0, 1.06 * extend_end(top, means["high"], (1 + AXIS_EXTENSION) * top)
    (ax.set_ylim if axis == "y" else ax.set_xlim)(*limits)
    if ((means["high"] > limits[1]) | (means["low"] < limits[0])).any():
        notes.append(captions.BEYOND_AXIS)
        _draw_arrows(ax, axis, limits)
    if ((means["n"] == 1) & means["high"].notna()).any():
        notes.append(captions.SINGLE_RUNS)
    ax.grid(True, axis=axis)
    return notes


def show_ideals(ax: Axes, ideals: Sequence[float]) -> None:
    """Move the ends of a logarithmic y axis to ideal values at most MAX_INTERVAL_REACH beyond them."""
    low, high = ax.get_ylim()
    near = [value for value in ideals if low / MAX_INTERVAL_REACH <= value <= MAX_INTERVAL_REACH * high]
    if near and (min(near) < low or max(near) > high):
        ax.set_ylim(*_reach_ticks(min(low, min(near) / IDEAL_ROOM), max(high, max(near) * IDEAL_ROOM)))


def _reach_ticks(low: float, high: float) -> tuple[float, float]:
    """Return the limits of a logarithmic axis, moved out to the next round ticks if these are near."""
    reach = (high / low) ** TICK_EXTENSION
    ticks = [digit * 10.0**decade for decade in range(-12, 13) for digit in TICK_DIGITS[1]]
    below = [tick for tick in ticks if low / reach <= tick <= low]
    above = [tick for tick in ticks if high <= tick <= high * reach]
    return max(below, default=low), min(above, default=high)


def extend_end(end: float, bounds: pd.Series, furthest: float) -> float:
    """Return the end of an axis, moved out to the last interval bound that is not beyond `furthest`."""
    if furthest > end:
        return float(max(end, bounds[bounds <= furthest].max()))
    return float(min(end, bounds[bounds >= furthest].min()))


def _draw_arrows(ax: Axes, axis: Literal["x", "y"], limits: tuple[float, float]) -> None:
    """Draw an arrow at the end of the axis for each interval that ends beyond it."""
    for bar in [line for line in ax.lines if isinstance(line, Bar)]:
        x, y = (np.asarray(values, float) for values in bar.get_data())
        ends, across = (y, x) if axis == "y" else (x, y)
        for end, limit, is_beyond in zip(
            ARROWS[axis], limits, (ends < limits[0], ends > limits[1]), strict=True
        ):
            if is_beyond.any():
                point = ([across[0]], [limit]) if axis == "y" else ([limit], [across[0]])
                arrow = ax.plot(*point, end, color=bar.get_color(), clip_on=False, zorder=6)[0]
                arrow.set(markersize=2.4, markeredgewidth=0.0)


class RoundTicks(Locator):
    """Place at most `max_ticks` round ticks over the whole range of a logarithmic axis."""

    def __init__(self, max_ticks: int) -> None:
        self.max_ticks = max_ticks

    def __call__(self) -> list[float]:
        """Return the ticks of the current view of the axis."""
        return self.tick_values(*self.axis.get_view_interval())  # type: ignore[union-attr]

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the ticks between two values."""
        low, high = sorted((vmin, vmax))
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in TICK_DIGITS:
            ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
            ticks = [tick for tick in ticks if low <= tick <= high]
            if len(ticks) <= self.max_ticks:
                break
        if len(ticks) >= min(self.max_ticks, max(MIN_ROUND_TICKS, math.ceil(self.max_ticks / 2))):
            return ticks
        if high / low < 10:
            even = MaxNLocator(max(self.max_ticks - 1, 2), steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
            return [float(tick) for tick in even if low <= tick <= high]
        step = math.ceil(len(decades) / self.max_ticks)
        return [10.0**decade for decade in decades if low <= 10.0**decade <= high][::step]


def set_round_ticks(axis: Axis, max_ticks: int = MAX_TICKS) -> None:
    """Label at most `max_ticks` round ticks of a logarithmic axis, over its whole range."""
    axis.set_major_locator(RoundTicks(max_ticks))
    axis.set_minor_locator(LogLocator(10, subs=range(1, 10), numticks=MAX_MINOR_TICK_DECADES + 1))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter("{x:g}")
