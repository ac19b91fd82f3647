"""Estimated memory demands of runs, compared with the memory that they have."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from common.files import write_json
from declared.site import Memory, Site, load_site
from plan import memory
from plan.campaign import MEMORY_ESTIMATES, Campaign
from plan.cost import MEMORY_TITLE, Cost, measured_at, notes, table_rows
from plan.design import Run
from plan.identity import plan_run
from plan.memory import (
    MemoryEstimate,
    describe_demands,
    estimable_runs,
    failed_estimates,
    limit_bytes,
    memory_demands,
    raise_if_oversized,
    read_estimates,
    recorded_estimate,
    run_estimate_key,
)
from support.recorded import small_campaign

TENSOR_BYTES = 10**9


@pytest.fixture
def site() -> Site:
    return replace(load_site("local"), memory=Memory(node_gib=4, refuse=True))


def with_estimates(site: Site, program_bytes: int = 0, **levels: Any) -> Campaign:
    """Return a campaign in whose results every cell is estimated to need TENSOR_BYTES and its program."""
    campaign = small_campaign(site, **levels)
    entry = MemoryEstimate(0, {"parameters": TENSOR_BYTES}, program_bytes)
    campaign.results.mkdir(parents=True)
    write_json(campaign.results / MEMORY_ESTIMATES, {key: asdict(entry) for key in estimable_runs(campaign)})
    return campaign


def runs_of(campaign: Campaign, framework: str) -> list[Run]:
    return [run for run in campaign.runs if run.framework.name == framework]


def test_replicates_and_learning_rates_share_an_estimate(site: Site) -> None:
    campaign = small_campaign(site, learning_rate=[0.1, 0.2], batch_size=[16, 32])
    runs = runs_of(campaign, "pytorch-ddp")
    assert len({run_estimate_key(site, run) for run in runs}) == 2, "one for each batch size"
    assert len(runs) == 8


def test_memory_and_checked_nodes_change_no_key(site: Site) -> None:
    campaign = small_campaign(site)
    study, run = campaign.study, campaign.runs[0]
    other_site = replace(site, memory=Memory(device_gib=80), exclude_nodes=(("n1", "slow"),))
    assert plan_run(replace(study, node_check=True), other_site, run).key == plan_run(study, site, run).key


def test_other_code_or_software_is_another_estimate(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_campaign(site).runs[0]
    before = run_estimate_key(site, run)
    for name, changed in (("_program_digest", lambda: "0"), ("digests", lambda *_: {"code_digest": "0"})):
        with monkeypatch.context() as patch:
            patch.setattr(memory, name, changed)
            assert run_estimate_key(site, run) != before
    with_data = memory.digests(site, run.levels) | {"data_digest": "0"}
    monkeypatch.setattr(memory, "digests", lambda *_: with_data)
    assert run_estimate_key(site, run) == before, "the content of samples changes no memory"


def test_ranks_of_a_machine_share_its_memory(site: Site) -> None:
    run = next(iter(small_campaign(site, nodes=[2], framework=["pytorch-ddp"]).runs))
    assert limit_bytes(site, run) == 2 * 2**30
    distinct = replace(site, placement="distinct-nodes")
    assert limit_bytes(distinct, run) == 4 * 2**30 // run.geometry.ranks_per_node
    requested = replace(site, memory=Memory(), scheduler=replace(site.scheduler, memory_mb=6144))
    assert limit_bytes(requested, run) == 3 * 2**30


def test_memory_of_an_accelerator_is_what_the_site_states(site: Site) -> None:
    run = small_campaign(site).runs[0]
    on_gpus = replace(site, device="cuda", memory=Memory(device_gib=80))
    assert limit_bytes(on_gpus, run) == 80 * 2**30
    assert limit_bytes(replace(on_gpus, memory=Memory()), run) is None
    named = Memory(device="NVIDIA A100-SXM4-80GB")
    assert limit_bytes(replace(on_gpus, memory=named), run) == 80 * 2**30


@pytest.mark.parametrize(
    ("program_bytes", "codes"),
    [(0, []), (3 * 10**9, ["hardly-fits"]), (4 * 10**9, ["does-not-fit"])],
    ids=["fits", "narrow", "too large"],
)
def test_needs_near_and_over_the_limit_are_noted(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program_bytes: int, codes: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = with_estimates(site, program_bytes)
    needs = memory_demands(site, campaign.runs, campaign.results)
    assert needs.keys() == {run.cell for run in campaign.runs}
    assert [note.code for note in describe_demands(needs.values())] == codes
    cost = Cost(campaign, measured_at("nowhere", Path("nowhere")))
    header, *rows = table_rows(cost)
    assert header[-2] == MEMORY_TITLE and all(len(row) == len(header) for row in rows)
    assert set(codes) <= {note.code for note in notes(cost)}


@pytest.mark.parametrize(
    "content", ["", '{"a": {"tensor_bytes": {"parameters": -1}}}', '{"a": {"other": 1}}']
)
def test_broken_estimates_count_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / MEMORY_ESTIMATES).write_text(content)
    assert read_estimates(tmp_path) == {}
    write_json(tmp_path / MEMORY_ESTIMATES, {"a": {"tensor_bytes": {"parameters": 1}, "program_bytes": 2}})
    assert read_estimates(tmp_path)["a"].by_category("cpu") == {"parameters": 1, "program": 2}
    assert read_estimates(tmp_path)["a"].by_category("cuda") == {"parameters": 1}


def test_runs_that_do_not_fit_are_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = with_estimates(site, program_bytes=4 * 10**9)
    with pytest.raises(InputError) as refused:
        raise_if_oversized(campaign)
    assert refused.value.code == "does-not-fit"
    raise_if_oversized(replace(campaign, site=replace(site, memory=Memory(node_gib=4, refuse=False))))
    for path in campaign.record_paths.values():
        Path(path).parent.mkdir(parents=True)
        write_json(Path(path), {"status": "ok"})
    raise_if_oversized(replace(campaign))  # what is measured needs no estimate any more


def test_failed_estimate_is_noted(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = with_estimates(site)
    failed = {key: asdict(MemoryEstimate(error="no such operator")) for key in estimable_runs(campaign)}
    write_json(campaign.results / MEMORY_ESTIMATES, failed)
    assert not memory_demands(site, campaign.runs, campaign.results)
    assert failed_estimates(campaign) == {run.cell: "no such operator" for run in campaign.runs}
    cost = Cost(campaign, measured_at("nowhere", Path("nowhere")))
    assert "no-memory-estimate" in {note.code for note in notes(cost)}


def test_record_has_the_estimate_of_its_run(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = with_estimates(site, program_bytes=300)
    recorded = recorded_estimate(campaign.planned_run(campaign.runs[0]), campaign.results)
    assert recorded == {"rank": 0, "bytes": {"parameters": TENSOR_BYTES, "program": 300}}
    assert recorded_estimate(campaign.planned_run(campaign.runs[0]), tmp_path) is None
