"""Draw a response over one factor: one line per series, panels by the other varying factors."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import tables
from analysis.conditions import SITE_DEFAULTS, join_names
from analysis.intervals import Estimate
from analysis.level_words import axis_label, level_text, title, treatment_text
from analysis.records import baseline_frameworks, groups_by, levels_in_order, varying
from analysis.speedup import baseline_cells
from analysis.terms import is_treated_as_number
from common.notes import Note
from declared.factors import SIZE_FACTORS
from declared.figure_specs import FigureSpec
from figures import captions, legends, marks, panels, selection, style, value_axis
from figures.selection import Series
from figures.view import View

PANEL_INCHES = 1.45
LOG_FROM_SHARED_RATIO = 3  # ratio of the largest to the smallest mean on an axis that panels share
SERIES_GAP = 0.045  # share of the axis between two series at one level
MAX_SPREAD = 0.6  # share of the distance to the next level that all series take
TICK_CHARACTER_INCHES = 0.062
TICKS_SHARE = 0.72  # share of a panel that all tick labels take at most
TICK_ROTATION = 35  # degrees by which labels turn that would overlap
BOUND_LINE = (0, (1, 1.5))
# Thin, pale and solid: dashes tell series apart.
IDEAL_LINE: Mapping[str, Any] = {"linewidth": 0.6, "linestyle": "-", "alpha": 0.55}
IDEAL_POINTS = 50


@dataclass(frozen=True)
class LevelAxis:
    """The x axis of a factor's levels. Markers of one level stand side by side on a band.

    Attributes:
        positions: Position of each level.
        gap: Distance between two series at one level.
        width: Width of the axis.
        n_series: Number of series at one level.
        numeric: Levels are numbers.
        doubling: Doublings are equidistant.
    """

    positions: dict[Any, float]
    gap: float
    width: float
    n_series: int
    numeric: bool = True
    doubling: bool = False

    def position(self, numbers: np.ndarray) -> np.ndarray:
        """Return the positions of any numbers, not only of levels, [n]."""
        first = next(iter(self.positions))
        return np.log2(numbers / first) if self.doubling else numbers - first

    @property
    def replicate_offset(self) -> float:
        """The distance between a mean and the ticks of its runs."""
        return 0.5 * self.gap

    @property
    def limits(self) -> tuple[float, float]:
        """The ends of the axis."""
        margin = max(self.width / 7, 0.5 * (self.n_series + 1) * self.gap)
        return -margin, max(self.positions.values()) + margin

    @property
    def bands(self) -> list[tuple[float, float]]:
        """The ends of the band of each level; none if a level has a single series."""
        half = 0.5 * self.n_series * self.gap
        levels = self.positions.values() if self.n_series > 1 else ()
        return [(position - half, position + half + 0.2 * self.gap) for position in levels]

    def axis_note(self, name: str) -> str:
        """Return the caption's note on the axis of the factor `name`; "" if it is linear."""
        return (
            Note("logarithmic-axis", f"The {name} axis is logarithmic.", axis=name) if self.doubling else ""
        )

    def labels(self, panel_in: float) -> list[str]:
        """Return the labels of the levels; every second one, counted from the last, if not all fit."""
        texts = [level_text(level) for level in self.positions]
        if not self.numeric or len(" ".join(texts)) * TICK_CHARACTER_INCHES < TICKS_SHARE * panel_in:
            return texts
        return [text if (len(texts) - 1 - index) % 2 == 0 else "" for index, text in enumerate(texts)]

    def apply(self, ax: Axes, labels: Sequence[str]) -> None:
        """Set ticks and limits of a panel, and draw the bands of the levels."""
        for ends in self.bands:
            ax.axvspan(*ends, color=style.LEVEL_BAND, linewidth=0, zorder=0)
        ax.set_xlim(*self.limits)
        ax.set_xticks(list(self.positions.values()), labels)


@dataclass(frozen=True)
class Placement:
    """Where the markers of each series stand.

    Attributes:
        axis: The x axis.
        offsets: Distance of each series, by name, from the position of a level.
        is_joined: Whether lines join the means from level to level.
    """

    axis: LevelAxis
    offsets: Mapping[str, float]
    is_joined: bool = True

    def position(self, series: Series, level: Any) -> float:
        """Return the position of a series at a level."""
        return self.axis.positions[level] + self.offsets[series.name]


IDEAL_DRAWN = Note("ideal-drawn", "Thin pale lines: ideal.")
BASELINE_LINES = Note("single-device-baselines-drawn", "Horizontal lines: single-device baselines.")
# Keyed by the exponent of the number of devices in the ideal line.
IDEALS = {
    -1: "the baseline divided by the number of devices, as if communication cost nothing",
    0: "the baseline, as if communication cost nothing",
    1: "the baseline times the number of devices, as if communication cost nothing",
}
SMALLEST_CELL_IDEAL = Note(
    "ideal-from-smallest-size",
    "Where no cell has one device, the ideal of a series starts at its fewest devices.",
)
BANDS_NOTE = Note("shifted-sideways", "Markers on a grey band share its level.")
NO_BASELINE = Note("no-baseline", "No baseline cell has a successful run.")
NOTHING_TO_COMPARE = Note("nothing-to-compare", "no panel has two lines with two levels each")
SINGLE_LINE = Note("single-line", "they have a single line")
ONE_LEVEL = Note("panel-of-one-level", "they were measured at one level of this axis only")


def is_comparison(spec: FigureSpec) -> bool:
    """Return whether lines are compared with each other.

    They are then always joined, the axis is logarithmic, and panels with a single line are left out.
    """
    return spec.kind == "interaction"


def has_baselines(spec: FigureSpec) -> bool:
    """Return whether the figure has baselines and ideals: over nodes or devices, unless it compares lines."""
    return spec.x in SIZE_FACTORS and not is_comparison(spec)


def draw_lines(
    view: View, lead: str, *, details: Sequence[str] = (), endnotes: Sequence[str] = ()
) -> tuple[Figure, captions.Caption]:
    """Return the figure of the view's response over the factor `x` of its spec, and its caption.

    Args:
        view: The cells to draw.
        lead: The sentences with which the caption begins.
        details: Further sentences of the caption.
        endnotes: Further endnotes of the caption.
    """
    x = str(view.spec.x)
    if view.ok.empty:
        return panels.empty_figure(view.runs, view.missing_cause)
    if view.runs[x].nunique() == 1:
        level = view.runs[x].iloc[0]
        why = Note("one-level", f"{title(x)} is {level_text(level)} in all cells", factor=x, level=level)
        return panels.empty_figure(view.runs, why)
    drawable = drawable_panels(view)
    if not drawable:
        return panels.empty_figure(view.runs, NOTHING_TO_COMPARE)
    left_out = [levels for levels in view.panel_levels if levels not in drawable]
    view = view.fit_to_page(PANEL_INCHES + panels.titles_height(drawable), panel_levels=drawable)
    panel_levels = drawable_panels(view)
    drawn_lines = select_lines(view, panel_levels)
    placement = place_series(view, drawn_lines.placed_series)
    figure, axis_notes = _draw_panels(view, panel_levels, drawn_lines, placement)
    return figure, view.caption(
        lead,
        *details,
        IDEAL_DRAWN if drawn_lines.has_ideal else "",
        _same_baselines_note(drawn_lines.cells, drawn_lines.baselines, view),
        *axis_notes,
        BANDS_NOTE if placement.axis.n_series > 1 else "",
        _single_level_note(drawn_lines.single_level),
        endnotes=[
            *(
                _baseline_notes(view, drawn_lines.cells, drawn_lines.baselines)
                if has_baselines(view.spec)
                else []
            ),
            *endnotes,
            placement.axis.axis_note(title(x)),
            left_out_note(left_out, SINGLE_LINE if is_comparison(view.spec) else ONE_LEVEL),
        ],
    )


def place_series(view: View, series: Sequence[Series]) -> Placement:
    """Return the axis of the levels of `x`, and where `series` stand on it."""
    x = str(view.spec.x)
    # A factor on both axis and colour has one series per level, which needs no offset.
    axis = factor_axis(view.runs, x, 1 if x in view.series_factors else len(view.series))
    names = [one_series.name for one_series in series]
    offsets = marks.dodge_offsets(names, axis.gap if axis.n_series > 1 else 0)
    return Placement(axis, offsets, is_joined=axis.numeric or is_comparison(view.spec))


def is_logarithmic(
    view: View, placement: Placement, panel_levels: Sequence[dict[str, Any]], drawn: Collection[str]
) -> bool:
    """Return whether the axis of values is logarithmic even if the runs span less than `value_axis` allows.

    For comparisons, since parallel lines then mean equal ratios; over doublings of nodes or devices, since an
    ideal that is not flat is then a straight line; and if panels share an axis on which means span
    LOG_FROM_SHARED_RATIO, since those of one panel would otherwise lie on each other.

    Args:
        view: The cells to draw.
        placement: Where the series stand.
        panel_levels: Levels of the panels.
        drawn: The cells that are drawn.
    """
    has_flat_ideal = view.response.ideal_exponent == 0
    is_by_size = view.spec.x in SIZE_FACTORS
    if is_comparison(view.spec) or (placement.axis.doubling and is_by_size and not has_flat_ideal):
        return True
    if len(panel_levels) < 2 or panels.duration_factors(view.panel_factors):
        return False
    means = view.values_and_means({}, drawn)[1]["mean"]
    return bool(means.max() > LOG_FROM_SHARED_RATIO * means.min() > 0)


@dataclass(frozen=True)
class DrawnLines:
    """The series and baselines that the panels show.

    Attributes:
        cells: Cells with a marker or a line, and their baselines.
        baselines: The cell that the ideal of a cell starts from, by cell; empty if baselines are not drawn.
        series: Series with a line.
        placed_series: Series with markers: those with a line, and the single-device baselines in use.
        single_level: Series without a line, because they have one level of the x axis only.
        legend_series: Series in the legend.
        has_ideal: Whether an ideal is drawn.
    """

    cells: set[str]
    baselines: dict[str, str]
    series: list[Series]
    placed_series: list[Series]
    single_level: list[Series]
    legend_series: list[Series]
    has_ideal: bool


def select_lines(view: View, panel_levels: Sequence[dict[str, Any]]) -> DrawnLines:
    """Return what the panels show."""
    baselines, single_device = dict[str, str](), list[str]()
    if has_baselines(view.spec):
        baselines, single_device = _find_baselines(view), baseline_frameworks(view.unfiltered_runs)
    cells = {cell for levels in panel_levels for cell in selection.rows_at(view.runs, levels)["cell"]}
    cells |= {baselines[cell] for cell in cells if cell in baselines}
    parallel_series = [
        series
        for series in view.series
        if not series.select(view.runs)["framework"].isin(single_device).all()
    ]
    single_level = [
        series
        for series in parallel_series
        if is_comparison(view.spec) and series.select(view.runs)[view.spec.x].nunique() < 2
    ]
    legend_series = [
        series
        for series in view.series
        if (series not in single_level and set(series.select(view.ok)["cell"]) & cells)
        or set(series.select(view.runs)["cell"]) & cells & view.out_of_memory
    ]
    has_ideal = view.response.ideal_exponent is not None and any(cell in baselines for cell in cells)
    drawn_series = [series for series in parallel_series if series not in single_level]
    used = set(baselines.values()) & cells
    placed_series = [
        series
        for series in view.series
        if series in drawn_series
        or (series not in parallel_series and set(series.select(view.unfiltered_runs)["cell"]) & used)
    ]
    return DrawnLines(cells, baselines, drawn_series, placed_series, single_level, legend_series, has_ideal)


def _draw_panels(
    view: View, panel_levels: Sequence[dict[str, Any]], drawn_lines: DrawnLines, placement: Placement
) -> tuple[Figure, list[str]]:
    """Return the figure with all panels and the legend, and notes on its axes of values."""
    x, axis = str(view.spec.x), placement.axis
    ideal = Line2D([], [], color=style.MUTED, label="ideal (thin)", **IDEAL_LINE)
    further_handles = [ideal] if drawn_lines.has_ideal else []
    _, columns, width = panels.layout(len(panel_levels))
    labels = _tick_labels(axis, x, width / columns)
    is_steep = not axis.numeric and len("  ".join(labels)) * TICK_CHARACTER_INCHES > 0.8 * width / columns
    below_in = TICK_CHARACTER_INCHES * max(map(len, labels)) * math.sin(math.radians(TICK_ROTATION))
    axis_factors = panels.duration_factors(view.panel_factors)
    grid = panels.create_grid(
        panel_levels,
        PANEL_INCHES,
        len([*drawn_lines.legend_series, *further_handles]),
        around_in=0.15 + below_in * is_steep,
        share_y=not axis_factors,
    )
    logarithmic = is_logarithmic(view, placement, panel_levels, drawn_lines.cells)
    notes: list[str] = []
    for ax, levels in zip(grid.axes, panel_levels, strict=True):
        _draw_panel(ax, view, levels, drawn_lines, placement)
        values, means = view.values_and_means(
            {name: levels[name] for name in axis_factors}, drawn_lines.cells
        )
        notes += value_axis.scale_value_axis(
            ax,
            values,
            means,
            logarithmic=logarithmic,
            from_zero=view.response.ideal_exponent != 0,
            axis_name=view.axis_name,
        )
        axis.apply(ax, labels)
        if is_steep:
            ax.tick_params(axis="x", labelrotation=TICK_ROTATION)
            for label in ax.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
    if logarithmic:
        for ax, levels in zip(grid.axes, panel_levels, strict=True):
            baselines = panel_baselines(view, selection.rows_at(view.runs, levels), drawn_lines, placement)
            value_axis.show_ideals(ax, [value for baseline in baselines for value in baseline.ideal[1]])
    grid.label(axis_label(view.runs, x), view.response.label)
    legends.add_legend(grid.figure, drawn_lines.legend_series, further_handles, lines=placement.is_joined)
    return grid.figure, notes


def _draw_panel(
    ax: Axes, view: View, levels: Mapping[str, Any], drawn_lines: DrawnLines, placement: Placement
) -> None:
    """Draw the series of a panel, their baselines, and the cells that ran out of memory."""
    x = str(view.spec.x)
    panel_runs = selection.rows_at(view.runs, levels)
    for series in drawn_lines.series:
        _draw_series(ax, series, series.select(panel_runs), x, placement, view)
    for baseline in panel_baselines(view, panel_runs, drawn_lines, placement):
        _draw_baseline(ax, view, baseline, placement.axis)
        draw_ideal(ax, baseline.ideal, baseline.colour)
    if view.measured(panel_runs).empty:
        panels.write_remark(ax, view.absence_reason(panel_runs))
    else:
        _mark_out_of_memory(ax, view, panel_runs, x, placement.axis)
    ax.set_title(panels.panel_title(levels))


def _single_level_note(series: Sequence[Series]) -> str:
    """Return which series have one level only; "" for none."""
    names = [one_series.name for one_series in series]
    text = f"Without a line, because measured at one level only: {', '.join(names)}."
    return Note("series-without-line", text, series=names) if names else ""


def drawable_panels(view: View) -> list[dict[str, Any]]:
    """Return the panels with two levels of `x`, and in a comparison with two series that have them.

    If no run of these was successful, return the panels with a successful run, or none in a comparison.
    """
    x, for_comparison = str(view.spec.x), is_comparison(view.spec)
    cells, measured_cells = view.cells, view.cells[view.cells["cell"].isin(set(view.ok["cell"]))]
    if for_comparison:
        series_of_row = {
            row: index for index, series in enumerate(view.series) for row in series.select(cells).index
        }
        cells = _with_two_levels(
            cells.assign(series=pd.Series(series_of_row)), x, [*view.panel_factors, "series"]
        )
    drawable = selection.nonempty_panels(
        view.panel_levels, _with_two_levels(cells, "series" if for_comparison else x, view.panel_factors)
    )
    if not selection.nonempty_panels(drawable, measured_cells):  # one level is better than no run
        return [] if for_comparison else selection.nonempty_panels(view.panel_levels, measured_cells)
    return drawable


def _with_two_levels(rows: pd.DataFrame, column: str, factors: Sequence[str]) -> pd.DataFrame:
    """Return the rows whose combination of levels of `factors` occurs with two levels of `column`."""
    groups = groups_by(rows, factors)
    return rows[groups[column].transform("nunique") > 1]


def factor_axis(runs: pd.DataFrame, x: str, n_series: int) -> LevelAxis:
    """Return the axis of a factor's levels."""
    levels = levels_in_order(runs, x)
    if is_treated_as_number(runs, x):
        return number_axis(levels, n_series)
    return _make_axis({level: float(index) for index, level in enumerate(levels)}, n_series, numeric=False)


def number_axis(levels: Sequence[float], n_series: int) -> LevelAxis:
    """Return the axis of ascending numbers; doublings are equidistant if the numbers span two of them."""
    if len(levels) > 2 and levels[0] > 0 and levels[-1] / levels[0] >= 4:
        return _make_axis({level: math.log2(level / levels[0]) for level in levels}, n_series, doubling=True)
    return _make_axis({level: float(level - levels[0]) for level in levels}, n_series)


def _make_axis(
    positions: dict[Any, float], n_series: int, *, numeric: bool = True, doubling: bool = False
) -> LevelAxis:
    """Return an axis whose gap keeps series from reaching the next level."""
    ascending = list(positions.values())
    width = 1.4 * (ascending[-1] or 1)
    step = min(np.diff(ascending), default=1.0)
    gap = min(SERIES_GAP * width, MAX_SPREAD * step / max(n_series, 1))
    return LevelAxis(positions, gap, width, n_series, numeric, doubling)


def _tick_labels(axis: LevelAxis, x: str, panel_in: float) -> list[str]:
    """Return the labels of the levels of `x`; the level that leaves a setting to the site is `site's`."""
    default = SITE_DEFAULTS.get(x)
    if default not in axis.positions:
        return axis.labels(panel_in)
    return ["site's" if level == default else level_text(level) for level in axis.positions]


def _draw_series(
    ax: Axes, series: Series, runs: pd.DataFrame, x: str, placement: Placement, view: View
) -> None:
    """Draw the means of one series; the line is broken where a planned cell has no value."""
    means, positions = [], []
    by_level = dict(iter(runs.groupby(x)))
    for level in (level for level in placement.axis.positions if level in by_level):
        measured = view.measured(by_level[level])
        positions.append(placement.position(series, level))
        means.append(math.nan)
        if len(measured):
            estimate = view.estimate(measured["cell"].iloc[0])
            means[-1] = estimate.value
            values, offset = view.values(measured), placement.axis.replicate_offset
            marks.draw_interval(ax, series.style, positions[-1], estimate, values, offset)
    if positions and placement.is_joined:
        ax.plot(positions, means, color=series.style.colour, linestyle=series.style.line, zorder=2)


def _mark_out_of_memory(ax: Axes, view: View, panel_runs: pd.DataFrame, x: str, axis: LevelAxis) -> None:
    """Mark the cells of a panel that ran out of memory, at their levels of `x`."""
    ran_out = panel_runs[panel_runs["cell"].isin(view.out_of_memory)]
    for level, runs in ran_out.groupby(x):
        styles = [series.style for series in view.series if len(series.select(runs))]
        marks.mark_out_of_memory(ax, axis.positions[level], styles)


def _find_baselines(view: View) -> dict[str, str]:
    """Map measured cells to the cell that their ideal starts from.

    This is their baseline. Without one, it is the cell with the fewest devices among those that differ only
    in the factor on the x axis, if there are several.
    """
    x, baselines = view.spec.x, baseline_cells(view.unfiltered_runs)
    cells = view.measured(view.unfiltered_runs).drop_duplicates("cell")
    cells = cells[~cells["cell"].isin(baselines)].sort_values("n_devices")
    other_factors = [name for name in varying(view.unfiltered_runs) if name != x]
    for _, group in groups_by(cells, other_factors):
        if group[x].nunique() > 1:
            baselines |= dict.fromkeys(group["cell"], group["cell"].iloc[0])
    return baselines


@dataclass(frozen=True)
class Baseline:
    """A baseline of the cells of a panel, and the ideal that starts from it.

    Attributes:
        runs: Its measured runs.
        estimate: Its mean.
        series: Its series; None if the study has more series than styles.
        is_single_device: It is of a single-device framework, and thus drawn as a horizontal line. Other
            baselines are the beginning of a series.
        position: Where its marker stands, beside those of the first level; None for the beginning of a
            series, and in panels with other levels than its own.
        ideal: Positions and values of the ideal, [2, n]; n is 0 without an ideal.
    """

    runs: pd.DataFrame
    estimate: Estimate
    series: Series | None
    is_single_device: bool
    position: float | None
    ideal: np.ndarray

    @property
    def colour(self) -> str:
        """The colour of its series."""
        return self.series.style.colour if self.series else style.MUTED


def panel_baselines(
    view: View, panel_runs: pd.DataFrame, drawn_lines: DrawnLines, placement: Placement
) -> list[Baseline]:
    """Return the baselines of a panel's cells, with the ideals that start from them."""
    baselines, measured = drawn_lines.baselines, view.measured(view.unfiltered_runs)
    cells = dict.fromkeys(baselines[cell] for cell in panel_runs["cell"] if cell in baselines)
    return [
        _panel_baseline(view, panel_runs, runs, drawn_lines, placement)
        for cell in cells
        if len(runs := measured[measured["cell"] == cell])
    ]


def _panel_baseline(
    view: View, panel_runs: pd.DataFrame, runs: pd.DataFrame, drawn_lines: DrawnLines, placement: Placement
) -> Baseline:
    """Return the baseline with these runs.

    The ideal of a single-device baseline spans all levels of the panel, and all series are compared with it.
    If a series contains its own baseline, the ideal spans the levels of this series, and is moved sideways by
    the offset of its markers.
    """
    cell, series = (
        runs["cell"].iloc[0],
        next((candidate for candidate in view.series if len(candidate.select(runs))), None),
    )
    estimate, offset = view.estimate(cell), placement.offsets.get(series.name, 0.0) if series else 0.0
    position, is_single_device = None, bool(baseline_frameworks(runs))
    if is_single_device:
        if series and len(selection.rows_at(runs, panel_runs[view.panel_factors].iloc[0].to_dict())):
            position = min(placement.axis.positions.values()) + offset
        offset = 0.0
    else:
        is_own = panel_runs["cell"].map(drawn_lines.baselines).eq(cell) | panel_runs["cell"].eq(cell)
        panel_runs = panel_runs[is_own]
    n_devices, ideal = panel_runs.groupby(view.spec.x)["n_devices"].max(), np.empty((2, 0))
    if view.response.ideal_exponent is not None and len(n_devices) > 1:
        start = estimate.value, float(runs["n_devices"].iloc[0])
        positions, values = _ideal_line(placement.axis, n_devices, start, view.response.ideal_exponent)
        ideal = np.array([positions + offset, values])
    return Baseline(runs, estimate, series, is_single_device, position, ideal)


def _draw_baseline(ax: Axes, view: View, baseline: Baseline, axis: LevelAxis) -> None:
    """Draw a single-device baseline: a horizontal line, and in its own panel a marker at the first level."""
    if baseline.series is None or not baseline.is_single_device:
        return
    series_style, values = baseline.series.style, view.values(baseline.runs)
    if baseline.position is not None:
        offset = axis.replicate_offset
        marks.draw_interval(ax, series_style, baseline.position, baseline.estimate, values, offset)
    line: dict[str, Any] = {"linewidth": 0.8, "linestyle": series_style.line, "zorder": 1}
    ax.axhline(baseline.estimate.value, color=series_style.colour, **line)


def _ideal_line(
    axis: LevelAxis, n_devices: pd.Series, start: tuple[float, float], exponent: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and values of the ideal; `start` is the value and the devices of the baseline."""
    positions = np.array([axis.positions[level] for level in n_devices.index], dtype=float)
    counts = n_devices.to_numpy(float)
    if axis.numeric:  # between levels the ideal is a curve
        levels = np.linspace(n_devices.index.min(), n_devices.index.max(), IDEAL_POINTS)
        positions, counts = axis.position(levels), np.interp(levels, n_devices.index.to_numpy(float), counts)
    return positions, ideal_values(counts, *start, exponent)


def ideal_values(n_devices: np.ndarray, start: float, start_devices: float, exponent: float) -> np.ndarray:
    """Return the ideal at these numbers of devices.

    Args:
        n_devices: Numbers of devices, [n].
        start: Value at `start_devices`, where the ideal starts.
        start_devices: Devices of the baseline.
        exponent: The power of the number of devices that the ideal is proportional to.
    """
    return start * (n_devices / start_devices) ** exponent


def draw_ideal(ax: Axes, ideal: np.ndarray, colour: str) -> None:
    """Draw an ideal, given positions and values [2, n], below the series."""
    ax.plot(*ideal, color=colour, zorder=1, **IDEAL_LINE)


def _baseline_notes(view: View, drawn: set[str], baselines: dict[str, str]) -> list[str]:
    """Return the notes on the baselines of the drawn cells."""
    used = sorted({baselines[cell] for cell in drawn if cell in baselines})
    if not used:
        return [NO_BASELINE]
    has_single_device = view.runs["framework"].isin(baseline_frameworks(view.unfiltered_runs)).any()
    exponent = view.response.ideal_exponent
    ideal = IDEALS.get(exponent) if exponent is not None else None
    starts_later = bool(
        (view.unfiltered_runs.loc[view.unfiltered_runs["cell"].isin(used), "n_devices"] > 1).any()
    )
    return [
        *([BASELINE_LINES] if has_single_device else []),
        *([Note("ideal-explained", f"Ideal: {ideal}.")] if ideal else []),
        *([SMALLEST_CELL_IDEAL] if ideal and starts_later else []),
        baselines_note(used, view),
    ]


def _same_baselines_note(drawn: set[str], baselines: dict[str, str], view: View) -> str:
    """Return which levels the baselines have in all panels, though the panels differ in them; "" for none."""
    names = [name for name in view.panel_factors if name in view.unfiltered_runs]
    levels_of = view.unfiltered_runs.drop_duplicates("cell").set_index("cell")[names]
    compared = levels_of.loc[[cell for cell in drawn if cell in baselines]]
    used = levels_of.loc[sorted({baselines[cell] for cell in compared.index})]
    common_levels = {
        name: used[name].iloc[0]
        for name in names
        if used[name].nunique() == 1 and compared[name].nunique() > 1
    }
    text = f"Baselines in all panels: {treatment_text(common_levels)}."
    return Note("same-baselines", text, levels=common_levels) if common_levels else ""


def baselines_note(used: Sequence[str], view: View) -> str:
    """Return what the baseline cells `used` are, with the range of their means of the view's response."""
    baseline_runs = view.unfiltered_runs[view.unfiltered_runs["cell"].isin(set(used))]
    single_device = baseline_frameworks(baseline_runs)
    kinds = [f"the single-device {' and '.join(single_device)}"] if single_device else []
    if set(baseline_runs["framework"]) - set(single_device):
        smallest = "one device" if (baseline_runs["n_devices"] == 1).all() else "the fewest devices"
        kinds.append(f"the framework's own cell with {smallest}")
    means = {cell: view.estimate(cell).value for cell in used}
    ends = dict.fromkeys(tables.number(end) for end in (min(means.values()), max(means.values())))
    text = (
        f"Baselines: {' or '.join(kinds)}, at the same levels of all other factors that apply to them; "
        f"{' to '.join(ends)} {view.response.unit} (table `cells`)."
    )
    return Note("baselines", text, single_device=single_device, means=means)


def left_out_note(left_out: Sequence[dict[str, Any]], cause: Note) -> str:
    """Return which panels are left out and why; "" for none."""
    if not left_out:
        return ""
    names = join_names([treatment_text(levels) for levels in left_out], "; ")
    text = f"Not shown, because {cause}: {names}."
    return Note("panels-not-shown", text, why=cause.code, panels=list(left_out))
