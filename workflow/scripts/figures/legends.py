"""Draw one legend above all panels of a figure."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures import marks
from figures.selection import Series

LEGEND_ROW_INCHES = 0.145
LEGEND_HANDLE_INCHES = 0.42  # width of an entry without its text, including the gap to the next one
LEGEND_CHARACTER_INCHES = 0.054


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
        marker = marks.marker_style(series.style) if markers else {"color": series.style.colour}
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
