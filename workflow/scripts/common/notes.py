"""Sentences that programs write for readers: notes of tables, captions of figures, findings, reasons.

A test or a program that wants to know what a sentence states reads its code and its facts, so that wording
stays free to change.
"""

from collections.abc import Iterable, Mapping
from typing import Any


class Note(str):
    """A sentence with a code and the facts that it states.

    It is a `str`, so it can be joined, printed and written wherever text can; what is joined is plain text
    again.

    Args:
        code: What kind of statement this is, in kebab-case (``cells-without-runs``). Stable, unlike the
            wording.
        text: The sentence as readers see it.
        facts: What it states: numbers, names, conditions, unrounded and unformatted.
    """

    code: str
    facts: Mapping[str, Any]

    def __new__(cls, code: str, text: str, **facts: Any) -> "Note":
        """Make the sentence."""
        note = super().__new__(cls, text)
        note.code, note.facts = code, facts
        return note

    def __getnewargs_ex__(self) -> tuple[tuple[str, str], dict[str, Any]]:
        """Return what pickle and copy make it of again."""
        return (self.code, str(self)), dict(self.facts)


def codes(notes: Iterable[str]) -> list[str]:
    """Return the code of each note in order, leaving out plain text."""
    return [note.code for note in notes if isinstance(note, Note)]


def find_note(notes: Iterable[str], code: str) -> Note:
    """Return the only note with this code. LookupError where there is none, or more than one."""
    matching = [note for note in notes if isinstance(note, Note) and note.code == code]
    if len(matching) != 1:
        raise LookupError(f"{len(matching)} notes have the code {code}; there are {codes(notes)}")
    return matching[0]
