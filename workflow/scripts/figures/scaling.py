"""Draw speed-up and parallel efficiency over devices, with the ideal and an estimate."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import conditions, tables
from analysis.batch_scaling import batch_scaling, scaling_phrase
from analysis.measured import Records, device_axis_label, factors, size_factor_name
from analysis.speedup import accumulation_note, baseline_cells, build_rows
from common.notes import Note
from declared.figures import FigureSpec
from figures import lines, panels, style
from figures.lines import LevelAxis, Placement
from figures.panels import Series
from figures.view import View, build_view
from network.fit import MAX_FIT_DEVIATION, compare

PANEL_INCHES = 1.3
QUANTITIES = {"speedup": ("speed-up", 1.0), "efficiency": ("efficiency (%)", 100.0)}
MAX_IDEAL_REACH = 1.7  # of the ideal line, relative to the largest speed-up
MAX_OCTAVES = 0.06  # by which a marker is moved on an axis of doublings, 4 % of the ideal
HEADING = "Speed-up (above) and efficiency (below){}. Bars: 95 % intervals."
HOW_TO_READ = (
    "Speed-up: mean epoch time of the baseline divided by mean epoch time of the cell. Ideal: devices of "
    "the cell divided by devices of the baseline. Efficiency: speed-up divided by the ideal. Lines between "
    "markers only guide the eye."
)
ESTIMATE_NOTE = Note("estimate-drawn", "Fine dots: model estimate.")
ESTIMATE_EXPLAINED = Note(
    "estimate",
    "Fine dotted lines: speed-up expected without waiting. Devices share the computation of one, messages "
    "take the time that the collective benchmark measured, the backward pass overlaps them if the framework "
    "sends during it, and no rank waits.",
)
NO_PARALLEL_CELL = Note("no-replicas", "no cell with several devices succeeded")
NO_BASELINE = Note("no-baseline", "no baseline succeeded")
SINGLE_DEVICE_ONLY = Note("one-replica", "they have no cell with several devices")


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, panels.Caption]:
    """Return the figure, speed-up above efficiency for each combination of other factors, and its caption."""
    view = build_view(records.runs, spec)
    if view.ok.empty:
        return panels.empty_figure(view.runs)
    rows = cell_rows(view, records.table("network"))
    compared = rows["speedup"].notna()
    if not (compared & (rows["n_devices"] > rows["baseline_n_devices"])).any():
        return panels.empty_figure(view.runs, NO_PARALLEL_CELL if compared.any() else NO_BASELINE)
    multi_device = rows[compared & (rows["n_devices"] > rows["baseline_n_devices"])]
    drawable = panels.nonempty_panels(view.panels, multi_device)
    left_out = [levels for levels in view.panels if levels not in drawable]
    view = view.fit_to_page(2 * PANEL_INCHES + panels.titles_height(drawable), panel_levels=drawable)
    rows, multi_device = (frame[frame["cell"].isin(view.cells["cell"])] for frame in (rows, multi_device))
    panel_levels = panels.nonempty_panels(view.panels, multi_device)
    drawn_rows = pd.concat([panels.rows_at(rows, levels) for levels in panel_levels])
    ran_out = rows[rows["cell"].isin(view.out_of_memory) & (rows["n_devices"] > 1)]
    drawn_series = [
        series for series in view.series if len(series.select(multi_device)) or len(series.select(ran_out))
    ]
    further_handles = [Line2D([], [], color=style.MUTED, label="ideal", **lines.IDEAL_LINE)]
    has_estimate = bool((drawn_rows["estimated_speedup"].notna() & (drawn_rows["n_devices"] > 1)).any())
    if has_estimate:
        bound: dict[str, Any] = {"color": style.MUTED, "linewidth": 0.7, "linestyle": lines.BOUND_LINE}
        further_handles.append(Line2D([], [], label="model estimate", **bound))
    n_bands, n_columns, width = panels.layout(len(panel_levels))
    above_in = panels.legend_height(len([*drawn_series, *further_handles]), width)
    height = n_bands * (2 * PANEL_INCHES + panels.titles_height(panel_levels)) + 0.15 + above_in
    figure = style.new_figure(width, height)
    axes = figure.subplots(2 * n_bands, n_columns, squeeze=False, sharex=True, sharey="row")
    placement = place_series(drawn_rows, drawn_series)
    axis = placement.axis
    tops = {name: axis_top(drawn_rows, name) for name in QUANTITIES}
    for ax in axes.flat:
        ax.set_axis_off()
    for panel, levels in enumerate(panel_levels):
        band, column = divmod(panel, n_columns)
        panel_rows = panels.rows_at(rows, levels)
        for row, name in enumerate(QUANTITIES):
            ax = axes[2 * band + row, column]
            ax.set_axis_on()
            _draw_ideals(ax, name, axis, panel_rows)
            for series in drawn_series:
                _draw_series(ax, series, series.select(panel_rows), name, placement)
            for n_devices, cells in panels.rows_at(ran_out, levels).groupby("n_devices"):
                styles = [series.style for series in drawn_series if len(series.select(cells))]
                panels.mark_out_of_memory(ax, axis.positions[n_devices], styles)
            ax.set_ylim(0, tops[name])
            ax.grid(True, axis="y")
            axis.apply(ax, axis.labels(width / n_columns))
            if column == 0:
                ax.set_ylabel(QUANTITIES[name][0])
            ax.tick_params(labelbottom=row == 1 and panel + n_columns >= len(panel_levels))
        axes[2 * band, column].set_title(panels.panel_title(levels))
    x_label = device_axis_label(drawn_rows)
    figure.supxlabel(x_label, fontsize=style.FONT_SIZE)
    panels.add_legend(figure, drawn_series, further_handles)
    baselines, kept_batch = (
        baseline_cells(view.all_runs),
        batch_scaling(view.runs, size_factor_name(view.runs)),
    )
    without_baseline = [cell for cell in dict.fromkeys(view.ok["cell"]) if cell not in baselines]
    used = sorted(set(drawn_rows["baseline_cell"].dropna()))
    return figure, view.caption(
        HEADING.format(scaling_phrase(kept_batch)),
        _baseline_time_note(used, view),
        ESTIMATE_NOTE if has_estimate else "",
        panels.SINGLE_RUNS if _is_single_run(drawn_rows[drawn_rows["n_devices"] > 1]).any() else "",
        _no_baseline_note(without_baseline),
        endnotes=[
            kept_batch or "",
            HOW_TO_READ,
            accumulation_note(drawn_rows),
            conditions.device_count_note(view.runs),
            axis.axis_note(x_label),
            ESTIMATE_EXPLAINED if has_estimate else "",
            _left_out_estimates_note(drawn_rows),
            lines.baselines_note(used, view),
            lines.left_out_note(left_out, SINGLE_DEVICE_ONLY),
        ],
    )


def _baseline_time_note(used: Sequence[str], view: View) -> str:
    """Return the range of the mean epoch times of the baseline cells `used`."""
    times = [view.estimate(cell).value for cell in used]
    ends = dict.fromkeys(tables.number(end) for end in (min(times), max(times)))
    text = f"Baseline: {' to '.join(ends)} {view.response.unit}."
    return Note("baseline-time", text, shortest=min(times), longest=max(times))


def _no_baseline_note(cells: Sequence[str]) -> str:
    """Return which cells have no successful baseline; "" for none."""
    text = f"Not drawn, because their baseline has no successful run: {conditions.join_names(cells)}."
    return Note("cells-without-baseline", text, cells=list(cells)) if cells else ""


def cell_rows(view: View, network: pd.DataFrame) -> pd.DataFrame:
    """Return each planned cell with factors, devices, columns of `speedup.build_rows` if any, and estimates.

    `estimated_speedup` and `estimated_efficiency` are those without waiting (`shortest_epochs`). They need a
    collective benchmark that follows its fit; `fit_deviation` is its largest deviation from the fit.
    """
    measured = build_rows(view.all_runs)
    measured = measured.drop(columns=[*factors(measured), "n_devices"])
    planned = view.runs.drop_duplicates("cell")[["cell", "n_devices", *factors(view.runs)]]
    rows = planned.merge(measured, how="left", on="cell")
    lower_bounds: Mapping[str, float] = {}
    if len(network):
        from prediction.study import shortest_epochs  # slow to import, and few studies need it

        lower_bounds = shortest_epochs(view.all_runs, network)
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
    deviations = compare(network).groupby(["framework", "nodes"])["deviation"].max()
    of_framework = deviations.groupby("framework").max()
    at_nodes = pd.Series(
        [deviations.get((row.framework, row.nodes), np.nan) for row in rows.itertuples()], index=rows.index
    )
    return at_nodes.fillna(rows["framework"].map(of_framework)).where(rows["nodes"] > 1)


def _left_out_estimates_note(rows: pd.DataFrame) -> str:
    """Return which frameworks have no estimate because their benchmark does not follow its fit."""
    left_out = rows[rows["fit_deviation"] > MAX_FIT_DEVIATION].groupby("framework")["fit_deviation"].max()
    if left_out.empty:
        return ""
    names = ", ".join(f"{name} ({100 * deviation:.0f} %)" for name, deviation in left_out.items())
    text = (
        f"Without a model estimate, because the fit of the collective benchmark deviates by more than "
        f"{100 * MAX_FIT_DEVIATION:g} %: {names}."
    )
    return Note("estimates-left-out", text, deviations=left_out.to_dict())


def device_counts(rows: pd.DataFrame) -> list[int]:
    """Return the levels of the axis: the devices of the rows, and 1 unless all baselines have more."""
    begins_later = bool((rows["baseline_n_devices"] > 1).all())
    return sorted({*rows["n_devices"], *([] if begins_later else [1])})


def place_series(rows: pd.DataFrame, series: Sequence[Series]) -> Placement:
    """Return the axis of devices of the rows, and where the series stand on it.

    On an axis of doublings offsets are small, because the ideal is higher at a marker that is moved.
    """
    axis = lines.number_axis(device_counts(rows), len(series))
    offsets = panels.dodge_offsets([one_series.name for one_series in series], axis.gap)
    largest = max(map(abs, offsets.values()), default=0.0)
    if axis.doubling and largest > MAX_OCTAVES:
        offsets = {name: offset * MAX_OCTAVES / largest for name, offset in offsets.items()}
    return Placement(axis, offsets)


def _is_single_run(rows: pd.DataFrame) -> pd.Series:
    """Return, for each row, whether its cell or baseline has a single run and thus a pooled interval."""
    has_interval = rows["speedup_high"].notna()
    return ((rows["n"] == 1) | (rows["baseline_n"] == 1)) & has_interval


def axis_top(rows: pd.DataFrame, quantity: str) -> float:
    """Return the upper end of an axis that shows all intervals and estimates, and a part of the ideal."""
    _, unit = QUANTITIES[quantity]
    drawn = rows.columns.intersection([quantity, f"{quantity}_high", f"estimated_{quantity}"])
    largest = unit * np.nanmax(rows[drawn].to_numpy(float))
    largest_ideal = (rows["n_devices"] / rows["baseline_n_devices"].fillna(1)).max()
    ideal = unit * (largest_ideal if quantity == "speedup" else 1.0)
    return float(1.06 * max(largest, min(ideal, MAX_IDEAL_REACH * max(largest, unit))))


def _draw_ideals(ax: Axes, quantity: str, axis: LevelAxis, rows: pd.DataFrame) -> None:
    """Draw an ideal of a panel for each number of devices that its baselines have."""
    for fewest in sorted(set(rows["baseline_n_devices"].dropna())):
        n_devices = np.linspace(max(fewest, min(axis.positions)), max(axis.positions), lines.IDEAL_POINTS)
        y = n_devices / fewest if quantity == "speedup" else np.full(len(n_devices), 100.0)
        ax.plot(axis.position(n_devices), y, color=style.MUTED, zorder=1, **lines.IDEAL_LINE)


def _draw_series(ax: Axes, series: Series, rows: pd.DataFrame, quantity: str, placement: Placement) -> None:
    """Draw one series of one panel, with its estimate."""
    offset = placement.offsets[series.name]
    _, unit = QUANTITIES[quantity]
    rows = rows.sort_values("n_devices")
    x = rows["n_devices"].map(placement.axis.positions).to_numpy(float)
    values, low, high, estimate = (
        unit * rows[column].to_numpy(float)
        for column in (quantity, f"{quantity}_low", f"{quantity}_high", f"estimated_{quantity}")
    )
    single = _is_single_run(rows).to_numpy()
    bar: dict[str, Any] = {"color": series.style.colour, "linewidth": 0.9, "zorder": 3}
    ax.vlines(x[~single] + offset, low[~single], high[~single], **bar)
    ax.vlines(x[single] + offset, low[single], high[single], linestyles=panels.SINGLE_RUN_LINE, **bar)
    ax.plot(x + offset, values, color=series.style.colour, linestyle=series.style.line, zorder=2)
    ax.plot(x + offset, values, zorder=4, **panels.marker_style(series.style))
    ax.plot(x, estimate, color=series.style.colour, linewidth=0.7, linestyle=lines.BOUND_LINE, zorder=1)
