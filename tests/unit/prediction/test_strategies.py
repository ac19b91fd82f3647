"""What meshes take by formula, against plain loops and made-up runs whose physics is known."""

import numpy as np
import pandas as pd
import pytest

from common.notes import find_note
from declared.models import model_graph
from models.mesh import Mesh
from prediction import crossover, law, physics
from prediction.held_out import evaluate, table
from prediction.law import Law
from prediction.methods import PHYSICS, methods
from prediction.strategies import Place, predict_step
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


def known_to(truth, parallelism, **options):
    benchmarks = synthetic.network(truth, nodes=(2, 4), framework=MESH, collectives=BENCHMARKED_COLLECTIVES)
    return physics.measured_cells(
        runs(truth, parallelism, **options), include_meshes=True
    ), law.benchmark_points(benchmarks)


def test_strategies_are_predicted_from_one_node_and_benchmarks():
    cells, benchmarks = known_to(Meshes(), STRATEGIES)
    model = physics.base_model(cells, benchmarks)
    multi_node = cells[cells["nodes"] > 1]
    off = (model.predict(multi_node) / multi_node["epoch_time_s"] - 1).abs()
    assert set(multi_node["parallelism"]) == set(STRATEGIES)
    assert off.groupby(multi_node["parallelism"]).mean().max() < 1.5 * NOISE, off.groupby(
        multi_node["parallelism"]
    ).mean()


def test_waiting_is_found_from_some_strategies_for_others():
    cells, benchmarks = known_to(Meshes(sigma=0.3), STRATEGIES)
    every, rows = evaluate(
        cells,
        benchmarks,
        {PHYSICS: methods({MESH})[PHYSICS], "without waiting": methods({MESH})["without waiting"]},
    )
    left = rows[rows["left_out"].str.startswith("parallelism")].set_index(["left_out", "method"])["mape"]
    assert set(left.index.get_level_values(0)) == {f"parallelism {item}" for item in STRATEGIES}
    assert (
        left.xs(PHYSICS, level=1).max() < 1.5 * NOISE
        and left.xs("without waiting", level=1).min() > 2 * NOISE
    )
    assert {"nodes", "link rate", "strategy"} <= set(every["kind"])
    notes = table(runs(Meshes(), STRATEGIES), cells, benchmarks, rows).notes
    methods_note = find_note(notes, "methods")
    assert {"all_reduce", "point_to_point"} <= {
        name for laws in methods_note.facts["latency_s"].values() for name in laws
    }
    assert "a neighbours" not in methods_note, "between neighbours there are no steps"
    assert find_note(notes, "meshes").facts == {"ranks_within_nodes": False}


def test_what_a_library_takes_within_layers_is_found_from_others():
    cells, benchmarks = known_to(Meshes(dispatch_s=0.02), STRATEGIES)
    _, rows = evaluate(cells, benchmarks, {PHYSICS: methods({MESH})[PHYSICS]})
    left = rows[rows["left_out"].str.startswith("parallelism")].set_index("left_out")["mape"]
    assert len(left) == len(STRATEGIES) and left.max() < 1.5 * NOISE
    (result,) = physics.fit_model(cells, benchmarks).dispatch.values()
    assert result == pytest.approx(0.02, rel=0.1)


def test_models_of_different_size_separate_updates():
    """One rank alone never accumulates.

    Between two models, batches grow with operators and updates with parameters.
    """
    cells, benchmarks = known_to(Meshes(), STRATEGIES)
    alone = cells[cells["nodes"] == 1]
    call_s, parameter_s, sample_s = 1e-4, 1e-8, 1e-3
    pair = [alone.assign(model=name, cell=alone["cell"] + name) for name in ("small-cnn", "vgg-16")]
    graphs = {name: model_graph(name, "digits") for name in ("small-cnn", "vgg-16")}
    for own, graph in zip(pair, graphs.values(), strict=True):
        constant = call_s * len(graph.operators) + parameter_s * graph.parameters
        own["epoch_time_s"] = own["steps"] * (constant + sample_s * own["local_batch"])
    built = physics.base_model(pd.concat(pair, ignore_index=True), benchmarks)
    for levels, (alpha, beta, update) in built.divisible.items():
        (graph,) = (graph for name, graph in graphs.items() if name in levels)
        assert alpha == pytest.approx(call_s * len(graph.operators)) and beta == pytest.approx(sample_s)
        assert update == pytest.approx(parameter_s * graph.parameters)
        assert built.computation[levels][2] == 0.0, "where nothing is divided, it makes no difference"
    item = physics.base_model(pair[0], benchmarks)
    assert {key: tuple(own) for key, own in item.divisible.items()} == {
        key: tuple(own) for key, own in item.computation.items()
    }


def test_strategies_need_a_benchmark_of_each_message():
    cells, benchmarks = known_to(Meshes(), ("data", "tensor", "pipeline2"))
    model = physics.base_model(cells, benchmarks[benchmarks["collective"] != "point_to_point"])
    missing = np.isnan(model.predict(cells))
    assert set(cells.loc[missing, "parallelism"]) == {"pipeline2"}
    assert physics.measured_cells(runs(Meshes(), ("tensor",)))["nodes"].max() == 1, "others leave them out"


def bandwidth(collective):
    """A link of one byte a second, and nothing else."""
    return Law("ring", law.PIPELINED, 0.0, 0.0, 1.0, 0.0, collective=collective)


def test_groups_that_leave_a_node_together_share_its_link():
    mesh, empty = Mesh(data=2, tensor=2), np.zeros(3)
    apart, together = (predict_step(CNN, mesh, 1, LEVELS, empty, Place(n, 4, 1.0), bandwidth) for n in (4, 2))
    assert together is None, "ranks of the tensor axis are on one node"
    assert apart.waited_s == pytest.approx(4 * (CLASSES + FLAT)), "2 (2 - 1) / 2 of both"
    mesh = Mesh(pipeline=2, data=2)
    apart, together = (predict_step(CNN, mesh, 4, LEVELS, empty, Place(n, 4, 1.0), bandwidth) for n in (4, 2))
    assert together is None, "copies of a stage are on one node"
    pair = Mesh(pipeline=2)
    assert predict_step(CNN, pair, 4, LEVELS, empty, Place(2, 2, 1.0), bandwidth).waited_s == 2 * 4 * 4 * FLAT


def test_fastest_strategy_is_predicted_from_one_node_by_link():
    """All but one-node runs are missing: what they would measure stands in the truth."""
    truth = Meshes()
    every = runs(truth, STRATEGIES)
    benchmarks = law.benchmark_points(
        synthetic.network(truth, nodes=(2, 4), framework=MESH, collectives=BENCHMARKED_COLLECTIVES)
    )
    to_come = every["nodes"] > 1
    before = every.assign(
        status=every["status"].mask(to_come, "missing"), epoch_time_s=every["epoch_time_s"].mask(to_come)
    )
    reported, test_part = (
        crossover.rank_strategies(before, benchmarks),
        crossover.rank_strategies(every, benchmarks),
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
    displayed = crossover.table(
        before, synthetic.network(truth, nodes=(2, 4), framework=MESH, collectives=BENCHMARKED_COLLECTIVES)
    ).display
    assert list(displayed["fastest, measured"].unique()) == ["–"]
    assert {links for links in displayed["links"] if "*" in links} == {
        "10 Gbit/s*",
        "25 Gbit/s*",
        "100 Gbit/s*",
    }
