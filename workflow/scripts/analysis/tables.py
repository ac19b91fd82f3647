"""One table in three files: CSV with all digits for programs; Markdown and LaTeX (booktabs), rounded, for people."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis.intervals import Estimate
from common.errors import InputError
from common.files import shown, write_text
from common.latex import latex_text
from common.notes import Note
from common.text import aligned

PAGE_ROWS = 45
FITS = r"its width holds for \usepackage[T1]{fontenc} \usepackage{mathptmx}, 10pt, \textwidth 6.9in (the paper's)"
PORTRAIT_PT, LANDSCAPE_PT = 490, 690  # what an A4 page with narrow margins has
# Letters of a table, largest first: LaTeX's command, their size and half the gap between columns in pt.
LETTERS = (
    (r"\footnotesize", 8, 6),
    (r"\scriptsize\setlength{\tabcolsep}{3pt}", 7, 3),
    (r"\fontsize{6}{7}\selectfont\setlength{\tabcolsep}{2pt}", 6, 2),
)
LONG_EM, LEAST_EM = 14, 10  # columns of longer words may be wrapped, and have so much room at least
WRAPPED_SHARE = 0.45  # of what the long columns take, at least, that wrapped ones get
NOTE_EM = 65  # a line of notes
NARROW, WIDE = set(" .,;:'|()[]/-ijlftrI"), set("mwMW%−×→±–")
DASH = "–"
BELOW_WORDS, NOTE_WORDS = 70, 40  # of all notes below a table, and of one
RULE = "---"  # between the notes below a table and those apart, in Markdown
NO_ROWS = Note("no-rows", "There are no rows.")
MOST_ROWS = 1000  # of what people read; such a table has twenty pages
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Table:
    """A table: `data` for programs; `shown`, its text for people.

    Columns of `shown` in `words` are set to the left; LaTeX has a rule above each row of `parts`.
    """

    title: str
    data: pd.DataFrame
    shown: pd.DataFrame
    notes: Sequence[str] = field(default_factory=list)
    words: Sequence[str] = field(default_factory=list)
    parts: Sequence[int] = ()

    @cached_property
    def below(self) -> list[str]:
        """The notes that stand below the table: the short ones, BELOW_WORDS in all at most, the last one always."""
        found, left = [], BELOW_WORDS - len(" ".join(self.notes[-1:]).split())
        for note in self.notes[:-1]:
            words = len(note.split())
            if words <= min(left, NOTE_WORDS):
                found.append(note)
                left -= words
        return [*found, *self.notes[-1:]]

    @cached_property
    def apart(self) -> list[str]:
        """The other notes, explanations that a reader may look up: reports and papers print them apart."""
        return [note for note in self.notes if note not in self.below]


def write(table: Table, stem: Path) -> None:
    """Write `stem`.csv, .md and .tex, each whole or not at all; of very many rows the latter two have the first MOST_ROWS."""
    write_csv(table.data, Path(f"{stem}.csv"))
    if len(table.shown) > MOST_ROWS:
        text = f"The first {MOST_ROWS:,} of {len(table.shown):,} rows; all are in {stem.name}.csv."
        first = Note("first-rows", text, rows=MOST_ROWS, of=len(table.shown))
        parts = [row for row in table.parts if row < MOST_ROWS]
        table = replace(table, shown=table.shown[:MOST_ROWS], notes=[first, *table.notes], parts=parts)
    write_text(Path(f"{stem}.md"), markdown(table))
    write_text(Path(f"{stem}.tex"), latex(table, label=f"tab:{Path(stem).name}"))


def write_csv(data: pd.DataFrame, path: Path) -> None:
    """Write numbers with all their digits; nothing for a missing one."""
    write_text(path, data.to_csv(index=False, lineterminator="\n"))


def markdown(table: Table) -> str:
    """The table as a page of Markdown: title, table, notes. Without rows there is no table, and the notes say why."""
    if table.shown.empty:
        apart = [RULE, *table.apart] if table.apart else []
        return "\n\n".join([f"**{table.title}**", *(table.below or [NO_ROWS]), *apart]) + "\n"
    header = [_markdown_cell(name) for name in table.shown]
    rows = [[_markdown_cell(text) for text in row] for row in table.shown.itertuples(index=False)]
    left = [name in table.words for name in table.shown]
    first, *others = aligned([header, *rows], left, least=3)
    rule = [
        "-" * len(cell) if is_left else "-" * (len(cell) - 1) + ":" for cell, is_left in zip(first, left, strict=True)
    ]
    lines = [f"**{table.title}**", "", *(f"| {' | '.join(cells)} |" for cells in [first, rule, *others])]
    lines += [f"\n{note}" for note in table.below]
    lines += [f"\n{note}" for note in [RULE, *table.apart]] if table.apart else []
    return "\n".join(lines) + "\n"


def read(stem: Path) -> Table:
    """The table that `write` wrote to `stem`: data from its CSV, the rest from its Markdown. InputError where they are not there.

    Data come as pandas guesses them, and `parts` are not known any more.
    """
    file = Path(f"{stem}.md")
    try:
        head, *parts = file.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
        data = pd.read_csv(Path(f"{stem}.csv"))
    except pd.errors.EmptyDataError:
        data = pd.DataFrame()
    except (OSError, ValueError) as error:
        problem = f"cannot be read with its CSV: {error}"
        raise InputError("broken-file", problem, file=shown(file), hint="make both again: snakemake tables") from None
    if data.empty and parts and not parts[0].startswith("|"):
        return Table(head[2:-2], data, pd.DataFrame(), _in_order([part for part in parts if part != NO_ROWS]))
    rows = [_cells_of(line) for line in (parts or [""])[0].split("\n")]
    if not (head.startswith("**") and head.endswith("**") and len(rows) > 1 and len({len(row) for row in rows}) == 1):
        raise InputError(
            "not-a-table", "is not a table of Ringside", file=shown(file), hint="remove it, then run the command again"
        )
    header, rule, *body = rows
    words = [name for name, mark in zip(header, rule, strict=True) if not mark.endswith(":")]
    return Table(head[2:-2], data, pd.DataFrame(body, columns=header, dtype=str), _in_order(parts[1:]), words)


def _in_order(parts: list[str]) -> list[str]:
    """The notes as a table has them, the last one of those below at the end."""
    at = parts.index(RULE) if RULE in parts else len(parts)
    below, apart = parts[:at], parts[at + 1 :]
    return [*below[:-1], *apart, *below[-1:]]


@dataclass(frozen=True)
class _Layout:
    """How a table lies on a page: across it, in which letters, and the width in em of the columns that are wrapped."""

    across: bool
    letters: str
    wrapped: Mapping[str, float]


def latex(table: Table, label: str) -> str:
    """The table for LaTeX with booktabs; with longtable, too, where it is longer than a page, and across a wide one's page.

    Without rows it is a comment that says why.
    """
    if table.shown.empty:
        return " ".join(f"% {table.title}: {' '.join(table.below or [NO_ROWS])}".split()) + "\n"
    layout = _layout(table)
    header = " & ".join(_stacked(name, name in table.words) for name in table.shown) + r" \\"
    rows = [_row(texts, layout, table) for texts in table.shown.itertuples(index=False)]
    for row in sorted(table.parts, reverse=True):
        rows.insert(row, r"\midrule")
    notes = [
        r"\par\medskip\noindent\begin{minipage}{\linewidth}\raggedright",
        *(latex_text(note, breaks=True) + r"\par" for note in table.below),
        r"\end{minipage}",
    ]
    caption = rf"\caption{{{latex_text(table.title)}}}\label{{{label}}}"
    columns = f"{{@{{}}{''.join(_column(name, layout, table) for name in table.shown)}@{{}}}}"
    packages = ["booktabs"] + ["array"] * bool(layout.wrapped)
    if layout.across or _lines(table, layout) > PAGE_ROWS:
        packages += ["longtable"] + ["pdflscape"] * layout.across
        lines = [
            *([r"\begin{landscape}"] if layout.across else []),
            "{" + layout.letters,
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
            *([r"\end{landscape}"] if layout.across else []),
        ]
    else:
        lines = [
            r"\begin{table*}",
            r"\centering" + layout.letters,
            caption,
            rf"\begin{{tabular}}{columns}",
            r"\toprule",
            header,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table*}",
        ]
    needs = f"% needs \\usepackage{{{','.join(packages)}}}; {FITS}"
    return "\n".join([needs, *lines]) + "\n"


def _row(texts: Sequence[str], layout: _Layout, table: Table) -> str:
    cells = [latex_text(text, breaks=name in layout.wrapped) for name, text in zip(table.shown, texts, strict=True)]
    guard = "{}" if cells and cells[0].startswith(("[", "*")) else ""  # which the row before would take for its own
    return guard + " & ".join(cells) + r" \\"


def _column(name: str, layout: _Layout, table: Table) -> str:
    if name in layout.wrapped:
        return rf">{{\raggedright\arraybackslash}}p{{{layout.wrapped[name]:.1f}em}}"
    return "l" if name in table.words else "r"


def _stacked(heading: str, left: bool) -> str:
    """A heading with its words below each other, so that numbers and not headings make a column wide."""
    words = latex_text(heading).split()
    if len(words) < 2:
        return "".join(words)
    return rf"\shortstack[{'l' if left else 'r'}]{{" + r"\\".join(words) + "}"


def _layout(table: Table) -> _Layout:
    """The largest letters that fit, upright rather than across; long words are wrapped before letters get smaller still."""
    widths = _widths(table)
    long = {name: width for name, width in widths.items() if name in table.words and width > LONG_EM}
    short = sum(widths.values()) - sum(long.values())
    for across, size, wrapping in (
        (False, 0, False),
        (False, 1, False),
        (False, 1, True),
        (True, 1, False),
        (True, 1, True),
    ):
        letters, letter_pt, gap_pt = LETTERS[size]
        room = _room(across, letter_pt, gap_pt, len(widths))
        if sum(widths.values()) <= room:
            return _Layout(across, letters, {})
        if wrapping and room - short >= max(LEAST_EM * len(long), WRAPPED_SHARE * sum(long.values())) and long:
            return _Layout(across, letters, _shared(long, room - short))
    letters, letter_pt, gap_pt = LETTERS[2]
    room = _room(True, letter_pt, gap_pt, len(widths))
    fits = sum(widths.values()) <= room
    return _Layout(True, letters, {} if fits else _shared(long, max(room - short, LEAST_EM * len(long))))


def _room(across: bool, letter_pt: float, gap_pt: float, columns: int) -> float:
    """What a page has for so many columns, in em."""
    return ((LANDSCAPE_PT if across else PORTRAIT_PT) - 2 * gap_pt * (columns - 1)) / letter_pt


def _shared(widths: Mapping[str, float], room: float) -> dict[str, float]:
    """`room` given to columns: as much as each needs, and the same to those that need more."""
    given: dict[str, float] = {}
    for place, (name, width) in enumerate(sorted(widths.items(), key=lambda each: each[1])):
        given[name] = min(width, (room - sum(given.values())) / (len(widths) - place))
    return given


def _widths(table: Table) -> dict[str, float]:
    """The width of each column's widest entry, in em."""
    return {name: max(map(_em, {*column, *name.split()}), default=0.0) for name, column in table.shown.items()}


def _em(text: str) -> float:
    """About how wide a text is, in em, of letters as Times has them."""
    return sum(0.3 if character in NARROW else 0.8 if character in WIDE else 0.5 for character in text)


def _lines(table: Table, layout: _Layout) -> int:
    """The lines that the rows and the notes take."""
    wrapped = [[_em(text) / width for text in table.shown[name]] for name, width in layout.wrapped.items()]
    rows = sum(math.ceil(max([1, *turns])) for turns in zip(*wrapped, strict=True)) if wrapped else len(table.shown)
    return rows + sum(math.ceil(_em(note) / NOTE_EM) for note in table.below)


def number(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, or its whole part where that is longer; a dash for none.

    No exponent between 0.0001 and a million.
    """
    if pd.isna(value):
        return DASH
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if not -5 < exponent < 6:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    return f"{value:.{max(digits - 1 - exponent, 0)}f}".replace("-", "−")


def interval(estimate: Estimate, digits: int = 3) -> str:
    """`value [low, high]`, the bounds with as many decimals as the value; the value alone where it has no interval."""
    text = number(estimate.value, digits)
    if math.isnan(estimate.low):
        return text
    if "e" in text:
        return f"{text} [{number(estimate.low, digits)}, {number(estimate.high, digits)}]"
    decimals = len(text.partition(".")[2])
    low, high = (f"{bound:.{decimals}f}".replace("-", "−") for bound in (estimate.low, estimate.high))
    return f"{text} [{low}, {high}]"


def difference(estimate: Estimate, digits: int = 3) -> str:
    """Like `interval`, with no more decimals than two significant digits of half the interval's width."""
    half = (estimate.high - estimate.low) / 2
    if not half > 0 or not math.isfinite(half):
        return interval(estimate, digits)
    decimals = max(0, 1 - math.floor(math.log10(float(f"{half:.1e}"))))
    if estimate.value:
        decimals = min(decimals, max(0, digits - 1 - math.floor(math.log10(abs(estimate.value)))))
    value, low, high = (
        f"{round(number, decimals) + 0.0:.{decimals}f}".replace("-", "−")
        for number in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} [{low}, {high}]"


def p_value(p: float) -> str:
    """A p value, not below what a table should claim."""
    if pd.isna(p):
        return DASH
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def change(share: float) -> str:
    """A share by which something changes as a percentage without its sign, with one decimal."""
    return DASH if pd.isna(share) else f"{round(100 * share, 1) + 0.0:.1f}".replace("-", "−")


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage without its sign."""
    return DASH if pd.isna(share) else f"{100 * share:.{digits}f}"


def _markdown_cell(text: str) -> str:
    return text.replace("|", r"\|")


def _cells_of(line: str) -> list[str]:
    """The cells of a row as `markdown` writes it."""
    return [cell.strip().replace(r"\|", "|") for cell in _BETWEEN_CELLS.split(line)[1:-1]]
