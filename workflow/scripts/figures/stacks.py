"""Figures with a bar for each cell that is stacked of parts: rows by series and by nodes or devices, panels by what else varies."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from figures import panels, rows, style
from figures.view import View

BAR = 0.62  # of a row
MOST_CHARACTERS = 50  # of rows' names, times panels, that leave room for these in one column of print
SEEN = 0.002  # of the longest bar: shorter parts are nowhere to be seen

Beside = Callable[[Axes, float, pd.Series, float], None]


def draw(
    seen: View,
    data: pd.DataFrame,
    look: Callable[[str], Mapping[str, Any]],
    label: str,
    legend: Callable[[Sequence[str]], list[Patch]],
    beside: Beside | None = None,
) -> tuple[Figure, View]:
    """The figure, and what of the view is on its page. `data`: by cell, a column for each part, in the order of the bars.

    `beside` draws more of a cell: on its axes, at its y, its row of `data`, where a bar ends below.
    """
    row_in = len(seen.rows) * rows.ROW_IN + rows.AXIS_IN
    seen = seen.on_a_page(row_in + panels.titles_height(seen.panels))
    shown, lines, cells = seen.panels, seen.rows, seen.cells
    longest = float(data.sum(axis=1).max())
    parts = [name for name in data if data[name].max() > SEEN * longest]
    down, columns, width = panels.layout(len(shown), panels.few_columns(len(shown)))
    if len(shown) * max(len(text) for _, _, text in lines) > MOST_CHARACTERS:
        width = style.PAGE_IN
    entries = legend(parts)
    above = panels.legend_height(len(entries), width)
    drawn = style.figure(width, down * (row_in + panels.titles_height(shown)) + above)
    scaled_by = panels.scaled_by(seen.facet)
    axes = panels.grid(drawn, (down, columns), len(shown), share_x=not scaled_by)
    for ax, levels in zip(axes, shown, strict=True):
        here = panels.at(cells, levels)
        for y, (one, along, _) in enumerate(lines):
            planned = panels.at(one.of(here), along)["cell"].tolist()
            if not planned:
                continue
            if planned[0] not in data.index:
                rows.say(ax, y, "no phases")
                continue
            _bar(ax, y, data.loc[planned[0], parts], look)
            if beside:
                beside(ax, y, data.loc[planned[0]], BAR / 2)
            if y and one != lines[y - 1][0]:
                ax.axhline(y - 0.5, color=style.GRID, linewidth=0.4, zorder=1)
        alike = panels.at(cells, {name: levels[name] for name in scaled_by})["cell"]
        most = data[data.index.isin(alike)].sum(axis=1).max()
        ax.set_xlim(0, most if most > 0 else 1)
        ax.grid(True, axis="x")
        ax.tick_params(axis="y", length=0)
        ax.set_title(panels.panel_title(levels))
    axes[0].set_yticks(range(len(lines)), [text for _, _, text in lines])
    axes[0].set_ylim(len(lines) - 0.4, -0.6)
    drawn.supxlabel(label, fontsize=style.FONT_SIZE)
    drawn.legend(handles=entries, loc="outside upper center", ncols=panels.legend_columns(width))
    return drawn, seen


def _bar(ax: Axes, y: float, parts: pd.Series, look: Callable[[str], Mapping[str, Any]]) -> None:
    """The parts of a cell end to end."""
    start = np.cumsum(parts.to_numpy()) - parts.to_numpy()
    for (name, length), left in zip(parts.items(), start, strict=True):
        if length > 0:
            ax.barh(y, length, left=left, height=BAR, zorder=2, **look(str(name)))
