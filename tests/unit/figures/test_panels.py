"""Parts that all figures share: captions of at most 45 words, and axes that cut no marker."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.lines import Line2D

from analysis.intervals import Estimate
from common.notes import Note, codes
from figures import captions, legends, marks, panels, style, value_axis
from support.captions import why_not_drawn

HEADING = "Epoch time of every cell. Markers: means."
LONG = f"Without a line: {' '.join(['pytorch-ddp'] * 30)}."
SHORT = "The axis of time is logarithmic."


def test_what_does_not_fit_below_a_figure_is_said_apart():
    setting = f"Placement: {' '.join(['distinct'] * 20)}. No cell is missing."
    below, apart = captions.split_caption(
        [HEADING, LONG, SHORT, setting], ["Apart."], keep_first=[HEADING, setting]
    ).split("\n\n")
    assert below == f"{HEADING} {SHORT} {setting}"
    assert apart == f"{LONG} Apart."
    assert len(f"{HEADING} {LONG} {setting}".split()) > captions.MAX_CAPTION_WORDS


def test_a_caption_that_fits_stays_as_it_is():
    assert captions.split_caption([HEADING, SHORT, "", SHORT], []) == f"{HEADING} {SHORT}"


def test_a_caption_keeps_its_notes_until_it_is_written():
    first, last = (
        Note("heading", "Power. Each marker is a cell.", cells=3),
        Note("arrows", "Arrows: two.", arrows=2),
    )
    caption = captions.split_caption([first, last, ""], ["Apart."])
    assert caption == "Power. Each marker is a cell. Arrows: two.\n\nApart."
    assert caption.notes == ["Power.", "Each marker is a cell.", "Arrows: two.", "Apart."]
    assert [(note.code, note.facts) for note in caption.below if isinstance(note, Note)] == [
        ("heading", {"cells": 3}),
        ("arrows", {"arrows": 2}),
    ]


def test_a_note_is_added_to_the_paragraph_it_is_meant_for():
    caption = captions.split_caption([HEADING], ["Apart."])
    assert caption.with_note("More.", below=True) == f"{HEADING} More.\n\nApart."
    further = caption.with_note("More.", below=False)
    assert further == f"{HEADING}\n\nApart. More." and further.notes[-1] == "More."


def test_why_a_figure_is_not_drawn_stands_alone():
    why = Note("unmeasured", "nothing was measured", cells=0)
    _, caption = panels.empty_figure(None, why, LONG, LONG.replace("line", "marker"), endnotes=["Apart."])
    below, apart = caption.split("\n\n")
    assert below == f"{captions.NOT_DRAWN}{why}. {LONG}" and len(below.split()) <= captions.MAX_CAPTION_WORDS
    assert why_not_drawn(caption) == {"why": "unmeasured", "cells": 0}
    assert apart.endswith("Apart.")


def scaled(cells: dict[str, list[float]], times: list[float], **options):
    """Return a panel with the intervals of these cells, and the notes on its axis."""
    frame = pd.DataFrame(cells)
    ax = style.new_figure(style.COLUMN_INCHES, style.COLUMN_INCHES).subplots()
    series_style = style.framework_style("pytorch-ddp")
    for place, cell in enumerate(frame.itertuples()):
        runs = pd.Series([cell.low, cell.high] if cell.n > 1 else [cell.high])
        marks.draw_interval(ax, series_style, place, Estimate(cell.high, cell.low, cell.high), runs, 0.2)
    return ax, value_axis.scale_value_axis(ax, pd.Series(times), frame, **options)


@pytest.mark.parametrize("width", [style.COLUMN_INCHES, style.PAGE_INCHES])
@pytest.mark.parametrize("letters", [5, 30, 45])
def test_legend_is_no_wider_than_its_figure(width, letters):
    names = [f"{number} {'m' * letters}" for number in range(5)]
    figure = style.new_figure(width, 2)
    figure.subplots()
    legends.place_legend(figure, [Line2D([], [], label=name.replace("m", "e")) for name in names])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.width <= figure.bbox.width
    height = legends.legend_height(len(names), width, names)
    assert box.height == pytest.approx(height * figure.dpi, rel=0.2)


@pytest.mark.parametrize(("high", "is_cut"), [(1.29, False), (1.31, True)])
def test_axis_grows_by_30_percent_before_it_cuts(high, is_cut):
    cells = {"low": [0.9, 0.8], "high": [1.0, high], "n": [3, 2]}
    ax, notes = scaled(cells, [0.95, 1.0])
    assert ("intervals-beyond-axis" in codes(notes)) == is_cut
    assert (ax.get_ylim()[1] > high) == (not is_cut)


def test_interval_of_one_run_is_dashed_and_noted():
    ax, notes = scaled({"low": [0.9, 0.9], "high": [1.0, 1.0], "n": [1, 2]}, [0.95, 1.0])
    dashed, plain = [line for line in ax.lines if isinstance(line, marks.Bar)]
    assert (dashed.is_dashed(), plain.is_dashed()) == (True, False)
    assert "single-run-cells" in codes(notes)
    assert not codes(scaled({"low": [0.9], "high": [1.0], "n": [2]}, [0.95, 1.0])[1])


@pytest.mark.parametrize("ends", [(0.083, 0.38), (1.1, 9.0), (0.5, 0.62), (3e-4, 7.0)])
def test_logarithmic_axis_is_labelled_over_its_range(ends):
    low, high = ends
    cells = {"low": [low, high], "high": [low, high], "n": [3, 3]}
    ax, _ = scaled(cells, [low, high], logarithmic=True)
    limits = np.log(ax.get_ylim())
    ticks = np.log([tick for tick in ax.yaxis.get_majorticklocs() if limits[0] <= np.log(tick) <= limits[1]])
    assert 3 <= len(ticks) <= value_axis.MAX_TICKS + 1
    gaps = np.diff([limits[0], *ticks, limits[1]]) / np.ptp(limits)
    assert gaps.max() < 0.45 and gaps[0] < 0.25


@pytest.mark.parametrize("axis", ["x", "y"])
def test_markers_at_the_ends_of_a_log_axis_are_whole(axis):
    times = pd.Series([1e-4, 3.0, 1e7])
    figure = style.new_figure(style.COLUMN_INCHES, style.COLUMN_INCHES)
    ax = figure.subplots()
    value_axis.scale_value_axis(ax, times, pd.DataFrame({"low": times, "high": times, "n": 3}), axis)
    low, high = np.log(ax.get_xlim() if axis == "x" else ax.get_ylim())
    places = (np.log(times) - low) / (high - low)
    half = (
        value_axis.AXIS_MARGIN * 0.8
    )  # of the axis: half a marker, where the axis is as wide as a panel of a page
    assert places.min() > half and places.max() < 1 - half
