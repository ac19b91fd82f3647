"""Other responses than epoch time: pooled like it, rates as inverted costs, derived from what runs record."""

import numpy as np
import pandas as pd
import pytest

from analysis import anova, answers, cells, effects, time_to_accuracy
from analysis.batch_scaling import batch_scaling
from analysis.cell_means import estimate_means, estimate_response_means, measured_response
from analysis.evidence import Evidence
from analysis.records import Records
from analysis.responses import response_notes, with_response
from common.notes import codes, find_note
from declared.responses import EPOCH_TIME, RESPONSES, Response
from support.synthetic import campaign, metered, write_frames

BOUNDS = ["mean", "low", "high"]


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> tuple[pd.DataFrame, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("responses")
    records = Records(*write_frames(folder, *metered(*campaign(failures={}))))
    return records.runs, records.epochs


@pytest.fixture(scope="module")
def runs(frames):
    return frames[0]


def measured(frames, name, target=None):
    return with_response(frames[0], RESPONSES[name], lambda: frames[1], target)


def test_a_rate_is_the_inverse_cost(runs):
    times = estimate_means(runs).cell_statistics
    rates = estimate_response_means(runs, RESPONSES["throughput"]).cell_statistics
    samples = float(runs["samples_per_epoch"].iloc[0])
    assert np.allclose(rates["mean"], samples / times["mean"]), "a harmonic mean"
    assert np.allclose(rates["low"], samples / times["high"])
    assert np.allclose(rates["high"], samples / times["low"])
    assert np.allclose(rates[["cv", "s", "df"]], times[["cv", "s", "df"]])


def test_ratios_of_rates_are_those_of_costs_inverted(runs):
    names = list(estimate_means(runs).values_by_cell)[:6]
    to, base = names[1:], names[:-1]
    times = estimate_means(runs).ratios(to, base)
    rates = estimate_response_means(runs, RESPONSES["throughput"]).ratios(to, base)
    assert np.allclose(rates[["value", "low", "high"]], 1 / times[["value", "high", "low"]].to_numpy())
    assert np.allclose(rates["p"], times["p"]) and (rates["within_blocks"] == times["within_blocks"]).all()


def test_differences_of_rates_are_of_harmonic_means(runs):
    cell_means = estimate_response_means(runs, RESPONSES["throughput"])
    names = list(cell_means.values_by_cell)[:6]
    rows, means = cell_means.differences(names[1:], names[:-1]), cell_means.cell_statistics.loc[names, "mean"]
    assert np.allclose(rows["value"], np.diff(means))
    relative = (rows["high"] - rows["value"]) / means.to_numpy()[1:]
    on_log_scale = np.log(cell_means.ratios(names[1:], names[:-1]).eval("high / value"))
    assert np.allclose(relative, on_log_scale, rtol=0.5), "of the size that the delta method gives"


def test_epoch_time_is_pooled_as_ever(runs):
    assert estimate_response_means(runs, EPOCH_TIME) is estimate_means(runs)


def test_responses_are_derived_from_what_runs_record(frames):
    runs = frames[0]
    per_device = measured(frames, "throughput_per_device")["throughput_samples_s_device"]
    assert np.allclose(per_device, runs["throughput_samples_s"] / runs["n_devices"])
    on_gpu = runs.assign(device_memory_peak_bytes=[7.0, *[None] * (len(runs) - 1)])
    memory = measured((on_gpu, frames[1]), "memory")["rank_memory_bytes"]
    assert memory.tolist() == [7.0, *runs["memory_peak_bytes"].iloc[1:].astype(float)]
    energy = measured(frames, "energy_per_sample")["energy_per_sample_j"]
    assert np.allclose(energy, runs["energy_package_j"] / runs["samples_per_epoch"])


def test_time_to_accuracy_needs_all_runs_of_a_cell(frames):
    runs, epochs = frames
    summary = time_to_accuracy.summarize(runs, epochs, target := 0.7).set_index("cell")
    times = measured(frames, "time_to_accuracy", target)
    means = times.groupby("cell")["time_to_accuracy_s"].mean().reindex(summary.index)
    assert 0 < means.notna().sum() < len(means)
    assert np.allclose(means, summary["time_to_accuracy_s"], equal_nan=True)
    note = find_note(response_notes(times, RESPONSES["time_to_accuracy"]), "cells-without-response")
    assert sorted(note.facts["cells"]) == sorted(means.index[means.isna()])


def test_notes_say_whose_energy_it_is(frames):
    notes = response_notes(measured(frames, "energy_per_sample"), RESPONSES["energy_per_sample"])
    assert codes(notes) == ["response", "whose-energy"]
    assert find_note(notes, "whose-energy").facts == {"scope": "package"}


def test_the_table_of_cells_begins_with_the_response(frames):
    response = RESPONSES["memory"]
    table = cells.table(measured(frames, "memory"), response)
    headings = list(table.display)
    assert headings.index(response.label) == headings.index("n") + 1 < headings.index(EPOCH_TIME.label)
    cell_means = estimate_response_means(measured(frames, "memory"), response)
    expected = cell_means.cell_statistics.reindex(table.data["cell"])
    assert np.allclose(table.data[[f"rank_memory_bytes_{part}" for part in BOUNDS]], expected[BOUNDS])


def test_the_table_of_effects_has_ratios_of_the_response(runs):
    table = effects.table(runs, response=RESPONSES["throughput"])
    data = table.data
    assert np.allclose(data["response_ratio"], 1 / data["ratio"])
    assert np.allclose(data["response_ratio_low"], 1 / effects.build_rows(runs)["ratio_high"])
    assert np.allclose(data["response_p_holm"], data["p_holm"], equal_nan=True)
    assert "throughput: ratio" in table.display
    plain = effects.table(runs)
    assert plain.data.equals(data.drop(columns=[name for name in data if name.startswith("response_")]))


def answered(runs: pd.DataFrame, response: Response, margin: float | None = None) -> answers.Answer:
    table, variation = effects.table(runs, margin, response).data, anova.table(runs, response).data
    evidence = Evidence(runs, {"effects": table, "anova": variation}, measured_response(runs, response))
    return answers.answer_sentences(evidence, answers.Question(["framework"], margin, response))


def test_answer_about_throughput_is_that_about_time_inverted(runs):
    by_time, by_rate = (answered(runs, RESPONSES[name]) for name in ("epoch_time", "throughput"))
    assert codes(by_rate.main) == codes(by_time.main)
    for time, rate in zip(by_time.main, by_rate.main, strict=True):
        for name in ("levels", "wins", "significant", "tested", "open"):
            assert rate.facts.get(name) == time.facts.get(name)
    time, rate = (find_note(answer.main, "best-level").facts["lead"] for answer in (by_time, by_rate))
    assert rate.cells == time.cells and rate.ratio.value == pytest.approx(1 / time.ratio.value)
    assert rate.ratio.value > 1
    least = find_note(by_rate.main, "effect").facts["least"].ratio.value
    assert least == pytest.approx(1 / find_note(by_time.main, "effect").facts["greatest"].ratio.value)


def test_answer_without_the_response_is_about_epoch_time(runs):
    response = RESPONSES["energy_per_sample"]
    unmeasured = runs.assign(**{response.column: np.nan})
    first, *rest = answered(unmeasured, response).main
    assert (first.code, first.facts["response"]) == ("response-not-measured", response.name)
    assert rest == answered(runs, EPOCH_TIME).main
    assert anova.table(unmeasured, response).data.equals(anova.table(runs).data)


def test_analysis_of_variance_is_of_the_response(frames):
    runs = frames[0]
    time, rate = (anova.table(runs, RESPONSES[name]) for name in ("epoch_time", "throughput"))
    assert np.allclose(time.data["share"], rate.data["share"])
    assert np.allclose(time.data["q"], -rate.data["q"], equal_nan=True)
    memory = anova.table(measured(frames, "memory"), RESPONSES["memory"]).data
    assert not np.allclose(memory["share"], time.data["share"])


def test_equality_is_that_of_the_response(frames):
    runs, memory = measured(frames, "memory"), RESPONSES["memory"]
    by_time, by_memory = (effects.build_rows(runs, 0.05, response) for response in (EPOCH_TIME, memory))
    assert (by_memory["verdict"] == effects.EQUAL).sum() > (by_time["verdict"] == effects.EQUAL).sum()
    differs = by_memory["verdict"].isin([effects.DIFFERS, effects.DIFFERS_WITHIN])
    tested = by_memory["response_p_holm"].notna()
    assert (differs == (by_memory["response_p_holm"] < 0.05))[tested].all()


@pytest.mark.parametrize(
    ("local_batch", "effective_batch", "kind"),
    [
        ([16, 16, 16], [16, 32, 64], "fixed batch per replica"),
        ([16, 8, 4], [16, 16, 16], "strong scaling (fixed global batch)"),
        ([16, 12, 10], [16, 24, 40], None),
    ],
)
def test_scaling_is_named_by_the_batch_that_is_kept(runs, local_batch, effective_batch, kind):
    scaled = runs.drop_duplicates("cell").iloc[[0, 0, 0]].assign(
        cell=["a", "b", "c"], nodes=[1, 2, 4], n_devices=[1, 2, 4], batch_size=16,
        local_batch=local_batch, effective_batch=effective_batch,
    )  # fmt: skip
    note = batch_scaling(scaled, "nodes")
    assert (note and note.facts["kind"]) == kind and (note is None or "16" in note)
    assert batch_scaling(scaled.iloc[:1], "nodes") is None, "one scale"
