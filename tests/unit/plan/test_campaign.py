"""A campaign belongs to one site; elsewhere only its figures can be made."""

import json
import os
from pathlib import Path

import pytest

from common.errors import InputError
from plan.campaign import alive, load_campaign, locks, take_over

CONFIG = {"study": "quickstart", "site": "local", "records": "campaign"}


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bound(**changes: object) -> Path:
    load_campaign(CONFIG).bind()
    file = Path("results/quickstart/campaign.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return file


def test_the_first_run_binds_the_results_to_its_site() -> None:
    assert json.loads(bound().read_text())["site"] == "local"
    assert load_campaign(CONFIG).check_bound() is None


@pytest.mark.parametrize("changes", [{"site": "cluster", "machine": None}, {"machine": "another-machine"}])
def test_another_site_or_machine_may_only_look(changes: dict[str, object]) -> None:
    bound(**changes)
    with pytest.raises(InputError, match=r"these results belong to site .*add --config records=available"):
        load_campaign(CONFIG)
    assert load_campaign({**CONFIG, "records": "available"}).mode == "available"


def test_a_broken_binding_is_refused_in_one_line() -> None:
    bound().write_text("{")
    with pytest.raises(InputError, match=r"campaign.json: is broken"):
        load_campaign(CONFIG)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"studdy": "x"}, "studdy: unknown key; did you mean 'study'?"),
        ({"study": "Quick Start"}, "study: 'Quick Start' does not look right"),
        ({"study": "../secret"}, "study: '../secret' does not look right"),
        ({"site": "nowhere"}, "there is no config/sites/nowhere.yaml; site must be one of local"),
        ({"records": "nothing-here"}, "there is no nothing-here/runs.csv; expected campaign, available or a folder"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(changes: dict[str, str], said: str) -> None:
    with pytest.raises(InputError) as refused:
        load_campaign({**CONFIG, **changes})
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_runs_have_priorities_in_planned_order_and_know_what_they_need() -> None:
    campaign = load_campaign(CONFIG)
    planned = [run.run_id for run in campaign.runs]
    assert sorted(planned, key=lambda run_id: -campaign.priorities[run_id]) == planned
    needed = list(campaign.environments)
    assert sorted(needed) == ["horovod-pytorch", "horovod-tensorflow", "pytorch", "tensorflow"]
    assert needed.index("pytorch") < needed.index("horovod-pytorch"), "parents first"
    for run in campaign.runs:
        assert Path(campaign.environment_of(run.run_id)).is_absolute()
        assert campaign.dataset_of(run.run_id).endswith("/manifest.json")


def test_a_lock_is_stale_when_its_process_is_dead() -> None:
    state = Path(".snakemake")
    take_over(state)
    assert alive(state)
    (state / "locks").mkdir()
    (state / "locks" / "0.input.lock").write_text("")
    assert len(locks(state)) == 1
    take_over(state)  # the holder lives: Snakemake itself says so
    owner = json.loads((state / "owner.json").read_text())
    assert owner["pid"] == os.getpid()
    for dead in ({"start": "1"}, {"pid": 2**22 + 1}):
        (state / "owner.json").write_text(json.dumps({**owner, **dead}))
        with pytest.raises(InputError, match="left by a Snakemake that was killed; run make unlock"):
            take_over(state)
