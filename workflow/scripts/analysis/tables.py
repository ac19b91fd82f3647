"""Write tables in three files: CSV with all digits for programs, rounded Markdown and LaTeX for people."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from analysis.intervals import ROUNDING, Estimate, p_decimals
from common.errors import InputError
from common.files import write_text
from common.latex import latex_text
from common.notes import Note
from common.tables import read_results
from common.text import align_columns

PAGE_ROWS = 45
WIDTH_NOTE = (
    r"its width holds for \usepackage[T1]{fontenc} \usepackage{mathptmx}, 10pt, "
    r"\textwidth 6.9in (the paper's)"
)
COLUMN_PT = 235  # Width of a column on a page with two.
PORTRAIT_PT, LANDSCAPE_PT = 490, 690  # A4 with narrow margins
# Fonts, largest first: LaTeX command, size and half the gap between columns in pt.
FONT_SIZES = (
    (r"\footnotesize", 8, 6),
    (r"\scriptsize\setlength{\tabcolsep}{3pt}", 7, 3),
    (r"\fontsize{6}{7}\selectfont\setlength{\tabcolsep}{2pt}", 6, 2),
)
MIN_WRAPPED_EM, MIN_COLUMN_EM = 14, 10  # Columns wider than the first may wrap, to no less than the second.
WRAPPED_SHARE = 0.45  # Wrapped columns get at least this share of their width.
NOTE_EM = 65  # Width of a line of notes.
NARROW, WIDE = set(" .,;:'|()[]/-ijlftrI"), set("mwMW%−×→±–")
DASH = "–"
MAX_TWO_DIGITS = 3.54  # An error from 1 to 3.54 gets at least two digits, a larger one at least one.
MAX_DIGITS = 8  # Most digits of a value, however narrow its interval is.
MAX_BOUND_DECIMALS = 5  # More do not matter to a reader.
MIN_EXPONENT, MAX_EXPONENT, MAX_DECIMALS = -4, 5, 8  # Numbers beyond these have an exponent.
MAX_WORDS_BELOW, MAX_NOTE_WORDS = 70, 40
WORD_COLUMNS = ("framework", "model", "data set")  # Titles of factors.
RULE = "---"  # In Markdown, it separates the notes below a table from the others.
NO_ROWS = Note("no-rows", "There are no rows.")
MAX_PRINTED_ROWS = 1000  # In Markdown and LaTeX, these are twenty pages.
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Table:
    """A table for programs and for people.

    Attributes:
        title: Title of the table.
        data: Values with all digits.
        display: Texts that people see, by column.
        notes: Notes; empty ones are dropped, and the last one is always printed below the table.
        left_aligned: Columns of `display` with words rather than numbers; WORD_COLUMNS are added.
        rules_above: Numbers of the rows that have a rule above them in LaTeX.
    """

    title: str
    data: pd.DataFrame
    display: pd.DataFrame
    notes: Sequence[str] = field(default_factory=list)
    left_aligned: Sequence[str] = field(default_factory=list)
    rules_above: Sequence[int] = ()

    def __post_init__(self) -> None:
        """Drop empty notes, and add the columns of WORD_COLUMNS to `left_aligned`."""
        object.__setattr__(self, "notes", [note for note in self.notes if note])
        words = {*self.left_aligned, *WORD_COLUMNS}
        object.__setattr__(self, "left_aligned", [name for name in self.display if name in words])

    @cached_property
    def below(self) -> list[str]:
        """Notes printed below the table: short notes of up to MAX_WORDS_BELOW words in all, and the last."""
        notes, words_left = [], MAX_WORDS_BELOW - len(" ".join(self.notes[-1:]).split())
        for note in self.notes[:-1]:
            words = len(note.split())
            if words <= min(words_left, MAX_NOTE_WORDS):
                notes.append(note)
                words_left -= words
        return [*notes, *self.notes[-1:]]

    @cached_property
    def endnotes(self) -> list[str]:
        """The other notes, explanations to look up; reports and papers print them separately."""
        return [note for note in self.notes if note not in self.below]


def write(table: Table, stem: Path) -> None:
    """Write `stem`.csv, .md and .tex atomically; the latter two have at most MAX_PRINTED_ROWS rows."""
    write_csv(table.data, Path(f"{stem}.csv"))
    if len(table.display) > MAX_PRINTED_ROWS:
        text = f"The first {MAX_PRINTED_ROWS:,} of {len(table.display):,} rows; all are in {stem.name}.csv."
        first = Note("first-rows", text, rows=MAX_PRINTED_ROWS, of=len(table.display))
        rules_above = [row for row in table.rules_above if row < MAX_PRINTED_ROWS]
        table = replace(
            table,
            display=table.display[:MAX_PRINTED_ROWS],
            notes=[first, *table.notes],
            rules_above=rules_above,
        )
    write_text(Path(f"{stem}.md"), markdown(table))
    write_text(Path(f"{stem}.tex"), latex(table, label=f"tab:{Path(stem).name}"))


def write_csv(data: pd.DataFrame, path: Path) -> None:
    """Write data as CSV: numbers with all their digits, missing values as empty fields."""
    write_text(path, data.to_csv(index=False, lineterminator="\n"))


def markdown(table: Table) -> str:
    """Return title, table and notes in Markdown. If there are no rows, the notes say why."""
    if table.display.empty:
        elsewhere = [RULE, *table.endnotes] if table.endnotes else []
        return "\n\n".join([f"**{table.title}**", *(table.below or [NO_ROWS]), *elsewhere]) + "\n"
    header = [_markdown_cell(name) for name in table.display]
    rows = [[_markdown_cell(text) for text in row] for row in table.display.itertuples(index=False)]
    left_columns = [name in table.left_aligned for name in table.display]
    first, *body = align_columns([header, *rows], left_columns, min_width=3)
    rule = [
        "-" * len(cell) if is_left else "-" * (len(cell) - 1) + ":"
        for cell, is_left in zip(first, left_columns, strict=True)
    ]
    lines = [f"**{table.title}**", "", *(f"| {' | '.join(cells)} |" for cells in [first, rule, *body])]
    lines += [f"\n{note}" for note in table.below]
    lines += [f"\n{note}" for note in [RULE, *table.endnotes]] if table.endnotes else []
    return "\n".join(lines) + "\n"


def read(stem: Path) -> Table:
    """Read the table that `write` wrote to `stem`: data from its CSV, everything else from its Markdown.

    Data have the types that pandas infers. `rules_above` is lost.

    Raises:
        InputError: If the files do not exist, or are not such a table.
    """
    file = Path(f"{stem}.md")
    try:
        head, *parts = file.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
        data = read_results(Path(f"{stem}.csv"))
    except pd.errors.EmptyDataError:
        data = pd.DataFrame()
    except (OSError, ValueError) as error:
        problem = f"cannot be read with its CSV: {error}"
        raise InputError(
            "broken-file", problem, file=file, hint="make both again: snakemake tables"
        ) from None
    if data.empty and parts and not parts[0].startswith("|"):
        return Table(
            head[2:-2], data, pd.DataFrame(), _order_notes([part for part in parts if part != NO_ROWS])
        )
    rows = [
        [cell.strip().replace(r"\|", "|") for cell in _BETWEEN_CELLS.split(line)[1:-1]]
        for line in (parts or [""])[0].split("\n")
    ]
    if not (
        head.startswith("**")
        and head.endswith("**")
        and len(rows) > 1
        and len({len(row) for row in rows}) == 1
    ):
        raise InputError(
            "not-a-table",
            "is not a table of Ringside",
            file=file,
            hint="remove it, then run the command again",
        )
    header, rule, *body = rows
    left_aligned = [name for name, mark in zip(header, rule, strict=True) if not mark.endswith(":")]
    return Table(
        head[2:-2], data, pd.DataFrame(body, columns=header, dtype=str), _order_notes(parts[1:]), left_aligned
    )


def _order_notes(parts: list[str]) -> list[str]:
    """Return notes in the order of `Table.notes`, the last one below the table at the end."""
    at = parts.index(RULE) if RULE in parts else len(parts)
    below, elsewhere = parts[:at], parts[at + 1 :]
    return [*below[:-1], *elsewhere, *below[-1:]]


@dataclass(frozen=True)
class _Layout:
    """How LaTeX sets a table: orientation, font size, and the widths of wrapped columns in em."""

    is_landscape: bool
    font_command: str
    wrapped: Mapping[str, float]


def latex(table: Table, label: str, wrap_to_column: bool = False) -> str:
    """Return the table in LaTeX with booktabs: a longtable if it exceeds a page, in landscape if it is wide.

    A table floats in a column if it fits there, else across the page. A table without rows is a comment that
    says why.

    Args:
        table: The table.
        label: The label, such as tab:cells.
        wrap_to_column: Whether columns of words may wrap, so that the table fits in a column of the page.
    """
    if table.display.empty:
        return " ".join(f"% {table.title}: {' '.join(table.below or [NO_ROWS])}".split()) + "\n"
    column_layout = _column_layout(table, wrap_to_column)
    layout = column_layout or _layout(table)
    header = " & ".join(_stack_heading(name, name in table.left_aligned) for name in table.display) + r" \\"
    rows = [_row(texts, layout, table) for texts in table.display.itertuples(index=False)]
    for row in sorted(table.rules_above, reverse=True):
        rows.insert(row, r"\midrule")
    notes = [
        r"\par\medskip\noindent\begin{minipage}{\linewidth}\raggedright",
        *(latex_text(note, breaks=True) + r"\par" for note in table.below),
        r"\end{minipage}",
    ]
    caption = rf"\caption{{{latex_text(table.title)}}}\label{{{label}}}"
    columns = f"{{@{{}}{''.join(_column(name, layout, table) for name in table.display)}@{{}}}}"
    packages = ["booktabs"] + ["array"] * bool(layout.wrapped)
    if layout.is_landscape or _count_lines(table, layout) > PAGE_ROWS:
        packages += ["longtable"] + ["pdflscape"] * layout.is_landscape
        lines = [
            *([r"\begin{landscape}"] if layout.is_landscape else []),
            "{" + layout.font_command,
            rf"\begin{{longtable}}{columns}",
            caption + r"\\",
            r"\toprule",
            header,
            r"\midrule",
            r"\endfirsthead",
            r"\toprule",
            header,
            r"\midrule",
            r"\endhead",
            r"\bottomrule",
            r"\endlastfoot",
            *rows,
            r"\end{longtable}",
            *notes,
            "}",
            *([r"\end{landscape}"] if layout.is_landscape else []),
        ]
    else:
        environment = "table" if column_layout else "table*"
        lines = [
            rf"\begin{{{environment}}}",
            r"\centering" + layout.font_command,
            caption,
            rf"\begin{{tabular}}{columns}",
            r"\toprule",
            header,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            rf"\end{{{environment}}}",
        ]
    needs = f"% needs \\usepackage{{{','.join(packages)}}}; {WIDTH_NOTE}"
    return "\n".join([needs, *lines]) + "\n"


def _row(texts: Sequence[str], layout: _Layout, table: Table) -> str:
    cells = [
        latex_text(text, breaks=name in layout.wrapped)
        for name, text in zip(table.display, texts, strict=True)
    ]
    # LaTeX would read a leading [ or * as an option of the \\ that ends the previous row.
    guard = "{}" if cells and cells[0].startswith(("[", "*")) else ""
    return guard + " & ".join(cells) + r" \\"


def _column(name: str, layout: _Layout, table: Table) -> str:
    if name in layout.wrapped:
        return rf">{{\raggedright\arraybackslash}}p{{{layout.wrapped[name]:.1f}em}}"
    return "l" if name in table.left_aligned else "r"


def _stack_heading(heading: str, left: bool) -> str:
    """Return a heading with one word per line, so that numbers determine the column width."""
    words = latex_text(heading).split()
    if len(words) < 2:
        return "".join(words)
    return rf"\shortstack[{'l' if left else 'r'}]{{" + r"\\".join(words) + "}"


def _layout(table: Table) -> _Layout:
    """Return the layout with the largest font that fits, in portrait if possible."""
    widths = _widths(table)
    long = {
        name: width for name, width in widths.items() if name in table.left_aligned and width > MIN_WRAPPED_EM
    }
    short = sum(widths.values()) - sum(long.values())
    min_room = max(MIN_COLUMN_EM * len(long), WRAPPED_SHARE * sum(long.values()))
    for is_landscape, size in ((False, 0), (False, 1), (True, 1), (True, 2)):
        font_command, letter_pt, gap_pt = FONT_SIZES[size]
        page_pt = LANDSCAPE_PT if is_landscape else PORTRAIT_PT
        room = (page_pt - 2 * gap_pt * (len(widths) - 1)) / letter_pt
        if sum(widths.values()) <= room:
            return _Layout(is_landscape, font_command, {})
        if long and size == 1 and room - short >= min_room:
            return _Layout(is_landscape, font_command, _share_width(long, room - short))
    return _Layout(True, font_command, _share_width(long, max(room - short, MIN_COLUMN_EM * len(long))))


def _column_layout(table: Table, is_wrapped: bool) -> _Layout | None:
    """Return the layout of a table in one of two columns of a page; None if it does not fit."""
    widths = _widths(table)
    font_command, letter_pt, gap_pt = FONT_SIZES[0]
    room = (COLUMN_PT - 2 * gap_pt * (len(widths) - 1)) / letter_pt
    if sum(widths.values()) <= room:
        return _Layout(False, font_command, {})
    long = {name: width for name, width in widths.items() if name in table.left_aligned}
    room -= sum(widths.values()) - sum(long.values())
    if is_wrapped and room >= MIN_COLUMN_EM * len(long):
        return _Layout(False, font_command, _share_width(long, room))
    return None


def fits_float(table: Table, max_rows: int) -> bool:
    """Return whether a table has at most `max_rows` lines and fits a page upright, so that it can float."""
    layout = _layout(table)
    return not layout.is_landscape and _count_lines(table, layout) <= max_rows


def is_landscape(table: Table) -> bool:
    """Return whether a table is wider than a page, so that LaTeX prints it in landscape."""
    return _layout(table).is_landscape


def _share_width(widths: Mapping[str, float], room: float) -> dict[str, float]:
    """Distribute `room` over columns: each gets the width it needs, or an equal share of what remains."""
    widths_given: dict[str, float] = {}
    for n_done, (name, width) in enumerate(sorted(widths.items(), key=lambda item: item[1])):
        widths_given[name] = min(width, (room - sum(widths_given.values())) / (len(widths) - n_done))
    return widths_given


def _widths(table: Table) -> dict[str, float]:
    """Return the width in em of the widest entry of each column."""
    return {
        name: max(map(_width_em, {*column, *name.split()}), default=0.0)
        for name, column in table.display.items()
    }


def _width_em(text: str) -> float:
    """Return the approximate width of a text in em, set in Times."""
    return sum(0.3 if character in NARROW else 0.8 if character in WIDE else 0.5 for character in text)


def _count_lines(table: Table, layout: _Layout) -> int:
    """Return the number of lines of all rows and notes."""
    wrapped = [
        [_width_em(text) / width for text in table.display[name]] for name, width in layout.wrapped.items()
    ]
    rows = (
        sum(math.ceil(max([1, *turns])) for turns in zip(*wrapped, strict=True))
        if wrapped
        else len(table.display)
    )
    return rows + sum(math.ceil(_width_em(note) / NOTE_EM) for note in table.below)


def number(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits, at least its integer part; a dash for NaN.

    Numbers between 0.0001 and a million have no exponent.
    """
    if pd.isna(value):
        return DASH
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if not MIN_EXPONENT <= exponent <= MAX_EXPONENT:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    return f"{value:.{max(digits - 1 - exponent, 0)}f}".replace("-", "−")


def interval(estimate: Estimate, digits: int = 3) -> str:
    """Return `value [low, high]`, all with the decimals that the width of the interval gives (`decimals`).

    The value has `digits` significant digits if it has no interval, or an interval of width 0.
    """
    parts = [estimate.value, estimate.low, estimate.high]
    if math.isnan(estimate.low):
        return number(estimate.value, digits)
    error = half_width(estimate)
    if error is None:
        value, low, high = equal_decimals(parts, digits)
    else:
        value, low, high = _with_common_exponent(parts, decimals(estimate.value, error, digits))
    return f"{value} [{low}, {high}]"


def interval_with_decimals(estimate: Estimate, n_decimals: int) -> str:
    """Return `value [low, high]` with the given decimals, such as those of other numbers beside it."""
    parts = [estimate.value, *([] if math.isnan(estimate.low) else [estimate.low, estimate.high])]
    value, *bounds = _with_common_exponent(parts, n_decimals)
    return f"{value} [{', '.join(bounds)}]" if bounds else value


def half_width(estimate: Estimate) -> float | None:
    """Return half the width of an interval; None without a width.

    It is at most the value itself if all numbers in the interval have one sign.
    """
    half = (estimate.high - estimate.low) / 2
    if not 0 < half < math.inf:
        return None
    has_one_sign = estimate.low * estimate.high > 0 and estimate.value
    return min(half, abs(estimate.value)) if has_one_sign else half


def decimals(value: float, error: float, digits: int = 3) -> int:
    """Return the decimals of a value with an error above 0, such as half its interval; negative for tens.

    The value gets `digits` significant digits, unless its error then has too many or too few. The error has
    at most two (GUM, JCGM 100:2008, 7.2.6). It has at least two if its first three digits are 100 to 354,
    else at least one (Review of Particle Physics, Introduction, 5.3). Examples: `0.51 [0.27, 0.99]` and
    `0.19412 [0.19408, 0.19416]`.
    """
    max_decimals = 1 - math.floor(math.log10(float(f"{error:.1e}")))
    first_three, exponent = f"{error:.2e}".split("e")
    min_decimals = 1 - int(exponent) - (float(first_three) > MAX_TWO_DIGITS)
    scale = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    value_decimals = digits - 1 - scale if value else max_decimals
    return min(max(min_decimals, min(value_decimals, max_decimals)), MAX_DIGITS - 1 - scale)


def with_error(value: float, error: float | None, digits: int = 3) -> str:
    """Return a number with the `decimals` that its error gives; a dash for NaN.

    Args:
        value: The number.
        error: Half the width of an interval that says how precise it is (`half_width`).
        digits: Significant digits of the number without an error.
    """
    if pd.isna(value) or error is None:
        return number(value, digits)
    return _with_common_exponent([value], decimals(value, error, digits))[0]


def _with_common_exponent(values: Sequence[float], n_decimals: int) -> list[str]:
    """Return numbers with equal decimals (negative for tens), or with a common exponent if these are many."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    exponent = math.floor(math.log10(largest)) if largest else 0
    if exponent <= MAX_EXPONENT and n_decimals <= MAX_DECIMALS:
        return [_with_decimals(value, max(0, n_decimals)) for value in values]
    mantissas = [_with_decimals(value / 10.0**exponent, max(0, exponent + n_decimals)) for value in values]
    return [f"{mantissa}e{exponent:+03d}".replace("-", "−") for mantissa in mantissas]


def equal_decimals(values: Sequence[float], digits: int) -> list[str]:
    """Return numbers with as many decimals as the first has if it is given with `digits` digits."""
    text = number(values[0], digits)
    if "e" in text or not math.isfinite(values[0]):
        return [number(value, digits) for value in values]
    return [_with_decimals(value, len(text.partition(".")[2])) for value in values]


def _with_decimals(value: float, decimals: int) -> str:
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def ratio(estimate: Estimate) -> str:
    """Return `interval` of a ratio; a bound that excludes 1 gets enough decimals to show that.

    A bound that is 1 to rounding (`intervals.simultaneous_ratios`) is printed as 1: `0.64 [0.40, 1.00]`.
    """
    text = interval(estimate)
    if not text.endswith("]"):
        return text
    value, _, bounds = text[:-1].partition(" [")
    low, high = bounds.split(", ")
    if estimate.low > 1 and float(low) <= 1:
        low = _unlike_one(estimate.low) or low
    if estimate.high < 1 and float(high) >= 1:
        high = _unlike_one(estimate.high) or high
    return f"{value} [{low}, {high}]"


def intervals(estimates: Iterable[Estimate], digits: int = 3) -> list[str]:
    """Return `interval` of each estimate, with the decimals of most of them.

    If some of these decimals differ by more than one, the values differ in magnitude and keep their own.
    """
    texts = [(estimate, interval(estimate, digits)) for estimate in estimates]
    own_decimals = [
        len(text.partition(" ")[0].partition(".")[2])
        for estimate, text in texts
        if math.isfinite(estimate.value)
    ]
    if not own_decimals or max(own_decimals) - min(own_decimals) > 1 or any("e" in text for _, text in texts):
        return [text for _, text in texts]
    n_decimals = max(sorted(set(own_decimals)), key=own_decimals.count)
    return [
        interval_with_decimals(estimate, n_decimals) if math.isfinite(estimate.value) else text
        for estimate, text in texts
    ]


def _unlike_one(bound: float) -> str | None:
    """Return a bound with the fewest decimals that differ from 1; None if it is 1 to rounding."""
    texts = (f"{bound:.{places}f}" for places in range(MAX_BOUND_DECIMALS))
    return next((text for text in texts if float(text) != 1), None)


def interval_texts(data: pd.DataFrame, name: str, factor: float = 1.0) -> list[str]:
    """Return `intervals` of the columns name, name_low and name_high times `factor`, by row."""
    bounds = factor * _bounds(data, name)
    return intervals(Estimate(*row) for row in bounds.itertuples(index=False))


def mean_texts(data: pd.DataFrame, name: str, ratio: str, factor: float = 1.0) -> list[str]:
    """Return the column `name` times `factor` as text, as precise as the interval of the ratio in its row.

    Means of compared runs have no interval. They have at least three significant digits, however wide the
    interval of the ratio is.

    Args:
        data: Rows with a ratio, its bounds, and a mean behind it.
        name: Column of the means.
        ratio: Column of the ratios; its bounds end in _low and _high.
        factor: Factor to the unit shown.
    """
    ratios = [Estimate(*row) for row in _bounds(data, ratio).itertuples(index=False)]
    means = factor * data[name].astype(float)
    return [
        with_error(mean, error and min(error / estimate.value, 0.1) * mean)
        for mean, estimate, error in zip(means, ratios, map(half_width, ratios), strict=True)
    ]


def _bounds(data: pd.DataFrame, name: str) -> pd.DataFrame:
    return data[[name, f"{name}_low", f"{name}_high"]].astype(float)


def p_value(p: float) -> str:
    """Return a p value with three decimals (four just below 0.05), or <0.001."""
    if pd.isna(p):
        return DASH
    return "<0.001" if p < 0.001 else f"{p:.{p_decimals(p)}f}"


def change_decimals(shares: ArrayLike) -> int:
    """Return the decimals of relative changes in per cent: at least one, and two digits of the largest."""
    percents = np.abs(100 * np.asarray(shares, dtype=float))
    largest = float(np.nanmax(percents)) if np.isfinite(percents).any() else 0.0
    return max(1, 1 - math.floor(math.log10(largest))) if largest > ROUNDING else 1


def change(share: float, decimals: int | None = None) -> str:
    """Return a relative change in per cent, without the sign %, by default with `change_decimals`."""
    n_decimals = change_decimals([share]) if decimals is None else decimals
    return DASH if pd.isna(share) else _with_decimals(100 * share, n_decimals)


def percent(share: float, digits: int = 1) -> str:
    """Return a share in per cent, without the sign %. For shares that can be tiny, use `number`."""
    return DASH if pd.isna(share) else f"{100 * share:.{digits}f}"


def _markdown_cell(text: str) -> str:
    return text.replace("|", r"\|")
