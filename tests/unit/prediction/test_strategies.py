"""What meshes take by formula, against plain loops and made-up runs whose physics is known."""

import math

import pandas as pd
import pytest

from common.notes import find_note
from declared.models import model_graph
from models.mesh import Mesh
from prediction import crossover
from prediction.held_out import evaluate, table
from prediction.inputs import measured_cells
from prediction.mesh_step import NetworkScale, describe_step
from prediction.message_times import CollectiveBenchmark, benchmark_points, ideal_seconds
from prediction.methods import LAW, predict_by_law
from prediction.study_predictor import StudyPredictor
from support import known_physics as synthetic
from support.known_meshes import (
    BENCHMARKED_COLLECTIVES,
    CLASSES,
    CNN,
    FLAT,
    LEVELS,
    MESH,
    NOISE,
    STRATEGIES,
    Meshes,
    runs,
)


def network_of(truth):
    return CollectiveBenchmark(
        benchmark_points(
            synthetic.network(truth, nodes=(2, 4), framework=MESH, collectives=BENCHMARKED_COLLECTIVES)
        )
    )


def known_to(truth, parallelism, **options):
    return measured_cells(runs(truth, parallelism, **options), include_meshes=True), network_of(truth)


def test_strategies_are_predicted_from_one_node_and_benchmarks():
    cells, network = known_to(Meshes(), STRATEGIES)
    multi_node = cells[cells["nodes"] > 1]
    times = StudyPredictor(cells[cells["nodes"] == 1], network).predict(multi_node)
    off = (times.seconds / multi_node["epoch_time_s"] - 1).abs()
    assert set(multi_node["parallelism"]) == set(STRATEGIES)
    assert off.groupby(multi_node["parallelism"]).mean().max() < 3 * NOISE


def test_left_out_strategies_are_predicted_from_others():
    cells, network = known_to(Meshes(sigma=0.1), STRATEGIES)
    every, rows = evaluate(cells, network, {LAW: predict_by_law})
    left = rows[rows["left_out"].str.startswith("parallelism")].set_index("left_out")["mape"]
    assert set(left.index) == {f"parallelism {item}" for item in STRATEGIES}
    assert left.mean() < 0.1
    assert {"nodes", "link rate", "strategy"} <= set(every["kind"])
    notes = table(runs(Meshes(), STRATEGIES), cells, rows).notes
    assert find_note(notes, "meshes").facts == {"ranks_within_nodes": False}


def test_strategies_need_a_time_of_each_message():
    """Without a benchmark, messages take the time of their bytes at the rate of the links, if it is known."""
    cells, network = known_to(Meshes(), ("data", "tensor", "pipeline2"))
    points = network.points
    study = StudyPredictor(cells, CollectiveBenchmark(points[points["collective"] != "point_to_point"]))
    times = pd.Series(study.predict(cells).seconds, index=cells["parallelism"])
    assert times.notna().all()
    unknown = cells.assign(rate=math.nan)
    study = StudyPredictor(unknown, CollectiveBenchmark(points[points["collective"] != "point_to_point"]))
    missing = pd.Series(study.predict(unknown).seconds, index=cells["parallelism"]).isna()
    assert set(missing.index[missing]) == {"pipeline2"}
    assert measured_cells(runs(Meshes(), ("tensor",)))["nodes"].max() == 1, "others leave them out"


def test_groups_that_leave_a_node_together_share_its_link():
    mesh = Mesh(data=2, tensor=2)
    apart, together = (
        describe_step(CNN, mesh, 1, LEVELS, NetworkScale(n, 4, 1.0), ideal_seconds) for n in (4, 2)
    )
    assert together is None, "ranks of the tensor axis are on one node"
    plain = describe_step(CNN, Mesh(data=2), 1, LEVELS, NetworkScale(2, 2, 1.0), ideal_seconds)
    tensor = describe_step(CNN, Mesh(tensor=2), 1, LEVELS, NetworkScale(2, 2, 1.0), ideal_seconds)
    assert tensor.messages_s == pytest.approx(4 * (CLASSES + FLAT)), "2 (2 - 1) / 2 of both"
    assert tensor.work < plain.work == 1 and tensor.updated < plain.updated == 1
    bf16 = {**LEVELS, "precision": "bf16"}
    halved = describe_step(CNN, Mesh(data=2), 1, bf16, NetworkScale(2, 2, 1.0), ideal_seconds)
    assert halved.updated == 1 and halved.messages_s == plain.messages_s / 2
    assert apart.messages_s > tensor.messages_s
    mesh = Mesh(pipeline=2, data=2)
    together = describe_step(CNN, mesh, 4, LEVELS, NetworkScale(2, 4, 1.0), ideal_seconds)
    assert together is None, "copies of a stage are on one node"
    pair = describe_step(CNN, Mesh(pipeline=2), 4, LEVELS, NetworkScale(2, 2, 1.0), ideal_seconds)
    assert pair.messages_s == 2 * 4 * 4 * FLAT


def test_schedules_shorten_bubbles_and_interleaving_sends_more():
    """A turn of a microbatch on one of two equal stages takes 1 / 8 of a batch's work."""
    gpt = model_graph("gpt-nano", "synthetic-tokens-32-16")
    steps = {
        schedule: describe_step(
            gpt,
            Mesh(pipeline=2),
            4,
            LEVELS | {"microbatches": 4, "schedule": schedule},
            NetworkScale(2, 2, 1.0),
            ideal_seconds,
        )
        for schedule in ("1f1b", "interleaved-1f1b", "zero-bubble", "zero-bubble-v")
    }
    full, interleaved, late, late_v = (step.work for step in steps.values())
    assert late == pytest.approx(full - (1 - 1 / 3) / 8, abs=0.01)
    assert interleaved == pytest.approx(full - (1 - 1 / 2) / 8, abs=0.02)
    assert late_v == pytest.approx(full - (1 - 1 / 6) / 8, abs=0.02)
    times = [step.messages_s for step in steps.values()]
    table_s = 4 * 32 * 64  # all-reduced once, if two ranks have it
    assert [times[1] - table_s, times[2], times[3]] == [
        2 * (times[0] - table_s),
        times[0],
        times[1] - table_s,
    ]


def test_fastest_strategy_is_predicted_from_one_node_by_link():
    """Only runs on one node are measured; the truth has what the others would measure."""
    truth = Meshes()
    every = runs(truth, STRATEGIES)
    network = network_of(truth)
    to_come = every["nodes"] > 1
    before = every.assign(
        status=every["status"].mask(to_come, "missing"), epoch_time_s=every["epoch_time_s"].mask(to_come)
    )
    reported, test_part = (
        crossover.rank_strategies(before, network),
        crossover.rank_strategies(every, network),
    )
    assert reported["measured_s"].isna().all() and not test_part["measured_s"].isna().all()
    pd.testing.assert_frame_equal(
        reported.drop(columns=["measured_s", "measured_place"]), test_part[list(reported)[:-2]]
    )
    known_links = test_part.dropna(subset="measured_s")
    assert (known_links["predicted_s"] / known_links["measured_s"] - 1).abs().max() < 5 * NOISE
    small = reported[(reported["nodes"] == 4) & (reported["batch_size"] == 32)]
    orders = small.sort_values(["rate", "place"]).groupby("rate")["strategy"].agg(tuple)
    assert orders.nunique() > 1, "links change their order"
    assert orders.index.max() == 100e9 / 8 and {place[0] for place in orders} == {"data"}, (
        "whose steps see 4 times as much"
    )
    displayed = crossover.table(before, network).display
    assert list(displayed["fastest, measured"].unique()) == ["–"]
    assert {links for links in displayed["links"] if "*" in links} == {
        "10 Gbit/s*",
        "25 Gbit/s*",
        "100 Gbit/s*",
    }
