"""Every kind of figure is fit for print: text of 7 points, nothing cut or overlapping, a short caption."""

import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from analysis.records import Records
from common.notes import codes
from declared.products.figure_kinds import KINDS
from declared.records import RECORD_TABLES
from figures import captions, gallery, style

MIN_POINTS = 7
OVERLAP_POINTS = 1.0  # in each direction: a letter's box is larger than the letter
NOT_KEPT = ["energy", "power"]  # no kept campaign has their data
COMPUTED = [  # from tables that take seconds to compute
    name
    for name, kind in KINDS.items()
    if {table.removesuffix(".md") for table in kind.inputs} - set(RECORD_TABLES)
]
OF_BENCHMARK = ["network"]  # shows no runs


def drawn(kind: str, folder: Path) -> tuple[Figure, captions.Caption]:
    """Return the example of a kind of figure, laid out, and its caption."""
    (example,) = gallery.examples({kind: KINDS[kind]})
    inputs = gallery.input_files(example, folder)
    records = Records(inputs.pop("runs"), inputs.pop("epochs"), inputs)
    figure, caption = importlib.import_module(example.kind.module).draw(records, example.spec)
    for _ in range(style.LAYOUT_PASSES):
        figure.draw_without_rendering()
    return figure, caption


def visible_texts(figure: Figure) -> list[Text]:
    """Return the drawn texts, without tick labels beyond the ends of an axis."""
    beyond = {
        label
        for ax in figure.axes
        for axis in (ax.xaxis, ax.yaxis)
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        if np.clip(tick.get_loc(), *sorted(axis.get_view_interval())) != pytest.approx(tick.get_loc())
        for label in (tick.label1, tick.label2)
    }
    hidden = {
        text
        for ax in figure.axes
        if not ax.axison
        for axis in (ax.xaxis, ax.yaxis)
        for text in axis.findobj(Text)
    }
    return [
        text
        for text in figure.findobj(Text)
        if isinstance(text, Text)
        and text.get_visible()
        and text.get_text().strip()
        and text not in beyond | hidden
    ]


def is_apart(first: Bbox, second: Bbox, tolerance: float) -> bool:
    """Return whether two boxes overlap by no more than `tolerance` in one direction."""
    shared = Bbox.intersection(first, second)
    return shared is None or min(shared.width, shared.height) <= tolerance


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.thorough] * (kind in COMPUTED))
        for kind in KINDS
        if kind not in NOT_KEPT
    ],
)
def test_figure_can_be_printed(kind: str, tmp_path: Path) -> None:
    figure, caption = drawn(kind, tmp_path)
    texts = visible_texts(figure)
    assert len(texts) > 5
    assert {text.get_text(): text.get_fontsize() for text in texts if text.get_fontsize() < MIN_POINTS} == {}
    pixels = figure.dpi / 72
    page = figure.bbox.padded(OVERLAP_POINTS * pixels)
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_rotation() % 90 == 0]
    assert [name for name, box in boxes if not (page.contains(*box.min) and page.contains(*box.max))] == []
    overlapping = [
        (name, other_name)
        for (name, box), (other_name, other_box) in itertools.combinations(boxes, 2)
        if not is_apart(box, other_box, OVERLAP_POINTS * pixels)
    ]
    assert overlapping == []
    words = sum(len(note.split()) for note in caption.below)
    assert words <= captions.MAX_CAPTION_WORDS == 45
    if kind not in OF_BENCHMARK:
        assert {"setting", "scopes"} & set(codes(caption.below)), caption.below
