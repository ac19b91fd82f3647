"""A real search: PyTorch trains within a small memory, from trial to the file that the plan reads."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.files import read_json, write_json
from datasets.prepare import prepare
from declared.factors import factor_table
from declared.replicates import Replicates
from declared.site import Site
from declared.study import Study, load_study
from launchers import launch
from plan import design, largest
from plan.design import plan_design
from plan.largest import planned_searches
from ranks.worker.node import memory_bytes
from runs import attempts, largest_batches
from runs import largest as search_program
from support.installed_site import busy_site

MEMORY_BYTES = 720e6  # of the rank; PyTorch alone takes 230 MB


@pytest.fixture
def site() -> Site:
    return busy_site(time_limit_s=120)


@pytest.fixture
def study() -> Study:
    """Return a model on ten images that are so large that not all fit."""
    levels: dict[str, list[Any]] = {name: [entry.get("default")] for name, entry in factor_table().items()}
    levels |= {"framework": ["pytorch-single"], "model": ["resnet-18"], "nodes": [1], "sync_every": [1]}
    levels |= {"dataset": ["synthetic-224x224x3-10-10"], "batch_size": ["largest"]}
    return replace(load_study("quickstart"), factors=levels, exclude=(), replicates=Replicates(1, 1))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: Site, study: Study) -> Path:
    """Return a folder for results, where programs load this study and this site."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(largest, "MEMORY_SHARE", MEMORY_BYTES / memory_bytes())
    monkeypatch.setattr(largest_batches, "load_site", lambda name: site)
    monkeypatch.setattr(largest_batches, "load_study", lambda name: study)
    for module in (design, largest_batches):
        monkeypatch.setattr(module, "batch_size_file", lambda study, site: tmp_path / "found.json")
    data = tmp_path / "data"
    prepare("synthetic-224x224x3-10-10", data)
    monkeypatch.setattr(search_program, "data_folder", lambda site, dataset: data)
    return tmp_path / "results" / "quickstart"


@pytest.mark.training
def test_largest_batch_is_searched_and_planned(
    real: Any, results: Path, study: Study, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    real("pytorch")
    (search,) = planned_searches(plan_design(study, site), site)
    record = search_program.KIND.reuse_or_measure(study, site, search, results)
    outcomes = {trial["batch_size"]: trial["outcome"] for trial in record["trials"]}
    assert {10: "oom", 2: "fits", 5: "fits"}.items() <= outcomes.items() and set(outcomes) <= {1, 2, 5, 10}
    assert (record["status"], record["largest_fit"], record["limit"]) == ("ok", 5, "memory")
    assert record["batch_size"] == 2, "4.75, less than one twentieth below 5, and all samples are trained"
    peaks = {trial["batch_size"]: trial["memory_peak_bytes"] for trial in record["trials"]}
    assert 2e8 < peaks[2] < peaks[5] < MEMORY_BYTES

    final_record_path = search.final_record_path(results, site)
    final_record_path.unlink()
    (final_record_path.parent / "attempt-1" / "record.json").unlink()
    monkeypatch.setattr(launch, "run_ranks", None)
    resumed = search_program.KIND.reuse_or_measure(study, site, search, results)
    assert resumed["attempt"] == 2 and resumed["trials"] == record["trials"]

    largest_batches.main(study=study.name, site=site.name, out=results / "largest" / "batch_sizes.json")
    (run,) = plan_design(study, site)
    assert (run.missing_batch_size, run.geometry.local_batch, run.geometry.steps) == (None, 2, 5)


@pytest.mark.parametrize("fresh", [True, False])
def test_trial_validates_few_samples(tmp_path: Path, fresh: bool) -> None:
    source, folder = tmp_path / "prepared", tmp_path / "trial"
    for part in ("train", "validation"):
        (source / part).mkdir(parents=True)
        np.save(source / part / "labels.npy", np.arange(8))
    write_json(source / "manifest.json", {"fresh": fresh, "validation_samples": 8})
    search_program.write_trial_data(source, folder, 3)
    if fresh:
        assert read_json(folder / "manifest.json")["validation_samples"] == 3
    else:
        assert np.load(folder / "validation" / "labels.npy").tolist() == [0, 1, 2]
        assert len(np.load(folder / "train" / "labels.npy")) == 8


def test_failed_search_is_left_out() -> None:
    fit = {"name": "a", "status": "ok", "batch_size": 8, "largest_fit": 9, "limit": "memory", "key": "0" * 12}
    unfit = fit | {"name": "b", "status": "oom", "batch_size": None, "largest_fit": None}
    failed = unfit | {"name": "c", "status": "failed", "limit": "failure"}
    searches = largest_batches.gather([failed, unfit, fit])["searches"]
    assert [(name, entry["batch_size"]) for name, entry in searches.items()] == [("a", 8), ("b", None)]


@pytest.fixture
def trials(
    tmp_path: Path, study: Study, site: Site, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., search_program.Trials]:
    """A function that returns trials in a folder, whose training ends with these outcomes in turn."""
    (search,) = planned_searches(plan_design(study, site), site)

    def make(outcomes: Iterable[str], folder: str = "attempt-1") -> search_program.Trials:
        remaining = iter(outcomes)

        def train(_self: object, batch_size: int, folder: Path) -> dict[str, Any]:
            folder.mkdir(parents=True)
            return {"batch_size": batch_size, "outcome": next(remaining), "reason": "x", "wall_s": 1.0}

        monkeypatch.setattr(search_program.Trials, "_train", train)
        return search_program.Trials(site, search, {}, tmp_path / folder)  # type: ignore[typeddict-item]

    return make


@pytest.mark.parametrize("second", ["fits", "failed"])
def test_failed_trial_is_repeated_once(trials: Callable[..., search_program.Trials], second: str) -> None:
    search = trials(["failed", second])
    assert search.fits(5) == (second == "fits")
    assert sorted(folder.name for folder in search.folder.iterdir()) == ["b5", "b5-again"]
    unfit = search.smallest_unfit
    assert (unfit and unfit["outcome"]) == (None if second == "fits" else "failed")


@pytest.mark.parametrize(("outcome", "is_kept"), [("fits", True), ("oom", True), ("timeout", False)])
def test_trials_of_earlier_attempts_are_reused(
    trials: Callable[..., search_program.Trials], outcome: str, is_kept: bool
) -> None:
    first = trials([outcome])
    first.fits(5)
    later = trials(["fits"], "attempt-2")
    assert later.fits(5) == (outcome == "fits" or not is_kept)
    assert (later.folder / "b5").exists() == (not is_kept)
    (first.folder / attempts.PUT_ASIDE).touch()
    again = trials(["oom"], "attempt-3")
    assert again.fits(5) == (not is_kept), "what was put aside is tried again"


def test_trials_under_another_memory_limit_are_not_reused(
    trials: Callable[..., search_program.Trials], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not trials(["oom"]).fits(5)
    monkeypatch.setattr(search_program, "memory_limit_bytes", lambda *_: 4_000_000_000)
    assert trials(["fits"], "attempt-2").fits(5)
    assert trials(["oom"], "attempt-3").fits(5), "the limit is that of the second attempt"


@pytest.mark.parametrize(
    ("outcomes", "status", "limit", "is_found"),
    [
        (["oom"] * 2, "oom", "memory", True),
        (["timeout"] * 2, "timeout", "time limit", False),
        (["failed"] * 4, "failed", "failure", False),
        (["failed", "failed", "oom"], "oom", "memory", True),
        (["oom", "fits"], "ok", "memory", True),
    ],
)
def test_status_is_that_of_the_smallest_unfit_batch(
    trials: Callable[..., search_program.Trials],
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    outcomes: list[str],
    status: str,
    limit: str,
    is_found: bool,
) -> None:
    search = trials(outcomes)
    monkeypatch.setattr(type(search.search), "candidates", lambda *_: [1, 10])
    record = search_program.measure_search(site, search.search, {}, None, search.folder)  # type: ignore[typeddict-item, arg-type]
    assert (record["status"], record["limit"]) == (status, limit)
    assert bool(largest_batches.gather([record | {"key": "0" * 12}])["searches"]) == is_found
