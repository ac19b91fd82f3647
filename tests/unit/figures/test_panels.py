"""What all figures share: a caption of 45 words, the rest of it apart.

An axis on which every marker is whole.
"""

import copy

import numpy as np
import pandas as pd
import pytest

from common.notes import Note
from figures import panels, style
from support.captions import why_not_drawn

HEADING = "Epoch time of every cell. Markers: means."
LONG = f"Without a line: {' '.join(['pytorch-ddp'] * 30)}."
SHORT = "The axis of time is logarithmic."


def test_what_does_not_fit_below_a_figure_is_said_apart():
    setting = f"Placement: {' '.join(['distinct'] * 20)}. No cell is missing."
    below, apart = panels.split_caption(
        [HEADING, LONG, SHORT, setting], ["Apart."], first=[HEADING, setting]
    ).split("\n\n")
    assert below == f"{HEADING} {SHORT} {setting}"
    assert apart == f"{LONG} Apart."
    assert len(f"{HEADING} {LONG} {setting}".split()) > panels.MAX_CAPTION_WORDS


def test_a_caption_that_fits_stays_as_it_is():
    assert panels.split_caption([HEADING, SHORT, "", SHORT], []) == f"{HEADING} {SHORT}"


def test_a_caption_keeps_its_notes_until_it_is_written():
    first, last = (
        Note("heading", "Power. Each marker is a cell.", cells=3),
        Note("arrows", "Arrows: two.", arrows=2),
    )
    caption = panels.split_caption([first, last, ""], ["Apart."])
    assert caption == "Power. Each marker is a cell. Arrows: two.\n\nApart."
    assert caption.notes == ["Power.", "Each marker is a cell.", "Arrows: two.", "Apart."]
    assert [(note.code, note.facts) for note in caption.below if isinstance(note, Note)] == [
        ("heading", {"cells": 3}),
        ("arrows", {"arrows": 2}),
    ]
    copied = copy.copy(caption)
    assert (copied, copied.below, copied.notes_elsewhere) == (caption, caption.below, caption.notes_elsewhere)


def test_why_a_figure_is_not_drawn_stands_alone():
    why = Note("unmeasured", "nothing was measured", cells=0)
    _, caption = panels.empty_figure(None, why, LONG, LONG.replace("line", "marker"), notes=["Apart."])
    below, apart = caption.split("\n\n")
    assert below == f"{panels.NOT_DRAWN}{why}. {LONG}" and len(below.split()) <= panels.MAX_CAPTION_WORDS
    assert why_not_drawn(caption) == {"why": "unmeasured", "cells": 0}
    assert apart.endswith("Apart.")


@pytest.mark.parametrize("axis", ["x", "y"])
def test_markers_at_both_ends_of_a_long_logarithmic_axis_are_whole(axis):
    times = pd.Series([1e-4, 3.0, 1e7])
    figure = style.new_figure(style.COLUMN_INCHES, style.COLUMN_INCHES)
    ax = figure.subplots()
    panels.scale_value_axis(ax, times, pd.DataFrame({"low": times, "high": times, "n": 3}), axis)
    low, high = np.log(ax.get_xlim() if axis == "x" else ax.get_ylim())
    places = (np.log(times) - low) / (high - low)
    half = (
        panels.AXIS_MARGIN * 0.8
    )  # of the axis: half a marker, where the axis is as wide as a panel of a page
    assert places.min() > half and places.max() < 1 - half
