"""Markers are at time and cost of cells; without a price the figure says why it is empty."""

import pytest

from analysis import cost
from analysis.cell_means import estimate_means
from analysis.records import Records
from common.notes import codes, find_note
from declared.figure_specs import FigureSpec
from figures.kinds import pareto
from support.captions import why_not_drawn
from support.synthetic import campaign, designed_campaign, write_frames

STATED = {"price_per_node_hour": 3.0, "currency": "EUR", "grid_g_co2_per_kwh": 250.0, "node_power_w": 0.36}


def pareto_spec(y: str | None = None) -> FigureSpec:
    return FigureSpec("pareto", "pareto", y=y, target=0.7)


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Records:
    runs, epochs = designed_campaign()
    runs = runs[runs["batch_size"] == runs["batch_size"].min()]
    return Records(*write_frames(tmp_path_factory.mktemp("pareto"), runs.assign(**STATED), epochs))


@pytest.mark.parametrize(("y", "column", "time"), [
    (None, "cost", "epoch_time_s"), ("carbon", "co2_g", "epoch_time_s"),
])  # fmt: skip
def test_markers_stand_at_time_and_cost(records, y, column, time) -> None:
    figure, caption = pareto.draw(records, pareto_spec(y))
    figure.draw_without_rendering()
    lines = [line for ax in figure.axes for line in ax.lines if line.get_marker() not in ("None", "")]
    points = sorted(point for line in lines for point in zip(*line.get_data(), strict=True))
    data = cost.summarize(records.runs, records.epochs)
    unit = {"EUR": 1.0, "g": 1.0, "mg": 1e-3}[figure.axes[0].get_ylabel().split("(")[1].rstrip(")")]
    expected = sorted(zip(data[time], data[column] / unit, strict=True))
    assert points == [pytest.approx(point) for point in expected]
    fronts = [line for ax in figure.axes for line in ax.lines if line.get_drawstyle() == "steps-post"]
    on_fronts = sorted(x for line in fronts for x in line.get_xdata())
    assert on_fronts == pytest.approx(sorted(data.loc[data["front"], time]))
    assert {"pareto-front", "numbers-beside-markers"} <= set(codes(caption.notes))
    assert {text.get_text() for ax in figure.axes for text in ax.texts} == {"1", "2", "3"}
    times = estimate_means(records.runs).cell_statistics.loc[data["cell"]]
    bounds = {
        0: sorted(zip(times["low"], times["high"], strict=True)),
        1: sorted(zip(data[f"{column}_low"] / unit, data[f"{column}_high"] / unit, strict=True)),
    }
    segments = [ends for ax in figure.axes for bars in ax.collections for ends in bars.get_segments()]
    for axis, expected_ends in bounds.items():
        own = sorted(tuple(ends[:, axis]) for ends in segments if ends[0, axis] < ends[1, axis])
        assert own == [pytest.approx(ends) for ends in expected_ends], axis


def test_cost_to_target_is_over_time_to_accuracy(records) -> None:
    figure, caption = pareto.draw(records, pareto_spec("cost_to_target"))
    figure.draw_without_rendering()
    assert figure.axes[0].get_ylabel() == "cost to accuracy (EUR)"
    assert figure._supxlabel.get_text() == "time to accuracy (s)"
    assert find_note(caption.below, "heading").facts == {"response": "cost_to_target"}


def test_without_a_price_it_says_why_it_is_empty(tmp_path) -> None:
    _, caption = pareto.draw(Records(*write_frames(tmp_path, *campaign(failures={}))), pareto_spec())
    assert why_not_drawn(caption)["why"] == "response-not-recorded"


def test_cells_far_apart_have_logarithmic_axes(tmp_path) -> None:
    runs, epochs = campaign(failures={})
    runs.loc[runs["batch_size"] == 16, "epoch_time_s"] *= 1000
    figure, caption = pareto.draw(
        Records(*write_frames(tmp_path, runs.assign(**STATED), epochs)), pareto_spec()
    )
    figure.draw_without_rendering()
    assert "logarithmic-axes" in codes(caption.notes)
