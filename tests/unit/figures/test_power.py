"""Power over time: one run of each cell, a line for every machine and scope, or one sentence says why there is none."""

import numpy as np
import pytest

from analysis.measured import Records, cells
from common.notes import codes, find_note
from common.tables import write_table
from declared.figures import Declared
from figures import panels, power
from support.captions import why_not_drawn
from support.synthetic import IDLE_W, WATTS, designed_campaign, metered, power_over_time, write_frames

ASKED = Declared("power", "power", filter={"batch_size": [64], "model": ["small-cnn"]})


def records(folder, runs, epochs, rows):
    write_table(rows, "power", folder / "power.csv")
    return Records(*write_frames(folder, runs, epochs), {"power": folder / "power.csv"})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    runs, epochs = metered(*designed_campaign(), scope="node")
    return records(tmp_path_factory.mktemp("power"), runs, epochs, power_over_time(runs, epochs))


def test_a_panel_has_the_run_with_the_median_epoch_time(made):
    drawn, caption = power.draw(made, ASKED)
    drawn.draw_without_rendering()
    runs = made.runs
    shown = runs[(runs["batch_size"] == 64) & (runs["model"] == "small-cnn")]
    assert len(drawn.axes) == shown["cell"].nunique() == 9
    in_order = [(cell, shown[shown["cell"] == cell]) for cell in cells(shown)["cell"]]
    for ax, (cell, of) in zip(drawn.axes, in_order, strict=True):
        median = of.loc[of["epoch_time_s"] == of["epoch_time_s"].median(), "run_id"].item()
        rows = made.table("power")[made.table("power")["run_id"] == median]
        lines = [line for line in ax.lines if line.get_linestyle() != ":"]
        assert sorted(np.concatenate([line.get_ydata() for line in lines])) == pytest.approx(sorted(rows["watt"])), cell
        assert len(lines) == of["nodes"].iloc[0], "a line for every machine"
        (idle,) = [line for line in ax.lines if line.get_linestyle() == ":"]
        assert set(idle.get_ydata()) == {IDLE_W}
        assert len(ax.patches) == (made.epochs["run_id"] == median).sum(), "its epochs"
        least, most = ax.get_ylim()
        assert least == 0 and most > WATTS
    assert find_note(caption.below, "heading").facts == {"scopes": ["node"]}
    assert "idle-power-drawn" in codes(caption.notes) and "series" not in codes(caption.notes)


@pytest.mark.parametrize("emulated", [False, True])
def test_of_unlike_ranks_a_machine_idles_with_all_accelerators(emulated, tmp_path):
    """Two accelerators a node, and a rank on its processors."""
    runs, epochs = metered(*designed_campaign(), scope="device")
    rows = power_over_time(runs, epochs)
    runs = runs.assign(device="hybrid", replicas=3 * runs["nodes"])
    if emulated:
        rows = rows[rows["host"] == "node1"]
    drawn, _ = power.draw(records(tmp_path, runs, epochs, rows), ASKED)
    shown = runs[(runs["batch_size"] == 64) & (runs["model"] == "small-cnn")]
    nodes = cells(shown)["nodes"].tolist() if emulated else [1] * len(drawn.axes)
    idle = [line.get_ydata()[0] for ax in drawn.axes for line in ax.lines if line.get_linestyle() == ":"]
    assert idle == [2 * IDLE_W * count for count in nodes]


@pytest.mark.parametrize("case", ["no meter", "no file", "no successful run", "no idle power", "many cells"])
def test_it_is_drawn_whatever_there_is(case, tmp_path):
    runs, epochs = metered(*designed_campaign(), scope="package")
    rows = power_over_time(runs[runs["replicate"] == 1], epochs)
    asked = ASKED
    match case:
        case "no meter":
            rows = rows[:0]
        case "no successful run":
            runs = runs.assign(status="failed", reason="broken", epoch_time_s=None)
        case "no idle power":
            runs = runs.assign(idle_package_w=None)
        case "many cells":
            asked = Declared("power", "power")
    of = records(tmp_path, runs, epochs, rows)
    drawn, caption = power.draw(Records(of.runs_csv, of.epochs_csv) if case == "no file" else of, asked)
    drawn.draw_without_rendering()
    if case in ("no meter", "no file"):
        assert why_not_drawn(caption)["why"] == "no-meter"
    if case == "no successful run":
        assert why_not_drawn(caption)["why"] == panels.NO_SUCCESS.code
    if case == "no idle power":
        assert "heading" in codes(caption.notes) and "idle-power-drawn" not in codes(caption.notes)
    if case == "many cells":
        assert len(drawn.axes) == power.MOST
        left_out = of.runs["cell"].nunique() - power.MOST
        assert find_note(caption.notes, "cells-left-out").facts["cells"] == left_out > 1
    assert "nan" not in caption
