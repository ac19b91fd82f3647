"""The figures of strategies show measured and predicted values."""

from pathlib import Path

import numpy as np
import pytest

from analysis import tables
from analysis.records import Records
from common.files import CHECKOUT
from common.notes import codes, find_note
from declared.figure_specs import FigureSpec
from figures.kinds import memory, strategies
from prediction import crossover
from prediction.message_times import CollectiveBenchmark, benchmark_points
from support import known_meshes, known_physics
from support.captions import why_not_drawn


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Made-up runs of six strategies with their memory, and predictions of them."""
    folder = tmp_path_factory.mktemp("strategies")
    truth = known_meshes.Meshes()
    runs = known_meshes.runs(truth, known_meshes.STRATEGIES)
    runs["memory_peak_bytes"] = 1e8 * (1 + runs["batch_size"].astype(float))
    runs = known_physics.written(runs.astype(object), "runs", folder)
    network = known_physics.network(
        truth, nodes=(2, 4), framework=known_meshes.MESH, collectives=known_meshes.BENCHMARKED_COLLECTIVES
    )
    tables.write(crossover.table(runs, CollectiveBenchmark(benchmark_points(network))), folder / "crossover")
    return Records(folder / "runs.csv", Path("epochs.csv"), {"crossover": folder / "crossover.csv"})


def test_lines_are_predictions_and_markers_measured_means(records: Records) -> None:
    figure, caption = strategies.draw(records, FigureSpec("strategies", "strategies"))
    ax = next(ax for ax in figure.axes if ax.get_title() == "batch size 32, 4 nodes")
    predicted, runs = records.table("crossover"), records.runs
    own = predicted[(predicted["batch_size"] == 32) & (predicted["nodes"] == 4)]
    lines = [np.asarray(line.get_ydata(), float) for line in ax.lines if len(line.get_xdata()) == 6]
    for _, rows in own.groupby("strategy"):
        assert any(np.allclose(line, rows.sort_values("rate")["predicted_s"]) for line in lines)
    assert len(lines) == own["strategy"].nunique() == 5
    means = runs[(runs["batch_size"] == 32) & (runs["nodes"] == 4)].groupby("cell")["epoch_time_s"].mean()
    points = [float(line.get_ydata()[0]) for line in ax.lines if len(line.get_xdata()) == 1]
    assert sorted(points) == pytest.approx(sorted(means))
    assert "predicted-lines" in codes(caption.notes)
    assert find_note(caption.notes, "series").facts == {"factors": ["parallelism"]}, (
        "microbatches follow from it"
    )


def test_memory_stands_against_time(records: Records) -> None:
    figure, caption = memory.draw(records, FigureSpec("memory", "memory", filter={"bandwidth": [1000]}))
    ax = next(ax for ax in figure.axes if ax.get_title() == "batch size 128, 4 nodes")
    assert {float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() != "None"} == {12900.0}
    assert memory.MEMORY_NOTE in caption.endnotes


def test_without_runs_on_several_nodes_nothing_is_drawn(records: Records) -> None:
    alone = Records(records.runs_csv, Path("epochs.csv"))
    alone.__dict__["runs"] = records.runs[records.runs["nodes"] == 1].assign(memory_peak_bytes=np.nan)
    assert why_not_drawn(memory.draw(alone, FigureSpec("memory", "memory"))[1])["why"] == "no-memory"


def test_legend_names_options_of_strategies_that_vary_them() -> None:
    folder = CHECKOUT / "docs" / "campaigns" / "llama-virtual"
    view = strategies.multi_node_view(
        Records(folder / "runs.csv", folder / "epochs.csv"), FigureSpec("strategies", "strategies")
    )
    assert {series.name.removeprefix("parallelism ") for series in view.series} == {
        "data", "data2-sharded2", "sharded", "pipeline, schedule 1f1b", "pipeline, schedule zero-bubble",
        *(f"data2-tensor2, tensor sharding {name}" for name in ("layers", "vocabulary", "sequence")),
    }  # fmt: skip
