"""A mesh that the planner suggests trains to the same weights as one rank."""

import numpy as np
import pytest

from models.named import graph
from strategies import meshes
from strategies.question import choose_topology
from strategies.topology import FP32
from support.trainings import Trainings, assert_same

BATCH = 16


@pytest.mark.every_framework
def test_a_planned_mesh_trains_as_one_rank_does(trainings: Trainings) -> None:
    model = graph("gpt-nano", (32,), 16, 16, "next")
    topology = choose_topology("h100", 2, None, [], FP32)
    answers, _ = meshes.plan_meshes(model, topology, BATCH, FP32, 4)
    (planned,) = [own["levels"] for own in answers if own["levels"].get("parallelism") == "sharded2"]
    levels = {**planned, "epochs": 1, "warmup_epochs": 0}
    framework = levels.pop("framework")
    alone = {name: level for name, level in levels.items() if name not in ("parallelism", "sharding")}
    folder = trainings.train(framework, **levels)
    reference = trainings.train("pytorch-single", **alone | {"devices_per_node": 1})
    with np.load(folder / "after.npz") as mesh, np.load(reference / "after.npz") as single:
        assert_same(dict(mesh), dict(single), 5e-4)
