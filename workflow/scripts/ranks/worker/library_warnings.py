"""Collect the Python warnings that libraries emit while a rank trains, such as one about a slow layout."""

import warnings
from typing import TextIO

MAX_WARNINGS = 20  # limit for a rank; later ones are in its log only
MAX_CHARACTERS = 200  # length of a warning


class LibraryWarnings:
    """Python warnings since the object was created, each once, as `Category: first line`.

    They still go to the rank's log. Filters of Python and of libraries apply, so that deprecations, for
    example, are not collected.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._show = warnings.showwarning
        warnings.showwarning = self._collect

    def _collect(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        self._show(message, category, filename, lineno, file, line)
        first_line = next(iter(str(message).strip().splitlines()), "")
        text = f"{category.__name__}: {first_line}"[:MAX_CHARACTERS].strip()
        if text not in self.messages and len(self.messages) < MAX_WARNINGS:
            self.messages.append(text)
