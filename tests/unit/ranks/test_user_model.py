"""Users' PyTorch modules train to the same weights in every framework that supports them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.efficiency import COUNTED, find_operations
from declared.frameworks import framework_names, load_framework
from declared.replicates import Replicates
from declared.study import load_study
from plan.design import plan_design
from plan.identity import plan_run
from records.run_rows import recorded_row
from runs.supervise import supervise
from support.installed_site import busy_site
from support.trainings import Trainings, assert_same, epochs, framework_params, weights
from support.user_models import user_models_in

pytestmark = pytest.mark.training
WITH_USER_MODELS = [load_framework(name) for name in framework_names() if load_framework(name).user_models]
DISTRIBUTED = [framework.name for framework in WITH_USER_MODELS if framework.distributed]
MODEL = "mixer-example"
ALONE = {"model": MODEL, "batch_size": 64, "epochs": 2, "learning_rate": 0.1, "weight_decay": 1e-4}
ON_TWO = {"batch_size": 32, "nodes": 2}
N_PARAMETERS = 160 + 2 * 9552 + 64 + 330  # of the patches, the blocks, the norm, the head
# 2 for each product; the backward pass has twice those of the forward pass, without a gradient of the images.
SAMPLE_FLOPS = 2 * (2 * 2048 + 3 * (2 * (32 * 1024 + 16 * 8192) + 320))


@pytest.mark.parametrize("framework", framework_params(DISTRIBUTED))
def test_two_ranks_train_user_model_like_one_rank(trainings: Trainings, framework: str) -> None:
    alone = trainings.train("pytorch-single", **ALONE)
    shared = trainings.train(framework, **ALONE | ON_TWO)
    assert_same(weights(shared / "after.npz"), weights(alone / "after.npz"), 1e-5)
    losses = [float(row["train_loss"]) for row in epochs(shared)]
    assert losses[-1] < 0.8 * losses[0]
    reported = json.loads((shared / "result.json").read_text())["program_report"]
    assert reported == {"parameters": N_PARAMETERS, "sample_flops": SAMPLE_FLOPS}


@pytest.mark.every_framework
@pytest.mark.parametrize("sharding", ["optimizer", "gradients", "parameters"])
def test_zero_shards_user_model(trainings: Trainings, sharding: str) -> None:
    sharded = {"parallelism": "sharded", "sharding": sharding}
    actual = trainings.weights("deepspeed", **ALONE | ON_TWO | sharded)
    assert_same(actual, trainings.weights("pytorch-single", **ALONE), 1e-5)


@pytest.mark.every_framework
def test_ranks_average_running_means(trainings: Trainings, tmp_path: Path) -> None:
    with user_models_in(tmp_path, normalized={}):
        levels = {"model": "normalized", "learning_rate": 1e-9}  # The mean of a batch is that of its halves.
        alone = trainings.weights("pytorch-single", batch_size=64, **levels)
        shared = trainings.weights("pytorch-ddp", **ON_TWO, **levels)
    name = "module.1/running_mean"
    assert alone[name].any()
    assert_same({name: shared[name]}, {name: alone[name]}, 1e-5)


@pytest.mark.every_framework
def test_own_tables_decay_as_matrices(trainings: Trainings, tmp_path: Path) -> None:
    sizes = {"vocabulary": "{vocabulary}"}
    with user_models_in(tmp_path, tokens={"class": "make_embedding", "inputs": "tokens", "arguments": sizes}):
        levels = {"model": "tokens", "dataset": "synthetic-tokens-20-8-640", "batch_size": 64, "epochs": 1}
        levels |= {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 1.0}
        kernels, matrices = (
            trainings.weights("pytorch-single", decayed_weights=level, **levels)
            for level in ("kernels", "matrices")
        )
    table, kernel = "module.0/weight/table", "module.1/weight/kernel"
    assert np.linalg.norm(matrices[table]) < 0.95 * np.linalg.norm(kernels[table])
    assert np.linalg.norm(matrices[kernel]) == pytest.approx(np.linalg.norm(kernels[kernel]), rel=0.05)


@pytest.mark.every_framework
@pytest.mark.parametrize("precision", ["fp32", "amp", "bf16"])
def test_fsdp_trains_batch_normalization_like_ddp(
    trainings: Trainings, tmp_path: Path, precision: str
) -> None:
    with user_models_in(tmp_path, normalized={}):
        levels = {**ON_TWO, "model": "normalized", "precision": precision}
        ddp, fsdp = (trainings.train(name, **levels) for name in ("pytorch-ddp", "pytorch-fsdp"))
        actual, expected = weights(fsdp / "after.npz"), weights(ddp / "after.npz")
    assert "module.5/running_mean" in expected
    assert_same(actual, expected, 1e-5 if precision == "fp32" else 0.02)
    losses = [float(epochs(folder)[0]["validation_loss"]) for folder in (ddp, fsdp)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4 if precision == "fp32" else 0.02)


@pytest.mark.every_framework
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arguments": {"classes": 7, "channels": "{channels}"}}, ["[2, 7]", "[2, 10]"]),
        ({"class": "Pair"}, ["tuple", "[2, 10]"]),
        ({"blocks": ["Convd2d"]}, ["Convd2d", "blocks"]),
    ],
)
def test_module_that_is_not_as_declared_ends_the_run(
    trainings: Trainings, tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    with user_models_in(tmp_path, wrong=changes), pytest.raises(AssertionError) as failed:
        trainings.train("pytorch-single", model="wrong", batch_size=64)
    assert all(word in str(failed.value) for word in words)


@pytest.mark.every_framework
def test_study_of_user_model_is_measured(
    tmp_path: Path, real: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "lock"))
    real("pytorch")
    site = busy_site(reference=False)
    study = load_study("own-module")
    levels = {"framework": ["pytorch-ddp"], "nodes": [2], "epochs": [2]}
    study = replace(study, factors=study.factors | levels, replicates=Replicates(1, 1))
    (run,) = plan_design(study, site)
    record = supervise(plan_run(study, site, run), tmp_path / "results", "session")
    assert (record["status"], record["reason"]) == ("ok", None)
    row = recorded_row(record, run.levels)
    assert row["parameters"] == N_PARAMETERS and row["gradient_bytes"] == 4 * N_PARAMETERS
    source, operations = find_operations({**run.levels, **row}) or ("", None)
    assert source == COUNTED and operations and operations.model == SAMPLE_FLOPS
