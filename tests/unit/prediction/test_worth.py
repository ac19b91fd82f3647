"""How many nodes are worth it: the knee, what limits it, what to measure next, and forecasts of a study."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from analysis.intervals import Estimate
from prediction import law, measured_study, numbers_predictor, projection, projection_table, worth
from prediction.curves import hypothetical_cells, node_counts, predict_curves
from prediction.question import GIGABIT_BYTES
from support import known_physics as synthetic
from support.predict_command import parse_question

SIZE = ["--batch-size", "8", "--rate", "100"]
ONE_SCALE = ["--measured", "1x8=1.0"]
FOUR_SCALES = [*ONE_SCALE, "2x8=1.05", "4x8=1.15", "8x8=1.3"]


def ask(*options, parameters="1e9"):
    return parse_question(*SIZE, "--parameters", parameters, *options)


def scaling(*options, nodes=256, parameters="1e9"):
    study_law, cases = numbers_predictor.predictor_of_numbers(ask(*options, parameters=parameters), None)
    cells = hypothetical_cells(cases, [GIGABIT_BYTES * 100], node_counts(nodes))
    return worth.joint_scaling(study_law, predict_curves(study_law, cells))


@pytest.fixture(scope="module")
def informed():
    return scaling(*FOUR_SCALES)


def gain(predicted, count):
    """Return the gain by its definition, for a number of nodes that the curve has."""
    speedup = {n: predicted.epoch_s[0] / s for n, s in zip(predicted.nodes, predicted.epoch_s, strict=True)}
    return (speedup[2 * count] - speedup[count]) / count


def test_knee_is_the_first_doubling_below_the_share(informed):
    gains = {count: gain(informed, count) for count in (1, 2, 4, 8)}
    share = (gains[2] + gains[4]) / 2
    assert gains[1] > gains[2] > gains[4], "this curve has to bend"
    knee = worth.find_knee(informed, share)
    assert 2 < knee.nodes.value <= 4 and knee.gain.value == pytest.approx(gain(informed, knee.nodes.value))
    assert knee.gain.value < share <= gain(informed, knee.nodes.value - 1)
    assert (
        knee.nodes.low <= knee.nodes.value <= knee.nodes.high
        and knee.gain.low < knee.gain.value < knee.gain.high <= 1 + 1e-9
    )
    assert worth.find_knee(informed, gains[1] + 0.01).nodes.value == 1


def test_answer_states_both_widths_as_factors(informed):
    knee = worth.find_knee(informed, 0.7)
    proposal = worth.NextMeasurements(counts=(2, 4), target=1024, now=1.5, then=0.6)
    answer = worth.explain_knee(knee, proposal, 0.7, "With links of 10 Gbit/s")
    assert answer.endswith("narrow the band on 1024 nodes from a factor of 2.5 to one of 1.60.")
    assert "less than the required 70 %" in answer


@pytest.mark.parametrize(
    ("low", "high", "has_guess"), [(1, math.inf, True), (4, math.inf, True), (1, 4, False)]
)
def test_only_an_open_band_makes_the_answer_a_guess(informed, low, high, has_guess):
    knee = replace(worth.find_knee(informed, 0.7), nodes=Estimate(4, low, high))
    answer = worth.explain_knee(knee, None, 0.7, "With links of 10 Gbit/s")
    assert ("The best guess is" in answer.partition("90 % band")[2]) == has_guess


def test_knee_beyond_all_counts_is_infinite(informed):
    knee = worth.find_knee(informed, 0.01)
    assert knee.nodes == Estimate(math.inf, math.inf, math.inf) and knee.considered == 256
    assert knee.gain.value == pytest.approx(gain(informed, 128))
    one_scale = worth.find_knee(scaling(*FOUR_SCALES, nodes=1))
    assert (
        one_scale.nodes.value == math.inf and math.isnan(one_scale.gain.value) and one_scale.considered == 1
    )


def test_measurements_narrow_the_band_of_a_gain(informed):
    one_scale, many_scales = (
        worth.find_knee(predicted, 0.99) for predicted in (scaling(*ONE_SCALE), informed)
    )
    assert one_scale.nodes.value == many_scales.nodes.value == 1
    assert many_scales.gain.high - many_scales.gain.low < 0.6 * (one_scale.gain.high - one_scale.gain.low)


def test_errors_that_all_counts_share_cancel_in_a_gain(informed):
    n_counts = len(informed.nodes)
    shared = SimpleNamespace(
        log_covariance=lambda _: np.full((n_counts, n_counts), 0.04), parts=informed.law.parts
    )
    gain = worth.find_knee(replace(informed, law=shared), 0.99).gain
    assert gain.high - gain.low < 1e-3


def test_contradicting_cells_have_finite_bands(monkeypatch):
    """A study can have cells that no law fits, whereas such numbers of a user are refused."""
    monkeypatch.setattr(numbers_predictor, "MAX_MISFIT", math.inf)
    contradicting = scaling("--measured", "1x8=0.84", "2x8=0.001")
    assert (
        np.isfinite(contradicting.law.log_covariance(contradicting.law_rows)).all()
        and np.isfinite(contradicting.law.predict(contradicting.law_rows).high).all()
    )
    gain = worth.find_knee(contradicting).gain
    assert gain.low <= gain.value <= gain.high <= 1 + 1e-9
    assert math.isfinite(worth.propose_measurements(contradicting, 64).now)


def test_covariance_has_the_band_on_its_diagonal(informed):
    covariance = informed.law.log_covariance(informed.law_rows)
    band = informed.law.predict(informed.law_rows).log_sd ** 2 - law.EXTRA_LOG_SD**2
    assert np.diag(covariance) == pytest.approx(band)
    assert np.linalg.eigvalsh(covariance).min() > -1e-12


def test_held_out_errors_are_half_shared_a_doubling_apart(informed):
    """All forms have a weight here, so the sums need no care for missing ones."""
    step_law, pair = informed.law, informed.law_rows[np.isin(informed.nodes, [64, 128])]
    weights = step_law.form_weights / step_law.form_weights.sum()
    logs = np.log([form.predict(law.build_regressors(pair)) for form in step_law.forms])
    deviations = logs - weights @ logs
    fitted = np.array([form.log_covariance(law.build_regressors(pair))[0, 1] for form in step_law.forms])
    expected = weights @ (deviations.prod(axis=1) + 0.5 * step_law.leave_one_out_errors**2 + fitted)
    doublings = law.DOUBLING_LOG_SD**2 * 3 * 4  # from 8 nodes, the most that were measured
    assert step_law.log_covariance(pair)[0, 1] == pytest.approx(expected + doublings)


def test_parts_add_up_to_the_step(informed):
    parts = informed.law.parts(informed.law_rows)
    assert parts.sum(axis=1).to_numpy() == pytest.approx(informed.law.predict(informed.law_rows).seconds)
    assert set(parts) == set(law.PARTS.values())
    assert parts["communication between nodes"].iloc[0] == 0


@pytest.mark.parametrize(
    ("parameters", "step_s", "limit"),
    [
        ("1e9", (3.0, 4.0, 4.5), "communication between nodes"),
        ("1e5", (1.05, 1.12, 1.19), "waiting for the slowest rank"),
    ],
)
def test_what_grows_most_is_named(parameters, step_s, limit):
    scales = [f"{nodes}x8={seconds}" for nodes, seconds in zip((2, 4, 8), step_s, strict=True)]
    knee = worth.find_knee(scaling(*ONE_SCALE, *scales, parameters=parameters), 0.8)
    assert next(iter(knee.parts)) == limit
    assert sum(knee.parts.values()) == pytest.approx(1) and knee.parts[limit] > 0.5


def test_proposed_counts_narrow_as_much_as_they_say(informed):
    proposal = worth.propose_measurements(informed, 256)
    assert proposal.counts and proposal.then < proposal.now
    assert set(proposal.counts) <= {16, 32}, "up to 4 times the measured 8 nodes, and none twice"
    steps = informed.law.predict(informed.law_rows)
    variances = []
    for end in (-worth.TYPICAL_DEVIATION, worth.TYPICAL_DEVIATION):
        step_s = dict(zip(informed.nodes, steps.seconds * np.exp(end * steps.log_sd), strict=True))
        extended = scaling(*FOUR_SCALES, *(f"{n}x8={float(step_s[n])!r}" for n in proposal.counts))
        variances.append(extended.law.predict(extended.law_rows).log_sd[-1] ** 2)
    assert np.expm1(law.Z * np.sqrt(np.mean(variances))) == pytest.approx(proposal.then)
    assert worth.expected_width(informed, (), 256) == pytest.approx(proposal.now)


def test_proposed_counts_can_be_measured(informed):
    assert worth.propose_measurements(informed, 256, measurable=8).counts == ()
    assert max(worth.propose_measurements(informed, 256, measurable=100).counts) <= 64
    assert max(worth.propose_measurements(scaling(*ONE_SCALE), 64).counts) <= 4


def test_fewest_nodes_that_narrow_almost_as_much_are_proposed(informed):
    proposal = worth.propose_measurements(informed, 64, measurable=64)
    narrowest = worth.expected_width(informed, (32, 64), 64)
    assert proposal.counts == (16, 64) and narrowest < proposal.then
    assert proposal.now - proposal.then >= worth.NEAR_BEST_SHARE * (proposal.now - narrowest)


@pytest.mark.parametrize("scales", [["--measured", "1x8=0.84", "2x8=0.91"], ["--measured", "4x8=0.84"]])
def test_steps_faster_than_their_links_have_a_wide_band(scales):
    """At 1 Gbit/s, 5.2 GB take much longer than these steps, such as when --rate is wrong."""
    projected = projection.project_scaling(ask(*scales, "--rate", "1", "--nodes", "2", parameters="1.3e9"))
    row = projected.rows.iloc[0]
    assert np.isfinite(projected.curves[["epoch_time_s_low", "epoch_time_s_high"]]).all(axis=None)
    assert row["measure_next"] in ("", "1", "2", "1 2") and 0 <= row["band_then"] <= row["band_now"]


def test_share_and_limits_of_the_question_reach_the_answer():
    rows = {
        share: projection.project_scaling(ask(*FOUR_SCALES, "--min-gain", share)).rows.iloc[0]
        for share in ("0.5", "0.9")
    }
    assert rows["0.5"]["worth_nodes"] > rows["0.9"]["worth_nodes"]
    narrow = projection.project_scaling(ask(*FOUR_SCALES, "--measurable", "16", "--nodes", "64")).rows.iloc[0]
    assert narrow["measure_next"] in ("", "16")


def test_counts_have_cost_and_node_hours_of_all_epochs():
    question = ask(*FOUR_SCALES, "--at", "48", "--epochs", "10", "--price", "2.5", "--nodes", "64")
    projected = projection.project_scaling(question)
    row = projected.curves[projected.curves["nodes"] == 48].iloc[0]
    assert row["node_hours"] == pytest.approx(10 * 48 * row["epoch_time_s"] / 3600)
    assert row["throughput_samples_s"] == pytest.approx(1281167 / row["epoch_time_s"])
    assert row["node_hours_low"] < row["node_hours"] < row["node_hours_high"]
    assert row["epoch_time_s_low"] >= projected.curves["epoch_time_s"].iloc[0] / 48 * (1 - 1e-9), (
        "ideal at best"
    )
    for end in ("", "_low", "_high"):
        assert row[f"cost{end}"] == pytest.approx(2.5 * row[f"node_hours{end}"])
    table = projection_table.counts_table(projected.curves, question.at)
    assert table.display["nodes"].tolist() == ["48"] and "cost" in table.display
    percent = float(table.display["efficiency (%)"].iloc[0].partition(" ")[0])
    assert percent == pytest.approx(100 * row["efficiency"], rel=0.01)


def test_strong_scaling_is_limited_by_small_batches(tmp_path):
    """A step of a fixed global batch takes 20 ms, 1 ms for each sample of a device, 4 ms for each doubling."""
    runs = synthetic.runs(nodes=(1, 2, 4, 8)).query("batch_size == 128")
    step_s = 0.02 + 0.128 / runs["nodes"] + 0.004 * np.log2(runs["nodes"])
    steps = runs["samples_per_epoch"] // 128
    runs = runs.assign(
        batch_scope="global", local_batch=128 / runs["nodes"], effective_batch=128, steps=steps,
        n_allreduces=steps, epoch_time_s=step_s * steps, epoch_time_median_s=step_s * steps,
    )  # fmt: skip
    synthetic.written(runs, "runs", tmp_path)
    question = parse_question("--from", str(tmp_path), "--rate", "1", "--nodes", "32")
    (row,) = projection.project_scaling(question).rows.to_dict("records")
    speedup = 0.148 / (0.02 + 0.064 + 0.004)
    assert row["worth_nodes"] == 1 and row["limit"] == "constant time of a batch"
    assert row["next_gain"] == pytest.approx(speedup - 1, rel=0.03)
    assert row["next_gain_low"] < speedup - 1 < row["next_gain_high"]


def test_forecast_of_a_campaign(campaigns):
    study = measured_study.load_study_folder(campaigns / "prediction-virtual")
    priced = replace(study, runs=study.runs.assign(price_per_node_hour=3.0, currency="EUR"))
    rows = projection.predict_cases(priced, 24)
    assert set(rows["batch_size"]) == {32, 64, 128} and set(rows["rate"]) == {1.25e8}
    assert (rows["node_hours"] / (24 * rows["epoch_time_s"] / 3600)).to_numpy() == pytest.approx(1)
    assert (rows["cost"] / rows["node_hours"]).to_numpy() == pytest.approx(3)
    assert set(rows["currency"]) == {"EUR"} and set(rows["nodes"]) == {24}
    assert (rows["efficiency_low"] < rows["efficiency"]).all()
    two_prices = priced.runs["price_per_node_hour"].mask(priced.runs["replicate"] == 1, 4.0)
    repriced = replace(study, runs=priced.runs.assign(price_per_node_hour=two_prices))
    assert projection.predict_cases(repriced, 24)["cost"].isna().all()


def test_stated_price_comes_before_that_of_the_study(campaigns):
    study = measured_study.load_study_folder(campaigns / "prediction-virtual")
    priced = replace(study, runs=study.runs.assign(price_per_node_hour=3.0, currency="EUR"))
    options = ["--from", str(campaigns / "prediction-virtual"), "--rate", "1", "--nodes", "8", "--price", "5"]
    curves = projection.project_scaling(parse_question(*options), priced).curves
    assert (curves["cost"] / curves["node_hours"]).to_numpy() == pytest.approx(5)
    assert set(curves["currency"]) == {""}, "that of the study is another price's"


def test_forecast_of_a_cell_has_its_own_links(campaigns):
    study = measured_study.load_study_folder(campaigns / "prediction-virtual")
    cell = study.predictor.cells[study.predictor.cells["nodes"] == 6].iloc[0]
    (row,) = projection.predict_cases(study, 24, cell=cell["cell"]).to_dict("records")
    assert (row["rate"], row["batch_size"]) == (cell["rate"], cell["batch_size"])
    assert math.isnan(row["cost"]), "the site states no price"


@pytest.mark.parametrize(
    ("name", "n_cases", "treatment"),
    [("public-mpt-fsdp", 17, "gpu h100-80gb"), ("public-mlperf-llama", 8, "parallelism data-tensor4")],
)
def test_divided_models_of_imports_are_projected(campaigns, name, n_cases, treatment):
    """Shards and tensor parallelism of models that are not registered scale at the links they had."""
    study = measured_study.load_study_folder(campaigns / "public" / name)
    rows = projection.predict_cases(study, 64)
    assert len(rows) == n_cases and rows["treatment"].str.contains(treatment).any()
    assert set(rows["rate"]) == set(study.runs["bandwidth_bytes_s"].dropna())
    cells = study.predictor.cells[
        (study.predictor.cells["nodes"] == 64) & (study.predictor.cells["batch_size"] == 16)
    ]
    for cell in cells.to_dict("records"):
        is_case = (
            (rows["model"] == cell["model"]) & (rows["batch_size"] == 16) & (rows["rate"] == cell["rate"])
        )
        predicted = rows.loc[is_case, "epoch_time_s"].iloc[0]
        assert predicted == pytest.approx(cell["epoch_time_s"], rel=0.03)
