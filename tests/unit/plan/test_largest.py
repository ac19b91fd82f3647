"""Cells with `batch_size: largest`, before and after the search, and the candidates of the search."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from declared.site import Site
from declared.study import Study
from plan import batch_sizes, design, largest, search_files
from plan.campaign import plan_campaign
from plan.design import Run, plan_design
from plan.identity import plan_run, run_spec
from records.repeat import select_measurements
from support.changed_study import changed_study
from support.refusals import assert_refusal


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which the plan looks for what was found."""
    batch_sizes_json = tmp_path / "found.json"
    monkeypatch.setattr(design, "batch_size_file", lambda study, site: batch_sizes_json)
    return batch_sizes_json


def study_of(**factors: list[object]) -> Study:
    levels: dict[str, list[object]] = {
        "framework": ["pytorch-ddp"],
        "model": ["small-cnn"],
        "dataset": ["synthetic-28x28x1-10-100000"],
        "nodes": [2],
        "batch_size": ["largest"],
        "sync_every": [1],
    }
    return changed_study("quickstart", levels, factors)


def write_found(file: Path, runs: list[Run], batch_size: int | None) -> None:
    entry = {"batch_size": batch_size, "largest_fit": batch_size, "limit": "memory", "key": "0" * 12}
    names = {batch_sizes.batch_search_name(run.levels) for run in runs}
    file.write_text(json.dumps({"searches": dict.fromkeys(names, entry)}))


def test_cell_waits_for_its_search(site: Site, file: Path) -> None:
    study = study_of(batch_size=[32, "largest"])
    campaign = plan_campaign(study, site)
    number, searched = sorted(campaign.runs, key=lambda run: run.cell)
    assert (number.cell, searched.cell) == (
        "pytorch-ddp.small-cnn.synthetic-28x28x1-10-100000.b32.n2.s1",
        "pytorch-ddp.small-cnn.synthetic-28x28x1-10-100000.blargest.n2.s1",
    )
    assert list(campaign.record_paths) == [number.run_id]
    reason = campaign.not_executable_reason(searched)
    assert reason and reason.code == "batch-size-not-found-yet"
    assert reason.facts["command"] == f"./ringside largest {study.name} --site {site.name}"
    write_found(file, [searched], None)
    (unfit,) = plan_campaign(study_of(), site).runs
    assert unfit.missing_batch_size and unfit.missing_batch_size.code == "no-batch-fits"


def test_searches_are_repeated_by_name(
    site: Site, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = plan_campaign(study_of(), site)
    ((name, output),) = largest.BatchSearches(campaign).record_paths.items()
    Path(output).parent.mkdir(parents=True)
    Path(output).touch()
    assert select_measurements(campaign, "largest.*") == {f"largest.{name}": Path(output)}


def test_found_batch_size_is_what_ranks_are_told(site: Site, file: Path) -> None:
    study = study_of(lr_scaling=["linear"], sync_every=[4])
    keys = set()
    for size in (200, 250):
        write_found(file, plan_design(study, site), size)
        file.touch()
        search_files._read.cache_clear()
        (run,) = plan_design(study, site)
        assert run.levels["batch_size"] == "largest" and run.missing_batch_size is None
        assert (run.geometry.local_batch, run.geometry.effective_batch) == (size, size * 2 * 4)
        fields = run_spec(study, site, run)
        assert fields["levels"]["batch_size"] == fields["local_batch"] == size
        assert fields["batch_search"] == batch_sizes.batch_search_name(run.levels)
        keys.add(plan_run(study, site, run).key)
        assert plan_run(study, site, run).is_current()
    assert len(keys) == 2


def test_cells_with_equal_memory_share_a_search(site: Site, file: Path) -> None:
    study = study_of(learning_rate=[0.1, 0.2], epochs=[3, 4], lr_warmup_epochs=[0, 1], warmup_epochs=[0, 1])
    (search,) = largest.required_searches(plan_design(study, site))
    assert search.name == "pytorch-ddp.small-cnn.synthetic-28x28x1-10-100000.blargest.n2.s1"
    for factors in ({"precision": ["fp32", "amp"]}, {"optimizer": ["sgd", "adam"]}, {"sync_every": [1, 2]}):
        own = study_of(**factors)
        assert len(largest.required_searches(plan_design(own, site))) == 2


def test_candidates_differ_by_a_few_percent(site: Site, file: Path) -> None:
    (search,) = largest.planned_searches(plan_design(study_of(), site), site)
    sizes = search.candidates(site)
    assert sizes[:40] == list(range(1, 41)) and sizes[-1] == 50_000
    ratios = [after / before for before, after in itertools.pairwise(sizes) if 32 <= before < 1000]
    assert max(ratios) < 1.04
    for size in sizes[::50]:
        trial = search.trial_spec(site, size)
        assert trial["local_batch"] == trial["levels"]["batch_size"] == size
        assert trial["samples_per_epoch"] == trial["steps"] * 2 * size <= 100_000
        assert trial["steps"] <= largest.TRIAL_UPDATES
    assert search.trial_spec(site, 1)["levels"]["epochs"] == 2, "training goes on after validation"


@pytest.mark.parametrize(
    ("factors", "named"),
    [
        ({"batch_scope": ["global"]}, "batch_scope"),
        ({"shares": ["measured"], "framework": ["pytorch-hybrid"]}, "shares"),
        ({"framework": ["pytorch-strategy"]}, "framework"),
        ({"device": ["hybrid"], "framework": ["pytorch-hybrid"]}, "device"),
    ],
)
def test_no_search_where_one_number_says_too_little(
    site: Site, file: Path, factors: dict[str, list[object]], named: str
) -> None:
    with pytest.raises(InputError) as error:
        plan_design(study_of(**factors), site)
    assert error.value.code == "no-largest-batch" and named in error.value.got


@pytest.mark.parametrize(
    ("content", "code", "key"),
    [
        ("{", "broken-file", ""),
        ('{"searches": {"a": {"batch_size": 8}}}', "missing-key", "searches.a.largest_fit"),
    ],
)
def test_broken_file_is_refused(site: Site, file: Path, content: str, code: str, key: str) -> None:
    file.write_text(content)
    with pytest.raises(InputError) as error:
        plan_design(study_of(), site)
    assert_refusal(error.value, code, key)


@pytest.mark.parametrize(("placement", "n_ranks"), [("emulated", 2), ("distinct-nodes", 1)])
def test_memory_is_limited_on_cpus_only(site: Site, file: Path, placement: str, n_ranks: int) -> None:
    site = replace(site, placement=placement)
    (search,) = largest.required_searches(plan_design(study_of(), site))
    assert search.trial_spec(site, 1)["memory_share"] == largest.MEMORY_SHARE / n_ranks
    assert "memory_share" not in search.trial_spec(replace(site, device="cuda"), 1)
