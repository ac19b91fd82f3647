"""Each figure is made whatever a campaign holds, says in its caption what it must, and is the same file twice."""

import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from analysis.measured import Records
from common.errors import exit_status
from common.files import CHECKOUT
from figures import accuracy, by_batch_size, by_nodes, epoch_time, panels, regression, residuals, style
from synthetic import campaign, designed_campaign, write_campaign, write_frames

FIGURES = {
    "epoch_time": epoch_time,
    "by_batch_size": by_batch_size,
    "by_nodes": by_nodes,
    "accuracy": accuracy,
    "residuals": residuals,
    "regression": regression,
}
SUFFIXES = ["pdf", "svg", "png", "caption.md"]


def make(name, files, out):
    FIGURES[name].main(["--runs", str(files[0]), "--epochs", str(files[1]), "--out", str(out / name)])
    return (out / f"{name}.caption.md").read_text()


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    return write_campaign(tmp_path_factory.mktemp("campaign"))


@pytest.fixture(scope="module")
def made(csv, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    for name in FIGURES:
        make(name, csv, folder)
    return folder


def changed(case):
    runs, epochs = campaign(replicates=1 if case == "one replicate" else 3, failures={})
    match case:
        case "one framework":
            runs = runs[runs["framework"] == "horovod-pytorch"]
        case "one batch size":
            runs = runs[runs["batch_size"] == 16]
        case "one node":
            runs = runs[runs["nodes"] == 1]
        case "one cell":
            runs = runs[runs["cell"] == runs["cell"].iloc[0]]
        case "no successful run":
            runs = runs.assign(status="failed", reason="broken", epoch_time_s=None)
        case "bases failed":
            base = runs["framework"] == runs["base"]
            runs.loc[base, ["status", "epoch_time_s"]] = ["failed", None]
        case "a panel failed":
            runs.loc[runs["batch_size"] == 64, ["status", "epoch_time_s"]] = ["timeout", None]
        case "no accuracy":
            epochs = epochs.assign(train_accuracy=None, validation_accuracy=None)
        case "two models":
            other = runs.assign(model="resnet50", epoch_time_s=50 * runs["epoch_time_s"])
            other["run_id"] = other["run_id"].str.replace("small-cnn", "resnet50")
            other["cell"] = other["cell"].str.replace("small-cnn", "resnet50")
            runs = pd.concat([runs, other], ignore_index=True)
        case "unknown framework":
            runs = runs.replace({"framework": {"pytorch-ddp": "quite-new"}})
        case "wide times":
            runs.loc[runs["batch_size"] == 16, "epoch_time_s"] *= 100
    return runs, epochs


CASES = [
    "one replicate",
    "one framework",
    "one batch size",
    "one node",
    "one cell",
    "no successful run",
    "bases failed",
    "a panel failed",
    "no accuracy",
    "two models",
    "unknown framework",
    "wide times",
]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("case", CASES)
def test_a_figure_is_drawn_whatever_the_campaign_holds(name, case, tmp_path):
    drawn, caption = FIGURES[name].draw(Records(*write_frames(tmp_path, *changed(case))))
    drawn.draw_without_rendering()
    assert caption.endswith(".")
    assert "nan" not in caption
    texts = [text.get_text() for ax in drawn.axes for text in ax.texts]
    if case == "no successful run":
        assert texts == ["no successful run"]
        assert "No run of the study succeeded." in caption
    if case == "one replicate" and name == "residuals":
        assert texts == ["no two runs of a cell differ"]
    if case == "no accuracy" and name == "accuracy":
        assert texts == ["no accuracy was recorded"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_caption_says_what_every_caption_must(name, made):
    caption = (made / f"{name}.caption.md").read_text()
    assert caption.count("\n") == 1
    for said in (
        "n = 2 to 3 per cell",
        "95 % t intervals of the mean over replicates" if name == "accuracy" else "each cell's own standard deviation",
        "Placement: emulated",
        "Batch scope: local",
        "Timing scope: the slowest of all ranks",
        "Missing cells: pytorch-ddp.small-cnn.digits.b32.n2.s4.",
        "1 run did not succeed in horovod-tensorflow.small-cnn.digits.b16.n2.s1",
        "model small-cnn, data set digits",
    ):
        assert said in caption


def test_the_caption_by_nodes_names_each_base_with_its_seconds(made):
    caption = (made / "by_nodes.caption.md").read_text()
    assert re.search(r"pytorch-single\.small-cnn\.digits\.b64\.n1\.s1 0\.\d+ \[0\.\d+, 0\.\d+\] s", caption)
    assert "Horizontal lines: the undistributed bases." in caption


def test_a_caption_names_ten_missing_cells_and_counts_the_others(tmp_path):
    runs, epochs = campaign()
    bad = runs["batch_size"] == 16
    runs.loc[bad | (runs["batch_size"] == 64), ["status", "epoch_time_s"]] = ["missing", None]
    _, caption = epoch_time.draw(Records(*write_frames(tmp_path, runs, epochs)))
    missing = re.search(r"Missing cells: (.*?) and (\d+) more\.", caption)
    assert len(missing.group(1).split(", ")) == 10
    assert 10 + int(missing.group(2)) == 21


def test_a_master_clock_is_said(tmp_path):
    runs, epochs = campaign()
    runs.loc[runs["framework"] == "pytorch-ddp", "timing_scope"] = "master"
    _, caption = by_nodes.draw(Records(*write_frames(tmp_path, runs, epochs)))
    assert "for pytorch-ddp the clock of the master only" in caption


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_records_give_the_same_bytes_in_another_process(name, csv, made, tmp_path):
    flags = ["--runs", csv[0], "--epochs", csv[1], "--out", tmp_path / name]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")}
    subprocess.run([sys.executable, "-m", f"figures.{name}", *map(str, flags)], check=True, env=environment)
    for suffix in SUFFIXES:
        assert (made / f"{name}.{suffix}").read_bytes() == (tmp_path / f"{name}.{suffix}").read_bytes()


@pytest.mark.parametrize("name", FIGURES)
def test_fonts_are_embedded_and_text_stays_text(name, made):
    pdf = (made / f"{name}.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    svg = (made / f"{name}.svg").read_text()
    assert ("normal quantile" if name == "residuals" else "pytorch-ddp") in svg
    assert "<dc:date>" not in svg


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_fits_a_column_or_a_page(name, csv):
    drawn, _ = FIGURES[name].draw(Records(*csv))
    assert drawn.get_figwidth() in (style.COLUMN_IN, style.PAGE_IN)
    assert drawn.get_figheight() < 9


@pytest.mark.parametrize("name", FIGURES)
def test_a_broken_csv_gives_one_line_and_status_2(name, csv, tmp_path, capsys):
    (tmp_path / "runs.csv").write_text("run_id\n")
    argv = ["--runs", str(tmp_path / "runs.csv"), "--epochs", str(csv[1]), "--out", str(tmp_path / name)]
    assert exit_status(lambda: FIGURES[name].main(argv)) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]


def test_each_known_framework_has_its_own_colour_and_marker():
    looks = style.LOOKS.values()
    assert len({look.colour for look in looks}) == len(looks)
    assert len({(look.marker, look.filled) for look in looks}) == len(looks)


def test_the_look_of_a_framework_does_not_depend_on_the_others():
    assert style.look("pytorch-ddp") == style.LOOKS["pytorch-ddp"]
    assert style.look("quite-new") == style.look("quite-new")
    assert style.look("quite-new").colour not in {look.colour for look in style.LOOKS.values()}


def test_lines_of_quickstart_differ_in_grey_by_lightness_marker_or_line():
    names = ["pytorch-ddp", "horovod-pytorch", "tensorflow-multiworker", "horovod-tensorflow"]
    for one in names:
        for other in names:
            a, b = style.look(one), style.look(other)
            assert one == other or (a.marker, a.line) != (b.marker, b.line)


def test_the_axis_of_time_starts_at_zero_and_shows_every_interval(csv):
    drawn, _ = by_batch_size.draw(Records(*csv))
    for ax in drawn.axes:
        assert ax.get_ylim()[0] == 0
        highest = max(np.nanmax(line.get_ydata()) for line in ax.lines)
        assert ax.get_ylim()[1] >= highest


def test_times_far_apart_get_a_logarithmic_axis_and_the_caption_says_so(tmp_path):
    drawn, caption = by_batch_size.draw(Records(*write_frames(tmp_path, *changed("wide times"))))
    assert drawn.axes[0].get_yscale() == "log"
    assert "The axis of time is logarithmic." in caption


def test_a_line_is_broken_at_a_missing_cell(tmp_path):
    runs, epochs = campaign(failures={})
    gap = (runs["framework"] == "pytorch-ddp") & (runs["batch_size"] == 32)
    runs.loc[gap, ["status", "epoch_time_s"]] = ["failed", None]
    drawn, _ = by_batch_size.draw(Records(*write_frames(tmp_path, runs, epochs)))
    colour = style.look("pytorch-ddp").colour
    joined = [
        line
        for line in drawn.axes[0].lines
        if line.get_color() == colour and len(line.get_xdata()) == 3 and line.get_linestyle() == "-"
    ]
    assert np.isnan(joined[-1].get_ydata()).tolist() == [False, True, False]


def test_more_panels_than_a_figure_holds_are_counted_in_the_caption():
    shown, said = panels.most([{"batch_size": size} for size in range(60)])
    assert len(shown) == panels.MOST_PANELS
    assert "Only the first 48 of 60 panels are drawn" in said


TREATMENTS = ["custom, every batch", "custom, every 4 batches", "fit, every batch"]


@pytest.fixture(scope="module")
def treated(tmp_path_factory):
    return Records(*write_frames(tmp_path_factory.mktemp("treated"), *designed_campaign()))


def names_in(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_the_series_of_one_framework_are_its_treatments_and_of_several_the_frameworks(treated, csv):
    series = panels.all_series(treated.runs)
    assert [one.name for one in series] == TREATMENTS
    assert sum(len(one.of(treated.runs)) for one in series) == len(treated.runs)
    assert [one.look for one in series] == style.TREATMENT_LOOKS[:3]
    frameworks = panels.all_series(Records(*csv).runs)
    assert [one.name for one in frameworks][:2] == ["pytorch-single", "tensorflow-single"]
    assert all(one.look == style.LOOKS[one.name] for one in frameworks)


def test_series_have_words_from_their_factors(treated):
    runs = treated.runs

    def names(frame):
        return [one.name for one in panels.all_series(frame)]

    custom = runs[runs["training_loop"] == "custom"]
    assert names(custom) == ["every batch", "every 4 batches"]
    assert names(custom[custom["sync_every"] == 1]) == ["tensorflow-multiworker"]
    assert names(runs[runs["sync_every"] == 1]) == ["custom", "fit"]
    other = custom.assign(lr_scaling=np.where(custom["sync_every"] == 4, "linear", "none"), momentum=0.5)
    assert names(other) == ["learning-rate scaling none, every batch", "learning-rate scaling linear, every 4 batches"]


def test_more_treatments_than_can_be_told_apart_become_panels(treated):
    runs = pd.concat([treated.runs.assign(momentum=momentum) for momentum in (0.0, 0.5, 0.9)], ignore_index=True)
    series = panels.all_series(runs)
    assert [one.name for one in series] == TREATMENTS
    many = pd.concat([treated.runs.assign(sync_every=2**k, training_loop="custom") for k in range(9)])
    assert [one.name for one in panels.all_series(many)] == ["tensorflow-multiworker"]


@pytest.mark.parametrize(
    ("name", "count", "height"),
    [("by_nodes", 6, 4), ("by_batch_size", 6, 4), ("epoch_time", 6, 4), ("accuracy", 36, 9)],
)
def test_a_study_of_treatments_has_panels_of_three_series(name, count, height, treated):
    drawn, caption = FIGURES[name].draw(treated)
    assert len([ax for ax in drawn.axes if ax.axison]) == count
    assert drawn.get_figheight() < height
    assert drawn.get_figwidth() == style.PAGE_IN
    assert "treatment (training loop, batches per exchange)" in caption
    colours = [look.colour for look in style.TREATMENT_LOOKS[:3]]
    for ax in drawn.axes:
        assert {line.get_color() for line in ax.lines if line.get_color() in colours} == set(colours)
    if name == "epoch_time":
        labels = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
        assert labels == [f"{one}, {n} node{'s' * (n > 1)}" for one in TREATMENTS for n in (1, 2, 3)]
    else:
        assert names_in(drawn.legends[0])[:3] == TREATMENTS


def test_by_nodes_draws_what_was_measured_of_each_treatment(treated):
    drawn, _ = by_nodes.draw(treated)
    runs = treated.runs
    for one in panels.all_series(runs):
        here = one.of(panels.at(runs, {"model": "small-cnn", "batch_size": 64}))
        means = here.groupby("nodes")["epoch_time_s"].mean().tolist()
        joined = [
            line.get_ydata()
            for line in drawn.axes[1].lines
            if line.get_color() == one.look.colour and len(line.get_xdata()) == 3 and line.get_linewidth() == 1.0
        ]
        assert any(np.allclose(y, means) for y in joined)
        bounds = [
            line.get_ydata()
            for line in drawn.axes[1].lines
            if line.get_linewidth() == 0.7 and line.get_color() == one.look.colour
        ]
        assert any(np.allclose(y, means[0] / np.array([1, 2, 3])) for y in bounds)


def test_only_by_nodes_has_a_bound(treated):
    assert names_in(by_nodes.draw(treated)[0].legends[0])[-1] == "base / replicas"
    assert names_in(by_batch_size.draw(treated)[0].legends[0]) == TREATMENTS


def test_treatments_differ_in_colour_marker_line_and_the_first_three_in_grey():
    looks = style.TREATMENT_LOOKS
    for part in ("colour", "marker", "line"):
        assert len({getattr(look, part) for look in looks}) == len(looks)
    assert not {look.colour for look in looks} & {look.colour for look in style.LOOKS.values()}
    grey = sorted(
        np.dot([0.299, 0.587, 0.114], [int(look.colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for look in looks[:3]
    )
    assert min(np.diff(grey)) > 0.15


def test_no_row_of_panels_is_half_empty_where_threes_fill_it():
    assert [panels.layout(count)[:2] for count in (1, 2, 4, 5, 6, 8, 9, 12)] == [
        (1, 1), (1, 2), (1, 4), (2, 4), (2, 3), (2, 4), (3, 3), (3, 4),
    ]  # fmt: skip


def test_the_panels_of_residuals_show_every_run_every_cell_and_the_test_of_lack_of_fit(treated):
    drawn, _ = regression.draw(treated)
    runs, cells = len(treated.runs), treated.runs["cell"].nunique()
    assert [ax.get_title().splitlines()[0] for ax in drawn.axes] == [
        "epoch time, linear",
        "epoch time, quadratic",
        "throughput, linear",
        "throughput, quadratic",
    ]
    for ax in drawn.axes:
        points = sum(len(line.get_xdata()) for line in ax.lines if line.get_linestyle() == "None")
        assert points == runs + cells
        assert ax.get_title().splitlines()[1] == "lack of fit: p <0.001"


def test_residuals_of_many_runs_are_an_image_in_vector_files(csv, tmp_path):
    few, _ = regression.draw(Records(*csv))
    assert not any(line.get_rasterized() for line in few.axes[0].lines)
    records = Records(*write_campaign(tmp_path, replicates=60))
    many, _ = regression.draw(records)
    assert any(line.get_rasterized() for line in many.axes[0].lines)
