"""Draw the parts that figures share: grids of panels, axes, intervals, legends and captions."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import Locator, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation, Transform

from analysis import conditions
from analysis.intervals import Estimate
from analysis.measured import OUT_OF_MEMORY_MARK, treatment_text
from common.notes import Note
from common.text import split_sentences
from declared.factors import MODEL_AND_DATASET
from figures import style
from figures.style import SeriesStyle

LOG_FROM_RATIO = 20
# Leading digits of labelled ticks of a logarithmic axis, densest first.
TICK_DIGITS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
MIN_ROUND_TICKS = 3  # a logarithmic axis with fewer round ticks gets evenly spaced ones
MAX_TICKS = 6
MANY_TICKS = 9  # of an axis as wide as a page
MAX_MINOR_TICK_DECADES = 3
TICK_EXTENSION = 0.1  # of a logarithmic axis, which can be added at an end to reach a tick
MAX_INTERVAL_REACH = 2  # an axis reaches at most this factor beyond the runs to show intervals
AXIS_EXTENSION = 0.3  # of an axis, which can be added at an end rather than cut an interval
MIN_ZOOMED_RATIO = 0.9  # of the lowest to the highest value of an axis that need not start at 0
ZOOMED_MARGIN = 0.3  # of the range of its values, at either end
AXIS_MARGIN = 0.03  # of a logarithmic axis, at either end, for half a marker
MIN_RUNS_FOR_AXIS = 3  # the interval of two runs is too wide to set an axis
ARROWS: Mapping[str, tuple[str, str]] = {
    "x": ("<", ">"),
    "y": ("v", "^"),
}  # markers at the lower and the upper end
SINGLE_RUN_LINE = (0, (2, 1.2))
MAX_PANELS_IN_COLUMN = 2  # of a figure as wide as a print column; more panels take the page's width
MAX_GRID_COLUMNS = 4
THREE_COLUMN_PANEL_COUNTS = (6, 9)
PAGE_PANELS_INCHES = 8.4  # height of a printed page without legend and labels
TITLE_CHARACTERS = 28
TITLE_ROW_INCHES = 0.125
LEGEND_ROW_INCHES = 0.145
LEGEND_HANDLE_INCHES, LEGEND_CHARACTER_INCHES = 0.42, 0.054  # of an entry, with the gap to the next one
REMARK_CHARACTERS = 42  # per line, in an empty panel of one print column
NOT_DRAWN = "Not drawn: "  # start of the caption of a figure without content
NO_SUCCESS = Note("no-successful-run", "no successful run")
ALL_OUT_OF_MEMORY = Note("all-out-of-memory", "memory ran out in every run")
OUT_OF_MEMORY_MARKER_POINTS = 11.0  # from the middle of the mark to the marker of the series
OUT_OF_MEMORY_MARKER_SIZE = 3.0
OUT_OF_MEMORY_ROW_POINTS = 8.0  # between marks, one above the other
MAX_CAPTION_WORDS = 45  # below a figure; the rest become endnotes
MARKERS = "Markers: means; bars: 95 % intervals; ticks: runs."
SINGLE_RUNS = Note("single-run-cells", "Dashed: one run, interval from pooled variance.")
NOT_FROM_ZERO = Note("axis-not-from-zero", "The axis does not start at 0.")
BEYOND_AXIS = Note("intervals-beyond-axis", "Arrows: intervals beyond the axis.")


class Caption(str):
    """A caption of two paragraphs, the notes below the figure and the endnotes, which it also keeps apart.

    Attributes:
        below: Notes printed below the figure.
        endnotes: Notes that reports fold away, and that papers print in the supplement.
    """

    below: list[str]
    endnotes: list[str]

    def __new__(cls, below: Iterable[str], endnotes: Iterable[str]) -> "Caption":
        """Join the notes of each paragraph, without empty ones."""
        parts = [[note for note in notes if note] for notes in (below, endnotes)]
        caption = super().__new__(cls, "\n\n".join(" ".join(notes) for notes in parts if notes))
        caption.below, caption.endnotes = parts
        return caption

    @property
    def notes(self) -> list[str]:
        """All notes, those below the figure first."""
        return [*self.below, *self.endnotes]

    def with_note(self, note: str, *, below: bool) -> "Caption":
        """Return the caption with one more note, below the figure or among the endnotes."""
        more_below, more_endnotes = ([note], []) if below else ([], [note])
        return Caption([*self.below, *more_below], [*self.endnotes, *more_endnotes])


class Bar(Line2D):
    """The bar of a confidence interval on a time axis."""


@dataclass(frozen=True)
class Series:
    """One series of a figure: its name in the legend, the levels that its runs share, and its style."""

    name: str
    levels: Mapping[str, Any]
    style: SeriesStyle

    def select(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of this series."""
        return rows_at(frame, self.levels)


def level_combinations(frame: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the combinations of levels of these factors that occur, sorted; `[{}]` without factors."""
    if not names:
        return [{}]
    ordered = frame[list(names)].drop_duplicates().sort_values(list(names))
    return [dict(zip(names, levels, strict=True)) for levels in ordered.itertuples(index=False, name=None)]


def rows_at(frame: pd.DataFrame, levels: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows at these levels."""
    if not levels:
        return frame
    selected = np.ones(len(frame), bool)
    for name, level in levels.items():
        column = frame[name].isna() if pd.isna(level) else frame[name] == level
        selected &= column.to_numpy(bool, na_value=False)
    return frame[selected]  # a single selection, because each one copies all columns


def nonempty_panels(panel_levels: Sequence[dict[str, Any]], frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the panels (by their levels) that have a row in `frame`."""
    names = list(panel_levels[0]) if panel_levels else []
    if not names:
        return list(panel_levels) if len(frame) else []
    present = {
        _level_key(levels) for levels in frame[names].drop_duplicates().itertuples(index=False, name=None)
    }
    return [levels for levels in panel_levels if _level_key(levels.values()) in present]


def _level_key(levels: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(None if pd.isna(level) else level for level in levels)


def duration_factors(facet: Sequence[str]) -> list[str]:
    """Return the facet factors model and data set, whose levels train for very different times.

    Panels share an axis of values only if they agree in these.
    """
    return [name for name in MODEL_AND_DATASET if name in facet]


def layout(n_panels: int, max_columns: int = MAX_GRID_COLUMNS) -> tuple[int, int, float]:
    """Return rows, columns and width in inches of a grid of panels.

    Up to two panels fit a print column. Three columns are used if they fill all rows.
    """
    is_threefold = n_panels in THREE_COLUMN_PANEL_COUNTS and max_columns == MAX_GRID_COLUMNS
    columns = 3 if is_threefold else min(n_panels, max_columns)
    width = style.COLUMN_INCHES if n_panels <= MAX_PANELS_IN_COLUMN else style.PAGE_INCHES
    return math.ceil(n_panels / columns), columns, width


def wide_columns(n_panels: int) -> int:
    """Return the number of columns of a grid of wide panels."""
    if n_panels == MAX_GRID_COLUMNS:
        return 2
    return 3 if n_panels <= max(THREE_COLUMN_PANEL_COUNTS) else MAX_GRID_COLUMNS


def create_axes(
    figure: Figure,
    shape: tuple[int, int],
    n_panels: int,
    *,
    share_x: bool = True,
    share_y: bool | Literal["row"] = True,
) -> list[Axes]:
    """Return the axes of the panels, row by row. Only outer panels have tick labels."""
    axes = figure.subplots(*shape, squeeze=False, sharex=share_x, sharey=share_y)
    for position, ax in enumerate(axes.flat):
        if position >= n_panels:
            ax.set_axis_off()
        elif position + shape[1] >= n_panels:
            ax.tick_params(labelbottom=True)
    return list(axes.flat[:n_panels])


@dataclass(frozen=True)
class Grid:
    """Panels in rows below a legend: the figure, its axes row by row, and the number of columns."""

    figure: Figure
    axes: list[Axes]
    columns: int

    def label(self, x: str, y: str) -> None:
        """Label the x axis once, and the y axis of the first panel of each row."""
        for ax in self.axes[:: self.columns]:
            ax.set_ylabel(y)
        self.figure.supxlabel(x, fontsize=style.FONT_SIZE)


def create_grid(
    panel_levels: Sequence[Mapping[str, Any]],
    panel_in: float,
    n_entries: int,
    *,
    max_columns: int = MAX_GRID_COLUMNS,
    around_in: float = 0.15,
    share_x: bool = True,
    share_y: bool | Literal["row"] = True,
) -> Grid:
    """Return a grid of empty panels.

    Args:
        panel_levels: Levels of each panel, which its title names; {} for no title.
        panel_in: Height of a panel without its title, in inches.
        n_entries: Number of entries of the legend.
        max_columns: As in `layout`.
        around_in: Height of the labels around the panels, in inches.
        share_x: As in `create_axes`.
        share_y: As in `create_axes`.
    """
    rows, columns, width = layout(len(panel_levels), max_columns)
    height_in = rows * (panel_in + titles_height(panel_levels)) + around_in + legend_height(n_entries, width)
    figure = style.new_figure(width, height_in)
    axes = create_axes(figure, (rows, columns), len(panel_levels), share_x=share_x, share_y=share_y)
    return Grid(figure, axes, columns)


def panel_title(levels: Mapping[str, Any], characters: int = TITLE_CHARACTERS) -> str:
    """Return the levels of a panel as a title, in lines that fit above it."""
    lines: list[str] = []
    texts = (treatment_text({name: level}) for name, level in levels.items())
    for part in (_break_name(part) for text in texts for part in text.split(", ")):
        if lines and len(f"{lines[-1]}, {part}") <= characters:
            lines[-1] = f"{lines[-1]}, {part}"
        else:
            lines.append(part)
    return "\n".join(lines)


def _break_name(text: str) -> str:
    """Return a text in lines of TITLE_CHARACTERS, broken between words or at the hyphens of a long name."""
    if len(text) <= TITLE_CHARACTERS:
        return text
    if " " in text:
        return textwrap.fill(text, TITLE_CHARACTERS, break_long_words=False, break_on_hyphens=False)
    lines = [""]
    for part in text.split("-"):
        joined = f"{lines[-1]}-{part}".removeprefix("-")
        lines = (
            [*lines[:-1], joined] if len(joined) < TITLE_CHARACTERS else [*lines[:-1], f"{lines[-1]}-", part]
        )
    return "\n".join(line for line in lines if line not in ("", "-"))


def titles_height(panel_levels: Sequence[Mapping[str, Any]], characters: int = TITLE_CHARACTERS) -> float:
    """Return the height of the tallest panel title in inches."""
    return TITLE_ROW_INCHES * max(
        (panel_title(levels, characters).count("\n") + 1 for levels in panel_levels if levels), default=0
    )


def scale_value_axis(
    ax: Axes,
    values: pd.Series,
    means: pd.DataFrame,
    axis: Literal["x", "y"] = "y",
    *,
    logarithmic: bool = False,
    from_zero: bool = True,
    quantity: str = "time",
) -> list[str]:
    """Scale the axis of a measured quantity, such as time or throughput, and return notes for the caption.

    Call it after `draw_interval`: it puts an arrow on each bar that ends beyond the axis. The axis starts at
    0, or is logarithmic if the runs span more than a factor of 20. It shows all runs, and intervals of
    MIN_RUNS_FOR_AXIS runs or more as far as MAX_INTERVAL_REACH beyond the runs. It is extended by up to
    AXIS_EXTENSION to show a longer interval as a whole.

    Args:
        ax: The panel.
        values: Values of single runs.
        means: Columns `low`, `high` and `n` of each cell.
        axis: Which axis it is.
        logarithmic: Use a logarithmic axis in any case.
        from_zero: Start a linear axis at 0 even if all values are within MIN_ZOOMED_RATIO of each other.
        quantity: Name of the quantity in the note.
    """
    if values.empty:
        return []
    reliable = means[means["n"] >= MIN_RUNS_FOR_AXIS]
    smallest, largest = values.min(), values.max()
    # The Python functions skip NaN, the bounds of a missing interval.
    lowest, highest = min(smallest, reliable["low"].min()), max(largest, reliable["high"].max())
    top = min(highest, MAX_INTERVAL_REACH * largest)
    notes = list[str]()
    if logarithmic or largest / smallest > LOG_FROM_RATIO:
        bottom = max(lowest, smallest / MAX_INTERVAL_REACH)
        notes = [Note("logarithmic-value-axis", f"The {quantity} axis is logarithmic.")]
        (ax.set_yscale if axis == "y" else ax.set_xscale)("log")
        set_round_ticks(ax.yaxis if axis == "y" else ax.xaxis)
        extension = (top / bottom) ** AXIS_EXTENSION
        bottom, top = (
            extend_end(bottom, means["low"], bottom / extension),
            extend_end(top, means["high"], top * extension),
        )
        room = max(1.1, (top / bottom) ** AXIS_MARGIN)
        limits = _reach_ticks(bottom / room, room * top)
    elif not from_zero and lowest > MIN_ZOOMED_RATIO * highest:
        room = ZOOMED_MARGIN * (highest - lowest)
        limits = lowest - room, highest + room
        notes = [NOT_FROM_ZERO]
    else:
        limits = 0.0, 1.06 * extend_end(top, means["high"], (1 + AXIS_EXTENSION) * top)
    (ax.set_ylim if axis == "y" else ax.set_xlim)(*limits)
    if ((means["high"] > limits[1]) | (means["low"] < limits[0])).any():
        notes.append(BEYOND_AXIS)
        _draw_arrows(ax, axis, limits)
    if ((means["n"] == 1) & means["high"].notna()).any():
        notes.append(SINGLE_RUNS)
    ax.grid(True, axis=axis)
    return notes


def _reach_ticks(low: float, high: float) -> tuple[float, float]:
    """Return the limits of a logarithmic axis, moved out to the next round ticks if these are near."""
    reach = (high / low) ** TICK_EXTENSION
    ticks = [digit * 10.0**decade for decade in range(-12, 13) for digit in TICK_DIGITS[1]]
    below = [tick for tick in ticks if low / reach <= tick <= low]
    above = [tick for tick in ticks if high <= tick <= high * reach]
    return max(below, default=low), min(above, default=high)


def extend_end(end: float, bounds: pd.Series, furthest: float) -> float:
    """Return the end of an axis, moved out to the last interval bound that is not beyond `furthest`."""
    if furthest > end:
        return float(max(end, bounds[bounds <= furthest].max()))
    return float(min(end, bounds[bounds >= furthest].min()))


def _draw_arrows(ax: Axes, axis: Literal["x", "y"], limits: tuple[float, float]) -> None:
    """Draw an arrow at the end of the axis for each interval that ends beyond it."""
    for bar in [line for line in ax.lines if isinstance(line, Bar)]:
        x, y = (np.asarray(values, float) for values in bar.get_data())
        ends, across = (y, x) if axis == "y" else (x, y)
        for end, limit, is_beyond in zip(
            ARROWS[axis], limits, (ends < limits[0], ends > limits[1]), strict=True
        ):
            if is_beyond.any():
                point = ([across[0]], [limit]) if axis == "y" else ([limit], [across[0]])
                arrow = ax.plot(*point, end, color=bar.get_color(), clip_on=False, zorder=6)[0]
                arrow.set(markersize=2.4, markeredgewidth=0.0)


class RoundTicks(Locator):
    """Place at most `max_ticks` round ticks over the whole range of a logarithmic axis."""

    def __init__(self, max_ticks: int) -> None:
        self.max_ticks = max_ticks

    def __call__(self) -> list[float]:
        """Return the ticks of the current view of the axis."""
        return self.tick_values(*self.axis.get_view_interval())  # type: ignore[union-attr]

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the ticks between two values."""
        low, high = sorted((vmin, vmax))
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in TICK_DIGITS:
            ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
            ticks = [tick for tick in ticks if low <= tick <= high]
            if len(ticks) <= self.max_ticks:
                break
        if len(ticks) >= min(self.max_ticks, max(MIN_ROUND_TICKS, math.ceil(self.max_ticks / 2))):
            return ticks
        if high / low < 10:
            even = MaxNLocator(max(self.max_ticks - 1, 2), steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
            return [float(tick) for tick in even if low <= tick <= high]
        step = math.ceil(len(decades) / self.max_ticks)
        return [10.0**decade for decade in decades if low <= 10.0**decade <= high][::step]


def set_round_ticks(axis: Axis, max_ticks: int = MAX_TICKS) -> None:
    """Label at most `max_ticks` round ticks of a logarithmic axis, over its whole range."""
    axis.set_major_locator(RoundTicks(max_ticks))
    axis.set_minor_locator(LogLocator(10, subs=range(1, 10), numticks=MAX_MINOR_TICK_DECADES + 1))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter("{x:g}")


def dodge_offsets(names: Sequence[str], gap: float) -> dict[str, float]:
    """Return an offset for each series, `gap` apart, so that intervals at one level do not overlap."""
    middle = (len(names) - 1) / 2
    return {name: (position - middle) * gap for position, name in enumerate(names)}


def draw_interval(
    ax: Axes,
    series_style: SeriesStyle,
    x: float,
    estimate: Estimate,
    values: pd.Series,
    replicate_offset: float,
    *,
    vertical: bool = True,
    marker_size: float = style.MARKER_SIZE,
) -> None:
    """Draw the mean of a cell, its interval as a bar, and its runs as short ticks.

    The bar is dashed if the cell has a single run: its interval has the variance of other cells.

    Args:
        ax: The panel.
        series_style: Style of the series.
        x: Position on the axis of cells.
        estimate: Mean with its interval.
        values: Values of single runs; a single one is not drawn.
        replicate_offset: Distance of the ticks from the mean.
        vertical: Values are on the y axis.
        marker_size: Size of the marker in points.
    """
    bars = ([x, x], [estimate.low, estimate.high])
    point = ([x], [estimate.value])
    ax.add_line(
        Bar(
            *bars[:: 1 if vertical else -1],
            color=series_style.colour,
            linewidth=0.9,
            linestyle=SINGLE_RUN_LINE if len(values) == 1 else "-",
            solid_capstyle="butt",
            dash_capstyle="butt",
            zorder=3,
        )
    )
    marker = marker_style(series_style) | {"markersize": marker_size}
    ax.plot(*point[:: 1 if vertical else -1], zorder=4, **marker)
    if len(values) > 1:
        draw_replicates(ax, series_style, x + replicate_offset, values, vertical=vertical)


def draw_replicates(
    ax: Axes, series_style: SeriesStyle, x: float, values: pd.Series, *, vertical: bool = True
) -> None:
    """Draw the values of single runs as short ticks across their axis."""
    ticks = ([x] * len(values), values.tolist())
    line = ax.plot(*ticks[:: 1 if vertical else -1], "_" if vertical else "|", zorder=5)[
        0
    ]  # no series has these
    line.set(color=series_style.colour, markersize=style.REPLICATE_SIZE, markeredgewidth=0.5)


def mark_out_of_memory(
    ax: Axes, position: float, styles: Sequence[SeriesStyle], across: Transform | None = None
) -> None:
    """Mark cells that ran out of memory at the lower end of the axis of values, one above the other.

    Args:
        ax: The panel.
        position: Position on the axis of cells.
        styles: Style of the series of each cell.
        across: Transformation of `position`; by default the axis of cells.
    """
    base = across or ax.get_xaxis_transform()
    for number, series_style in enumerate(styles):
        y = 2 + number * OUT_OF_MEMORY_ROW_POINTS
        label = ax.annotate(OUT_OF_MEMORY_MARK, (position, 0), (0, y), base, "offset points", zorder=6)
        label.set(ha="center", va="bottom", color=style.INK, fontsize=style.SMALL_FONT_SIZE)
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.2})
        shift = (-OUT_OF_MEMORY_MARKER_POINTS / 72, (y + 4) / 72)
        marker_transform = base + ScaledTranslation(*shift, ax.figure.dpi_scale_trans)
        marker = marker_style(series_style) | {"markersize": OUT_OF_MEMORY_MARKER_SIZE}
        ax.plot([position], [0], transform=marker_transform, zorder=6, scalex=False, scaley=False, **marker)


def marker_style(series_style: SeriesStyle) -> dict[str, Any]:
    """Return the marker of a series, without a line."""
    return {
        "linestyle": "none",
        "marker": series_style.marker,
        "color": series_style.colour,
        "markerfacecolor": series_style.colour if series_style.filled else "white",
        "markeredgecolor": series_style.colour,
        "markeredgewidth": 0.8,
    }


def add_legend(
    figure: Figure,
    entries: Iterable[Series],
    extra: Sequence[Line2D] = (),
    *,
    lines: bool = True,
    markers: bool = True,
) -> None:
    """Add one legend of series above all panels."""
    handles: list[Line2D] = []
    for series in entries:
        marker = marker_style(series.style) if markers else {"color": series.style.colour}
        line = {"linestyle": series.style.line} if lines else {}
        handles.append(Line2D([], [], label=series.name, **marker | line))
    place_legend(figure, [*handles, *extra])


def place_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Place one legend above all panels, with as many entries per row as fit."""
    columns = legend_columns(figure.get_figwidth(), [str(handle.get_label()) for handle in handles])
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)


def legend_columns(width_in: float, names: Sequence[str] = ()) -> int:
    """Return the number of legend entries per row: as many as fit, given their names."""
    widths = np.array([LEGEND_HANDLE_INCHES + LEGEND_CHARACTER_INCHES * len(name) for name in names])
    for columns in range(2 if width_in < 4 else 4, 1, -1):
        parts = [part for part in np.array_split(widths, columns) if len(part)]  # as matplotlib splits them
        if sum(part.max() for part in parts) <= width_in:
            return columns
    return 1


def legend_height(n_entries: int, width_in: float, names: Sequence[str] = ()) -> float:
    """Return the height in inches of a legend of `n_entries`, with these names if they are known."""
    return 0.08 + LEGEND_ROW_INCHES * math.ceil(n_entries / legend_columns(width_in, names))


def handles_height(handles: Sequence[Artist], width_in: float) -> float:
    """Return the height of a legend of these handles in inches."""
    return legend_height(len(handles), width_in, [str(handle.get_label()) for handle in handles])


def max_panels_on_page(height_in: float, across: int = MAX_GRID_COLUMNS) -> int:
    """Return how many panels of this height, including titles, fit a printed page."""
    return across * max(1, int(PAGE_PANELS_INCHES / height_in))


def write_remark(ax: Axes, text: str, characters: int = REMARK_CHARACTERS) -> None:
    """Write a remark in the middle of an empty panel."""
    text = textwrap.fill(text, characters)
    ax.text(0.5, 0.5, text, ha="center", va="center", color=style.MUTED, transform=ax.transAxes)


def as_clause(sentence: str) -> str:
    """Return a sentence as the continuation after a colon. A note keeps its code and facts."""
    text = f"{sentence[:1].lower()}{sentence[1:].rstrip('.')}"
    return Note(sentence.code, text, **sentence.facts) if isinstance(sentence, Note) else text


def empty_figure(
    runs: pd.DataFrame | None, cause: str = NO_SUCCESS, *details: str, endnotes: Sequence[str] = ()
) -> tuple[Figure, Caption]:
    """Return a figure that only states why it is empty, and its caption.

    The caption begins with NOT_DRAWN, so that reports and papers leave the figure out. Its first note,
    `not-drawn`, has the facts of `cause`, and its code as the fact `why`.

    Args:
        runs: The runs, for the note on their setting; None to omit it.
        cause: Why nothing is drawn.
        details: Further sentences of the caption.
        endnotes: As in `compose_caption`.
    """
    figure = style.new_figure(style.COLUMN_INCHES, 1.4)
    ax = figure.subplots()
    ax.set_xticks([])
    ax.set_yticks([])
    write_remark(ax, cause)
    code, facts = (cause.code, cause.facts) if isinstance(cause, Note) else ("", {})
    reason = Note("not-drawn", f"{NOT_DRAWN}{cause}.", why=code, **facts)
    return figure, split_caption(
        [reason, *details, conditions.setting_note(runs) if runs is not None else ""], endnotes
    )


def compose_caption(
    runs: pd.DataFrame,
    heading: str | Sequence[str],
    *details: str,
    endnotes: Sequence[str] = (),
    with_intervals: bool = True,
    counted: pd.Series | None = None,
) -> Caption:
    """Return a caption: what is drawn, how many runs, on which machine, and what is missing.

    Statements that hold for all figures, such as how intervals are computed, are in the study's methods note
    (`conditions.methods_notes`).

    Args:
        runs: The runs that are drawn.
        heading: What the figure shows: the sentences with which the caption begins.
        details: Further sentences. Those that do not fit become endnotes (`split_caption`).
        endnotes: Notes that are not printed below the figure.
        with_intervals: State how intervals are computed.
        counted: As in `conditions.run_counts_note`.
    """
    always = [
        conditions.run_counts_note(runs, with_intervals, counted),
        conditions.load_note(runs),
        conditions.setting_note(runs),
    ]
    headings = [heading] if isinstance(heading, str) else heading
    warnings = [detail for detail in details if detail in (SINGLE_RUNS, NOT_FROM_ZERO)]
    return split_caption([*headings, *details, *always], endnotes, keep_first=[*headings, *always, *warnings])


def split_caption(texts: Iterable[str], endnotes: Iterable[str], keep_first: Iterable[str] = ()) -> Caption:
    """Return a caption of distinct sentences, of which those that do not fit become endnotes.

    Sentences of `keep_first` are placed first, then every other sentence that still fits into
    MAX_CAPTION_WORDS, even if one before it does not. All are printed in the order of `texts`.

    Args:
        texts: What to print below the figure.
        endnotes: Further endnotes.
        keep_first: The texts among `texts` whose sentences are placed before others.
    """
    sentences, first_sentences = _sentences(texts), _sentences(keep_first)
    kept_below, words_left = set[str](), MAX_CAPTION_WORDS
    for sentence in dict.fromkeys([*first_sentences, *sentences]):
        if (words := len(sentence.split())) <= words_left:
            kept_below.add(sentence)
            words_left -= words
    return Caption(
        [sentence for sentence in sentences if sentence in kept_below],
        [*(sentence for sentence in sentences if sentence not in kept_below), *dict.fromkeys(endnotes)],
    )


def _sentences(texts: Iterable[str]) -> list[str]:
    """Return the distinct sentences of the texts."""
    return list(dict.fromkeys(sentence for text in texts for sentence in _split(text) if sentence))


def _split(text: str) -> list[str]:
    """Return the sentences of a text. The first sentence of a note keeps its code and facts."""
    first, *following = split_sentences(text)
    return [Note(text.code, first, **text.facts) if isinstance(text, Note) else first, *following]
