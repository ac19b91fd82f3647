"""Describe main figures as data that the page draws interactively: cells with intervals, and their runs.

Cells, series, responses, intervals and styles are the same as in the static figures (`figures.view`,
`figures.lines`, `analysis.speedup`), and means and intervals are estimated by the same functions. The page
prints the captions of the static figures below the charts, so a chart draws everything that they explain.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from analysis import tables
from analysis.intervals import Estimate
from analysis.level_words import axis_label, cell_words, device_axis_label, level_text
from declared.products.figure_kinds import KINDS
from figures import lines, panels, rows, selection, value_axis
from figures.kinds import heat_map
from figures.kinds.scaling import axis_top, cell_rows, ideal_lines, place_size_series, ratios_to_draw
from figures.selection import Series
from figures.style import SeriesStyle
from figures.view import View, build_response_view, build_view
from report.dark import contrast
from report.material import Material

# Marker and line of a style in Matplotlib, and as BokehJS calls them.
MARKERS = {
    "o": "circle", "s": "square", "^": "triangle", "v": "inverted_triangle", "D": "diamond", "d": "diamond",
    "P": "plus", "X": "x", "*": "star", "p": "hex", "h": "hex", "8": "hex", ">": "square_pin",
    "<": "triangle_pin",
}  # fmt: skip
DASHES = {"-": (), "--": (6, 3), ":": (2, 3), "-.": (6, 3, 2, 3)}
PIXELS_PER_POINT = 1.4
RUN_DIGITS = 4  # digits of a run's value if its cell has no interval
# Text of fields: one of both has a contrast above 4.5 with any colour.
LIGHT_INK, DARK_INK = "#ffffff", "#000000"


@dataclass(frozen=True)
class Line:
    """A series as the page draws it; `dash` has lengths in pixels."""

    name: str
    colour: str
    marker: str
    filled: bool
    dash: tuple[float, ...]


@dataclass(frozen=True)
class Point:
    """A cell in a panel.

    Attributes:
        series: Index of its series.
        place: Its position on the axis of cells.
        value: Its mean, or ratio of means; low and high are its interval, None without one.
        text: Value and interval with their unit.
        cell: The cell in words.
        n: Its number of runs.
        is_single: Whether its interval comes from the spread of other cells, because it has one run.
        runs: Name, replicate, value and text of the value of each run; empty for ratios.
    """

    series: int
    place: float
    value: float
    low: float | None
    high: float | None
    text: str
    cell: str
    n: int
    is_single: bool = False
    runs: list[tuple[str, int, float, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Curve:
    """A line without markers: the index of its series, None for no series, and its positions and values."""

    series: int | None
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """A panel of a chart.

    Attributes:
        title: Its title.
        quantity: What its axis of values shows.
        points: Its points.
        ideals: The ideals. Those of `scaling`, which all series share, belong to no series.
        estimates: The model estimates.
        baselines: Series and mean of each single-device baseline, which is a horizontal line.
        top: The upper end of the axis of values, as in the static figure; None to fit all points.
        ideal_unit: The ideal value of one device, whose doublings a logarithmic axis labels; None to label
            round values.
        out_of_memory: Series, position and words of the cells that ran out of memory.
    """

    title: str
    quantity: str
    points: list[Point]
    ideals: list[Curve] = field(default_factory=list)
    estimates: list[Curve] = field(default_factory=list)
    baselines: list[tuple[int, float]] = field(default_factory=list)
    top: float | None = None
    ideal_unit: float | None = None
    out_of_memory: list[tuple[int, float, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """The chart of a figure with rows or levels of cells.

    Attributes:
        ticks: Position and label of each level, or of each row.
        limits: Ends of the axis of cells.
        series: The series.
        panels: The panels.
        axis: What the axis of cells shows; empty for rows of cells.
        bands: Ends of the band on which the markers of each level stand.
        horizontal: Values are on the x axis, and each row is a cell.
        run_offset: Distance of runs from their mean, on the axis of cells.
        joined: Lines join the means from level to level.
        logarithmic: The axis of values starts logarithmic, as in the static figure.
        source: The table with the same numbers.
    """

    ticks: list[tuple[float, str]]
    limits: tuple[float, float]
    series: list[Line]
    panels: list[Panel]
    axis: str = ""
    bands: list[tuple[float, float]] = field(default_factory=list)
    horizontal: bool = False
    run_offset: float = 0.0
    joined: bool = True
    logarithmic: bool = False
    source: str = "cells"


@dataclass(frozen=True)
class Field:
    """A field of a heat map: a cell of the study.

    Attributes:
        column: Index of its column.
        row: Index of its row.
        cell: The cell in words.
        value: Its mean; None without one.
        label: The mean as the field shows it, or why it has none.
        bounds: Its interval; "" without one.
        text: Value and interval with their unit.
        runs: Name, replicate and value, as text, of each run.
    """

    column: int
    row: int
    cell: str
    value: float | None
    label: str
    bounds: str = ""
    text: str = ""
    runs: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class FieldsPanel:
    """A panel of a heat map: its title and its fields."""

    title: str
    fields: list[Field]

    @property
    def points(self) -> list[Field]:
        """The fields with a value."""
        return [entry for entry in self.fields if entry.value is not None]


@dataclass(frozen=True)
class HeatMap:
    """The interactive form of a heat map, a table of colours, which has no axis of values as a `Chart` has.

    Attributes:
        quantity: What the colours show.
        axis: What the columns show.
        columns: Label of each column.
        rows: Label of each row.
        palette: Colours from the smallest value to the largest.
        n_dark: How many of the first colours need light ink.
        logarithmic: The scale of colours starts logarithmic, as in the static figure.
        panels: The panels.
        source: The table with the same numbers.
        series: Always empty, since the scale of colours is the legend.
    """

    quantity: str
    axis: str
    columns: list[str]
    rows: list[str]
    palette: list[str]
    n_dark: int
    logarithmic: bool
    panels: list[FieldsPanel]
    source: str = "cells"
    series: list[Line] = field(default_factory=list)


def build_charts(material: Material) -> dict[str, Chart | HeatMap]:
    """Return the charts with points of the pictures whose kind has a builder, by name."""
    specs = {spec.name: spec for spec in material.figure_specs}
    charts: dict[str, Chart | HeatMap] = {}
    for picture in material.pictures:
        spec = specs.get(picture.name)
        if spec is None or spec.kind not in BUILDERS:
            continue
        has_response = KINDS[spec.kind].shows_response
        view = build_response_view(material, spec) if has_response else build_view(material.runs, spec)
        chart = BUILDERS[spec.kind](view, material.network)
        if any(panel.points for panel in chart.panels):
            charts[picture.name] = chart
    return charts


def cells_chart(view: View, _network: pd.DataFrame) -> Chart:
    """Return the chart with a row per cell that `figures.kinds.overview` draws."""
    words, ran_out = cell_words(view.unfiltered_runs), view.runs[view.runs["cell"].isin(view.out_of_memory)]
    indices = {series.name: index for index, series in enumerate(view.series)}
    chart_panels = []
    for levels in selection.nonempty_panels(view.panel_levels, pd.concat([view.ok, ran_out])):
        panel_runs = selection.rows_at(view.ok, levels)
        unfit = selection.rows_at(ran_out, levels)
        marks = [
            (indices[series.name], float(y), words[cell])
            for y, (series, size_levels, _) in enumerate(view.rows)
            for cell in selection.rows_at(series.select(unfit), size_levels)["cell"].unique()
        ]
        points = [
            _mean_point(view, indices[series.name], float(y), cell_runs, words)
            for y, (series, size_levels, _) in enumerate(view.rows)
            for _, cell_runs in selection.rows_at(series.select(panel_runs), size_levels).groupby("cell")
        ]
        chart_panels.append(
            Panel(panels.panel_title(levels), view.response.label, points, out_of_memory=marks)
        )
    ticks = [(float(y), label) for y, (_, _, label) in enumerate(view.rows)]
    return Chart(
        ticks,
        (len(ticks) - 0.4, -0.6),
        _series_lines(view.series),
        chart_panels,
        horizontal=True,
        run_offset=rows.REPLICATE_OFFSET,
        joined=False,
        logarithmic=_is_wide(chart_panels),
    )


def factor_chart(view: View, _network: pd.DataFrame) -> Chart:
    """Return the chart of `by_factor` and `interaction`."""
    x = str(view.spec.x)
    words, ran_out = cell_words(view.unfiltered_runs), view.runs[view.runs["cell"].isin(view.out_of_memory)]
    panel_levels = lines.drawable_panels(view)
    content = lines.select_lines(view, panel_levels)
    drawn_series = [*content.placed_series, *content.legend_series]
    series = [candidate for candidate in view.series if candidate in drawn_series]
    placement = lines.place_series(view, series)
    axis = placement.axis
    chart_panels = []
    for levels in panel_levels:
        panel_runs = selection.rows_at(view.runs, levels)
        measured = view.measured(panel_runs)
        points = [
            _mean_point(view, index, placement.position(one_series, cell_runs[x].iloc[0]), cell_runs, words)
            for index, one_series in enumerate(series)
            for _, cell_runs in one_series.select(measured).groupby("cell", sort=False)
        ]
        baselines = lines.panel_baselines(view, panel_runs, content, placement)
        is_drawn = set(measured["cell"])
        points += [
            _mean_point(view, series.index(baseline.series), baseline.position, baseline.runs, words)
            for baseline in baselines
            if baseline.series and baseline.position is not None
            if baseline.runs["cell"].iloc[0] not in is_drawn
        ]
        chart_panels.append(
            Panel(
                panels.panel_title(levels),
                view.response.label,
                points,
                ideals=[
                    _curve(series.index(baseline.series) if baseline.series else None, *baseline.ideal)
                    for baseline in baselines
                    if baseline.ideal.size
                ],
                baselines=[
                    (series.index(baseline.series), baseline.estimate.value)
                    for baseline in baselines
                    if baseline.series and baseline.is_single_device
                ],
                out_of_memory=_level_marks(series, selection.rows_at(ran_out, levels), x, placement, words),
            )
        )
    return Chart(
        [(place, level_text(level)) for level, place in axis.positions.items()],
        axis.limits,
        _series_lines(series),
        chart_panels,
        axis_label(view.runs, x),
        axis.bands,
        run_offset=axis.replicate_offset,
        joined=placement.is_joined,
        logarithmic=(
            lines.is_logarithmic(view, placement, panel_levels, content.cells) or _is_wide(chart_panels)
        ),
    )


def scaling_chart(view: View, network: pd.DataFrame) -> Chart:
    """Return the chart of speed-up and efficiency over devices that `figures.kinds.scaling` draws."""
    words, planned = cell_words(view.unfiltered_runs), cell_rows(view, network)
    ratios = planned[planned["speedup"].notna()]
    multi_device = ratios[ratios["n_devices"] > ratios["baseline_n_devices"]]
    ran_out = planned[planned["cell"].isin(view.out_of_memory) & (planned["n_devices"] > 1)]
    series = [
        one_series
        for one_series in view.series
        if len(one_series.select(multi_device)) or len(one_series.select(ran_out))
    ]
    placement = place_size_series(planned, series)
    axis = placement.axis
    chart_panels = []
    for name, ratio in ratios_to_draw(view.spec).items():
        unit = ratio.multiplier
        for levels in selection.nonempty_panels(view.panel_levels, multi_device):
            panel_rows = selection.rows_at(ratios, levels)
            points = [
                _point(
                    index,
                    placement.position(one_series, row["n_devices"]),
                    Estimate(
                        unit * row[name], unit * row[f"{name}_low"], unit * row[f"{name}_high"], row["n"]
                    ),
                    " %" if "%" in ratio.label else "",
                    words[row["cell"]],
                    is_single=row["n"] == 1 or row["baseline_n"] == 1,
                )
                for index, one_series in enumerate(series)
                for row in one_series.select(panel_rows).sort_values("n_devices").to_dict("records")
            ]
            chart_panels.append(
                Panel(
                    panels.panel_title(levels),
                    ratio.label,
                    points,
                    ideals=[_curve(None, *ideal) for ideal in ideal_lines(name, axis, panel_rows)],
                    estimates=_estimates(series, panel_rows, f"estimated_{name}", unit, axis),
                    top=axis_top(planned, name),
                    ideal_unit=unit,
                    out_of_memory=_level_marks(
                        series, selection.rows_at(ran_out, levels), "n_devices", placement, words
                    ),
                )
            )
    return Chart(
        [(place, level_text(level)) for level, place in axis.positions.items()],
        axis.limits,
        _series_lines(series),
        chart_panels,
        device_axis_label(planned),
        axis.bands,
        source="speedup",
    )


def _curve(series: int | None, positions: np.ndarray, values: np.ndarray) -> Curve:
    return Curve(series, list(zip(positions.tolist(), values.tolist(), strict=True)))


def _estimates(
    series: Sequence[Series], rows: pd.DataFrame, column: str, unit: float, axis: lines.LevelAxis
) -> list[Curve]:
    """Return the model estimates of a panel."""
    estimated = rows.dropna(subset=column).sort_values("n_devices")
    return [
        _curve(index, drawn["n_devices"].map(axis.positions).to_numpy(), unit * drawn[column].to_numpy())
        for index, one_series in enumerate(series)
        if len(drawn := one_series.select(estimated)) > 1
    ]


def fields_chart(view: View, _network: pd.DataFrame) -> HeatMap:
    """Return the chart with a field per cell that `figures.kinds.heat_map` draws."""
    x, words = str(view.spec.x), cell_words(view.unfiltered_runs)
    view, columns, names = heat_map.arrange(view, x)
    rows_levels = heat_map.ordered_rows(view, names)
    fields_panels = [
        FieldsPanel(
            panels.panel_title(levels),
            [
                _field(view, (column, row), planned, words)
                for row, row_levels in enumerate(rows_levels)
                for column, level in enumerate(columns)
                if len(planned := selection.rows_at(view.runs, {**levels, **row_levels, x: level}))
            ],
        )
        for levels in view.panel_levels
    ]
    palette = heat_map.palette()
    return HeatMap(
        quantity=view.response.label,
        axis=axis_label(view.runs, x),
        columns=[level_text(level) for level in columns],
        rows=[heat_map.row_text(levels) for levels in rows_levels],
        palette=palette,
        n_dark=sum(contrast(LIGHT_INK, colour) > contrast(DARK_INK, colour) for colour in palette),
        logarithmic=not view.ok.empty and heat_map.has_logarithmic_colours(view),
        panels=fields_panels,
    )


def _field(view: View, place: tuple[int, int], planned: pd.DataFrame, words: Mapping[str, str]) -> Field:
    """Return the field of the planned runs of a cell."""
    measured, cell = view.measured(planned), str(planned["cell"].iloc[0])
    if measured.empty:
        return Field(*place, words[cell], None, view.absence_reason(planned))
    point = _mean_point(view, 0, 0.0, measured, words)
    label, _, bounds = tables.interval(view.estimate(cell)).partition(" [")
    is_single = len(measured) == 1
    return Field(
        *place,
        point.cell,
        point.value,
        f"{label}{heat_map.SINGLE_RUN if is_single else ''}",
        f"[{bounds}" if bounds and not is_single else "",
        point.text,
        [(run, replicate, text) for run, replicate, _, text in point.runs],
    )


def _is_wide(chart_panels: Sequence[Panel]) -> bool:
    """Return whether the runs span so much that the picture has a logarithmic axis."""
    values = [run[2] for panel in chart_panels for point in panel.points for run in point.runs]
    return bool(values) and max(values) > value_axis.LOG_FROM_RATIO * min(values) > 0


def _level_marks(
    series: Sequence[Series],
    ran_out: pd.DataFrame,
    x: str,
    placement: lines.Placement,
    words: Mapping[str, str],
) -> list[tuple[int, float, str]]:
    """Return the marks of a panel over the levels of `x`, for its cells that ran out of memory."""
    return [
        (index, placement.position(one_series, level), words[cell])
        for index, one_series in enumerate(series)
        for cell, level in one_series.select(ran_out).groupby("cell", sort=False)[x].first().items()
    ]


def _mean_point(
    view: View, series: int, place: float, cell_runs: pd.DataFrame, words: Mapping[str, str]
) -> Point:
    """Return the mean response of a cell, with its runs."""
    cell = str(cell_runs["cell"].iloc[0])
    unit = f" {view.response.unit}" if view.response.unit else ""
    estimate = view.estimate(cell)
    error = tables.half_width(estimate)
    runs = [
        (str(run_id), int(replicate), float(value), f"{tables.with_error(value, error, RUN_DIGITS)}{unit}")
        for run_id, replicate, value in zip(
            cell_runs["run_id"], cell_runs["replicate"], view.values(cell_runs), strict=True
        )
    ]
    point = _point(series, place, estimate, unit, words[cell], is_single=estimate.n == 1)
    return replace(point, runs=runs)


def _point(series: int, place: float, estimate: Estimate, unit: str, cell: str, *, is_single: bool) -> Point:
    low, high = (None if np.isnan(bound) else float(bound) for bound in (estimate.low, estimate.high))
    text = f"{tables.interval(estimate)}{unit}"
    return Point(
        series, float(place), float(estimate.value), low, high, text, cell, int(estimate.n), bool(is_single)
    )


def _series_lines(series: Sequence[Series]) -> list[Line]:
    return [
        Line(
            one_series.name,
            one_series.style.colour,
            MARKERS.get(one_series.style.marker, "circle"),
            one_series.style.filled,
            _dash(one_series.style),
        )
        for one_series in series
    ]


def _dash(style: SeriesStyle) -> tuple[float, ...]:
    """Return the line pattern of a style in pixels; empty for a solid line."""
    if isinstance(style.line, str):
        return DASHES[style.line]
    return tuple(round(PIXELS_PER_POINT * length, 1) for length in style.line[1])


BUILDERS: Mapping[str, Callable[[View, pd.DataFrame], Chart | HeatMap]] = {
    "overview": cells_chart,
    "by_factor": factor_chart,
    "interaction": factor_chart,
    "scaling": scaling_chart,
    "heat_map": fields_chart,
}
