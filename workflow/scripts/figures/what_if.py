"""What if: time that one change would save by a replay of traced steps, and what it saved where the study tried it. Rows: changes."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import conditions
from analysis.intervals import Estimate
from analysis.measured import Records, cell_words, traced
from common.notes import Note
from declared.figures import Declared
from figures import panels, style
from figures.panels import Series
from prediction.what_if import NO_TRACE, PREDICTION_METHOD, TARGET_ERROR, gain, in_order

ROW_IN = 0.19
AXIS_IN = 0.42
APART = 0.17  # of a row, from the middle to what was predicted and to what was measured
PREDICTED, MEASURED = (style.TREATMENT_LOOKS[place] for place in (0, 1))
SERIES = [Series("predicted by replay", {}, PREDICTED), Series("measured", {}, MEASURED)]
MOST_PANELS = 6
WHAT = "Time of a sample that one change saves (below 0: costs), predicted by replaying traced steps, and measured where the study has the cell."


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """The figure and its caption, of the table that prediction.what_if wrote."""
    rows = records.table("what_if")
    if rows.empty:
        return panels.not_drawn(
            records.runs, panels.as_clause(NO_TRACE), conditions.traced_runs_without_phases(records.every_run)
        )
    words = cell_words(traced(records.every_run), but=["trace"])
    cells = list(dict.fromkeys(rows["cell"]))
    shown = cells[:MOST_PANELS]
    changes = in_order(rows[rows["cell"].isin(shown)])
    height = len(changes) * ROW_IN + AXIS_IN
    down, columns, width = panels.layout(len(shown), 2)
    drawn = style.figure(
        width if len(shown) < 2 else style.PAGE_IN,
        down * (height + panels.TITLE_ROW_IN) + panels.legend_height(2, width),
    )
    axes = panels.grid(drawn, (down, columns), len(shown))
    for ax, cell in zip(axes, shown, strict=True):
        here = rows[rows["cell"] == cell].set_index("change").reindex(changes)
        for name, one, shift in (("ratio", PREDICTED, -APART), ("measured_ratio", MEASURED, APART)):
            _points(ax, gain(here, name), one, shift)
        ax.axvline(0, color=style.MUTED, linewidth=0.7, zorder=1)
        ax.grid(True, axis="x")
        if len(cells) > 1:
            ax.set_title(words[cell])
    axes[0].set_yticks(range(len(changes)), changes)
    axes[0].set_ylim(len(changes) - 0.4, -0.6)
    drawn.supxlabel("time saved (%)", fontsize=style.FONT_SIZE)
    errors = rows["error"].dropna().abs()
    panels.legend(drawn, SERIES[: 2 if len(errors) else 1], lines=False)
    said = _errors(errors)
    text = f"{len(cells) - len(shown)} of {len(cells)} traced cells are not drawn; the table has them."
    left = Note("cells-left-out", text, drawn=len(shown), cells=len(cells)) if len(cells) > len(shown) else ""
    return drawn, panels.two_paragraphs(
        [WHAT, said, _bars(rows), left, conditions.setting_note(records.runs)],
        [PREDICTION_METHOD, conditions.traced_runs_without_phases(records.every_run)],
        first=[WHAT, said],
    )


def _errors(errors: pd.Series) -> str:
    """How far predictions are off; empty where the study has none of what is asked."""
    if errors.empty:
        return ""
    within = int((errors <= TARGET_ERROR).sum())
    text = (
        f"Errors of predicted epoch times: {100 * errors.mean():.1f} % on average, {100 * errors.max():.1f} % at most; "
        f"{within} of {len(errors)} within {100 * TARGET_ERROR:g} %."
    )
    return Note("errors", text, mean=errors.mean(), most=errors.max(), within=within, predictions=len(errors))


def _bars(rows: pd.DataFrame) -> str:
    """What bars are, where there are any."""
    least, most = int(rows["runs"].min()), int(rows["runs"].max())
    if most == 1:
        return ""
    text = f"Bars: 95 % intervals over {least if least == most else f'{least} to {most}'} runs."
    return Note("intervals", text, least_runs=least, most_runs=most)


def _points(ax: Axes, saved: pd.DataFrame, look: style.Look, shift: float) -> None:
    """Markers with their intervals; `saved`: value, low, high of each row."""
    for y, (value, low, high) in enumerate(saved.itertuples(index=False, name=None)):
        if pd.notna(value):
            panels.interval(ax, look, y + shift, Estimate(value, low, high), pd.Series(dtype=float), 0.0, upright=False)
