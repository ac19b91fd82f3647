"""Iterate over the notes of a table or a caption, including those joined into a paragraph."""

from collections.abc import Iterable, Iterator

from common.notes import Note, find_note


def sentences(notes: Iterable[str]) -> Iterator[str]:
    """Yield each note, then the notes that are joined in it (its fact `notes`)."""
    for note in notes:
        yield note
        if isinstance(note, Note):
            yield from sentences(note.facts.get("notes", []))


def sentence(notes: Iterable[str], code: str) -> Note:
    """Return the only note with this code, at any depth.

    LookupError where there is none, or more than one.
    """
    return find_note(sentences(notes), code)
