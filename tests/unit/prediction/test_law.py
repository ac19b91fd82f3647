"""The optimizer-step law recovers known costs, and predicts public series as well as it did."""

import math

import numpy as np
import pandas as pd
import pytest

import public_series
from prediction import law
from prediction.law import OptimizerStepLaw, predict_optimizer_steps
from public_series import FIXTURE, LAW, make_splits, predict_splits, read_cells

GIGABYTE = 1e9
# Median error of each source, largest count of devices left out, when the constants were set; and over all.
MEDIANS = {
    "Oneflow-Inc/DLPerf": 0.0190,
    "mosaicml/llm-foundry": 0.0090,
    "mlcommons/training_results": 0.0245,
    "NVIDIA/DeepLearningExamples": 0.0140,
}


def cells(scales, **changes):
    """Return cells at these scales (nodes, devices per node), with changed columns."""
    table = pd.DataFrame(scales, columns=["nodes", "devices_per_node"])
    levels = {
        "gradient_bytes": 1e9, "local_batch": 8.0, "n_passes": 1, "tensor": 1, "pipeline": 1,
        "sharded": False, "rate": 10 * GIGABYTE, "inside_rate": 100 * GIGABYTE, "n": 1, "sd": math.nan,
    } | changes  # fmt: skip
    return table.assign(n_devices=table["nodes"] * table["devices_per_node"], **levels)


def with_steps(table, optimizer_step_s):
    """Return the cells with these steps."""
    return table.assign(optimizer_step_s=np.asarray(optimizer_step_s, float))


def hierarchical(nodes, link_s=0.1):
    """Return the seconds of a hierarchical all-reduce over nodes."""
    nodes = np.asarray(nodes, float)
    return 2 * (nodes - 1) / nodes * link_s


SCALES = [(1, 8), (2, 8), (4, 8), (8, 8), (16, 8)]


def test_hierarchical_costs_are_recovered():
    table = cells(SCALES)
    steps = with_steps(table, 0.5 + 0.7 * hierarchical(table["nodes"]))
    predicted = predict_optimizer_steps(steps[:4], table[4:])
    assert predicted.seconds[0] == pytest.approx(steps["optimizer_step_s"][4], rel=0.01)
    assert predicted.low[0] < steps["optimizer_step_s"][4] < predicted.high[0]


def test_waiting_that_grows_with_log_nodes_is_recovered():
    table = cells(SCALES)
    steps = with_steps(table, 0.5 + 0.03 * np.log2(table["nodes"]))
    assert predict_optimizer_steps(steps[:4], table[4:]).seconds[0] == pytest.approx(0.62, rel=0.02)


def test_one_cell_on_several_nodes_informs_the_law():
    table = cells(SCALES[:3])
    steps = with_steps(table, 0.5 + 2 * hierarchical(table["nodes"]))
    from_one_node, from_two = (
        predict_optimizer_steps(steps[:count], table[2:]).seconds[0] for count in (1, 2)
    )
    assert abs(from_two - steps["optimizer_step_s"][2]) < abs(from_one_node - steps["optimizer_step_s"][2])


def test_place_inside_a_node_does_not_change_places_on_several():
    table = cells([(1, 1), *SCALES[:3]])
    steps = with_steps(table, [0.2, 0.5, 0.57, 0.6])
    with_alone, without_alone = (
        predict_optimizer_steps(measured, table[3:]).seconds[0] for measured in (steps[:3], steps[1:3])
    )
    assert with_alone == without_alone


def test_accumulation_and_batches_are_recovered():
    table = pd.concat(
        [cells(SCALES, n_passes=k, local_batch=b) for k, b in ((1, 8.0), (4, 8.0), (4, 16.0))],
        ignore_index=True,
    )
    work = table["n_passes"] * (0.1 + 0.05 * table["local_batch"])
    steps = with_steps(table, work + 0.02 + hierarchical(table["nodes"]))
    new = cells([(8, 8)], n_passes=8, local_batch=32.0)
    truth = 8 * (0.1 + 0.05 * 32) + 0.02 + hierarchical(8)
    assert predict_optimizer_steps(steps, new).seconds[0] == pytest.approx(truth, rel=0.02)


def test_pipeline_fills_with_micro_batches():
    """Turns are m + p - 1 in a pipeline of p stages (Huang et al., NeurIPS 2019, section 2.3)."""
    table = cells([(8, 8), (16, 8), (32, 8), (64, 8)], tensor=8, pipeline=8, local_batch=1 / 64)
    table["n_passes"] = [64, 32, 16, 8]
    steps = with_steps(table, 0.1 * (table["n_passes"] + 7))
    predicted = predict_optimizer_steps(steps[:3], table[3:]).seconds[0]
    assert predicted == pytest.approx(1.5, rel=0.02)


def test_sharded_parameters_are_gathered_once_more_than_batches():
    plain, sharded = (law.build_regressors(cells([(4, 8)], n_passes=4, sharded=x)) for x in (False, True))
    for name in (law.FLAT, law.HIERARCHICAL):
        assert sharded.node_regressors[name][0] == pytest.approx((5 + 1) / 2 * plain.node_regressors[name][0])


@pytest.mark.parametrize(("batches", "refused"), [([8.0, 8.0], True), ([8.0, 16.0], False)])
def test_unseen_batch_needs_two_others(batches, refused):
    table = cells([(1, 8), (2, 8)])
    steps = with_steps(table.assign(local_batch=batches), [0.5, 0.6])
    predicted = predict_optimizer_steps(steps, cells([(4, 8)], local_batch=32.0))
    assert predicted.unseen_batch.tolist() == [refused]
    assert math.isnan(predicted.seconds[0]) == refused


def test_misfit_is_that_of_the_measured_places():
    table = cells(SCALES)
    smooth = 0.5 + hierarchical(table["nodes"])
    assert OptimizerStepLaw(with_steps(table, smooth)).misfit < law.MISFIT_WARNING
    assert OptimizerStepLaw(with_steps(table, smooth * [1, 1.1, 1, 1.1, 1])).misfit > law.MISFIT_WARNING


def test_unknown_rates_and_sizes_take_a_share_of_a_step():
    table = cells(SCALES, rate=math.nan, inside_rate=math.nan, gradient_bytes=math.nan)
    steps = with_steps(table, 0.5 + 0.7 * hierarchical(table["nodes"]))
    assert predict_optimizer_steps(steps[:4], table[4:]).seconds[0] == pytest.approx(
        steps["optimizer_step_s"][4], rel=0.01
    )


def test_benchmark_replaces_an_unknown_rate():
    table = cells(SCALES, rate=math.nan, gradient_bytes=math.nan)
    table["benchmarked_messages_s"] = [0.0, 0.1, 0.3, 0.2, 0.4]
    steps = with_steps(table, 0.5 + 0.8 * table["benchmarked_messages_s"])
    assert predict_optimizer_steps(steps[:4], table[4:]).seconds[0] == pytest.approx(
        0.5 + 0.8 * 0.4, rel=0.03
    )


def test_benchmark_counts_alone_before_several_nodes_are_seen():
    table = cells(SCALES, rate=1e6).assign(benchmarked_messages_s=[0.0, 0.1, 0.15, 0.2, 0.2])
    steps = with_steps(table, 0.5 + table["benchmarked_messages_s"])
    assert predict_optimizer_steps(steps[:1], table[4:]).seconds[0] == pytest.approx(0.7, rel=0.05)


def test_hidden_messages_are_recovered():
    """Messages overlap half of the last backward pass; only the time beyond that counts."""
    table = pd.concat([cells(SCALES, rate=rate * GIGABYTE) for rate in (10, 2, 1)], ignore_index=True)
    table["benchmarked_messages_s"] = hierarchical(table["nodes"], 1.0) / table["rate"] * GIGABYTE
    backward_s = 0.6 * law.BACKWARD_SHARE
    steps = with_steps(table, 0.6 + np.maximum(table["benchmarked_messages_s"] - 0.5 * backward_s, 0.0))
    is_last = table["nodes"] == 16
    predicted = predict_optimizer_steps(steps[~is_last], table[is_last]).seconds
    assert predicted == pytest.approx(steps.loc[is_last, "optimizer_step_s"].to_numpy(), rel=0.02)


def test_links_are_not_guessed_from_one_node():
    table = cells(SCALES, rate=math.nan, inside_rate=math.nan, gradient_bytes=math.nan)
    predicted = predict_optimizer_steps(with_steps(table, 0.5)[:1], table[1:])
    assert np.isnan(predicted.seconds).all() and np.isnan(predicted.low).all()


def test_rates_say_nothing_if_measured_links_have_none():
    table = cells(SCALES, rate=math.nan)
    measured = with_steps(table, 0.5 + hierarchical(table["nodes"]))[:3]
    slow, fast = (
        predict_optimizer_steps(measured, cells([(16, 8)], rate=rate)).seconds[0] for rate in (1e8, 1e11)
    )
    assert math.isnan(slow) and math.isnan(fast)
    assert predict_optimizer_steps(measured, table[4:]).seconds[0] > 0.5, "at the rate of the measured links"


def test_links_take_their_share_of_an_unknown_size():
    table = cells(SCALES, gradient_bytes=math.nan)
    measured = with_steps(table, 0.5 + hierarchical(table["nodes"]))[:4]
    slow, equal, fast = (
        predict_optimizer_steps(measured, cells([(16, 8)], gradient_bytes=math.nan, rate=rate)).seconds[0]
        for rate in (5e9, 1e10, 1e11)
    )
    assert slow == pytest.approx(0.5 + 2 * hierarchical(16), rel=0.05)
    assert equal == pytest.approx(0.5 + hierarchical(16), rel=0.01) and fast < 0.56


def test_model_parallel_groups_of_a_node_share_its_link():
    """Each of 8 tensor ranks has an eighth of the gradients, and all of them send at once."""
    plain, tensor = (law.build_regressors(cells([(4, 8)], tensor=size)) for size in (1, 8))
    assert tensor.node_regressors[law.HIERARCHICAL][0] == pytest.approx(
        plain.node_regressors[law.HIERARCHICAL][0]
    )
    assert plain.inside_s[0] > 0 and tensor.inside_s[0] == 0


def test_waiting_grows_with_the_root_of_accumulation():
    regressors = law.build_regressors(cells([(4, 8), (4, 8)], n_passes=[1, 4]))
    single, four_times = regressors.design_matrix((law.WAITING,), 0.01)[:, 6]
    assert four_times == pytest.approx(2 * single) and single == pytest.approx(2 * 0.08)


def test_scatter_widens_the_uncertainty_of_coefficients():
    table = cells(SCALES)
    smooth = 0.5 + hierarchical(table["nodes"])
    regressors, error = law.build_regressors(table), np.full(len(table), 0.01)
    exact, scattered = (
        law.fit_form((law.HIERARCHICAL,), regressors, smooth * factors, error).coefficient_covariance[1, 1]
        for factors in (np.ones(5), np.array([1, 1.1, 1, 1.1, 1]))
    )
    assert scattered > 10 * exact


def test_band_has_a_floor_and_grows_with_devices_beyond(monkeypatch):
    table = cells(SCALES)
    measured = with_steps(table, 0.5 + hierarchical(table["nodes"]))[:4]
    squares = predict_optimizer_steps(measured, table).log_sd ** 2
    for name, shares in (("EXTRA_LOG_SD", [1, 1, 1, 1, 1]), ("DOUBLING_LOG_SD", [0, 0, 0, 0, 1])):
        with monkeypatch.context() as patch:
            constant = getattr(law, name)
            patch.setattr(law, name, 0.0)
            assert squares - predict_optimizer_steps(measured, table).log_sd ** 2 == pytest.approx(
                np.array(shares) * constant**2
            )
            assert constant > 0


def test_many_cells_leave_nothing_to_wrong_forms():
    """With n cells on several nodes, the weight of a form is a likelihood: error to the power of -n / 2."""
    table = cells([(2**power, 8) for power in range(13)])
    fitted = OptimizerStepLaw(with_steps(table, 0.5 + 0.05 * np.log2(table["nodes"])))
    shares = dict(
        zip(
            (form.terms for form in fitted.forms),
            fitted.form_weights / fitted.form_weights.sum(),
            strict=True,
        )
    )
    assert shares[law.FLAT,] + shares[law.HIERARCHICAL,] < 1e-4


def test_noisy_cells_inform_less():
    table = cells(SCALES[:3], n=2, sd=0.0)
    steps = with_steps(table, [0.5, 0.6, 0.65])
    exact, noisy = (OptimizerStepLaw(steps.assign(sd=sd)).error for sd in (0.0, 0.1))
    assert (noisy > 2 * exact).all()
    four_times = OptimizerStepLaw(steps.assign(sd=0.1, n=8)).error
    assert noisy**2 - exact**2 == pytest.approx(4 * (four_times**2 - exact**2))


def test_lower_rate_stands_for_an_oversubscribed_switch():
    """Beyond 8 nodes, each has half or a quarter of its link: no measurement shows it, the rate does."""
    table = cells([*SCALES, (32, 8)], rate=10 * GIGABYTE / np.array([1, 1, 1, 1, 2, 4]))
    messages_s = hierarchical(table["nodes"]) * 10 * GIGABYTE / table["rate"]
    steps = with_steps(table, 0.5 + 0.8 * messages_s)
    for rows in (steps, steps.assign(benchmarked_messages_s=messages_s)):
        predicted = predict_optimizer_steps(rows[:4], rows[4:]).seconds
        assert predicted == pytest.approx(steps["optimizer_step_s"][4:].to_numpy(), rel=0.03)


@pytest.fixture(scope="module")
def errors():
    return predict_splits(list(make_splits(read_cells(FIXTURE))), public_series.METHODS)


@pytest.mark.parametrize("source", MEDIANS)
def test_errors_of_public_series_do_not_rise(errors, source):
    by_law = errors[
        (errors["method"] == LAW) & (errors["left_out"] == "largest") & (errors["source"] == source)
    ]
    assert by_law["error"].abs().median() <= MEDIANS[source]


def test_law_beats_other_models_on_public_series(errors):
    median = errors.assign(error=errors["error"].abs()).groupby(["left_out", "method"])["error"].median()
    for left_out in public_series.LEFT_OUT:
        assert median[left_out, LAW] < median[left_out].drop(LAW).drop("log-linear").min()


def test_band_holds_most_public_measurements(errors):
    by_law = errors[(errors["method"] == LAW) & errors["error"].notna()]
    assert by_law["held"].mean() >= 0.85
