"""A mesh that the planner finds trains as one rank does."""

import pytest

from models.named import graph
from strategies import find, meshes
from strategies.topology import FP32
from support.trainings import Trainings, assert_same

BATCH = 16


@pytest.mark.every_framework
def test_a_planned_mesh_trains_as_one_rank_does(trainings: Trainings) -> None:
    """Of two devices with too little memory for the whole model the planner shards it; two ranks train it."""
    model = graph("gpt-nano", (32,), 16, 16, "next")
    topology = find.choose_topology("h100", 2, None, [], FP32)
    answers, _ = meshes.plan_meshes(model, topology, BATCH, FP32, 4)
    found = {tuple(answer["levels"]["parallelism"].split("-")): answer["levels"] for answer in answers}
    levels = {**found["sharded2",], "nodes": 2, "devices_per_node": 1, "epochs": 1, "warmup_epochs": 0}
    del levels["framework"]
    alone = {name: level for name, level in levels.items() if name != "parallelism"} | {"nodes": 1}
    assert_same(trainings.train("pytorch-mesh", **levels), trainings.train("pytorch-single", **alone), 5e-4)
