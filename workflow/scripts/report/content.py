"""Decide which figures and tables have content; reports and papers leave out the others, with the reason."""

from collections.abc import Mapping

from analysis.tables import Table
from common.text import first_sentence
from figures.captions import NOT_DRAWN


def why_not_drawn(caption: str) -> str | None:
    """Return why a figure with this caption is empty; None if it is not."""
    return first_sentence(caption.removeprefix(NOT_DRAWN)) if caption.startswith(NOT_DRAWN) else None


def why_empty(table: Table) -> str | None:
    """Return why a table has no rows, as its first note says; None if it has rows."""
    if len(table.display):
        return None
    return first_sentence(table.notes[0]) if table.notes else "no rows"


def left_out(reasons: Mapping[str, str]) -> str:
    """Return names and reasons in one line; "" for none."""
    parts = [f"{name} ({reason[:1].lower()}{reason[1:]})" for name, reason in reasons.items()]
    return f"Without content: {'; '.join(parts)}." if parts else ""
