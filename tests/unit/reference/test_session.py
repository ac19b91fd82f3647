"""The recorded session: the output of a terminal with its times, drawn line by line."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from common.files import CHECKOUT, node_name
from reference import session
from reference.session import CAST, COLUMNS, PICTURE, Piece, Step, draw, read_pieces, record

MAX_BYTES = 300_000


def write_cast(*events: tuple[float, str]) -> str:
    return "\n".join(["{}", *(json.dumps([at, "o", text]) for at, text in events)])


def shown_lines(cast: str) -> list[str]:
    """The lines of a session as they stand at its end."""
    lines: dict[int, str] = {}
    for piece in read_pieces(cast):
        lines[piece.line] = lines.get(piece.line, "").ljust(piece.left) + piece.text
    return [lines.get(number, "") for number in range(max(lines) + 1)]


def test_commands_are_typed_run_and_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("KEY_S", "READING_S"):
        monkeypatch.setattr(session, pause, 0.001)
    question = Step(
        f"read -t 9 -p 'Colour: ' x; echo $x in {CHECKOUT} on {node_name()}; stty size", [("Colour", "blue")]
    )
    record(tmp_path / "x.cast", [question])
    text = (tmp_path / "x.cast").read_text()
    assert shown_lines(text)[-3:] == [
        "Colour: blue",
        "blue in ~/ringside on laptop",
        f"{session.ROWS} {COLUMNS}",
    ]
    header, *events = map(json.loads, text.splitlines())
    assert header["version"] == 2 and [event[0] for event in events] == sorted(event[0] for event in events)
    with pytest.raises(SystemExit):
        record(tmp_path / "x.cast", [Step("exit 3")])
    assert (tmp_path / "x.cast").read_text() == text


def test_pieces_have_their_place_time_and_colour() -> None:
    cast = write_cast((1.0, "a\x1b[31mred\x1b[0m"), (1.05, "b\r\n"), (100.0, "x" * (COLUMNS + 2)))
    cut = session.MAX_IDLE_S
    assert [piece._replace(at=round(piece.at, 6)) for piece in read_pieces(cast)] == [
        Piece(0, 0, 0.0, session.TEXT, "a"),
        Piece(0, 1, 0.0, session.COLOURS["31"], "red"),
        Piece(0, 4, 0.0, session.TEXT, "b"),
        Piece(1, 0, 0.05 + cut, session.TEXT, "x" * COLUMNS),
        Piece(2, 0, 0.05 + cut, session.TEXT, "xx"),
    ]


def test_picture_scrolls_so_that_the_last_line_is_seen() -> None:
    svg = draw(write_cast(*((float(number), f"line {number} <&>\n") for number in range(session.ROWS + 5))))
    elements = ElementTree.fromstring(svg).iter()  # noqa: S314 (our own)
    texts = [element.text for element in elements if element.tag.endswith("text")]
    assert texts[-1] == f"line {session.ROWS + 4} <&>"
    tops = [int(top) for top in re.findall(r"translateY\(-(\d+)px\)", svg)]
    assert max(tops) == 5 * session.LINE_PX and tops[0] == max(tops), "without motion the end is shown"


def test_kept_picture_is_that_of_the_kept_recording() -> None:
    cast = CAST.read_text()
    assert PICTURE.read_text() == draw(cast) and PICTURE.stat().st_size < MAX_BYTES
    text = "".join(json.loads(line)[2] for line in cast.splitlines()[1:])
    assert [step.command for step in session.STEPS] == re.findall(r"\$\x1b\[0m (.*)\r", text)
    assert not re.search(r"(?<![\w~])/(root|home|var|tmp|work)/", text), "a path of the recording machine"
