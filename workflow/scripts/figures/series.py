"""Epoch time over one numeric factor: the study's series, panels by the other factors that vary."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import tables
from analysis.measured import (
    Records,
    bases,
    combination_text,
    level_text,
    series_factors,
    successful,
    title,
    title_with_unit,
    varying,
)
from analysis.pooling import Pooling, pooled
from analysis.speedup import base_cells
from figures import panels, style
from figures.panels import Series

PANEL_IN = 1.45
GAP = 0.04
BOUND = (0, (1, 1.5))
MOST_BASES = 6  # named in a caption


@dataclass(frozen=True)
class _Scale:
    """The x axis: where each level stands, and how far apart the series stand at one level."""

    positions: dict[int, float]
    gap: float
    width: float

    @property
    def beside(self) -> float:
        return 0.8 * self.gap


def draw(records: Records, factor: str, what: str, with_bases: bool = False) -> tuple[Figure, str]:
    """The figure of epoch time over `factor` and its caption, which begins with `what`.

    `with_bases` draws in each panel the undistributed bases of its cells, and what their time would be on more replicas
    if nothing were lost.
    """
    runs = records.runs
    ok = successful(runs)
    if ok.empty:
        return panels.nothing(style.figure(style.COLUMN_IN, 1.4)), panels.caption(runs, what)
    if runs[factor].nunique() == 1:
        held = f"{title(factor)} is {level_text(runs[factor].iloc[0])} in all cells"
        return panels.nothing(style.figure(style.COLUMN_IN, 1.4), held), panels.caption(
            runs, what, f"Not drawn: {held}."
        )
    around = varying(runs, but=[*series_factors(runs), factor])
    every = panels.combinations(runs, around)
    several = [levels for levels in every if panels.at(runs, levels)[factor].nunique() > 1]
    if all(panels.at(ok, levels).empty for levels in several):  # better one level than no run
        several = [levels for levels in every if len(panels.at(ok, levels))]
    shown, unseen = panels.most(several)
    series = panels.all_series(runs)
    undistributed = bases(runs) if with_bases else []
    found = base_cells(runs) if with_bases else {}
    bound = [Line2D([], [], color=style.MUTED, linewidth=0.7, linestyle=BOUND, label="base / replicas")]
    rows, columns, width = panels.layout(len(shown))
    drawn_cells = {cell for levels in shown for cell in panels.at(runs, levels)["cell"]}
    drawn_cells |= {found[cell] for cell in drawn_cells if cell in found}
    told = [one for one in series if set(one.of(ok)["cell"]) & drawn_cells]
    extra = bound if any(cell in found for cell in drawn_cells) else []
    above = panels.legend_height(len([*told, *extra]), width)
    drawn = style.figure(width, rows * (PANEL_IN + panels.titles_height(shown)) + 0.15 + above)
    scaled_by = panels.scaled_by(around)
    axes = panels.grid(drawn, (rows, columns), len(shown), share_y=not scaled_by)
    scale = _scale(sorted(runs[factor].unique()), len(series))
    lines = [one for one in series if not one.of(runs)["framework"].isin(undistributed).all()]
    shifts = panels.dodge([one.name for one in lines], scale.gap)
    remarks: list[str] = []
    pooling = pooled(runs)
    for ax, levels in zip(axes, shown, strict=True):
        here = panels.at(runs, levels)
        for one in lines:
            _line(ax, one, here, factor, (scale, shifts[one.name]), pooling)
        for cell in dict.fromkeys(found[cell] for cell in here["cell"] if cell in found):
            base = ok[ok["cell"] == cell]
            _base(
                ax,
                next(one for one in series if len(one.of(base))),
                base,
                here.groupby(factor)["replicas"].max(),
                scale,
                pooling,
            )
        if successful(here).empty:
            panels.say(ax, "no successful run")
        ax.set_title(panels.panel_title(levels))
        remarks += panels.time_axis(ax, panels.at(ok, {name: levels[name] for name in scaled_by}), pooling)
        ax.set_xlim(-scale.width / 7, scale.width * 6 / 7)
        ax.set_xticks(list(scale.positions.values()), [str(level) for level in scale.positions])
    for ax in axes[::columns]:
        ax.set_ylabel("epoch time (s)")
    drawn.supxlabel(title_with_unit(factor), fontsize=style.FONT_SIZE)
    panels.legend(drawn, told, extra)
    return drawn, panels.caption(
        runs,
        panels.with_series(what, runs),
        _base_sentence(runs, found, pooling) if with_bases else "",
        *remarks,
        _left_out_sentence([levels for levels in every if levels not in several]),
        unseen,
    )


def _scale(levels: Sequence[int], series: int) -> _Scale:
    """Doublings stand at equal distances where there are any to speak of; series never reach the next level."""
    doubling = len(levels) > 2 and levels[-1] / levels[0] >= 4
    positions = {level: math.log2(level / levels[0]) if doubling else float(level - levels[0]) for level in levels}
    places = list(positions.values())
    width = 1.4 * (places[-1] or 1)
    step = min(np.diff(places), default=1.0)
    return _Scale(positions, min(GAP * width, 0.7 * step / series), width)


def _line(
    ax: Axes, one: Series, runs: pd.DataFrame, factor: str, place: tuple[_Scale, float], pooling: Pooling
) -> None:
    """The means of one series joined from level to level; broken where a planned cell has no successful run.

    `place`: the x axis, and how far the series is shifted on it.
    """
    scale, shift = place
    means, places = [], []
    for level, planned in one.of(runs).groupby(factor):
        ok = successful(planned)
        places.append(scale.positions[level] + shift)
        means.append(panels.interval(ax, one.look, places[-1], ok, pooling, scale.beside) if len(ok) else math.nan)
    if places:
        ax.plot(places, means, color=one.look.colour, linestyle=one.look.line, zorder=2)


def _base(ax: Axes, one: Series, base: pd.DataFrame, replicas: pd.Series, scale: _Scale, pooling: Pooling) -> None:
    """The base's time divided by replicas; where it is undistributed, itself as a point and a horizontal line, too.

    `one` is the series of the runs `base`; `replicas`: how many there are at each level of the x axis.
    """
    look = one.look
    mean = pooling.of(base["cell"].iloc[0]).value
    if bases(base):
        panels.interval(ax, look, min(scale.positions.values()), base, pooling, scale.beside)
        ax.axhline(mean, color=look.colour, linewidth=0.8, linestyle=look.line, zorder=1)
    x = [scale.positions[level] for level in replicas.index]
    ax.plot(x, mean / replicas.to_numpy(float), color=look.colour, linewidth=0.7, linestyle=BOUND, zorder=1)


def _base_sentence(runs: pd.DataFrame, found: dict[str, str], pooling: Pooling) -> str:
    used = successful(runs)[lambda ok: ok["cell"].isin(set(found.values()))]
    if used.empty:
        return "No base of a speed-up succeeded."
    seconds = [f"{cell} {tables.interval(pooling.of(cell))} s" for cell in sorted(set(used["cell"]))]
    lines = "Horizontal lines: the undistributed bases. " if set(used["framework"]) & set(bases(runs)) else ""
    said = f"{lines}Fine dotted lines: the base's time divided by the replicas, as if the exchange cost nothing."
    if len(seconds) > MOST_BASES:
        return f"{said} The {len(seconds)} bases' times are in the table of cells."
    return f"{said} Bases, at the same levels of all other factors that they vary: {', '.join(seconds)}."


def _left_out_sentence(left_out: Sequence[dict[str, Any]]) -> str:
    if not left_out:
        return ""
    names = "; ".join(combination_text(levels) for levels in left_out)
    return f"Not shown, because measured at one level of this axis only: {names}."
