"""Record a session in a terminal, and draw it as an animated SVG for README and documentation.

The recording is an asciicast (https://docs.asciinema.org/manual/asciicast/v2/): `asciinema play FILE` plays
it. All output is that of the real commands; only the path of the checkout and the name of the machine are
replaced.
"""

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NamedTuple

from common.files import CHECKOUT, display_path, node_name, write_text
from common.options import run_program

CAST, PICTURE = (CHECKOUT / "docs" / "images" / f"session.{suffix}" for suffix in ("cast", "svg"))
COLUMNS, ROWS = 100, 30
KEY_S, READING_S = 0.04, 3.0  # seconds between typed characters, and after a command has ended
MAX_IDLE_S = 2.5  # longer waits are shortened in the picture
MERGE_S = 0.15  # output within this time appears at once
END_S = 6.0  # seconds that the last screen stays
CHARACTER_PX, LINE_PX, MARGIN_PX = 8.4, 18, 12
COLOURS = {
    "31": "#ff7b72",
    "32": "#7ee787",
    "33": "#e3b341",
    "34": "#79c0ff",
    "35": "#d2a8ff",
    "36": "#76e3ea",
}
TEXT, BACKGROUND = "#e6edf3", "#0d1117"
CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


class Step(NamedTuple):
    """A command, and pairs of a question in its output and the answer to type."""

    command: str
    answers: Sequence[tuple[str, str]] = ()


STEPS = (
    Step(
        "./ringside new my-study --site local-shared",
        [
            ("Numbers of nodes", "2"),
            ("Frameworks", "pytorch-ddp horovod-pytorch"),
            ("Model", ""),
            ("Data set", ""),
            ("Replicates", "2"),
        ],
    ),
    Step("./ringside run my-study --site local-shared"),
    Step("./ringside status my-study --site local-shared"),
    Step("./ringside report my-study --site local-shared"),
)


@dataclass
class Recorder:
    """A recording: events of output, with seconds since its start."""

    start: float = field(default_factory=time.monotonic)
    events: list[tuple[float, str]] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Add output that appears now."""
        for real, public in ((str(CHECKOUT), "~/ringside"), (str(Path.home()), "~"), (node_name(), "laptop")):
            text = re.sub(rf"(?<![\w-]){re.escape(real)}(?![\w-])", public, text)
        self.events.append((round(time.monotonic() - self.start, 3), text))

    def run(self, step: Step) -> None:
        """Type a command, run it in a terminal of its own, and answer its questions."""
        self.add("\x1b[32m$\x1b[0m ")
        for character in step.command:
            time.sleep(KEY_S)
            self.add(character)
        self.add("\r\n")
        process, terminal = pty.fork()
        if not process:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.execvp("bash", ["bash", "-c", step.command])  # noqa: S606
        answers, unanswered = list(step.answers), ""
        with open(terminal, "r+b", buffering=0) as screen:
            while chunk := _read(screen.fileno()):
                self.add(chunk)
                unanswered += chunk
                if answers and answers[0][0] in unanswered and unanswered.rstrip().endswith(":"):
                    time.sleep(READING_S / 4)
                    for character in f"{answers.pop(0)[1]}\r":
                        time.sleep(KEY_S)
                        os.write(terminal, character.encode())
                    unanswered = ""
        _, status = os.waitpid(process, 0)
        if status:
            raise SystemExit(f"{step.command} ended with status {os.waitstatus_to_exitcode(status)}")
        time.sleep(READING_S)


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 1 << 16).decode(errors="replace")
    except OSError:  # Linux reports the end of a terminal as an error
        return ""


def record(file: Path, steps: Sequence[Step] = STEPS) -> None:
    """Run the steps, and write their recording."""
    recorder = Recorder()
    for step in steps:
        recorder.run(step)
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "idle_time_limit": MAX_IDLE_S}
    lines = [json.dumps(header), *(json.dumps([at, "o", text]) for at, text in recorder.events)]
    write_text(file, "\n".join(lines) + "\n")


class Piece(NamedTuple):
    """Text that appears at once on a line; `at` is in seconds of the picture, `left` in characters."""

    line: int
    left: int
    at: float
    colour: str
    text: str


def read_pieces(cast: str) -> list[Piece]:
    """Return the pieces of text of a recording as a terminal shows them, with wrapped lines and colours."""
    events = [json.loads(line) for line in cast.splitlines()[1:]]
    pieces: list[Piece] = []
    line, left, now, shown_at, colour = 0, 0, 0.0, 0.0, TEXT
    before = events[0][0]
    for at, _, text in events:
        now += min(at - before, MAX_IDLE_S)
        before = at
        shown_at = now if now - shown_at > MERGE_S else shown_at
        for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r?\n|\r)", text):
            if control := CONTROL.fullmatch(part):
                codes = control[1].split(";") if control[2] == "m" else []
                colour = next((COLOURS[code] for code in codes if code in COLOURS), TEXT if codes else colour)
            elif part.endswith("\n"):
                line, left = line + 1, 0
            elif part != "\r":
                for run in _wrapped(part, left):
                    if left + len(run) > COLUMNS:
                        line, left = line + 1, 0
                    last = pieces[-1] if pieces else None
                    if last and last[:4] == (line, left - len(last.text), shown_at, colour):
                        pieces[-1] = last._replace(text=last.text + run)
                    else:
                        pieces.append(Piece(line, left, shown_at, colour, run))
                    left += len(run)
    return [piece for piece in pieces if piece.text.strip()]


def _wrapped(text: str, left: int) -> Iterator[str]:
    """Yield the parts of a text that starts at column `left`, cut at the edge of the terminal."""
    first = COLUMNS - left
    yield from filter(
        None, [text[:first], *(text[i : i + COLUMNS] for i in range(first, len(text), COLUMNS))]
    )


def draw(cast: str) -> str:
    """Return an animated SVG of a recording; with reduced motion it shows the last screen."""
    pieces = read_pieces(cast)
    length = pieces[-1].at + END_S
    times = sorted({piece.at for piece in pieces})
    names = {at: f"t{number}" for number, at in enumerate(times)}
    appearances = [
        f"@keyframes {name}{{0%{{opacity:0}}{_percent(at, length)}{{opacity:1}}}}"
        for at, name in names.items()
    ]
    scrolls, top = ["0%{transform:translateY(0)}"], 0
    for at in times:
        last = max(piece.line for piece in pieces if piece.at <= at)
        if last - ROWS + 1 > top:
            top = last - ROWS + 1
            scrolls.append(f"{_percent(at, length)}{{transform:translateY({-top * LINE_PX}px)}}")
    texts = [
        f'<text x="{piece.left * CHARACTER_PX:.1f}" y="{piece.line * LINE_PX + 14}" '
        f'class="{names[piece.at]}" '
        f'fill="{piece.colour}" textLength="{len(piece.text) * CHARACTER_PX:.1f}">{escape(piece.text)}</text>'
        for piece in pieces
    ]
    width, height = COLUMNS * CHARACTER_PX + 2 * MARGIN_PX, ROWS * LINE_PX + 2 * MARGIN_PX
    moving = "".join(f".{name}{{animation-name:{name}}}" for name in names.values())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" role="img" aria-label="A recorded terminal session"><style>'
        "text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
        f"g{{transform:translateY({-top * LINE_PX}px)}}@media(prefers-reduced-motion:no-preference){{"
        f"g,text{{animation:{length:.1f}s step-end infinite}}g{{animation-name:scroll}}{moving}}}"
        f"@keyframes scroll{{{''.join(scrolls)}}}{''.join(appearances)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/><svg x="{MARGIN_PX}" y="{MARGIN_PX}" '
        f'width="{width - 2 * MARGIN_PX:.0f}" height="{ROWS * LINE_PX}">\n<g>\n'
        + "\n".join(texts)
        + "\n</g></svg></svg>\n"
    )


def _percent(at: float, length: float) -> str:
    return f"{100 * at / length:.2f}%"


def main(*, draw_only: bool = False) -> None:
    """Record a session with a new study, my-study, and draw it.

    Args:
        draw_only: draw the recording that is there
    """
    if not draw_only:
        record(CAST)
    write_text(PICTURE, draw(CAST.read_text(encoding="utf-8")))
    print(f"{display_path(PICTURE)}: {PICTURE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    sys.exit(run_program(main))
