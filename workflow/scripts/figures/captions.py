"""Compose the captions of figures: what is drawn below the figure, and endnotes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from analysis import conditions
from common.notes import Note
from common.text import split_sentences

NOT_DRAWN = "Not drawn: "  # start of the caption of a figure without content
NO_SUCCESS = Note("no-successful-run", "no successful run")
ALL_OUT_OF_MEMORY = Note("all-out-of-memory", "memory ran out in every run")
MAX_CAPTION_WORDS = 45  # words below a figure; further sentences become endnotes
MARKERS = "Markers: means; bars: 95 % intervals; ticks: runs."
SINGLE_RUNS = Note("single-run-cells", "Dashed: one run, interval from pooled variance.")
NOT_FROM_ZERO = Note("axis-not-from-zero", "The axis does not start at 0.")
BEYOND_AXIS = Note("intervals-beyond-axis", "Arrows: intervals beyond the axis.")
# Without these notes a reader would misread the picture.
WARNING_CODES = (SINGLE_RUNS.code, NOT_FROM_ZERO.code)


class Caption(str):
    """A caption as text of two paragraphs, whose notes and endnotes are also available as lists.

    Attributes:
        below: Notes printed below the figure.
        endnotes: Notes that reports fold away, and that papers print in the supplement.
    """

    below: list[str]
    endnotes: list[str]

    def __new__(cls, below: Iterable[str], endnotes: Iterable[str]) -> "Caption":
        """Join the notes of each paragraph, without empty ones."""
        parts = [[note for note in notes if note] for notes in (below, endnotes)]
        caption = super().__new__(cls, "\n\n".join(" ".join(notes) for notes in parts if notes))
        caption.below, caption.endnotes = parts
        return caption

    @property
    def notes(self) -> list[str]:
        """All notes, those below the figure first."""
        return [*self.below, *self.endnotes]

    def with_note(self, note: str, *, below: bool) -> "Caption":
        """Return the caption with one more note, below the figure or among the endnotes."""
        more_below, more_endnotes = ([note], []) if below else ([], [note])
        return Caption([*self.below, *more_below], [*self.endnotes, *more_endnotes])


def read_caption(stem: Path) -> Caption:
    """Return the caption of a figure from `stem`.caption.md, each of its paragraphs as one note."""
    below, _, endnotes = Path(f"{stem}.caption.md").read_text(encoding="utf-8").strip().partition("\n\n")
    return Caption([below], [endnotes])


def as_clause(sentence: str) -> str:
    """Return a sentence as the continuation after a colon. A note keeps its code and facts."""
    text = f"{sentence[:1].lower()}{sentence[1:].rstrip('.')}"
    return Note(sentence.code, text, **sentence.facts) if isinstance(sentence, Note) else text


def compose_caption(
    runs: pd.DataFrame,
    lead: str | Sequence[str],
    *details: str,
    endnotes: Sequence[str] = (),
    with_intervals: bool = True,
    counted: pd.Series | None = None,
) -> Caption:
    """Return a caption: what is drawn, how many runs, on which machine, and what is missing.

    Statements that hold for all figures, such as how intervals are computed, are in the study's methods note
    (`conditions.methods_notes`).

    Args:
        runs: The runs that are drawn.
        lead: What the figure shows: the sentences with which the caption begins.
        details: Further sentences. Those that do not fit become endnotes, the ones with WARNING_CODES last
            (`split_caption`).
        endnotes: Notes that are not printed below the figure.
        with_intervals: State how intervals are computed.
        counted: As in `conditions.run_counts_note`.
    """
    always = [
        conditions.run_counts_note(runs, with_intervals, counted),
        conditions.load_note(runs),
        conditions.measurement_note(runs),
    ]
    lead = [lead] if isinstance(lead, str) else lead
    warnings = [detail for detail in details if isinstance(detail, Note) and detail.code in WARNING_CODES]
    return split_caption([*lead, *details, *always], endnotes, keep_first=[*lead, *always, *warnings])


def split_caption(texts: Iterable[str], endnotes: Iterable[str], keep_first: Iterable[str] = ()) -> Caption:
    """Return a caption of distinct sentences, of which those that do not fit become endnotes.

    The choice is greedy: sentences of `keep_first`, then every other sentence that still fits into
    MAX_CAPTION_WORDS, even if one before it does not. All are printed in the order of `texts`.

    Args:
        texts: What to print below the figure.
        endnotes: Further endnotes.
        keep_first: Texts whose sentences get the space first.
    """
    sentences, first_sentences = _sentences(texts), _sentences(keep_first)
    kept_below, words_left = set[str](), MAX_CAPTION_WORDS
    for sentence in dict.fromkeys([*first_sentences, *sentences]):
        if (words := len(sentence.split())) <= words_left:
            kept_below.add(sentence)
            words_left -= words
    return Caption(
        [sentence for sentence in sentences if sentence in kept_below],
        [*(sentence for sentence in sentences if sentence not in kept_below), *dict.fromkeys(endnotes)],
    )


def _sentences(texts: Iterable[str]) -> list[str]:
    """Return the distinct sentences of the texts."""
    return list(dict.fromkeys(sentence for text in texts for sentence in _split(text) if sentence))


def _split(text: str) -> list[str]:
    """Return the sentences of a text. The first sentence of a note keeps its code and facts."""
    first, *following = split_sentences(text)
    return [Note(text.code, first, **text.facts) if isinstance(text, Note) else first, *following]
