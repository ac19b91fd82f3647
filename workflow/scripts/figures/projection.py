"""Draw efficiency over nodes at link rates that may not have been measured: a line and a band per rate.

`predict` answers a question of `prediction.question` and draws the answer.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis import conditions, tables
from analysis.measured import Records
from common.errors import system_faults
from common.files import write_text
from common.notes import Note
from declared.figures import Declared
from figures import panels, style
from figures.panels import Series
from prediction.curves import FACTORS, LEVELS
from prediction.message_times import rate_text
from prediction.projection import answer
from prediction.question import Question

PANEL_INCHES = 1.7
MAX_PANELS = 6
COLUMN_PREFIX = "nodes_at_"
LEVEL_LINE = (0, (1, 1.5))
HEADING = (
    "Efficiency over nodes, extrapolated by the law of prediction. Lines: link rates; bands: 90 %; markers: "
    "most nodes at {}."
)
NO_PROJECTION = Note("no-projection", "The scaling projection was not computed.")


def draw(records: Records, _declaration: Declared) -> tuple[Figure, panels.Caption]:
    """Return the figure of the scaling projection of a study, and its caption."""
    file = records.files.get("projection")
    notes = tables.read(file.with_suffix("")).notes if file else []
    distinct_notes = [
        note for note in notes if note != conditions.setting_note(records.runs)
    ]  # the caption ends with it
    figure, caption = draw_curves(
        records.table("projection_curves"), records.table("projection"), distinct_notes
    )
    if caption.startswith(panels.NOT_DRAWN):
        return figure, caption
    return figure, panels.compose_caption(
        records.runs, caption.below, notes=caption.notes_elsewhere, with_intervals=False
    )


def draw_curves(
    projected: pd.DataFrame, rows: pd.DataFrame, notes: Sequence[str]
) -> tuple[Figure, panels.Caption]:
    """Return the figure and its caption.

    `projected` and `rows` are the curves and answers of prediction.curves, with or without bands.
    """
    efficiencies = sorted(round(100 * level) for level in LEVELS)
    if projected.empty:
        cause, *remaining_notes = notes or [NO_PROJECTION]
        return panels.empty_figure(None, panels.as_clause(cause), notes=remaining_notes)
    heading = Note(
        "heading",
        HEADING.format(" and ".join(f"{efficiency} %" for efficiency in efficiencies)),
        efficiencies=efficiencies,
    )
    panel_factors = [name for name in FACTORS if projected[name].nunique() > 1]
    all_panels = panels.level_combinations(projected, panel_factors)
    extremes = {projected["batch_size"].min(), projected["batch_size"].max()}
    panel_levels = (
        all_panels
        if len(all_panels) <= MAX_PANELS
        else [panel for panel in all_panels if panel.get("batch_size") in {None, *extremes}]
    )
    n_left_out = len(all_panels) - len(panel_levels[:MAX_PANELS])
    panel_levels = panel_levels[:MAX_PANELS]
    rates = sorted(projected["rate"].unique())
    all_series = [
        Series(rate_text(rate), {"rate": rate}, series_style)
        for rate, series_style in zip(rates, style.TREATMENT_STYLES, strict=False)
    ]
    n_rows, columns, width = panels.layout(len(panel_levels), 3)
    above_in = panels.legend_height(len(all_series), width)
    figure = style.new_figure(
        width, n_rows * (PANEL_INCHES + panels.titles_height(panel_levels)) + 0.15 + above_in
    )
    axes = panels.create_axes(figure, (n_rows, columns), len(panel_levels))
    for ax, levels in zip(axes, panel_levels, strict=True):
        panel_curves = panels.rows_at(projected, levels)
        for panel in all_series:
            _draw_curve(
                ax,
                panel,
                panel.select(panel_curves),
                panel.select(panels.rows_at(rows, levels)),
                efficiencies,
            )
        for efficiency in efficiencies:
            ax.axhline(efficiency, color=style.MUTED, linewidth=0.7, linestyle=LEVEL_LINE, zorder=1)
        ax.set_title(panels.panel_title(levels))
        _set_axes(ax, int(projected["nodes"].max()))
    for ax in axes[::columns]:
        ax.set_ylabel("efficiency (%)")
    figure.supxlabel("nodes", fontsize=style.FONT_SIZE)
    panels.add_legend(figure, all_series)
    text = f"{n_left_out} of the {len(all_panels)} cases are not drawn; the table has them."
    left_out = (
        Note("panels-left-out", text, drawn=len(panel_levels), panels=len(all_panels)) if n_left_out else ""
    )
    return figure, panels.split_caption([heading, left_out], notes)


def _draw_curve(
    ax: Axes, series: Series, curve: pd.DataFrame, row: pd.DataFrame, efficiencies: Sequence[int]
) -> None:
    nodes, percent = curve["nodes"].to_numpy(float), 100 * curve["efficiency"].to_numpy()
    ax.plot(nodes, percent, color=series.style.colour, linestyle=series.style.line, zorder=3)
    if "efficiency_low" in curve:
        low, high = (100 * curve[f"efficiency_{end}"].to_numpy() for end in ("low", "high"))
        ax.fill_between(
            nodes, low, high, color=series.style.colour, alpha=style.BAND_ALPHA, linewidth=0, zorder=2
        )
    for efficiency in efficiencies:
        max_nodes = float(row[f"{COLUMN_PREFIX}{efficiency}"].iloc[0])
        if 1 < max_nodes <= nodes[-1]:
            ax.plot(
                [max_nodes],
                [np.interp(np.log(max_nodes), np.log(nodes), percent)],
                zorder=4,
                **panels.marker_style(series.style),
            )


def _set_axes(ax: Axes, max_nodes: int) -> None:
    ax.set_xscale("log", base=2)
    ticks = [2**power for power in range(0, max_nodes.bit_length(), 2 if max_nodes > 64 else 1)]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(0.9, 1.1 * max_nodes)
    ax.set_ylim(0, 104)
    ax.set_yticks([0, 25, 50, 75, 100])
    ax.grid(True)


def predict(question: Question, out: Path | None = None) -> None:
    """Print the answer to a question, or write it as a table and a figure.

    Args:
        question: What is asked (prediction.question).
        out: Files to write, without their suffix; None prints the table alone.
    """
    projection = answer(question)
    print(tables.markdown(projection.table))
    if out:
        figure, caption = draw_curves(projection.curves, projection.rows, projection.notes)
        with system_faults(out):
            tables.write(projection.table, out)
            style.save(figure, out)
            write_text(out.with_name(f"{out.name}.caption.md"), caption + "\n")
