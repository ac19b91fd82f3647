"""Lay out the grid of panels of a figure, with their titles, and figures without content."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import conditions
from analysis.level_words import treatment_text
from common.notes import Note
from declared.factors import MODEL_AND_DATASET
from figures import captions, legends, style
from figures.captions import Caption

MAX_PANELS_IN_COLUMN = 2  # panels of a figure of column width; more take the page's width
MAX_GRID_COLUMNS = 4
THREE_COLUMN_PANEL_COUNTS = (6, 9)
PAGE_PANELS_INCHES = 8.4  # height of a printed page without legend and labels
TITLE_CHARACTERS = 28
TITLE_ROW_INCHES = 0.125
REMARK_CHARACTERS = 42  # characters per line in an empty panel of column width


def duration_factors(panel_factors: Sequence[str]) -> list[str]:
    """Return the panel factors model and data set, whose levels train for very different times.

    Panels share an axis of values only if they agree in these.
    """
    return [name for name in MODEL_AND_DATASET if name in panel_factors]


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
    height_in = (
        rows * (panel_in + titles_height(panel_levels)) + around_in + legends.legend_height(n_entries, width)
    )
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


def max_panels_on_page(height_in: float, across: int = MAX_GRID_COLUMNS) -> int:
    """Return how many panels of this height, including titles, fit a printed page."""
    return across * max(1, int(PAGE_PANELS_INCHES / height_in))


def write_remark(ax: Axes, text: str, characters: int = REMARK_CHARACTERS) -> None:
    """Write a remark in the middle of an empty panel."""
    text = textwrap.fill(text, characters)
    ax.text(0.5, 0.5, text, ha="center", va="center", color=style.MUTED, transform=ax.transAxes)


def empty_figure(
    runs: pd.DataFrame | None, cause: str = captions.NO_SUCCESS, *details: str, endnotes: Sequence[str] = ()
) -> tuple[Figure, Caption]:
    """Return a figure that only states why it is empty, and its caption.

    The caption begins with `captions.NOT_DRAWN`, so that reports and papers leave the figure out. Its first
    note, `not-drawn`, has the facts of `cause`, and its code as the fact `why`.

    Args:
        runs: The runs, for the note on their setting; None to omit it.
        cause: Why nothing is drawn.
        details: Further sentences of the caption.
        endnotes: As in `captions.compose_caption`.
    """
    figure = style.new_figure(style.COLUMN_INCHES, 1.4)
    ax = figure.subplots()
    ax.set_xticks([])
    ax.set_yticks([])
    write_remark(ax, cause)
    code, facts = (cause.code, cause.facts) if isinstance(cause, Note) else ("", {})
    reason = Note("not-drawn", f"{captions.NOT_DRAWN}{cause}.", why=code, **facts)
    return figure, captions.split_caption(
        [reason, *details, conditions.measurement_note(runs) if runs is not None else ""], endnotes
    )
