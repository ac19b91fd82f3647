"""Residuals of log epoch times within cells: against normal quantiles, against the cell's mean, over the order of runs."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from analysis.checks import residuals
from analysis.measured import Records, successful
from common.notes import Note
from common.text import number_of
from declared.figures import Declared
from figures import panels, style

HEIGHT_IN = 2.1
MOST_VECTOR = 2000  # runs; more dots than this would make a file that no one opens
MOST_BANDS = 60
LOG_FROM_RATIO = 5
DOT: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 1.6,
    "color": "#004488",
    "markeredgewidth": 0,
    "alpha": 0.7,
}
OUTLIER: dict[str, Any] = {
    "linestyle": "none",
    "marker": "x",
    "markersize": 4,
    "color": "#bb5566",
    "markeredgewidth": 1.0,
}
BAND = "#eeeeee"
WHAT = (
    "Residuals of log epoch times. Runs minus the mean of their cell (roughly in %), against normal quantiles, the cell's mean, and the "
    "order of starts."
)
ONE_BY_ONE = (
    "Outliers are searched one after the other, because an outlier pulls the mean of its cell away from the other runs; the table of checks "
    "lists them."
)
NO_SPREAD = Note("no-spread", "no two runs of a cell differ")
HOW = (
    "Left: externally studentized residuals; normal ones lie on the line. Middle: a funnel shape means that the spread changes with the time. "
    "Right: {order}; {bands}"
)


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Three panels beside each other. The figure and its caption; `asked` says nothing that matters here."""
    runs = records.runs
    data = residuals(runs)
    data = data[data["studentized"].notna()]
    column = "session" if data["session"].notna().all() and len(data) else "block"
    how = HOW.format(order=_order(data), bands=_bands(data, column))
    if data.empty:
        return panels.not_drawn(runs, panels.NO_SUCCESS if successful(runs).empty else NO_SPREAD)
    drawn = style.figure(style.PAGE_IN, HEIGHT_IN)
    normal, fitted, order = drawn.subplots(1, 3)
    percent = 100 * data["residual"]
    _dots(normal, data["normal_quantile"], data["studentized"], data["outlier"])
    ends = np.array([data["normal_quantile"].min(), data["normal_quantile"].max()])
    normal.plot(ends, ends, color=style.MUTED, linewidth=0.7, zorder=1)
    normal.set_xlabel("normal quantile")
    normal.set_ylabel("studentized residual")
    _dots(fitted, np.exp(data["fitted_log"]), percent, data["outlier"])
    if np.ptp(data["fitted_log"]) > math.log(LOG_FROM_RATIO):
        fitted.set_xscale("log")
        fitted.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        fitted.xaxis.set_minor_locator(NullLocator())
        fitted.xaxis.set_major_formatter("{x:g}")
    fitted.set_xlabel("geometric mean of the cell (s)")
    fitted.set_ylabel("residual (%)")
    _dots(order, data["order"], percent, data["outlier"])
    _shade(order, data, column)
    order.set_xlabel("run, in order")
    order.set_ylabel("residual (%)")
    for ax in (fitted, order):
        ax.axhline(0, color=style.MUTED, linewidth=0.7, zorder=1)
    if data["outlier"].any():
        drawn.legend(handles=[Line2D([], [], label="outlier", **OUTLIER)], loc="outside upper center")
    return drawn, panels.caption(runs, WHAT, _outliers(data), notes=[how, ONE_BY_ONE], with_intervals=False)


def _dots(ax: Axes, x: pd.Series, y: pd.Series, outlier: pd.Series) -> None:
    ax.plot(x[~outlier], y[~outlier], rasterized=len(x) > MOST_VECTOR, zorder=2, **DOT)
    ax.plot(x[outlier], y[outlier], zorder=3, **OUTLIER)
    ax.grid(True)


def _shade(ax: Axes, data: pd.DataFrame, column: str) -> None:
    """Every other session (or block) on grey, with its mean as a line."""
    change = data[column].ne(data[column].shift()).cumsum()
    if change.nunique() > MOST_BANDS:
        return
    for number, part in data.groupby(change):
        ends = [part["order"].min() - 0.5, part["order"].max() + 0.5]
        if number % 2 == 0:
            ax.axvspan(*ends, color=BAND, linewidth=0, zorder=0)
        ax.plot(ends, [100 * part["residual"].mean()] * 2, color=style.INK, linewidth=1.0, zorder=4)


def _order(data: pd.DataFrame) -> str:
    return "in the order in which runs started" if data["by_clock"].all() else "in the planned order of runs"


def _bands(data: pd.DataFrame, column: str) -> str:
    if data[column].ne(data[column].shift()).sum() > MOST_BANDS:
        return f"{column}s change too often to be shown."
    return f"white and grey bands are {column}s, with a line at the mean of each."


def _outliers(data: pd.DataFrame) -> str:
    count = int(data["outlier"].sum())
    if not count:
        return Note("no-outlier", "No run is an outlier (p < 5 % after Bonferroni's correction).")
    text = f"Crosses: {number_of(count, 'outlier')} (p < 5 % after Bonferroni's correction), kept."
    return Note("outliers", text, runs=count)
