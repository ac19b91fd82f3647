"""Figures that a study can declare, its default figures, and the errors about mistakes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import InputError
from common.files import CHECKOUT
from declared.figure_specs import FigureSpec, from_json
from declared.products.figure_kinds import KINDS, FigureKind
from declared.study import load_study
from support.figure_specs import figure_specs
from support.refusals import assert_refusal

STUDY = {
    "title": "t",
    "question": "q",
    "seed": 1,
    "design": "full",
    "replicates": 2,
    "factors": {
        "framework": ["pytorch-single", "pytorch-ddp"],
        "model": "small-cnn",
        "dataset": "digits",
        "nodes": [1, 2],
        "batch_size": [16, 32],
        "sync_every": [1, 4],
    },
    "exclude": [
        {"framework": "pytorch-single", "nodes": 2},
        {"framework": "pytorch-single", "sync_every": 4},
    ],
}


def study(
    folder: Path, figures: object = None, exclude: bool = True, replicates: int = 2, **factors: object
) -> list[FigureSpec]:
    levels = {**STUDY["factors"], **factors}  # type: ignore[dict-item]
    keys = {**STUDY, "factors": levels, "figures": figures, "replicates": replicates}
    if not exclude:
        keys["exclude"] = None
    keys = {key: value for key, value in keys.items() if value is not None}
    (folder / "s.yaml").write_text(yaml.safe_dump(keys))
    return figure_specs(load_study("s", folder))


def refusal(folder: Path, *figures: object) -> InputError:
    with pytest.raises(InputError) as refused:
        study(folder, list(figures))
    assert refused.value.file == str(folder / "s.yaml")
    return refused.value


def test_a_study_that_declares_nothing_has_the_usual_figures(tmp_path: Path) -> None:
    assert [figure.name for figure in study(tmp_path)] == [
        "overview", "by_batch_size", "by_nodes", "scaling", "accuracy", "accuracy-wall_time",
        "interaction", "residuals", "regression", "network", "projection", "timeline", "drift", "shares",
    ]  # fmt: skip
    names = {figure.name for figure in study(tmp_path, batch_size=[16, 32, 64])}
    assert "prediction" in names, "a batch size can be left out of a fit"


def test_default_figures_need_variation_or_a_benchmark(tmp_path: Path) -> None:
    study(tmp_path)
    plain = load_study("s", tmp_path)
    without_benchmark = figure_specs(plain, has_collective_benchmark=False)
    kinds = {figure.kind for figure in without_benchmark}
    assert "network" not in kinds and "projection" in kinds, "a projection needs no benchmark"
    names = [figure.name for figure in study(tmp_path, exclude=False, nodes=1, batch_size=16, sync_every=1)]
    assert names[:3] == ["overview", "accuracy", "accuracy-wall_time"]
    assert "interaction" not in names and "prediction" not in names


def test_accuracy_over_updates_is_drawn_for_treatments(tmp_path: Path) -> None:
    assert "accuracy-updates" not in {figure.name for figure in study(tmp_path)}
    assert "accuracy-updates" in {
        figure.name for figure in study(tmp_path, exclude=False, framework="pytorch-ddp")
    }


def test_drift_is_drawn_unasked_where_a_reference_is_timed() -> None:
    horovod = load_study("cnn-horovod")
    assert "drift" in {figure.kind for figure in figure_specs(horovod)}
    assert "drift" not in {figure.kind for figure in figure_specs(horovod, reference_timed=False)}


def test_energy_is_drawn_unasked_where_devices_are_compared() -> None:
    assert "energy" in {figure.kind for figure in figure_specs(load_study("resnet34-devices"))}
    assert "energy" not in {figure.kind for figure in figure_specs(load_study("cnn-horovod"))}


def test_traces_are_drawn_unasked_where_runs_are_traced(tmp_path: Path) -> None:
    """And that they are traced is no treatment: all other figures are as they would be without."""
    plain = study(tmp_path)
    with_traced = study(tmp_path, trace=["none", "phases"])
    assert [figure.name for figure in with_traced] == [
        *(figure.name for figure in plain),
        "phases",
        "critical_path",
        "gantt",
        "what_if",
    ]
    assert with_traced[: len(plain)] == plain
    all_traced = study(tmp_path, trace="phases")
    assert {figure.kind for figure in all_traced} >= {"phases", "critical_path", "gantt"}
    load = load_study("s", tmp_path)
    assert not {figure.kind for figure in figure_specs(load, traced=False)} & {
        "phases",
        "critical_path",
        "gantt",
    }


def test_figure_of_traces_needs_traced_runs(tmp_path: Path) -> None:
    figures = [
        {"kind": "phases", "x": "time", "facet": ["batch_size", "sync_every"]},
        {"kind": "gantt", "filter": {"nodes": 2}},
    ]
    assert [figure.name for figure in study(tmp_path, figures, trace=["none", "phases"])] == [
        "phases-time",
        "gantt",
    ]
    study(tmp_path, [{"kind": "overview"}])
    error = refusal(tmp_path, {"kind": "gantt"})
    assert_refusal(error, "not-possible-here", "figures.0.kind", ["trace: [none, phases]"], got="gantt")


def test_devices_stand_for_nodes_where_only_they_vary(tmp_path: Path) -> None:
    by_name = {figure.name: figure for figure in figure_specs(load_study("cnn-horovod-small"))}
    assert by_name["by_devices_per_node"].x == "devices_per_node"
    assert (by_name["interaction"].x, by_name["interaction"].colour) == ("devices_per_node", ("framework",))


def test_a_study_of_next_tokens_has_figures_of_perplexity() -> None:
    names = [figure.name for figure in figure_specs(load_study("sequences-small"))]
    assert [name for name in names if "perplexity" in name] == ["perplexity", "perplexity-wall_time"]
    assert "accuracy" in names


def test_a_fraction_has_no_interaction_unasked() -> None:
    assert "interaction" not in {figure.kind for figure in figure_specs(load_study("screening"))}


def test_a_declaration_is_read(tmp_path: Path) -> None:
    figures = [
        {"kind": "overview"},
        {"kind": "by_factor", "x": "nodes", "colour": "framework", "facet": ["batch_size", "sync_every"]},
        {
            "kind": "by_factor",
            "x": "nodes",
            "name": "ddp",
            "filter": {"framework": "pytorch-ddp", "batch_size": [16, 32]},
        },
        {"kind": "accuracy", "x": "wall_time"},
    ]
    assert study(tmp_path, figures) == [
        FigureSpec("overview", "overview"),
        FigureSpec("by_factor-nodes", "by_factor", "nodes", ("framework",), ("batch_size", "sync_every")),
        FigureSpec(
            "ddp", "by_factor", "nodes", filter={"framework": ["pytorch-ddp"], "batch_size": [16, 32]}
        ),
        FigureSpec("accuracy-wall_time", "accuracy", "wall_time"),
    ]
    of_tokens = study(tmp_path, [{"kind": "accuracy", "y": "perplexity"}], dataset="text8", model="rnn-nano")
    assert of_tokens == [FigureSpec("perplexity", "accuracy", y="perplexity")]


def test_where_only_facets_are_named_the_rest_is_told_by_colour(tmp_path: Path) -> None:
    (figure,) = study(tmp_path, [{"kind": "by_factor", "x": "nodes", "facet": "batch_size"}])
    assert figure.colour == ("framework", "sync_every")
    (figure,) = study(tmp_path, [{"kind": "overview", "facet": ["framework", "batch_size", "sync_every"]}])
    assert figure.colour is None, "nodes have the rows"


def test_figures_show_their_own_response_or_the_studys(tmp_path: Path) -> None:
    text = {**STUDY, "response": "throughput", "target_accuracy": 0.9}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(text))
    usual = {figure.name: figure for figure in figure_specs(load_study("s", tmp_path))}
    assert {name: figure.y for name, figure in usual.items() if figure.y} == dict.fromkeys(
        ["overview", "by_batch_size", "by_nodes", "interaction"], "throughput"
    )
    own = [{"kind": "overview", "y": "epoch_time"}, {"kind": "overview", "y": "time_to_accuracy"}]
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**text, "figures": own}))
    drawn = figure_specs(load_study("s", tmp_path))
    assert [(figure.name, figure.y, figure.target) for figure in drawn] == [
        ("overview-epoch_time", "epoch_time", None),
        ("overview-time_to_accuracy", "time_to_accuracy", 0.9),
    ]
    assert [from_json(figure.to_json()) for figure in drawn] == drawn


def test_a_heat_map_has_the_columns_that_leave_fewest_gaps(tmp_path: Path) -> None:
    figures = {figure.name: figure for figure in study(tmp_path, batch_size=[8, 16, 32])}
    assert figures["heat_map"].x == "batch_size", "pytorch-single has one level of nodes and of sync_every"
    assert {figure.name: figure for figure in study(tmp_path, exclude=False)}["heat_map"].x == "nodes"
    assert "heat_map" not in {figure.name for figure in study(tmp_path, batch_size=16)}, "5 cells"
    assert "heat_map" not in {
        figure.name
        for figure in study(tmp_path, exclude=False, nodes=1, sync_every=1, batch_size=[4, 8, 16, 32, 64, 96])
    }, "one factor besides the framework"


BY_NODES = {"kind": "by_factor", "x": "nodes"}


@pytest.mark.parametrize(
    ("figure", "code", "key", "facts"),
    [
        ({"x": "nodes"}, "missing-key", "figures.0.kind", {}),
        ({"kind": "ovrview"}, "unknown-name", "figures.0.kind", {"got": "ovrview", "suggestion": "overview"}),
        ({"kind": "overview", "color": "nodes"}, "unknown-key", "figures.0.color",
         {"got": "color", "suggestion": "colour"}),
        ({"kind": "overview", "x": "nodes"}, "unknown-key", "figures.0.x",
         {"expected": ["kind", "name", "y", "colour", "facet", "filter"]}),
        ({"kind": "residuals", "filter": {"nodes": 1}}, "unknown-key", "figures.0.filter",
         {"expected": ["kind", "name"]}),
        ({"kind": "overview", "name": "a/b"}, "bad-pattern", "figures.0.name", {"got": "a/b"}),
        ({"kind": "by_factor"}, "missing-key", "figures.0.x",
         {"expected": ["framework", "batch_size", "nodes", "sync_every"]}),
        ({"kind": "interaction", "x": "nodes"}, "missing-key", "figures.0.colour",
         {"expected": ["framework", "batch_size", "nodes", "sync_every"]}),
        ({"kind": "interaction", "x": "nodes", "colour": ["framework", "sync_every"]}, "wrong-count",
         "figures.0.colour", {"got": 2}),
        ({"kind": "by_factor", "x": "momentum"}, "factor-does-not-vary", "figures.0.x",
         {"got": "momentum", "expected": ["framework", "batch_size", "nodes", "sync_every"]}),
        ({"kind": "accuracy", "y": "loss"}, "not-one-of", "figures.0.y",
         {"got": "loss", "expected": ["accuracy", "perplexity"]}),
        ({"kind": "accuracy", "y": "perplexity"}, "not-possible-here", "figures.0.y",
         {"got": "perplexity", "mentions": ["accuracy"]}),
        ({"kind": "overview", "y": "token_throughput"}, "not-possible-here", "figures.0.y",
         {"got": "token_throughput", "mentions": ["throughput"]}),
        ({"kind": "overview", "y": "step_time"}, "not-possible-here", "figures.0.y",
         {"got": "step_time", "mentions": ["step_times: true"]}),
        ({"kind": "residuals", "y": "throughput"}, "unknown-key", "figures.0.y",
         {"expected": ["kind", "name"]}),
        ({"kind": "heat_map"}, "missing-key", "figures.0.x",
         {"expected": ["framework", "batch_size", "nodes", "sync_every"]}),
        ({"kind": "accuracy", "x": "nodes"}, "not-one-of", "figures.0.x",
         {"got": "nodes", "expected": ("epochs", "updates", "wall_time")}),
        ({**BY_NODES, "colour": "node"}, "factor-does-not-vary", "figures.0.colour",
         {"got": "node", "expected": ["framework", "batch_size", "nodes", "sync_every"]}),
        ({**BY_NODES, "colour": "nodes"}, "duplicate", "figures.0.colour",
         {"got": "nodes", "mentions": ["x"]}),
        ({**BY_NODES, "colour": "framework", "facet": "framework"}, "duplicate", "figures.0.facet",
         {"got": "framework", "mentions": ["colour"]}),
        ({**BY_NODES, "filter": {"model": "small-cnn"}}, "factor-does-not-vary", "figures.0.filter.model",
         {"got": "model", "expected": ["framework", "batch_size", "nodes", "sync_every"]}),
        ({**BY_NODES, "filter": {"batch_size": 64}}, "unknown-level", "figures.0.filter.batch_size",
         {"got": 64, "expected": [16, 32]}),
        ({**BY_NODES, "filter": {"framework": "pytorch-single", "sync_every": 4}}, "leaves-no-cell",
         "figures.0.filter", {}),
        ({**BY_NODES, "colour": "framework", "facet": "batch_size"}, "factor-without-place",
         "figures.0.facet", {"got": "sync_every", "mentions": ["x or colour or facet", "filter"]}),
    ],
)  # fmt: skip
def test_mistake_is_refused_with_file_and_key(
    figure: dict[str, object], code: str, key: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    assert_refusal(refusal(tmp_path, figure), code, key, **facts)


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, BY_NODES, {"kind": "overview"}, BY_NODES)
    assert_refusal(error, "duplicate", "figures.2.name", ["figures.0"], got="by_factor-nodes")


def test_more_series_than_can_be_told_apart_are_refused(tmp_path: Path) -> None:
    figure = {"kind": "overview", "colour": ["batch_size", "sync_every"]}
    with pytest.raises(InputError) as refused:
        study(tmp_path, [figure], batch_size=[4, 8, 16, 32, 64])
    assert_refusal(refused.value, "too-many", "figures.0.colour", ["batch_size, sync_every", 8], got=10)
    figure = {"kind": "overview", "colour": ["framework", "batch_size"]}
    with pytest.raises(InputError) as refused:
        study(tmp_path, [figure], batch_size=[4, 8, 16, 32, 64])
    assert_refusal(refused.value, "too-many", "figures.0.colour", ["framework", 4], got=5)
    study(tmp_path, [figure], batch_size=[4, 8, 16, 32])


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (CHECKOUT / "config" / "studies").glob("*.yaml"))
)
def test_figures_of_shipped_studies_are_valid_and_unique(name: str) -> None:
    figures = figure_specs(load_study(name))
    names = [figure.name for figure in figures]
    assert len(set(names)) == len(names) >= 3


def test_every_kind_has_its_module() -> None:
    for kind in KINDS:
        assert (CHECKOUT / "workflow" / "scripts" / "figures" / "kinds" / f"{kind}.py").is_file()


WORDS_OF_TRAITS = {
    "accuracy_recorded": "except of user-supplied commands",
    "batch_size_varies": "batch_size",
    "imported_with_baseline": "some cell trains on one device",
    "device_kind_varies": "device varies",
    "energy_recorded": "energy is recorded",
    "fit_can_be_checked": "left out of a fit",
    "grid_stated": "carbon intensity",
    "has_collective_benchmark": "collective benchmark",
    "has_factor_n_devices": "n_devices",
    "has_factor_nodes": "nodes",
    "has_speedups": "trains on one device",
    "next_tokens": "next tokens",
    "nodes_have_network": "not emulated",
    "nodes_vary": "nodes vary",
    "only_devices_per_node_vary": "devices_per_node",
    "parallelism_varies": "parallelism",
    "planned_here": "imported ones",
    "priced": "price",
    "reference_timed": "reference benchmark",
    "regression_predicts": "fewer coefficients",
    "residuals_testable": "replicates",
    "size_varies": "nodes (or devices_per_node) vary",
    "startup_recorded": "except of user-supplied commands",
    "strategies_searched": "strategies are searched",
    "target_accuracy": "target_accuracy",
    "traced": "traced",
    "treatments_are_series": "lines are treatments",
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_the_words_on_default_figures_name_their_traits(kind: FigureKind) -> None:
    entries = () if isinstance(kind.default_figures, str) else kind.default_figures
    traits = [*kind.when, *(trait for entry in entries for trait in entry.get("when", ()))]
    missing = [trait for trait in traits if WORDS_OF_TRAITS[trait] not in kind.drawn_by_default]
    assert not missing
    is_unconditional = not traits and not isinstance(kind.default_figures, str)
    assert (kind.drawn_by_default in ("every study", "no study; declare it")) == is_unconditional


def test_x_size_and_further_factors_have_axes() -> None:
    strategies = replace(KINDS["strategies"], size_is_axis=True)
    assert strategies.factors_on_axes("n_devices", "batch_size") == ["batch_size", "n_devices", "bandwidth"]
    assert KINDS["shares"].factors_on_axes("nodes", "epoch") == ["nodes"], "its x is no factor"
    assert KINDS["by_factor"].factors_on_axes("nodes", "precision") == ["precision"]


def test_commands_alone_have_no_accuracy_and_shares() -> None:
    commands = load_study("own-commands")
    frameworks = [*commands.factors["framework"], "pytorch-ddp"]
    mixed = replace(commands, factors={**commands.factors, "framework": frameworks})
    mixed_kinds, command_kinds = ({spec.kind for spec in figure_specs(study)} for study in (mixed, commands))
    assert mixed_kinds - command_kinds == {"accuracy", "shares"}
