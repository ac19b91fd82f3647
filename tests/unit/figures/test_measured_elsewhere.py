"""Figures of imported campaigns: one axis over all devices, styles that differ, panels with a speed-up."""

import pandas as pd
import pytest

from analysis.records import Records
from declared.figure_specs import FigureSpec, from_json
from figures import style
from figures.kinds import by_factor, overview, residuals, scaling
from figures.view import build_view
from support.measured_elsewhere import DLPERF, MLPERF


def records(folder: object) -> Records:
    return (
        Records(DLPERF / "runs.csv", DLPERF / "epochs.csv")
        if folder == DLPERF
        else Records(MLPERF / "runs.csv", MLPERF / "epochs.csv")
    )


def test_filtered_ladder_keeps_one_axis() -> None:
    runs = records(DLPERF).runs
    spec = from_json('{"kind": "by_factor", "x": "n_devices", "filter": {"n_devices": [8, 16, 32]}}')
    view = build_view(runs, spec)
    assert view.panel_factors == [] and view.series_factors == ["framework"]
    figure, _ = by_factor.draw(records(DLPERF), spec)
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["8", "16", "32"]


def test_ideal_begins_at_the_base_of_the_series() -> None:
    figure, _ = scaling.draw(records(MLPERF), FigureSpec("scaling", "scaling"))
    speedup, efficiency = figure.axes
    (ideal,) = [line for line in speedup.get_lines() if line.get_color() == style.MUTED]
    assert ideal.get_ydata()[0] == pytest.approx(1) and ideal.get_ydata()[-1] == pytest.approx(4)
    assert [label.get_text() for label in efficiency.get_xticklabels()] == ["8", "16", "32"]


def test_cells_without_a_larger_one_have_no_panel() -> None:
    files = records(MLPERF)
    alone = files.runs[files.runs["nodes"] == 4].assign(batch_size=16)
    alone = alone.assign(cell=alone["cell"] + ".b16", run_id=alone["run_id"] + ".b16")
    files.__dict__["every_run"] = pd.concat([files.every_run, alone], ignore_index=True)
    files.__dict__.pop("runs")
    figure, caption = scaling.draw(files, FigureSpec("scaling", "scaling"))
    assert len(figure.axes) == 2, "speed-up and efficiency of the series alone"
    assert any("16" in note for note in caption.notes)


@pytest.mark.parametrize(("folder", "panels"), [(DLPERF, 2), (MLPERF, 3)])
def test_order_is_drawn_where_it_is_known(folder: object, panels: int) -> None:
    figure, _ = residuals.draw(records(folder), FigureSpec("residuals", "residuals"))
    assert len(figure.axes) == panels


def test_titles_of_panels_beside_long_row_labels_do_not_overlap() -> None:
    files = records(MLPERF)
    runs = files.runs[files.runs["nodes"] == files.runs["nodes"].min()]
    accumulated = runs.assign(sync_every=4, cell=runs["cell"] + ".s4", run_id=runs["run_id"] + ".s4")
    every = pd.concat([runs, accumulated], ignore_index=True).assign(custom_system="eight nodes of a system")
    every.loc[every.index[::2], "custom_system"] = "eight nodes of another system"
    files.__dict__["every_run"] = every
    files.__dict__.pop("runs")
    spec = FigureSpec("overview", "overview", facet=("sync_every",), colour=("custom_system",))
    figure, _ = overview.draw(files, spec)
    figure.draw_without_rendering()
    boxes = [ax.title.get_window_extent() for ax in figure.axes]
    assert len(boxes) == 2 and boxes[0].x1 < boxes[1].x0 and boxes[1].x1 <= figure.bbox.x1
