"""Some training steps of a typical run of every traced cell, over its ranks: phases as colours, the exchange below each rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from analysis import conditions
from analysis.measured import Records, cell_words, cells, successful, traced
from common.notes import Note
from declared.figures import Declared
from figures import panels, phase_looks, style
from figures.view import View, view
from ranks.worker.phases import EXCHANGE
from traces.cells import NO_PHASES
from traces.steps import WAIT, Traced

MOST_RANKS = 8
ROW_IN, TITLE_IN, AXIS_IN = 0.2, 0.24, 0.28
BAR, LANE = 0.56, 0.16  # of a row: the phases of a rank, its exchange below them
STEPS = 3  # of the slowest panel, that set the axis
TALLEST_IN = 7.6
LIGHT = "#fde8d8"
WAITED = "exchange: waiting for the slowest"
HOW = (
    "A row is a rank. Hatched: it waits for the exchange. The lane below is its exchange: light until the slowest rank has started it, then bytes "
    "move. The line is the critical path. Drawn: {}, around one of median time, of the run whose median step is that of its cell."
)
FEW = Note(
    "ranks-left-out",
    f"Of more than {MOST_RANKS} ranks, those that compute longest, in the middle and shortest are drawn.",
)
HEADING = "Training steps as they ran, over the ranks."


@dataclass(frozen=True)
class Panel:
    """The steps of one cell: its name in words, and their intervals."""

    cell: str
    words: str
    traced: Traced

    @cached_property
    def ranks(self) -> list[int]:
        """Those that are drawn, from the top."""
        every = self.traced.ranks.tolist()
        if len(every) <= MOST_RANKS:
            return every
        busy = self.traced.phases[self.traced.phases["phase"] != WAIT].groupby("rank")["length"].sum().sort_values()
        order = busy.index.tolist()
        return [order[-1], order[len(order) // 2], order[0]]

    @cached_property
    def begins(self) -> float:
        """When its first step begins, s."""
        return float(self.traced.phases["start"].min())

    @cached_property
    def ends(self) -> list[float]:
        """When each of its steps has ended on all ranks, s since it begins."""
        return (self.traced.step_times.groupby("place")["end"].max() - self.begins).tolist()

    @property
    def height(self) -> float:
        """In inches."""
        return len(self.ranks) * ROW_IN + TITLE_IN


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """A panel for each cell, below each other, on one axis of time. The figure and its caption."""
    seen = view(traced(records.every_run), asked)
    found = _panels(seen, records.table("trace_steps"))
    if not found:
        return panels.not_drawn(seen.runs, NO_PHASES, conditions.traced_runs_without_phases(seen.runs))
    shown = _on_a_page(found, seen)
    length = max(one.ends[min(STEPS, len(one.ends)) - 1] for one in shown)
    names = [name for name in phase_looks.LOOKS if any(name in set(one.traced.phases["phase"]) for one in shown)]
    others = sorted({str(name) for one in shown for name in one.traced.phases["phase"]} - set(names))
    entries = _legend([*names, *others], shown)
    above = panels.legend_height(len(entries), style.PAGE_IN)
    drawn = style.figure(style.PAGE_IN, sum(one.height for one in shown) + AXIS_IN + above)
    ratios = [one.height for one in shown]
    axes = drawn.subplots(len(shown), 1, squeeze=False, sharex=True, height_ratios=ratios)[:, 0]
    for ax, one in zip(axes, shown, strict=True):
        _draw(ax, one, length)
    for ax in axes[:-1]:
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="x", length=0)
    axes[-1].set_xlabel("time since the first of these steps began (ms)")
    drawn.legend(handles=entries, loc="outside upper center", ncols=panels.legend_columns(style.PAGE_IN))
    return drawn, seen.caption(
        [HEADING, _waits(shown)],
        _left_out(found, shown),
        FEW if any(len(one.traced.ranks) > MOST_RANKS for one in shown) else "",
        notes=[_how(shown, length), conditions.traced_runs_without_phases(seen.runs)],
        with_intervals=False,
    )


def _panels(seen: View, steps: pd.DataFrame) -> list[Panel]:
    """The cells whose steps are kept, in the order of tables."""
    runs = successful(seen.runs)
    words, of_run = cell_words(seen.runs), runs.set_index("run_id")["cell"]
    mine = {of_run[run]: some for run, some in steps.groupby("run_id", sort=False) if run in of_run.index}
    plain = {
        cell: some.drop(columns="run_id").astype({"rank": int, "epoch": int, "step": int})
        for cell, some in mine.items()
    }
    return [
        Panel(cell, words[cell], Traced(plain[cell], 0, int(plain[cell]["step"].nunique())))
        for cell in cells(seen.runs)["cell"]
        if cell in plain and len(plain[cell])
    ]


def _on_a_page(found: Sequence[Panel], seen: View) -> list[Panel]:
    """All panels where a page holds them; else of each series the cell with most ranks, as many as fit."""
    several = [one for one in found if len(one.traced.ranks) > 1] or list(found)
    if sum(one.height for one in several) <= TALLEST_IN:
        return several
    largest: dict[str, Panel] = {}
    for one in several:
        name = next((series.name for series in seen.series if one.cell in set(series.of(seen.runs)["cell"])), "")
        if name not in largest or len(one.traced.ranks) >= len(largest[name].traced.ranks):
            largest[name] = one
    kept: list[Panel] = []
    height = 0.0
    for one in several:
        if one in largest.values() and (not kept or height + one.height <= TALLEST_IN):
            kept.append(one)
            height += one.height
    return kept


def _draw(ax: Axes, one: Panel, length: float) -> None:
    """The steps of a cell up to `length` s."""
    row = {rank: y for y, rank in enumerate(one.ranks)}
    for name, some in one.traced.phases.groupby("phase", observed=True, sort=False):
        for y, mine in _by_row(some, row, one.begins, length):
            ax.broken_barh(mine, (y - 0.45, BAR), zorder=2, **phase_looks.look(str(name)))
    exchanges = one.traced.exchanges
    late = exchanges["moves"].clip(upper=exchanges["end"])
    for name, some in ((WAITED, exchanges.assign(end=late)), (EXCHANGE, exchanges.assign(start=late))):
        for y, mine in _by_row(some[some["end"] > some["start"]], row, one.begins, length):
            ax.broken_barh(mine, (y - 0.45 + BAR + 0.05, LANE), zorder=2, **_lane_look(name))
    _path(ax, one, row, length)
    for place, number in enumerate(one.traced.numbers["step"]):
        begins = one.traced.step_times.loc[one.traced.step_times["place"] == place, "start"].min() - one.begins
        if begins < 0.97 * length:
            ax.text(1e3 * begins, -0.55, f"step {number}", va="bottom", ha="left", fontsize=5, color=style.MUTED)
            ax.axvline(1e3 * begins, color=style.GRID, linewidth=0.5, zorder=1)
    ax.set_title(one.words, pad=9, loc="left")
    ax.set_xlim(0, 1e3 * length)
    ax.set_yticks(list(row.values()), [f"rank {rank}" for rank in row])
    ax.set_ylim(len(row) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _by_row(
    some: pd.DataFrame, row: dict[int, int], begins: float, length: float
) -> list[tuple[int, list[tuple[float, float]]]]:
    """The intervals of each rank that is drawn: its row, and their starts and lengths in ms, cut at `length`."""
    found = []
    for rank, y in row.items():
        mine = some[(some["rank"] == rank) & (some["start"] - begins < length)]
        start, end = (1e3 * np.clip(mine[name].to_numpy() - begins, 0, length) for name in ("start", "end"))
        if len(mine):
            found.append((y, list(zip(start, end - start, strict=True))))
    return found


def _path(ax: Axes, one: Panel, row: dict[int, int], length: float) -> None:
    """The critical path of every step whose ranks are drawn."""
    starts = one.traced.step_times.set_index(["place", "rank"])
    for place, step in one.traced.through.iterrows():
        first, last = int(step["first"]), int(step["last"])
        if first not in row or last not in row:
            continue
        times = [starts.at[(place, first), "start"], step["moves"], step["over"], starts.at[(place, last), "end"]]
        x = [1e3 * (time - one.begins) for time in times]
        if x[-1] > 1e3 * length:
            continue
        middle = [row[rank] - 0.45 + BAR / 2 for rank in (first, first, last, last)]
        line = ax.plot(x, middle, color=style.INK, linewidth=0.8, solid_joinstyle="round", zorder=4)[0]
        line.set_path_effects([withStroke(linewidth=1.8, foreground="white")])


def _lane_look(name: str) -> dict[str, Any]:
    """Bytes move in the exchange's colour, waiting is a light one."""
    if name == EXCHANGE:
        return phase_looks.look(EXCHANGE) | {"linewidth": 0}
    return {"facecolor": LIGHT, "edgecolor": phase_looks.ORANGE, "linewidth": 0.3}


def _legend(names: Sequence[str], shown: Sequence[Panel]) -> list[Patch | Line2D]:
    entries: list[Patch | Line2D] = list(phase_looks.handles(names))
    if any(len(one.traced.exchanges) for one in shown):
        entries += [
            Patch(label="exchange: bytes move", **_lane_look(EXCHANGE)),
            Patch(label=WAITED, **_lane_look(WAITED)),
        ]
    return [*entries, Line2D([], [], color=style.INK, linewidth=0.8, label="critical path")]


def _waits(shown: Sequence[Panel]) -> str:
    """How long ranks wait in these steps, in a sentence."""
    shares = []
    for one in shown:
        lengths = one.traced.phases.groupby("phase", observed=True)["length"].sum()
        shares.append(100 * float(lengths.get(WAIT, 0.0) / lengths.sum()))
    ends = dict.fromkeys(f"{end:.0f}" for end in (min(shares), max(shares)))
    text = f"Ranks wait for the exchange {' to '.join(ends)} % of the time."
    return Note("ranks-wait", text, least=min(shares) / 100, most=max(shares) / 100)


def _how(shown: Sequence[Panel], length: float) -> str:
    """How the figure is read, and how many steps of a cell are seen whole."""
    whole = [sum(end <= length for end in one.ends) for one in shown]
    ends = dict.fromkeys((min(whole), max(whole)))
    steps = f"{' to '.join(map(str, ends))} whole step{'s' * (max(whole) > 1)} of a cell"
    return Note("how-to-read", HOW.format(steps), fewest_steps=min(whole), most_steps=max(whole))


def _left_out(found: Sequence[Panel], shown: Sequence[Panel]) -> str:
    """Which cells are not drawn."""
    if len(found) == len(shown):
        return ""
    text = f"{len(shown)} of {len(found)} cells are drawn, with most ranks; a `filter` shows others."
    return Note("cells-left-out", text, drawn=len(shown), cells=len(found))
