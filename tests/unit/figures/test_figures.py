"""Each figure is made whatever a campaign holds, says in its caption what it must, and is the same file twice."""

import importlib
import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis import anova, speedup, tables
from analysis.measured import Records
from analysis.pooling import pooled
from analysis.regression import fit_all
from common.errors import exit_status
from common.files import CHECKOUT
from common.tables import write_table
from declared.factors import MOST_SERIES
from declared.figures import MOST_VARIANTS, Declared, from_json
from figures import draw, panels, style
from figures.view import view
from prediction.bound import shortest
from support.synthetic import campaign, designed_campaign, sweeps, write_campaign, write_frames

FIGURES = {
    figure.name: figure
    for figure in (
        Declared("overview", "overview"),
        Declared("by_batch_size", "by_factor", x="batch_size"),
        Declared("by_nodes", "by_factor", x="nodes"),
        Declared("by_framework", "by_factor", x="framework"),
        Declared("scaling", "scaling"),
        Declared("accuracy", "accuracy"),
        Declared("accuracy-updates", "accuracy", x="updates"),
        Declared("accuracy-wall_time", "accuracy", x="wall_time"),
        Declared("time_to_accuracy", "time_to_accuracy", target=0.5),
        Declared("interaction", "interaction", x="nodes", colour=("framework",)),
        Declared("residuals", "residuals"),
        Declared("regression", "regression"),
        Declared("shares", "shares"),
        Declared("shares-epoch", "shares", x="epoch"),
    )
}
OF_EACH_KIND = list({figure.kind: name for name, figure in reversed(FIGURES.items())}.values())
OF_ACCURACY = [name for name in FIGURES if name.startswith("accuracy")]
WITHOUT_INTERVALS = ["residuals", "regression", "shares", "shares-epoch"]  # of epoch time
SUFFIXES = ["pdf", "svg", "png", "caption.md"]


def drawn_by(name, records):
    asked = FIGURES[name] if isinstance(name, str) else name
    return importlib.import_module(f"figures.{asked.kind}").draw(records, asked)


def flags(name, files, out):
    return [
        *("--asked", FIGURES[name].to_json(), "--runs", str(files[0]), "--epochs", str(files[1])),
        *("--network", "--predictions", "--outlook", "--out", str(out / name)),
    ]


def make(name, files, out):
    draw.main(flags(name, files, out))
    return (out / f"{name}.caption.md").read_text()


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    return write_campaign(tmp_path_factory.mktemp("campaign"))


@pytest.fixture(scope="module")
def drawings(csv):
    """Every figure of the campaign with its caption, drawn once."""
    return {name: drawn_by(name, Records(*csv)) for name in FIGURES}


@pytest.fixture(scope="module")
def made(drawings, tmp_path_factory):
    """What figures.draw writes of one of each kind."""
    folder = tmp_path_factory.mktemp("figures")
    for name in OF_EACH_KIND:
        drawn, caption = drawings[name]
        style.save(drawn, folder / name)
        (folder / f"{name}.caption.md").write_text(caption + "\n")
    return folder


def changed(case):
    runs, epochs = campaign(replicates=1 if case == "one replicate" else 2, failures={})
    runs = runs[runs["batch_size"] != 32]  # two levels tell as much as three, in half of the time
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


THOROUGH = (
    "one framework",
    "one batch size",
    "one node",
    "a panel failed",
    "unknown framework",
)  # parts of other cases


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, marks=[pytest.mark.thorough] * (case in THOROUGH)) for case in CASES],
)
def unusual(request, tmp_path_factory):
    """What a campaign is like, and its tables."""
    return request.param, Records(*write_frames(tmp_path_factory.mktemp("unusual"), *changed(request.param)))


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_figure_is_drawn_whatever_the_campaign_holds(name, unusual):
    case, records = unusual
    drawn, caption = drawn_by(name, records)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as of a layout that collapsed
        drawn.draw_without_rendering()
    assert caption.endswith(".")
    assert "nan" not in caption
    texts = [text.get_text() for ax in drawn.axes for text in ax.texts]
    if case == "no successful run":
        assert texts == ["no successful run"]
        assert caption.startswith("Not drawn: no successful run.")
    if case == "one replicate" and name == "residuals":
        assert texts == ["no two runs of a cell differ"]
    if case == "no accuracy" and name in OF_ACCURACY:
        assert texts == ["no accuracy was recorded"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_caption_says_what_every_caption_must(name, drawings):
    below, *apart = drawings[name][1].split("\n\n")
    assert len(apart) <= 1 and "\n" not in below and "\n" not in "".join(apart)
    assert len(below.split()) <= 70
    for said in (
        "Runs: n = 2 to 3 per cell",
        "95 %" if name not in WITHOUT_INTERVALS else "",
        "Placement: emulated on one machine, no real network.",
        "Missing: 1 of 38 cells. 1 other run did not succeed.",
    ):
        assert said in below
    assert name not in WITHOUT_INTERVALS or "intervals" not in below, "of what is not drawn nothing is said"


def test_the_caption_by_nodes_has_the_seconds_of_its_bases(drawings):
    _, caption = drawings["by_nodes"]
    assert re.search(r"There are \d+, from 0\.\d+ to \d\.\d+ s; the table of cells has each\.", caption)
    assert "Horizontal lines: the undistributed bases." in caption


def test_the_same_records_give_the_same_bytes_in_another_process(csv, made, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")}
    program = "import json, sys; from figures import draw; [draw.main(one) for one in json.loads(sys.argv[1])]"
    figures = [flags(name, csv, tmp_path) for name in OF_EACH_KIND]  # none depends on those before it
    subprocess.run([sys.executable, "-c", program, json.dumps(figures)], check=True, env=environment)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == len(OF_EACH_KIND) * len(SUFFIXES)
    for file in drawn:
        assert file.read_bytes() == (made / file.name).read_bytes(), file.name


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_fonts_are_embedded_and_text_stays_text(name, made):
    pdf = (made / f"{name}.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    svg = (made / f"{name}.svg").read_text()
    assert ("normal quantile" if name == "residuals" else "pytorch-ddp") in svg
    assert "<dc:date>" not in svg


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_fits_a_column_or_a_page(name, drawings):
    drawn, _ = drawings[name]
    assert drawn.get_figwidth() in (style.COLUMN_IN, style.PAGE_IN)
    assert drawn.get_figheight() < 9


@pytest.mark.parametrize("name", FIGURES)
def test_a_broken_csv_gives_one_line_and_status_2(name, csv, tmp_path, capsys):
    (tmp_path / "runs.csv").write_text("run_id\n")
    argv = flags(name, (tmp_path / "runs.csv", csv[1]), tmp_path)
    assert exit_status(lambda: draw.main(argv)) == 2
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
    drawn, _ = drawn_by("by_batch_size", Records(*csv))
    for ax in drawn.axes:
        assert ax.get_ylim()[0] == 0
        highest = max(np.nanmax(line.get_ydata()) for line in ax.lines)
        assert ax.get_ylim()[1] >= highest


@pytest.mark.parametrize("name", ["overview", "by_nodes"])
def test_an_interval_of_two_runs_sets_no_axis_and_ends_in_an_arrow(name, tmp_path):
    runs, epochs = campaign(failures={})
    slowest = runs.loc[runs["epoch_time_s"].idxmax(), "cell"]
    two = runs["cell"] == slowest
    runs.loc[two, "epoch_time_s"] *= [1.0, 0.6, 1.0]
    runs.loc[runs.index[two][2], ["status", "reason", "epoch_time_s"]] = ["failed", "it broke", None]
    records = Records(*write_frames(tmp_path, runs, epochs))
    drawn, caption = drawn_by(name, records)
    assert "Arrows: intervals that are longer than the axis." in caption
    tops = {(ax.get_xlim() if name == "overview" else ax.get_ylim())[1] for ax in drawn.axes if ax.lines}
    high = pooled(records.runs).of(slowest).high
    assert max(tops) < 0.9 * high
    bars = [line for ax in drawn.axes for line in ax.lines if isinstance(line, panels.Bar)]
    ends = [line.get_xdata() if name == "overview" else line.get_ydata() for line in bars]
    assert max(map(max, ends)) == pytest.approx(high)
    marks = [line.get_marker() for ax in drawn.axes for line in ax.lines]
    assert (">" if name == "overview" else "^") in marks


def test_times_far_apart_get_a_logarithmic_axis_and_the_caption_says_so(tmp_path):
    drawn, caption = drawn_by("by_batch_size", Records(*write_frames(tmp_path, *changed("wide times"))))
    assert drawn.axes[0].get_yscale() == "log"
    assert "The axis of time is logarithmic." in caption


def test_a_line_is_broken_at_a_missing_cell(tmp_path):
    runs, epochs = campaign(failures={})
    gap = (runs["framework"] == "pytorch-ddp") & (runs["batch_size"] == 32)
    runs.loc[gap, ["status", "epoch_time_s"]] = ["failed", None]
    drawn, _ = drawn_by("by_batch_size", Records(*write_frames(tmp_path, runs, epochs)))
    colour = style.look("pytorch-ddp").colour
    joined = [
        line
        for line in drawn.axes[0].lines
        if line.get_color() == colour and len(line.get_xdata()) == 3 and line.get_linestyle() == "-"
    ]
    assert np.isnan(joined[-1].get_ydata()).tolist() == [False, True, False]


RATES = [round(0.01 * (i + 1), 2) for i in range(6)]
OPTIMIZERS = ["sgd", "adam"]


@pytest.fixture(scope="module")
def of_many_panels(tmp_path_factory):
    runs, epochs = campaign(replicates=2, failures={})

    def at(frame, optimizer, rate):
        frame = frame.assign(run_id=frame["run_id"] + f".optimizer={optimizer}.learning_rate={rate:g}")
        if "cell" not in frame:
            return frame
        name = frame["cell"] + f".optimizer={optimizer}.learning_rate={rate:g}"
        return frame.assign(cell=name, optimizer=optimizer, learning_rate=rate)

    every = [(optimizer, rate) for optimizer in OPTIMIZERS for rate in RATES]
    runs, epochs = (pd.concat([at(frame, *levels) for levels in every], ignore_index=True) for frame in (runs, epochs))
    return Records(*write_frames(tmp_path_factory.mktemp("many"), runs, epochs))


def test_a_page_holds_as_many_levels_of_the_last_factor_as_fit(of_many_panels):
    whole = view(of_many_panels.runs, FIGURES["by_nodes"])
    assert whole.facet == ["batch_size", "optimizer", "sync_every", "learning_rate"]
    assert len(whole.panels) == 4 * 2 * 6
    assert whole.on_a_page(0.6).panels is whole.panels
    some = whole.on_a_page(2.0)
    assert len(some.panels) == 16
    assert some.runs["learning_rate"].unique().tolist() == RATES[:2]
    assert some.unseen == ("16 of 48 panels are drawn, those at learning rate 0.01 or 0.02; a `filter` shows others.")
    few = whole.on_a_page(9.0)
    assert few.facet == ["batch_size"]
    assert set(few.runs["optimizer"]) == {"sgd"}
    assert "those at optimizer sgd, batches per exchange 1, learning rate 0.01;" in few.unseen
    assert few.pooling.df == whole.pooling.df, "intervals stand on all runs"


def test_many_levels_are_told_from_the_first_to_the_last_or_counted(of_many_panels):
    one = of_many_panels.runs[of_many_panels.runs["learning_rate"] == RATES[0]]
    rates = [round(0.001 * (i + 1), 3) for i in range(40)]
    runs = pd.concat(
        [one.assign(learning_rate=rate, cell=one["cell"] + f".{rate:g}") for rate in rates], ignore_index=True
    )
    asked = replace(FIGURES["by_nodes"], filter={"batch_size": [16], "optimizer": ["sgd"], "sync_every": [1]})
    assert "those at learning rate 0.001 to 0.016; a `filter`" in view(runs, asked).on_a_page(2.0).unseen
    lost = runs.assign(status=runs["status"].mask(runs["learning_rate"].isin(rates[::2]), "failed"))
    assert "those at 16 of 40 levels of learning rate; a `filter`" in view(lost, asked).on_a_page(2.0).unseen
    for kept, said in ((rates[:20], "learning rate 0.001 to 0.02"), (rates[::2], "20 of 40 levels of learning rate")):
        held = replace(asked, filter={"learning_rate": kept})
        assert f"Shown: only {said}." in view(runs, held).caption("All.")


def test_levels_with_successful_runs_are_drawn_before_others(of_many_panels):
    lost = of_many_panels.runs.assign(
        status=lambda runs: np.where(runs["learning_rate"] < RATES[4], "failed", runs["status"])
    )
    assert view(lost, FIGURES["by_nodes"]).on_a_page(2.0).runs["learning_rate"].unique().tolist() == RATES[4:]


@pytest.mark.parametrize("name", [name for name in OF_EACH_KIND if name not in ("residuals", "regression")])
def test_a_figure_of_many_panels_fits_a_page_and_says_what_it_leaves_out(name, of_many_panels):
    drawn, caption = drawn_by(name, of_many_panels)
    drawn.draw_without_rendering()
    assert drawn.get_figheight() <= 9
    said = re.search(r"(\d+) of (\d+) panels are drawn, those at (.*?learning rate .*?);", caption)
    shown = {ax.get_title() for ax in drawn.axes if ax.get_title()}
    assert len(shown) == int(said.group(1)) < int(said.group(2))
    asked = replace(FIGURES[name], filter={"learning_rate": [RATES[4]]})
    other, told = drawn_by(asked, of_many_panels)
    assert "Shown: only learning rate 0.05." in told
    assert other.get_figheight() <= 9


TREATMENTS = ["custom, every batch", "custom, every 4 batches", "fit, every batch"]


@pytest.fixture(scope="module")
def treated(tmp_path_factory):
    return Records(*write_frames(tmp_path_factory.mktemp("treated"), *designed_campaign()))


def all_series(runs, **asked):
    return view(runs, Declared("accuracy", "accuracy", **asked)).series


def names_in(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_the_series_of_one_framework_are_its_treatments_and_of_several_the_frameworks(treated, csv):
    series = all_series(treated.runs)
    assert [one.name for one in series] == TREATMENTS
    assert sum(len(one.of(treated.runs)) for one in series) == len(treated.runs)
    assert [one.look for one in series] == style.TREATMENT_LOOKS[:3]
    frameworks = all_series(Records(*csv).runs)
    assert [one.name for one in frameworks][:2] == ["pytorch-single", "tensorflow-single"]
    assert all(one.look == style.LOOKS[one.name] for one in frameworks)


def test_series_have_words_from_their_factors(treated):
    runs = treated.runs

    def names(frame):
        return [one.name for one in all_series(frame)]

    custom = runs[runs["training_loop"] == "custom"]
    assert names(custom) == ["every batch", "every 4 batches"]
    assert names(custom[custom["sync_every"] == 1]) == ["tensorflow-multiworker"]
    assert names(runs[runs["sync_every"] == 1]) == ["custom", "fit"]
    other = custom.assign(lr_scaling=np.where(custom["sync_every"] == 4, "linear", "none"), momentum=0.5)
    assert names(other) == ["learning-rate scaling none, every batch", "learning-rate scaling linear, every 4 batches"]


def test_more_treatments_than_can_be_told_apart_become_panels(treated):
    runs = pd.concat([treated.runs.assign(momentum=momentum) for momentum in (0.0, 0.5, 0.9)], ignore_index=True)
    series = all_series(runs)
    assert [one.name for one in series] == TREATMENTS
    many = pd.concat([treated.runs.assign(sync_every=2**k, training_loop="custom") for k in range(9)])
    assert [one.name for one in all_series(many)] == ["tensorflow-multiworker"]


@pytest.mark.parametrize(
    ("name", "count", "height"),
    [
        ("by_nodes", 6, 4),
        ("by_batch_size", 6, 4),
        ("overview", 6, 4),
        ("accuracy", 36, 9),
        ("accuracy-updates", 36, 9),
        ("accuracy-wall_time", 36, 9),
        ("scaling", 12, 7),
    ],
)
def test_a_study_of_treatments_has_panels_of_three_series(name, count, height, treated):
    drawn, caption = drawn_by(name, treated)
    assert len([ax for ax in drawn.axes if ax.axison]) == count
    assert drawn.get_figheight() < height
    assert drawn.get_figwidth() == style.PAGE_IN
    assert "Series: training loop, batches per exchange." in caption
    colours = [look.colour for look in style.TREATMENT_LOOKS[:3]]
    for ax in drawn.axes:
        assert {line.get_color() for line in ax.lines if line.get_color() in colours} == set(colours)
    if name == "overview":
        labels = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
        assert labels == [f"{one}, {n} node{'s' * (n > 1)}" for one in TREATMENTS for n in (1, 2, 3)]
    else:
        assert names_in(drawn.legends[0])[:3] == TREATMENTS


def test_by_nodes_draws_what_was_measured_of_each_treatment(treated):
    drawn, _ = drawn_by("by_nodes", treated)
    runs = treated.runs
    for one in all_series(runs):
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
    one = {"model": ["small-cnn"]}
    assert names_in(drawn_by(replace(FIGURES["by_nodes"], filter=one), treated)[0].legends[0])[-1] == "base / replicas"
    assert names_in(drawn_by(replace(FIGURES["by_batch_size"], filter=one), treated)[0].legends[0]) == TREATMENTS


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


def test_the_panels_of_the_regression_show_each_cell_as_the_others_predict_it(treated):
    drawn, _ = drawn_by("regression", treated)
    fits = fit_all(treated.runs)
    assert [ax.get_title().splitlines()[0] for ax in drawn.axes] == [
        "epoch time, linear",
        "epoch time, quadratic",
        "throughput, linear",
        "throughput, quadratic",
    ]
    for ax, each in zip(drawn.axes, fits.values(), strict=True):
        points = [line for line in ax.lines if line.get_linestyle() == "None"]
        measured = np.concatenate([line.get_xdata() for line in points])
        assert sorted(measured) == pytest.approx(sorted(each.cells["measured"]))
        mape, p = ax.get_title().splitlines()[1].split(", ")
        assert mape == f"MAPE {each.statistics['without cell: MAPE (%)']:.1f} %"
        assert p == "p <0.001"


TREATED = ["model", "training_loop", "sync_every"]


def test_predictions_beyond_the_axes_are_counted(tmp_path):
    runs, epochs = designed_campaign()
    runs.loc[runs["batch_size"] == 32, "epoch_time_s"] *= 30
    drawn, caption = drawn_by("regression", Records(*write_frames(tmp_path, runs, epochs)))
    drawn.draw_without_rendering()
    assert re.search(r"Drawn at the edges: \d+ predictions beyond the axes or below 0\.", caption)


def test_one_prediction_beyond_the_axes_is_told_as_one(tmp_path):
    runs, epochs = designed_campaign()
    few = runs[runs["replicate"] == 1]
    few = few[(few[TREATED] == few[TREATED].iloc[0]).all(axis=1)]
    _, caption = drawn_by("regression", Records(*write_frames(tmp_path, few, epochs)))
    assert "Drawn at the edges: 1 prediction beyond the axes or below 0." in caption


def test_markers_of_very_many_cells_are_an_image_in_vector_files(treated, monkeypatch):
    few, _ = drawn_by("regression", treated)
    assert not any(line.get_rasterized() for line in few.axes[0].lines)
    monkeypatch.setattr("figures.regression.MOST_VECTOR", 10)
    many, _ = drawn_by("regression", treated)
    assert any(line.get_rasterized() for line in many.axes[0].lines)


def lines_of(ax, colour, width=1.0):
    return [line for line in ax.lines if line.get_color() == colour and line.get_linewidth() == width]


def test_scaling_shows_the_numbers_of_the_table_of_speed_up(treated):
    drawn, _ = drawn_by("scaling", treated)
    rows = speedup.compare(treated.runs)
    rows = rows[(rows["model"] == "small-cnn") & (rows["batch_size"] == 32)]
    upper, lower = drawn.axes[0], drawn.axes[3]
    assert upper.get_title() == "small-cnn, batch size 32"
    for one in all_series(treated.runs):
        own = one.of(rows).sort_values("replicas")
        for ax, name, unit in ((upper, "speedup", 1), (lower, "efficiency", 100)):
            (line,) = [each for each in lines_of(ax, one.look.colour) if each.get_linestyle() != "None"]
            assert line.get_ydata() == pytest.approx(unit * own[name].to_numpy())
            bars = [bar for bars in ax.collections for bar in bars.get_segments() if len(bar) == 2]
            for low, high in own[[f"{name}_low", f"{name}_high"]].dropna().to_numpy():
                assert any(bar[:, 1] == pytest.approx([unit * low, unit * high]) for bar in bars)
    ideal = next(line for line in upper.lines if line.get_linestyle() == "--" and len(line.get_xdata()) == 50)
    assert ideal.get_ydata()[[0, -1]].tolist() == [1, 3]
    assert names_in(drawn.legends[0]) == [*TREATMENTS, "ideal"]


def test_the_bound_needs_a_sweep_and_is_above_what_was_measured(treated, tmp_path):
    write_table(sweeps("tensorflow-multiworker", noise=0), "network", tmp_path / "network.csv")
    records = Records(treated.runs_csv, treated.epochs_csv, tmp_path / "network.csv")
    drawn, caption = drawn_by("scaling", records)
    assert names_in(drawn.legends[0])[-1] == "upper bound"
    assert "an upper bound from the physical model" in caption
    least = shortest(records.runs, records.network)
    means = records.runs.groupby("cell")["epoch_time_s"].mean()
    assert set(least) == set(means.index)
    above = means / pd.Series(least)
    assert above.min() > 0.9, "noise apart, nothing is faster than the model allows"
    assert drawn_by("scaling", treated)[1].count("physical model") == 0


def test_each_panel_of_scaling_says_the_seconds_of_its_bases(treated):
    drawn, caption = drawn_by("scaling", treated)
    rows = speedup.compare(treated.runs)
    rows = rows[(rows["model"] == "small-cnn") & (rows["batch_size"] == 32)]
    seconds = sorted(set(rows["base_epoch_time_s"]))
    said = [text.get_text() for text in drawn.axes[0].texts]
    assert said == [f"bases {tables.number(seconds[0])} to {tables.number(seconds[-1])} s"]
    assert "Bases: a framework's own cell with one replica" in caption


def test_series_without_a_cell_on_one_replica_are_named_and_bases_told_in_words():
    kept = CHECKOUT / "docs" / "campaigns" / "prediction-virtual"
    asked = Declared("scaling", "scaling", colour=("bandwidth",))
    _, caption = drawn_by(asked, Records(kept / "runs.csv", kept / "epochs.csv"))
    assert "Without a marker on one replica: 250 Mbit/s, 500 Mbit/s." in caption
    assert re.search(r"vary; batch size 32, 1 node, 1000 Mbit/s: 3\.\d+ \[.*\] s; batch size 64, ", caption)


def test_panels_have_the_names_and_the_order_that_treatments_have_as_series(treated):
    asked = Declared("by_batch_size", "by_factor", x="batch_size", colour=("nodes",), filter={"model": ["small-cnn"]})
    drawn, _ = drawn_by(asked, treated)
    assert [title for ax in drawn.axes if (title := ax.get_title())] == TREATMENTS


def test_without_a_base_there_is_no_speed_up_and_the_figure_says_so(tmp_path):
    runs, epochs = campaign(failures={})
    runs.loc[runs["nodes"] == 1, ["status", "epoch_time_s"]] = ["failed", None]
    drawn, caption = drawn_by("scaling", Records(*write_frames(tmp_path, runs, epochs)))
    assert [text.get_text() for text in drawn.axes[0].texts] == ["no base of a speed-up succeeded"]
    assert "Not drawn: no base of a speed-up succeeded." in caption


def test_lines_of_factors_that_do_not_interact_are_parallel_on_the_axis_of_an_interaction(tmp_path):
    runs, epochs = designed_campaign()
    times = {"small-cnn": 1.0, "small-cnn-600": 3.0}
    runs["epoch_time_s"] = runs["model"].map(times) / runs["nodes"] * np.exp(0.01 * np.sin(np.arange(len(runs))))
    records = Records(*write_frames(tmp_path, runs, epochs))
    drawn, caption = drawn_by(Declared("interaction", "interaction", x="nodes", colour=("model",)), records)
    ax = drawn.axes[0]
    assert ax.get_yscale() == "log"
    looks = [one.look.colour for one in all_series(runs, colour=("model",))]
    one, other = (np.log(lines_of(ax, colour)[-1].get_ydata()) for colour in looks)
    assert np.diff(one) == pytest.approx(np.diff(other), abs=0.02)
    found = re.search(r"F = [\d.]+ \(2, (\d+) degrees of freedom\), p = 0\.\d+", caption)
    assert int(found.group(1)) > 100


def test_the_test_in_the_caption_of_an_interaction_is_that_of_the_table(treated):
    asked = Declared("interaction", "interaction", x="nodes", colour=("sync_every",))
    _, caption = drawn_by(asked, treated)
    row = anova.of_runs(treated.runs).rows.set_index("term").loc["nodes × batches per exchange"]
    assert f"F = {row['F']:.3g} (2, " in caption and f"{100 * row['share']:.1f} % of the sum of squares" in caption


def test_panels_of_one_line_are_left_out_of_an_interaction_and_named(treated):
    asked = Declared("interaction", "interaction", x="nodes", colour=("sync_every",))
    drawn, caption = drawn_by(asked, treated)
    assert {ax.get_title().split("\n")[-1] for ax in drawn.axes if ax.get_title()} == {"custom"}
    assert "Not shown, because a single line would be there:" in caption and ", fit; " in caption


def test_accuracy_over_updates_and_wall_time_ends_where_the_runs_did(treated):
    runs, epochs = treated.runs, treated.epochs
    cell = runs[(runs["model"] == "small-cnn") & (runs["nodes"] == 2) & (runs["batch_size"] == 32)]
    (custom,) = [one for one in all_series(runs) if one.name == "custom, every 4 batches"]
    own = epochs[epochs["cell"] == custom.of(cell)["cell"].iloc[0]]
    by_run = own.groupby("run_id")
    wall = (own["epoch_time_s"] + own["validation_time_s"]).groupby(own["run_id"]).sum().mean()
    ends = {"accuracy": 3, "accuracy-updates": by_run["exchanges"].sum().mean(), "accuracy-wall_time": wall}
    for name, end in ends.items():
        asked = replace(FIGURES[name], filter={"model": ["small-cnn"], "batch_size": [32]})
        drawn, _ = drawn_by(asked, treated)
        (ax,) = [ax for ax in drawn.axes if ax.get_title() == "2 nodes"]
        (line,) = [line for line in ax.lines if line.get_color() == custom.look.colour]
        assert line.get_xdata()[-1] == pytest.approx(end)
        assert ax.get_xlim()[1] > end


@pytest.mark.parametrize("name", OF_ACCURACY)
def test_accuracy_counts_the_runs_behind_its_bands(name, tmp_path):
    """Not those that succeeded: a run may have recorded no accuracy."""
    runs, epochs = campaign(replicates=3, failures={})
    assert "Runs: n = 3 per cell" in drawn_by(name, Records(*write_frames(tmp_path, runs, epochs)))[1]
    silent = epochs["run_id"].str.endswith(".r3")
    epochs.loc[silent, ["train_accuracy", "validation_accuracy"]] = None
    assert "Runs: n = 2 per cell" in drawn_by(name, Records(*write_frames(tmp_path, runs, epochs)))[1]
    one = epochs["run_id"] == epochs["run_id"].iloc[0]
    records = Records(*write_frames(tmp_path, runs, epochs[~one]))
    assert "Runs: n = 1 to 2 per cell" in drawn_by(name, records)[1]


def test_perplexity_is_drawn_of_the_runs_that_have_one_over_a_logarithmic_axis(tmp_path):
    runs, epochs = campaign(replicates=2, failures={})
    asked = Declared("perplexity", "accuracy", y="perplexity")
    drawn, caption = drawn_by(asked, Records(*write_frames(tmp_path, runs, epochs)))
    assert caption.startswith("Not drawn: no perplexity was recorded.")
    ddp = runs["framework"] == "pytorch-ddp"
    told = runs.assign(perplexity=np.exp(runs["validation_loss"]).where(ddp))
    drawn, caption = drawn_by(asked, Records(*write_frames(tmp_path, told, epochs)))
    assert caption.startswith("Perplexity in training (upper panels) and validation (lower panels) over epochs.")
    assert "Perplexity is exp(loss)" in caption
    lines = [line for ax in drawn.axes for line in ax.lines]
    assert {line.get_color() for line in lines} == {style.look("pytorch-ddp").colour}
    assert {ax.get_yscale() for ax in drawn.axes if ax.axison} == {"log"}
    losses = epochs[epochs["run_id"].isin(runs.loc[ddp, "run_id"])]
    ends = losses.groupby("run_id").last().assign(cell=lambda last: last.index.str.rpartition(".r").get_level_values(0))
    means = np.exp(ends["validation_loss"].astype(float)).groupby(ends["cell"]).mean()
    lower = [ax for ax in drawn.axes if ax.get_subplotspec().rowspan.start % 2]
    shown = [line.get_ydata()[-1] for ax in lower for line in ax.lines]
    assert sorted(shown) == pytest.approx(sorted(means))


def test_a_factor_of_words_has_points_that_are_not_joined(csv):
    drawn, caption = drawn_by("by_framework", Records(*csv))
    ax = [ax for ax in drawn.axes if ax.axison][-1]
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == [one.name for one in all_series(Records(*csv).runs)]
    assert not [line for line in ax.lines if line.get_linestyle() != "None" and line.get_linewidth() == 1.0]
    assert "Lines only guide the eye" not in caption
    markers = [line for line in ax.lines if len(line.get_xdata()) == 1 and line.get_marker() != "o"]
    looks = {style.look(name).colour for name in labels}
    assert {line.get_color() for line in markers} <= looks


FILTERED = Declared("by_nodes", "by_factor", x="nodes", filter={"model": ["small-cnn"], "batch_size": [32, 64]})


def test_a_filter_leaves_cells_out_of_the_figure_but_not_out_of_the_intervals(treated):
    drawn, caption = drawn_by(FILTERED, treated)
    assert [ax.get_title() for ax in drawn.axes] == ["batch size 32", "batch size 64"]
    assert "Shown: only model small-cnn; batch size 32, 64." in caption
    whole = pooled(treated.runs)
    shown = view(treated.runs, FILTERED)
    assert shown.pooling.df == whole.df
    bars = {
        tuple(np.round(line.get_ydata(), 9)) for ax in drawn.axes for line in ax.lines if len(line.get_ydata()) == 2
    }
    for cell in shown.ok["cell"].unique():
        estimate = whole.of(cell)
        assert (round(estimate.low, 9), round(estimate.high, 9)) in bars


def test_a_treatment_keeps_its_look_where_a_filter_leaves_others_out(treated):
    few = all_series(treated.runs, filter={"sync_every": [1]}, colour=("training_loop", "sync_every"))
    assert [one.name for one in few] == ["custom", "fit"]
    assert [one.look for one in few] == [style.TREATMENT_LOOKS[0], style.TREATMENT_LOOKS[2]]
    mixed = all_series(treated.runs, colour=("sync_every",))
    assert [one.look for one in mixed] == style.TREATMENT_LOOKS[:2], "of every batch there are two treatments"


def test_what_no_key_names_becomes_panels(treated):
    asked = Declared("by_nodes", "by_factor", x="nodes", colour=("batch_size",), facet=("training_loop",))
    shown = view(treated.runs, asked)
    assert (shown.colour, shown.facet) == (["batch_size"], ["training_loop", "model", "sync_every"])
    assert [one.name for one in shown.series] == ["batch size 32", "batch size 64", "batch size 96"]
    assert shown.told_apart == "batch size"


def test_a_framework_keeps_its_colour_where_series_have_another_factor_too(csv):
    series = all_series(Records(*csv).runs, colour=("framework", "sync_every"))
    names = [one.name for one in series]
    assert "pytorch-ddp, every batch" in names and "pytorch-ddp, every 4 batches" in names
    for one in series:
        assert one.look.colour == style.look(one.levels["framework"]).colour
    looks = [(one.look.colour, one.look.line, one.look.filled) for one in series]
    assert len(set(looks)) == len(looks)


def test_there_are_as_many_looks_as_a_study_may_ask_for():
    assert len(style.TREATMENT_LOOKS) == MOST_SERIES
    assert len(style.VARIANTS) == MOST_VARIANTS


def test_the_first_sentence_of_a_caption_is_a_heading(drawings):
    for _, caption in drawings.values():
        heading = caption.split(". ")[0]
        assert len(heading) < 120 and ":" not in heading, heading


THREE = {"model": ["small-cnn"], "training_loop": ["custom"]}


@pytest.mark.parametrize(
    "asked",
    [
        Declared("a", "overview", filter=THREE),
        Declared("b", "by_factor", x="sync_every", colour=("nodes",), filter=THREE),
        Declared("c", "by_factor", x="nodes", colour=("sync_every", "batch_size"), filter=THREE),
        Declared("d", "scaling", colour=("batch_size",), filter=THREE),
        Declared("e", "accuracy", x="updates", colour=("nodes",), facet=("batch_size", "sync_every"), filter=THREE),
        Declared("f", "interaction", x="batch_size", colour=("nodes",), filter=THREE),
        Declared("g", "by_factor", x="training_loop", filter={"nodes": [1]}),
        Declared("h", "by_factor", x="model", colour=("nodes",), filter={"batch_size": [32]}),
    ],
    ids=lambda asked: asked.name,
)
def test_any_declaration_of_three_factors_is_drawn(asked, treated):
    drawn, caption = drawn_by(asked, treated)
    drawn.draw_without_rendering()
    assert drawn.get_figheight() < 9
    assert not [text for ax in drawn.axes for text in ax.texts if "no " in text.get_text()]
    assert "nan" not in caption and "Shown: only " in caption


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--asked : expected JSON with a kind, one of overview, by_factor"),
        ("[1]", "--asked [1]: expected JSON"),
        ('{"kind": "pie"}', "one of overview, by_factor"),
        ('{"kind": "residuals", "x": "nodes"}', "--asked: x: residuals takes none; expected one of kind, name"),
    ],
)
def test_a_program_is_told_what_it_may_be_asked(text, said, csv, tmp_path, capsys):
    argv = ["--asked", text, "--runs", str(csv[0]), "--epochs", str(csv[1]), "--out", str(tmp_path / "a")]
    assert exit_status(lambda: draw.main(argv)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_figure_is_asked_for_in_a_line_that_is_read_back():
    for asked in [*FIGURES.values(), FILTERED]:
        assert from_json(asked.to_json()) == asked


EMPTY = {
    "network": "no sweep of the network",
    "prediction": "nothing was left out and predicted",
    "outlook": "the table of the outlook was not made",
}


@pytest.mark.parametrize("kind", EMPTY)
def test_without_a_sweep_the_figures_of_the_network_say_so(kind, csv):
    drawn, caption = drawn_by(Declared(kind, kind), Records(*csv))
    assert [text.get_text() for text in drawn.axes[0].texts] == [EMPTY[kind]]
    assert "nan" not in caption and caption.endswith(".")
    assert caption.startswith(f"{panels.NOT_DRAWN}{EMPTY[kind]}.")


def test_records_of_another_day_that_lack_what_is_declared_are_drawn_as_far_as_they_go(treated):
    asked = Declared("a", "by_factor", x="nodes", colour=("momentum",), facet=("precision",), filter={"nodes": [1, 2]})
    shown = view(treated.runs, asked)
    assert (shown.colour, shown.facet) == (["framework"], ["model", "batch_size", "training_loop", "sync_every"])
    drawn, caption = drawn_by(Declared("a", "overview", filter={"nodes": [7]}), treated)
    assert [text.get_text() for text in drawn.axes[0].texts] == ["no successful run"]
    assert "nan" not in caption
    drawn, _ = drawn_by(Declared("a", "by_factor", x="momentum"), treated)
    assert [text.get_text() for text in drawn.axes[0].texts] == ["momentum is 0.9 in all cells"]
