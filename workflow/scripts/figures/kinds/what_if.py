"""Draw the time that one change would save, as predicted by replaying traced steps and as measured."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import conditions
from analysis.intervals import Estimate
from analysis.level_words import cell_words
from analysis.records import Records, traced
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, legends, marks, panels, style
from figures.selection import Series
from prediction.what_if import NO_TRACE, PREDICTION_METHOD, gain, in_order

ROW_INCHES = 0.19
AXIS_INCHES = 0.42
ROW_OFFSET = 0.17  # share of a row, from its middle to either value
PREDICTED, MEASURED = (style.TREATMENT_STYLES[index] for index in (0, 1))
SERIES = [Series("predicted by replay", {}, PREDICTED), Series("measured", {}, MEASURED)]
MAX_PANELS = 6
LEAD = "Time per sample that one change saves, predicted by replaying traced steps, and measured."


def draw(records: Records, _spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure of the table `what_if`, and its caption."""
    rows = records.table("what_if")
    if rows.empty:
        return panels.empty_figure(
            records.runs,
            captions.as_clause(NO_TRACE),
            conditions.traced_runs_without_phases(records.every_run),
        )
    names = cell_words(traced(records.every_run), exclude=["trace"])
    cells = list(dict.fromkeys(rows["cell"]))
    drawn_cells = cells[:MAX_PANELS]
    changes = in_order(rows[rows["cell"].isin(drawn_cells)])
    height = len(changes) * ROW_INCHES + AXIS_INCHES
    n_rows, columns, width = panels.layout(len(drawn_cells), 2)
    figure = style.new_figure(
        width if len(drawn_cells) < 2 else style.PAGE_INCHES,
        n_rows * (height + panels.TITLE_ROW_INCHES) + legends.legend_height(2, width),
    )
    axes = panels.create_axes(figure, (n_rows, columns), len(drawn_cells))
    for ax, cell in zip(axes, drawn_cells, strict=True):
        cell_rows = rows[rows["cell"] == cell].set_index("change").reindex(changes)
        for name, series_style, shift in (
            ("ratio", PREDICTED, -ROW_OFFSET),
            ("measured_ratio", MEASURED, ROW_OFFSET),
        ):
            _draw_points(ax, gain(cell_rows, name), series_style, shift)
        ax.axvline(0, color=style.MUTED, linewidth=0.7, zorder=1)
        ax.grid(True, axis="x")
        if len(cells) > 1:
            ax.set_title(names[cell])
    axes[0].set_yticks(range(len(changes)), changes)
    axes[0].set_ylim(len(changes) - 0.4, -0.6)
    figure.supxlabel("time saved (%)", fontsize=style.FONT_SIZE)
    errors = rows["error"].dropna().abs()
    legends.add_legend(figure, SERIES[: 2 if len(errors) else 1], lines=False)
    errors_note = _errors_note(errors)
    n_left_out, setting = len(cells) - len(drawn_cells), conditions.measurement_note(records.runs)
    text = f"{n_left_out} of {len(cells)} traced cells are not drawn; the table has them."
    left_out = Note("cells-left-out", text) if n_left_out else ""
    return figure, captions.split_caption(
        [LEAD, errors_note, _intervals_note(rows), left_out, setting],
        [PREDICTION_METHOD, conditions.traced_runs_without_phases(records.every_run)],
        keep_first=[LEAD, errors_note, setting],
    )


def _errors_note(errors: pd.Series) -> str:
    """Return the errors of predictions; "" if no predicted change was measured."""
    if errors.empty:
        return ""
    text = (
        f"Predicted epoch times are off by {100 * errors.mean():.1f} % on average, "
        f"{100 * errors.max():.1f} % at most."
    )
    return Note("errors", text, mean=errors.mean(), most=errors.max())


def _intervals_note(rows: pd.DataFrame) -> str:
    """Return what the bars are; "" without bars."""
    min_runs, max_runs = int(rows["runs"].min()), int(rows["runs"].max())
    if max_runs == 1:
        return ""
    counts = f"{min_runs}" if min_runs == max_runs else f"{min_runs} to {max_runs}"
    return Note("intervals", f"Bars: 95 % intervals over {counts} runs.")


def _draw_points(ax: Axes, saved: pd.DataFrame, series_style: style.SeriesStyle, shift: float) -> None:
    """Draw markers with their intervals; `saved` has value, low and high of each row."""
    for y, (value, low, high) in enumerate(saved.itertuples(index=False, name=None)):
        if pd.notna(value):
            estimate, no_runs = Estimate(value, low, high), pd.Series(dtype=float)
            marks.draw_interval(ax, series_style, y + shift, estimate, no_runs, 0.0, vertical=False)
