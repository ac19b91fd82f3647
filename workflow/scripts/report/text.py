"""Prepare text for a page or paper: references for names, no control sequences, limited length of logs."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.notes import Note
from common.redaction import redact_log
from common.text import format_bytes, number_of

TAIL_BYTES = 1 << 18  # read from the end of a log
TAIL_LINES = 200
MAX_LINE_CHARACTERS = 500
# Terminal sequences: colours and cursor (CSI), titles and links (OSC), other strings, two-character
# sequences. No part of the pattern looks beyond the next ESC, so no text makes it slow.
_TERMINAL_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b\\][^\x07\x1b\n"
    "]*(?:\x07|\x1b\\\\)?|\x1b[PX^_][^\x1b\n"
    "]*(?:\x1b\\\\)?|\x1b[ -/]*[0-~]?"
)
# Controls that HTML forbids, surrogates, and marks that change text direction.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_NAMED = re.compile(r"(?:\b[Tt]he )?\b(?P<kind>[Tt]able|[Ff]igure) `(?P<name>[^`\s]+)`")
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Tail:
    """The end of a log, and a note on how much of the log it is."""

    text: str
    extent: Note


def replace_names(text: str, reference: Callable[[str, str], str | None]) -> str:
    """Return text in which references replace names of products, such as "the table `cells`".

    Args:
        text: The text.
        reference: Returns the reference to a table or figure with this name; None to keep its name.
    """
    return _NAMED.sub(lambda named: reference(named["kind"].lower(), named["name"]) or named[0], text)


def clean(text: str) -> str:
    """Return `text` without terminal sequences; other controls except newline and tab become U+FFFD."""
    return _CONTROL.sub(REPLACEMENT, _TERMINAL_SEQUENCE.sub("", text))


def tail(log: Path, characters: int) -> Tail | None:
    """Return the last TAIL_LINES lines of a log, cleaned and without passwords; None without a log.

    Lines are cut to MAX_LINE_CHARACTERS, and all lines together to `characters`.
    """
    if not log.is_file():
        return None
    try:
        length = log.stat().st_size
        with open(log, "rb") as file:
            file.seek(max(0, length - TAIL_BYTES))
            raw = file.read(TAIL_BYTES)
    except OSError as error:
        return Tail("", Note("unreadable-log", f"cannot be read: {error.strerror}"))
    rows = redact_log(raw.decode("utf-8", errors="replace")).split("\n")
    if rows[-1] == "":
        del rows[-1]
    is_complete = length <= TAIL_BYTES
    if not is_complete and len(rows) > 1:
        del rows[0]  # it is incomplete
    # Of a line that carriage returns overwrote, keep the last text.
    rows_shown = [row.rstrip("\r").rpartition("\r")[2] for row in rows[-TAIL_LINES:]]
    lines = [_cut(line) for line in clean("\n".join(rows_shown)).split("\n")] if rows_shown else []
    cumulative = itertools.accumulate(map(len, reversed(lines)))
    kept_lines = lines[len(lines) - max(1, sum(used <= characters for used in cumulative)) :] if lines else []
    if is_complete and len(kept_lines) == len(rows):
        return Tail(
            "\n".join(kept_lines),
            Note("whole-log", "all of it") if kept_lines else Note("empty-log", "is empty"),
        )
    extent = Note(
        "last-lines",
        f"its last {number_of(len(kept_lines), 'line')}, of {format_bytes(length)}",
        lines=len(kept_lines),
        bytes=length,
    )
    return Tail("\n".join(kept_lines), extent)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else f"{line[:MAX_LINE_CHARACTERS]} …"
