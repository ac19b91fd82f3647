"""Every framework really trains: the same model, the same samples, the same steps, whoever takes them."""

import csv
import functools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets.prepare import prepare
from plan.design import design
from plan.identity import spec
from plan.site import load_site
from plan.study import load_framework, load_study, model_graph
from runs import launch
from runs.supervise import job

SITE = replace(load_site("local"), cores=2, time_limit_s=120.0)
FRAMEWORKS = (
    "pytorch-single",
    "pytorch-ddp",
    "horovod-pytorch",
    "tensorflow-single",
    "tensorflow-multiworker",
    "horovod-tensorflow",
)
DISTRIBUTED = tuple(name for name in FRAMEWORKS if not name.endswith("-single"))


class Trainings:
    """Trains on demand, each configuration once."""

    def __init__(self, folder: Path, environments: Any) -> None:
        self.folder, self.environments = folder, environments
        prepare("digits", folder / "digits")
        self.weights = functools.cache(self._weights)

    def _weights(
        self, framework: str, batch_size: int, sync_every: int, nodes: int = 1, loop: str = "custom"
    ) -> dict[str, np.ndarray]:
        """The weights after one epoch, in the canonical layout."""
        folder = self.folder / f"{framework}.b{batch_size}.s{sync_every}.n{nodes}.{loop}"
        folder.mkdir()
        described = load_framework(framework)
        planned, model = run_spec(framework, batch_size, sync_every, nodes, loop), model_graph("small-cnn", "digits")
        ranks = launch.launcher(SITE, planned)
        told = job(planned, described, model.to_json(), self.folder / "digits", ranks.hosts)
        (folder / "spec.json").write_text(json.dumps(told))
        environment = self.environments(described.environment)
        trained = {
            **environment["variables"],
            "PYTHONPATH": f"{launch.SCRIPTS}{os.pathsep}{Path(__file__).parent}",
            "TF_ENABLE_ONEDNN_OPTS": "0",  # whose rounding may push a relu over its kink, and all that follows with it
        }
        outcome = launch.run(ranks, {**environment, "variables": trained}, folder, planned, SITE, program="trained")
        assert outcome.status == "ok", f"{outcome.reason}: {(folder / 'log.txt').read_text()[-3000:]}"
        with np.load(folder / "after.npz") as saved:
            return {name: saved[name] for name in saved.files}


def run_spec(framework: str, batch_size: int, sync_every: int, nodes: int, loop: str) -> dict[str, Any]:
    study = load_study("quickstart")
    levels = {
        "framework": framework, "batch_size": batch_size, "sync_every": sync_every, "nodes": nodes, "training_loop": loop, "epochs": 1, "warmup_epochs": 0,
    }  # fmt: skip
    one_cell = replace(
        study,
        factors=study.factors | {name: [level] for name, level in levels.items()},
        exclude=(),
        replicates=1,
        step_times=True,
    )
    (run,) = design(one_cell, SITE)
    return spec(one_cell, SITE, run)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory, real: Any) -> Trainings:
    return Trainings(tmp_path_factory.mktemp("trainings"), real)


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], tolerance: float) -> None:
    assert list(ours) == list(theirs)
    for name, weight in ours.items():
        np.testing.assert_allclose(weight, theirs[name], atol=tolerance, rtol=0, err_msg=name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_four_accumulated_batches_of_16_train_like_one_of_64(trainings: Trainings, framework: str) -> None:
    accumulated = trainings.weights(framework, 16, 4)
    assert_same(accumulated, trainings.weights(framework, 64, 1), 1e-5)
    with np.load(trainings.folder / f"{framework}.b16.s4.n1.custom" / "before.npz") as saved:
        moved = max(float(np.abs(saved[name] - weight).max()) for name, weight in accumulated.items())
    assert moved > 0.01, "it has trained at all"


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "pytorch-single"])
def test_every_framework_flushes_the_last_group_and_averages_over_ranks_alike(
    trainings: Trainings, framework: str
) -> None:
    reference = trainings.weights("pytorch-single", 64, 5)  # 24 batches: groups of 5, 5, 5, 5 and 4
    nodes = 2 if framework in DISTRIBUTED else 1
    assert_same(trainings.weights(framework, 64 // nodes, 5, nodes), reference, 1e-4)


@pytest.mark.parametrize("framework", ["tensorflow-single", "tensorflow-multiworker", "horovod-tensorflow"])
def test_fit_trains_like_the_custom_loop(trainings: Trainings, framework: str) -> None:
    nodes = 2 if framework in DISTRIBUTED else 1
    assert_same(trainings.weights(framework, 64 // nodes, 1, nodes, "fit"), trainings.weights(framework, 64, 1), 1e-4)


def test_each_epoch_leaves_a_line_and_each_run_a_result(trainings: Trainings) -> None:
    trainings.weights("pytorch-ddp", 32, 5, 2)
    folder = trainings.folder / "pytorch-ddp.b32.s5.n2.custom"
    (epoch,) = csv.DictReader((folder / "epochs.csv").open())
    assert (epoch["steps"], epoch["exchanges"], epoch["samples_trained"]) == ("24", "5", "1536")
    assert 0 < float(epoch["epoch_time_s"]) <= float(epoch["closed_time_s"])
    steps = list(csv.DictReader((folder / "steps.csv").open()))
    assert [(row["rank"], row["step"]) for row in steps] == [
        (str(rank), str(step)) for rank in (0, 1) for step in range(1, 25)
    ]
    assert sum(float(row["step_time_s"]) for row in steps) / 2 == pytest.approx(float(epoch["epoch_time_s"]), rel=0.1)
    assert float(epoch["sent_bytes"]) > 5 * 4 * 544_522, "each exchange sends all gradients through the interface"
    result = json.loads((folder / "result.json").read_text())
    assert result["transport"] == "gloo" and len(result["ranks"]) == 2
    assert all(rank["memory_peak_bytes"] > 5e7 and 0 < rank["import_s"] < 120 for rank in result["ranks"])
