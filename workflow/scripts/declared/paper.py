"""Choose the class, figures and tables of a study's paper. Its supplement has all others."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from common.keys import Keys, Maybe, Unique, optional
from common.renamed import ProductType, rename_product
from declared.configuration import unknown_name_error
from declared.figure_specs import FigureSpec
from declared.products.figure_kinds import KINDS

if TYPE_CHECKING:
    from declared.products.tables import TableKind

ClassName = Literal["article", "acmart", "IEEEtran"]
DEFAULT_CLASS: ClassName = "article"


# A paper has one figure of each row by default: the first entry of the row that was drawn, as kind and x.
# They answer in turn: what was measured, how it scales, where the time goes, and what accuracy it reaches.
MAIN_FIGURES: Sequence[Sequence[tuple[str, str | None]]] = (
    (("overview", None), ("by_factor", None), ("heat_map", None)),
    (("scaling", None),),
    (("shares", None),),
    (("time_to_accuracy", None), ("accuracy", "wall_time"), ("accuracy", None)),
)


@dataclass(frozen=True)
class Paper(Keys):
    """The key `paper` of a study: class, figures and tables of its paper; None for a default."""

    figures: Maybe[Unique[tuple[str, ...]]] = optional(
        "names of figures, in this order; default: four, one each of overview (or by_factor), scaling, "
        "shares and time_to_accuracy (or accuracy over wall time); others replace those that the study lacks"
    )
    tables: Maybe[Unique[tuple[str, ...]]] = optional(
        "names of tables, in this order; default: the means of all cells (from the table `cells`), `anova` "
        "and the other tables of main results that fit on a part of a page"
    )
    document_class: Maybe[ClassName] = optional(
        f"LaTeX class of main.tex, when it is written; default: {DEFAULT_CLASS}", alias="class"
    )

    @property
    def class_name(self) -> ClassName:
        """The name of the paper's LaTeX class."""
        return self.document_class or DEFAULT_CLASS

    def chosen_figures(self, drawn: Sequence[FigureSpec]) -> Sequence[str]:
        """Return the names of the paper's figures, by default at most four of those that were drawn."""
        if self.figures is not None:
            return self.figures
        chosen = [spec for row in MAIN_FIGURES if (spec := _first_drawn(row, drawn))]
        rest = [spec for spec in drawn if spec not in chosen and not KINDS[spec.kind].never_main_by_default]
        chosen += rest[: len(MAIN_FIGURES) - len(chosen)]
        return [spec.name for spec in drawn if spec in chosen]

    def chosen_tables(self) -> Sequence[str]:
        """Return the tables of the paper."""
        if self.tables is not None:
            return self.tables
        return [name for name, table in printed_tables().items() if not table.in_supplement]


def _first_drawn(row: Sequence[tuple[str, str | None]], drawn: Sequence[FigureSpec]) -> FigureSpec | None:
    """Return the figure of the first entry of a row that was drawn."""
    matches = (spec for kind, x in row for spec in drawn if spec.kind == kind and x in (None, spec.x))
    return next(matches, None)


def printed_tables() -> "dict[str, TableKind]":
    """Return the tables that a paper can have, by name."""
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
    names: Sequence[str] | None, products: ProductType, choices: Sequence[str], file: Path
) -> tuple[str, ...] | None:
    if names is None:
        return None
    checked = []
    for index, name in enumerate(names):
        key = f"paper.{products}.{index}"
        current = name if name in choices else rename_product(products, name, file, key)
        if current not in choices:
            raise unknown_name_error(name, file, key, choices)
        checked.append(current)
    return tuple(checked)
