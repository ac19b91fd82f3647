"""Predicted against measured epoch time of cells that were left out of the fit: a panel for each method."""

import itertools
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from analysis import conditions
from analysis.measured import Records
from declared.figures import Declared
from figures import panels, style
from figures.panels import Series
from prediction.held_out import KINDS, ON_LOOPBACK, common
from prediction.physics import pooled_cv

PANEL_IN = 1.75
MARGIN = 1.35  # of the axes beyond the shortest and the longest measured time
BEYOND = 3.0  # how far beyond them predictions are drawn where they are
WHAT = (
    "Predicted against measured epoch time of cells on several nodes that were left out of the fit. Each panel is a method, "
    "and each marker a cell, once for each time it was left out. Both axes are logarithmic. On the line, prediction and measurement agree. "
    "MAPE is the mean absolute error in per cent, over all markers of a panel."
)
OTHERS = (
    "If a method does not predict all cells, its panel says how many. Faint markers are cells that not every method predicts; the "
    "second MAPE is over the other cells, which are common to all methods."
)


def draw(records: Records, asked: Declared) -> tuple[Figure, str]:
    """The figure and its caption."""
    runs, cells = records.runs, records.predictions
    left = cells[cells["kind"].isin(KINDS)] if len(cells) else pd.DataFrame(columns=["method", "predicted_s"])
    methods = [name for name, own in left.groupby("method", sort=False) if own["predicted_s"].notna().any()]
    if not methods:
        text = "nothing was left out and predicted"
        return panels.nothing(style.figure(style.COLUMN_IN, 1.4), text), panels.caption(runs, WHAT, of_time=None)
    wanted = len(left[["left_out", "cell"]].drop_duplicates())
    left = left.assign(common=common(left))[left["predicted_s"].notna()]
    partly = not left["common"].all()
    kinds = [kind for kind in KINDS if kind in set(left["kind"])]
    looks = dict(zip(KINDS, style.TREATMENT_LOOKS, strict=False))
    series = [Series(kind, {"kind": kind}, looks[kind]) for kind in kinds]
    rows, columns, width = panels.layout(len(methods), 3)
    above = panels.legend_height(len(series), width)
    drawn = style.figure(width, rows * (PANEL_IN + (3 if partly else 2) * panels.TITLE_ROW_IN) + 0.2 + above)
    axes = panels.grid(drawn, (rows, columns), len(methods))
    spread = pooled_cv(left.drop_duplicates("cell"), of_means=True)
    low, high = left["epoch_time_s"].min() / MARGIN, left["epoch_time_s"].max() * MARGIN
    bottom, top = low / BEYOND, high * BEYOND
    outside = 0
    for ax, method in zip(axes, methods, strict=True):
        own = left[left["method"] == method]
        ends = np.array([low, high])
        if np.isfinite(spread):
            ax.fill_between(ends, ends * (1 - 1.96 * spread), ends * (1 + 1.96 * spread), color=style.GRID, linewidth=0)
        ax.plot(ends, ends, color=style.MUTED, linewidth=0.7, zorder=2)
        for one, of_all in itertools.product(series, (False, True)):
            points = one.of(own)[lambda data, of_all=of_all: data["common"] == of_all]
            if (
                points.empty
            ):  # a line of no points has a place all the same, far off, for which the layout would make room
                continue
            shown = points["predicted_s"].clip(bottom * 1.1, top / 1.1)
            look = panels.marker(one.look) | {"markersize": 2.2, "alpha": 0.75 if of_all else 0.25}
            ax.plot(points["epoch_time_s"], shown, zorder=3, clip_on=False, **look)
            outside += int((shown != points["predicted_s"]).sum())
        ax.set_title("\n".join([method, *_errors(own, wanted, partly)]))
        _scales(ax, (low, high), (bottom, top))
    for ax in axes[::columns]:
        ax.set_ylabel("predicted (s)")
    drawn.supxlabel("measured epoch time (s)", fontsize=style.FONT_SIZE)
    panels.legend(drawn, series, lines=False)
    band = (
        f"Band: 1.96 times the pooled coefficient of variation of a cell's mean ({100 * spread:.1f} %)."
        if np.isfinite(spread)
        else ""
    )
    cut = f"Predictions beyond the axes, or below 0, are drawn at the edges: {outside}." if outside else ""
    checked = ON_LOOPBACK if conditions.emulated(runs) else ""
    return drawn, panels.caption(
        runs, WHAT, OTHERS if partly else "", checked, band, f"Left out: {', '.join(kinds)}.", cut, of_time=None
    )


def _errors(own: pd.DataFrame, asked: int, partly: bool) -> Iterator[str]:
    """The lines of a panel's title that say its MAPE: over all its cells of those `asked`, and over those common to all."""
    some = "" if len(own) == asked else f", {len(own)} of {asked}"
    yield f"MAPE {100 * own['error'].abs().mean():.1f} %{some}"
    if partly:
        both = own.loc[own["common"], "error"]
        yield f"common {len(both)}: {100 * both.abs().mean():.1f} %" if len(both) else "no cell is common"


def _scales(ax: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    for axis, set_scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
        set_scale("log")
        axis.set_major_locator(
            LogLocator(10, subs=(1.0, 2.0, 5.0) if axis is ax.xaxis and x[1] / x[0] < 100 else (1.0,))
        )
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    ax.set_xlim(*x)
    ax.set_ylim(*y)
    ax.grid(True)
