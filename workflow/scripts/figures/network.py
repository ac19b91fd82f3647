"""Bus bandwidth of collectives by message size: a line per framework, panels by collective and nodes, the link's rate as the bound."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.measured import Records, combination_text
from common.notes import Note
from declared.figures import Declared
from figures import panels, style
from models.collectives import ALL_REDUCE, COLLECTIVES
from network.fit import (
    achieved,
    bound,
    bytes_text,
    circumstances,
    collectives_text,
    factors_text,
    fit,
    link_rates_text,
    measured,
    rounds_text,
    shortfall,
)

PANEL_IN = 1.6
GAP = 1.09
TICK_FACTOR, TICK_FACTOR_IN_PANELS = 16, 64
BOUND = (0, (1, 1.5))
WHAT = (
    "Bus bandwidth of {} by message size, in each framework's own library. Markers: means over rounds; bars: 95 % t intervals; "
    "lines: fit of latency and bandwidth."
)
BOUND_WHAT = Note("bound-drawn", "Dotted: the most that the link allows.")
NO_SWEEP = Note("no-sweep", "no sweep of the network")
NO_SUCCESSFUL_SWEEP = Note("no-successful-sweep", "no successful sweep")
NO_FIT = Note("no-fit", "Without a line are sweeps to which no latency and bandwidth above zero come near.")
HOW = "{} Fit: seconds = latency + bytes / bandwidth. Both axes are logarithmic; at every size, frameworks are drawn beside each other."


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """The figure and its caption."""
    network = records.table("network")
    ok = measured(network)
    if ok.empty:
        return panels.not_drawn(None, NO_SWEEP if network.empty else NO_SUCCESSFUL_SWEEP, shortfall(network))
    varying_links = ["bandwidth"] if network["bandwidth"].nunique() > 1 else []
    frameworks = sorted(set(ok["framework"]))  # a name in the legend without anything drawn would puzzle
    kinds = network["collective"].nunique()
    places = panels.combinations(network, ["nodes", *varying_links])
    names = [*(["collective"] * (kinds > 1)), *(["nodes", *varying_links] if kinds == 1 or len(places) > 1 else [])]
    every = panels.combinations(network, names)
    every.sort(key=lambda levels: list(COLLECTIVES).index(levels.get("collective", ALL_REDUCE)))
    shown = every[: panels.most(PANEL_IN + panels.titles_height(every))]
    text = f"The first {len(shown)} of {len(every)} panels are drawn; the table has all."
    unseen = "" if shown == every else Note("panels-left-out", text, drawn=len(shown), panels=len(every))
    has_bound = bool(ok["link_bytes_s"].notna().any())
    line = Line2D([], [], color=style.MUTED, linewidth=0.8, linestyle=BOUND, label="link's rate")
    extra = [line] if has_bound else []
    links = network["bandwidth"].nunique()
    in_row = links if kinds == 1 else len(places)
    whole = len(shown) == in_row * (network["nodes"].nunique() if kinds == 1 else kinds)
    in_rows = (
        whole and (2 if kinds == 1 else 1) < in_row <= panels.PANELS_IN_PAGE
    )  # one for each number of nodes, or collective
    rows, columns, width = panels.layout(len(shown), in_row if in_rows else panels.PANELS_IN_PAGE)
    titled = shown if len(shown) > 1 else []
    above = panels.legend_height(len([*frameworks, *extra]), width)
    drawn = style.figure(width, rows * (PANEL_IN + panels.titles_height(titled)) + 0.15 + above)
    axes = panels.grid(drawn, (rows, columns), len(shown))
    shifts = {name: GAP**place for name, place in panels.dodge(frameworks, 1).items()}
    unfitted = []
    for ax, levels in zip(axes, shown, strict=True):
        here = panels.at(ok, levels)
        for framework, sweep in here.groupby("framework"):
            if not _series(ax, sweep, str(framework), shifts[str(framework)]):
                unfitted.append(f"{framework} on {combination_text(levels)}")
        limits = here[["link_bytes_s", "nodes", "ranks", "collective"]].dropna().drop_duplicates()
        for limit in {bound(*of) for of in limits.itertuples(index=False)}:
            ax.axhline(limit / 1e6, color=style.MUTED, linewidth=0.8, linestyle=BOUND)
        if here.empty:
            panels.say(ax, NO_SUCCESSFUL_SWEEP)
        if titled:
            ax.set_title(panels.panel_title(levels))
        _scales(ax, ok, TICK_FACTOR_IN_PANELS if titled else TICK_FACTOR)
    for ax in axes[::columns]:
        ax.set_ylabel("bus bandwidth (MB/s)")
    drawn.supxlabel("message size", fontsize=style.FONT_SIZE)
    panels.legend(drawn, frameworks, extra)
    same = Note("same-in-all-panels", f"All on {panels.panel_title(places[0])}.", levels=places[0])
    said = [
        WHAT.format(collectives_text(network)),
        BOUND_WHAT if has_bound else "",
        "" if titled and len(places) > 1 else same,
        Note("sweeps-not-fitted", f"Without a line: {'; '.join(unfitted)}.", sweeps=unfitted) if unfitted else "",
        rounds_text(network),
        shortfall(network),
        unseen,
    ]
    notes = [
        HOW.format(factors_text(network)),
        NO_FIT if unfitted else "",
        link_rates_text(network),
        circumstances(network),
    ]
    return drawn, panels.two_paragraphs(said, notes)


def _series(ax: Axes, sweep: pd.DataFrame, framework: str, shift: float) -> bool:
    """One framework's achieved bandwidth by size, and its fit. Whether there is one."""
    look = style.look(framework)
    for size, estimate in achieved(sweep).items():
        x, bars = [size * shift] * 2, [estimate.low / 1e6, estimate.high / 1e6]
        ax.plot(x, bars, color=look.colour, linewidth=0.9, solid_capstyle="butt", zorder=3)
        ax.plot([size * shift], [estimate.value / 1e6], zorder=4, **panels.marker(framework))
    made = fit(sweep)
    if made is None or not made.bandwidth_bytes_s.value > 0:
        return False
    sizes = np.geomspace(sweep["bytes"].min(), sweep["bytes"].max(), 100)
    seconds = made.seconds(sizes)
    rate = made.seconds_per_byte.value * made.bandwidth_bytes_s.value * sizes / np.where(seconds > 0, seconds, np.nan)
    ax.plot(sizes * shift, rate / 1e6, color=look.colour, linestyle=look.line, linewidth=0.8, zorder=2)
    return True


def _scales(ax: Axes, ok: pd.DataFrame, factor: int) -> None:
    smallest, largest = float(ok["bytes"].min()), float(ok["bytes"].max())
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = smallest * factor ** np.arange(1 + math.floor(math.log(largest / smallest, factor) + 1e-9))
    ax.set_xticks(list(ticks), [bytes_text(size) for size in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(smallest / 2, largest * 2)
    ax.yaxis.set_major_locator(LogLocator(10))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.grid(True)
