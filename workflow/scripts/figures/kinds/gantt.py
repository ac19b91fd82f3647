"""Draw some training steps of a typical run of every traced cell, over its ranks."""

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
from analysis.level_words import cell_words
from analysis.records import Records, cell_levels, successful, traced
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, legends, panels, phase_styles, style
from figures.view import View, build_view
from ranks.worker.phases import COMMUNICATION
from traces.cells import NO_PHASES, in_order
from traces.steps import WAIT, Traced

MAX_RANKS = 8
ROW_INCHES, TITLE_INCHES, AXIS_INCHES = 0.2, 0.24, 0.28
BAR, LANE = 0.56, 0.16  # shares of a row: the phases of a rank, and its all-reduce below them
STEPS_ON_AXIS = 3  # steps of the slowest panel, which set the end of the axis
MAX_HEIGHT_INCHES = 7.6
LIGHT_COLOUR = "#fde8d8"
WAIT_LABEL = "wait for slowest (below)"
HOW_TO_READ = (
    "A row is a rank. Hatched: it waits for gradient all-reduce. The lane below shows all-reduce: it "
    "waits until the slowest rank starts it, then bytes are transferred. The line is the critical path. "
    "Drawn: steps around one of median time, of the run with its cell's median step time."
)
RANKS_NOTE = Note(
    "ranks-left-out",
    f"Of more than {MAX_RANKS} ranks, three are drawn: those with the longest, median and shortest "
    "computation.",
)
LEAD = "Timeline of training steps over the ranks."


@dataclass(frozen=True)
class Panel:
    """A panel with the traced steps of one cell."""

    cell: str
    title: str
    traced: Traced

    @cached_property
    def ranks(self) -> list[int]:
        """Return the ranks to draw: all, or those of longest, median and shortest computation."""
        all_ranks = self.traced.ranks.tolist()
        if len(all_ranks) <= MAX_RANKS:
            return all_ranks
        computing = self.traced.phases[self.traced.phases["phase"] != WAIT]
        order = computing.groupby("rank")["length"].sum().sort_values().index.tolist()
        return [order[-1], order[len(order) // 2], order[0]]

    @cached_property
    def start_s(self) -> float:
        """Return when its first step starts, in s."""
        return float(self.traced.phases["start"].min())

    @cached_property
    def step_ends(self) -> list[float]:
        """Return when each of its steps has ended on all ranks, in s since the first step started."""
        return (self.traced.step_times.groupby("place")["end"].max() - self.start_s).tolist()

    @property
    def height_in(self) -> float:
        """Return the height in inches."""
        return len(self.ranks) * ROW_INCHES + TITLE_INCHES


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with one panel per cell on a shared time axis, and its caption."""
    view = build_view(traced(records.every_run), spec)
    candidates = _panels(view, records.table("trace_steps"))
    if not candidates:
        return panels.empty_figure(view.runs, NO_PHASES, conditions.traced_runs_without_phases(view.runs))
    drawn_panels = _select_panels(candidates, view)
    length = max(panel.step_ends[min(STEPS_ON_AXIS, len(panel.step_ends)) - 1] for panel in drawn_panels)
    names = {str(name) for panel in drawn_panels for name in panel.traced.phases["phase"]}
    handles = _legend_handles(in_order(names, phase_styles.PHASE_STYLES), drawn_panels)
    above_in = legends.handles_height(handles, style.PAGE_INCHES)
    figure = style.new_figure(
        style.PAGE_INCHES, sum(panel.height_in for panel in drawn_panels) + AXIS_INCHES + above_in
    )
    ratios = [panel.height_in for panel in drawn_panels]
    axes = figure.subplots(len(drawn_panels), 1, squeeze=False, sharex=True, height_ratios=ratios)[:, 0]
    for ax, panel in zip(axes, drawn_panels, strict=True):
        _draw_panel(ax, panel, length)
    for ax in axes[:-1]:
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="x", length=0)
    axes[-1].set_xlabel("time since the first of these steps started (ms)")
    legends.place_legend(figure, handles)
    counts = f"{len(drawn_panels)} of {len(candidates)} cells are drawn"
    text = f"{counts}, those with most ranks; a `filter` shows others."
    left_out_note = Note("cells-left-out", text, drawn=len(drawn_panels), cells=len(candidates))
    return figure, view.caption(
        [LEAD, _waits_note(drawn_panels)],
        left_out_note if len(drawn_panels) < len(candidates) else "",
        RANKS_NOTE if any(len(panel.traced.ranks) > MAX_RANKS for panel in drawn_panels) else "",
        endnotes=[HOW_TO_READ, conditions.traced_runs_without_phases(view.runs)],
        with_intervals=False,
    )


def _panels(view: View, steps: pd.DataFrame) -> list[Panel]:
    """Return a panel for each cell whose steps are kept, in the order of tables."""
    runs = successful(view.runs)
    titles, of_run = cell_words(view.runs), runs.set_index("run_id")["cell"]
    steps_of_cell = {
        of_run[run]: cell_steps.drop(columns="run_id").astype({"rank": int, "epoch": int, "step": int})
        for run, cell_steps in steps.groupby("run_id", sort=False)
        if run in of_run.index
    }
    return [
        Panel(cell, titles[cell], Traced(steps_of_cell[cell], 0, int(steps_of_cell[cell]["step"].nunique())))
        for cell in cell_levels(view.runs)["cell"]
        if cell in steps_of_cell
    ]


def _select_panels(candidates: Sequence[Panel], view: View) -> list[Panel]:
    """Return all panels if they fit a page, or else as many as fit: the largest cell of each series."""
    multi_rank = [panel for panel in candidates if len(panel.traced.ranks) > 1] or list(candidates)
    if sum(panel.height_in for panel in multi_rank) <= MAX_HEIGHT_INCHES:
        return multi_rank
    largest: dict[str, Panel] = {}
    for panel in multi_rank:
        name = next(
            (series.name for series in view.series if panel.cell in set(series.select(view.runs)["cell"])), ""
        )
        if name not in largest or len(panel.traced.ranks) >= len(largest[name].traced.ranks):
            largest[name] = panel
    selected: list[Panel] = []
    height = 0.0
    for panel in multi_rank:
        if panel in largest.values() and (not selected or height + panel.height_in <= MAX_HEIGHT_INCHES):
            selected.append(panel)
            height += panel.height_in
    return selected


def _draw_panel(ax: Axes, panel: Panel, length: float) -> None:
    """Draw the steps of a cell up to `length` s."""
    row = {rank: y for y, rank in enumerate(panel.ranks)}
    for name, intervals in panel.traced.phases.groupby("phase", observed=True, sort=False):
        for y, bars in _bars_by_row(intervals, row, panel.start_s, length):
            ax.broken_barh(bars, (y - 0.45, BAR), zorder=2, **phase_styles.phase_style(str(name)))
    allreduces = panel.traced.allreduces
    transfer_start = allreduces["moves"].clip(upper=allreduces["end"])
    for name, intervals in (
        (WAIT_LABEL, allreduces.assign(end=transfer_start)),
        (COMMUNICATION, allreduces.assign(start=transfer_start)),
    ):
        for y, bars in _bars_by_row(
            intervals[intervals["end"] > intervals["start"]], row, panel.start_s, length
        ):
            ax.broken_barh(bars, (y - 0.45 + BAR + 0.05, LANE), zorder=2, **_lane_style(name))
    _draw_critical_path(ax, panel, row, length)
    starts = panel.traced.step_times.groupby("place")["start"].min() - panel.start_s
    for place, start in starts[starts < 0.97 * length].items():
        label = ax.text(1e3 * start, -0.55, f"step {panel.traced.numbers['step'][place]}", va="bottom")
        label.set(fontsize=style.SMALL_FONT_SIZE, color=style.MUTED)
        ax.axvline(1e3 * start, color=style.GRID, linewidth=0.5, zorder=1)
    ax.set_title(panel.title, pad=9, loc="left")
    ax.set_xlim(0, 1e3 * length)
    ax.set_yticks(list(row.values()), [f"rank {rank}" for rank in row])
    ax.set_ylim(len(row) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _bars_by_row(
    intervals: pd.DataFrame, row: dict[int, int], panel_start: float, length: float
) -> list[tuple[int, list[tuple[float, float]]]]:
    """Return the row, starts and lengths (ms, cut at `length`) of the intervals of each drawn rank."""
    bars = []
    for rank, y in row.items():
        rank_intervals = intervals[(intervals["rank"] == rank) & (intervals["start"] - panel_start < length)]
        start, end = (
            1e3 * np.clip(rank_intervals[name].to_numpy() - panel_start, 0, length)
            for name in ("start", "end")
        )
        if len(rank_intervals):
            bars.append((y, list(zip(start, end - start, strict=True))))
    return bars


def _draw_critical_path(ax: Axes, panel: Panel, row: dict[int, int], length: float) -> None:
    """Draw the critical path of every step whose ranks are drawn."""
    starts = panel.traced.step_times.set_index(["place", "rank"])
    for place, step in panel.traced.through.iterrows():
        first, last = int(step["first"]), int(step["last"])
        if first not in row or last not in row:
            continue
        begin, end = starts.at[(place, first), "start"], starts.at[(place, last), "end"]
        times = [begin, step["moves"], step["over"], end]
        x = [1e3 * (time - panel.start_s) for time in times]
        if x[-1] > 1e3 * length:
            continue
        middle = [row[rank] - 0.45 + BAR / 2 for rank in (first, first, last, last)]
        line = ax.plot(x, middle, color=style.INK, linewidth=0.8, solid_joinstyle="round", zorder=4)[0]
        line.set_path_effects([withStroke(linewidth=1.8, foreground="white")])


def _lane_style(name: str) -> dict[str, Any]:
    """Return the style of all-reduce: transfer in its colour, waiting in a light one."""
    if name == COMMUNICATION:
        return phase_styles.phase_style(COMMUNICATION) | {"linewidth": 0}
    return {"facecolor": LIGHT_COLOUR, "edgecolor": phase_styles.ORANGE, "linewidth": 0.3}


def _legend_handles(phases: Sequence[str], drawn_panels: Sequence[Panel]) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = list(phase_styles.legend_handles(phases))
    if any(len(panel.traced.allreduces) for panel in drawn_panels):
        handles += [
            Patch(label="transfer (below)", **_lane_style(COMMUNICATION)),
            Patch(label=WAIT_LABEL, **_lane_style(WAIT_LABEL)),
        ]
    return [*handles, Line2D([], [], color=style.INK, linewidth=0.8, label="critical path")]


def _waits_note(drawn_panels: Sequence[Panel]) -> str:
    """Return a sentence on the share of these steps that ranks wait."""
    shares = []
    for panel in drawn_panels:
        lengths = panel.traced.phases.groupby("phase", observed=True)["length"].sum()
        shares.append(100 * float(lengths.get(WAIT, 0.0) / lengths.sum()))
    bounds = dict.fromkeys(f"{end:.0f}" for end in (min(shares), max(shares)))
    text = f"Ranks wait for gradient all-reduce {' to '.join(bounds)} % of the time."
    return Note("ranks-wait", text, least=min(shares) / 100, most=max(shares) / 100)
