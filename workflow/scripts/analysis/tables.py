"""One table in three files: CSV with all digits for programs; Markdown and LaTeX (booktabs), rounded, for people."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from analysis.intervals import Estimate
from common.errors import InputError
from common.files import shown, write_text
from common.text import aligned

PAGE_ROWS = 45
FOOTNOTESIZE_CHARACTERS = 90
PORTRAIT_CHARACTERS = 115
DASH = "–"
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": r"--",
    "−": r"$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "∓": r"$\mp$",
    "√": r"$\surd$",
    "η": r"$\eta$",
    "ω": r"$\omega$",
    "₁": r"\textsubscript{1}",
    "²": r"\textsuperscript{2}",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "∞": r"$\infty$",
    "“": "``",
    "”": "''",
}


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


def write(table: Table, stem: Path) -> None:
    """Write `stem`.csv, .md and .tex, each whole or not at all."""
    write_csv(table.data, Path(f"{stem}.csv"))
    write_text(Path(f"{stem}.md"), markdown(table))
    write_text(Path(f"{stem}.tex"), latex(table, label=f"tab:{Path(stem).name}"))


def write_csv(data: pd.DataFrame, path: Path) -> None:
    """Write numbers with all their digits; nothing for a missing one."""
    write_text(path, data.to_csv(index=False, lineterminator="\n"))


def markdown(table: Table) -> str:
    """The table as a page of Markdown: title, table, notes."""
    header = [_markdown_cell(name) for name in table.shown]
    rows = [[_markdown_cell(text) for text in row] for row in table.shown.itertuples(index=False)]
    left = [name in table.words for name in table.shown]
    first, *others = aligned([header, *rows], left, least=3)
    rule = [
        "-" * len(cell) if is_left else "-" * (len(cell) - 1) + ":" for cell, is_left in zip(first, left, strict=True)
    ]
    lines = [f"**{table.title}**", "", *(f"| {' | '.join(cells)} |" for cells in [first, rule, *others])]
    lines += [f"\n{note}" for note in table.notes]
    return "\n".join(lines) + "\n"


def read(stem: Path) -> Table:
    """The table that `write` wrote to `stem`: data from its CSV, the rest from its Markdown. InputError where they are not there.

    Data come as pandas guesses them, and `parts` are not known any more.
    """
    file = Path(f"{stem}.md")
    try:
        head, *lines = file.read_text(encoding="utf-8").split("\n")
        data = pd.read_csv(Path(f"{stem}.csv"))
    except pd.errors.EmptyDataError:
        data = pd.DataFrame()
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(file)}: cannot be read with its CSV: {error}; make it: snakemake tables") from None
    rows = [_cells_of(line) for line in lines if line.startswith("|")]
    notes = [line for line in lines if line and not line.startswith("|")]
    if not (head.startswith("**") and head.endswith("**") and len(rows) > 1 and len({len(row) for row in rows}) == 1):
        raise InputError(f"{shown(file)}: is no table of ours; remove it, and call again")
    header, rule, *body = rows
    words = [name for name, mark in zip(header, rule, strict=True) if not mark.endswith(":")]
    return Table(head[2:-2], data, pd.DataFrame(body, columns=header, dtype=str), notes, words)


def latex(table: Table, label: str) -> str:
    """The table for LaTeX with booktabs; with longtable, too, where it is longer than a page, and across a wide one's page."""
    align = "".join("l" if name in table.words else "r" for name in table.shown)
    header = " & ".join(_stacked(name, name in table.words) for name in table.shown) + r" \\"
    rows = [" & ".join(latex_text(text) for text in row) + r" \\" for row in table.shown.itertuples(index=False)]
    for row in sorted(table.parts, reverse=True):
        rows.insert(row, r"\midrule")
    notes = [
        r"\par\medskip\begin{minipage}{\linewidth}\raggedright",
        *(latex_text(note) + r"\par" for note in table.notes),
        r"\end{minipage}",
    ]
    caption = rf"\caption{{{latex_text(table.title)}}}\label{{{label}}}"
    across = _characters(table) > PORTRAIT_CHARACTERS
    if across or len(rows) > PAGE_ROWS:
        lines = [
            f"% needs \\usepackage{{booktabs,longtable{',pdflscape' if across else ''}}}",
            *([r"\begin{landscape}"] if across else []),
            "{" + _size(table),
            rf"\begin{{longtable}}{{@{{}}{align}@{{}}}}",
            caption + r"\\",
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
            *([r"\end{landscape}"] if across else []),
        ]
    else:
        lines = [
            "% needs \\usepackage{booktabs}",
            r"\begin{table*}",
            r"\centering" + _size(table),
            caption,
            rf"\begin{{tabular}}{{@{{}}{align}@{{}}}}",
            r"\toprule",
            header,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table*}",
        ]
    return "\n".join(lines) + "\n"


def _stacked(heading: str, left: bool) -> str:
    """A heading with its words below each other, so that numbers and not headings make a column wide."""
    words = latex_text(heading).split()
    if len(words) < 2:
        return "".join(words)
    return rf"\shortstack[{'l' if left else 'r'}]{{" + r"\\".join(words) + "}"


def _size(table: Table) -> str:
    """Smaller letters and gaps for a table that would not fit the width of a page."""
    fits = _characters(table) <= FOOTNOTESIZE_CHARACTERS
    return r"\footnotesize" if fits else r"\scriptsize\setlength{\tabcolsep}{3pt}"


def _characters(table: Table) -> int:
    """The characters of a row, each column as wide as its widest entry."""
    return sum(
        max([*map(len, column), *(len(word) for word in name.split())], default=0)
        for name, column in table.shown.items()
    )


def latex_text(text: str) -> str:
    """`text` with LaTeX's special characters written out."""
    return "".join(_LATEX.get(character, character) for character in text)


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


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage without its sign."""
    return DASH if pd.isna(share) else f"{100 * share:.{digits}f}"


def _markdown_cell(text: str) -> str:
    return text.replace("|", r"\|")


def _cells_of(line: str) -> list[str]:
    """The cells of a row as `markdown` writes it."""
    return [cell.strip().replace(r"\|", "|") for cell in _BETWEEN_CELLS.split(line)[1:-1]]
