"""What is said before anything starts: whether runs can be started, and environments built, the way that was asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster import readiness, virtual
from cluster.readiness import check_builds, check_launch, check_virtual
from common.errors import InputError
from declared.site import load_site
from declared.virtual import Settings
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


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (None, "the virtual cluster is not up; start it: make cluster-up NODES=3 BANDWIDTH=1000mbit CPU=0.6 SCHEDULER=oar"),
        (Settings(3, 125e6, 0.6, None), "launcher: is oar, of the virtual cluster that is up slurm; make cluster-down, then"),
        (Settings(2, 125e6, 0.6, None, scheduler="oar"), "nodes: is 3, of the virtual cluster that is up 2"),
        (Settings(4, 125e6, 0.6, None, scheduler="oar"), None),
    ],
)  # fmt: skip
def test_a_virtual_cluster_has_to_be_the_one_that_the_site_describes(
    there: Settings | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual, "running", lambda: there)
    if said is None:
        check_virtual(load_site("virtual-oar"))
        return
    with pytest.raises(InputError) as refused:
        check_virtual(load_site("virtual-oar"))
    assert said in str(refused.value)


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
