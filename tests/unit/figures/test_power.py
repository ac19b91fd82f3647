"""Power over time has a run of each cell and a line per machine and scope, or says why it is empty."""

import numpy as np
import pytest

from analysis.records import Records, cell_levels
from common.notes import codes, find_note
from common.tables import write_table
from declared.figure_specs import FigureSpec
from figures.kinds import power
from support.captions import why_not_drawn
from support.synthetic import IDLE_W, WATTS, designed_campaign, metered, power_over_time, write_frames

SPEC = FigureSpec("power", "power", filter={"batch_size": [64], "model": ["small-cnn"]})


def records(folder, runs, epochs, rows):
    write_table(rows, "power", folder / "power.csv")
    return Records(*write_frames(folder, runs, epochs), {"power": folder / "power.csv"})


@pytest.fixture(scope="module")
def metered_records(tmp_path_factory):
    runs, epochs = metered(*designed_campaign(), scope="node")
    return records(tmp_path_factory.mktemp("power"), runs, epochs, power_over_time(runs, epochs))


def test_a_panel_has_the_run_with_the_median_epoch_time(metered_records):
    figure, caption = power.draw(metered_records, SPEC)
    figure.draw_without_rendering()
    runs = metered_records.runs
    drawn_runs = runs[(runs["batch_size"] == 64) & (runs["model"] == "small-cnn")]
    assert len(figure.axes) == drawn_runs["cell"].nunique() == 9
    in_order = [(cell, drawn_runs[drawn_runs["cell"] == cell]) for cell in cell_levels(drawn_runs)["cell"]]
    for ax, (cell, cell_runs) in zip(figure.axes, in_order, strict=True):
        median = cell_runs.loc[
            cell_runs["epoch_time_s"] == cell_runs["epoch_time_s"].median(), "run_id"
        ].item()
        rows = metered_records.table("power")[metered_records.table("power")["run_id"] == median]
        lines = [line for line in ax.lines if line.get_linestyle() != ":"]
        assert sorted(np.concatenate([line.get_ydata() for line in lines])) == pytest.approx(
            sorted(rows["watt"])
        ), cell
        assert len(lines) == cell_runs["nodes"].iloc[0], "a line for every machine"
        (idle,) = [line for line in ax.lines if line.get_linestyle() == ":"]
        assert set(idle.get_ydata()) == {IDLE_W}
        assert len(ax.patches) == (metered_records.epochs["run_id"] == median).sum(), "its epochs"
        bottom, top = ax.get_ylim()
        assert bottom == 0 and top > WATTS
    assert find_note(caption.below, "heading").facts == {"scopes": ["node"]}
    assert "idle-power-drawn" in codes(caption.notes) and "series" not in codes(caption.notes)


@pytest.mark.parametrize("emulated", [False, True])
def test_heterogeneous_machine_idles_with_all_accelerators(emulated, tmp_path):
    """Two accelerators per node, and a rank on its CPUs."""
    runs, epochs = metered(*designed_campaign(), scope="device")
    rows = power_over_time(runs, epochs)
    runs = runs.assign(device="hybrid", replicas=3 * runs["nodes"])
    if emulated:
        rows = rows[rows["host"] == "node1"]
    figure, _ = power.draw(records(tmp_path, runs, epochs, rows), SPEC)
    drawn_runs = runs[(runs["batch_size"] == 64) & (runs["model"] == "small-cnn")]
    nodes = cell_levels(drawn_runs)["nodes"].tolist() if emulated else [1] * len(figure.axes)
    idle = [line.get_ydata()[0] for ax in figure.axes for line in ax.lines if line.get_linestyle() == ":"]
    assert idle == [2 * IDLE_W * count for count in nodes]


@pytest.mark.parametrize("case", ["no meter", "no idle power", "many cells"])
def test_it_is_drawn_whatever_there_is(case, tmp_path):
    runs, epochs = metered(*designed_campaign(), scope="package")
    rows = power_over_time(runs[runs["replicate"] == 1], epochs)
    spec = SPEC
    match case:
        case "no meter":
            rows = rows[:0]
        case "no idle power":
            runs = runs.assign(idle_package_w=None)
        case "many cells":
            spec = FigureSpec("power", "power")
    case_records = records(tmp_path, runs, epochs, rows)
    figure, caption = power.draw(case_records, spec)
    figure.draw_without_rendering()
    if case == "no meter":
        assert why_not_drawn(caption)["why"] == "no-meter"
    if case == "no idle power":
        assert "heading" in codes(caption.notes) and "idle-power-drawn" not in codes(caption.notes)
    if case == "many cells":
        assert len(figure.axes) == power.MAX_PANELS
        left_out = case_records.runs["cell"].nunique() - power.MAX_PANELS
        assert find_note(caption.notes, "cells-left-out").facts["cells"] == left_out > 1
    assert "nan" not in caption
