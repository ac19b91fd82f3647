"""What is said before anything starts: whether runs can be started, and environments built, the way that was asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster import readiness
from cluster.readiness import check_builds, check_launch
from common.errors import InputError
from plan.campaign import Campaign, load_campaign

CONFIG = {"study": "quickstart", "site": "local", "records": "campaign"}


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("folder", ["/a b", "/a$(b)", "/a'b", "/a;b"])
def test_a_path_that_breaks_the_schedulers_scripts_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "CHECKOUT", Path(folder))
    with pytest.raises(InputError, match="such a path breaks the scheduler's scripts"):
        check_launch(load_campaign({**CONFIG, "site": "slurm-example"}), "slurm")


class TestImages:
    @pytest.fixture
    def imaged(self, monkeypatch: pytest.MonkeyPatch) -> Campaign:
        """The campaign at a site with images, on a machine without Apptainer."""
        monkeypatch.setenv("PATH", "/nowhere")
        here = load_campaign(CONFIG)
        return replace(here, site=replace(here.site, deployment="apptainer"))

    def test_all_environments_of_the_study_are_images_then_and_keys_are_others(self, imaged: Campaign) -> None:
        here = load_campaign(CONFIG)
        assert here.images == [] and imaged.images == list(imaged.environments) == list(here.environments)
        assert set(here.records.values()).isdisjoint(imaged.records.values())

    def test_without_apptainer_it_says_so_before_anything_starts(self, imaged: Campaign) -> None:
        for start in (lambda: check_launch(imaged, "local"), lambda: check_builds(imaged.site, ["pytorch"])):
            with pytest.raises(InputError) as refused:
                start()
            assert "there is no apptainer on this machine" in str(refused.value) and "\n" not in str(refused.value)

    def test_what_setup_lines_and_other_nodes_have_is_not_judged_here(self, imaged: Campaign) -> None:
        module = replace(imaged, site=replace(imaged.site, setup=("module load apptainer",)))
        check_launch(module, "local")
        check_builds(module.site, ["pytorch"])
        in_job = replace(imaged.site, scheduler=replace(imaged.site.scheduler, build_on="job"))
        check_builds(in_job, ["pytorch"])
