"""Draw predicted speed-up and efficiency over nodes, a line per link rate."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis import conditions, tables
from analysis.records import Records
from common.notes import Note
from declared.figure_specs import FigureSpec
from figures import captions, legends, marks, panels, selection, style
from figures.selection import Series
from prediction.curves import CURVE, FACTORS, SUFFIXES
from prediction.message_times import rate_text

PANEL_INCHES = 1.7
MAX_PANELS = 6
MAX_SPEEDUP_PANELS = 3  # cases that have a panel of speed-up besides that of efficiency
BAR_GAP = 0.06  # distance between the bars of two rates, in the logarithm of nodes
LEAD = (
    "{} over nodes, extrapolated by the optimizer-step law. Lines: link rates; bars: 90 % bands; open "
    "markers: measured; filled: nodes worth it; triangles: counts to measure next."
)
LEFT_OUT = "panels-left-out"  # code of a note
NO_PROJECTION = Note("no-projection", "The scaling projection was not computed.")


def draw(records: Records, _spec: FigureSpec) -> tuple[Figure, captions.Caption]:
    """Return the figure of the scaling projection of a study, and its caption."""
    file = records.files.get("projection")
    notes = tables.read(file.with_suffix("")).notes if file else []
    setting = conditions.measurement_note(records.runs)  # the caption ends with it
    distinct_notes = [note for note in notes if note != setting]
    figure, caption = draw_curves(
        records.table("projection_curves"), records.table("projection"), distinct_notes
    )
    if caption.startswith(captions.NOT_DRAWN):
        return figure, caption
    details = [note for note in caption.below if isinstance(note, Note) and note.code == LEFT_OUT]
    lead = [note for note in caption.below if note not in details]
    return figure, captions.compose_caption(
        records.runs, lead, *details, endnotes=caption.endnotes, with_intervals=False
    )


def draw_curves(
    projected: pd.DataFrame, rows: pd.DataFrame, notes: Sequence[str]
) -> tuple[Figure, captions.Caption]:
    """Return the figure and its caption, from the curves and rows of a `Projection`."""
    if projected.empty:
        cause, *remaining_notes = notes or [NO_PROJECTION]
        return panels.empty_figure(None, captions.as_clause(cause), endnotes=remaining_notes)
    notes = [note for note in notes if note not in set(rows["answer"])]
    panel_levels, left_out = _choose_panels(projected)
    quantities = ["speedup", "efficiency"] if len(panel_levels) <= MAX_SPEEDUP_PANELS else ["efficiency"]
    rates = sorted(projected["rate"].unique())
    if omitted := [*map(rate_text, rates[len(style.TREATMENT_STYLES) :])]:
        text = f"In the table alone: {conditions.join_names(omitted)}."
        notes = [Note("rates-left-out", text, rates=omitted), *notes]
    all_series = [
        Series(rate_text(rate), {"rate": rate}, series_style)
        for rate, series_style in zip(rates, style.TREATMENT_STYLES, strict=False)
    ]
    ticks = _ticks(int(projected["nodes"].max()))
    projected = projected.assign(**_measured_columns(projected))
    top = max(104.0, 102 * projected["measured_efficiency"].max())
    n_rows, columns, width = panels.layout(len(panel_levels), 3)
    n_rows *= len(quantities)
    height_in = n_rows * (PANEL_INCHES + panels.titles_height(panel_levels)) + 0.15
    figure = style.new_figure(width, height_in + legends.legend_height(len(all_series), width))
    drawn = [(quantity, levels) for quantity in quantities for levels in panel_levels]
    axes = panels.create_axes(figure, (n_rows, columns), len(drawn), share_y="row")
    for ax, (quantity, levels) in zip(axes, drawn, strict=True):
        curves, panel_rows = selection.rows_at(projected, levels), selection.rows_at(rows, levels)
        for at, series in enumerate(all_series):
            curve = series.select(curves)
            if len(curve):
                offset = np.exp(BAR_GAP * (at - (len(all_series) - 1) / 2))
                _draw_curve(ax, quantity, series, curve, series.select(panel_rows).iloc[0], offset, ticks)
        if quantity == quantities[0]:
            ax.set_title(panels.panel_title(levels))
        _set_axes(ax, quantity, ticks, int(projected["nodes"].max()), top)
    for ax, (quantity, _) in list(zip(axes, drawn, strict=True))[::columns]:
        ax.set_ylabel("efficiency (%)" if quantity == "efficiency" else "speed-up")
    figure.supxlabel("nodes", fontsize=style.FONT_SIZE)
    legends.add_legend(figure, all_series)
    names = " and ".join({"speedup": "Speed-up", "efficiency": "efficiency"}[name] for name in quantities)
    lead = Note("heading", LEAD.format(names[0].upper() + names[1:]), quantities=quantities)
    return figure, captions.split_caption([lead, left_out], notes)


def _choose_panels(projected: pd.DataFrame) -> tuple[list[dict[str, Any]], str]:
    """Return the levels of at most MAX_PANELS panels, and a note on cases without one, "" for none."""
    names = [name for name in FACTORS if projected[name].nunique() > 1]
    every = selection.level_combinations(projected, names)
    chosen = every
    if len(every) > MAX_PANELS:  # then only the largest batch size of each case
        cases = projected.groupby([name for name in FACTORS if name != "batch_size"], dropna=False)
        largest = cases["batch_size"].transform("max")
        chosen = selection.level_combinations(projected[projected["batch_size"] == largest], names)[
            :MAX_PANELS
        ]
    text = f"{len(every) - len(chosen)} of {len(every)} cases are in the table alone."
    note = Note(LEFT_OUT, text, drawn=len(chosen), panels=len(every))
    return chosen, note if len(chosen) < len(every) else ""


def _draw_curve(
    ax: Axes,
    quantity: str,
    series: Series,
    curve: pd.DataFrame,
    row: pd.Series,
    offset: float,
    ticks: list[int],
) -> None:
    """Draw the curve of one link rate.

    It has bars at `ticks`, moved by the factor `offset`, open markers at measured means, a filled one at the
    nodes worth it, and triangles at the counts to measure next.
    """
    factor, colour = 100 if quantity == "efficiency" else 1, series.style.colour
    nodes = curve["nodes"].to_numpy(float)
    value, low, high = (factor * curve[f"{quantity}{end}"].to_numpy() for end in SUFFIXES)
    ax.plot(nodes, value, color=colour, linestyle=series.style.line, zorder=3)
    has_bar = np.isin(nodes, ticks[1:])
    ax.vlines(nodes[has_bar] * offset, low[has_bar], high[has_bar], color=colour, linewidth=0.9, zorder=2)
    marker = marks.marker_style(series.style)
    measured = factor * curve[f"measured_{quantity}"]
    ax.plot(nodes, measured, zorder=3.5, **marker | {"markerfacecolor": "white"})
    if row["worth_nodes"] <= nodes[-1]:
        at = np.flatnonzero(nodes == row["worth_nodes"])
        ax.plot(nodes[at], value[at], zorder=4, **marker | {"markerfacecolor": colour})
    counts = str(row["measure_next"]).split() if pd.notna(row["measure_next"]) else []
    if quantity == "efficiency" and counts:
        ax.plot(
            [float(count) * offset for count in counts], [3.0] * len(counts), "^", color=colour, markersize=4
        )


def _measured_columns(projected: pd.DataFrame) -> dict[str, "pd.Series[float]"]:
    """Return measured speed-ups and efficiencies of points, relative to the predicted time on one node."""
    one_node_s = projected["epoch_time_s"].where(projected["nodes"] == 1)
    base_s = one_node_s.groupby([projected[name] for name in CURVE], dropna=False).transform("max")
    speedup = base_s / projected["measured_epoch_time_s"].astype(float)
    return {"measured_speedup": speedup, "measured_efficiency": speedup / projected["nodes"]}


def _ticks(max_nodes: int) -> list[int]:
    return [2**power for power in range(0, max_nodes.bit_length(), 2 if max_nodes > 64 else 1)]


def _set_axes(ax: Axes, quantity: str, ticks: list[int], max_nodes: int, top: float) -> None:
    """Set the axes of a panel; `top` is the largest efficiency in percent."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(0.9, 1.25 * max_nodes)
    if quantity == "efficiency":
        ax.set_ylim(0, top)
        ax.set_yticks([0, 25, 50, 75, 100])
    else:
        ax.set_yscale("log", base=2)
        ax.plot([1, max_nodes], [1, max_nodes], color=style.MUTED, linewidth=0.7, zorder=1)
        ax.set_ylim(0.5, 1.25 * max_nodes)
        ax.set_yticks(ticks, [str(tick) for tick in ticks])
        ax.yaxis.set_minor_locator(NullLocator())
    ax.grid(True)
