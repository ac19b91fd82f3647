"""What is left out is not seen, every method is held against it, and the table says so."""

import functools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import conditions, tables
from analysis.decomposition import gradient_bytes
from analysis.intervals import Estimate
from analysis.records import Records, read_timing_runs
from common.errors import InputError
from common.files import CHECKOUT
from common.notes import codes, find_note
from declared.figure_specs import FigureSpec
from figures import captions, style
from figures.kinds import prediction
from prediction import methods
from prediction.held_out import (
    ALL,
    EMULATED,
    IN_SAMPLE,
    NOTHING_HELD_OUT,
    NOTHING_TO_PREDICT,
    evaluate,
    main,
    make_folds,
    summarize_method,
    table,
)
from prediction.inputs import exclusion_note, measured_cells, pooled_cv
from prediction.message_times import CollectiveBenchmark, benchmark_points, read_benchmark
from prediction.methods import LAW, extra_p_method
from prediction.study_predictor import Prediction
from support import known_physics as synthetic
from support.captions import why_not_drawn
from support.known_physics import Truth
from support.pages import missing_sentences


@pytest.fixture(scope="module")
def study():
    truth = Truth(sigma=0.3)
    return measured_cells(synthetic.runs(truth, replicates=2)), CollectiveBenchmark(
        benchmark_points(synthetic.network(truth))
    )


def by_title(cells, network):
    return {fold.title: fold for fold in make_folds(cells, network)}


def test_the_folds_are_those_that_the_design_allows(study):
    assert list(by_title(*study)) == [
        IN_SAMPLE,
        "6 nodes",
        "4 and 6 nodes",
        "batch size 32",
        "batch size 64",
        "batch size 128",
        "links of 100 Mbit/s",
        "links of 300 Mbit/s",
        "links of 1 Gbit/s",
        "corner of most communication",
        "corner of least communication",
    ]
    cells, network = study
    subset = cells[(cells["nodes"] <= 2) & (cells["batch_size"] <= 64) & (cells["rate"] == 125e6)]
    assert list(by_title(subset, network)) == [IN_SAMPLE]
    assert list(by_title(cells.iloc[:0], network)) == [IN_SAMPLE]


def test_the_only_strategy_is_not_left_out(study):
    cells, network = study
    meshes = cells.assign(uses_mesh=True, parallelism="data-tensor4")
    assert "strategy" not in {fold.kind for fold in make_folds(meshes, network)}
    strategies = meshes.assign(
        parallelism=["data", "data-tensor4"] * (len(meshes) // 2) + ["data"] * (len(meshes) % 2)
    )
    assert [fold.kind for fold in make_folds(strategies, network)].count("strategy") == 2


def test_what_is_left_out_is_seen_by_nobody(study):
    for title, fold in by_title(*study).items():
        assert (fold.test["nodes"] > 1).all()
        if title != IN_SAMPLE:
            assert not set(fold.test["cell"]) & set(fold.train["cell"])
    result = by_title(*study)
    assert result["4 and 6 nodes"].benchmark.points["nodes"].max() == 3
    assert result["batch size 64"].train["batch_size"].unique().tolist() == [32, 128]
    slow = result["links of 100 Mbit/s"]
    assert 12.5e6 not in slow.benchmark.rates
    assert set(slow.train.loc[slow.train["rate"] == 12.5e6, "nodes"]) == {1}  # one node uses no link
    corner = result["corner of least communication"]
    assert corner.test[["nodes", "batch_size", "rate"]].to_numpy().tolist() == [[6, 128, 125e6]]
    assert corner.train["nodes"].max() == 4
    assert 128 not in set(corner.train["batch_size"])


def test_errors_are_relative_and_signed(study):
    def twice(fold):
        return Prediction(2 * fold.test["epoch_time_s"].to_numpy())

    every, rows = evaluate(*study, {"twice": twice})
    assert (every["error"] == 1).all()
    assert (rows[["bias", "mape", "worst"]] == 1).all(axis=None)
    assert rows["left_out"].tolist()[-1] == ALL
    assert rows["cells"].tolist()[0] == 4 * 9
    assert rows.loc[1, "cells"] == 9


def test_noise_is_the_pooled_coefficient_of_variation_of_a_mean():
    cells = pd.DataFrame({"epoch_time_s": [10.0, 100.0], "sd": [1.0, 20.0], "n": [5, 5]})
    assert pooled_cv(cells, of_means=True) == pytest.approx(math.sqrt((0.1**2 + 0.2**2) / 2) / math.sqrt(5))
    assert pooled_cv(cells) == pytest.approx(math.sqrt((0.1**2 + 0.2**2) / 2))
    assert math.isnan(pooled_cv(cells.assign(n=1, sd=np.nan)))


def test_mape_by_noise_is_that_of_a_method_with_the_true_values():
    rng = np.random.default_rng(5)
    truth, n, large = 10.0, 5, 4000
    drawn = truth * (1 + 0.08 * rng.standard_normal((large, n)))
    cells = pd.DataFrame(
        {"cell": range(large), "epoch_time_s": drawn.mean(axis=1), "sd": drawn.std(axis=1, ddof=1), "n": n}
    )
    cells["error"] = truth / cells["epoch_time_s"] - 1
    row = summarize_method(
        cells.assign(
            left_out="", method="truth", common=True, predicted_s_low=np.nan, predicted_s_high=np.nan
        ),
        Prediction(np.full(large, truth)),
    )
    assert row["mape"] == pytest.approx(row["noise"], rel=0.03)


def test_by_hand_is_what_a_person_would_write(study):
    fold = by_title(*study)["6 nodes"]
    cell = fold.test.iloc[[0]]
    item = fold.train[(fold.train["nodes"] == 1) & (fold.train["batch_size"] == cell["batch_size"].iloc[0])]
    sent_s = 2 * 5 / 6 * gradient_bytes("small-cnn", "digits") / cell["rate"]
    expected = item["epoch_time_s"].mean() / 6 + cell["batches_per_epoch"] * sent_s
    result = methods.methods()["by hand"](replace(fold, test=cell)).seconds
    assert result == pytest.approx(expected.to_numpy(), rel=0.03)


ERNEST = {"S": 0.011, "k": 0.0004, "tree": 0.003, "ring": 0.0007, "tree bytes": 0.2, "ring bytes": 1.1}


def ernest_seconds(cell, gradients):
    p, a, e = cell.ranks, cell.n_allreduces, ERNEST
    of_bytes = gradients / cell.rate * (e["tree bytes"] * math.log2(p) + e["ring bytes"] * 2 * (p - 1) / p)
    return cell.batches_per_epoch * (e["S"] + e["k"] * cell.local_batch) + a * (
        e["tree"] * math.log2(p) + e["ring"] * (p - 1) + of_bytes
    )


def remade(study, seconds):
    """Return the study's cells with other epoch times."""
    cells, network = study
    return cells.assign(epoch_time_s=[seconds(cell) for cell in cells.itertuples()]), network


@pytest.mark.parametrize(
    "title", ["6 nodes", "batch size 64", "links of 300 Mbit/s", "corner of most communication"]
)
def test_ernest_finds_what_has_its_form(study, title):
    gradients = gradient_bytes("small-cnn", "digits")
    fold = by_title(*remade(study, lambda cell: ernest_seconds(cell, gradients)))[title]
    assert methods.methods()["Ernest"](fold).seconds == pytest.approx(fold.test["epoch_time_s"], rel=1e-6)


def test_a_log_linear_model_finds_a_power_law(study):
    def seconds(cell):
        return 3.0 * cell.ranks**-0.7 * cell.batch_size**-0.2 * (cell.rate / 1e6) ** -0.4

    folds_of = by_title(*remade(study, seconds))
    for title in ("6 nodes", "batch size 64", "links of 300 Mbit/s"):
        fold = folds_of[title]
        assert methods.methods()["log-linear"](fold).seconds == pytest.approx(fold.test["epoch_time_s"])
    cells, network = study
    subset = by_title(cells[cells["nodes"].isin([1, 2, 3])], network)["3 nodes"]
    result = methods.methods()["log-linear"](subset)
    assert np.isnan(result.seconds).all()
    assert result.problem.code == "not-determined"


def test_errors_beyond_the_laws_are_paired_by_cell(study):
    """Both scatter equally from cell to cell.

    One is always 0.02 further off, which unpaired intervals would not tell.
    """
    scatter = np.random.default_rng(2).uniform(0.01, 0.3, 100)

    def off(by):
        return lambda fold: Prediction(
            fold.test["epoch_time_s"].to_numpy() * (1 + by + scatter[: len(fold.test)])
        )

    _, rows = evaluate(*study, {LAW: off(0.0), "other": off(0.02)})
    at = rows.set_index(["left_out", "method"]).loc[ALL]
    assert at.loc["other", ["beyond", "beyond_low", "beyond_high"]].tolist() == pytest.approx(
        [0.02] * 3, abs=1e-6
    )
    assert at.loc["other", "mape_high"] - at.loc["other", "mape_low"] > 0.03
    assert math.isnan(at.loc[LAW, "beyond"])


def test_extra_p_gets_the_same_points_and_says_what_it_lacks(study, tmp_path):
    """Return a fake interpreter of Extra-P, which predicts the sum of the coordinates."""
    request = tmp_path / "asked.json"
    stand_in = tmp_path / "python"
    stand_in.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        "jobs = json.load(sys.stdin)\n"
        f"json.dump(jobs, open({str(request)!r}, 'w'))\n"
        "json.dump([{'predicted': [sum(p) for p in job['wanted']]} for job in jobs], sys.stdout)\n"
    )
    stand_in.chmod(0o755)
    fold = by_title(*study)["6 nodes"]
    result = extra_p_method(stand_in)(fold)
    assert result.seconds == pytest.approx(fold.test[["nodes", "batch_size", "rate"]].sum(axis=1))
    (note,) = result.notes
    assert note is methods.FEW_LEVELS
    (job,) = json.loads(request.read_text())
    assert job["parameters"] == ["nodes", "batch_size", "rate"]
    assert len(job["points"]) == 4 * 3 * 3  # one node at every rate, too
    assert max(place[0] for place, _ in job["points"]) == 4


def test_extra_p_is_asked_only_where_it_is_there():
    assert "Extra-P" not in methods.methods()
    assert "Extra-P" in methods.methods(Path(sys.executable))


def test_an_extra_p_whose_interpreter_is_gone_is_no_row(tmp_path):
    synthetic.written(synthetic.runs(), "runs", tmp_path)
    synthetic.network(folder=tmp_path)
    (tmp_path / "environment.json").write_text(json.dumps({"python": {"executable": str(tmp_path / "gone")}}))
    with pytest.raises(InputError) as refused:
        main(**paths(tmp_path), extrap=tmp_path / "environment.json")
    assert "environment.json: " in str(refused.value)
    assert not (tmp_path / "prediction.csv").exists()


@functools.cache
def errors_of(study: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return every prediction of a kept campaign, and the rows of its table by left_out and method."""
    folder = CHECKOUT / "docs" / "campaigns" / study
    cells = measured_cells(read_timing_runs(folder / "runs.csv"))
    network = read_benchmark(folder / "network.csv", cells)
    every, rows = evaluate(cells, network, methods.methods())
    return every, rows.set_index(["left_out", "method"])


def in_the_text(at: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the folds in the page's tables, each with its rows by method."""
    titles = [title for title in at.index.unique("left_out") if "corner" not in title and title != IN_SAMPLE]
    return [(title, at.loc[title]) for title in titles]


COMPARED_METHODS = [LAW, "Ernest", "log-linear", "by hand"]
CAMPAIGNS = [
    "prediction-virtual", "prediction-virtual-again", "prediction-horovod-virtual", "tf-strategies-virtual",
    "what-if-virtual",
]  # fmt: skip


@pytest.mark.parametrize("study", CAMPAIGNS)
def test_kept_campaigns_are_predicted_better_than_by_ernest(study):
    _, at = errors_of(study)
    assert at.loc[(ALL, LAW), "mape"] < at.loc[(ALL, "Ernest"), "mape"]
    assert at.loc[(ALL, LAW), "in_band"] >= 0.85


@pytest.mark.parametrize("study", ["prediction-virtual", "prediction-horovod-virtual"])
def test_table_of_errors_in_the_text_is_that_of_the_records(study):
    _, at = errors_of(study)
    table_rows = []
    for left_out, of_fold in in_the_text(at):
        shares = [*of_fold.loc[COMPARED_METHODS, "mape"], of_fold.loc[LAW, "noise"]]
        texts = ["–" if math.isnan(share) else f"{100 * share:.1f}" for share in shares]
        table_rows.append(f"| {left_out} | {of_fold.loc[LAW, 'cells']} | {' | '.join(texts)} |")
    assert missing_sentences(table_rows) == []


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": (1, 2)},
        {"nodes": (2, 3)},
        {"nodes": (1,)},
        {"replicates": 1},
        {"batches": (32,)},
        {"rates": (125e6,), "noise": 0.0},
        {"batches": (32,), "rates": (125e6,), "nodes": (1, 2), "replicates": 1},
    ],
    ids=str,
)
@pytest.mark.slow
def test_a_small_study_has_a_table_and_a_figure_in_words(tmp_path, options):
    synthetic.runs(folder=tmp_path, **options)
    synthetic.network(
        folder=tmp_path,
        nodes=options.get("nodes", synthetic.NODES),
        rates=options.get("rates", synthetic.RATES),
    )
    main(**paths(tmp_path))
    message = (tmp_path / "prediction.md").read_text()
    assert "nan" not in message
    assert f"| {LAW} " in message or NOTHING_TO_PREDICT in message or NOTHING_HELD_OUT in message
    draw(tmp_path)


def test_a_study_without_a_success_says_so(tmp_path):
    runs = synthetic.runs().assign(status="failed", reason="it broke", epoch_time_s=None)
    synthetic.written(runs, "runs", tmp_path)
    synthetic.network(folder=tmp_path)
    main(**paths(tmp_path))
    assert NOTHING_TO_PREDICT in (tmp_path / "prediction.md").read_text()
    draw(tmp_path)


def test_a_study_whose_batches_were_not_counted_says_so(tmp_path):
    runs = synthetic.runs()
    synthetic.written(runs.assign(steps=runs["steps"].mask(runs["cell"].notna())), "runs", tmp_path)
    synthetic.network(folder=tmp_path)
    main(**paths(tmp_path))
    message = (tmp_path / "prediction.md").read_text()
    uncounted = exclusion_note(read_timing_runs(tmp_path / "runs.csv"))
    assert set(uncounted.facts["uncounted"]) == set(runs["cell"])
    assert NOTHING_TO_PREDICT in message and uncounted in message
    draw(tmp_path)


def test_the_table_says_what_stands_behind_it(study):
    cells, network = study
    runs = synthetic.runs(Truth(sigma=0.3), replicates=2)
    every, rows = evaluate(cells, network, methods.methods())
    created = table(runs, cells, rows)
    assert "methods" in codes(created.notes)
    assert created.notes[-1] == conditions.measurement_note(runs)
    worst = created.display.set_index(["left out", "method"]).loc[("6 nodes", LAW), "worst cell"]
    assert worst.startswith("batch size ")
    assert "6 nodes, links of " in worst
    by_law = every[every["method"] == LAW]
    assert (by_law["predicted_s_low"] < by_law["predicted_s"]).all()
    assert rows.set_index(["left_out", "method"]).loc[(ALL, LAW), "in_band"] > 0.8
    assert every.loc[every["method"] == "Ernest", "predicted_s_low"].isna().all()


def test_without_a_benchmark_the_table_is_made(study, tmp_path):
    synthetic.runs(folder=tmp_path, nodes=(1, 2, 3), replicates=2)
    main(runs=tmp_path / "runs.csv", out=tmp_path / "prediction")
    rows = pd.read_csv(tmp_path / "prediction.csv").set_index(["left_out", "method"])
    assert rows.loc[("3 nodes", LAW), "predicted"] == rows.loc[("3 nodes", LAW), "cells"]


def test_a_column_is_headed_by_its_mape_and_marks_what_is_beyond(study, tmp_path):
    def part(fold):
        """Ten percent too long at batch size 32, nothing at the others."""
        seconds = 1.1 * fold.test["epoch_time_s"]
        return Prediction(seconds.where(fold.test["batch_size"] == 32).to_numpy())

    def all_of_them(fold):
        """Right except for the slowest cell, which is below 0, and the fastest, which is far too long."""
        seconds = fold.test["epoch_time_s"]
        bad = {seconds.idxmax(): -1.0, seconds.idxmin(): 100 * seconds.min()}
        return Prediction(pd.Series(bad).reindex(seconds.index).fillna(seconds).to_numpy())

    every, rows = evaluate(*study, {"some": part, "all": all_of_them})
    synthetic.runs(folder=tmp_path, replicates=2)
    drawn, caption = drawn_of(tmp_path, every)
    (ax,) = drawn.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["some *", "all"]
    assert "methods-of-some-cells" in codes(caption.notes)
    of_all = rows.set_index(["left_out", "method"]).loc[(ALL, "all")]
    mape, low, high = (100 * of_all[name] for name in ("mape", "mape_low", "mape_high"))
    assert [text.get_text() for text in ax.texts] == [
        "10\n[10, 10]",
        tables.interval(Estimate(mape, low, high), digits=2).replace(" [", "\n["),
    ]
    left = every[(every["method"] == "all") & (every["left_out"] != IN_SAMPLE)]
    beyond, impossible = (
        find_note(caption.notes, code) for code in ("predictions-beyond-axis", "impossible-predictions")
    )
    assert beyond.facts["predictions"] == (left["error"] > 1).sum() > 0
    assert impossible.facts["predictions"] == (left["error"] < -1).sum() > 0
    drawn_marks = {line.get_marker(): line for line in ax.lines if line.get_marker() in ("x", "^", "v")}
    bottom, _ = ax.get_ylim()
    assert set(drawn_marks["x"].get_ydata()) == {bottom}
    drawn, caption = drawn_of(tmp_path, every[every["method"] == "some"].dropna(subset="predicted_s"))
    absent = {"methods-of-some-cells", "predictions-beyond-axis", "impossible-predictions"}
    assert not absent & set(codes(caption.notes))


def half_wrong(fold):
    """Right at batch size 32, twice as long at the others."""
    return Prediction((fold.test["epoch_time_s"] * (1 + (fold.test["batch_size"] != 32))).to_numpy())


def at_32(fold):
    """Ten percent too long at batch size 32, nothing at the others."""
    return Prediction(
        1.1 * fold.test["epoch_time_s"].where(fold.test["batch_size"] == 32).to_numpy(), "so it is"
    )


def empty(fold):
    return Prediction(np.full(len(fold.test), np.nan), "not built")


def test_methods_are_compared_on_the_cells_that_all_predict(study):
    every, rows = evaluate(*study, {"half wrong": half_wrong, "at 32": at_32, "nothing": empty})
    at = rows.set_index(["left_out", "method"])
    item, second = (at.loc[("6 nodes", name)] for name in ("half wrong", "at 32"))
    assert (item["predicted"], second["predicted"], item["common"], second["common"]) == (9, 3, 3, 3)
    assert (item["mape"], item["mape_common"]) == (pytest.approx(2 / 3), 0)
    assert (second["mape"], second["mape_common"]) == (pytest.approx(0.1), pytest.approx(0.1))
    assert math.isnan(at.loc[("6 nodes", "nothing"), "mape_common"])
    # where all of a fold is predicted by one method alone, it is compared with nothing else
    assert (
        at.loc[("batch size 64", "half wrong"), "common"] == at.loc[("batch size 64", "half wrong"), "cells"]
    )
    left = every[every["left_out"] != IN_SAMPLE]
    total = at.loc[(ALL, "half wrong")]
    bad = left[(left["method"] == "half wrong")]
    assert (total["cells"], total["mape"]) == (len(bad), pytest.approx(bad["error"].mean()))
    assert total["common"] == (bad["batch_size"] == 32).sum() and total["mape_common"] == 0
    created = table(synthetic.runs(replicates=2), study[0], rows)
    displayed = created.display.set_index(["left out", "method"])
    assert displayed.loc[
        ("6 nodes", "half wrong"), ["cells", "common cells", "MAPE, common (%)"]
    ].tolist() == ["9", "3", "0.0"]
    assert displayed.loc[("", "nothing"), "worst cell"].unique().tolist() == ["not predicted: not built"]
    assert "common-cells" in codes(created.notes)
    assert find_note(created.notes, "method-leaves-out").facts == {"method": "at 32", "problem": "so it is"}
    _, rows = evaluate(*study, {"half wrong": half_wrong})
    created = table(synthetic.runs(replicates=2), study[0], rows)
    assert "common cells" not in created.display and "common-cells" not in codes(created.notes)


def test_on_emulated_nodes_it_is_a_check_of_the_methods(tmp_path):
    synthetic.written(synthetic.runs(nodes=(1, 2, 3)).assign(placement="emulated"), "runs", tmp_path)
    synthetic.network(folder=tmp_path, nodes=(2, 3))
    main(**paths(tmp_path))
    assert EMULATED in (tmp_path / "prediction.md").read_text()
    assert "emulated" in codes(drawn_of(tmp_path)[1].notes)


def paths(folder):
    return {"runs": folder / "runs.csv", "network": folder / "network.csv", "out": folder / "prediction"}


def drawn_of(folder, cells=None):
    if cells is not None:
        cells.to_csv(folder / "prediction_cells.csv", index=False)
    records = Records(
        folder / "runs.csv", folder / "epochs.csv", {"prediction_cells": folder / "prediction_cells.csv"}
    )
    return prediction.draw(records, FigureSpec("prediction", "prediction"))


def draw(folder):
    drawn, caption = drawn_of(folder)
    style.save(drawn, folder / "figure")
    if caption.startswith(captions.NOT_DRAWN):
        assert why_not_drawn(caption)["why"] == "nothing-predicted"
    else:
        assert caption.startswith(prediction.LEAD.partition(".")[0])
    assert "nan" not in caption
    assert (folder / "figure.png").stat().st_size > 1000
