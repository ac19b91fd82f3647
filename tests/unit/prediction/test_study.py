"""The law predicts epoch times of studies whose costs are known, with a collective benchmark or without."""

import math

import numpy as np
import pandas as pd
import pytest

from common.files import CHECKOUT
from common.schemas import schema
from declared.models import find_graph, model_graph
from prediction import held_out, law
from prediction.inputs import ADJUSTED, exclusion_note, measured_cells, planned_cells
from prediction.law_rows import law_rows
from prediction.message_times import CollectiveBenchmark, benchmark_points, bucket_bytes, message_rule
from prediction.study_predictor import Prediction, StudyPredictor, fit_computation, shortest_epochs
from support import known_physics as synthetic
from support.known_physics import Sharded, Truth

NOISE = 0.02
IMPORTED = CHECKOUT / "tests" / "support" / "imported"
NO_BENCHMARK = pd.DataFrame(columns=list(schema("network")["properties"]))


def built(truth, **options):
    cells = measured_cells(synthetic.runs(truth, noise=NOISE, **options))
    return cells, CollectiveBenchmark(benchmark_points(synthetic.network(truth)))


def error(study, cells):
    return study.predict(cells).seconds / cells["epoch_time_s"] - 1


def test_epoch_times_are_adjusted_by_the_reference_benchmark():
    """Some runs were slowed down, and their reference benchmark shows it."""
    truth = Truth(update_s=0.0)
    runs = synthetic.runs(truth, noise=0.002)
    rng = np.random.default_rng(3)
    slow = np.exp(0.3 * (rng.random(len(runs)) < 0.4))
    reported = {"reference_kind": "mixed-1", "environment_digest": "e", "device": "cpu", "session": "s"}
    disturbed = runs.assign(epoch_time_s=runs["epoch_time_s"] * slow, reference_s=0.3 * slow, **reported)
    cells, reduced = measured_cells(disturbed), measured_cells(disturbed.assign(reference_s=math.nan))
    undisturbed = measured_cells(runs)["epoch_time_s"] * slow.mean()
    assert (cells["epoch_time_s"] / undisturbed - 1).abs().max() < 0.02
    assert (reduced["epoch_time_s"] / undisturbed - 1).abs().max() > 0.05

    def truth_of(fold):
        return Prediction(fold.test["epoch_time_s"].to_numpy())

    table = held_out.table(
        disturbed, cells, held_out.evaluate(cells, CollectiveBenchmark(), {"truth": truth_of})[1]
    )
    assert ADJUSTED in table.notes


@pytest.mark.parametrize(
    "truth", [Truth(), Truth(hidden=0.7), Truth(sigma=0.4), Truth(hidden=0.5, sigma=0.3, byte_s=2e-8)]
)
def test_most_nodes_are_predicted_near_the_noise(truth):
    cells, network = built(truth, every=(1, 4))
    subset = cells["nodes"] <= 3
    off = error(StudyPredictor(cells[subset], network.hold_out([4, 6], [])), cells[~subset]).abs()
    assert off.mean() < 3 * NOISE


def test_benchmark_informs_what_rates_do_not():
    """Processors limit messages, which take the same time on links of any rate."""
    truth = Truth(byte_s=2e-7)
    cells, network = built(truth)
    subset, slow = cells["nodes"] <= 2, cells["nodes"] == 6
    with_benchmark, without_benchmark = (
        error(StudyPredictor(cells[subset], benchmark), cells[slow]).abs().mean()
        for benchmark in (network, CollectiveBenchmark())
    )
    assert with_benchmark < without_benchmark


def test_no_benchmark_is_needed():
    cells, _ = built(Truth())
    subset = cells["nodes"] <= 3
    assert error(StudyPredictor(cells[subset]), cells[~subset]).abs().mean() < 0.1


def test_sizes_stand_for_a_model_that_is_not_described():
    runs = synthetic.runs(Truth(), noise=NOISE)
    size = model_graph("small-cnn", "digits").gradient_bytes
    named = runs.assign(model="theirs", gradient_bytes=float(size))
    parameters = runs.assign(model="theirs", parameters=size / 4)
    for sized in (named, parameters):
        pd.testing.assert_series_equal(
            measured_cells(sized)["gradient_bytes"], measured_cells(runs)["gradient_bytes"]
        )
    in_bfloat16 = measured_cells(runs.assign(precision="bf16"))
    assert set(in_bfloat16["gradient_bytes"]) == {size / 2}
    unknown = measured_cells(runs.assign(model="theirs"))
    assert unknown["gradient_bytes"].isna().all()
    subset = unknown["nodes"] <= 3
    assert np.isfinite(StudyPredictor(unknown[subset]).predict(unknown[~subset]).seconds).all()


def test_benchmark_of_shards_replaces_that_of_all_reduce():
    truth = Sharded(gloo=6.0)
    cells = measured_cells(synthetic.runs(truth, noise=0, framework="pytorch-fsdp"))
    points = benchmark_points(
        synthetic.network(
            truth, framework="pytorch-fsdp", collectives=("all_reduce", "all_gather", "reduce_scatter")
        )
    )
    multi_node = cells[cells["nodes"] > 1]
    with_shards, reduced = (
        law_rows(multi_node, CollectiveBenchmark(benchmarked))["benchmarked_messages_s"]
        for benchmarked in (points, points[points["collective"] != "all_gather"])
    )
    assert (with_shards / reduced).to_numpy() == pytest.approx(2 / 2 + 6 / 2, rel=0.1)
    assert law_rows(multi_node, CollectiveBenchmark())["sharded"].all()


def test_another_physics_is_noticed():
    """More ranks slow each other down more, and no term of the law grows in that way."""

    class Crowded(Truth):
        def seconds_of(self, model, dataset, nodes, *rest):
            return super().seconds_of(model, dataset, nodes, *rest) * (1 + 0.02 * (nodes - 1) ** 2)

    cells, network = built(Crowded())
    subset = cells["nodes"] <= 3
    times = StudyPredictor(cells[subset], network.hold_out([4, 6], [])).predict(cells[~subset])
    assert (times.seconds / cells.loc[~subset, "epoch_time_s"] - 1).abs().mean() > 5 * NOISE


def test_misfit_is_a_note():
    cells, network = built(Truth(), nodes=(1, 2, 3))
    jagged = cells.assign(epoch_time_s=cells["epoch_time_s"] * np.where(cells["nodes"] == 2, 1.3, 1.0))
    (note,) = (
        remark for remark in StudyPredictor(jagged, network).predict(jagged).notes if remark.code == "misfit"
    )
    assert min(note.facts["misfits"].values()) > law.MISFIT_WARNING


@pytest.mark.parametrize(("measured", "predicted"), [((32,), False), ((32, 64), True)])
def test_unseen_batch_is_refused_with_a_note(measured, predicted):
    cells, network = built(Truth(), nodes=(1, 2))
    subset = cells["batch_size"].isin(measured)
    times = StudyPredictor(cells[subset], network).predict(cells[cells["batch_size"] == 128])
    assert np.isfinite(times.seconds).all() == predicted
    notes = [remark for remark in times.notes if remark.code == "unseen-batch"]
    assert [note.facts["batches"] for note in notes] == ([] if predicted else [[128.0]])


def test_benchmarks_that_are_left_out_are_not_used():
    cells, network = built(Truth())
    subset = cells["nodes"] <= 3
    spoiled = network.points.assign(seconds=network.points["seconds"].where(network.points["nodes"] <= 3, 99))
    first, again = (
        StudyPredictor(cells[subset], benchmark.hold_out([4, 6], [])).predict(cells).seconds
        for benchmark in (network, CollectiveBenchmark(spoiled))
    )
    assert np.allclose(first, again)


def test_the_single_device_baseline_stands_for_one_node():
    single = synthetic.runs(nodes=(1,), rates=(125e6,), framework="pytorch-single")
    cells = measured_cells(synthetic.joined(single, synthetic.runs(nodes=(2, 3))))
    study = StudyPredictor(cells)
    informing = study.informing_cells(cells[cells["nodes"] == 3].iloc[0].to_dict())
    assert set(informing.loc[informing["n_devices"] == 1, "framework"]) == {"pytorch-single"}
    assert error(study, cells).abs().mean() < 4 * NOISE


def test_a_global_batch_is_shared_out():
    truth = Truth()
    cells, network = built(truth)
    # 32 samples on each of two nodes are a global batch of 64
    halved = cells[(cells["nodes"] == 2) & (cells["batch_size"] == 32)].assign(
        batch_size=64, batch_scope="global"
    )
    assert error(StudyPredictor(cells, network), halved).abs().max() < 0.05


def test_nothing_is_predicted_from_nothing():
    cells, network = built(Truth())
    assert np.isnan(StudyPredictor(cells.iloc[:0], network).predict(cells).seconds).all()
    assert len(StudyPredictor(cells, network).predict(cells.iloc[:0]).seconds) == 0
    assert np.isfinite(
        StudyPredictor(cells[cells["nodes"] > 1]).predict(cells[cells["nodes"] > 1]).seconds
    ).all()


def test_varied_accumulation_separates_update_from_batch():
    truth = Truth(update_s=0.02)
    cells, _ = built(truth, every=(1, 4), nodes=(1,))
    assert fit_computation(cells) == pytest.approx([truth.batch_s, truth.sample_s, truth.update_s], rel=0.1)


def test_an_epoch_is_scaled_to_the_samples_of_the_data_set():
    runs = synthetic.runs(noise=0.0, nodes=(1, 3), batches=(96,), rates=(125e6,), replicates=1)
    cells = measured_cells(runs).set_index("nodes")
    assert cells["samples"].nunique() == 1
    assert cells.at[1, "batches_per_epoch"] * 96 == pytest.approx(synthetic.SAMPLES)
    assert cells.at[3, "batches_per_epoch"] * 96 * 3 == pytest.approx(synthetic.SAMPLES)
    planned = planned_cells(runs).set_index("nodes")
    assert planned.at[3, "n_allreduces"] == pytest.approx(cells.at[3, "n_allreduces"])


def test_meshes_are_left_out_and_named():
    runs = synthetic.runs(Truth(), noise=NOISE)
    last = runs["cell"].iloc[-1]
    divided = runs.assign(parallelism=runs["parallelism"].where(runs["cell"] != last, "tensor"))
    assert runs.set_index("cell").at[last, "ranks"].max() > 1
    assert set(measured_cells(runs)["cell"]) - set(measured_cells(divided)["cell"]) == {last}
    excluded = exclusion_note(divided)
    assert (excluded.code, excluded.facts) == (
        "cells-left-out",
        {"uncounted": [], "divided": [last], "of_strategies": []},
    )
    assert last in excluded
    assert exclusion_note(runs) == "" == exclusion_note(runs.assign(parallelism="data"))


def test_ddp_sends_resnet_50_in_a_small_and_four_large_buckets():
    graph = find_graph("resnet-50", "synthetic-224x224x3-1000")
    sizes = bucket_bytes(graph, message_rule("pytorch-ddp"))
    assert sizes.sum() == 4 * 25_557_032  # torchvision's number of parameters
    assert len(sizes) == 5 and 2**20 <= sizes[0] < 25 * 2**20
    assert bucket_bytes(graph, message_rule("tensorflow-multiworker")).tolist() == [graph.gradient_bytes]


def bounds(truth):
    runs, network = synthetic.runs(truth, noise=0, replicates=1), synthetic.network(truth, noise=0)
    return runs.set_index("cell")["epoch_time_s"], pd.Series(shortest_epochs(runs, network))


def test_full_overlap_without_waiting_nears_the_bound():
    times, least = bounds(Truth(hidden=1.0, sigma=0.0, update_s=0.0))
    assert set(least.index) == set(times.index)
    assert (times[least.index] / least).median() == pytest.approx(1, rel=0.05)


def test_what_waits_stays_above_the_bound():
    times, least = bounds(Truth(hidden=0.3, sigma=0.3, update_s=0.0))
    beyond = times[least.index] / least
    assert beyond.min() > 0.99 and beyond.max() > 1.1


def test_without_a_benchmark_there_is_no_bound():
    assert shortest_epochs(synthetic.runs(), NO_BENCHMARK) == {}
    failed = synthetic.runs().assign(status="failed", epoch_time_s=float("nan"))
    assert shortest_epochs(failed, synthetic.network()) == {}


def test_measurements_made_elsewhere_are_predicted(tmp_path):
    """Their rows have no counts of batches, and 1x1 to 4x8 V100 are one series."""
    held_out.main(runs=IMPORTED / "dlperf" / "runs.csv", out=tmp_path / "prediction")
    rows = pd.read_csv(tmp_path / "prediction.csv").set_index(["left_out", "method"])
    law_row, ernest = rows.loc[("4 nodes", "law")], rows.loc[("4 nodes", "Ernest")]
    assert law_row["predicted"] == law_row["cells"] == 4
    assert law_row["mape"] < 0.03 and law_row["in_band"] == 1 and law_row["mape"] < ernest["mape"]


def test_unregistered_model_is_divided_evenly():
    runs = synthetic.runs(nodes=(2, 4), rates=(125e6,), batches=(32,)).assign(
        model="theirs", parameters=1e9, parallelism="pipeline-tensor2", microbatches=4, replicas=1
    )
    counts = runs[["steps", "n_allreduces"]].mul(runs["nodes"], axis="index")  # of one replica
    cells = measured_cells(runs.assign(**counts), include_meshes=True)
    columns = law_rows(cells, CollectiveBenchmark()).set_index(cells["nodes"])
    assert columns.loc[4, ["tensor", "pipeline", "n_passes"]].tolist() == [2, 2, 4]
    assert columns.loc[4, "local_batch"] == 32 / (4 * 4)
    assert columns.loc[4, "gradient_bytes"] == 4e9 and not columns["uses_mesh_formula"].any()
