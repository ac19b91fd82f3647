"""Draw speed-up and parallel efficiency over devices, with the ideal and an estimate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import conditions, tables
from analysis.batch_scaling import batch_scaling, scaling_phrase
from analysis.effects import build_rows as build_effects
from analysis.intervals import SIGNIFICANCE_LEVEL
from analysis.level_words import device_axis_label
from analysis.records import Records, baseline_frameworks, size_factor_name
from analysis.speedup import accumulation_note, baseline_cells, build_rows
from common.notes import Note
from declared.factors import factor_names
from declared.figure_specs import FigureSpec
from figures import captions, legends, lines, marks, panels, selection, style, value_axis
from figures.lines import LevelAxis, Placement
from figures.selection import Series
from figures.view import View, build_view
from network.fit import MAX_FIT_DEVIATION, deviation_text, summarize

PANEL_INCHES = 1.3


class Ratio(NamedTuple):
    """A ratio of epoch times, which a row of panels shows.

    Attributes:
        name: Its name in the caption.
        label: Label of its axis.
        multiplier: Factor to the unit of the axis, which is also the ideal value of one device.
        ideal_exponent: The power of the number of devices that its ideal is proportional to.
    """

    name: str
    label: str
    multiplier: float
    ideal_exponent: int


# Keyed by the column of `speedup.build_rows`.
RATIOS = {
    "speedup": Ratio("speed-up", "speed-up", 1.0, ideal_exponent=1),
    "efficiency": Ratio("efficiency", "efficiency (%)", 100.0, ideal_exponent=0),
}
EFFICIENCY = "efficiency"
MIN_ZOOMED_EFFICIENCY = 80.0  # in %; an axis of higher ones does not start at 0
MAX_IDEAL_REACH = 1.7  # end of the ideal line, relative to the largest speed-up
MAX_OCTAVES = 0.06  # largest shift of a marker on an axis of doublings, 4 % of the ideal
LEAD = "{ratios}{scaling}. Bars: uncorrected 95 % intervals."
HOW_TO_READ = (
    "Speed-up: mean epoch time of the baseline divided by mean epoch time of the cell. Ideal: devices of "
    "the cell divided by devices of the baseline. Efficiency: speed-up divided by the ideal. Lines between "
    "markers only guide the eye."
)
ESTIMATE_EXPLAINED = Note(
    "estimate",
    "The dotted estimate is the speed-up without waiting. Devices share the computation of one, messages "
    "take the time that the collective benchmark measured, the backward pass overlaps them if the framework "
    "sends during it, and no rank waits or shares its cores.",
)
NO_MULTI_DEVICE_CELL = Note("no-multi-device-cell", "no cell with several devices succeeded")
SINGLE_DEVICE_ONLY = Note("panel-of-one-device", "they have no cell with several devices")


@dataclass(frozen=True)
class _DrawnRatios:
    """What the panels show.

    Attributes:
        ratios: What the rows of panels show, from the top.
        rows: A row per planned cell of the view (`cell_rows`).
        drawn_rows: Those in the panels.
        panel_levels: Levels of each panel.
        series: Series with a line, or with a cell that ran out of memory.
        ran_out: Rows of cells with several devices that ran out of memory.
        left_out: Levels of the panels without a cell of several devices.
    """

    ratios: dict[str, Ratio]
    rows: pd.DataFrame
    drawn_rows: pd.DataFrame
    panel_levels: list[dict[str, Any]]
    series: list[Series]
    ran_out: pd.DataFrame
    left_out: list[dict[str, Any]]

    @property
    def estimate_excess(self) -> dict[str, float]:
        """For each series with an estimate, the largest ratio of estimated to measured speed-up."""
        rows = self.drawn_rows[self.drawn_rows["n_devices"] > 1]
        return {
            series.name: float((estimated["estimated_speedup"] / estimated["speedup"]).max())
            for series in self.series
            if (estimated := series.select(rows).dropna(subset=["estimated_speedup", "speedup"])).size
        }


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, speed-up above efficiency for each combination of other factors, and its caption."""
    view = build_view(records.runs, spec)
    if view.ok.empty:
        return panels.empty_figure(view.runs)
    rows = cell_rows(view, records.table("network"))
    compared = rows["speedup"].notna()
    if not (compared & (rows["n_devices"] > rows["baseline_n_devices"])).any():
        return panels.empty_figure(
            view.runs, NO_MULTI_DEVICE_CELL if compared.any() else captions.as_clause(lines.NO_BASELINE)
        )
    view, drawn = _select_ratios(view, rows)
    figure, axis_notes = _draw_all_ratios(drawn, device_axis_label(drawn.drawn_rows))
    return figure, _caption(view, drawn, axis_notes)


def _select_ratios(view: View, rows: pd.DataFrame) -> tuple[View, _DrawnRatios]:
    """Return the part of the view that fits a page, and what its panels show."""
    is_above_baseline = rows["speedup"].notna() & (rows["n_devices"] > rows["baseline_n_devices"])
    drawable = selection.nonempty_panels(view.panel_levels, rows[is_above_baseline])
    left_out = [levels for levels in view.panel_levels if levels not in drawable]
    ratios = ratios_to_draw(view.spec)
    panel_in = len(ratios) * PANEL_INCHES + panels.titles_height(drawable)
    view = view.fit_to_page(panel_in, panel_levels=drawable)
    is_in_view = rows["cell"].isin(view.cells["cell"])
    rows, above_baseline = rows[is_in_view], rows[is_in_view & is_above_baseline]
    panel_levels = selection.nonempty_panels(view.panel_levels, above_baseline)
    drawn_rows = pd.concat([selection.rows_at(rows, levels) for levels in panel_levels])
    ran_out = rows[rows["cell"].isin(view.out_of_memory) & (rows["n_devices"] > 1)]
    series = [
        candidate
        for candidate in view.series
        if len(candidate.select(above_baseline)) or len(candidate.select(ran_out))
    ]
    return view, _DrawnRatios(ratios, rows, drawn_rows, panel_levels, series, ran_out, left_out)


def _draw_all_ratios(drawn: _DrawnRatios, x_label: str) -> tuple[Figure, list[str]]:
    """Return the figure with all panels and the legend, and notes on its axes."""
    further_handles = [Line2D([], [], color=style.MUTED, label="ideal", **lines.IDEAL_LINE)]
    if names := list(drawn.estimate_excess):
        estimated = [series for series in drawn.series if series.name in names]
        colour = estimated[0].style.colour if len(names) == 1 else style.MUTED
        bound: dict[str, Any] = {"color": colour, "linewidth": 0.7, "linestyle": lines.BOUND_LINE}
        label = (
            f"model estimate, {names[0]} only" if len(names) == 1 < len(drawn.series) else "model estimate"
        )
        further_handles.append(Line2D([], [], label=label, **bound))
    n_bands, n_columns, width = panels.layout(len(drawn.panel_levels))
    above_in = legends.legend_height(len([*drawn.series, *further_handles]), width)
    n_ratios = len(drawn.ratios)
    panels_in = n_bands * (n_ratios * PANEL_INCHES + panels.titles_height(drawn.panel_levels))
    figure = style.new_figure(width, panels_in + 0.15 + above_in)
    axes = figure.subplots(n_ratios * n_bands, n_columns, squeeze=False, sharex=True, sharey="row")
    placement = place_size_series(drawn.drawn_rows, drawn.series)
    limits = {name: axis_ends(drawn.drawn_rows, name, drawn.ratios) for name in drawn.ratios}
    for ax in axes.flat:
        ax.set_axis_off()
    for panel, levels in enumerate(drawn.panel_levels):
        band, column = divmod(panel, n_columns)
        for row, name in enumerate(drawn.ratios):
            ax = axes[n_ratios * band + row, column]
            ax.set_axis_on()
            _draw_ratios(ax, drawn, levels, name, placement)
            ax.set_ylim(*limits[name])
            ax.grid(True, axis="y")
            placement.axis.apply(ax, placement.axis.labels(width / n_columns))
            if column == 0:
                ax.set_ylabel(RATIOS[name].label)
            is_lowest = row == n_ratios - 1
            ax.tick_params(labelbottom=is_lowest and panel + n_columns >= len(drawn.panel_levels))
        axes[n_ratios * band, column].set_title(panels.panel_title(levels))
    figure.supxlabel(x_label, fontsize=style.FONT_SIZE)
    legends.add_legend(figure, drawn.series, further_handles)
    is_zoomed = any(low > 0 for low, _ in limits.values())
    return figure, [captions.NOT_FROM_ZERO if is_zoomed else "", placement.axis.axis_note(x_label)]


def _draw_ratios(
    ax: Axes, drawn: _DrawnRatios, levels: Mapping[str, Any], column: str, placement: Placement
) -> None:
    """Draw the ideal, the series, and the cells that ran out of memory."""
    panel_rows = selection.rows_at(drawn.rows, levels)
    for ideal in ideal_lines(column, placement.axis, panel_rows):
        lines.draw_ideal(ax, ideal, style.MUTED)
    for series in drawn.series:
        _draw_ratio_line(ax, series, series.select(panel_rows), column, placement)
    for n_devices, cells in selection.rows_at(drawn.ran_out, levels).groupby("n_devices"):
        styles = [series.style for series in drawn.series if len(series.select(cells))]
        marks.mark_out_of_memory(ax, placement.axis.positions[n_devices], styles)


def _caption(view: View, drawn: _DrawnRatios, axis_notes: Sequence[str]) -> captions.Caption:
    """Return the caption of the figure."""
    rows = drawn.drawn_rows
    baselines = baseline_cells(view.unfiltered_runs)
    scaling = batch_scaling(view.runs, size_factor_name(view.runs))
    without_baseline = [cell for cell in dict.fromkeys(view.ok["cell"]) if cell not in baselines]
    used = sorted(set(rows["baseline_cell"].dropna()))
    return view.caption(
        LEAD.format(
            ratios=" and ".join(ratio.name for ratio in drawn.ratios.values()).capitalize(),
            scaling=scaling_phrase(scaling),
        ),
        *axis_notes[:1],
        _baseline_time_note(used, view, is_accumulating=not accumulation_note(rows)),
        _above_ideal_note(rows, view),
        _estimate_note(drawn.estimate_excess),
        captions.SINGLE_RUNS if _is_single_run(rows[rows["n_devices"] > 1]).any() else "",
        _no_baseline_note(without_baseline),
        endnotes=[
            scaling or "",
            HOW_TO_READ,
            accumulation_note(rows),
            conditions.device_count_note(view.runs),
            *axis_notes[1:],
            ESTIMATE_EXPLAINED if drawn.estimate_excess else "",
            _left_out_estimates_note(rows),
            lines.baselines_note(used, view),
            lines.left_out_note(drawn.left_out, SINGLE_DEVICE_ONLY),
        ],
    )


def _baseline_time_note(used: Sequence[str], view: View, *, is_accumulating: bool) -> str:
    """Return what the baseline cells `used` are, and the range of their mean epoch times.

    Unless they accumulate as the cells do, the note says that they do not accumulate.
    """
    times = [view.estimate(cell).value for cell in used]
    ends = dict.fromkeys(tables.number(end) for end in (min(times), max(times)))
    baseline_runs = view.unfiltered_runs[view.unfiltered_runs["cell"].isin(set(used))]
    names = sorted(set(baseline_runs["framework"]))
    single_device = baseline_frameworks(baseline_runs)
    description = " or ".join(names) if names == single_device else "the fewest devices"
    name = "Baseline" if is_accumulating else "Baseline, without accumulation"
    text = f"{name}: {description} ({' to '.join(ends)} {view.response.unit})."
    return Note("baseline-time", text, shortest=min(times), longest=max(times), frameworks=names)


def _above_ideal_note(rows: pd.DataFrame, view: View) -> str:
    """Return which cells on one device are faster than their baseline, beyond their interval; "" for none.

    The note says so if none of them differs by the tests of the table `effects`, which are corrected for the
    number of comparisons.
    """
    above = rows[(rows["n_devices"] == 1) & (rows["efficiency_low"] > 1)]
    if above.empty:
        return ""
    names = [series.name for series in view.series if len(series.select(above))]
    p_holm = build_effects(view.unfiltered_runs).set_index(["from_cell", "to_cell"])["p_holm"]
    p_above = p_holm.reindex(pd.MultiIndex.from_frame(above[["baseline_cell", "cell"]]))
    is_insignificant = bool((p_above >= SIGNIFICANCE_LEVEL).all())
    corrected = ", not significant after correction" if is_insignificant else ""
    text = f"Above 100 % on one device: {', '.join(names)}{corrected}."
    facts = {"cells": above["cell"].tolist(), "significant": not is_insignificant}
    return Note("above-ideal", text, **facts)


def _estimate_note(estimate_excess: Mapping[str, float]) -> str:
    """Return which series have an estimate, and by how much it is too high at most; "" without one."""
    if not estimate_excess:
        return ""
    excess = 100 * (max(estimate_excess.values()) - 1)
    error = f", up to {excess:.0f} % too high" if excess >= 1 else ""
    text = f"Dotted: modelled without waiting or contention{error}."
    return Note("estimate-drawn", text, ratios=dict(estimate_excess))


def _no_baseline_note(cells: Sequence[str]) -> str:
    """Return which cells have no successful baseline; "" for none."""
    text = f"Not drawn, because their baseline has no successful run: {conditions.join_names(cells)}."
    return Note("cells-without-baseline", text, cells=list(cells)) if cells else ""


def cell_rows(view: View, network: pd.DataFrame) -> pd.DataFrame:
    """Return each planned cell with factors, devices, columns of `speedup.build_rows` if any, and estimates.

    `estimated_speedup` and `estimated_efficiency` are those without waiting (`shortest_epochs`). They need a
    collective benchmark that follows its fit; `fit_deviation` is its largest deviation from the fit.
    """
    measured = build_rows(view.unfiltered_runs)
    measured = measured.drop(columns=[*factor_names(measured), "n_devices"])
    planned = view.runs.drop_duplicates("cell")[["cell", "n_devices", *factor_names(view.runs)]]
    rows = planned.merge(measured, how="left", on="cell")
    lower_bounds: Mapping[str, float] = {}
    if len(network):
        from prediction.study_predictor import shortest_epochs  # slow to import, and few studies need it

        lower_bounds = shortest_epochs(view.unfiltered_runs, network)
    shortest, shortest_baseline = (
        rows[name].map(lower_bounds).astype(float) for name in ("cell", "baseline_cell")
    )
    deviation = _fit_deviations(network, rows).where(shortest.notna())
    estimate = (shortest_baseline / shortest).where(~(deviation > MAX_FIT_DEVIATION))
    return rows.assign(
        estimated_speedup=estimate,
        estimated_efficiency=estimate / rows["n_devices"].astype(float),
        fit_deviation=deviation,
    )


def _fit_deviations(network: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Return how far the collective benchmark of each row's framework and nodes is from its fit.

    NaN on one node; at a number of nodes without a benchmark, the largest deviation of the framework.
    """
    if network.empty:
        return pd.Series(np.nan, index=rows.index)
    deviations = summarize(network).groupby(["framework", "nodes"])["deviation"].max()
    of_framework = deviations.groupby("framework").max()
    at_nodes = pd.Series(
        [deviations.get((row.framework, row.nodes), np.nan) for row in rows.itertuples()], index=rows.index
    )
    return at_nodes.fillna(rows["framework"].map(of_framework)).where(rows["nodes"] > 1)


def _left_out_estimates_note(rows: pd.DataFrame) -> str:
    """Return which frameworks have no estimate because their benchmark deviates from its fit; "" for none."""
    left_out = rows[rows["fit_deviation"] > MAX_FIT_DEVIATION].groupby("framework")["fit_deviation"].max()
    if left_out.empty:
        return ""
    names = ", ".join(f"{name} ({deviation_text(deviation)} %)" for name, deviation in left_out.items())
    text = (
        f"Without a model estimate, because the fit of the collective benchmark deviates by more than "
        f"{100 * MAX_FIT_DEVIATION:g} %: {names}."
    )
    return Note("estimates-left-out", text, deviations=left_out.to_dict())


def place_size_series(rows: pd.DataFrame, series: Sequence[Series]) -> Placement:
    """Return the axis of devices of the rows, and of 1 unless all baselines have more, with its series.

    On an axis of doublings offsets are small, because the ideal is higher at a marker that is moved.
    """
    begins_later = bool((rows["baseline_n_devices"] > 1).all())
    axis = lines.number_axis(sorted({*rows["n_devices"], *([] if begins_later else [1])}), len(series))
    offsets = marks.dodge_offsets([one_series.name for one_series in series], axis.gap)
    largest = max(map(abs, offsets.values()), default=0.0)
    if axis.doubling and largest > MAX_OCTAVES:
        offsets = {name: offset * MAX_OCTAVES / largest for name, offset in offsets.items()}
    return Placement(axis, offsets)


def _is_single_run(rows: pd.DataFrame) -> pd.Series:
    """Return, for each row, whether its cell or baseline has a single run and thus a pooled interval."""
    has_interval = rows["speedup_high"].notna()
    return ((rows["n"] == 1) | (rows["baseline_n"] == 1)) & has_interval


def ratios_to_draw(spec: FigureSpec) -> dict[str, Ratio]:
    """Return the ratios that a figure draws, by column: both, or efficiency alone."""
    return {name: value for name, value in RATIOS.items() if spec.y != EFFICIENCY or name == EFFICIENCY}


def axis_ends(rows: pd.DataFrame, column: str, ratios: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of an axis, from 0 unless efficiency is drawn alone and stays near its ideal."""
    if list(ratios) == [EFFICIENCY]:
        drawn = rows.columns.intersection([column, f"{column}_low", f"{column}_high"])
        values = 100 * rows[drawn].to_numpy(float)
        lowest, highest = float(np.nanmin(values)), max(100.0, float(np.nanmax(values)))
        if lowest > MIN_ZOOMED_EFFICIENCY:
            margin = value_axis.ZOOMED_MARGIN * (highest - lowest)
            return lowest - margin, highest + margin
    return 0.0, axis_top(rows, column)


def axis_top(rows: pd.DataFrame, column: str) -> float:
    """Return the upper end of an axis that shows all intervals and estimates, and a part of the ideal."""
    unit = RATIOS[column].multiplier
    drawn = rows.columns.intersection([column, f"{column}_high", f"estimated_{column}"])
    largest = unit * np.nanmax(rows[drawn].to_numpy(float))
    largest_ideal = (rows["n_devices"] / rows["baseline_n_devices"].fillna(1)).max()
    ideal = unit * (largest_ideal if column == "speedup" else 1.0)
    return float(1.06 * max(largest, min(ideal, MAX_IDEAL_REACH * max(largest, unit))))


def ideal_lines(column: str, axis: LevelAxis, rows: pd.DataFrame) -> list[np.ndarray]:
    """Return positions and values, [2, n], of an ideal for each number of devices that baselines have."""
    ideals, ratio = [], RATIOS[column]
    for fewest in sorted(set(rows["baseline_n_devices"].dropna())):
        n_devices = np.linspace(max(fewest, min(axis.positions)), max(axis.positions), lines.IDEAL_POINTS)
        values = lines.ideal_values(n_devices, ratio.multiplier, fewest, ratio.ideal_exponent)
        ideals.append(np.array([axis.position(n_devices), values]))
    return ideals


def _draw_ratio_line(ax: Axes, series: Series, rows: pd.DataFrame, column: str, placement: Placement) -> None:
    """Draw one series of one panel, with its estimate."""
    offset = placement.offsets[series.name]
    unit = RATIOS[column].multiplier
    rows = rows.sort_values("n_devices")
    x = rows["n_devices"].map(placement.axis.positions).to_numpy(float)
    values, low, high, estimate = (
        unit * rows[name].to_numpy(float)
        for name in (column, f"{column}_low", f"{column}_high", f"estimated_{column}")
    )
    single = _is_single_run(rows).to_numpy()
    bar: dict[str, Any] = {"color": series.style.colour, "linewidth": 0.9, "zorder": 3}
    ax.vlines(x[~single] + offset, low[~single], high[~single], **bar)
    ax.vlines(x[single] + offset, low[single], high[single], linestyles=marks.SINGLE_RUN_LINE, **bar)
    ax.plot(x + offset, values, color=series.style.colour, linestyle=series.style.line, zorder=2)
    ax.plot(x + offset, values, zorder=4, **marks.marker_style(series.style))
    ax.plot(x, estimate, color=series.style.colour, linewidth=0.7, linestyle=lines.BOUND_LINE, zorder=1)
