"""The model finds the physics that runs were made from, predicts what it has not seen, and fails where the
physics is another.
"""

import math

import numpy as np
import pytest
from statsmodels.regression.linear_model import OLS

from prediction import held_out, law, physics
from prediction.fold import Prediction
from prediction.physics import expected_maximum, fit_model, measured_cells, press
from support import known_physics as synthetic
from support.known_physics import Sharded, Truth

NOISE = 0.02
DDP = ("pytorch-ddp", "site")


def built(truth, **options):
    return measured_cells(synthetic.runs(truth, noise=NOISE, **options)), law.benchmark_points(
        synthetic.network(truth)
    )


def test_epoch_times_are_adjusted_by_the_reference_benchmark():
    """Some runs were slowed down, and their reference says it: the physics is found as if they were not."""
    truth = Truth(update_s=0.0)
    runs, benchmarks = synthetic.runs(truth, noise=0.002), law.benchmark_points(synthetic.network(truth))
    rng = np.random.default_rng(3)
    slow = np.exp(0.3 * (rng.random(len(runs)) < 0.4))
    reported = {"reference_kind": "mixed-1", "environment_digest": "e", "device": "cpu", "session": "s"}
    disturbed = runs.assign(epoch_time_s=runs["epoch_time_s"] * slow, reference_s=0.3 * slow, **reported)
    cells, reduced = measured_cells(disturbed), measured_cells(disturbed.assign(reference_s=math.nan))
    undisturbed = measured_cells(runs)["epoch_time_s"] * slow.mean()
    assert (cells["epoch_time_s"] / undisturbed - 1).abs().max() < 0.02
    assert (reduced["epoch_time_s"] / undisturbed - 1).abs().max() > 0.05
    table = held_out.table(
        disturbed, cells, benchmarks, held_out.evaluate(cells, benchmarks, {"physical": physics_of})[1]
    )
    assert held_out.ADJUSTED in table.notes


def physics_of(fold):
    return Prediction(fit_model(fold.train, fold.benchmarks).predict(fold.test))


def error(model, cells):
    return model.predict(cells) / cells["epoch_time_s"] - 1


@pytest.mark.parametrize(
    ("count", "expected"), [(2, 0.56419), (3, 0.84628), (5, 1.16296), (10, 1.53875), (100, 2.50759)]
)
def test_the_largest_of_normal_numbers(count, expected):
    """Harter, Expected values of normal order statistics, Biometrika 48 (1961), table 1."""
    assert expected_maximum(count) == pytest.approx(expected, abs=6e-6)
    assert expected_maximum(1) == 0


def test_press_is_that_of_statsmodels():
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(12), rng.normal(size=12)])
    y = x @ [1, 2] + rng.normal(size=12)
    result = OLS(y, x).fit()
    assert press(result.resid, x) == pytest.approx(result.get_influence().ess_press)
    assert press(y, np.empty((12, 0))) == pytest.approx(float(y @ y))
    assert press(np.ones(2), np.ones((2, 2))) == math.inf


@pytest.mark.parametrize(("hidden", "sigma"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.4), (0.5, 0.3), (1.0, 0.1)])
def test_the_parameters_are_found(hidden, sigma):
    truth = Truth(hidden=hidden, sigma=sigma, update_s=0.0)
    cells, benchmarks = built(truth)
    model = fit_model(cells, benchmarks)
    assert model.hidden[DDP] == pytest.approx(hidden, abs=0.06)
    assert model.scatter[DDP] == pytest.approx(sigma, abs=0.04)
    (computation,) = model.computation.values()
    assert computation[:2] == pytest.approx([truth.batch_s, truth.sample_s], rel=0.05)


def test_varied_accumulation_separates_update_from_batch():
    truth = Truth(update_s=0.02)
    cells, benchmarks = built(truth, every=(1, 4), models=("small-cnn", "small-cnn-600"))
    for computation in fit_model(cells, benchmarks).computation.values():
        assert computation == pytest.approx([truth.batch_s, truth.sample_s, truth.update_s], rel=0.1)


@pytest.mark.parametrize(
    "truth", [Truth(), Truth(hidden=0.7), Truth(sigma=0.4), Truth(hidden=0.5, sigma=0.3, byte_s=2e-8)]
)
def test_most_nodes_are_predicted_within_the_noise(truth):
    cells, benchmarks = built(truth, every=(1, 4))
    subset = cells["nodes"] <= 3
    model = fit_model(cells[subset], benchmarks[benchmarks["nodes"] <= 3])
    assert error(model, cells[~subset]).abs().mean() < 1.5 * NOISE
    assert error(model, cells[~subset]).abs().max() < 0.06


def test_what_cannot_be_told_apart_is_not_fitted_twice():
    """As many ranks that all-reduce after every batch: hiding is a share of computation that is gained, waiting
    one that is paid.
    """
    cells, benchmarks = built(Truth(hidden=0.5, sigma=0.4), nodes=(1, 2), every=(1, 4))
    equal = fit_model(cells[cells["sync_every"] == 1], benchmarks[benchmarks["nodes"] == 2])
    assert 0 in (equal.hidden[DDP], equal.scatter[DDP])
    pair = fit_model(cells, benchmarks[benchmarks["nodes"] == 2])
    assert (pair.hidden[DDP], pair.scatter[DDP]) == pytest.approx((0.5, 0.4), abs=0.15)


FSDP = "pytorch-fsdp"
BENCHMARKED_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def sharded(truth, rates=synthetic.RATES, **options):
    runs = synthetic.runs(truth, noise=NOISE, framework=FSDP, rates=rates, **options)
    return measured_cells(runs), law.benchmark_points(
        synthetic.network(truth, framework=FSDP, rates=rates, collectives=BENCHMARKED_COLLECTIVES)
    )


@pytest.mark.parametrize(
    ("hidden", "models", "every"),
    [(0.0, ("small-cnn",), (1,)), (0.0, ("resnet-18",), (1, 4)), (0.7, ("resnet-18",), (1,))],
)
def test_fsdp_gathers_and_scatters_by_laws_of_their_own(hidden, models, every):
    truth = Sharded(hidden=hidden, batch_s=0.1, byte_s=1e-11)
    rates = (
        (1.25e9, 2.5e9, 12.5e9) if hidden else synthetic.RATES
    )  # on which messages take as long as computing
    cells, benchmarks = sharded(truth, rates, models=models, every=every)
    subset = cells["nodes"] <= 3
    model = fit_model(cells[subset], benchmarks[benchmarks["nodes"] <= 3])
    assert error(model, cells[~subset]).abs().mean() < 1.5 * NOISE
    assert model.hidden[FSDP, "site"] == pytest.approx(hidden, abs=0.1)


def test_fsdp_without_shard_benchmarks_is_one_all_reduce():
    truth = Sharded(gloo=6.0)
    cells, benchmarks = sharded(truth)
    multi_node = cells[cells["nodes"] > 1]
    with_shards, reduced = (
        fit_model(cells, benchmarks),
        fit_model(cells, benchmarks[benchmarks["collective"] != "all_gather"]),
    )
    assert error(with_shards, multi_node).abs().mean() < 1.5 * NOISE
    assert error(reduced, multi_node).mean() < -5 * NOISE, "3 times as much is sent"
    assert not reduced.shards((FSDP, "site")) and reduced.hidden[FSDP, "site"] == 0


def test_another_physics_is_noticed():
    """Ranks that slow each other down the more there are: no term of the model grows like that."""

    class Crowded(Truth):
        def seconds_of(self, model, dataset, nodes, *rest):
            return super().seconds_of(model, dataset, nodes, *rest) * (1 + 0.02 * (nodes - 1) ** 2)

    cells, benchmarks = built(Crowded())
    subset = cells["nodes"] <= 3
    model = fit_model(cells[subset], benchmarks[benchmarks["nodes"] <= 3])
    assert error(model, cells[~subset]).abs().mean() > 5 * NOISE


def test_benchmarks_that_are_left_out_are_not_used():
    cells, benchmarks = built(Truth())
    subset = fit_model(cells[cells["nodes"] <= 3], benchmarks[benchmarks["nodes"] <= 3])
    spoiled = benchmarks.assign(seconds=benchmarks["seconds"].where(benchmarks["nodes"] <= 3, 99.0))
    again = fit_model(cells[cells["nodes"] <= 3], spoiled[spoiled["nodes"] <= 3])
    assert np.allclose(subset.predict(cells), again.predict(cells))


def test_the_single_device_baseline_stands_for_one_node():
    truth = Truth()
    single = synthetic.runs(truth, nodes=(1,), rates=(125e6,), framework="pytorch-single")
    multi_node = synthetic.runs(truth, nodes=(2, 3))
    cells = measured_cells(synthetic.joined(single, multi_node))
    model = fit_model(cells, law.benchmark_points(synthetic.network(truth)))
    assert error(model, cells).abs().mean() < 2 * NOISE


def test_a_global_batch_is_shared_out():
    truth = Truth()
    runs = synthetic.runs(truth)
    cells = measured_cells(runs)
    # 32 samples on each of two nodes are a global batch of 64
    halved = cells[(cells["nodes"] == 2) & (cells["batch_size"] == 32)].assign(
        batch_size=64, batch_scope="global"
    )
    model = fit_model(cells, law.benchmark_points(synthetic.network(truth)))
    assert error(model, halved).abs().max() < 0.05


def test_prediction_needs_one_node_runs_and_a_benchmark():
    cells, benchmarks = built(Truth())
    multi_node = cells[cells["nodes"] > 1]
    assert np.isnan(fit_model(multi_node, benchmarks).predict(multi_node)).all()
    assert np.isnan(fit_model(cells, benchmarks.iloc[:0]).predict(multi_node)).all()
    unknown = cells.assign(model="a model that nobody described")
    assert np.isnan(fit_model(unknown, benchmarks).predict(unknown[unknown["nodes"] > 1])).all()
    assert len(physics.fit_model(cells.iloc[:0], benchmarks).predict(cells.iloc[:0])) == 0


def test_an_epoch_is_scaled_to_the_samples_of_the_data_set():
    runs = synthetic.runs(noise=0.0, nodes=(1, 3), batches=(96,), rates=(125e6,), replicates=1)
    cells = measured_cells(runs).set_index("nodes")
    assert cells["samples"].nunique() == 1
    assert cells.at[1, "steps"] * 96 == pytest.approx(synthetic.SAMPLES)
    assert cells.at[3, "steps"] * 96 * 3 == pytest.approx(synthetic.SAMPLES)


def test_meshes_are_left_out_and_named():
    runs = synthetic.runs(Truth(), noise=NOISE)
    last = runs["cell"].iloc[-1]
    divided = runs.assign(parallelism=runs["parallelism"].where(runs["cell"] != last, "tensor"))
    assert runs.set_index("cell").at[last, "ranks"].max() > 1
    assert set(measured_cells(runs)["cell"]) - set(measured_cells(divided)["cell"]) == {last}
    left_out = physics.left_out_note(divided)
    assert (left_out.code, left_out.facts) == (
        "cells-left-out",
        {"uncounted": [], "divided": [last], "of_strategies": []},
    )
    assert last in left_out
    assert physics.left_out_note(runs) == "" == physics.left_out_note(runs.assign(parallelism="data"))
