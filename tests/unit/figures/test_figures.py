"""Each kind of figure is drawn for any campaign, has its notes, and is the same file if drawn twice."""

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

from analysis import anova, conditions, speedup, tables
from analysis.cell_means import estimate_means
from analysis.records import Records
from analysis.regression import fit_all
from common.files import CHECKOUT
from common.notes import codes, find_note
from common.options import run_program
from common.tables import write_table
from declared.figure_specs import FigureSpec, from_json
from figures import captions, draw, lines, marks, panels, style
from figures.kinds import projection, residuals
from figures.kinds.network import NO_BENCHMARK
from figures.kinds.prediction import NOTHING_PREDICTED
from figures.view import build_view
from prediction.study_predictor import shortest_epochs
from support.captions import why_not_drawn
from support.synthetic import BASELINES, benchmarks, campaign, designed_campaign, write_campaign, write_frames

FIGURES = {
    figure.name: figure
    for figure in (
        FigureSpec("overview", "overview"),
        FigureSpec("by_batch_size", "by_factor", x="batch_size"),
        FigureSpec("by_nodes", "by_factor", x="nodes"),
        FigureSpec("by_framework", "by_factor", x="framework"),
        FigureSpec("scaling", "scaling"),
        FigureSpec("by_nodes-throughput", "by_factor", x="nodes", y="throughput"),
        FigureSpec("heat_map", "heat_map", x="nodes"),
        FigureSpec("accuracy", "accuracy"),
        FigureSpec("accuracy-updates", "accuracy", x="updates"),
        FigureSpec("accuracy-wall_time", "accuracy", x="wall_time"),
        FigureSpec("time_to_accuracy", "time_to_accuracy", target=0.5),
        FigureSpec("interaction", "interaction", x="nodes", colour=("framework",)),
        FigureSpec("residuals", "residuals"),
        FigureSpec("regression", "regression"),
        FigureSpec("shares", "shares"),
        FigureSpec("shares-epoch", "shares", x="epoch"),
    )
}
ONE_OF_EACH_LISTED_KIND = list({figure.kind: name for name, figure in reversed(FIGURES.items())}.values())
OF_ACCURACY = [name for name in FIGURES if name.startswith("accuracy")]
WITHOUT_INTERVALS = ["residuals", "regression", "shares", "shares-epoch"]  # of epoch time
SUFFIXES = ["pdf", "svg", "png", "caption.md"]


def drawn_by(name, records):
    spec = FIGURES[name] if isinstance(name, str) else name
    return importlib.import_module(f"figures.kinds.{spec.kind}").draw(records, spec)


def flags(name, files, out):
    return [
        *("--figure", FIGURES[name].to_json(), "--inputs", f"runs={files[0]}", f"epochs={files[1]}"),
        *("--out", str(out / name)),
    ]


def make(name, files, out):
    assert run_program(draw.main, flags(name, files, out)) == 0
    return (out / f"{name}.caption.md").read_text()


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    return write_campaign(tmp_path_factory.mktemp("campaign"))


@pytest.fixture(scope="module")
def drawings(csv):
    """Every figure of the campaign with its caption, drawn once."""
    return {name: drawn_by(name, Records(*csv)) for name in FIGURES}


@pytest.fixture(scope="module")
def written(drawings, tmp_path_factory):
    """The files that figures.draw writes for a figure of each kind."""
    folder = tmp_path_factory.mktemp("figures")
    for name in ONE_OF_EACH_LISTED_KIND:
        figure, caption = drawings[name]
        style.save(figure, folder / name)
        (folder / f"{name}.caption.md").write_text(caption + "\n")
    return folder


def changed(case):
    runs, epochs = campaign(replicates=1 if case == "one replicate" else 2, failures={})
    runs = runs[runs["batch_size"] != 32]  # two levels tell as much as three, in half of the time
    match case:
        case "one cell":
            runs = runs[runs["cell"] == runs["cell"].iloc[0]]
        case "no successful run":
            runs = runs.assign(status="failed", reason="broken", epoch_time_s=None)
        case "baselines failed":
            single = runs["framework"] == runs["baseline"]
            runs.loc[single, ["status", "epoch_time_s"]] = ["failed", None]
        case "a framework out of memory":
            runs.loc[runs["framework"] == "pytorch-ddp", ["status", "epoch_time_s"]] = ["oom", None]
        case "no accuracy":
            epochs = epochs.assign(train_accuracy=None, validation_accuracy=None)
        case "no training accuracy":
            epochs = epochs.assign(train_accuracy=None)
        case "two models":
            resnet = runs.assign(model="resnet50", epoch_time_s=50 * runs["epoch_time_s"])
            resnet["run_id"] = resnet["run_id"].str.replace("small-cnn", "resnet50")
            resnet["cell"] = resnet["cell"].str.replace("small-cnn", "resnet50")
            runs = pd.concat([runs, resnet], ignore_index=True)
        case "wide times":
            runs.loc[runs["batch_size"] == 16, "epoch_time_s"] *= 100
    return runs, epochs


CASES = [
    "one replicate",
    "one cell",
    "no successful run",
    "baselines failed",
    "a framework out of memory",
    "no accuracy",
    "no training accuracy",
    "two models",
    "wide times",
]


@pytest.fixture(scope="module", params=CASES)
def unusual(request, tmp_path_factory):
    """The name of an unusual campaign, and its tables."""
    return request.param, Records(*write_frames(tmp_path_factory.mktemp("unusual"), *changed(request.param)))


@pytest.mark.parametrize("name", ONE_OF_EACH_LISTED_KIND)
def test_a_figure_is_drawn_whatever_the_campaign_holds(name, unusual):
    case, records = unusual
    figure, caption = drawn_by(name, records)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as of a layout that collapsed
        figure.draw_without_rendering()
    assert caption.endswith(".")
    assert "nan" not in caption
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    if case == "no successful run":
        assert texts == [captions.NO_SUCCESS]
        assert why_not_drawn(caption)["why"] == "no-successful-run"
    if case == "one replicate" and name == "residuals":
        assert texts == [residuals.NO_SPREAD]
        assert why_not_drawn(caption)["why"] == "no-spread"
    if case == "no training accuracy" and name in OF_ACCURACY:
        assert find_note(caption.below, "heading").facts["parts"] == ["validation"]
    if case == "no accuracy" and name in OF_ACCURACY:
        assert why_not_drawn(caption) == {"why": "not-recorded", "quantity": "accuracy"}


@pytest.mark.parametrize("name", FIGURES)
def test_a_caption_says_what_every_caption_must(name, drawings, csv):
    below, *apart = drawings[name][1].split("\n\n")
    runs, intervals = Records(*csv).runs, name not in WITHOUT_INTERVALS
    assert len(apart) <= 1 and "\n" not in below and "\n" not in "".join(apart)
    assert len(below.split()) <= 45
    assert conditions.run_counts_note(runs, intervals) in below
    assert conditions.measurement_note(runs) in below
    assert ("95 %" in below) == intervals, "of what is not drawn nothing is said"


def test_the_caption_by_nodes_has_the_seconds_of_its_baselines(drawings, csv):
    _, caption = drawings["by_nodes"]
    runs = Records(*csv).runs
    facts = find_note(caption.notes, "baselines").facts
    assert facts["single_device"] == sorted(BASELINES)
    assert set(facts["means"]) == set(runs.loc[runs["framework"].isin(BASELINES), "cell"])
    means = estimate_means(runs)
    assert facts["means"] == {cell: means.cell_mean(cell).value for cell in facts["means"]}
    assert "single-device-baselines-drawn" in codes(caption.notes)


def test_baselines_have_a_place_of_their_own(drawings):
    figure, caption = drawings["by_nodes"]
    facts = find_note(caption.notes, "same-baselines").facts
    assert facts["levels"] == {"sync_every": 1}
    shapes = {line_style.marker for line_style in style.FRAMEWORK_STYLES.values()}
    for ax in (ax for ax in figure.axes if ax.axison):
        markers = [line for line in ax.lines if line.get_marker() in shapes]
        first = min(ax.get_xticks()) + 0.3
        places = [x for line in markers for x in line.get_xdata() if x < first]
        assert len(places) == len(set(np.round(places, 6))) >= 4
        n_baselines = sum(line.get_markerfacecolor() == "white" for line in markers)
        assert n_baselines == (len(BASELINES) if "no accumulation" in ax.get_title() else 0)


def test_the_same_records_give_the_same_bytes_in_another_process(csv, written, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")}
    program = (
        "import json, sys; from common.options import run_program; from figures.draw import main; "
        "sys.exit(any(run_program(main, one) for one in json.loads(sys.argv[1])))"
    )
    # None depends on those before it.
    figures = [flags(name, csv, tmp_path) for name in ONE_OF_EACH_LISTED_KIND]
    subprocess.run([sys.executable, "-c", program, json.dumps(figures)], check=True, env=environment)
    figure = sorted(tmp_path.iterdir())
    assert len(figure) == len(ONE_OF_EACH_LISTED_KIND) * len(SUFFIXES)
    for file in figure:
        assert file.read_bytes() == (written / file.name).read_bytes(), file.name


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_fits_a_column_or_a_page(name, drawings):
    figure, _ = drawings[name]
    assert figure.get_figwidth() in (style.COLUMN_INCHES, style.PAGE_INCHES)
    assert figure.get_figheight() < 9


def test_each_known_framework_has_its_own_colour_and_marker():
    styles = style.FRAMEWORK_STYLES.values()
    assert len({series_style.colour for series_style in styles}) == len(styles)
    assert len({(series_style.marker, series_style.filled) for series_style in styles}) == len(styles)


def test_eight_unregistered_frameworks_have_eight_styles():
    names = ["mindspore", "mxnet", "ngc-mxnet", "ngc-pytorch", "paddle", "pytorch-dali", "tensorflow2", "x"]
    names.append("pytorch-ddp")
    styles = [style.framework_style(name, names) for name in names]
    assert len({(line.colour, line.marker) for line in styles}) == len(names)


@pytest.mark.parametrize("name", ["overview", "by_nodes"])
def test_an_interval_of_two_runs_sets_no_axis_but_has_an_arrow(name, tmp_path):
    runs, epochs = campaign(failures={})
    slowest = runs.loc[runs["epoch_time_s"].idxmax(), "cell"]
    two = runs["cell"] == slowest
    runs.loc[two, "epoch_time_s"] *= [1.0, 0.4, 1.0]
    runs.loc[runs.index[two][2], ["status", "reason", "epoch_time_s"]] = ["failed", "it broke", None]
    records = Records(*write_frames(tmp_path, runs, epochs))
    figure, caption = drawn_by(name, records)
    assert "intervals-beyond-axis" in codes(caption.notes)
    tops = {(ax.get_xlim() if name == "overview" else ax.get_ylim())[1] for ax in figure.axes if ax.lines}
    high = estimate_means(records.runs).cell_mean(slowest).high
    assert max(tops) < 0.9 * high
    bars = [line for ax in figure.axes for line in ax.lines if isinstance(line, marks.Bar)]
    ends = [line.get_xdata() if name == "overview" else line.get_ydata() for line in bars]
    assert max(map(max, ends)) == pytest.approx(high)
    markers = [line.get_marker() for ax in figure.axes for line in ax.lines]
    assert (">" if name == "overview" else "^") in markers


def test_times_far_apart_get_a_logarithmic_axis(tmp_path):
    figure, caption = drawn_by("by_batch_size", Records(*write_frames(tmp_path, *changed("wide times"))))
    assert figure.axes[0].get_yscale() == "log"
    assert "logarithmic-value-axis" in codes(caption.notes)


def test_a_line_is_broken_at_a_missing_cell(tmp_path):
    runs, epochs = campaign(failures={})
    gap = (runs["framework"] == "pytorch-ddp") & (runs["batch_size"] == 32)
    runs.loc[gap, ["status", "epoch_time_s"]] = ["failed", None]
    figure, _ = drawn_by("by_batch_size", Records(*write_frames(tmp_path, runs, epochs)))
    colour = style.framework_style("pytorch-ddp").colour
    joined = [
        line
        for line in figure.axes[0].lines
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
    runs, epochs = (
        pd.concat([at(frame, *levels) for levels in every], ignore_index=True) for frame in (runs, epochs)
    )
    return Records(*write_frames(tmp_path_factory.mktemp("many"), runs, epochs))


def test_a_page_holds_as_many_levels_of_the_last_factor_as_fit(of_many_panels):
    all_panels = build_view(of_many_panels.runs, FIGURES["by_nodes"])
    assert all_panels.panel_factors == ["batch_size", "optimizer", "sync_every", "learning_rate"]
    assert len(all_panels.panel_levels) == 4 * 2 * 6
    assert all_panels.fit_to_page(0.6).panel_levels is all_panels.panel_levels
    two_rates = all_panels.fit_to_page(2.0)
    assert len(two_rates.panel_levels) == 16
    assert two_rates.runs["learning_rate"].unique().tolist() == RATES[:2]
    assert two_rates.omission_note.facts == {
        "drawn": 16,
        "panels": 48,
        "levels": {"learning_rate": RATES[:2]},
    }
    one_rate = all_panels.fit_to_page(9.0)
    assert one_rate.panel_factors == ["batch_size"]
    assert set(one_rate.runs["optimizer"]) == {"sgd"}
    assert one_rate.omission_note.facts["levels"] == {
        "optimizer": ["sgd"],
        "sync_every": [1],
        "learning_rate": RATES[:1],
    }
    assert one_rate.cell_means.df == all_panels.cell_means.df, "intervals stand on all runs"


def test_levels_with_successful_runs_are_drawn_before_others(of_many_panels):
    lost = of_many_panels.runs.assign(
        status=lambda runs: np.where(runs["learning_rate"] < RATES[4], "failed", runs["status"])
    )
    assert (
        build_view(lost, FIGURES["by_nodes"]).fit_to_page(2.0).runs["learning_rate"].unique().tolist()
        == RATES[4:]
    )


@pytest.mark.parametrize(
    "name", [name for name in ONE_OF_EACH_LISTED_KIND if name not in ("residuals", "regression")]
)
def test_a_figure_of_many_panels_fits_a_page(name, of_many_panels):
    figure, caption = drawn_by(name, of_many_panels)
    figure.draw_without_rendering()
    assert figure.get_figheight() <= 9
    left_out = find_note(caption.below, "panels-left-out").facts
    titles = {ax.get_title() for ax in figure.axes if ax.get_title()}
    assert len(titles) == left_out["drawn"] < left_out["panels"]
    assert "learning_rate" in left_out["levels"]
    spec = replace(FIGURES[name], filter={"learning_rate": [RATES[4]]})
    filtered, filtered_caption = drawn_by(spec, of_many_panels)
    assert find_note(filtered_caption.notes, "filtered").facts["levels"] == {"learning_rate": [RATES[4]]}
    assert filtered.get_figheight() <= 9


TREATMENTS = [
    "Ringside's loop, no accumulation",
    "Ringside's loop, accumulation over 4 batches",
    "framework's fit, no accumulation",
]


@pytest.fixture(scope="module")
def treated(tmp_path_factory):
    return Records(*write_frames(tmp_path_factory.mktemp("treated"), *designed_campaign()))


def all_series(runs, **spec):
    return build_view(runs, FigureSpec("accuracy", "accuracy", **spec)).series


def names_in(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_series_are_treatments_or_of_several_the_frameworks(treated, csv):
    treatments = all_series(treated.runs)
    assert [series.name for series in treatments] == TREATMENTS
    assert sum(len(series.select(treated.runs)) for series in treatments) == len(treated.runs)
    assert [series.style for series in treatments] == style.TREATMENT_STYLES[:3]
    frameworks = all_series(Records(*csv).runs)
    assert [series.name for series in frameworks][:2] == ["pytorch-single", "tensorflow-single"]
    assert all(series.style == style.FRAMEWORK_STYLES[series.name] for series in frameworks)


def test_more_treatments_than_can_be_told_apart_become_panels(treated):
    runs = pd.concat(
        [treated.runs.assign(momentum=momentum) for momentum in (0.0, 0.5, 0.9)], ignore_index=True
    )
    all_of_runs = all_series(runs)
    assert [series.name for series in all_of_runs] == TREATMENTS
    nine_treatments = pd.concat(
        [treated.runs.assign(sync_every=2**k, training_loop="custom") for k in range(9)]
    )
    assert [series.name for series in all_series(nine_treatments)] == ["tensorflow-multiworker"]


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
    figure, caption = drawn_by(name, treated)
    assert len([ax for ax in figure.axes if ax.axison]) == count
    assert figure.get_figheight() < height
    assert figure.get_figwidth() == style.PAGE_INCHES
    assert find_note(caption.notes, "series").facts["factors"] == ["training_loop", "sync_every"]
    colours = [series_style.colour for series_style in style.TREATMENT_STYLES[:3]]
    for ax in figure.axes:
        assert {line.get_color() for line in ax.lines if line.get_color() in colours} == set(colours)
    if name == "overview":
        labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert labels == [
            f"{treatment}, {n} node{'s' * (n > 1)}" for n in (1, 2, 3) for treatment in TREATMENTS
        ]
    else:
        assert names_in(figure.legends[0])[:3] == TREATMENTS


def test_treatments_differ_in_colour_marker_and_line():
    styles = style.TREATMENT_STYLES
    for part in ("colour", "marker", "line"):
        assert len({getattr(series_style, part) for series_style in styles}) == len(styles)
    assert not {series_style.colour for series_style in styles} & {
        series_style.colour for series_style in style.FRAMEWORK_STYLES.values()
    }
    grey = sorted(
        np.dot([0.299, 0.587, 0.114], [int(series_style.colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        for series_style in styles[:3]
    )
    assert min(np.diff(grey)) > 0.15


def test_no_row_of_panels_is_half_empty_where_threes_fill_it():
    assert [panels.layout(count)[:2] for count in (1, 2, 4, 5, 6, 8, 9, 12)] == [
        (1, 1), (1, 2), (1, 4), (2, 4), (2, 3), (2, 4), (3, 3), (3, 4),
    ]  # fmt: skip


def test_regression_shows_each_cell_as_the_others_predict_it(treated):
    figure, caption = drawn_by("regression", treated)
    fits = fit_all(treated.runs)
    assert [ax.get_title().splitlines()[:2] for ax in figure.axes] == [
        ["epoch time", "linear"],
        ["epoch time", "quadratic"],
        ["throughput", "linear"],
        ["throughput", "quadratic"],
    ]
    for ax, fit in zip(figure.axes, fits.values(), strict=True):
        points = [line for line in ax.lines if line.get_linestyle() == "None"]
        measured = np.concatenate([line.get_xdata() for line in points])
        assert sorted(measured) == pytest.approx(sorted(fit.cells["measured"]))
        _, _, mape, p = ax.get_title().splitlines()
        share = tables.number(fit.statistics["without cell: MAPE (%)"], 2)
        assert mape == f"MAPE {share} %, {len(fit.cells)} cells"
        assert p == "lack of fit: p < 0.001"
    assert "lack-of-fit" in {*codes(caption.below), *codes(caption.endnotes)}
    for row in (figure.axes[:2], figure.axes[2:]):
        assert len({(ax.get_xlim(), ax.get_ylim()) for ax in row}) == 1
        assert all(list(ax.get_xticks()) == list(ax.get_yticks()) for ax in row)


def test_predictions_beyond_the_axes_are_counted(tmp_path):
    runs, epochs = designed_campaign()
    runs.loc[runs["batch_size"] == 32, "epoch_time_s"] *= 30
    figure, caption = drawn_by("regression", Records(*write_frames(tmp_path, runs, epochs)))
    figure.draw_without_rendering()
    assert find_note(caption.notes, "predictions-at-edges").facts["predictions"] > 1


def lines_of(ax, colour, width=1.0):
    return [line for line in ax.lines if line.get_color() == colour and line.get_linewidth() == width]


def test_scaling_shows_the_numbers_of_the_table_of_speed_up(treated):
    figure, _ = drawn_by("scaling", treated)
    rows = speedup.build_rows(treated.runs)
    rows = rows[(rows["model"] == "small-cnn") & (rows["batch_size"] == 32)]
    upper, lower = figure.axes[0], figure.axes[3]
    assert upper.get_title() == "small-cnn, batch size 32"
    for series in all_series(treated.runs):
        own = series.select(rows).sort_values("n_devices")
        for ax, name, unit in ((upper, "speedup", 1), (lower, "efficiency", 100)):
            (line,) = [
                drawn_line
                for drawn_line in lines_of(ax, series.style.colour)
                if drawn_line.get_linestyle() != "None"
            ]
            assert line.get_ydata() == pytest.approx(unit * own[name].to_numpy())
            bars = [bar for bars in ax.collections for bar in bars.get_segments() if len(bar) == 2]
            for low, high in own[[f"{name}_low", f"{name}_high"]].dropna().to_numpy():
                assert any(bar[:, 1] == pytest.approx([unit * low, unit * high]) for bar in bars)
    ideal = next(line for line in upper.lines if line.get_alpha() == lines.IDEAL_LINE["alpha"])
    assert ideal.get_ydata()[[0, -1]].tolist() == [1, 3]
    assert names_in(figure.legends[0]) == [*TREATMENTS, "ideal"]


def test_regression_names_series_that_it_cannot_predict():
    folder = CHECKOUT / "docs" / "campaigns" / "quickstart"
    _, caption = drawn_by("regression", Records(folder / "runs.csv", folder / "epochs.csv"))
    named = find_note(caption.notes, "series-not-predicted").facts["series"]
    assert named == ["pytorch-single", "tensorflow-single"]


def test_estimate_needs_a_benchmark_and_is_a_best_case(treated, tmp_path):
    write_table(benchmarks("tensorflow-multiworker", noise=0), "network", tmp_path / "network.csv")
    records = Records(treated.runs_csv, treated.epochs_csv, {"network": tmp_path / "network.csv"})
    figure, caption = drawn_by("scaling", records)
    assert names_in(figure.legends[0])[-1] == "model estimate"
    assert {"estimate", "estimate-drawn"} <= set(codes(caption.notes))
    least = shortest_epochs(records.runs, records.table("network"))
    means = records.runs.groupby("cell")["epoch_time_s"].mean()
    assert set(least) == set(means.index)
    above = means / pd.Series(least)
    assert above.min() > 0.9, "noise apart, nothing is faster than the model allows"
    assert not {"estimate", "estimate-drawn"} & set(codes(drawn_by("scaling", treated)[1].notes))


def test_estimate_of_a_bad_fit_is_left_out(treated, tmp_path):
    network = benchmarks("tensorflow-multiworker", noise=0)
    middle = network["bytes"] == sorted(network["bytes"].unique())[3]
    network.loc[middle, "seconds"] *= 1.3
    write_table(network, "network", tmp_path / "network.csv")
    records = Records(treated.runs_csv, treated.epochs_csv, {"network": tmp_path / "network.csv"})
    figure, caption = drawn_by("scaling", records)
    assert names_in(figure.legends[0])[-1] == "ideal" and "estimate-drawn" not in codes(caption.notes)
    left_out = find_note(caption.notes, "estimates-left-out").facts["deviations"]
    assert left_out == {"tensorflow-multiworker": pytest.approx(3 / 13)}
    figure, of_network = drawn_by(FigureSpec("network", "network"), records)
    not_drawn = find_note(of_network.below, "fits-not-drawn").facts["deviations"]
    assert not_drawn == {"tensorflow-multiworker": pytest.approx(3 / 13)}
    assert "fits-deviate" not in codes(of_network.notes)
    assert not [line for ax in figure.axes for line in ax.lines if len(line.get_xdata()) == 100]


def test_without_a_baseline_there_is_no_speed_up(tmp_path):
    runs, epochs = campaign(failures={})
    runs.loc[runs["nodes"] == 1, ["status", "epoch_time_s"]] = ["failed", None]
    figure, caption = drawn_by("scaling", Records(*write_frames(tmp_path, runs, epochs)))
    assert [text.get_text() for text in figure.axes[0].texts] == [captions.as_clause(lines.NO_BASELINE)]
    assert why_not_drawn(caption)["why"] == "no-baseline"


def test_the_test_of_an_interaction_is_that_of_the_table(treated):
    spec = FigureSpec("interaction", "interaction", x="nodes", colour=("sync_every",))
    _, caption = drawn_by(spec, treated)
    row = anova.analyse_runs(treated.runs).rows.set_index("term").loc["nodes × gradient accumulation steps"]
    note = find_note(caption.notes, "interaction-tested")
    assert note.facts["term"] == row.name
    assert (note.facts["f"], note.facts["df"]) == (row["F"], 2)
    assert find_note(caption.notes, "interaction-share").facts["share"] == row["share"]


def test_panels_of_one_line_are_left_out_of_an_interaction(treated):
    spec = FigureSpec("interaction", "interaction", x="nodes", colour=("sync_every",))
    figure, caption = drawn_by(spec, treated)
    assert {re.split(r"\n|, ", ax.get_title())[-1] for ax in figure.axes if ax.get_title()} == {
        "Ringside's loop"
    }
    facts = find_note(caption.notes, "panels-not-shown").facts
    assert facts["why"] == "single-line" and {levels["training_loop"] for levels in facts["panels"]} == {
        "fit"
    }


def test_accuracy_over_updates_or_time_ends_where_the_runs_did(treated):
    runs, epochs = treated.runs, treated.epochs
    cell = runs[(runs["model"] == "small-cnn") & (runs["nodes"] == 2) & (runs["batch_size"] == 32)]
    (custom,) = [series for series in all_series(runs) if series.name == TREATMENTS[1]]
    own = epochs[epochs["cell"] == custom.select(cell)["cell"].iloc[0]]
    by_run = own.groupby("run_id")
    wall = (own["epoch_time_s"] + own["validation_time_s"]).groupby(own["run_id"]).sum().mean()
    ends = {
        "accuracy": 3,
        "accuracy-updates": by_run["n_allreduces"].sum().mean(),
        "accuracy-wall_time": wall,
    }
    for name, end in ends.items():
        spec = replace(FIGURES[name], filter={"model": ["small-cnn"], "batch_size": [32]})
        figure, _ = drawn_by(spec, treated)
        (ax,) = [ax for ax in figure.axes if ax.get_title() == "2 nodes"]
        lines = [line for line in ax.lines if line.get_color() == custom.style.colour]
        (line,) = [line for line in lines if line.get_linestyle() != "None"]
        assert line.get_xdata()[-1] == pytest.approx(end)
        assert ax.get_xlim()[1] > end


def test_curves_have_markers_and_ticks_at_both_ends(tmp_path):
    runs, epochs = campaign(replicates=3, failures={})
    epochs.loc[epochs["epoch"] == 1, "validation_accuracy"] = 0.5
    records = Records(*write_frames(tmp_path, runs, epochs))
    figure, caption = drawn_by("accuracy", records)
    drawn_axes = [ax for ax in figure.axes if ax.axison]
    series = build_view(records.runs, FIGURES["accuracy"]).series
    for ax in drawn_axes:
        marked = [line for line in ax.lines if line.get_marker() not in ("None", "", None)]
        assert {line.get_marker() for line in marked} <= {line.style.marker for line in series}
        assert {len(line.get_xdata()) for line in marked} == {epochs["epoch"].nunique()}
        ticks = ax.xaxis.get_majorticklocs()
        assert (min(ticks), max(ticks)) == (epochs["epoch"].min(), epochs["epoch"].max())
    assert len({ax.get_ylim() for ax in drawn_axes}) > 1, "rows have ranges of their own"
    cells = epochs.merge(runs[["run_id", "cell"]], on="run_id").groupby(["cell", "epoch"])
    spread = cells["train_accuracy"].mean().groupby("epoch").agg(np.ptp).max()
    assert 0 < find_note(caption.notes, "curves-apart").facts["largest"] <= 100 * spread + 1e-9
    timed, caption = drawn_by("accuracy-wall_time", records)
    assert len({ax.get_xlim() for ax in timed.axes if ax.axison}) == 1


def test_intervals_over_time_stand_at_their_markers(tmp_path):
    runs, epochs = campaign(replicates=3, failures={})
    slow = epochs["run_id"].str.contains("horovod") & (epochs["epoch"] == 1)
    epochs.loc[slow, "epoch_time_s"] *= 5
    figure, _ = drawn_by("accuracy-wall_time", Records(*write_frames(tmp_path, runs, epochs)))
    drawn_axes = [ax for ax in figure.axes if ax.axison]
    assert {ax.get_xlim()[0] for ax in drawn_axes} == {0}
    for ax in drawn_axes:
        bars = {bar[0, 0] for bars in ax.collections for bar in bars.get_segments()}
        assert bars and bars <= {x for line in ax.lines for x in line.get_xdata()}


@pytest.mark.parametrize("n_sessions", [1, 2])
def test_bands_of_residuals_are_blocks_and_sessions_a_line(n_sessions, tmp_path):
    runs, epochs = campaign(failures={})
    runs["session"] = [f"s{min(block, n_sessions)}" for block in runs["block"]]
    figure, caption = drawn_by("residuals", Records(*write_frames(tmp_path, runs, epochs)))
    order = figure.axes[2]
    assert [text.get_text() for text in order.texts] == list("123")
    assert order.get_xlabel() == "run, in order (bands: blocks)"
    assert not set(caption.below[0]) & set(":;")
    starts = [
        line for line in order.lines if line.get_color() == style.MUTED and np.ptp(line.get_xdata()) == 0
    ]
    assert len(starts) == n_sessions - 1
    assert ("session-starts-drawn" in codes(caption.notes)) == (n_sessions > 1)
    markers = {line.get_color(): line.get_marker() for line in figure.axes[0].lines if line.get_label()}
    for name in runs["framework"].unique():
        assert markers[style.framework_style(name).colour] == style.framework_style(name).marker


@pytest.mark.parametrize(("share", "stated"), [(0.04, False), (0.748, True)])
def test_captions_state_a_notable_background_load(share, stated, tmp_path):
    runs, epochs = campaign(replicates=2, failures={})
    runs.loc[runs.index[3], "other_cpu_share"] = share
    records = Records(*write_frames(tmp_path, runs.assign(max_other_cpu_share=1.0), epochs))
    for name in ("overview", "by_nodes", "heat_map", "scaling"):
        _, caption = drawn_by(name, records)
        loads = [note.facts for note in caption.below if getattr(note, "code", "") == "notable-load"]
        assert loads == ([{"share": share}] if stated else [])


@pytest.mark.parametrize(("replicates", "n_bands"), [(2, 0), (3, 3)])
def test_accuracy_has_bands_from_three_runs_on(replicates, n_bands, treated, tmp_path):
    runs = treated.runs[treated.runs["replicate"] <= replicates]
    epochs = treated.epochs.drop(columns="cell")
    epochs = epochs[epochs["run_id"].isin(runs["run_id"])]
    spec = FigureSpec("a", "accuracy", filter={"model": ["small-cnn"], "batch_size": [32], "nodes": [2]})
    figure, caption = drawn_by(spec, Records(*write_frames(tmp_path, runs, epochs)))
    for ax in figure.axes:
        bands = [
            band for band in ax.collections if any(np.ptp(path.vertices[:, 1]) for path in band.get_paths())
        ]
        assert len(bands) == n_bands
        dots = [line for line in ax.lines if line.get_linestyle() == "None"]
        assert sum(len(line.get_xdata()) for line in dots) == (0 if n_bands else 3 * 3 * replicates)
    assert ("single-runs-drawn" in codes(caption.notes)) == (n_bands == 0)


def test_accuracy_counts_the_runs_behind_its_bands(tmp_path):
    """Successful runs do not count if they recorded no accuracy."""
    runs, epochs = campaign(replicates=3, failures={})

    def said_of(*numbers):
        return conditions.run_counts_note(runs, counted=pd.Series(numbers))

    assert said_of(3) in drawn_by("accuracy", Records(*write_frames(tmp_path, runs, epochs)))[1]
    silent = epochs["run_id"].str.endswith(".r3")
    epochs.loc[silent, ["train_accuracy", "validation_accuracy"]] = None
    assert said_of(2) in drawn_by("accuracy", Records(*write_frames(tmp_path, runs, epochs)))[1]
    is_first = epochs["run_id"] == epochs["run_id"].iloc[0]
    records = Records(*write_frames(tmp_path, runs, epochs[~is_first]))
    assert said_of(1, 2) in drawn_by("accuracy", records)[1]


def test_perplexity_is_drawn_of_the_runs_that_have_one(tmp_path):
    runs, epochs = campaign(replicates=2, failures={})
    spec = FigureSpec("perplexity", "accuracy", y="perplexity")
    figure, caption = drawn_by(spec, Records(*write_frames(tmp_path, runs, epochs)))
    assert why_not_drawn(caption) == {"why": "not-recorded", "quantity": "perplexity"}
    ddp = runs["framework"] == "pytorch-ddp"
    with_perplexity = runs.assign(perplexity=np.exp(runs["validation_loss"]).where(ddp))
    figure, caption = drawn_by(spec, Records(*write_frames(tmp_path, with_perplexity, epochs)))
    parts = ["training", "validation"]
    heading = find_note(caption.below, "heading").facts
    assert heading == {"quantity": "perplexity", "parts": parts, "over": "epochs"}
    assert "perplexity" in codes(caption.endnotes)
    lines = [line for ax in figure.axes for line in ax.lines if line.get_linestyle() != "None"]
    assert {line.get_color() for line in lines} == {style.framework_style("pytorch-ddp").colour}
    assert {ax.get_yscale() for ax in figure.axes if ax.axison} == {"log"}


def test_a_factor_of_words_has_points_that_are_not_joined(csv):
    figure, caption = drawn_by("by_framework", Records(*csv))
    ax = [ax for ax in figure.axes if ax.axison][-1]
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == [series.name for series in all_series(Records(*csv).runs)]
    assert not [line for line in ax.lines if line.get_linestyle() != "None" and line.get_linewidth() == 1.0]
    assert "lines-guide-the-eye" not in codes(caption.notes)
    assert "lines-guide-the-eye" in codes(drawn_by("by_nodes", Records(*csv))[1].notes)
    markers = [line for line in ax.lines if len(line.get_xdata()) == 1 and line.get_marker() != "o"]
    colours = {style.framework_style(name).colour for name in labels}
    assert {line.get_color() for line in markers} <= colours


FILTERED = FigureSpec(
    "by_nodes", "by_factor", x="nodes", filter={"model": ["small-cnn"], "batch_size": [32, 64]}
)


def test_a_filter_leaves_cells_out_but_intervals_alone(treated):
    figure, caption = drawn_by(FILTERED, treated)
    assert [ax.get_title() for ax in figure.axes] == ["batch size 32", "batch size 64"]
    note = find_note(caption.notes, "filtered")
    assert note.facts["levels"] == {"model": ["small-cnn"], "batch_size": [32, 64]}
    of_study = estimate_means(treated.runs)
    view = build_view(treated.runs, FILTERED)
    assert view.cell_means.df == of_study.df
    bars = {
        tuple(np.round(line.get_ydata(), 9))
        for ax in figure.axes
        for line in ax.lines
        if len(line.get_ydata()) == 2
    }
    for cell in view.ok["cell"].unique():
        estimate = of_study.cell_mean(cell)
        assert (round(estimate.low, 9), round(estimate.high, 9)) in bars


def test_a_treatment_keeps_its_style_under_a_filter(treated):
    filtered = all_series(treated.runs, filter={"sync_every": [1]}, colour=("training_loop", "sync_every"))
    assert [series.name for series in filtered] == ["Ringside's loop", "framework's fit"]
    assert [series.style for series in filtered] == [style.TREATMENT_STYLES[0], style.TREATMENT_STYLES[2]]
    mixed = all_series(treated.runs, colour=("sync_every",))
    assert [series.style for series in mixed] == style.TREATMENT_STYLES[:2], (
        "of every batch there are two treatments"
    )


def test_what_no_key_names_becomes_panels(treated):
    spec = FigureSpec("by_nodes", "by_factor", x="nodes", colour=("batch_size",), facet=("training_loop",))
    view = build_view(treated.runs, spec)
    assert (view.series_factors, view.panel_factors) == (
        ["batch_size"],
        ["training_loop", "model", "sync_every"],
    )
    assert [series.name for series in view.series] == ["batch size 32", "batch size 64", "batch size 96"]
    assert view.series_description == "batch size"


def test_a_framework_keeps_its_colour_beside_another_factor(csv):
    framework_series = all_series(Records(*csv).runs, colour=("framework", "sync_every"))
    names = [series.name for series in framework_series]
    assert "pytorch-ddp, no accumulation" in names and "pytorch-ddp, accumulation over 4 batches" in names
    for series in framework_series:
        assert series.style.colour == style.framework_style(series.levels["framework"]).colour
    styles = [(series.style.colour, series.style.line, series.style.filled) for series in framework_series]
    assert len(set(styles)) == len(styles)


def test_a_figure_is_asked_for_in_a_line_that_is_read_back():
    for spec in [*FIGURES.values(), FILTERED]:
        assert from_json(spec.to_json()) == spec


EMPTY = {
    "network": NO_BENCHMARK,
    "prediction": NOTHING_PREDICTED,
    "projection": captions.as_clause(projection.NO_PROJECTION),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_without_a_benchmark_figures_of_the_network_are_empty(kind, csv):
    figure, caption = drawn_by(FigureSpec(kind, kind), Records(*csv))
    assert [text.get_text() for text in figure.axes[0].texts] == [EMPTY[kind]]
    assert "nan" not in caption and caption.endswith(".")
    assert caption.startswith(captions.NOT_DRAWN) and why_not_drawn(caption)["why"] == EMPTY[kind].code


def test_what_is_declared_but_not_measured_is_left_out(treated):
    spec = FigureSpec(
        "a", "by_factor", x="nodes", colour=("momentum",), facet=("precision",), filter={"nodes": [1, 2]}
    )
    view = build_view(treated.runs, spec)
    assert (view.series_factors, view.panel_factors) == (
        ["framework"],
        ["model", "batch_size", "training_loop", "sync_every"],
    )
    figure, caption = drawn_by(FigureSpec("a", "overview", filter={"nodes": [7]}), treated)
    assert [text.get_text() for text in figure.axes[0].texts] == [captions.NO_SUCCESS]
    assert "nan" not in caption
    _, caption = drawn_by(FigureSpec("a", "by_factor", x="momentum"), treated)
    assert why_not_drawn(caption) == {"why": "one-level", "factor": "momentum", "level": 0.9}
