"""Epoch time over one factor: a line for each series, panels by the other factors that vary."""

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
from analysis.conditions import SITE_DEFAULTS, join_names
from analysis.measured import (
    bases,
    cells,
    level_text,
    levels_in_order,
    successful,
    title,
    title_with_unit,
    treatment_text,
    varying,
)
from analysis.pooling import Pooling
from analysis.speedup import base_cells
from analysis.terms import is_treated_as_number
from common.notes import Note
from figures import panels, style
from figures.panels import Series
from figures.view import View

PANEL_IN = 1.45
GAP = 0.03  # of the axis, between two series at one level
SPREAD = 0.6  # of the way to the next level, for all series at most
CHARACTER_IN = 0.055  # of a tick's label
STEEP = 35  # degrees of labels that would not fit beside each other
BOUND = (0, (1, 1.5))
MOST_BASES = 3  # that the caption names; the table of cells has all of them


@dataclass(frozen=True)
class Scale:
    """The x axis: where each level stands, how far apart the series stand at one level, whether levels are numbers.

    `doubling`: doublings stand at equal distances. What is measured at one level stands on one band, side by side.
    """

    positions: dict[Any, float]
    gap: float
    width: float
    series: int
    numbers: bool = True
    doubling: bool = False

    def at(self, numbers: np.ndarray) -> np.ndarray:
        """Where any numbers stand, not only levels, [n]."""
        first = next(iter(self.positions))
        return np.log2(numbers / first) if self.doubling else numbers - first

    @property
    def beside(self) -> float:
        """How far from its mean a replicate's dot stands."""
        return 0.4 * self.gap

    def said(self, name: str) -> str:
        """What the caption must say of the axis `name`."""
        return Note("logarithmic-axis", f"The axis of {name} is logarithmic.", axis=name) if self.doubling else ""

    def on(self, ax: Axes, labels: Sequence[str] = ()) -> None:
        """Ticks, limits, and the bands of the levels."""
        for place in self.positions.values() if self.series > 1 else ():
            half = 0.5 * self.series * self.gap
            ax.axvspan(place - half, place + half + 0.2 * self.gap, color=style.LEVEL, linewidth=0, zorder=0)
        ax.set_xlim(-self.width / 7, self.width * 6 / 7)
        ax.set_xticks(list(self.positions.values()), list(labels) or [level_text(level) for level in self.positions])


BASES = Note("bases-drawn", "Fine dots: base divided by replicas, as if exchange cost nothing.")
HORIZONTAL = Note("undistributed-bases-drawn", "Horizontal lines: the undistributed bases.")
DOTTED = Note(
    "bases-divided",
    "Fine dotted lines: the time of the base divided by the replicas, as if the exchange of gradients cost nothing.",
)
NO_BASE = Note("no-base", "No base cell has a successful run.")
NOTHING_TO_COMPARE = Note("nothing-to-compare", "no panel would have two lines over two levels")
SINGLE_LINE = Note("single-line", "a single line would be there")
ONE_LEVEL = Note("one-level", "measured at one level of this axis only")


def draw(
    of: View, x: str, what: str, *, with_bases: bool = False, to_compare: bool = False, notes: Sequence[str] = ()
) -> tuple[Figure, panels.Caption]:
    """The figure of epoch time over the factor `x` and its caption, which begins with `what`.

    `with_bases`: in each panel the undistributed bases of its cells, and what their time would be on more replicas if nothing
    were lost. `to_compare`: lines are compared with each other, so that they are always joined, on a logarithmic axis, and
    panels of a single line are left out.
    """
    if of.ok.empty:
        return panels.not_drawn(of.runs)
    if of.runs[x].nunique() == 1:
        level = of.runs[x].iloc[0]
        why = Note("one-level", f"{title(x)} is {level_text(level)} in all cells", factor=x, level=level)
        return panels.not_drawn(of.runs, why)
    several = _several(of, x, to_compare)
    if not several:
        return panels.not_drawn(of.runs, NOTHING_TO_COMPARE)
    left_out = [levels for levels in of.panels if levels not in several]
    of = of.on_a_page(PANEL_IN + panels.titles_height(several), shown=several)
    shown = _several(of, x, to_compare)
    found = base_cells(of.study) if with_bases else {}
    undistributed = bases(of.study) if with_bases else []
    drawn_cells = {cell for levels in shown for cell in panels.at(of.runs, levels)["cell"]}
    drawn_cells |= {found[cell] for cell in drawn_cells if cell in found}
    lines = [one for one in of.series if not one.of(of.runs)["framework"].isin(undistributed).all()]
    alone = [one for one in lines if to_compare and one.of(of.runs)[x].nunique() < 2]
    lines = [one for one in lines if one not in alone]
    told = [one for one in of.series if one not in alone and set(one.of(of.ok)["cell"]) & drawn_cells]
    bound = Line2D([], [], color=style.MUTED, linewidth=0.7, linestyle=BOUND, label="base / replicas")
    extra = [bound] if any(cell in found for cell in drawn_cells) else []
    scale = scale_of_axis(of.runs, x, 1 if x in of.colour else len(of.series))
    labels = [_tick(x, level) for level in scale.positions]
    rows, columns, width = panels.layout(len(shown))
    steep = not scale.numbers and len("  ".join(labels)) * CHARACTER_IN > 0.8 * width / columns
    below = CHARACTER_IN * max(map(len, labels)) * math.sin(math.radians(STEEP)) if steep else 0
    above = panels.legend_height(len([*told, *extra]), width)
    drawn = style.figure(width, rows * (PANEL_IN + panels.titles_height(shown)) + 0.15 + below + above)
    scaled_by = panels.scaled_by(of.facet)
    axes = panels.grid(drawn, (rows, columns), len(shown), share_y=not scaled_by)
    shifts = panels.dodge([one.name for one in lines], scale.gap if scale.series > 1 else 0)
    remarks: list[str] = []
    for ax, levels in zip(axes, shown, strict=True):
        here = panels.at(of.runs, levels)
        for one in lines:
            _line(ax, one, one.of(here), x, (scale, shifts[one.name], scale.numbers or to_compare), of.pooling)
        for cell in dict.fromkeys(found[cell] for cell in here["cell"] if cell in found):
            _base(ax, of, successful(of.study[of.study["cell"] == cell]), here.groupby(x)["replicas"].max(), scale)
        if successful(here).empty:
            panels.say(ax, panels.NO_SUCCESS)
        ax.set_title(panels.panel_title(levels))
        alike = {name: levels[name] for name in scaled_by}
        remarks += panels.time_axis(ax, *of.times(alike), logarithmic=to_compare)
        scale.on(ax, labels)
        if steep:
            ax.tick_params(axis="x", labelrotation=STEEP)
            for label in ax.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
    for ax in axes[::columns]:
        ax.set_ylabel("epoch time (s)")
    drawn.supxlabel(title_with_unit(x), fontsize=style.FONT_SIZE)
    panels.legend(drawn, told, extra, lines=scale.numbers or to_compare)
    return drawn, of.caption(
        what,
        BASES if with_bases and any(cell in found for cell in drawn_cells) else "",
        *remarks,
        _without_line(alone),
        notes=[
            *(_base_notes(of, drawn_cells, found) if with_bases else []),
            *notes,
            scale.said(title(x)),
            left_out_sentence(left_out, SINGLE_LINE if to_compare else ONE_LEVEL),
        ],
    )


def _without_line(alone: Sequence[Series]) -> str:
    """Which series have one level only; empty for none."""
    names = [one.name for one in alone]
    text = f"Without a line, at one level only: {', '.join(names)}."
    return Note("series-without-line", text, series=names) if names else ""


def _several(of: View, x: str, to_compare: bool) -> list[dict[str, Any]]:
    """The panels with two levels of `x`, and `to_compare` two series over them; where none was measured, those with a run."""
    worth, measured = of.cells, of.cells[of.cells["cell"].isin(set(of.ok["cell"]))]
    if to_compare:
        series = {row: place for place, one in enumerate(of.series) for row in one.of(worth).index}
        worth = _with_two(worth.assign(series=pd.Series(series)), x, [*of.facet, "series"])
    found = panels.among(of.panels, _with_two(worth, "series" if to_compare else x, of.facet))
    if not panels.among(found, measured):  # better one level than no run
        return [] if to_compare else panels.among(of.panels, measured)
    return found


def _with_two(rows: pd.DataFrame, column: str, by: Sequence[str]) -> pd.DataFrame:
    """The rows with whose levels of `by` there are two levels of `column`."""
    groups = rows.assign(all=0).groupby(["all", *by], dropna=False)
    return rows[groups[column].transform("nunique") > 1]


def scale_of_axis(runs: pd.DataFrame, x: str, series: int) -> Scale:
    """Where the levels of a factor stand."""
    levels = levels_in_order(runs, x)
    if is_treated_as_number(runs, x):
        return scale_of_numbers(levels, series)
    return _scale({level: float(place) for place, level in enumerate(levels)}, series, numbers=False)


def scale_of_numbers(levels: Sequence[float], series: int) -> Scale:
    """Where numbers stand, in rising order; by doublings where there are any to speak of."""
    if len(levels) > 2 and levels[0] > 0 and levels[-1] / levels[0] >= 4:
        return _scale({level: math.log2(level / levels[0]) for level in levels}, series, doubling=True)
    return _scale({level: float(level - levels[0]) for level in levels}, series)


def _scale(positions: dict[Any, float], series: int, *, numbers: bool = True, doubling: bool = False) -> Scale:
    """Series never reach the next level."""
    places = list(positions.values())
    width = 1.4 * (places[-1] or 1)
    step = min(np.diff(places), default=1.0)
    return Scale(positions, min(GAP * width, SPREAD * step / max(series, 1)), width, series, numbers, doubling)


def _tick(x: str, level: Any) -> str:
    return "site's" if level == SITE_DEFAULTS.get(x) else level_text(level)


def _line(
    ax: Axes, one: Series, runs: pd.DataFrame, x: str, place: tuple[Scale, float, bool], pooling: Pooling
) -> None:
    """The means of the runs of one series; broken where a planned cell has no successful run.

    `place`: the x axis, how far the series is shifted on it, and whether the means are joined from level to level.
    """
    scale, shift, joined = place
    means, places = [], []
    by_level = dict(iter(runs.groupby(x)))
    for level in (level for level in scale.positions if level in by_level):
        ok = successful(by_level[level])
        places.append(scale.positions[level] + shift)
        means.append(math.nan)
        if len(ok):
            estimate = pooling.cell_mean(ok["cell"].iloc[0])
            means[-1] = estimate.value
            panels.interval(ax, one.look, places[-1], estimate, ok["epoch_time_s"], scale.beside)
    if places and joined:
        ax.plot(places, means, color=one.look.colour, linestyle=one.look.line, zorder=2)


def _base(ax: Axes, of: View, base: pd.DataFrame, replicas: pd.Series, scale: Scale) -> None:
    """The base's time divided by replicas; where it is undistributed, itself as a point and a horizontal line, too.

    `base`: its runs; `replicas`: how many there are at each level of the x axis.
    """
    look = next((one.look for one in of.series if len(one.of(base))), None)
    estimate = of.pooling.cell_mean(base["cell"].iloc[0])
    mean = estimate.value
    if bases(base) and look:
        panels.interval(ax, look, min(scale.positions.values()), estimate, base["epoch_time_s"], scale.beside)
        ax.axhline(mean, color=look.colour, linewidth=0.8, linestyle=look.line, zorder=1)
    x = [scale.positions[level] for level in replicas.index]
    colour = look.colour if look else style.MUTED
    ax.plot(x, mean / replicas.to_numpy(float), color=colour, linewidth=0.7, linestyle=BOUND, zorder=1)


def _base_notes(of: View, drawn: set[str], found: dict[str, str]) -> list[str]:
    used = sorted({found[cell] for cell in drawn if cell in found})
    if not used:
        return [NO_BASE]
    undistributed = of.runs["framework"].isin(bases(of.study)).any()
    return [*([HORIZONTAL] if undistributed else []), DOTTED, bases_sentence(used, of)]


def bases_sentence(used: Sequence[str], of: View) -> str:
    """The base cells `used`: what they are, and their times in seconds; each by name where they are few."""
    own = of.study[of.study["cell"].isin(set(used))]
    alone = bases(own)
    kinds = [f"the undistributed {' and '.join(alone)}"] if alone else []
    kinds += ["a framework's own cell with one replica"] if set(own["framework"]) - set(alone) else []
    what = f"Bases: {' or '.join(kinds)}, at the same levels of all other factors that they vary"
    times = {cell: of.pooling.cell_mean(cell).value for cell in used}
    if len(used) > MOST_BASES:
        ends = sorted(times.values())[:: len(used) - 1]
        many = f"There are {len(used)}, from {' to '.join(map(tables.number, ends))} s; the table of cells has each."
        return Note("bases", f"{what}. {many}", undistributed=alone, seconds=times)
    levels = cells(own).set_index("cell")[varying(of.study)]
    seconds = [f"{tables.interval(of.pooling.cell_mean(cell))} s" for cell in levels.index]
    names = [treatment_text(one) for one in levels.to_dict("records")]
    each = "; ".join(f"{name}: {of_it}" if name else of_it for name, of_it in zip(names, seconds, strict=True))
    return Note("bases", f"{what}; {each}.", undistributed=alone, seconds=times)


def left_out_sentence(left_out: Sequence[dict[str, Any]], why: Note) -> str:
    """Which panels are not shown and why; empty for none."""
    if not left_out:
        return ""
    names = join_names([treatment_text(levels) for levels in left_out], "; ")
    return Note("panels-not-shown", f"Not shown, because {why}: {names}.", why=why.code, panels=list(left_out))
