"""Cells with parallelization strategies: geometry, choice of the strategy, and what has to be searched first."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import display_path
from declared.replicates import Replicates
from declared.site import Site
from declared.study import Study
from models import strategy
from models.soap import divide
from plan import design as planner
from plan.campaign import plan_campaign
from plan.design import plan_design
from plan.geometry import INFEASIBLE_FOR_FRAMEWORK
from plan.identity import plan_run, run_spec
from plan.memory import run_estimate_key
from plan.strategies import strategy_search_name
from support.changed_study import changed_study


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where what was found lies."""
    strategies_json = tmp_path / "found.json"
    monkeypatch.setattr(planner, "strategy_file", lambda study, site: strategies_json)
    return strategies_json


def study_of(**factors: list[object]) -> Study:
    levels: dict[str, list[object]] = {
        "framework": ["pytorch-strategy"],
        "model": ["lenet-5"],
        "dataset": ["synthetic-28x28x1-10-512"],
        "nodes": [4],
        "batch_size": [64],
        "batch_scope": ["global"],
        "sync_every": [1],
    }
    return changed_study("quickstart", levels, factors)


def test_all_ranks_see_equal_samples_and_get_the_strategy(site: Site) -> None:
    study = study_of(parallelism=["data", "expert", "random1", "random2"])
    runs = {str(run.levels["parallelism"]): run for run in plan_design(study, site)}
    specs = {level: run_spec(study, site, run) for level, run in runs.items()}
    for level, run in runs.items():
        layout = run.geometry
        assert (layout.ranks, layout.replicas, layout.local_batch, layout.effective_batch) == (4, 1, 64, 64)
        assert specs[level]["mesh"] == {"pipeline": 1, "data": 1, "experts": 1, "sharded": 1, "tensor": 4}
        assert strategy.from_json(specs[level]["strategy"]) == run.strategy
    conv = {level: fields["strategy"]["conv1"] for level, fields in specs.items()}
    assert conv["data"] == conv["expert"] == {"degrees": [4, 1, 1, 1], "devices": [0, 1, 2, 3]}
    assert specs["expert"]["strategy"]["dense1"] != specs["data"]["strategy"]["dense1"]
    assert len({plan_run(study, site, run).key for run in runs.values()}) == 4


def test_what_was_found_is_an_input_of_the_run(site: Site, file: Path) -> None:
    study = study_of(parallelism=["found"])
    (run,) = plan_design(study, site)
    search = strategy_search_name(run.levels)
    assert run.strategy is None and run.lacks_strategy
    campaign = plan_campaign(study, site)
    assert campaign.record_paths == {} and campaign.environments, (
        "the search wants the environment, though no run can be made"
    )
    keys = set()
    space = divide(run.graph, 64)
    for seed in (1, 2):
        parts = strategy.to_json(strategy.random_strategy(space, 4, seed))
        file.write_text(json.dumps({"made_of": {}, "strategies": {search: {"step_s": 0.1, "parts": parts}}}))
        (run,) = plan_design(study, site)
        assert not run.lacks_strategy and run_spec(study, site, run)["strategy"] == parts
        keys.add(plan_run(study, site, run).key)
    assert len(keys) == 2, "another strategy is another run"


def test_runs_have_the_buckets_of_the_search(site: Site, file: Path) -> None:
    study, limits, estimates = study_of(parallelism=["data"]), [], set()
    for content in (None, {}, {"bucket_bytes": [0, 2**21]}):
        if content is not None:
            file.write_text(json.dumps({"made_of": {}, "strategies": {}} | content))
        (run,) = plan_design(study, site)
        limits.append(run_spec(study, site, run)["bucket_bytes"])
        estimates.add(run_estimate_key(site, run))
    assert limits == [[2**20, 25 * 2**20], [2**20, 2**20], [0, 2**21]], "of DDP; of older files; as written"
    assert len(estimates) == 3, "they change memory"


@pytest.mark.parametrize(
    ("launcher", "way"), [("local", ""), ("slurm", " --profile slurm"), ("oar", " --profile oar")]
)
def test_cells_without_a_strategy_name_the_command_that_finds_it(
    site: Site, file: Path, launcher: str, way: str
) -> None:
    study = replace(study_of(parallelism=["data", "found"], batch_size=[32, 64]), replicates=Replicates(3, 3))
    campaign = plan_campaign(study, replace(site, launcher=launcher))
    command = f"./ringside strategies {study.name} --site local{way}"
    (note,) = campaign.skipped_runs()
    assert note.code == "strategy-not-found-yet" and note.facts == {"runs": 6, "cells": 2, "command": command}
    assert note.endswith(f"run {command}")
    assert len(campaign.record_paths) == 6, "of data parallelism"


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        ("{", "broken-file", ""),
        ('{"made_of": {}, "strategies": {"QUESTION": {"step_s": 0.1, "parts": {}}}}', "model-mismatch",
         "QUESTION"),
    ],
)  # fmt: skip
def test_broken_file_of_strategies_is_refused(site: Site, file: Path, text: str, code: str, key: str) -> None:
    study = study_of(parallelism=["found"])
    (run,) = plan_design(study, site)
    search = strategy_search_name(run.levels)
    file.write_text(text.replace("QUESTION", search))
    with pytest.raises(InputError) as refused:
        plan_design(study, site)
    error = refused.value
    assert (error.code, error.file, error.key) == (code, display_path(file), key.replace("QUESTION", search))
    assert "./ringside strategies" in error.hint and "\n" not in str(error)


def test_cells_differing_in_irrelevant_factors_share_a_strategy(site: Site) -> None:
    study = study_of(parallelism=["found"], learning_rate=[0.1, 0.2], batch_size=[32, 64])
    assert len({strategy_search_name(run.levels) for run in plan_design(study, site)}) == 2


@pytest.mark.parametrize(
    ("factors", "code", "got"),
    [
        ({"batch_scope": ["local"]}, INFEASIBLE_FOR_FRAMEWORK, {"framework": "pytorch-strategy", "batch_scope": "local"}),
        ({"framework": ["pytorch-ddp"], "parallelism": ["found"]}, INFEASIBLE_FOR_FRAMEWORK, {"framework": "pytorch-ddp",
         "parallelism": "found"}),
        ({"parallelism": ["tensor"]}, INFEASIBLE_FOR_FRAMEWORK, {"framework": "pytorch-strategy",
         "parallelism": "tensor"}),
        ({"nodes": [1], "parallelism": ["data", "random1"]}, "duplicate", {"parallelism": "random1",
         "nodes": 1}),
    ],
)  # fmt: skip
def test_cells_that_cannot_be(
    site: Site, factors: dict[str, list[object]], code: str, got: dict[str, object]
) -> None:
    with pytest.raises(InputError) as refused:
        plan_design(study_of(**factors), site)
    assert refused.value.code == code and refused.value.got.items() >= got.items()  # type: ignore[attr-defined]
