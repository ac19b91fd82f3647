"""Figures of strategies and of searches."""

import itertools
import re

import pytest

from models.named import graph
from models.soap import divide
from strategies import draw, find
from strategies.question import START_TITLES


def test_layers_with_same_partition_share_a_row():
    model_graph = graph("lenet-5", (28, 28, 1), 10)
    space = divide(model_graph, 8)
    data = {layer.name: {"degrees": (4, 1, 1, 1), "devices": (0, 1, 2, 3)} for layer in space.layers}
    dense = next(layer.name for layer in space.layers if layer.divides == 1)
    mixed = {**data, dense: {"degrees": (1, 2, 1, 1), "devices": (0, 1)}}
    figure, caption = draw.bars(model_graph, space, {"data": data, "mixed": mixed}, 4)
    plain, second = figure.axes[:2]
    assert [patch.get_width() for patch in plain.patches] == [pytest.approx(1 / 4)] * 4, "one row"
    assert [patch.get_width() for patch in second.patches] == [
        pytest.approx(width) for width in [0.25] * 4 + [0.5] * 2 + [0.25] * 4
    ]
    assert len({patch.get_facecolor() for patch in plain.patches}) == 4
    assert any(text.get_text() == f"{dense}: U2" for text in second.texts)
    assert re.search(r"\b4\b", caption) and "lenet-5" in caption


def test_searches_are_lines_over_proposals():
    answers = [
        {"method": "metropolis", "start": "data", "progress": [(1, 0.2), (10, 0.1), (300, 0.1)]},
        {"method": "metropolis", "start": "random", "progress": [(1, None), (10, 0.3), (300, 0.05)]},
        {"method": None, "start": "data"},
    ]
    names = {"metropolis": "M", "data": "d", "random": "r"}
    figure, _ = draw.progress(answers, names)
    (ax,) = figure.axes
    assert [list(line.get_xdata()) for line in ax.lines] == [[1, 10, 300]] * 2
    assert ax.lines[0].get_ydata()[0] == pytest.approx(200)


def test_every_search_has_a_line_of_its_own():
    answers = [
        {"method": method, "start": start, "progress": [(1, 0.2), (10, 0.1)]}
        for method, start in itertools.product(find.METHODS, START_TITLES)
    ]
    figure, _ = draw.progress(answers, find.METHODS | START_TITLES)
    (ax,) = figure.axes
    line_styles = {(line.get_color(), line.get_linestyle()) for line in ax.lines}
    assert len(ax.lines) == len(line_styles) == len(answers) == 10
