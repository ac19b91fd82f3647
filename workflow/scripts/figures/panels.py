"""What figures share: panels, intervals, legend, caption."""

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from analysis import conditions
from analysis.intervals import Estimate
from analysis.measured import treatment_text
from common.notes import Note
from declared.factors import WORK
from figures import style
from figures.style import Look

LOG_FROM_RATIO = 20
ROUND_TO_RATIO = 5  # of a logarithmic axis: round numbers, beyond a few of each decade
DIGITS = {30: (1, 2, 5), 300: (1, 3)}  # which ones, up to such a ratio
FINE = 8  # numbers at an axis as wide as a page, which has room for more digits:
FINE_DIGITS = {30: (1, 1.5, 2, 3, 5, 7), 300: (1, 2, 5)}
CUT_AT = 2
MARGIN = 0.03  # of a logarithmic axis at either end, in which half a marker has room
SURE = 3  # runs, from which on an interval sets an axis: that of two is six times as wide
ARROWS: Mapping[str, tuple[str, str]] = {"x": ("<", ">"), "y": ("v", "^")}  # at the lower and at the upper end
PANELS_IN_COLUMN = 2
PANELS_IN_PAGE = 4
IN_THREES = (6, 9)
PAGE_PANELS_IN = 8.4  # the height of a printed page, less legend and labels
TITLE_CHARACTERS = 28
TITLE_ROW_IN = 0.11
LEGEND_ROW_IN = 0.13
LINE_CHARACTERS = 48  # of a remark in an empty panel of one column of print
NOT_DRAWN = "Not drawn: "  # how the caption of a figure without content begins
NO_SUCCESS = Note("no-successful-run", "no successful run")
MOST_WORDS = 70  # below a figure
END_OF_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z0-9])")
MARKERS = "Markers: means; bars: 95 % intervals; ticks {} them: single runs."


class Caption(str):
    """The text of a caption, two paragraphs at most, which keeps the notes that it is made of.

    Args:
        below: What stands below the figure.
        apart: What reports and papers print apart.
    """

    below: list[str]
    apart: list[str]

    def __new__(cls, below: Iterable[str], apart: Iterable[str]) -> "Caption":
        """Join the notes that are not empty, each paragraph to one line."""
        parts = [[note for note in notes if note] for notes in (below, apart)]
        made = super().__new__(cls, "\n\n".join(" ".join(notes) for notes in parts if notes))
        made.below, made.apart = parts
        return made

    def __getnewargs__(self) -> tuple[list[str], list[str]]:  # type: ignore[override]
        """Return what pickle and copy make it of again."""
        return self.below, self.apart

    @property
    def notes(self) -> list[str]:
        """Return all notes, those below the figure first."""
        return [*self.below, *self.apart]


class Bar(Line2D):
    """The bar of an interval of time."""


@dataclass(frozen=True)
class Series:
    """One line of a figure: what the legend calls it, the levels that its runs share, and how it is drawn."""

    name: str
    levels: Mapping[str, Any]
    look: Look

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Its rows."""
        return at(frame, self.levels)


def combinations(frame: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """The combinations of the levels of factors `names` that occur, sorted; one empty combination for no factor."""
    if not names:
        return [{}]
    ordered = frame[list(names)].drop_duplicates().sort_values(list(names))
    return [dict(zip(names, levels, strict=True)) for levels in ordered.itertuples(index=False, name=None)]


def at(frame: pd.DataFrame, levels: Mapping[str, Any]) -> pd.DataFrame:
    """The rows at these levels."""
    if not levels:
        return frame
    found = np.ones(len(frame), bool)
    for name, level in levels.items():
        column = frame[name].isna() if pd.isna(level) else frame[name] == level
        found &= column.to_numpy(bool, na_value=False)
    return frame[found]  # once: each time all columns are copied


def among(shown: Sequence[dict[str, Any]], frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The panels of `shown` that have a row in `frame`: as `at` finds them, but at once."""
    names = list(shown[0]) if shown else []
    if not names:
        return list(shown) if len(frame) else []
    there = {_key(levels) for levels in frame[names].drop_duplicates().itertuples(index=False, name=None)}
    return [levels for levels in shown if _key(levels.values()) in there]


def _key(levels: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(None if pd.isna(level) else level for level in levels)


def scaled_by(around: Sequence[str]) -> list[str]:
    """The factors of `around` whose levels take times of their own order: panels share an axis of time within one."""
    return [name for name in WORK if name in around]


def layout(panels: int, most_columns: int = PANELS_IN_PAGE) -> tuple[int, int, float]:
    """Rows, columns and width in inches for so many panels: one column of print for two at most, else the page.

    No row is left half empty where three columns make all rows full.
    """
    columns = 3 if panels in IN_THREES and most_columns == PANELS_IN_PAGE else min(panels, most_columns)
    return math.ceil(panels / columns), columns, style.COLUMN_IN if panels <= PANELS_IN_COLUMN else style.PAGE_IN


def few_columns(panels: int) -> int:
    """How many columns of so many panels stand beside each other where they are wide: two and two, else three, of many four."""
    return 2 if panels == PANELS_IN_PAGE else 3 if panels <= max(IN_THREES) else PANELS_IN_PAGE


def grid(
    drawn: Figure, shape: tuple[int, int], panels: int, *, share_x: bool = True, share_y: bool = True
) -> list[Axes]:
    """The panels' axes, row by row; places left over stay empty. Tick labels stand at the left and at the bottom."""
    axes = drawn.subplots(*shape, squeeze=False, sharex=share_x, sharey=share_y)
    for position, ax in enumerate(axes.flat):
        if position >= panels:
            ax.set_axis_off()
        elif position + shape[1] >= panels:
            ax.tick_params(labelbottom=True)
    return list(axes.flat[:panels])


def panel_title(levels: Mapping[str, Any], characters: int = TITLE_CHARACTERS) -> str:
    """Which levels a panel shows, in lines that fit above it."""
    lines: list[str] = []
    for name, level in levels.items():
        part = treatment_text({name: level})
        if lines and len(f"{lines[-1]}, {part}") <= characters:
            lines[-1] = f"{lines[-1]}, {part}"
        else:
            lines.append(part)
    return "\n".join(lines)


def titles_height(shown: Sequence[Mapping[str, Any]], characters: int = TITLE_CHARACTERS) -> float:
    """The height that the longest of the panels' titles takes, in inches."""
    return TITLE_ROW_IN * max(
        (panel_title(levels, characters).count("\n") + 1 for levels in shown if levels), default=0
    )


def time_axis(
    ax: Axes,
    times: pd.Series,
    cells: pd.DataFrame,
    axis: Literal["x", "y"] = "y",
    *,
    logarithmic: bool = False,
    quantity: str = "time",
) -> list[str]:
    """An axis of time, or of another `quantity`, from zero; logarithmic where `times`, those of runs, differ by more than a factor of 20, or it is asked for.

    It reaches all runs, and the ends of the intervals of SURE runs or more, but not farther than CUT_AT times beyond the runs. An
    `interval` that leaves it ends in an arrow. `cells`: low, high and n of each. Returns what the caption must say about it.
    """
    if times.empty:
        return []
    sure = cells[cells["n"] >= SURE]
    shortest, longest = times.min(), times.max()
    lowest, highest = (
        min(shortest, sure["low"].min()),
        max(longest, sure["high"].max()),
    )  # NaN, of no interval, is neither
    top = min(highest, CUT_AT * longest)
    limits, said = (0.0, 1.06 * top), list[str]()
    if logarithmic or longest / shortest > LOG_FROM_RATIO:
        bottom = max(lowest, shortest / CUT_AT)
        said = [Note("logarithmic-time-axis", f"The axis of {quantity} is logarithmic.")]
        (ax.set_yscale if axis == "y" else ax.set_xscale)("log")
        round_numbers(ax.yaxis if axis == "y" else ax.xaxis, top / bottom)
        room = max(1.1, (top / bottom) ** MARGIN)
        limits = bottom / room, room * top
    (ax.set_ylim if axis == "y" else ax.set_xlim)(*limits)
    if ((cells["high"] > limits[1]) | (cells["low"] < limits[0])).any():
        said.append(Note("intervals-beyond-axis", "Arrows: intervals that are longer than the axis."))
        _arrows(ax, axis, limits)
    ax.grid(True, axis=axis)
    return said


def _arrows(ax: Axes, axis: Literal["x", "y"], limits: tuple[float, float]) -> None:
    """An arrow at the axis' end for each interval that goes on there."""
    for bar in [line for line in ax.lines if isinstance(line, Bar)]:
        x, y = (np.asarray(values, float) for values in bar.get_data())
        ends, other = (y, x) if axis == "y" else (x, y)
        for end, limit, beyond in zip(ARROWS[axis], limits, (ends < limits[0], ends > limits[1]), strict=True):
            if beyond.any():
                place = ([other[0]], [limit]) if axis == "y" else ([limit], [other[0]])
                arrow: dict[str, Any] = {"marker": end, "markersize": 2.4, "markeredgewidth": 0.0, "linestyle": "none"}
                ax.plot(*place, color=bar.get_color(), clip_on=False, zorder=6, **arrow)


def round_numbers(axis: Axis, ratio: float, most: int = 5) -> None:
    """Round numbers at a logarithmic axis that reaches over such a `ratio`; at `most` so many where that is small."""
    known = FINE_DIGITS if most >= FINE else DIGITS
    digits = next((some for reach, some in known.items() if ratio < reach), (1,))
    round_ones = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10])
    axis.set_major_locator(round_ones if ratio < ROUND_TO_RATIO else LogLocator(10, subs=digits))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def dodge(names: Sequence[str], gap: float) -> dict[str, float]:
    """A shift for each series, `gap` from one to the next: intervals at the same level do not cover each other."""
    middle = (len(names) - 1) / 2
    return {name: (position - middle) * gap for position, name in enumerate(names)}


def interval(
    ax: Axes, look: Look, x: float, estimate: Estimate, values: pd.Series, beside: float, *, upright: bool = True
) -> None:
    """The mean of a cell with its interval as a bar, the `values` of its runs as short ticks `beside` it.

    `upright`: values on the y axis.
    """
    bars = ([x, x], [estimate.low, estimate.high])
    point = ([x], [estimate.value])
    ax.add_line(Bar(*bars[:: 1 if upright else -1], color=look.colour, linewidth=0.9, solid_capstyle="butt", zorder=3))
    ax.plot(*point[:: 1 if upright else -1], zorder=4, **marker(look))
    if len(values) > 1:
        replicates(ax, look, x + beside, values, upright=upright)


def replicates(ax: Axes, look: Look, x: float, values: pd.Series, *, upright: bool = True) -> None:
    """The values of single runs as short ticks across their axis."""
    ticks = ([x] * len(values), values.tolist())
    ax.plot(*ticks[:: 1 if upright else -1], zorder=5, **_replicate(look, upright))


def marker(of: Look | str) -> dict[str, Any]:
    """The marker of a look, or of a framework by its name, without a line."""
    look = style.look(of) if isinstance(of, str) else of
    return {
        "linestyle": "none",
        "marker": look.marker,
        "color": look.colour,
        "markerfacecolor": look.colour if look.filled else "white",
        "markeredgecolor": look.colour,
        "markeredgewidth": 0.8,
    }


def legend(
    drawn: Figure, entries: Sequence[Series] | Sequence[str], extra: Sequence[Line2D] = (), lines: bool = True
) -> None:
    """One legend for the whole figure, above the panels: of series, or of frameworks by their names."""
    looks = {
        **{entry: style.look(entry) for entry in entries if isinstance(entry, str)},
        **{entry.name: entry.look for entry in entries if isinstance(entry, Series)},
    }
    handles = [
        Line2D([], [], label=name, **marker(look) | ({"linestyle": look.line} if lines else {}))
        for name, look in looks.items()
    ]
    drawn.legend(handles=[*handles, *extra], loc="outside upper center", ncols=legend_columns(drawn.get_figwidth()))


def legend_columns(width_in: float) -> int:
    """How many entries of the legend stand beside each other."""
    return 2 if width_in < 4 else 4


def legend_height(entries: int, width_in: float) -> float:
    """The height that the legend takes, in inches."""
    return 0.08 + LEGEND_ROW_IN * math.ceil(entries / legend_columns(width_in))


def most(height_in: float, across: int = PANELS_IN_PAGE) -> int:
    """How many panels of this height, with their titles, a printed page holds."""
    return across * max(1, int(PAGE_PANELS_IN / height_in))


def say(ax: Axes, text: str, characters: int = LINE_CHARACTERS) -> None:
    """A remark in the middle of an empty panel, so many characters a line."""
    text = textwrap.fill(text, characters)
    ax.text(0.5, 0.5, text, ha="center", va="center", color=style.MUTED, transform=ax.transAxes)


def as_clause(sentence: str) -> str:
    """The sentence as it goes on after a colon, with the code and the facts that it has."""
    text = f"{sentence[:1].lower()}{sentence[1:].rstrip('.')}"
    return Note(sentence.code, text, **sentence.facts) if isinstance(sentence, Note) else text


def not_drawn(
    runs: pd.DataFrame | None, why: str = NO_SUCCESS, *more: str, notes: Sequence[str] = ()
) -> tuple[Figure, Caption]:
    """A figure that only says why it is empty, and its caption, which begins with NOT_DRAWN: reports and papers leave it out.

    `runs`: those of which the caption says what is missing; `notes` as in `caption`. The code and the facts of `why` are facts of the note
    `not-drawn`, with which the caption begins.
    """
    drawn = style.figure(style.COLUMN_IN, 1.4)
    ax = drawn.subplots()
    ax.set_xticks([])
    ax.set_yticks([])
    say(ax, why)
    code, facts = (why.code, why.facts) if isinstance(why, Note) else ("", {})
    reason = Note("not-drawn", f"{NOT_DRAWN}{why}.", why=code, **facts)
    return drawn, two_paragraphs([reason, *more, conditions.setting_note(runs) if runs is not None else ""], notes)


def caption(
    runs: pd.DataFrame,
    what: str | Sequence[str],
    *more: str,
    notes: Sequence[str] = (),
    with_intervals: bool = True,
    counted: pd.Series | None = None,
) -> Caption:
    """What stands below a figure: what is drawn, how many runs, where, what is missing. In a second paragraph the `notes`: what a
    reader may look up, which reports and papers print apart. Sentences given twice stand once.

    Where all is too long, the last of `more` are notes, too. How intervals are made, and what is the same in all figures, is in the
    study's methods note (`conditions.methods_notes`). `counted`: as in `conditions.run_counts_note`.
    """
    always = [conditions.run_counts_note(runs, with_intervals, counted), conditions.setting_note(runs)]
    heading = [what] if isinstance(what, str) else what
    return two_paragraphs([*heading, *more, *always], notes, first=[*heading, *always])


def two_paragraphs(below: Iterable[str], notes: Iterable[str], first: Iterable[str] = ()) -> Caption:
    """Sentences that stand below a figure, and such that are printed apart; each once, empty ones left out.

    MOST_WORDS stand below at most, of what is said `first` and then of the others as many as fit; what does not is said apart.
    """
    said = _sentences(below)
    by_weight = dict.fromkeys([*_sentences(first), *said])
    fitting, room = set(), MOST_WORDS
    for sentence in by_weight:
        if (words := len(sentence.split())) <= room:
            fitting.add(sentence)
            room -= words
    return Caption(
        [sentence for sentence in said if sentence in fitting],
        [*(sentence for sentence in said if sentence not in fitting), *dict.fromkeys(notes)],
    )


def _sentences(texts: Iterable[str]) -> list[str]:
    """Their sentences, each once."""
    return list(dict.fromkeys(sentence for text in texts for sentence in _split(text) if sentence))


def _split(text: str) -> list[str]:
    """The sentences of a text; of a note the first one keeps code and facts."""
    first, *others = END_OF_SENTENCE.split(text)
    return [Note(text.code, first, **text.facts) if isinstance(text, Note) else first, *others]


def _replicate(look: Look, upright: bool) -> dict[str, Any]:
    """A tick across the axis of values, which no series has for a marker."""
    size = style.REPLICATE_SIZE
    return {
        "linestyle": "none",
        "marker": "_" if upright else "|",
        "markersize": size,
        "color": look.colour,
        "markeredgewidth": 0.5,
    }
