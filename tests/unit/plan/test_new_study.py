"""A new study can be planned as it is written; a study that cannot be planned is not written."""

from pathlib import Path

import pytest

from common.errors import InputError
from declared.site import Site, load_site
from plan import new_study
from plan.campaign import plan_campaign
from plan.new_study import Draft, write_study


@pytest.fixture
def site() -> Site:
    return load_site("local")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where studies are written."""
    monkeypatch.setattr(new_study, "FOLDER", tmp_path)
    monkeypatch.setattr(
        new_study, "load_study", lambda name, folder_of_studies=tmp_path: LOAD(name, folder_of_studies)
    )
    return tmp_path


LOAD = new_study.load_study


def test_the_usual_study_is_planned(folder: Path, site: Site) -> None:
    study = write_study("mine", Draft(), site)
    campaign = plan_campaign(study, site)
    assert {run.levels["framework"] for run in campaign.runs} == set(Draft().frameworks)
    assert {run.geometry.nodes for run in campaign.runs} == {1, 2} and study.replicates.at_most == 3
    assert {run.geometry.nodes for run in campaign.runs if run.levels["framework"] == "pytorch-single"} == {1}
    text = (folder / "mine.yaml").read_text()
    assert text.count("#") > 5 and "./ringside run mine" in text


def test_batch_sizes_are_those_that_the_data_set_allows(site: Site) -> None:
    draft = Draft(("pytorch-ddp",), "small-cnn", "synthetic-8x8x1-10-24", (2,), 1)
    study = write_study("mine", draft, site)
    assert study.factors["batch_size"] == [4]


@pytest.mark.parametrize(
    ("name", "draft", "code"),
    [
        ("Mine", Draft(), "bad-pattern"),
        ("mine", Draft(frameworks=("pytorch-dpp",)), "unknown-name"),
        ("mine", Draft(model="lenet"), "unknown-name"),
        ("mine", Draft(dataset="digit"), "unknown-name"),
        ("mine", Draft(model="gpt-nano"), "model-does-not-fit-data"),
        ("mine", Draft(("pytorch-ddp",), dataset="synthetic-8x8x1-10-25", nodes=(2,)), "too-few-samples"),
        ("mine", Draft(nodes=(1, 4096)), "out-of-range"),
    ],
)
def test_what_cannot_be_planned_is_not_written(
    folder: Path, site: Site, name: str, draft: Draft, code: str
) -> None:
    with pytest.raises(InputError) as refused:
        write_study(name, draft, site)
    assert refused.value.code == code and not list(folder.iterdir())
