"""Throughput is that of the table of cells, and the ideal grows in proportion to the scale."""

import pytest

from analysis import cells
from analysis.measured import Records
from declared.figures import Declared
from figures import panels, throughput
from support.captions import why_not_drawn
from support.synthetic import designed_campaign, write_frames

DECLARATION = Declared("throughput", "throughput", filter={"model": ["small-cnn-600"], "batch_size": [64]})
COLUMNS = [f"throughput_samples_s_{part}" for part in ("mean", "low", "high")]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return Records(*write_frames(tmp_path_factory.mktemp("throughput"), *designed_campaign()))


def test_bars_are_intervals_of_the_table_of_cells(records):
    figure, caption = throughput.draw(records, DECLARATION)
    (ax,) = figure.axes
    table = cells.summarize(records.runs)
    rows = table[(table["model"] == "small-cnn-600") & (table["batch_size"] == 64)]
    bars = sorted(tuple(line.get_ydata()) for line in ax.lines if isinstance(line, panels.Bar))
    assert bars == [
        pytest.approx(tuple(row)) for row in sorted(rows[COLUMNS[1:]].itertuples(index=False, name=None))
    ]
    markers = [line for line in ax.lines if line.get_linestyle() == "None" and line.get_marker() != "_"]
    assert sorted(y for line in markers for y in line.get_ydata()) == pytest.approx(sorted(rows[COLUMNS[0]]))
    assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] >= rows[COLUMNS[0]].max()
    assert caption.startswith("Throughput by nodes.") and throughput.HOW_TO_READ in caption.notes_elsewhere


def test_ideal_is_proportional_from_the_smallest_scale(records):
    figure, _ = throughput.draw(records, DECLARATION)
    (ax,) = figure.axes
    ideals = [line for line in ax.lines if len(line.get_xdata()) == 50]
    table = cells.summarize(records.runs)
    rows = table[(table["model"] == "small-cnn-600") & (table["batch_size"] == 64) & (table["nodes"] == 1)]
    assert sorted(line.get_ydata()[0] for line in ideals) == pytest.approx(sorted(rows[COLUMNS[0]]))
    for line in ideals:
        assert line.get_ydata()[-1] == pytest.approx(3 * line.get_ydata()[0]), "on three nodes"
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "ideal"


def test_without_a_scale_it_is_not_drawn(records):
    one_scale = Declared("throughput", "throughput", filter={"nodes": [2]})
    _, caption = throughput.draw(records, one_scale)
    assert why_not_drawn(caption) == {"why": "one-level", "factor": "nodes"}
