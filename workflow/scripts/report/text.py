"""Text that others wrote (logs, reasons, titles) made fit for a page: nothing that steers a terminal, and not more than it bears."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from common.notes import Note
from common.redaction import redact_log
from common.text import number_of, size

TAIL_BYTES = 1 << 18  # of a log's end that are read, however long the log is
TAIL_LINES = 200
LONGEST_LINE = 500
# What terminals obey: colours and cursor (CSI), titles and links (OSC), strings of other kinds, two-character sequences. No part
# of these looks beyond the next ESC, so that no text makes them slow.
_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b\\][^\x07\x1b\n]*(?:\x07|\x1b\\\\)?|\x1b[PX^_][^\x1b\n]*(?:\x1b\\\\)?|\x1b[ -/]*[0-~]?"
)
# Controls that HTML does not have, halves of characters, and marks that turn the direction of what follows.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
UNSHOWN = "\ufffd"


@dataclass(frozen=True)
class Tail:
    """The end of a log, and how much of it that is."""

    text: str
    extent: Note


def clean(text: str) -> str:
    """`text` without what terminals obey; other controls but newline and tab become U+FFFD."""
    return _CONTROL.sub(UNSHOWN, _SEQUENCE.sub("", text))


def tail(log: Path, characters: int) -> Tail | None:
    """The last TAIL_LINES lines of a log, cleaned, without passwords, cut to LONGEST_LINE each and to `characters` together; None without a log."""
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
    whole = length <= TAIL_BYTES
    if not whole and len(rows) > 1:
        del rows[0]  # which begins in its middle
    # Of a line that was written over, what stood there last.
    last = [row.rstrip("\r").rpartition("\r")[2] for row in rows[-TAIL_LINES:]]
    lines = [_cut(line) for line in clean("\n".join(last)).split("\n")] if last else []
    room = itertools.accumulate(map(len, reversed(lines)))
    kept = lines[len(lines) - max(1, sum(used <= characters for used in room)) :] if lines else []
    if whole and len(kept) == len(rows):
        return Tail("\n".join(kept), Note("whole-log", "all of it") if kept else Note("empty-log", "is empty"))
    extent = Note(
        "last-lines", f"its last {number_of(len(kept), 'line')}, of {size(length)}", lines=len(kept), bytes=length
    )
    return Tail("\n".join(kept), extent)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} …"
