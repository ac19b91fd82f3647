"""Efficiency over nodes at link rates that may not have been measured: a line and a band for each rate.

`predict` answers a question of `prediction.question`, and draws the answer.
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
from prediction.law import rate_text
from prediction.outlook import answer
from prediction.question import Question

PANEL_IN = 1.7
PANEL_FACTORS = ["framework", "device", "model", "dataset", "batch_size"]
MOST_PANELS = 6
AT = "nodes_at_"
LEVEL_LINE = (0, (1, 1.5))
WHAT = (
    "Efficiency of training by number of nodes, predicted by the physical model. Lines: rates of the links, with 95 % bands where the model "
    "was fitted to a study. Markers: most nodes with an efficiency of {}."
)
NO_OUTLOOK = Note("no-outlook", "The table of the outlook was not made.")


def draw(records: Records, asked: Declared) -> tuple[Figure, panels.Caption]:
    """The figure and its caption, of what prediction.outlook wrote."""
    file = records.files.get("outlook")
    notes = tables.read(file.with_suffix("")).notes if file else []
    once = [note for note in notes if note != conditions.setting_note(records.runs)]  # which the caption ends with
    drawn, said = curves(records.table("outlook_curves"), records.table("outlook"), once)
    if said.startswith(panels.NOT_DRAWN):
        return drawn, said
    return drawn, panels.caption(records.runs, said.below, notes=said.apart, with_intervals=False)


def curves(drawn: pd.DataFrame, rows: pd.DataFrame, notes: Sequence[str]) -> tuple[Figure, panels.Caption]:
    """The figure and its caption; `drawn` and `rows` from prediction.extrapolate, `curves` and `answers`, with bands or without."""
    levels = sorted(int(name.removeprefix(AT)) for name in rows if name.removeprefix(AT).isdigit())
    if drawn.empty:
        why, *others = notes or [NO_OUTLOOK]
        return panels.not_drawn(None, panels.as_clause(why), notes=others)
    what = Note("heading", WHAT.format(" and ".join(f"{level} %" for level in levels)), efficiencies=levels)
    varied = [name for name in PANEL_FACTORS if drawn[name].nunique() > 1]
    every = panels.combinations(drawn, varied)
    ends = {drawn["batch_size"].min(), drawn["batch_size"].max()}
    shown = every if len(every) <= MOST_PANELS else [one for one in every if one.get("batch_size") in {None, *ends}]
    more = len(every) - len(shown[:MOST_PANELS])
    shown = shown[:MOST_PANELS]
    rates = sorted(drawn["rate"].unique())
    series = [
        Series(rate_text(rate), {"rate": rate}, look) for rate, look in zip(rates, style.TREATMENT_LOOKS, strict=False)
    ]
    down, columns, width = panels.layout(len(shown), 3)
    above = panels.legend_height(len(series), width)
    picture = style.figure(width, down * (PANEL_IN + panels.titles_height(shown)) + 0.15 + above)
    axes = panels.grid(picture, (down, columns), len(shown))
    for ax, place in zip(axes, shown, strict=True):
        here = panels.at(drawn, place)
        for one in series:
            _line(ax, one, one.of(here), one.of(panels.at(rows, place)), levels)
        for level in levels:
            ax.axhline(level, color=style.MUTED, linewidth=0.7, linestyle=LEVEL_LINE, zorder=1)
        ax.set_title(panels.panel_title(place))
        _scales(ax, int(drawn["nodes"].max()))
    for ax in axes[::columns]:
        ax.set_ylabel("efficiency (%)")
    picture.supxlabel("nodes", fontsize=style.FONT_SIZE)
    panels.legend(picture, series)
    text = f"{more} of the {len(every)} cases are not drawn; the table has them."
    left = Note("panels-left-out", text, drawn=len(shown), panels=len(every)) if more else ""
    return picture, panels.two_paragraphs([what, left], notes)


def _line(ax: Axes, one: Series, curve: pd.DataFrame, row: pd.DataFrame, levels: Sequence[int]) -> None:
    nodes, efficiency = curve["nodes"].to_numpy(float), 100 * curve["efficiency"].to_numpy()
    ax.plot(nodes, efficiency, color=one.look.colour, linestyle=one.look.line, zorder=3)
    if "efficiency_low" in curve:
        low, high = (100 * curve[f"efficiency_{end}"].to_numpy() for end in ("low", "high"))
        ax.fill_between(nodes, low, high, color=one.look.colour, alpha=style.BAND_ALPHA, linewidth=0, zorder=2)
    for level in levels:
        last = float(row[f"{AT}{level}"].iloc[0])
        if 1 < last <= nodes[-1]:
            ax.plot([last], [np.interp(np.log(last), np.log(nodes), efficiency)], zorder=4, **panels.marker(one.look))


def _scales(ax: Axes, most: int) -> None:
    ax.set_xscale("log", base=2)
    ticks = [2**power for power in range(0, most.bit_length(), 2 if most > 64 else 1)]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(0.9, 1.1 * most)
    ax.set_ylim(0, 104)
    ax.set_yticks([0, 25, 50, 75, 100])
    ax.grid(True)


def predict(question: Question, out: Path | None = None) -> None:
    """Print the answer to a question, or write it as a table and a figure.

    Args:
        question: What is asked (prediction.question).
        out: Files to write, without their suffix; None prints the table alone.
    """
    found = answer(question)
    print(tables.markdown(found.table))
    if out:
        picture, caption = curves(found.curves, found.rows, found.notes)
        with system_faults(out):
            tables.write(found.table, out)
            style.save(picture, out)
            write_text(out.with_name(f"{out.name}.caption.md"), caption + "\n")
