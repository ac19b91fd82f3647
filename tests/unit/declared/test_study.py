"""What a person writes wrongly is refused in one line that says file, key and what to do, before any work."""

from pathlib import Path

import pytest
import yaml

from common.errors import InputError
from declared.configuration import load_config
from declared.paper import SUPPLEMENT_KINDS
from declared.site import load_site
from declared.study import Replicates, load_study
from plan.design import design

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

PRECISION = {"at_least": 3, "at_most": 12, "until": "5 %"}


def written(folder: Path, **changes: object) -> Path:
    study = {**GOOD, **changes}
    (folder / "s.yaml").write_text(yaml.safe_dump({key: value for key, value in study.items() if value is not None}))
    return folder


def factors(**changes: object) -> dict[str, object]:
    return {key: value for key, value in {**GOOD["factors"], **changes}.items() if value is not None}  # type: ignore[dict-item]


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as refused:
        design(load_study("s", folder), load_site("local"))
    (line,) = str(refused.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("written_as", "share"), [("5 %", 0.05), ("2.5%", 0.025), ("0.5 %", 0.005), ("50 %", 0.5), (None, None)]
)
def test_a_margin_is_a_share(tmp_path: Path, written_as: str | None, share: float | None) -> None:
    assert load_study("s", written(tmp_path, margin=written_as)).margin == pytest.approx(share)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (5, Replicates(5, 5)),
        ({"at_least": 3, "at_most": 12, "until": "2.5 %"}, Replicates(3, 12, 0.025)),
        (PRECISION | {"contrasts": "batch_size"}, Replicates(3, 12, 0.05, {"batch_size": (16, 32)})),
        (
            PRECISION | {"contrasts": ["batch_size", "framework"]},
            Replicates(3, 12, 0.05, {"batch_size": (16, 32), "framework": ("pytorch-single", "pytorch-ddp")}),
        ),
        (PRECISION | {"contrasts": {"batch_size": [32, 16]}}, Replicates(3, 12, 0.05, {"batch_size": (32, 16)})),
    ],
)
def test_replicates_are_a_number_or_a_precision(tmp_path: Path, said: object, read: Replicates) -> None:
    assert load_study("s", written(tmp_path, replicates=said)).replicates == read


def test_a_good_study_is_read(tmp_path: Path) -> None:
    study = load_study("s", written(tmp_path))
    assert study.factors["batch_size"] == [16, 32]
    assert study.factors["nodes"] == [1], "a single value holds a factor"
    assert study.factors["training_loop"] == ["custom"], "what is not named has its default"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replicate": 3}, "replicate: unknown key; did you mean 'replicates'?"),
        ({"replicates": None}, "key 'replicates' is missing"),
        ({"replicates": "three"}, "replicates: 'three' must be a whole number or keys with values"),
        ({"replicates": 0}, "replicates: 0 is too small; expected at least 1"),
        (
            {"replicates": {"at_least": 3, "at_most": 12}},
            "replicates: key 'until' is missing; expected precision to reach",
        ),
        ({"replicates": PRECISION | {"atmost": 9}}, "replicates.atmost: unknown key; did you mean 'at_most'?"),
        (
            {"replicates": PRECISION | {"at_least": 2}},
            "replicates.at_least: 2 is too small; fewer than 3 runs do not tell how far runs spread; expected at least 3",
        ),
        (
            {"replicates": PRECISION | {"at_most": 3}},
            "replicates.at_most: 3 is too small; expected more than at_least, 3",
        ),
        ({"replicates": PRECISION | {"at_most": 1001}}, "replicates.at_most: 1001 is too large; expected at most 1000"),
        (
            {"replicates": PRECISION | {"until": 0.05}},
            "replicates.until: 0.05 has no %; expected precision to reach, as '5 %'",
        ),
        (
            {"replicates": PRECISION | {"until": "51 %"}},
            "replicates.until: 51 % is too large; expected 0.1 % to 50 %",
        ),
        ({"replicates": PRECISION | {"until": "0.05 %"}}, "replicates.until: 0.05 % is too small; expected 0.1 %"),
        (
            {"replicates": PRECISION | {"until": "five"}},
            "replicates.until: 'five' does not look right; expected precision",
        ),
        (
            {"replicates": PRECISION | {"at_least": None}},
            "replicates.at_least: is empty; expected a whole number",
        ),
        (
            {"replicates": PRECISION | {"contrasts": "nodes"}},
            "replicates.contrasts: nodes does not vary in this study; expected one of framework, batch_size",
        ),
        (
            {"replicates": PRECISION | {"contrasts": "frameworks"}},
            "replicates.contrasts: 'frameworks' is no factor; did you mean 'framework'?",
        ),
        (
            {
                "replicates": PRECISION | {"contrasts": "framework"},
                "exclude": [
                    {"framework": "pytorch-single", "batch_size": 16},
                    {"framework": "pytorch-ddp", "batch_size": 32},
                ],
            },
            "replicates.contrasts: framework: no two timed cells of the study differ in it alone",
        ),
        (
            {"replicates": PRECISION | {"contrasts": "trace"}, "factors": factors(trace=["none", "phases"])},
            "replicates.contrasts: trace: cells that are traced are not timed, so there is no such ratio; take it out",
        ),
        (
            {
                "replicates": PRECISION | {"contrasts": "nodes"},
                "factors": factors(framework="pytorch-ddp", batch_size=16),
            },
            "replicates.contrasts: nodes does not vary in this study; nor does any other factor; take contrasts out",
        ),
        (
            {"replicates": PRECISION | {"contrasts": {"batch_size": [16, 64]}}},
            "replicates.contrasts.batch_size: 64 is no level of the study; expected two or more of 16, 32",
        ),
        (
            {"replicates": PRECISION | {"contrasts": {"batch_size": [16]}}},
            "replicates.contrasts.batch_size: has 1 entry",
        ),
        (
            {"margin": 0.05},
            "margin: 0.05 has no %; expected difference of mean epoch times that does not matter, as '5 %'",
        ),
        (
            {"margin": "0 %"},
            "margin: '0 %' does not look right; expected difference of mean epoch times that does not matter, as '5 %'",
        ),
        ({"margin": "80 %"}, "margin: '80 %' does not look right"),
        ({"design": "partial"}, "design: 'partial' is not one of full, fractional"),
        ({"factors": factors(batch_size=[])}, "factors.batch_size: is empty"),
        ({"factors": factors(batch_size=[16, 16])}, "factors.batch_size: 16 is there twice"),
        ({"factors": factors(batch_size=["16"])}, "factors.batch_size: '16' must be a whole number"),
        ({"factors": factors(batch_sise=16)}, "factors.batch_sise: unknown key; did you mean 'batch_size'?"),
        ({"factors": factors(nodes=None)}, "factors: key 'nodes' is missing; expected number of nodes"),
        (
            {"factors": factors(framework="pytorch-dpp")},
            "factors.framework: 'pytorch-dpp' is unknown; did you mean 'pytorch-ddp'?",
        ),
        (
            {"factors": factors(model=["small-cnn", "vgg"])},
            "factors.model.1: 'vgg' is unknown; did you mean 'vgg-16'?",
        ),
        ({"factors": factors(dataset="mnist")}, "factors.dataset: 'mnist' is unknown; expected one of cifar-10"),
        (
            {"factors": factors(parallelism="data2_tensor2")},
            "factors.parallelism: 'data2_tensor2' is no axis; expected pipeline, data, sharded, tensor with a size, joined by -",
        ),
        ({"factors": factors(parallelism="data2-")}, "factors.parallelism: '' of 'data2-' is no axis; expected"),
        ({"factors": factors(nodes=3)}, "factors.nodes: 3 is more than the 2 nodes of config/sites/local.yaml"),
        ({"factors": factors(nodes=2)}, "change the factors, or add to exclude: - {framework: pytorch-single}"),
        ({"factors": factors(nodes=[1, 2])}, "or add to exclude: - {framework: pytorch-single, nodes: 2}"),
        ({"factors": factors(epochs=1)}, "leaves none of 1 epochs to time; say warmup_epochs: 0, or more epochs"),
        ({"factors": factors(epochs=[1, 3])}, "or more epochs, or add to exclude: - {epochs: 1}"),
        ({"factors": factors(sync_every=97)}, "sync_every=97 is more than the 96 batches of an epoch"),
        ({"factors": factors(learning_rate=float("nan"))}, "factors.learning_rate: nan must be a number"),
        ({"factors": factors(learning_rate=1e-300)}, "learning_rate: 1e-300 is too small; expected at least 1e-12"),
        ({"factors": factors(learning_rate="fast")}, "learning_rate: 'fast' must be a number"),
        ({"factors": factors(momentum=1)}, "factors.momentum: 1 is too large; expected less than 1"),
        ({"factors": factors(weight_decay=2)}, "factors.weight_decay: 2 is too large; expected at most 1"),
        ({"factors": factors(dataset="x" * 300)}, "is too long; expected at most 100 characters"),
        (
            {"factors": factors(lr_warmup_epochs=5)},
            "lr_warmup_epochs=5 leaves none of 5 epochs with the whole learning rate; say lr_warmup_epochs: 4, or more epochs",
        ),
        (
            {"factors": factors(optimizer=["sgd", "adam"], momentum=[0.5, 0.9])},
            "trains exactly as pytorch-single.small-cnn.digits.b16.n1.s1.optimizer=adam.momentum=0.5 does: adam has no momentum; "
            "hold momentum, or add to exclude: - {optimizer: adam, momentum: 0.9}",
        ),
        (
            {"factors": factors(framework="pytorch-ddp", nodes=[1, 2], bandwidth=[250, 500])},
            "trains exactly as pytorch-ddp.small-cnn.digits.b16.n1.s1.bandwidth=250 does: one node exchanges nothing; "
            "hold bandwidth, or add to exclude: - {nodes: 1, bandwidth: 500}",
        ),
        (
            {"factors": factors(model="resnet-18", batch_size=[1, 2])},
            "batch normalization of resnet-18 has one value per channel",
        ),
        ({"replicates": 2.0}, "replicates: 2.0 must be a whole number or keys with values"),
        ({"factors": factors(framework="pytorch-ddp\n")}, "does not look right"),
        ({"factors": factors(training_loop="fit")}, "pytorch-single cannot do training_loop=fit (capabilities in"),
        (
            {"factors": factors(batch_size=[96, 100])},
            "1 x 100 samples a step drop 2.3% of the 1536 training samples of digits (at most 2%); the next batch_size that "
            "fits is 96 or 101, or add to exclude: - {framework: pytorch-single, batch_size: 100}",
        ),
        (
            {"factors": factors(batch_size=2000)},
            "1 x 2000 samples a step are more than the 1536 training samples of digits; the next batch_size that fits is 1536",
        ),
        (
            {"factors": factors(model=["lenet-5", "small-cnn"])},
            "pixels: nothing is left; use another model or data set, or add to exclude: - {model: lenet-5}",
        ),
        (
            {"factors": factors(batch_scope="global", framework="pytorch-ddp", nodes=2, batch_size=33)},
            "cannot be divided by 2 replicas",
        ),
        ({"exclude": [{"framwork": "x"}]}, "exclude.0.framwork: unknown factor"),
        (
            {"exclude": [{"batch_size": 64}]},
            "exclude.0.batch_size: 64 is no level of the study; expected one of 16, 32",
        ),
        ({"exclude": [{"batch_size": [16, 32]}]}, "exclude: removes every cell"),
        ({"exclude": [{"batch_size": 16}, {"batch_size": 16, "nodes": 1}, {}]}, "exclude.2: is empty"),
    ],
)
def test_a_mistake_is_refused_in_one_line(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    line = refusal(written(tmp_path, **changes))
    assert said in line
    assert "s.yaml" in line


@pytest.mark.parametrize(
    "changes", [{"epochs": 1}, {"batch_size": [2000, 3000]}, {"model": "lenet-5"}, {"batch_size": [100, 1000]}]
)
def test_what_concerns_every_cell_is_not_to_be_excluded(tmp_path: Path, changes: dict[str, object]) -> None:
    assert "exclude" not in refusal(written(tmp_path, factors=factors(**changes)))


def test_the_batch_size_that_is_told_fits_as_it_is_counted(tmp_path: Path) -> None:
    many = {"framework": "pytorch-ddp", "nodes": 2, "batch_scope": "global"}
    line = refusal(written(tmp_path, factors=factors(**many, batch_size=101)))
    assert line.endswith("the next batch_size that fits is 96 or 102")
    for size in (96, 102):
        design(load_study("s", written(tmp_path, factors=factors(**many, batch_size=size))), load_site("local"))


def test_a_paper_has_the_figures_and_tables_that_the_study_names_or_the_usual_ones(tmp_path: Path) -> None:
    usual = load_study("s", written(tmp_path))
    names = [one.name for one in usual.drawn()]
    assert usual.paper.chosen_figures(usual.drawn()) == [x for x in names if x not in SUPPLEMENT_KINDS]
    assert {"overview", "by_batch_size"} <= set(names) and "checks" not in usual.paper.chosen_tables()
    own = {"figures": ["residuals", "overview"], "tables": []}
    chosen = load_study("s", written(tmp_path, paper=own))
    assert chosen.paper.chosen_figures(chosen.drawn()) == ("residuals", "overview")
    assert chosen.paper.chosen_tables() == ()


@pytest.mark.parametrize(
    ("paper", "said"),
    [
        ({"figures": ["overview", "residual"]}, "paper.figures.1: 'residual' is unknown; did you mean 'residuals'?"),
        ({"tables": ["efects"]}, "paper.tables.0: 'efects' is unknown; did you mean 'effects'?"),
        ({"pictures": ["overview"]}, "paper.pictures: unknown key; did you mean 'figures'?"),
        ({"tables": "effects"}, "paper.tables: 'effects' must be a list"),
        ({"tables": ["effects", "effects"]}, "paper.tables: 'effects' is there twice; name each value once"),
    ],
)
def test_what_a_paper_cannot_have_is_one_line(tmp_path: Path, paper: dict[str, object], said: str) -> None:
    assert refusal(written(tmp_path, paper=paper)).endswith(f"s.yaml: {said}")


def test_adam_has_no_momentum_but_may_stand_beside_what_has(tmp_path: Path) -> None:
    both = factors(framework="pytorch-single", batch_size=16, optimizer=["sgd", "adam"], momentum=[0.5, 0.9])
    folder = written(tmp_path, factors=both, exclude=[{"optimizer": "adam", "momentum": 0.9}])
    assert len(design(load_study("s", folder), load_site("local"))) == 3 * 2
    held = {**both, "momentum": 0.5}
    assert len(design(load_study("s", written(tmp_path, factors=held)), load_site("local"))) == 2 * 2


def test_what_means_nothing_in_a_cell_is_told_by_what_differs(tmp_path: Path) -> None:
    many = factors(
        framework="pytorch-ddp",
        batch_size=16,
        nodes=[1, 2],
        bandwidth=[250, 500],
        optimizer=["sgd", "adam"],
        momentum=[0.5, 0.9],
    )
    entries = [{"optimizer": "adam", "momentum": 0.9}]
    assert "one node exchanges nothing; hold bandwidth" in refusal(written(tmp_path, factors=many, exclude=entries))
    entries.append({"nodes": 1, "bandwidth": 500})
    folder = written(tmp_path, factors=many, exclude=entries)
    assert len(design(load_study("s", folder), load_site("local"))) == (3 + 2 * 3) * 2


def test_the_study_of_predictions_plans_what_it_always_did() -> None:
    runs = design(load_study("prediction-virtual"), load_site("virtual-six"))
    assert len(runs) == 117 and {run.levels["bandwidth"] for run in runs if run.levels["nodes"] == 1} == {1000}


def test_batch_normalization_takes_two_values(tmp_path: Path) -> None:
    for model, size in (("resnet-18", 2), ("small-cnn", 1)):
        design(load_study("s", written(tmp_path, factors=factors(model=model, batch_size=size))), load_site("local"))


def test_an_exclusion_that_matches_no_cell_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, factors=factors(nodes=[1, 2]), exclude=[{"framework": "pytorch-single", "nodes": 2}])
    assert len(design(load_study("s", folder), load_site("local"))) == 6 * 2
    nothing = [{"framework": "pytorch-single", "nodes": 2, "batch_size": 16, "sync_every": 1}]
    rest = [{"framework": "pytorch-single", "nodes": 2}]
    folder = written(tmp_path, factors=factors(nodes=[1, 2]), exclude=[*rest, *nothing])
    assert len(design(load_study("s", folder), load_site("local"))) == 6 * 2, "overlapping exclusions are fine"


@pytest.mark.parametrize(
    "text", ["title: [", "a: 1\na: 2\n", "\tx", "1: 2", "&a [*a]", "!!python/object:os.system {}", "a: 2026-13-45", ""]
)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    assert "s.yaml" in refusal(tmp_path)


def test_a_study_that_is_a_loop_of_links_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").symlink_to("s.yaml")
    assert "s.yaml; expected one of" in refusal(tmp_path)


def test_a_study_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(InputError, match=r"there is no config/studies/nothing.yaml; expected one of .*quickstart"):
        load_study("nothing")


def test_a_site_with_a_relative_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGSIDE_CACHE", "here")
    with pytest.raises(InputError, match="cache: 'here' is not an absolute folder"):
        load_site("local")


def test_a_name_of_digits_alone_is_a_name() -> None:
    config = {"study": 2024, "site": "local", "records": "campaign"}  # what Snakemake makes of --config study=2024
    assert load_config(config)["study"] == "2024"
