"""Read facts from captions."""

from collections.abc import Mapping
from typing import Any

from common.notes import find_note
from figures.captions import Caption


def why_not_drawn(caption: Caption) -> Mapping[str, Any]:
    """Return the facts of the note with which the caption of an empty figure begins.

    `why` is the code of the reason.
    """
    return find_note(caption.below[:1], "not-drawn").facts
