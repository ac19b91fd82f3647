"""The notes of a table or a caption one by one, those that a paragraph is joined of among them."""

from collections.abc import Iterable, Iterator

from common.notes import Note, find_note


def sentences(notes: Iterable[str]) -> Iterator[str]:
    """Yield each note, then the notes that it is joined of (its fact `notes`)."""
    for note in notes:
        yield note
        if isinstance(note, Note):
            yield from sentences(note.facts.get("notes", []))


def sentence(notes: Iterable[str], code: str) -> Note:
    """Return the only note with this code, at any depth.

    LookupError where there is none, or more than one.
    """
    return find_note(sentences(notes), code)
