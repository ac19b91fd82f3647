"""How many nodes are worth it: the command without a campaign and with one."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import conditions
from analysis.records import Records, read_timing_runs
from common.errors import InputError, exit_status
from common.notes import codes, find_note
from declared.figure_specs import FigureSpec
from figures import captions
from figures.kinds import projection as figure
from prediction import projection, projection_notes
from prediction.curves import max_nodes_above, node_counts
from prediction.inputs import exclusion_note
from ringside.predicting import show_projection
from support import known_physics as synthetic
from support.known_physics import Truth
from support.measured_elsewhere import DLPERF
from support.predict_command import parse_question

MODEL = ["--step-time", "0.1", "--batch-size", "32", "--gradient-bytes", "1e8"]


def ask(folder, *options):
    """Return the table that `ringside predict` writes."""
    predict(*options, out=folder / "projection")
    return pd.read_csv(folder / "projection.csv")


def answered(*options):
    """Return the answer of `ringside predict` before it is written."""
    return projection.project_scaling(parse_question(*options))


def predict(*options, out=None):
    show_projection(parse_question(*options), out)


def test_the_last_number_of_nodes_above_a_level():
    nodes, efficiency = np.array([1, 2, 4, 8]), np.array([1.0, 0.9, 0.7, 0.4])
    assert max_nodes_above(nodes, efficiency, 0.8) == 2  # 2.8 by a straight line over the logarithm of nodes
    assert max_nodes_above(nodes, efficiency, 0.5) == 6  # 6.3
    assert max_nodes_above(nodes, efficiency, 0.9) == 2
    assert max_nodes_above(nodes, efficiency, 0.95) == 1
    assert max_nodes_above(nodes, efficiency, 0.3) == math.inf
    assert max_nodes_above(nodes, efficiency, 1.1) == 0
    assert max_nodes_above(np.array([1, 4]), np.array([1.0, 0.8 - 1e-13]), 0.8) == 3, "4 is below it"


def test_every_small_number_of_nodes_is_asked_for():
    assert node_counts(20).tolist()[:16] == list(range(1, 17))
    assert node_counts(1024)[-1] == 1024
    assert node_counts(3).tolist() == [1, 2, 3]
    assert len(node_counts(1024)) == 64


def test_the_most_nodes_do_not_change_what_is_said_of_fewer(tmp_path):
    """A longer curve has the same values at the same nodes, so the answer does not depend on its end."""
    assert set(node_counts(1024)) <= set(node_counts(10**9))
    subset, large = (
        ask(tmp_path, *MODEL, "--nodes", nodes).set_index("rate") for nodes in ("4096", "1000000")
    )
    for name in ("nodes_at_80", "nodes_at_50"):
        assert (
            large.loc[np.isfinite(subset[name]), name].tolist()
            == subset[name][np.isfinite(subset[name])].tolist()
        )


def test_numbers_alone_give_a_band():
    """Half of 2 (n - 1) / n x bytes at the rate of the link, by the prior, and some waiting."""
    rows = answered(*MODEL, "--rate", "10", "--nodes", "8").rows
    sent_s = 2 * 7 / 8 * 1e8 / (10e9 / 8)
    slow, fast = (8 * 0.1 / (0.1 + share * sent_s + 0.01) for share in (1.0, 0.2))
    assert slow < rows["greatest_speedup"].iloc[0] < fast
    assert rows["greatest_speedup_low"].iloc[0] < slow and rows["greatest_speedup_high"].iloc[0] > fast


def test_measured_scales_inform_numbers():
    sizes = ["--parameters", "1e9", "--batch-size", "8", "--rate", "100", "--nodes", "16"]
    one_scale = answered(*sizes, "--measured", "1x8=1.0")
    (slow, fast) = (
        answered(*sizes, "--measured", "1x8=1.0", f"2x8={step_s}", f"4x8={step_s + 0.02}")
        for step_s in (1.30, 1.02)
    )
    speedups = [projected.curves.set_index("nodes")["speedup"] for projected in (slow, fast)]
    assert speedups[0][4] == pytest.approx(4 / 1.32, rel=0.03)
    assert speedups[1][4] == pytest.approx(4 / 1.04, rel=0.03)
    assert speedups[0][16] < speedups[1][16]
    widths = [(own.curves["speedup_high"] - own.curves["speedup_low"]).iloc[-1] for own in (one_scale, fast)]
    assert widths[0] > widths[1]
    assert find_note(fast.notes, "not-measured").facts["measured_steps"] == (
        (1, 8, 1.0),
        (2, 8, 1.02),
        (4, 8, 1.04),
    )


def test_accumulation_is_worth_more_nodes():
    resnet = ["--step-time", "0.2", "--model", "resnet-50", "--rate", "10", "--nodes", "64"]
    plain, accumulating = (
        answered(*resnet, *options).rows["greatest_speedup"].iloc[0]
        for options in ([], ["--sync-every", "4"])
    )
    assert accumulating > plain


def test_faster_links_are_never_worse(tmp_path):
    rows = ask(tmp_path, *MODEL)
    assert rows["nodes_at_50"].is_monotonic_increasing
    assert (rows["greatest_speedup_high"] <= rows["most_nodes"]).all()
    assert (np.diff(rows["greatest_speedup"]) > 0).all()
    assert rows["rate"].tolist() == [1.25e8, 1.25e9, 3.125e9, 1.25e10]
    facts = (note := find_note(answered(*MODEL).notes, "not-measured")).facts
    assert (facts["measured_steps"], facts["batch_size"]) == (((1, 1, 0.1),), 32)
    assert note in (tmp_path / "projection.caption.md").read_text()
    assert (tmp_path / "projection.pdf").is_file()


def test_rates_without_a_style_are_named():
    rates = ["--rate", *map(str, range(1, 11))]
    projected = answered(*MODEL, *rates, "--nodes", "4")
    _, caption = figure.draw_curves(projected.curves, projected.rows, projected.notes)
    assert find_note(caption.endnotes, "rates-left-out").facts["rates"] == ["9 Gbit/s", "10 Gbit/s"]


def test_without_out_the_table_is_printed(capsys):
    predict(*MODEL, "--rate", "25")
    message = capsys.readouterr().out
    assert "25 Gbit/s" in message
    assert "100 MB of gradients" in message


@pytest.mark.parametrize(
    ("options", "code", "option", "expected"),
    [
        ([], "missing-key", "--step-time", ""),
        (["--step-time", "0.1"], "missing-key", "", ""),
        ([*MODEL, "--model", "alexnet"], "conflicting-keys", "", ""),
        (["--step-time", "0.1", "--model", "alexnett"], "unknown-name", "--model", ""),
        (["--step-time", "0.1", "--model", "gpt-nano"], "conflicting-keys", "--model", ""),
        (["--step-time", "0.1", "--model", ""], "unknown-name", "--model", "alexnet"),
        ([*MODEL, "--rate", "0"], "out-of-range", "--rate", "at least 1e-06"),
        ([*MODEL, "--inside-rate", "1e300"], "out-of-range", "--inside-rate", "at most 1e+06"),
        ([*MODEL, "--measured", "2x8"], "wrong-format", "--measured", "NODESxDEVICES"),
        ([*MODEL, "--measured", "2x8=0"], "out-of-range", "--measured", "at least 1e-09"),
        ([*MODEL, "--measured", "1" + 20 * "0" + "x8=1"], "out-of-range", "--measured", "at most 1e+09"),
        ([*MODEL, "--measured", "1x1=0.3"], "duplicate", "--measured", ""),
        ([*MODEL, "--measured", "2x1=0.0001", "--rate", "1"], "contradicting-places", "--measured", ""),
        ([*MODEL, "--measured", "2x8=1"], "missing-key", "--rate", "Gbit/s"),
        ([*MODEL, "--batch-size", "2000000"], "out-of-range", "--samples", "2000000"),
        ([*MODEL, "--step-time", "inf"], "out-of-range", "--step-time", "at most 1e+06"),
        ([*MODEL, "--step-time", "nan"], "wrong-type", "--step-time", ""),
        ([*MODEL, "--step-time", "1e-300"], "out-of-range", "--step-time", "at least 1e-09"),
        ([*MODEL, "--batch-size", "64.5"], "bad-arguments", "--batch-size", ""),
        ([*MODEL, "--nodes", "1" + 23 * "0"], "out-of-range", "--nodes", "at most 1e+09"),
        ([*MODEL, "--samples", "1" + 20 * "0"], "out-of-range", "--samples", "at most 1e+15"),
        ([*MODEL, "--sync-every", "1" + 20 * "0"], "out-of-range", "--sync-every", "at most 1e+09"),
        (["--step-time", "1", "--parameters", "1e308"], "out-of-range", "--parameters", "at most 2.5e+14"),
        (
            ["--step-time", "1", "--gradient-bytes", "1e-320"],
            "out-of-range",
            "--gradient-bytes",
            "at least 1",
        ),
        ([*MODEL, "--dataset", "digits"], "conflicting-keys", "--dataset", ""),
        (["--from", "x", "--batch-size", "32"], "conflicting-keys", "--batch-size", ""),
        (["--from", "x", "--framework", "pytorch-ddp"], "conflicting-keys", "--framework", ""),
        (["--from", "x", "--inside-rate", "1"], "conflicting-keys", "--inside-rate", ""),
        ([*MODEL, "--nodes", "0"], "out-of-range", "--nodes", "at least 1"),
        ([*MODEL, "--samples", "31"], "out-of-range", "--samples", "32"),
        (["--from", "x", "--parameters", "1e6"], "missing-key", "--step-time", ""),
    ],
)
def test_bad_input_is_refused(options, code, option, expected):
    with pytest.raises(InputError) as refused:
        predict(*options)
    assert (refused.value.code, refused.value.file) == (code, option)
    assert not expected or expected in refused.value.expected


def test_a_model_is_suggested():
    with pytest.raises(InputError) as refused:
        predict("--step-time", "0.1", "--model", "alexnett")
    assert refused.value.suggestion == "alexnet"


@pytest.mark.parametrize(
    ("options", "out", "named"),
    [
        (["--step-time", "0.1", "--model", "alexnet", "--dataset", "x"], None, "--dataset: 'x'"),
        (MODEL, Path("/proc/none/x"), "/proc/none"),
        (["--from", "/nowhere"], None, "/nowhere/runs.csv: "),
        ([*MODEL, "--rate", "0"], None, "--rate: 0"),
    ],
)
def test_bad_input_is_one_line(capsys, options, out, named):
    assert exit_status(lambda: predict(*options, out=out)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ringside: ")
    assert named in line


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("step", ["1e-9", "1e6"])
@pytest.mark.parametrize("size", ["1", "1e15"])
@pytest.mark.parametrize("rate", ["1e-6", "1e6"])
def test_at_the_limits_of_the_options_all_is_a_number(capsys, step, size, rate):
    options = ["--step-time", step, "--gradient-bytes", size, "--rate", rate, "--samples", "1000000000000000"]
    predict(*options, "--nodes", "1000000000")
    message = capsys.readouterr().out
    assert "nan" not in message and "inf" not in message


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    truth = Truth(hidden=0.5, sigma=0.2, update_s=0.0)
    synthetic.runs(truth, folder)
    synthetic.network(truth, folder)
    return folder, truth


def test_from_a_study_its_truth_comes_back(study, tmp_path):
    folder, truth = study
    rows = ask(tmp_path, "--from", str(folder), "--rate", "0.5", "1", "--nodes", "8").set_index(
        ["batch_size", "rate"]
    )
    assert len(rows) == 3 * 2
    for batch, rate in rows.index:
        times = {n: truth.seconds_of("small-cnn", "digits", n, batch, rate) for n in (1, 8)}
        row = rows.loc[(batch, rate)]
        assert row["at_nodes"] == 8
        assert row["greatest_speedup"] == pytest.approx(times[1] / times[8], rel=0.1)
        assert row["greatest_speedup_low"] < row["greatest_speedup_high"]
    message = (tmp_path / "projection.md").read_text()
    assert "nan" not in message
    projected = answered("--from", str(folder), "--rate", "0.5", "1", "--nodes", "8")
    points = projected.curves.dropna(subset="measured_epoch_time_s")
    assert points["measured_epoch_time_s"].to_numpy() == pytest.approx(points["epoch_time_s"], rel=0.1)
    assert points.groupby("rate")["nodes"].unique().map(list).to_dict() == {
        62.5e6: [1],
        125e6: [1, 2, 3, 4, 6],
    }
    notes = projected.notes
    assert find_note(notes, "virtual-nodes").facts == {"cores": [0.3]}
    benchmarked = find_note(notes, "benchmarked")
    assert (benchmarked.facts["nodes"], benchmarked.facts["link_bytes_s"]) == (
        [2, 3, 4, 6],
        [12.5e6, 37.5e6, 125e6],
    )
    assert all(note in message for note in (benchmarked, find_note(notes, "virtual-nodes")))


def test_another_model_on_a_studys_network(study, tmp_path):
    folder, _ = study
    rows = ask(tmp_path, "--from", str(folder), "--step-time", "1", "--model", "resnet-50", "--rate", "1")
    assert rows["model"].tolist() == ["resnet-50"]
    result = answered("--from", str(folder), "--step-time", "1", "--model", "resnet-50", "--rate", "1")
    options = find_note(result.notes, "not-measured")
    assert (
        options.facts["measured_steps"] == ((1, 1, 1.0),)
        and options in (tmp_path / "projection.md").read_text()
    )
    with pytest.raises(InputError) as refused:
        ask(tmp_path, "--from", str(folder), *MODEL, "--framework", "horovod-pytorch")
    assert (refused.value.code, refused.value.file) == ("unknown-name", "--framework")
    assert refused.value.expected == ["pytorch-ddp"]


def test_no_benchmark_is_needed(tmp_path):
    synthetic.runs(folder=tmp_path, nodes=(1, 2, 4))
    assert set(ask(tmp_path, "--from", str(tmp_path))["batch_size"]) == {32, 64, 128}


def test_imports_are_extrapolated_beyond_their_largest_batch():
    answer = answered("--from", str(DLPERF), "--nodes", "4096")
    assert set(answer.rows["most_nodes"]) == {4096} and "limited-by-data" not in codes(answer.notes)


def test_links_of_unknown_rate_are_asked_as_they_were(tmp_path):
    """Measurements made elsewhere, which have no key, need not state the rate of their links."""
    runs = synthetic.runs(nodes=(1, 2, 4)).assign(bandwidth_bytes_s=None, key=None, block=None)
    synthetic.written(runs, "runs", tmp_path)
    rows = ask(tmp_path, "--from", str(tmp_path), "--nodes", "16")
    assert rows["rate"].isna().all() and sorted(rows["batch_size"]) == [32, 64, 128]
    assert (rows["worth_nodes"] >= 1).all() and rows["answer"].str.len().gt(0).all()


def test_a_study_that_cannot_be_predicted_says_so(tmp_path):
    synthetic.written(synthetic.runs(nodes=(1, 2)).assign(model="theirs", steps=None), "runs", tmp_path)
    assert ask(tmp_path, "--from", str(tmp_path)).empty
    _told_alone(tmp_path, projection_notes.NOTHING_TO_PREDICT)


def test_runs_on_one_node_are_enough(tmp_path):
    synthetic.runs(folder=tmp_path, nodes=(1,))
    rows = ask(tmp_path, "--from", str(tmp_path), "--nodes", "8")
    assert rows["rate"].nunique() == 4 and set(rows["batch_size"]) == {32, 64, 128}
    assert (
        rows.groupby("batch_size")["greatest_speedup"]
        .apply(lambda speedups: speedups.is_monotonic_increasing)
        .all()
    )


def _told_alone(folder, why, *options):
    """The table and the caption of the figure say why there is no projection, first and once, and nothing of how
    one is made.
    """
    of_table, caption = ((folder / f"projection.{suffix}").read_text() for suffix in ("md", "caption.md"))
    assert of_table.split("\n\n")[1] == why
    assert caption.splitlines()[0] == f"{captions.NOT_DRAWN}{captions.as_clause(why)}."
    for message in (of_table, caption):
        assert message.lower().count(why[1:].lower()) == 1 and "nan" not in message
    result = codes(answered("--from", str(folder), *options).notes)
    assert not {"benchmarked", "extrapolated", "not-measured"} & set(result)


@pytest.mark.parametrize("placement", ["virtual", "emulated"])
def test_a_study_without_a_successful_run_has_no_projection(tmp_path, placement):
    synthetic.written(
        synthetic.runs().assign(status="invalid", placement=placement, epoch_time_s=None), "runs", tmp_path
    )
    synthetic.network(folder=tmp_path)
    assert ask(tmp_path, "--from", str(tmp_path)).empty
    _told_alone(tmp_path, conditions.NO_SUCCESS)


def test_cells_of_uncounted_batches_are_left_out_by_name(tmp_path):
    runs = synthetic.runs(nodes=(1, 2, 3))
    least = runs["batch_size"] == 32
    synthetic.written(runs.assign(steps=runs["steps"].mask(least)), "runs", tmp_path)
    synthetic.network(folder=tmp_path)
    rows = ask(tmp_path, "--from", str(tmp_path), "--rate", "1")
    assert sorted(rows["batch_size"]) == [64, 128]
    message = (tmp_path / "projection.md").read_text()
    excluded = exclusion_note(read_timing_runs(tmp_path / "runs.csv"))
    assert set(excluded.facts["uncounted"]) == set(runs.loc[least, "cell"]) and excluded in message
    synthetic.written(
        runs.assign(n_allreduces=runs["n_allreduces"].mask(runs["cell"].notna())), "runs", tmp_path
    )
    assert ask(tmp_path, "--from", str(tmp_path), "--rate", "1").empty
    assert projection_notes.NOTHING_TO_PREDICT in (tmp_path / "projection.md").read_text()


def test_links_without_a_rate_are_no_faster_than_themselves(campaigns, tmp_path):
    rows = ask(tmp_path, "--from", str(campaigns / "tf-strategies-unshaped"), "--rate", "0.1", "1", "10")
    by_rate = rows[rows["model"] == "small-cnn-600"].set_index("rate")["greatest_speedup"]
    assert by_rate[1.25e7] < 0.5 * by_rate[1.25e9]


@pytest.mark.parametrize(
    "options", [[], ["--step-time", "0.1", "--model", "resnet-50"]], ids=["study", "another model"]
)
def test_emulated_nodes_have_no_projection(tmp_path, options):
    synthetic.written(synthetic.runs().assign(placement="emulated"), "runs", tmp_path)
    synthetic.network(folder=tmp_path)
    assert ask(tmp_path, "--from", str(tmp_path), *options).empty
    _told_alone(tmp_path, projection_notes.EMULATED, *options)
    assert all(
        projection_notes.WHAT_TO_DO in (tmp_path / f"projection.{suffix}").read_text()
        for suffix in ("md", "caption.md")
    )
    assert (tmp_path / "projection.pdf").is_file()


def test_the_figure_is_drawn_from_what_the_table_wrote(study, tmp_path, capsys):
    folder, _ = study
    projection.main(runs=folder / "runs.csv", network=folder / "network.csv", out=tmp_path / "projection")
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "projection.pdf").exists()
    records = Records(
        folder / "runs.csv",
        tmp_path / "none",
        {name: tmp_path / f"{name}.csv" for name in ("projection", "projection_curves")},
    )
    drawn, caption = figure.draw(records, FigureSpec("projection", "projection"))
    assert len([ax for ax in drawn.axes if ax.axison]) == 2 * 3, "two panels for each batch size"
    assert names_in(drawn.legends[0]) == ["1 Gbit/s", "10 Gbit/s", "25 Gbit/s", "100 Gbit/s"]
    open_markers = [line for line in drawn.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert [np.isfinite(line.get_ydata()).sum() for line in open_markers] == [5, 1, 1, 1], "links of 1 Gbit/s"
    assert find_note(caption.below, "heading").facts == {"quantities": ["speedup", "efficiency"]}
    assert caption.count(conditions.measurement_note(records.runs)) == 1
    assert conditions.run_counts_note(records.runs, False) in caption


def test_many_cases_are_drawn_with_their_largest_batch():
    answer = answered(*MODEL)
    cases = [(f"net-{model}", size) for model in range(2) for size in (16, 32, 64, 128)]
    curves, rows = (
        pd.concat([table.assign(model=model, batch_size=size, treatment=np.nan) for model, size in cases])
        for table in (answer.curves, answer.rows)
    )
    _, caption = figure.draw_curves(curves, rows, [])
    assert find_note(caption.below, "panels-left-out").facts == {"drawn": 2, "panels": 8}


def names_in(legend):
    return [text.get_text() for text in legend.get_texts()]
