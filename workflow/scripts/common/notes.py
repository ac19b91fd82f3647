"""Sentences for readers, with codes and facts: notes on tables, captions of figures, findings, reasons.

Tests and programs read code and facts instead of the sentence, so that its wording can change. Files are the
exception: records, runs.csv and unfinished.txt keep only the text of a reason. What reads a reason from a
file therefore depends on its wording, and `runs.reasons` has the shared beginnings.
"""

from collections.abc import Iterable, Mapping
from typing import Any


class Note(str):
    """A sentence with a code and the facts that it states.

    It is a `str`, so it can be used wherever text can. Joined or formatted, it becomes plain text without
    code and facts.

    Args:
        code: The kind of statement, in kebab-case (``cells-without-runs``). Codes are stable, wording is not.
        text: The sentence as readers see it.
        facts: The stated numbers, names and conditions, unrounded and unformatted.
    """

    code: str
    facts: Mapping[str, Any]

    def __new__(cls, code: str, text: str, **facts: Any) -> "Note":
        """Create the text, and attach code and facts."""
        note = super().__new__(cls, text)
        note.code, note.facts = code, facts
        return note

    def __getnewargs_ex__(self) -> tuple[tuple[str, str], dict[str, Any]]:
        """Return the arguments of `__new__`, for pickle and copy."""
        return (self.code, str(self)), dict(self.facts)


def codes(notes: Iterable[str]) -> list[str]:
    """Return the codes of notes in order, without plain text."""
    return [note.code for note in notes if isinstance(note, Note)]


def find_note(notes: Iterable[str], code: str) -> Note:
    """Return the only note with this code.

    Raises:
        LookupError: If no note or more than one has it.
    """
    matching = [note for note in notes if isinstance(note, Note) and note.code == code]
    if len(matching) != 1:
        raise LookupError(f"{len(matching)} notes have the code {code}; there are {codes(notes)}")
    return matching[0]
