"""Plans of runs in files: they have the content of the design, and outdated ones are refused and replaced."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from declared.replicates import Replicates
from declared.site import load_site
from declared.study import load_study
from plan import identity
from plan.campaign import Campaign
from plan.campaign import plan_campaign as planned_campaign
from plan.plan_files import plan_file, read_plan, write_plan, write_plans

LOCAL = load_site("local")


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.chdir(tmp_path)
    return planned_campaign(load_study("quickstart"), LOCAL)


@pytest.mark.parametrize(
    ("study", "site"),
    [("quickstart", "local"), ("hybrid-virtual", "virtual"), ("found-strategies-virtual", "virtual-four")],
)
def test_plan_of_a_run_is_read_as_it_was_made(tmp_path: Path, study: str, site: str) -> None:
    described, at = load_study(study), load_site(site)
    firsts = {run.framework.name: run for run in reversed(planned_campaign(described, at).designed_runs)}
    for run in firsts.values():
        planned = identity.plan_run(described, at, run)
        back = read_plan(write_plan(tmp_path, planned), planned.key, at)
        assert (back.key, back.digests, back.framework) == (planned.key, planned.digests, run.framework)
        assert back.spec == json.loads(json.dumps(planned.spec))
        assert back.graph.to_json() == run.graph.to_json()


@pytest.mark.parametrize(
    "changes", [{"setup": ("module load x",)}, {"cores": 64}, {"variables": (("A", "b"),)}]
)
def test_a_site_that_has_changed_since_is_refused(campaign: Campaign, changes: dict[str, Any]) -> None:
    planned = campaign.planned_run(campaign.runs[0])
    file = write_plan(campaign.results, planned)
    with pytest.raises(InputError) as refused:
        read_plan(file, planned.key, replace(LOCAL, **changes))
    assert (refused.value.code, refused.value.got) == ("changed-since-planned", planned.key)


@pytest.mark.parametrize("digest", ["code_digest", "data_digest", "site_environment_digest"])
def test_files_that_have_changed_since_are_refused(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    planned = campaign.planned_run(campaign.runs[0])
    file = write_plan(campaign.results, planned)
    monkeypatch.setattr(identity, digest, lambda *_: "f" * 64)
    with pytest.raises(InputError) as refused:
        read_plan(file, planned.key, LOCAL)
    assert refused.value.code == "changed-since-planned"


def test_the_plan_of_another_key_is_refused(campaign: Campaign) -> None:
    file = write_plan(campaign.results, campaign.planned_run(campaign.runs[0]))
    with pytest.raises(InputError) as refused:
        read_plan(file, "0" * 12, LOCAL)
    assert (refused.value.code, refused.value.got) == ("changed-since-planned", "0" * 12)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.unlink(),
        lambda file: file.write_text(file.read_text().replace('"seed": ', '"seed": 1')),
    ],
)
def test_a_damaged_plan_is_refused_and_written_again(
    campaign: Campaign, damage: Callable[[Path], object]
) -> None:
    run = campaign.runs[0]
    planned = campaign.planned_run(run)
    file = write_plan(campaign.results, planned)
    complete = file.read_text()
    damage(file)
    with pytest.raises(InputError) as refused:
        read_plan(file, planned.key, LOCAL)
    assert (refused.value.code, refused.value.file) == ("broken-file", str(file))
    write_plans(campaign, {run.run_id})
    assert file.read_text() == complete


def test_only_runs_that_are_to_be_measured_get_a_plan(campaign: Campaign) -> None:
    first, second, *_ = campaign.runs
    write_plans(campaign, {first.run_id})
    file = plan_file(campaign.results, first.run_id)
    assert list(file.parent.iterdir()) == [file]
    os.utime(file, ns=(7, 7))
    write_plans(campaign, {first.run_id, second.run_id})
    assert file.stat().st_mtime_ns == 7, "a plan that is current stays as it is"
    assert plan_file(campaign.results, second.run_id).exists()


def test_runs_that_may_be_decided_later_have_a_plan(campaign: Campaign) -> None:
    study = replace(campaign.study, replicates=Replicates(2, 5, 0.03))
    adaptive = planned_campaign(study, LOCAL)
    write_plans(adaptive, set())
    written = {file.stem for file in plan_file(adaptive.results, "x").parent.iterdir()}
    assert written == {run.run_id for run in adaptive.max_runs} - set(adaptive.record_paths)
    assert {run.block for run in adaptive.designed_runs if run.run_id in written} == {3, 4, 5}


def test_a_disk_without_space_is_told(campaign: Campaign) -> None:
    campaign.results.mkdir(parents=True)
    (campaign.results / "plan").write_text("a file where the folder is to be")
    with pytest.raises(InputError) as refused:
        write_plans(campaign, {campaign.runs[0].run_id})
    assert refused.value.code == "system-error"
