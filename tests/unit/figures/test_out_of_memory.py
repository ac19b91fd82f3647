"""A cell that ran out of memory has a mark in place of its value, and does not count as missing."""

import importlib

import numpy as np
import pytest

from analysis import cells
from analysis.level_words import OUT_OF_MEMORY_MARK
from analysis.records import Records
from declared.figure_specs import FigureSpec
from figures import style
from figures.kinds import memory, strategies
from figures.view import build_response_view
from support import known_meshes, known_physics
from support.captions import why_not_drawn
from support.synthetic import campaign, write_frames


def run_out(runs, is_out):
    """Return the runs, of which some ran out of memory and have no results."""
    lost = {name: runs[name].mask(is_out) for name in ("epoch_time_s", "throughput_samples_s")}
    reason = "out of memory on device 0: rank 0 asked for 2.1 GB"
    status = {"status": runs["status"].mask(is_out, "oom"), "reason": runs["reason"].mask(is_out, reason)}
    return runs.assign(**status, **lost)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Five cells ran out of memory: those of both frameworks with a batch size of 64, and a baseline."""
    runs, epochs = campaign(replicates=2, failures={})
    frameworks = ["pytorch-ddp", "horovod-tensorflow"]
    is_out = runs["framework"].isin(frameworks) & (runs["batch_size"] == 64)
    is_out |= (runs["framework"] == "tensorflow-single") & (runs["batch_size"] == 64)
    runs = run_out(runs, is_out)
    epochs = epochs[epochs["run_id"].isin(runs.loc[~is_out, "run_id"])]
    return Records(*write_frames(tmp_path_factory.mktemp("out"), runs, epochs))


def marks(figure):
    """Return the titles of the panels by mark."""
    texts = [(ax.get_title(), text.get_text()) for ax in figure.axes for text in ax.texts]
    return [title for title, text in texts if text == OUT_OF_MEMORY_MARK]


@pytest.mark.parametrize(
    ("spec", "n_marks"),
    [
        (FigureSpec("by_batch_size", "by_factor", x="batch_size"), 5),
        (FigureSpec("by_nodes", "by_factor", x="nodes", y="throughput"), 5),
        (FigureSpec("overview", "overview"), 5),
        (FigureSpec("heat_map", "heat_map", x="nodes"), 5),
        (FigureSpec("scaling", "scaling"), 4),  # of the two cells on two nodes, in two panels
        (FigureSpec("shares", "shares"), 5),
        (FigureSpec("time_to_accuracy", "time_to_accuracy", target=0.5), 5),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_cells_out_of_memory_are_marked(records, spec, n_marks):
    figure, caption = importlib.import_module(f"figures.kinds.{spec.kind}").draw(records, spec)
    figure.draw_without_rendering()
    assert len(marks(figure)) == n_marks
    assert "OOM: out of memory, 5 of 38 cells." in caption.notes


def test_memory_is_the_reason_only_where_it_ran_out_in_all_cells(records):
    view = build_response_view(records, FigureSpec("overview", "overview"))
    ran_out = view.runs["cell"].isin(view.out_of_memory)
    assert view.absence_reason(view.runs[ran_out]) == OUT_OF_MEMORY_MARK
    assert view.absence_reason(view.runs) != OUT_OF_MEMORY_MARK


def test_a_mark_has_the_marker_of_its_series(records):
    spec = FigureSpec("a", "by_factor", x="batch_size", filter={"nodes": (2,), "sync_every": (1,)})
    figure, _ = importlib.import_module("figures.kinds.by_factor").draw(records, spec)
    (ax,) = figure.axes
    level = ax.get_xticks()[-1]
    markers = {
        line.get_color()
        for line in ax.lines
        if list(line.get_xdata()) == [level] and line.get_ydata()[0] == 0
    }
    assert markers == {style.framework_style(name).colour for name in ("pytorch-ddp", "horovod-tensorflow")}
    heights = {text.xyann[1] for text in ax.texts if text.get_text() == OUT_OF_MEMORY_MARK}
    assert len(heights) == len(markers), "one mark above the other"


def test_a_campaign_out_of_memory_draws_nothing(records, tmp_path):
    runs = run_out(records.every_run, np.ones(len(records.every_run), bool))
    without_result = Records(*write_frames(tmp_path, runs, records.epochs.drop(columns="cell")[:0]))
    figure, caption = importlib.import_module("figures.kinds.overview").draw(
        without_result, FigureSpec("o", "overview")
    )
    assert why_not_drawn(caption)["why"] == "all-out-of-memory" and len(figure.axes[0].texts) == 1


@pytest.fixture(scope="module")
def strategy_runs():
    return known_meshes.runs(known_meshes.Meshes(), known_meshes.STRATEGIES)


@pytest.mark.parametrize("draw", [memory.draw, strategies.draw])
def test_strategies_out_of_memory_are_marked(draw, strategy_runs, tmp_path):
    runs = strategy_runs.query("nodes == 4 and bandwidth == 1000").assign(memory_peak_bytes=1e8)
    is_out = (runs["batch_size"] == 128) & (runs["parallelism"] == "data")
    runs = known_physics.written(run_out(runs.astype(object), is_out), "runs", tmp_path)
    records = Records(tmp_path / "runs.csv", tmp_path / "epochs.csv")
    figure, _ = draw(records, FigureSpec("m", "memory"))
    assert marks(figure) == ["batch size 128"]


def test_the_table_of_cells_has_the_mark(records):
    table = cells.table(records.runs)
    epoch_times = table.display["epoch time (s)"]
    assert (epoch_times == OUT_OF_MEMORY_MARK).sum() == 5
    assert table.data["out_of_memory"].dropna().tolist() == [2.0] * 5
