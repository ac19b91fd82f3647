"""What a person writes wrongly is refused in one line that says file, key and what to do, before any work."""

from pathlib import Path

import pytest
import yaml

from common.errors import InputError
from plan.design import design
from plan.site import load_site
from plan.study import load_config, load_study

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
        ({"replicates": "three"}, "replicates: 'three' is not of type integer"),
        ({"replicates": 0}, "replicates: 0 is too small; expected at least 1"),
        ({"design": "partial"}, "design: 'partial' is not one of full, fractional"),
        ({"factors": factors(batch_size=[])}, "factors.batch_size: is empty"),
        ({"factors": factors(batch_size=[16, 16])}, "factors.batch_size: level 16 stands twice"),
        ({"factors": factors(batch_size=["16"])}, "factors.batch_size.0: '16' is not of type integer"),
        ({"factors": factors(batch_sise=16)}, "factors.batch_sise: unknown key; did you mean 'batch_size'?"),
        ({"factors": factors(nodes=None)}, "factors: key 'nodes' is missing; expected number of nodes"),
        ({"factors": factors(framework="pytorch-dpp")}, "factors.framework: 'pytorch-dpp' is unknown; expected one of"),
        (
            {"factors": factors(model=["small-cnn", "vgg"])},
            "factors.model.1: 'vgg' is unknown; expected one of alexnet",
        ),
        ({"factors": factors(dataset="mnist")}, "factors.dataset: 'mnist' is unknown; expected one of cifar-10"),
        ({"factors": factors(nodes=3)}, "factors.nodes: 3 is more than the 2 nodes of config/sites/local.yaml"),
        ({"factors": factors(nodes=2)}, "add to exclude: - {framework: pytorch-single, batch_size: 16}"),
        ({"factors": factors(epochs=1)}, "warmup_epochs=1 leaves none of 1 epochs to time"),
        ({"factors": factors(sync_every=97)}, "sync_every=97 is more than the 96 batches of an epoch"),
        ({"factors": factors(learning_rate=float("nan"))}, "factors.learning_rate.0: nan is not of type number"),
        ({"replicates": 2.0}, "replicates: 2.0 is not of type integer"),
        ({"factors": factors(framework="pytorch-ddp\n")}, "does not look right"),
        ({"factors": factors(training_loop="fit")}, "pytorch-single cannot do it (capabilities in"),
        ({"factors": factors(batch_size=[100, 1000])}, "100 samples a step drop 2.3% of the 1536 training samples"),
        (
            {"factors": factors(batch_scope="global", framework="pytorch-ddp", nodes=2, batch_size=33)},
            "does not divide by 2 replicas",
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


def test_a_study_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(InputError, match=r"there is no config/studies/nothing.yaml; study must be one of .*quickstart"):
        load_study("nothing")


def test_a_site_with_a_relative_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGSIDE_CACHE", "here")
    with pytest.raises(InputError, match="cache: 'here' is not an absolute folder"):
        load_site("local")


def test_a_name_of_digits_alone_is_a_name() -> None:
    config = {"study": 2024, "site": "local", "records": "campaign"}  # what Snakemake makes of --config study=2024
    assert load_config(config)["study"] == "2024"
