"""Choose the class, the figures and the tables of a study's paper; all others are in its supplement."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from common.renamed import Products, rename_product
from common.written import Keys, Maybe, Unique, optional
from declared.configuration import unknown_name_error
from declared.figures import FigureSpec
from declared.products.figures import KINDS

if TYPE_CHECKING:
    from declared.products.tables import TableSpec

ClassName = Literal["article", "acmart", "IEEEtran"]
DEFAULT_CLASS: ClassName = "article"


# A paper has one figure of each row by default: of the first kind of the row that the study has.
MAIN_KINDS = (
    ("overview", "by_factor", "heat_map"),
    ("scaling",),
    ("shares",),
    ("time_to_accuracy", "accuracy"),
)


@dataclass(frozen=True)
class Paper(Keys):
    """Class of a paper, and names of its figures and tables in order; None for the defaults."""

    figures: Maybe[Unique[tuple[str, ...]]] = optional(
        "names of figures, in this order; default: four, one each of overview (or by_factor), scaling, "
        "shares and time_to_accuracy (or accuracy over wall time), and others in place of those that it lacks"
    )
    tables: Maybe[Unique[tuple[str, ...]]] = optional(
        "names of tables, in this order; default: the means of all cells (from the table `cells`), `anova` "
        "and "
        "the other tables of main results, as far as each fits on a part of a page"
    )
    document_class: Maybe[ClassName] = optional(
        f"LaTeX class of main.tex, when it is written; default: {DEFAULT_CLASS}", alias="class"
    )

    @property
    def class_name(self) -> ClassName:
        """Return the name of the paper's LaTeX class."""
        return self.document_class or DEFAULT_CLASS

    def chosen_figures(self, drawn: Sequence[FigureSpec]) -> Sequence[str]:
        """Return the figures of the paper of a study that draws ``drawn``."""
        if self.figures is not None:
            return self.figures
        chosen = [figure for kinds in MAIN_KINDS if (figure := _first_of_kinds(kinds, drawn))]
        rest = [figure for figure in drawn if figure not in chosen and not KINDS[figure.kind].in_supplement]
        chosen += rest[: max(0, len(MAIN_KINDS) - len(chosen))]
        return [figure.name for figure in drawn if figure in chosen]

    def chosen_tables(self) -> Sequence[str]:
        """Return the tables of the paper."""
        if self.tables is not None:
            return self.tables
        return [name for name, table in printed_tables().items() if not table.in_supplement]


def _first_of_kinds(kinds: Sequence[str], drawn: Sequence[FigureSpec]) -> FigureSpec | None:
    """Return the first figure of the first kind that is drawn, over wall time if there is such a figure."""
    for kind in kinds:
        figures = [figure for figure in drawn if figure.kind == kind]
        if figures:
            return min(figures, key=lambda figure: figure.x != "wall_time")
    return None


def printed_tables() -> "dict[str, TableSpec]":
    """Return the tables that a paper may have, by name."""
    # Few programs need these entries, and reading them takes time.
    from declared.products.tables import PROGRAM_OF, TABLES

    return {
        name: table for name, table in TABLES.items() if not (PROGRAM_OF[name].on_request or table.csv_only)
    }


def checked_paper(paper: Paper, figures: Sequence[str], file: Path) -> Paper:
    """Return a paper with older names of the study's `figures` and tables replaced.

    Raises:
        InputError: If a name is not among them.
    """
    tables = list(printed_tables()) if paper.tables else ()
    return Paper(
        figures=_checked_names(paper.figures, "figures", figures, file),
        tables=_checked_names(paper.tables, "tables", tables, file),
        document_class=paper.document_class,
    )


def _checked_names(
    names: Sequence[str] | None, products: Products, choices: Sequence[str], file: Path
) -> tuple[str, ...] | None:
    if names is None:
        return None
    checked = []
    for place, name in enumerate(names):
        key = f"paper.{products}.{place}"
        current = name if name in choices else rename_product(products, name, file, key)
        if current not in choices:
            raise unknown_name_error(name, file, key, choices)
        checked.append(current)
    return tuple(checked)
