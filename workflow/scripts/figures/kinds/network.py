"""Draw bus bandwidth of collectives by message size, with the link rate as the upper bound."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from analysis.conditions import placement_note
from analysis.level_words import combination_text
from analysis.records import Records
from common.notes import Note
from common.units import DATA_RATES, Unit, choose_unit
from declared.figure_specs import FigureSpec
from figures import captions, legends, marks, panels, selection, style, value_axis
from figures.selection import Series
from figures.style import SeriesStyle
from models.collectives import ALL_REDUCE, COLLECTIVES
from network.bus import bus_bandwidth
from network.fit import (
    MAX_FIT_DEVIATION,
    BenchmarkFit,
    bandwidth_bound,
    bus_bandwidths,
    bytes_text,
    collectives_text,
    deviation_text,
    factors_text,
    fit_benchmark,
    link_rates_text,
    missing_benchmarks_note,
    round_medians,
    rounds_text,
    setup_note,
    valid_repetitions,
)

PANEL_INCHES = 1.6
TICK_FACTOR, TICK_FACTOR_IN_PANELS = 16, 64
JOINING_LINE_WIDTH = 0.9
FIT_LINE: Mapping[str, Any] = {"color": style.INK, "linewidth": 0.9, "linestyle": (0, (3, 1.5)), "zorder": 6}
ROUND_TICK_FACTOR = 1.2  # factor of message sizes between a mean and the ticks of its rounds
BOUND_LINE = (0, (1, 1.5))
LEAD = (
    "Bus bandwidth of {} by message size{}. Markers: harmonic means (n = {}, one benchmark); "
    "bars: 95 % intervals; ticks: rounds."
)
OWN_LIBRARY = ", in each framework's own library"  # omitted for benchmarks that were measured elsewhere
BOUND_NOTE = Note("bound-drawn", "Dotted: the maximum that the link allows.")
NO_BENCHMARK = Note("no-collective-benchmark", "no collective benchmark")
NO_SUCCESSFUL_BENCHMARK = Note("no-successful-benchmark", "no successful collective benchmark")
HOW_TO_READ = (
    "{} A round counts with its median repetition. Fit: seconds = latency + bytes / bandwidth; its deviation "
    "is the largest distance of the median of a message size from it, and a poor fit deviates by more than "
    f"{100 * MAX_FIT_DEVIATION:g} %. Intervals are t intervals of the logarithm of the mean time. Both axes "
    "are logarithmic. Lines between markers only guide the eye."
)


@dataclass(frozen=True)
class _Fits:
    """The fits of latency and bandwidth.

    Attributes:
        drawn: The largest deviation of the fits that are drawn, by framework.
        poor: The largest deviation of those that are too poor to draw, by framework.
        missing: The benchmarks without a fit.
    """

    drawn: dict[str, float] = field(default_factory=dict)
    poor: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def draw(records: Records, _spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure and its caption."""
    network = records.table("network")
    ok = valid_repetitions(network)
    if ok.empty:
        return panels.empty_figure(
            None, NO_BENCHMARK if network.empty else NO_SUCCESSFUL_BENCHMARK, missing_benchmarks_note(network)
        )
    varying_links = ["bandwidth"] if network["bandwidth"].nunique() > 1 else []
    frameworks = sorted(set(ok["framework"]))
    all_series = [Series(name, {"framework": name}, style.framework_style(name)) for name in frameworks]
    n_collectives = network["collective"].nunique()
    scales = selection.level_combinations(network, ["nodes", *varying_links])
    panel_factors = ["collective"] if n_collectives > 1 else []
    if n_collectives == 1 or len(scales) > 1:
        panel_factors += ["nodes", *varying_links]
    all_panels = selection.level_combinations(network, panel_factors)
    all_panels.sort(key=lambda levels: list(COLLECTIVES).index(levels.get("collective", ALL_REDUCE)))
    panel_levels = all_panels[: panels.max_panels_on_page(PANEL_INCHES + panels.titles_height(all_panels))]
    text = f"The first {len(panel_levels)} of {len(all_panels)} panels are drawn; the table has all."
    omission_note = Note("panels-left-out", text, drawn=len(panel_levels), panels=len(all_panels))
    has_bound = bool(ok["link_bytes_s"].notna().any())
    bound_handle = Line2D([], [], color=style.MUTED, linewidth=0.8, linestyle=BOUND_LINE, label="link rate")
    fit_handle = Line2D([], [], label="fit", **FIT_LINE)
    # Whether a fit is drawn is known only after drawing, so the legend has room for it in any case.
    further_handles = [fit_handle, *([bound_handle] if has_bound else [])]
    is_titled = len(panel_levels) > 1
    grid = panels.create_grid(
        panel_levels if is_titled else [{}],
        PANEL_INCHES,
        len([*all_series, *further_handles]),
        max_columns=_max_columns(network, len(panel_levels)),
    )
    unit, fits = _rate_unit(ok), _Fits()
    for ax, levels in zip(grid.axes, panel_levels, strict=True):
        _draw_panel(ax, ok, levels, all_series, unit, fits)
        if is_titled:
            ax.set_title(panels.panel_title(levels))
        _set_axes(ax, ok, TICK_FACTOR_IN_PANELS if is_titled else TICK_FACTOR)
    grid.label("message size", f"bus bandwidth ({unit.name})")
    if len(fits.drawn) == 1 < len(all_series):
        fit_handle.set_label(f"fit, {next(iter(fits.drawn))} only")
    legends.add_legend(grid.figure, all_series, further_handles if fits.drawn else further_handles[1:])
    same_note = Note("same-in-all-panels", f"All on {panels.panel_title(scales[0])}.", levels=scales[0])
    lead = LEAD.format(
        collectives_text(network), OWN_LIBRARY if ok["key"].notna().any() else "", rounds_text(network)
    )
    placement = placement_note(ok)
    sentences = [
        lead,
        _drawn_fits_note(fits.drawn),
        _poor_fits_note(fits.poor),
        BOUND_NOTE if has_bound else "",
        "" if is_titled and len(scales) > 1 else same_note,
        placement,
        _not_fitted_note(fits.missing),
        "" if (network["status"] == "ok").all() else missing_benchmarks_note(network),
        omission_note if len(panel_levels) < len(all_panels) else "",
    ]
    notes = [HOW_TO_READ.format(factors_text(network)), link_rates_text(network), setup_note(network)]
    return grid.figure, captions.split_caption(sentences, notes, keep_first=[lead, placement])


def _max_columns(network: pd.DataFrame, n_panels: int) -> int:
    """Return the columns that give each number of nodes, or each collective, its own row, if these fit."""
    n_links, n_nodes = network["bandwidth"].nunique(), network["nodes"].nunique()
    n_collectives = network["collective"].nunique()
    if n_collectives == 1:
        in_row, n_rows, min_columns = n_links, n_nodes, 3
    else:
        in_row, n_rows, min_columns = len(network[["nodes", "bandwidth"]].drop_duplicates()), n_collectives, 2
    fits = n_panels == in_row * n_rows and min_columns <= in_row <= panels.MAX_GRID_COLUMNS
    return in_row if fits else panels.MAX_GRID_COLUMNS


def _rate_unit(ok: pd.DataFrame) -> Unit:
    """Return the unit of the axis of bus bandwidth."""
    rows = ok[["bytes", "seconds", "ranks", "collective"]].itertuples(index=False)
    return choose_unit([bus_bandwidth(*row) for row in rows], DATA_RATES)


def _drawn_fits_note(deviations: Mapping[str, float]) -> str:
    """Return which frameworks have a fit, and how far it is off at most; "" without a fit."""
    text = f"Fits drawn, largest deviation: {_in_percent(deviations)}."
    return Note("fits-deviate", text, deviations=deviations) if deviations else ""


def _poor_fits_note(deviations: Mapping[str, float]) -> str:
    """Return which frameworks have a fit that is not drawn; "" for none."""
    text = f"Poor fits, not drawn: {_in_percent(deviations)}."
    return Note("fits-not-drawn", text, deviations=deviations) if deviations else ""


def _not_fitted_note(benchmarks: Sequence[str]) -> str:
    """Return which benchmarks have no fit; "" for none."""
    text = f"Without a fit of positive latency and bandwidth: {'; '.join(benchmarks)}."
    return Note("benchmarks-not-fitted", text, benchmarks=benchmarks) if benchmarks else ""


def _in_percent(deviations: Mapping[str, float]) -> str:
    """Return each framework with the largest deviation of its fit, such as `lbann (12 %)`."""
    return ", ".join(f"{name} ({deviation_text(deviation)} %)" for name, deviation in deviations.items())


def _draw_panel(
    ax: Axes,
    ok: pd.DataFrame,
    levels: Mapping[str, Any],
    all_series: Sequence[Series],
    unit: Unit,
    fits: _Fits,
) -> None:
    """Draw the benchmarks of a panel and the rates of its links, and add its fits to `fits`."""
    panel_rows = selection.rows_at(ok, levels)
    for series in all_series:
        if (benchmark := series.select(panel_rows)).empty:
            continue
        if (law := _draw_framework(ax, benchmark, series.style, unit)) is None:
            fits.missing.append(f"{series.name} on {combination_text(levels)}")
        else:
            largest = fits.poor if law.deviation > MAX_FIT_DEVIATION else fits.drawn
            largest[series.name] = max(law.deviation, largest.get(series.name, 0.0))
    links = panel_rows[["link_bytes_s", "nodes", "ranks", "collective"]].dropna().drop_duplicates()
    for limit in {bandwidth_bound(*link) for link in links.itertuples(index=False)}:
        ax.axhline(limit / unit.size, color=style.MUTED, linewidth=0.8, linestyle=BOUND_LINE)
    if panel_rows.empty:
        panels.write_remark(ax, NO_SUCCESSFUL_BENCHMARK)


def _draw_framework(
    ax: Axes, benchmark: pd.DataFrame, series_style: SeriesStyle, unit: Unit
) -> BenchmarkFit | None:
    """Draw one framework's bus bandwidth by message size, and its fit unless it deviates too much.

    Return the fit, None without one.
    """
    by_size = bus_bandwidths(benchmark)
    for size, estimate in by_size.items():
        bars = [estimate.low / unit.size, estimate.high / unit.size]
        ax.plot([size] * 2, bars, color=series_style.colour, linewidth=0.9, solid_capstyle="butt", zorder=3)
    ax.plot(
        list(by_size),
        [estimate.value / unit.size for estimate in by_size.values()],
        zorder=4,
        **marks.marker_style(series_style)
        | {"linestyle": series_style.line, "linewidth": JOINING_LINE_WIDTH},
    )
    ranks, collective = int(benchmark["ranks"].iloc[0]), benchmark["collective"].iloc[0]
    for size, times in round_medians(benchmark).items():
        rounds = pd.Series([bus_bandwidth(size, time, ranks, collective) / unit.size for time in times])
        if len(rounds) > 1:
            marks.draw_replicates(ax, series_style, ROUND_TICK_FACTOR * size, rounds)
    law = fit_benchmark(benchmark)
    if law is None or not law.bandwidth_bytes_s.value > 0:
        return None
    if law.deviation > MAX_FIT_DEVIATION:
        return law
    sizes = np.geomspace(benchmark["bytes"].min(), benchmark["bytes"].max(), 100)
    seconds = law.seconds(sizes)
    rate = (
        law.seconds_per_byte.value
        * law.bandwidth_bytes_s.value
        * sizes
        / np.where(seconds > 0, seconds, np.nan)
    )
    ax.plot(sizes, rate / unit.size, **FIT_LINE)
    return law


def _set_axes(ax: Axes, ok: pd.DataFrame, factor: int) -> None:
    smallest, largest = float(ok["bytes"].min()), float(ok["bytes"].max())
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = smallest * factor ** np.arange(1 + math.floor(math.log(largest / smallest, factor) + 1e-9))
    ax.set_xticks(list(ticks), [bytes_text(size) for size in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(smallest / 2, largest * 2)
    value_axis.set_round_ticks(ax.yaxis)
    ax.grid(True)
