"""Speed-up and parallel efficiency over replicas, with the ideal line and what computation and network allow at most."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import conditions, tables
from analysis.measured import Records, factors
from analysis.speedup import base_cells, compare
from common.notes import Note
from declared.figures import Declared
from figures import lines, panels, style
from figures.lines import Scale
from figures.panels import Series
from figures.view import View, view

PANEL_IN = 1.3
IDEAL = (0, (6, 2))
ROWS = {"speedup": ("speed-up", 1.0), "efficiency": ("efficiency (%)", 100.0)}
HIGHEST = 1.7  # times the largest speed-up: how much of the ideal line is seen
WHAT = "Speed-up (upper panels) and efficiency (lower panels). Markers: ratios of means; bars: 95 % intervals; long dashes: ideal."
HOW = (
    "Speed-up: mean epoch time of the base divided by that of the cell. Efficiency: speed-up divided by replicas. Lines between markers only guide "
    "the eye. Ideal: equal to the number of replicas."
)
BOUND = Note("bound-drawn", "Fine dots: bound of the physical model.")
OF_BOUND = Note(
    "bound",
    "Fine dotted lines: an upper bound from the physical model. Replicas share the computation of one, messages take the time that was "
    "measured in the sweep of the network, the backward pass hides them if the framework sends during it, and no rank waits for another.",
)
NO_REPLICAS = Note("no-replicas", "no cell with several replicas succeeded")
NO_BASE = Note("no-base", "no base of a speed-up succeeded")
ONE_REPLICA = Note("one-replica", "no cell there has several replicas")


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """Two panels, speed-up above efficiency, for each combination of the other factors. The figure and its caption."""
    of = view(records.runs, asked)
    if of.ok.empty:
        return panels.not_drawn(of.runs)
    rows = _rows(records, of)
    compared = rows["speedup"].notna()
    if not (compared & (rows["replicas"] > 1)).any():
        return panels.not_drawn(of.runs, NO_REPLICAS if compared.any() else NO_BASE)
    several = rows[compared & (rows["replicas"] > 1)]
    worth = panels.among(of.panels, several)
    left_out = [levels for levels in of.panels if levels not in worth]
    of = of.on_a_page(2 * PANEL_IN + panels.titles_height(worth), shown=worth)
    rows, several = (frame[frame["cell"].isin(set(of.cells["cell"]))] for frame in (rows, several))
    shown = panels.among(of.panels, several)
    of_shown = pd.concat([panels.at(rows, levels) for levels in shown])
    scaled = [one for one in of.series if len(one.of(several))]
    extra = [Line2D([], [], color=style.MUTED, linewidth=0.7, linestyle=IDEAL, label="ideal")]
    bounded = bool(of_shown["bound_speedup"].notna().any())
    if bounded:
        extra.append(Line2D([], [], color=style.MUTED, linewidth=0.7, linestyle=lines.BOUND, label="upper bound"))
    bands, columns, width = panels.layout(len(shown))
    above = panels.legend_height(len([*scaled, *extra]), width)
    height = bands * (2 * PANEL_IN + panels.titles_height(shown)) + 0.15 + above
    drawn = style.figure(width, height)
    axes = drawn.subplots(2 * bands, columns, squeeze=False, sharex=True, sharey="row")
    scale = lines.scale_of_numbers(sorted(set(of_shown["replicas"]) | {1}), len(scaled))
    shifts = panels.dodge([one.name for one in scaled], scale.gap)
    tops = {name: _top(of_shown, name) for name in ROWS}
    for ax in axes.flat:
        ax.set_axis_off()
    for panel, levels in enumerate(shown):
        band, column = divmod(panel, columns)
        here = panels.at(rows, levels)
        for row, name in enumerate(ROWS):
            ax = axes[2 * band + row, column]
            ax.set_axis_on()
            _ideal(ax, name, scale)
            for one in scaled:
                _line(ax, one, one.of(here), name, (scale, shifts[one.name]))
            ax.set_ylim(0, tops[name])
            ax.grid(True, axis="y")
            scale.on(ax)
            if column == 0:
                ax.set_ylabel(ROWS[name][0])
            ax.tick_params(labelbottom=row == 1 and panel + columns >= len(shown))
        axes[2 * band, column].set_title(panels.panel_title(levels))
        _say_bases(axes[2 * band, column], here)
    counted = "nodes" if (of_shown["replicas"] == of_shown["nodes"]).all() else "replicas"
    drawn.supxlabel(counted, fontsize=style.FONT_SIZE)
    panels.legend(drawn, scaled, extra)
    found = base_cells(of.study)
    elsewhere = [one.name for one in scaled if not (one.of(rows)["replicas"] == 1).any()]
    without = [cell for cell in dict.fromkeys(of.ok["cell"]) if cell not in found]
    return drawn, of.caption(
        WHAT,
        BOUND if bounded else "",
        _elsewhere(elsewhere),
        _without_base(without),
        notes=[
            HOW,
            conditions.replicas_note(of.runs),
            scale.said(counted),
            OF_BOUND if bounded else "",
            lines.bases_sentence(sorted(set(of_shown["base_cell"].dropna())), of),
            lines.left_out_sentence(left_out, ONE_REPLICA),
        ],
    )


def _elsewhere(series: Sequence[str]) -> str:
    """Which series have no cell on one replica; empty for none."""
    text = f"Without a marker on one replica: {', '.join(series)}."
    return Note("series-without-one-replica", text, series=list(series)) if series else ""


def _without_base(cells: Sequence[str]) -> str:
    """Which cells have no base that succeeded; empty for none."""
    text = f"Not drawn, because their base has no successful run: {conditions.join_names(cells)}."
    return Note("cells-without-base", text, cells=list(cells)) if cells else ""


def _rows(records: Records, of: View) -> pd.DataFrame:
    """A row per planned cell: its factors and replicas, and where it and its base succeeded the columns of speedup.compare;
    `bound_speedup` and `bound_efficiency`, the largest that the physical model allows, where the network was swept."""
    measured = compare(of.study).drop(columns=[*factors(), "replicas"])
    rows = of.runs.drop_duplicates("cell")[["cell", "replicas", *factors()]].merge(measured, how="left", on="cell")
    least: Mapping[str, float] = {}
    if len(records.table("network")):
        from prediction.bound import shortest_epochs  # slow to import, and few studies need it

        least = shortest_epochs(of.study, records.table("network"))
    bound = rows["base_cell"].map(least).astype(float) / rows["cell"].map(least).astype(float)
    return rows.assign(bound_speedup=bound, bound_efficiency=bound / rows["replicas"].astype(float))


def _top(rows: pd.DataFrame, name: str) -> float:
    """The upper end of an axis: all intervals and bounds, and as much of the ideal as does not press them down."""
    _, unit = ROWS[name]
    largest = unit * np.nanmax(rows[[name, f"{name}_high", f"bound_{name}"]].to_numpy(float))
    ideal = unit * (rows["replicas"].max() if name == "speedup" else 1.0)
    return float(1.06 * max(largest, min(ideal, HIGHEST * max(largest, unit))))


def _ideal(ax: Axes, name: str, scale: Scale) -> None:
    replicas = np.linspace(min(scale.positions), max(scale.positions), 50)
    y = replicas if name == "speedup" else np.full(len(replicas), 100.0)
    ax.plot(scale.at(replicas), y, color=style.MUTED, linewidth=0.7, linestyle=IDEAL, zorder=1)


def _line(ax: Axes, one: Series, rows: pd.DataFrame, name: str, place: tuple[Scale, float]) -> None:
    """One series of one panel, with its bound. `place`: the x axis, and how far the series is shifted on it."""
    scale, shift = place
    _, unit = ROWS[name]
    rows = rows.sort_values("replicas")
    x = rows["replicas"].map(scale.positions).to_numpy(float)
    values, low, high, bound = (
        unit * rows[column].to_numpy(float) for column in (name, f"{name}_low", f"{name}_high", f"bound_{name}")
    )
    ax.vlines(x + shift, low, high, color=one.look.colour, linewidth=0.9, zorder=3)
    ax.plot(x + shift, values, color=one.look.colour, linestyle=one.look.line, zorder=2)
    ax.plot(x + shift, values, zorder=4, **panels.marker(one.look))
    ax.plot(x, bound, color=one.look.colour, linewidth=0.7, linestyle=lines.BOUND, zorder=1)


def _say_bases(ax: Axes, rows: pd.DataFrame) -> None:
    """The seconds of the panel's bases; of several the least and the most."""
    seconds = [tables.number(value) for value in sorted(set(rows["base_epoch_time_s"].dropna()))]
    said = f"base {seconds[0]} s" if len(seconds) == 1 else f"bases {seconds[0]} to {seconds[-1]} s"
    ax.text(0.03, 0.95, said, transform=ax.transAxes, va="top", color=style.MUTED, fontsize=5.5)
