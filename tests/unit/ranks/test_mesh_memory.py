"""Formulas for the memory of a mesh agree with trainers on tensors without content (ranks.memory_estimate)."""

from dataclasses import replace
from typing import Any

import pytest

from declared.site import load_site
from plan.memory import memory_estimate_input
from runs.memory_estimates import estimate
from strategies.mesh_costs import StepSimulator
from strategies.question import choose_topology
from strategies.topology import AMP, NUMBER_BYTES
from support.one_run import one_run

RANKS = 8
COMMON = {
    "framework": "pytorch-mesh",
    "model": "mpt-125m",
    "dataset": "synthetic-tokens-50368-2048-1024",
    "nodes": 1,
    "precision": AMP,
    "optimizer": "adam",
    "learning_rate": 0.0003,
    "batch_scope": "global",
    "sync_every": 1,
    "parallelism": "sharded8",
}


@pytest.mark.every_framework
@pytest.mark.parametrize("levels", [{"batch_size": 128, "checkpointing": "blocks"}, {"batch_size": 16}])
def test_memory_is_that_of_the_trainer(real: Any, levels: dict[str, Any]) -> None:
    site = replace(load_site("local"), ranks_per_node=RANKS, reference=False)
    run, spec = one_run(site, **COMMON, **levels)
    content = memory_estimate_input(run.framework, run.graph, spec)
    content["spec"]["device"] = "cuda"
    (entry,) = estimate(site, real("pytorch"), [content])
    simulator = StepSimulator(run.graph, choose_topology("h100", RANKS, None, [], AMP), NUMBER_BYTES[AMP])
    planned = simulator.simulate(run.geometry.mesh, run.geometry.local_batch, run.levels)
    assert planned.memory_bytes == pytest.approx(sum((entry.tensor_bytes or {}).values()), rel=0.1)
