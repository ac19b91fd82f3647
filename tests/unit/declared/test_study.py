"""Mistakes in a study are refused before any work, with one line that names file, key and remedy."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import InputError
from declared.factors import MAX_NAME, factor_table, levels_name
from declared.replicates import Replicates
from declared.site import load_site
from declared.study import load_study
from models.named import models
from plan.design import plan_design
from support.figure_specs import figure_specs
from support.refusals import assert_refusal

GOOD = {
    "title": "t",
    "question": "q",
    "seed": 1,
    "design": "full",
    "replicates": 2,
    "factors": {
        "framework": ["pytorch-single", "pytorch-ddp"],
        "model": "small-cnn",
        "dataset": "digits",
        "nodes": 1,
        "batch_size": [16, 32],
        "sync_every": 1,
    },
}

INTERVAL_TARGET = {"at_least": 3, "at_most": 12, "until": "5 %"}


def test_a_study_can_name_every_model() -> None:
    pattern = factor_table()["model"]["pattern"]
    assert [name for name in models() if not re.match(pattern, name)] == []


def written(folder: Path, **changes: object) -> Path:
    study = {**GOOD, **changes}
    (folder / "s.yaml").write_text(
        yaml.safe_dump({key: value for key, value in study.items() if value is not None}, sort_keys=False)
    )
    return folder


def factors(**changes: object) -> dict[str, object]:
    changed = {**GOOD["factors"], **changes}  # type: ignore[dict-item]
    return {key: value for key, value in changed.items() if value is not None}


def refusal(folder: Path) -> InputError:
    with pytest.raises(InputError) as refused:
        plan_design(load_study("s", folder), load_site("local"))
    return refused.value


@pytest.mark.parametrize(
    ("response", "code", "mentions"),
    [
        ("speed", "not-one-of", []),
        ("step_time", "not-possible-here", ["step_times: true"]),
        ("token_throughput", "not-possible-here", ["throughput"]),
        ("time_to_accuracy", "not-possible-here", ["target_accuracy"]),
    ],
)
def test_an_impossible_response_is_refused(
    tmp_path: Path, response: str, code: str, mentions: list[str]
) -> None:
    assert_refusal(refusal(written(tmp_path, response=response)), code, "response", mentions, got=response)


def test_a_possible_response_is_read(tmp_path: Path) -> None:
    assert load_study("s", written(tmp_path)).response == "epoch_time"
    possible = {"step_time": {"step_times": True}, "time_to_accuracy": {"target_accuracy": 0.5}, "memory": {}}
    for response, keys in possible.items():
        assert load_study("s", written(tmp_path, response=response, **keys)).response == response
    tokens = factors(dataset="text8", model="rnn-nano")
    assert load_study("s", written(tmp_path, response="token_throughput", factors=tokens))


def test_a_margin_is_a_share(tmp_path: Path) -> None:
    assert load_study("s", written(tmp_path, margin="2.5%")).margin == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (5, Replicates(5, 5)),
        ({"at_least": 3, "at_most": 12, "until": "2.5 %"}, Replicates(3, 12, 0.025)),
        (INTERVAL_TARGET | {"contrasts": "batch_size"}, Replicates(3, 12, 0.05, {"batch_size": (16, 32)})),
        (INTERVAL_TARGET | {"contrasts": ["batch_size", "framework"]}, Replicates(3, 12, 0.05,
         {"batch_size": (16, 32), "framework": ("pytorch-single", "pytorch-ddp")})),
        (INTERVAL_TARGET | {"contrasts": {"batch_size": [32, 16]}}, Replicates(3, 12, 0.05,
         {"batch_size": (32, 16)})),
    ],
)  # fmt: skip
def test_replicates_are_a_number_or_a_precision(tmp_path: Path, value: object, read: Replicates) -> None:
    assert load_study("s", written(tmp_path, replicates=value)).replicates == read


def test_a_good_study_is_read(tmp_path: Path) -> None:
    study = load_study("s", written(tmp_path))
    assert study.factors["batch_size"] == [16, 32]
    assert study.factors["nodes"] == [1], "a single value holds a factor"
    assert study.factors["training_loop"] == ["custom"], "what is not named has its default"


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, ("framework",)),
        ({"answer": "batch_size"}, ("batch_size",)),
        ({"answer": ["batch_size", "framework"]}, ("batch_size", "framework")),
        ({"factors": {**factors(framework=None, model=["small-cnn", "lenet-5"]),
         "framework": ["pytorch-ddp"]}}, ("batch_size",)),
        ({"factors": factors(framework="pytorch-ddp", model=["small-cnn", "lenet-5"], batch_size=16)},
         ("model",)),
        ({"factors": {"trace": ["none", "phases"], **factors()}}, ("framework",)),
        ({"factors": factors(framework="pytorch-ddp", batch_size=16)}, ()),
    ],
)  # fmt: skip
def test_answer_is_about_the_first_varied_factor(
    tmp_path: Path, changes: dict[str, object], answer: tuple[str, ...]
) -> None:
    assert load_study("s", written(tmp_path, **changes)).answer_factors == answer


ALIAS = "gradient_accumulation_steps"


def name_accumulation(name: str) -> dict[str, Any]:
    """Return the keys of a study that names the factor `sync_every` everywhere, as `name`."""
    varied = {"batch_size": 16, "nodes": [1, 2], "framework": "pytorch-ddp"}
    return {
        "factors": factors(**varied, **{"sync_every": None, name: [1, 4]}),
        "exclude": [{"nodes": 1, name: 4}],
        "answer": name,
        "replicates": INTERVAL_TARGET | {"contrasts": {name: [1, 4]}},
        "figures": [
            {"kind": "by_factor", "x": name, "colour": "nodes"},
            {"kind": "by_factor", "name": ALIAS, "x": "nodes", "colour": name},
            {"kind": "by_factor", "name": "panels", "x": "nodes", "facet": [name]},
            {"kind": "by_factor", "name": "some", "x": "nodes", "filter": {name: [1]}},
        ],
    }


def test_alias_names_a_factor_everywhere_in_a_study(tmp_path: Path) -> None:
    studies = [
        load_study("s", written(tmp_path, **name_accumulation(name))) for name in ("sync_every", ALIAS)
    ]
    assert studies[0] == studies[1]
    assert studies[1].factors["sync_every"] == [1, 4] and len(studies[1].cells()) == 3
    assert studies[1].replicates.contrasts == {"sync_every": (1, 4)} and studies[1].answer_factors == (
        "sync_every",
    )
    assert studies[1].exclude == ({"nodes": [1], "sync_every": [4]},)
    by_factor, named, panels, filtered = studies[1].figures
    assert (by_factor.x, by_factor.name, named.colour) == (
        "sync_every",
        "by_factor-sync_every",
        ("sync_every",),
    )
    assert (panels.facet, filtered.filter, named.name) == (("sync_every",), {"sync_every": [1]}, ALIAS)


@pytest.mark.parametrize("contrasts", [ALIAS, [ALIAS]])
def test_alias_names_a_contrast(tmp_path: Path, contrasts: object) -> None:
    changes = name_accumulation(ALIAS) | {"replicates": INTERVAL_TARGET | {"contrasts": contrasts}}
    assert load_study("s", written(tmp_path, **changes)).replicates.contrasts == {"sync_every": (1, 4)}


BOTH_NAMES = {ALIAS: 1, "sync_every": 1}


@pytest.mark.parametrize(
    ("changes", "code", "key", "facts"),
    [
        ({"factors": factors(**BOTH_NAMES)}, "conflicting-keys", f"factors.{ALIAS}",
         {"mentions": ["sync_every"]}),
        ({"exclude": [{"nodes": 1}, BOTH_NAMES]}, "conflicting-keys", f"exclude.1.{ALIAS}",
         {"mentions": ["sync_every"]}),
        ({"factors": factors(gradient_acumulation_steps=1, sync_every=None)}, "unknown-key",
         "factors.gradient_acumulation_steps", {"suggestion": ALIAS}),
        ({"answer": "nodes"}, "factor-does-not-vary", "answer", {"expected": ["framework", "batch_size"]}),
        ({"answer": "frameworks"}, "unknown-name", "answer", {"suggestion": "framework"}),
        ({"answer": ["framework", "nodes"]}, "factor-does-not-vary", "answer", {"got": "nodes"}),
        ({"answer": ["framework", "batch_size", "nodes"]}, "too-many", "answer", {}),
        ({"answer": "trace", "factors": factors(trace=["none", "phases"])}, "traced-contrast", "answer",
         {"got": "trace"}),
        ({"replicate": 3}, "unknown-key", "replicate", {"got": "replicate", "suggestion": "replicates"}),
        ({"replicates": 0}, "out-of-range", "replicates", {"got": 0, "mentions": [1]}),
        ({"replicates": {"at_least": 3, "at_most": 12}}, "missing-key", "replicates.until", {}),
        ({"replicates": INTERVAL_TARGET | {"at_least": 2}}, "out-of-range", "replicates.at_least", {"got": 2,
         "mentions": [3]}),
        ({"replicates": INTERVAL_TARGET | {"at_most": 3}}, "out-of-range", "replicates.at_most", {"got": 3,
         "mentions": [3]}),
        ({"replicates": INTERVAL_TARGET | {"until": "51 %"}}, "bad-pattern", "replicates.until",
         {"got": "51 %"}),
        ({"replicates": INTERVAL_TARGET | {"until": "five"}}, "bad-pattern", "replicates.until", {"got": "five"}),
        ({"replicates": INTERVAL_TARGET | {"contrasts": "nodes"}}, "factor-does-not-vary", "replicates.contrasts",
         {"got": "nodes", "expected": ["framework", "batch_size"]}),
        ({"replicates": INTERVAL_TARGET | {"contrasts": "framework"},
         "exclude": [{"framework": "pytorch-single", "batch_size": 16},
         {"framework": "pytorch-ddp", "batch_size": 32}]}, "no-contrast", "replicates.contrasts",
         {"got": "framework"}),
        ({"replicates": INTERVAL_TARGET | {"contrasts": "trace"}, "factors": factors(trace=["none", "phases"])},
         "traced-contrast", "replicates.contrasts", {"got": "trace"}),
        ({"replicates": INTERVAL_TARGET | {"contrasts": {"batch_size": [16, 64]}}}, "unknown-level",
         "replicates.contrasts.batch_size", {"got": 64, "expected": [16, 32]}),
        ({"margin": "80 %"}, "bad-pattern", "margin", {"got": "80 %"}),
        ({"factors": factors(batch_size=[])}, "too-few", "factors.batch_size", {"got": 0, "mentions": [1]}),
        ({"factors": factors(batch_size=[16, 16])}, "duplicate", "factors.batch_size", {"got": 16}),
        ({"factors": factors(batch_sise=16)}, "unknown-key", "factors.batch_sise", {"got": "batch_sise",
         "suggestion": "batch_size"}),
        ({"factors": factors(nodes=None)}, "missing-key", "factors.nodes", {}),
        ({"factors": factors(framework="pytorch-dpp")}, "unknown-name", "factors.framework",
         {"got": "pytorch-dpp", "suggestion": "pytorch-ddp"}),
        ({"factors": factors(model=["small-cnn", "vgg"])}, "unknown-name", "factors.model.1", {"got": "vgg",
         "suggestion": "vgg-16"}),
        ({"factors": factors(dataset="mnist")}, "unknown-name", "factors.dataset", {"got": "mnist"}),
        ({"factors": factors(parallelism="data2_tensor2")}, "unknown-axis", "factors.parallelism",
         {"got": "data2_tensor2", "mentions": ["pipeline", "data", "sharded", "tensor"]}),
        ({"factors": factors(learning_rate=float("nan"))}, "wrong-type", "factors.learning_rate", {}),
        ({"exclude": [{"framwork": "x"}]}, "unknown-name", "exclude.0.framwork", {"got": "framwork"}),
        ({"exclude": [{"batch_size": 64}]}, "unknown-level", "exclude.0.batch_size", {"got": 64,
         "expected": [16, 32]}),
        ({"exclude": [{"batch_size": 16}, {"batch_size": 16, "nodes": 1}, {}]}, "too-few", "exclude.2",
         {"got": 0, "mentions": [1]}),
    ],
)  # fmt: skip
def test_mistake_is_refused_with_file_and_key(
    tmp_path: Path, changes: dict[str, object], code: str, key: str, facts: dict[str, Any]
) -> None:
    assert_refusal(refusal(written(tmp_path, **changes)), code, key, file=str(tmp_path / "s.yaml"), **facts)


SINGLE = "{framework: pytorch-single}"


@pytest.mark.parametrize(
    ("changes", "mentions"),
    [
        ({"nodes": 3}, ["factors.nodes", 3, 2, "config/sites/local.yaml"]),
        ({"nodes": 2}, [SINGLE]),
        ({"nodes": [1, 2]}, ["{framework: pytorch-single, nodes: 2}"]),
        ({"epochs": 1}, [1, "warmup_epochs: 0"]),
        ({"epochs": [1, 3]}, ["{epochs: 1}"]),
        ({"sync_every": 97}, ["sync_every=97", 96]),
        ({"lr_warmup_epochs": 5}, ["lr_warmup_epochs=5", 5, "lr_warmup_epochs: 4"]),
        ({"optimizer": ["sgd", "adam"], "momentum": [0.5, 0.9]},
         ["pytorch-single.small-cnn.digits.b16.n1.s1.optimizer=adam.momentum=0.5",
         "{optimizer: adam, momentum: 0.9}"]),
        ({"framework": "pytorch-ddp", "nodes": [1, 2], "bandwidth": [250, 500]},
         ["pytorch-ddp.small-cnn.digits.b16.n1.s1.bandwidth=250", "{nodes: 1, bandwidth: 500}"]),
        ({"model": "resnet-18", "batch_size": [1, 2]}, ["resnet-18"]),
        ({"training_loop": "fit"}, ["pytorch-single", "training_loop=fit"]),
        ({"batch_size": [96, 100]}, ["1 x 100", "2.3%", 1536, "digits", "2%", 96, 101,
         "{framework: pytorch-single, batch_size: 100}"]),
        ({"batch_size": 2000}, ["1 x 2000", 1536, "digits"]),
        ({"model": ["lenet-5", "small-cnn"]}, ["{model: lenet-5}"]),
        ({"batch_scope": "global", "framework": "pytorch-ddp", "nodes": 2, "batch_size": 33}, [33, 2]),
    ],
)  # fmt: skip
def test_infeasible_cell_is_refused(
    tmp_path: Path, changes: dict[str, object], mentions: list[object]
) -> None:
    error = refusal(written(tmp_path, factors=factors(**changes)))
    assert_refusal(error, error.code, error.key, [tmp_path / "s.yaml", *mentions])


def test_study_that_excludes_every_cell_is_refused(tmp_path: Path) -> None:
    error = refusal(written(tmp_path, exclude=[{"batch_size": [16, 32]}]))
    assert_refusal(error, error.code, error.key, [tmp_path / "s.yaml", "exclude"])


@pytest.mark.parametrize(
    "changes",
    [{"epochs": 1}, {"batch_size": [2000, 3000]}, {"model": "lenet-5"}, {"batch_size": [100, 1000]}],
)
def test_what_concerns_every_cell_is_not_to_be_excluded(tmp_path: Path, changes: dict[str, object]) -> None:
    assert "exclude" not in str(refusal(written(tmp_path, factors=factors(**changes))))


def test_the_batch_size_that_is_told_fits_as_it_is_counted(tmp_path: Path) -> None:
    global_scope = {"framework": "pytorch-ddp", "nodes": 2, "batch_scope": "global"}
    error = refusal(written(tmp_path, factors=factors(**global_scope, batch_size=101)))
    assert_refusal(error, error.code, error.key, [96, 102])
    for size in (96, 102):
        plan_design(
            load_study("s", written(tmp_path, factors=factors(**global_scope, batch_size=size))),
            load_site("local"),
        )


def test_a_paper_has_the_named_or_the_default_material(tmp_path: Path) -> None:
    usual = load_study("s", written(tmp_path))
    names = [figure.name for figure in figure_specs(usual)]
    printed = usual.paper.chosen_figures(figure_specs(usual))
    assert printed == ["overview", "by_batch_size", "accuracy-wall_time", "shares"], (
        "without nodes no scaling"
    )
    assert "residuals" in set(names) - set(printed) and "checks" not in usual.paper.chosen_tables()
    on_nodes = load_study("s", written(tmp_path, factors=factors(nodes=[1, 2])))
    assert on_nodes.paper.chosen_figures(figure_specs(on_nodes)) == [
        "overview", "scaling", "accuracy-wall_time", "shares",
    ]  # fmt: skip
    drawn = [figure for figure in figure_specs(usual) if figure.name in ("overview", "residuals")]
    assert usual.paper.chosen_figures(drawn) == ["overview"], "of main results only"
    own = {"figures": ["residuals", "overview"], "tables": [], "class": "acmart"}
    chosen = load_study("s", written(tmp_path, paper=own))
    assert chosen.paper.chosen_figures(figure_specs(chosen)) == ("residuals", "overview")
    assert chosen.paper.chosen_tables() == ()
    priced = load_study("s", written(tmp_path, paper={"figures": ["pareto"]}))
    assert priced.paper.figures == ("pareto",), "the site may state a price"
    assert "pareto" not in {spec.name for spec in figure_specs(priced)}
    assert "pareto" in {spec.name for spec in figure_specs(priced, priced=True)}
    assert (usual.paper.class_name, chosen.paper.class_name) == ("article", "acmart")


@pytest.mark.parametrize(
    ("paper", "code", "key", "facts"),
    [
        ({"figures": ["overview", "residual"]}, "unknown-name", "paper.figures.1", {"got": "residual",
         "suggestion": "residuals"}),
        ({"tables": ["efects"]}, "unknown-name", "paper.tables.0", {"got": "efects",
         "suggestion": "effects"}),
        ({"class": "acmarts"}, "not-one-of", "paper.class", {"got": "acmarts", "suggestion": "acmart"}),
    ],
)  # fmt: skip
def test_paper_that_cannot_be_made_is_refused(
    tmp_path: Path, paper: dict[str, object], code: str, key: str, facts: dict[str, Any]
) -> None:
    assert_refusal(refusal(written(tmp_path, paper=paper)), code, key, file=str(tmp_path / "s.yaml"), **facts)


@pytest.mark.parametrize(
    ("factor", "levels", "decided_by"),
    [
        ("adam_beta2", [0.95, 0.999], {"optimizer": "adamw"}),
        ("decayed_weights", ["kernels", "all"], {"weight_decay": 0.1}),
        ("lr_final_share", [0.0, 0.1], {"lr_schedule": "cosine"}),
        ("lr_step_factor", [0.1, 0.5], {"lr_schedule": "step"}),
    ],
)
def test_parts_of_a_recipe_vary_where_they_mean_something(
    tmp_path: Path, factor: str, levels: list[Any], decided_by: dict[str, Any]
) -> None:
    varied = factors(framework="pytorch-single", batch_size=16, **{factor: levels})
    error = refusal(written(tmp_path, factors=varied))
    assert error.code == "duplicate"
    folder = written(tmp_path, factors={**varied, **decided_by})
    assert len(plan_design(load_study("s", folder), load_site("local"))) == 2 * 2


def test_name_of_a_long_recipe_ends_with_a_digest() -> None:
    defaults = {name: rules["default"] for name, rules in factor_table().items() if "default" in rules}
    levels = {**defaults, "framework": "pytorch-mesh", "model": "gpt-2", "dataset": "wikitext-2-small"}
    levels |= {"batch_size": 1, "nodes": 16, "sync_every": 16, "optimizer": "adamw", "adam_beta2": 0.95}
    levels |= {"learning_rate": 3e-4, "weight_decay": 0.1, "decayed_weights": "matrices", "clip_norm": 1.0}
    levels |= {"lr_warmup_epochs": 1, "lr_schedule": "cosine", "lr_final_share": 0.1, "precision": "tf32"}
    short = levels_name({**levels, "lr_warmup_epochs": 0})
    assert short.endswith("decayed=matrices.clip=1.0.lr=cosine.lr_end=0.1") and len(short) <= MAX_NAME
    long = {**levels, "parallelism": "data2-sharded8-tensor4", "microbatches": 1}
    names = {levels_name({**long, "lr_final_share": share}) for share in (0.1, 0.2)}
    assert len(names) == 2 and {len(name) for name in names} == {MAX_NAME}


def test_what_means_nothing_in_a_cell_is_told_by_what_differs(tmp_path: Path) -> None:
    varied = factors(
        framework="pytorch-ddp",
        batch_size=16,
        nodes=[1, 2],
        bandwidth=[250, 500],
        optimizer=["sgd", "adam"],
        momentum=[0.5, 0.9],
    )
    entries = [{"optimizer": "adam", "momentum": 0.9}]
    error = refusal(written(tmp_path, factors=varied, exclude=entries))
    assert_refusal(error, error.code, error.key, ["fix bandwidth", "{nodes: 1, bandwidth: 500}"])
    entries.append({"nodes": 1, "bandwidth": 500})
    folder = written(tmp_path, factors=varied, exclude=entries)
    assert len(plan_design(load_study("s", folder), load_site("local"))) == (3 + 2 * 3) * 2


def test_an_exclusion_that_matches_no_cell_is_refused(tmp_path: Path) -> None:
    folder = written(
        tmp_path, factors=factors(nodes=[1, 2]), exclude=[{"framework": "pytorch-single", "nodes": 2}]
    )
    assert len(plan_design(load_study("s", folder), load_site("local"))) == 6 * 2
    overlapping = [{"framework": "pytorch-single", "nodes": 2, "batch_size": 16, "sync_every": 1}]
    rest = [{"framework": "pytorch-single", "nodes": 2}]
    folder = written(tmp_path, factors=factors(nodes=[1, 2]), exclude=[*rest, *overlapping])
    assert len(plan_design(load_study("s", folder), load_site("local"))) == 6 * 2, (
        "overlapping exclusions are fine"
    )


@pytest.mark.parametrize("text", ["title: [", "a: 1\na: 2\n", "1: 2", "!!python/object:os.system {}", ""])
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    error = refusal(tmp_path)
    assert error.file.startswith(str(tmp_path / "s.yaml")) and str(error).isprintable()


def test_a_study_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(InputError) as refused:
        load_study("nothing")
    file = "config/studies/nothing.yaml"
    assert_refusal(refused.value, "unknown-name", "study", [file], file="config/config.yaml", got="nothing")
    assert {"quickstart", "cnn-horovod"} <= set(refused.value.expected)


def test_a_site_with_a_relative_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGSIDE_CACHE", "here")
    with pytest.raises(InputError) as refused:
        load_site("local")
    assert_refusal(refused.value, "bad-pattern", got="here", file="the variable RINGSIDE_CACHE")
