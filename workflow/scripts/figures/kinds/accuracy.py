"""Draw training and validation accuracy, or perplexity, over epochs, optimizer steps or wall time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from analysis import intervals
from analysis.level_words import treatment_text
from analysis.records import Records
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, legends, marks, panels, selection, style, value_axis
from figures.selection import Series
from figures.view import View, build_view

PANEL_INCHES = 1.2
SMALL_PANEL_INCHES = 1.0  # height if there are more panels than LARGE_PANELS
LARGE_PANELS = 12
SMALL_GRID_COLUMNS = 6
SMALL_TITLE_CHARACTERS = 16
MAX_MARKED_EPOCHS = 20  # markers of a line, unless they are shifted
MARKER_SIZE = 2.4
MAX_EPOCH_TICKS = 4
MARGIN = 0.05  # share of the axis, at either end
SINGLE_EPOCH_OFFSET = 0.08  # share of the axis, between series with a single epoch
BAR_OFFSET = 0.012  # share of the axis, between markers and bars of two series
MIN_RUNS_FOR_INTERVAL = 3  # fewer runs are drawn one by one
MAX_BANDS = 3  # series of a panel with bands; more get bars, because bands would cover each other
MAX_BARS = 10  # bars of a series whose markers and bars are shifted
MIN_AXIS_SPAN = 0.02  # smallest range of an axis of accuracy, as a share
# Series of a panel whose means of accuracy differ by no more, at every epoch, share a curve.
COMMON_CURVE_TOLERANCE = 0.005
MAX_NAMED_PANELS = 2  # panels that a caption names because their series disagree
COMMON_BAND: Mapping[str, Any] = {"color": style.INK, "alpha": style.BAND_ALPHA, "linewidth": 0}
COMMON_CURVE: Mapping[str, Any] = {
    "color": style.INK,
    "linewidth": 0.8,
    "marker": "o",
    "markersize": 1.8,
    "markeredgewidth": 0,
}
DOT_SIZE = 1.4
PARTS = {"train": "training", "validation": "validation"}  # names of the panels, from the top


@dataclass(frozen=True)
class Quantity:
    """A quantity that is drawn.

    Attributes:
        column: Its name in the caption, and that of its columns without the part.
        label: Axis label without the part.
        minimum: Smallest possible value.
        maximum: Largest possible value.
        unit_multiplier: Factor to the unit of the axis.
        explanation: An endnote of the caption.
    """

    column: str
    label: str
    minimum: float
    maximum: float
    unit_multiplier: float = 1.0
    explanation: str = ""

    @property
    def responses(self) -> dict[str, str]:
        """The columns of its panels from the top, with the name of the part of each."""
        return {f"{part}_{self.column}": part_name for part, part_name in PARTS.items()}


QUANTITIES = {
    "accuracy": Quantity("accuracy", "accuracy (%)", 0, 1, 100),
    "perplexity": Quantity(
        "perplexity",
        "perplexity",
        1,
        math.inf,
        explanation=Note(
            "perplexity",
            "Perplexity is exp(loss), the loss being the mean cross-entropy of the next token; its axis "
            "is logarithmic.",
        ),
    ),
}


@dataclass(frozen=True)
class Axis:
    """A quantity on the x axis: its name in the caption, its label, an endnote, and whether it is a count."""

    name: str
    label: str
    explanation: str = ""
    integer: bool = True


AXES = {
    "epochs": Axis("epochs", "epoch"),
    "updates": Axis(
        "updates",
        "updates",
        Note(
            "updates",
            "Updates are optimizer steps from the first epoch on. With several ranks, each follows a "
            "gradient all-reduce.",
        ),
    ),
    "wall_time": Axis(
        "wall time",
        "wall time (s)",
        Note(
            "wall-time",
            "Wall time covers epochs and validations from the first epoch on, which includes warm-up, "
            "without start-up. The first epoch takes long if the first step does, "
            "for example because it compiles the model or sets up communication.",
        ),
        integer=False,
    ),
}
LEAD = "{} {} over {}. Lines: means"
INTERVALS_PHRASE = "; {}: 95 % t intervals."
SHIFTED_NOTE = Note("shifted-sideways", "Markers and bars are shifted sideways.")
DOTS_NOTE = Note("single-runs-drawn", "Dots: runs of cells with fewer than three.")
LOGARITHMIC_NOTE = Note("logarithmic-axis", "The axis of updates is logarithmic.", axis="updates")
WALL_TIME_MEANS = Note("wall-time-means", "Wall times are means without intervals.")
WALL_TIME_STARTS = Note("curves-start-late", "A curve begins when its first epoch ends.")
COMMON_CURVES_EXPLAINED = Note(
    "common-curve-explained",
    "A common curve is the mean of the means of its series, and its band reaches from the lowest to the "
    "highest end of their intervals.",
)


@dataclass(frozen=True)
class _XScale:
    """The x axis that all panels share.

    Attributes:
        axis: What it shows.
        low: Its lower end.
        high: Its upper end.
        logarithmic: Whether it is logarithmic.
    """

    axis: Axis
    low: float
    high: float
    logarithmic: bool = False

    def shift(self, x: np.ndarray, share: float) -> np.ndarray:
        """Return `x` moved by this share of the axis; times, which are measured, do not move."""
        if not self.axis.integer:
            return x
        return x * (self.high / self.low) ** share if self.logarithmic else x + share * (self.high - self.low)


@dataclass(frozen=True)
class _Curves:
    """What the panels show: one response over the epochs of each cell.

    Attributes:
        view: The cells to draw.
        epochs: The epochs of their runs, with `x`.
        responses: The columns to draw, from the top, with the name of the part of each.
        quantity: The quantity that they are.
        x_scale: The x axis.
    """

    view: View
    epochs: pd.DataFrame
    responses: dict[str, str]
    quantity: Quantity
    x_scale: _XScale

    @cached_property
    def by_panel(self) -> list[list[tuple[Series, pd.DataFrame]]]:
        """The series of each panel that have runs, with their epochs."""
        rows = self.epochs.groupby("cell").indices
        by_panel = []
        for levels in self.view.panel_levels:
            panel_runs = selection.rows_at(self.view.ok, levels)
            indices = {
                series.name: [
                    rows[cell] for cell in series.select(panel_runs)["cell"].unique() if cell in rows
                ]
                for series in self.view.series
            }
            by_panel.append(
                [
                    (series, self.epochs.iloc[np.concatenate(indices[series.name])])
                    for series in self.view.series
                    if indices[series.name]
                ]
            )
        return by_panel

    def _by_epoch(self, panel: int, column: str, statistic: str) -> pd.DataFrame:
        """Return the mean, or the count, of a column at each epoch, with a column per series of the panel."""
        return pd.DataFrame(
            {
                number: epochs.groupby("epoch")[column].agg(statistic)
                for number, (_, epochs) in enumerate(self.by_panel[panel])
            }
        ).astype(float)

    @cached_property
    def spreads(self) -> dict[tuple[int, str], pd.Series]:
        """The range of the means of a panel's series at each epoch, by panel and response.

        Panels with a single series have none.
        """
        spreads = {}
        for panel, curves in enumerate(self.by_panel):
            for response in self.responses if len(curves) > 1 else ():
                means = self._by_epoch(panel, response, "mean")
                spreads[panel, response] = (means.max(axis=1) - means.min(axis=1)).dropna()
        return spreads

    @cached_property
    def agreeing(self) -> dict[tuple[int, str], list[list[int]]]:
        """The numbers of the series of each panel and response, in lists of those that agree at every epoch.

        Cells with too few runs for an interval agree with no other.
        """
        return {
            (panel, response): self._agreeing_series(panel, response)
            for panel in range(len(self.by_panel))
            for response in self.responses
        }

    def _agreeing_series(self, panel: int, response: str) -> list[list[int]]:
        means, counts = (self._by_epoch(panel, response, name) for name in ("mean", "count"))
        x = self._by_epoch(panel, "x", "mean")

        def agree(numbers: list[int]) -> bool:
            values = means[numbers].to_numpy()
            return (
                math.isfinite(self.quantity.maximum)
                and len(values) > 1
                and not np.isnan(values).any()
                and np.ptp(values, axis=1).max() <= COMMON_CURVE_TOLERANCE
                and counts[numbers].to_numpy().min() >= MIN_RUNS_FOR_INTERVAL
                and (not self.x_scale.axis.integer or np.ptp(x[numbers].to_numpy(), axis=1).max() == 0)
            )

        groups: list[list[int]] = []
        for number in means:
            group = next((group for group in groups if agree([*group, number])), None)
            if group is None:
                groups.append([number])
            else:
                group.append(number)
        return groups

    @cached_property
    def groups(self) -> dict[tuple[int, str], list[list[int]]]:
        """The series of each panel and response, in lists of those that share a curve.

        Over wall time series end at different times, so each has a curve of its own.
        """
        if not self.x_scale.axis.integer:
            return {key: _apart(groups) for key, groups in self.agreeing.items()}
        is_shared = any(len(members) > 1 for members in self.sharing)
        return {
            key: groups if is_shared or _is_single_group(groups) else _apart(groups)
            for key, groups in self.agreeing.items()
        }

    @cached_property
    def sharing(self) -> list[list[Series]]:
        """The series, in lists of those that a curve in colour stands for.

        If some series agree in one panel and disagree in another one, each series is alone, because the
        colour of a curve would otherwise stand for different series.
        """
        partition: list[set[str]] = []
        disagreeing = [
            [{self.by_panel[panel][number][0].name for number in group} for group in groups]
            for (panel, _), groups in self.agreeing.items()
            if not _is_single_group(groups)
        ]
        for names in (names for groups in disagreeing for names in groups):
            joined = names.union(*(part for part in partition if part & names))
            partition = [*(part for part in partition if not part & names), joined]
        if any(
            sum(bool(part & names) for names in groups) > 1 for part in partition for groups in disagreeing
        ):
            return [[series] for series in self.view.series]
        return [[series for series in self.view.series if series.name in part] for part in partition]

    @cached_property
    def common(self) -> set[tuple[int, str]]:
        """Panels and responses whose series all agree, so that a black curve stands for all of them."""
        return {key for key, groups in self.groups.items() if _is_single_group(groups)}

    @cached_property
    def distinct_panels(self) -> list[list[int]]:
        """The panels, in lists of those whose series all share the same curves, which are drawn once."""
        groups: list[list[int]] = []
        for panel in range(len(self.by_panel)):
            equal = (group for group in groups if self._are_equal(group[0], panel))
            if (group := next(equal, None)) is None:
                groups.append([panel])
            else:
                group.append(panel)
        return groups

    def _are_equal(self, panel: int, second_panel: int) -> bool:
        """Return whether all series of two panels share the same curves."""
        keys = {(number, response) for number in (panel, second_panel) for response in self.responses}
        if not keys <= self.common:
            return False
        columns = ["x", *self.responses]
        first, second = (
            np.array([self._by_epoch(number, column, "mean").mean(axis=1) for column in columns])
            for number in (panel, second_panel)
        )
        return first.shape == second.shape and np.allclose(first, second, atol=COMMON_CURVE_TOLERANCE)

    @property
    def has_shared(self) -> bool:
        """Whether some series share a curve."""
        return any(len(group) > 1 for groups in self.groups.values() for group in groups)

    @cached_property
    def has_bands(self) -> bool:
        """Whether intervals are bands instead of bars."""
        n_curves = max(map(len, self.groups.values()))
        return n_curves <= MAX_BANDS and self.epochs["epoch"].nunique() > 1

    @property
    def coloured(self) -> list[Series]:
        """The curves in colour, which the legend names: series, and several series that share a curve."""
        drawn = {
            self.curve_of(self.by_panel[panel][group[0]][0]).name
            for (panel, response), groups in self.groups.items()
            if (panel, response) not in self.common
            for group in groups
        }
        curves = {self.curve_of(series).name: self.curve_of(series) for series in self.view.series}
        return [curve for name, curve in curves.items() if name in drawn]

    def curve_of(self, series: Series) -> Series:
        """Return the curve in colour of a series: itself, or with the names of all that share the curve.

        It has the style of the last of them, because single-device baselines, which are pale, come first.
        """
        members = next((members for members in self.sharing if series in members), [series])
        if not self.x_scale.axis.integer or len(members) == 1:
            return series
        names = [member.name for member in members]
        separator = "; " if any(", " in name for name in names) else ", "
        return Series(separator.join(names), {}, members[-1].style)


def _is_single_group(groups: Sequence[Sequence[int]]) -> bool:
    """Return whether several series are all in one group."""
    return len(groups) == 1 and len(groups[0]) > 1


def _apart(groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return groups of one series each."""
    return [[number] for group in groups for number in group]


def draw(records: Records, spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure, with training above validation for each combination of factors, and its caption."""
    view = build_view(records.runs, spec)
    x_axis, quantity = AXES[spec.x or "epochs"], QUANTITIES[spec.y or "accuracy"]
    titles_in = panels.titles_height(view.panel_levels, SMALL_TITLE_CHARACTERS)
    view = view.fit_to_page(len(PARTS) * SMALL_PANEL_INCHES + titles_in, SMALL_GRID_COLUMNS)
    epochs = _epochs(records, view, spec.x or "epochs")
    responses = {
        name: part
        for name, part in quantity.responses.items()
        if name in epochs and epochs[name].notna().any()
    }
    if not responses or epochs["x"].isna().all():
        missing = x_axis.name if responses else quantity.column
        cause = Note("not-recorded", f"no {missing} was recorded", quantity=missing)
        return panels.empty_figure(view.runs, captions.NO_SUCCESS if epochs.empty else cause)
    recorded_runs = epochs.groupby(["cell", "epoch"])[list(responses)].count().stack()
    recorded_runs = recorded_runs[recorded_runs > 0]
    curves = _Curves(view, epochs, responses, quantity, _x_scale(x_axis, epochs))
    figure = _draw_panels(curves)
    has_interval = recorded_runs >= MIN_RUNS_FOR_INTERVAL
    text = LEAD.format(" and ".join(responses.values()).capitalize(), quantity.column, x_axis.name)
    text += INTERVALS_PHRASE.format(_interval_marks(curves)) if has_interval.any() else "."
    lead = Note("heading", text, quantity=quantity.column, parts=list(responses.values()), over=x_axis.name)
    is_shifted = x_axis.integer and not curves.has_bands and len(curves.coloured) > 1
    return figure, view.caption(
        lead,
        WALL_TIME_MEANS if x_axis is AXES["wall_time"] else "",
        *_distance_notes(curves),
        WALL_TIME_STARTS if x_axis is AXES["wall_time"] else "",
        "" if has_interval.all() else DOTS_NOTE,
        LOGARITHMIC_NOTE if curves.x_scale.logarithmic else "",
        SHIFTED_NOTE if is_shifted else "",
        endnotes=[
            quantity.explanation,
            x_axis.explanation,
            COMMON_CURVES_EXPLAINED if curves.has_shared else "",
        ],
        counted=recorded_runs,
    )


def _interval_marks(curves: _Curves) -> str:
    """Return how intervals are drawn: as bands, as bars, or as both."""
    if curves.has_bands or not curves.coloured:
        return "bands"
    return "bands, bars" if curves.common else "bars"


def _x_scale(x_axis: Axis, epochs: pd.DataFrame) -> _XScale:
    """Return the x axis of all panels.

    Updates get a logarithmic axis if cells make very different numbers of them, because the curves of those
    with few updates would be a vertical line on a linear one.
    """
    by_epoch = epochs.groupby(["cell", "epoch"])["x"]
    x = by_epoch.transform("mean").where(by_epoch.transform("count") >= MIN_RUNS_FOR_INTERVAL, epochs["x"])
    if x_axis is AXES["updates"] and x.min() > 0 and x.max() / x.min() > value_axis.LOG_FROM_RATIO:
        margin = (x.max() / x.min()) ** MARGIN
        return _XScale(x_axis, x.min() / margin, x.max() * margin, logarithmic=True)
    return _XScale(x_axis, *_axis_limits(x, integer=x_axis.integer))


def _distance_notes(curves: _Curves) -> list[str]:
    """Return how far the curves of a panel are apart, in points of accuracy; [] for other quantities.

    With black curves, the second note names the panels whose series do not all agree.
    """
    spreads = {key: spread for key, spread in curves.spreads.items() if len(spread)}
    if not (math.isfinite(curves.quantity.maximum) and spreads):
        return []
    unit = curves.quantity.unit_multiplier
    all_spreads = unit * pd.concat(list(spreads.values()))
    largest, median = float(all_spreads.max()), float(all_spreads.median())
    if not curves.common:
        text = f"Means at equal epochs differ by at most {largest:.2g} points."
        return [Note("curves-apart", text, largest=largest, median=median)]
    common = unit * max(float(spreads[key].max()) for key in curves.common)
    text = f"Black: all {curves.view.series_plural}, within {common:.1g} points."
    notes: list[str] = [Note("common-curve", text, largest=common, panels=len(curves.common))]
    apart = [key for key in spreads if key not in curves.common]
    if apart:
        names = [
            ", ".join(
                filter(None, (curves.responses[response], treatment_text(curves.view.panel_levels[panel])))
            )
            for panel, response in apart
        ]
        named = "; ".join(names) if len(names) <= MAX_NAMED_PANELS else f"{len(names)} panels in colour"
        text = f"Up to {largest:.2g} points apart: {named}."
        notes.append(Note("curves-apart", text, largest=largest, median=median, panels=names))
    return notes


def _draw_panels(curves: _Curves) -> Figure:
    """Draw a panel of training above one of validation for each combination of factors.

    Combinations with equal curves share a panel, whose title has all of them.
    """
    view, quantity, responses, x_scale = curves.view, curves.quantity, list(curves.responses), curves.x_scale
    panel_levels = [view.panel_levels[panel] for panel, *_ in curves.distinct_panels]
    is_small = len(panel_levels) > LARGE_PANELS
    max_columns, panel_in = (
        (SMALL_GRID_COLUMNS, SMALL_PANEL_INCHES) if is_small else (panels.MAX_GRID_COLUMNS, PANEL_INCHES)
    )
    characters = SMALL_TITLE_CHARACTERS if is_small else panels.TITLE_CHARACTERS
    n_bands, n_columns, width = panels.layout(len(panel_levels), max_columns)
    titles = [
        "\n= ".join(panels.panel_title(view.panel_levels[panel], characters) for panel in group)
        for group in curves.distinct_panels
    ]
    title_rows = max(text.count("\n") + 1 if text else 0 for text in titles)
    pair_in = len(responses) * panel_in + panels.TITLE_ROW_INCHES * title_rows
    common_handle = Line2D([], [], label=f"all {view.series_plural}", **COMMON_CURVE)
    further_handles = [common_handle] if curves.common else []
    names = [series.name for series in curves.coloured]
    names += [str(handle.get_label()) for handle in further_handles]
    legend_in = legends.legend_height(len(names), width, names)
    figure = style.new_figure(width, n_bands * pair_in + 0.15 + legend_in)
    axes = figure.subplots(n_bands * len(responses), n_columns, squeeze=False, sharex=True, sharey="row")
    for ax in axes.flat:
        ax.set_axis_off()
        ax.autoscale(False)  # it is slow with dozens of panels that share axes
    for band in range(n_bands):
        # Rows share their limits, unless models or data sets, which differ in accuracy, make panels.
        is_separate = bool(panels.duration_factors(view.panel_factors))
        band_levels = panel_levels[band * n_columns : (band + 1) * n_columns] if is_separate else panel_levels
        cells = {cell for levels in band_levels for cell in selection.rows_at(view.ok, levels)["cell"]}
        for row, response in enumerate(responses):
            _set_y_axis(axes[band * len(responses) + row, 0], quantity, curves.epochs, response, cells)
    for place, (levels, (panel, *_)) in enumerate(zip(panel_levels, curves.distinct_panels, strict=True)):
        band, column = divmod(place, n_columns)
        for row, response in enumerate(responses):
            ax = axes[band * len(responses) + row, column]
            ax.set_axis_on()
            if x_scale.logarithmic:
                ax.set_xscale("log")
            ax.set_xlim(x_scale.low, x_scale.high)
            _draw_panel(ax, curves, panel, response)
            if not ax.lines:
                panels.write_remark(ax, view.absence_reason(selection.rows_at(view.runs, levels)), 24)
            if row == 0:
                ax.set_title(titles[place])
            if column == 0:
                ax.set_ylabel(f"{quantity.responses[response]}\n{quantity.label}")
            is_last = row == len(responses) - 1 and place + n_columns >= len(panel_levels)
            ax.tick_params(labelbottom=is_last)
            ax.grid(True)
            _set_x_ticks(ax, curves, is_small=is_small)
    figure.supxlabel(x_scale.axis.label, fontsize=style.FONT_SIZE)
    legends.add_legend(figure, curves.coloured, further_handles)
    return figure


def _set_x_ticks(ax: Axes, curves: _Curves, *, is_small: bool) -> None:
    x_scale = curves.x_scale
    if x_scale.logarithmic:
        value_axis.set_round_ticks(ax.xaxis, MAX_EPOCH_TICKS)
    elif x_scale.axis is AXES["epochs"]:
        ticks = _epoch_ticks(curves.epochs["epoch"], MAX_EPOCH_TICKS - is_small)
        ax.xaxis.set_major_locator(FixedLocator(ticks))
    else:
        n_ticks = 3 if is_small else 4
        ax.xaxis.set_major_locator(MaxNLocator(n_ticks, integer=x_scale.axis.integer, min_n_ticks=2))


def _draw_panel(ax: Axes, curves: _Curves, panel: int, response: str) -> None:
    """Draw the curves of a panel, of single series and of groups that share one."""
    drawn = curves.by_panel[panel]
    positions = {series.name: index for index, series in enumerate(curves.view.series)}
    middle = (len(positions) - 1) / 2
    for group in curves.groups[panel, response]:
        series, epochs = drawn[group[0]]
        if (panel, response) in curves.common:
            _draw_shared_curve(ax, drawn, response, curves.quantity, (COMMON_BAND, COMMON_CURVE))
        elif len(group) > 1:
            group_style = curves.curve_of(series).style
            band = {"color": group_style.colour, "alpha": style.BAND_ALPHA, "linewidth": 0}
            marker = marks.marker_style(group_style) | {"markersize": MARKER_SIZE, "markeredgewidth": 0.5}
            line = marker | {"linestyle": group_style.line, "linewidth": 0.8}
            members = [drawn[number] for number in group]
            _draw_shared_curve(ax, members, response, curves.quantity, (band, line))
        else:
            _draw_curve(ax, series, epochs, response, positions[series.name] - middle, curves)


def _draw_shared_curve(
    ax: Axes,
    members: Sequence[tuple[Series, pd.DataFrame]],
    response: str,
    quantity: Quantity,
    styles: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> None:
    """Draw the mean of the means of several series, in a band around all their intervals.

    `styles` are those of the band and of the curve.
    """
    by_epoch = pd.concat([_means(epochs, response, quantity) for _, epochs in members]).groupby(level=0)
    ends = by_epoch.agg({"value": "mean", "low": "min", "high": "max"}) * quantity.unit_multiplier
    x = members[0][1].groupby("epoch")["x"].mean().reindex(ends.index).to_numpy(float)
    ax.fill_between(x, ends["low"].to_numpy(float), ends["high"].to_numpy(float), **styles[0])
    step = max(1, math.ceil(len(x) / MAX_MARKED_EPOCHS))
    ax.plot(x, ends["value"].to_numpy(float), markevery=step, **styles[1])


def _epoch_ticks(epochs: pd.Series, max_ticks: int) -> list[int]:
    """Return the first epoch, others at equal distances, and the last one."""
    first, last = int(epochs.min()), int(epochs.max())
    step = max(1, math.ceil((last - first) / (max_ticks - 1)))
    return sorted({*range(first, last - step // 2, step), last})


def _epochs(records: Records, view: View, x: str) -> pd.DataFrame:
    """Return the epochs of the drawn runs, with the position `x` of their end.

    It has no rows if no run succeeded.
    """
    if view.ok.empty:
        return pd.DataFrame()
    epochs = records.epochs_of(view.runs)
    has_perplexity = epochs["run_id"].isin(set(view.runs.loc[view.runs["perplexity"].notna(), "run_id"]))
    for part in PARTS:
        losses = epochs[f"{part}_loss"].astype(float).where(has_perplexity)
        epochs = epochs.assign(**{f"{part}_perplexity": np.exp(losses)})
    if x == "epochs":
        return epochs.assign(x=epochs["epoch"].astype(float))
    epochs = epochs.sort_values("epoch", kind="stable")
    increments = (
        epochs["n_allreduces"]
        if x == "updates"
        else epochs["epoch_time_s"] + epochs["validation_time_s"].fillna(0.0)
    )
    return epochs.assign(x=increments.astype(float).groupby(epochs["run_id"], sort=False).cumsum())


def _set_y_axis(ax: Axes, quantity: Quantity, epochs: pd.DataFrame, response: str, cells: set[str]) -> None:
    """Set the y axis that the panels of a row share, which draw the column `response` of `cells`.

    It shows all runs, and intervals that need little more axis. Without any value it is that of all cells.
    """
    drawn = epochs[epochs["cell"].isin(cells)]
    epochs = drawn if drawn[response].notna().any() else epochs
    values = epochs[response].to_numpy(float)
    smallest, largest = np.nanmin(values), np.nanmax(values)
    if not math.isfinite(quantity.maximum):
        ax.set_yscale("log")
        value_axis.set_round_ticks(ax.yaxis)
        ax.set_ylim(max(quantity.minimum, 0.9 * smallest), 1.1 * largest)
        return
    span = max(largest - smallest, MIN_AXIS_SPAN)
    lows = pd.concat([_means(rows, response, quantity)["low"] for _, rows in epochs.groupby("cell")])
    smallest = value_axis.extend_end(smallest, lows, smallest - value_axis.AXIS_EXTENSION * span)
    margin = MARGIN * max(largest - smallest, MIN_AXIS_SPAN)
    low, high = max(quantity.minimum, smallest - margin), min(largest + margin, quantity.maximum + margin)
    ax.set_ylim(quantity.unit_multiplier * low, quantity.unit_multiplier * high)


def _means(epochs: pd.DataFrame, response: str, quantity: Quantity) -> pd.DataFrame:
    """Return the means of a cell by epoch, with intervals from MIN_RUNS_FOR_INTERVAL runs on."""
    means = intervals.means(
        epochs[response], epochs["epoch"], minimum=quantity.minimum, maximum=quantity.maximum
    )
    bounds = ["low", "high"]
    means[bounds] = means[bounds].where(means["n"] >= MIN_RUNS_FOR_INTERVAL)
    return means


def _axis_limits(x: pd.Series, *, integer: bool) -> tuple[float, float]:
    """Return the limits of the x axis. Times start at 0; counts have a margin on both sides."""
    first, last = x.min(), x.max()
    if pd.isna(first):
        return 0.0, 1.0
    if not integer:
        return 0.0, (1 + MARGIN) * last
    if not last > first:
        return first - 0.5, last + 0.5
    return first - MARGIN * (last - first), last + MARGIN * (last - first)


def _draw_curve(
    ax: Axes,
    series: Series,
    epochs: pd.DataFrame,
    response: str,
    position: float,
    curves: _Curves,
) -> None:
    """Draw one series of a panel.

    Args:
        ax: The panel.
        series: The series.
        epochs: Its epochs.
        response: The column to draw.
        position: Number of the series, counted from the middle one.
        curves: What all panels show.
    """
    quantity, has_bands, x_scale = curves.quantity, curves.has_bands, curves.x_scale
    means = _means(epochs, response, quantity)
    if means.empty:
        return
    is_single = len(means) == 1
    shift = position * SINGLE_EPOCH_OFFSET * is_single
    x = x_scale.shift(epochs.groupby("epoch")["x"].mean().reindex(means.index).to_numpy(float), shift)
    colour = series.style.colour
    is_shifted = x_scale.axis.integer and not (has_bands or is_single or position == 0)
    step = max(1, math.ceil(len(x) / (MAX_BARS if is_shifted else MAX_MARKED_EPOCHS)))
    marked_x = x_scale.shift(x, position * BAR_OFFSET * is_shifted)
    low, high = (quantity.unit_multiplier * means[bound].to_numpy() for bound in ("low", "high"))
    # The hollow markers of single-device baselines would be hidden below filled ones.
    above: dict[str, Any] = {"zorder": 3 if series.style.filled else 4}
    if has_bands:
        ax.fill_between(x, low, high, color=colour, alpha=style.BAND_ALPHA, linewidth=0)
    else:
        ax.vlines(marked_x[::-step], low[::-step], high[::-step], color=colour, linewidth=0.7)
    epochs_of_few_runs = epochs[epochs["epoch"].isin(means.index[means["n"] < MIN_RUNS_FOR_INTERVAL])]
    if len(epochs_of_few_runs):
        values = quantity.unit_multiplier * epochs_of_few_runs[response].astype(float)
        few_x = x_scale.shift(epochs_of_few_runs["x"].to_numpy(float), shift)
        dots = ax.plot(few_x, values, "o", color=colour)[0]
        dots.set(markersize=DOT_SIZE, markeredgewidth=0)
    values = quantity.unit_multiplier * means["value"].to_numpy()
    line: dict[str, Any] = {"color": series.style.colour, "linestyle": series.style.line, "linewidth": 0.8}
    marker = marks.marker_style(series.style) | {"markersize": MARKER_SIZE, "markeredgewidth": 0.5}
    if is_shifted:
        ax.plot(x, values, **line)
        ax.plot(marked_x[::-step], values[::-step], **above, **marker)
    else:
        ax.plot(x, values, markevery=step, **above, **marker | line)
