"""Markers are at the measured times, and cells that never reach the target say so."""

import pytest

from analysis import time_to_accuracy
from analysis.records import Records
from common.errors import InputError
from common.notes import find_note
from declared.figure_specs import FigureSpec, read_figures
from declared.products.traits import Traits
from declared.study import load_study
from figures import captions, marks
from figures.kinds import time_to_accuracy as time_figure
from support.captions import why_not_drawn
from support.figure_specs import figure_specs
from support.synthetic import designed_campaign, write_frames

SPEC = FigureSpec("time_to_accuracy", "time_to_accuracy", target=0.6)
CELLS = [{"batch_size": 16, "trace": "none"}, {"batch_size": 64, "trace": "none"}]


@pytest.fixture
def records(tmp_path):
    """All runs reach 0.6 after the third epoch, except two of the first cell."""
    runs, epochs = designed_campaign()
    epochs["validation_accuracy"] = [0.2 * epoch for epoch in epochs["epoch"]]
    late = runs.loc[runs["cell"] == runs["cell"].iloc[0], "run_id"].iloc[:2]
    epochs.loc[epochs["run_id"].isin(late), "validation_accuracy"] = 0.5
    return Records(*write_frames(tmp_path, runs, epochs))


def lines(figure, marker):
    return [line for ax in figure.axes for line in ax.lines if line.get_marker() == marker]


def test_means_are_the_tables_and_an_arrow_is_a_cell_without(records):
    figure, caption = time_figure.draw(records, SPEC)
    figure.draw_without_rendering()
    data = time_to_accuracy.summarize(records.runs, records.epochs, 0.6)
    bars = [line for ax in figure.axes for line in ax.lines if isinstance(line, marks.Bar)]
    complete = data[data["reached"] == data["n"]]
    ends = sorted(tuple(line.get_xdata()) for line in bars)
    expected = zip(complete["time_to_accuracy_s_low"], complete["time_to_accuracy_s_high"], strict=True)
    assert ends == [pytest.approx(row) for row in sorted(expected)]
    assert len(complete) == len(data) - 1
    (arrow,) = lines(figure, ">")
    assert list(arrow.get_xdata()) == [1] and arrow.get_markerfacecolor() == "white"
    assert "2 of 5 never" in {text.get_text() for ax in figure.axes for text in ax.texts}
    ticks = [value for line in lines(figure, "|") for value in line.get_xdata()]
    reached = time_to_accuracy.accuracy_of_runs(records.runs, records.epochs, 0.6)[
        "time_to_accuracy_s"
    ].dropna()
    assert sorted(ticks) == pytest.approx(sorted(reached))
    assert find_note(caption.below, "heading").facts == {"target": 0.6}
    never = find_note(caption.below, "cells-not-reaching")
    assert never.facts == {"cells": 1}


def test_a_target_that_no_run_reaches_is_a_reason(records):
    _, caption = time_figure.draw(records, FigureSpec("time_to_accuracy", "time_to_accuracy", target=0.9))
    assert why_not_drawn(caption) == {"why": "target-not-reached", "target": 0.9, "best": pytest.approx(0.6)}
    assert caption.startswith(captions.NOT_DRAWN), "as a report leaves it out"


def test_the_target_is_the_figures_own_or_the_studys(tmp_path):
    file, plain = tmp_path / "a.yaml", {"kind": "time_to_accuracy"}
    (own,) = read_figures([plain | {"target": 0.8}], CELLS, file, Traits((), target_accuracy=0.9))
    (of_study,) = read_figures([plain], CELLS, file, Traits((), target_accuracy=0.9))
    assert (own.target, of_study.target) == (0.8, 0.9)
    for entry, word in ((plain, "target_accuracy"), ({"kind": "overview", "target": 0.8}, "overview")):
        with pytest.raises(InputError) as refused:
            read_figures([entry], CELLS, file, Traits(()))
        assert "figures.0.target" in str(refused.value) and word in str(refused.value)


def test_only_studies_with_a_target_have_the_figure(tmp_path):
    text = (load_study("quickstart").file).read_text()
    (tmp_path / "aimed.yaml").write_text(text + "\ntarget_accuracy: 0.9\n")
    aimed = {figure.name: figure for figure in figure_specs(load_study("aimed", tmp_path))}
    assert aimed["time_to_accuracy"].target == 0.9
    assert "time_to_accuracy" not in {figure.name for figure in figure_specs(load_study("quickstart"))}
