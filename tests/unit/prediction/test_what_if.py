"""The table of what if: a made-up study whose physics the replay has, so that what it predicts is what was
measured.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.records import cell_levels, timing_runs
from common.notes import codes, find_note
from prediction import what_if
from prediction.message_times import CollectiveBenchmark, benchmark_points
from support import known_physics as synthetic
from support.made_up_trace import Truth

PHYSICS = synthetic.Truth()
SIZES = [2_102_824, 75_264]  # DDP's buckets of small-cnn
RATES = (31.25e6, 62.5e6, 125e6)
BASE = {"nodes": 2, "batch_size": 32, "bandwidth": 500, "sync_every": 1}
STEPS = 16
TRACING = 1.02  # what tracing costs


def step_of(nodes, batch, rate):
    """Return a step of a rank: loading data is fixed, the rest grows with samples.

    A larger bucket half-way, a small one at the end.
    """
    moving = tuple(PHYSICS.all_reduce(size, nodes, rate) for size in SIZES) if nodes > 1 else ()
    return Truth(
        forward=(0.0003 * batch,) * nodes, backward=(0.0006 * batch,) * nodes,
        ready=(0.5, 1.0)[: len(moving)], moving=moving, finish=0.0,
    )  # fmt: skip


def epoch_s(nodes, batch, rate, every):
    truth = step_of(nodes, batch, rate)
    if nodes == 1:
        entry = truth.data + truth.forward[0] + truth.backward[0] + truth.optimizer
    else:
        alone = truth.data + truth.forward[0] + truth.backward[0]
        entry = (truth.step_s() + (every - 1) * alone) / every
    return synthetic.SAMPLES / (nodes * batch) * entry


@pytest.fixture(scope="module")
def study():
    """Return a study with one change at a time; the base is traced three times, which costs time."""
    runs = synthetic.runs(nodes=(1, 2), batches=(32, 64), rates=RATES, every=(1, 4), noise=0)
    off = sum((runs[name] != level).astype(int) for name, level in BASE.items() if name != "nodes")
    item = (runs["nodes"] == 1) & (runs["sync_every"] == 1) & (runs["bandwidth"] == 500)
    runs = runs[item | ((runs["nodes"] == 2) & (off <= 1))].reset_index(drop=True)
    rates = runs["bandwidth_bytes_s"]
    runs["epoch_time_s"] = [
        epoch_s(*row)
        for row in zip(runs["nodes"], runs["batch_size"], rates, runs["sync_every"], strict=True)
    ]
    runs["epoch_time_s"] *= 1 + 0.01 * (runs["replicate"] - 2)  # blocks differ
    base = runs[np.logical_and.reduce([runs[name] == level for name, level in BASE.items()])]
    traced = base.assign(trace="phases", epoch_time_s=TRACING * base["epoch_time_s"])
    for name in ("run_id", "cell"):
        traced[name] += ".trace=phases"
    truth = step_of(2, 32, 62.5e6)
    steps = [
        replace(truth, data=truth.data * (1 + 0.001 * number)).trace(STEPS).assign(run_id=run_id)
        for number, run_id in enumerate(traced["run_id"])
    ]
    benchmarks = CollectiveBenchmark(
        benchmark_points(synthetic.network(PHYSICS, nodes=(2,), rates=RATES, noise=0))
    )
    return what_if.TracedStudy(
        synthetic.joined(runs, traced), benchmarks, pd.concat(steps, ignore_index=True)
    )


@pytest.fixture(scope="module")
def rows(study):
    return what_if.build_rows(study).set_index("change", drop=False)


def test_what_can_be_measured_is_what_was_predicted(rows):
    measured = rows[rows["to_cell"].notna()]
    assert set(measured.index) == {
        "links 2 times as slow",
        "links 2 times as fast",
        "an all-reduce every 4 batches",
        "batch 2 times as large",
    }
    assert measured["error"].abs().max() < 0.01
    assert measured["predicted_s"].tolist() == pytest.approx(measured["measured_s"].tolist(), rel=0.01)


def test_an_untraced_epoch_is_what_predictions_start_from(rows, study):
    """Predictions then do not include the cost of tracing."""
    base = study.timing_runs[
        np.logical_and.reduce([study.timing_runs[name] == level for name, level in BASE.items()])
    ]
    assert rows["epoch_time_s"].unique().tolist() == [pytest.approx(base["epoch_time_s"].mean())]
    assert rows["predicted_s"].tolist() == pytest.approx((rows["ratio"] * rows["epoch_time_s"]).tolist())
    assert rows["replay_off"].max() < 1e-9


def test_what_cannot_be_measured_is_arithmetic(rows):
    truth = step_of(2, 32, 62.5e6)
    hidden = replace(truth, moving=(0.0, 0.0)).step_s() / truth.step_s()
    assert rows.loc["communication fully overlapped", "ratio"] == pytest.approx(hidden, rel=1e-3)
    half = replace(truth, moving=tuple(PHYSICS.all_reduce(size / 2, 2, 62.5e6) for size in SIZES)).step_s()
    assert rows.loc["gradients in 16 bits", "ratio"] == pytest.approx(half / truth.step_s(), rel=0.01)
    assert rows.loc["no waiting for data", "ratio"] == pytest.approx(1 - 0.001 / truth.step_s(), rel=1e-3)
    assert rows.loc["slowest rank as fast as the median of the others", "ratio"] == pytest.approx(1)


def test_intervals_are_over_runs(rows, study):
    item = rows.loc["no waiting for data"]
    assert item["runs"] == 3
    assert item["ratio_low"] < item["ratio"] < item["ratio_high"]
    subset = replace(study, steps=study.steps[study.steps["run_id"] == study.steps["run_id"].iloc[0]])
    alone = what_if.build_rows(subset)
    assert alone["ratio"].notna().all()
    assert alone[["ratio_low", "predicted_s_low"]].isna().all(axis=None)


def test_assumptions_replace_missing_benchmarks_and_cells(study):
    """The links then take all time of bytes, and computation grows with the samples."""
    runs = study.runs[study.runs["nodes"] == 2].reset_index(drop=True)
    result = what_if.build_rows(what_if.TracedStudy(runs, CollectiveBenchmark(), study.steps)).set_index(
        "change"
    )
    truth = step_of(2, 32, 62.5e6)
    half = replace(truth, moving=tuple(seconds / 2 for seconds in truth.moving)).step_s()
    assert result.loc["links 2 times as fast", "ratio"] == pytest.approx(half / truth.step_s(), rel=1e-3)
    assert result.loc["batch 2 times as large", "assumes"] == "work grows with the samples"
    assert result.loc["an all-reduce every 4 batches", "assumes"] == "work of a batch stays"


def test_emulated_nodes_have_no_links(study):
    emulated = replace(study, runs=study.runs.assign(placement="emulated"))
    assert not what_if.build_rows(emulated)["change"].str.contains("links").any()


def test_the_table_says_how_far_it_is_off(rows, study):
    built = what_if.table(rows.reset_index(drop=True), study)
    errors = find_note(built.notes, "errors").facts
    assert (errors["predictions"], errors["within"]) == (4, 4)
    assert (
        errors["mean"] == pytest.approx(rows["error"].abs().mean())
        and abs(errors["worst"]) == rows["error"].abs().max()
    )
    assert built.display["error (%)"].tolist().count("–") == len(rows) - 4
    assert built.notes[-1] == what_if.conditions.measurement_note(timing_runs(study.runs))


def test_errors_have_a_sign_as_numbers_elsewhere_have():
    assert [what_if._signed_percent(share) for share in (-0.061, 0.173, -0.0001)] == ["−6.1", "+17.3", "+0.0"]


def test_cells_are_in_the_order_of_tables(study):
    runs = study.runs.sort_values("nodes", ascending=False, kind="stable").assign(trace="phases")
    campaigns = pd.concat(
        step_of(nodes, 32, 62.5e6)
        .trace(STEPS)
        .assign(run_id=runs.query(f"nodes == {nodes}")["run_id"].iloc[0])
        for nodes in (2, 1)
    )
    rows = what_if.build_rows(replace(study, runs=runs, steps=campaigns))
    order = [cell for cell in cell_levels(runs)["cell"] if cell in set(rows["cell"])]
    assert list(dict.fromkeys(rows["cell"])) == order and ".n1." in order[0]


def test_traced_runs_that_are_missing_are_named(study, rows):
    run = study.runs.loc[study.runs["trace"] == "phases", "run_id"].iloc[0]
    runs = study.runs.assign(without_phases=None)
    runs.loc[runs["run_id"] == run, "without_phases"] = "attempt-1/phases.csv: is not there"
    for subset in (rows, rows[:0]):
        assert (
            what_if.conditions.traced_runs_without_phases(runs)
            in what_if.table(subset, replace(study, runs=runs)).notes
        )
    assert f"{run} (attempt-1/phases.csv: is not there)" in what_if.conditions.traced_runs_without_phases(
        runs
    )


def test_a_study_without_kept_steps_has_an_empty_table(study):
    reduced = replace(study, steps=study.steps[:0])
    none = what_if.build_rows(reduced)
    assert none.empty
    assert what_if.table(none, reduced).notes == [
        what_if.NO_TRACE,
        what_if.conditions.measurement_note(timing_runs(study.runs)),
    ]


def test_without_a_benchmark_all_time_of_bytes_is_the_links(study, tmp_path):
    synthetic.written(study.runs, "runs", tmp_path)
    study.steps.to_csv(tmp_path / "replay_steps.csv", index=False)
    what_if.main(
        runs=tmp_path / "runs.csv", replay_steps=tmp_path / "replay_steps.csv", out=tmp_path / "what_if"
    )
    built = pd.read_csv(tmp_path / "what_if.csv").set_index("change")
    assert (
        0
        < built.at["communication fully overlapped", "ratio"]
        < built.at["links 2 times as fast", "ratio"]
        < 1
    )


def test_steps_that_cannot_be_replayed_are_left_out(study):
    """One of two ranks reports no all-reduce."""
    steps = study.steps
    silent = steps[~((steps["rank"] == 1) & (steps["phase"] == "communication"))]
    second = replace(study, steps=silent)
    built = what_if.table(what_if.build_rows(second), second)
    assert built.data.empty
    (cell,) = study.runs.loc[study.runs["trace"] == "phases", "cell"].unique()
    assert codes(built.notes)[:2] == ["no-trace", "cells-left-out"]
    assert find_note(built.notes, "cells-left-out").facts["cells"] == [cell]


def test_more_batches_than_were_kept_are_not_accumulated(study):
    subset = replace(study, steps=study.steps[study.steps["step"] <= 3])
    rows = what_if.build_rows(subset)
    assert "batch 2 times as large" in set(rows["change"]) and "accumulation" not in set(rows["question"])
    assert rows["ratio"].notna().all()
