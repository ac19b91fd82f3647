"""Which figures and tables have content, and why the others have none: these are neither in the report nor in the paper."""

from collections.abc import Mapping

from analysis.tables import Table
from figures.panels import NOT_DRAWN
from report.latex import first_sentence


def why_not_drawn(caption: str) -> str | None:
    """Why a figure with this caption shows nothing; None where it shows something."""
    return first_sentence(caption.removeprefix(NOT_DRAWN)) if caption.startswith(NOT_DRAWN) else None


def why_empty(table: Table) -> str | None:
    """Why a table has no rows, as its first note says; None where it has some."""
    if len(table.display):
        return None
    return first_sentence(table.notes[0]) if table.notes else "no rows"


def left_out(reasons: Mapping[str, str]) -> str:
    """Names and reasons in one line; empty for none."""
    said = [f"{name} ({reason[:1].lower()}{reason[1:]})" for name, reason in reasons.items()]
    return f"{NOT_DRAWN}{'; '.join(said)}." if said else ""
