"""On every mesh, an epoch leads to the same weights as on one rank with the whole batch."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from declared.factors import factor_table
from declared.mesh import REQUIRED_AXIS
from declared.models import model_graph
from models.graph import BYTES, from_json
from models.mesh import Mesh, mesh_from_spec
from models.messages import step_demands
from runs.phases import merge_phases
from support.programs import printed
from support.trainings import Trainings, assert_alike, assert_same_epoch, epochs

BATCH = 64
FIRST = [  # of each axis one, and of pairs of axes one
    ("data2", {}),
    ("tensor2", {}),
    ("pipeline2", {"microbatches": 2}),
    ("sharded2", {}),
    ("data2-tensor2", {}),
    # with a dropout between two divided layers, whose masks are those of one rank
    ("tensor2", {"model": "cnn-cifar10", "dataset": "synthetic-16x16x3-10-256"}),
]
FURTHER_MESHES = [
    ("pipeline2", {"microbatches": 2, "schedule": "gpipe"}),
    ("sharded2", {"sharding": "gradients", "sync_every": 4}),
    ("data2-sharded2", {"optimizer": "adam", "learning_rate": 1e-3}),
    ("tensor2", {"optimizer": "adam", "learning_rate": 1e-3, "weight_decay": 0.01}),
    ("pipeline2", {"microbatches": 4, "sync_every": 4}),
    ("pipeline2-data2", {"microbatches": 2}),
    ("pipeline2-tensor2", {"microbatches": 2}),
    ("pipeline2", {"microbatches": 4, "schedule": "interleaved-1f1b", "sync_every": 2}),
    ("pipeline2", {"microbatches": 4, "schedule": "zero-bubble", "sync_every": 2}),
    ("pipeline2", {"microbatches": 4, "schedule": "zero-bubble-v", "sync_every": 2}),
]
TOKENS = {
    "model": "gpt-nano",
    "dataset": "synthetic-tokens-32-16-256",
    "optimizer": "adam",
    "learning_rate": 1e-3,
}
LLAMA = {**TOKENS, "model": "llama-nano"}
BERT = {**TOKENS, "model": "bert-nano"}
EXPERTS = {**TOKENS, "model": "llama-moe-nano"}
TRANSFORMERS = [
    ("pipeline2-tensor2", {**TOKENS, "microbatches": 4, "schedule": "gpipe"}),
    ("pipeline2-sharded2", {**TOKENS, "microbatches": 2}),
    ("pipeline2-tensor2", {**LLAMA, "microbatches": 4}),
    ("pipeline2", {**LLAMA, "microbatches": 4, "schedule": "interleaved-1f1b"}),
    ("pipeline2-tensor2", {**TOKENS, "microbatches": 4, "schedule": "interleaved-1f1b"}),
    ("pipeline2-sharded2", {**LLAMA, "microbatches": 2, "schedule": "interleaved-1f1b"}),
    ("pipeline2", {**LLAMA, "microbatches": 4, "schedule": "zero-bubble"}),
    ("pipeline2-tensor2", {**TOKENS, "microbatches": 4, "schedule": "zero-bubble"}),
    ("pipeline2-tensor2", {**TOKENS, "microbatches": 4, "schedule": "zero-bubble-v"}),
    ("pipeline2-sharded2", {**TOKENS, "microbatches": 4, "schedule": "zero-bubble-v"}),
    ("pipeline2", {**EXPERTS, "microbatches": 4, "schedule": "zero-bubble-v"}),
    ("sharded2-tensor2", BERT),
    ("pipeline2", {**BERT, "microbatches": 2}),
    ("pipeline2", {**EXPERTS, "microbatches": 2}),
    ("pipeline2", {**EXPERTS, "microbatches": 4, "schedule": "zero-bubble"}),
    ("sharded2-tensor2", EXPERTS),
    ("tensor2", {**TOKENS, "tensor_sharding": "sequence", "sync_every": 2}),
    ("pipeline2-tensor2", {**TOKENS, "microbatches": 4, "tensor_sharding": "sequence"}),
    ("pipeline2-tensor2", {**LLAMA, "microbatches": 4, "tensor_sharding": "vocabulary"}),
    ("sharded2-tensor2", {**LLAMA, "tensor_sharding": "sequence"}),
    (
        "pipeline2-tensor2",
        {**LLAMA, "microbatches": 4, "schedule": "zero-bubble", "tensor_sharding": "sequence"},
    ),
    (
        "pipeline2-tensor2",
        {**LLAMA, "microbatches": 4, "schedule": "interleaved-1f1b", "tensor_sharding": "sequence"},
    ),
    ("experts2", EXPERTS),
    ("data2-experts2", {**EXPERTS, "sync_every": 4}),
]

OF_JAX: list[tuple[str, dict[str, Any]]] = [
    ("tensor2", {}),
    ("sharded2", {}),
    ("sharded2", {"sharding": "optimizer", "sync_every": 4}),
    ("sharded2", {"sharding": "gradients", "optimizer": "adam", "learning_rate": 1e-3}),
    ("data2-sharded2", {"sharding": "gradients"}),
    ("sharded2-tensor2", {"optimizer": "adam", "learning_rate": 1e-3}),
    ("sharded2-tensor2", LLAMA),
    ("sharded2-tensor2", EXPERTS),
    ("tensor2", {**TOKENS, "tensor_sharding": "vocabulary"}),
    ("sharded2-tensor2", {**LLAMA, "tensor_sharding": "vocabulary"}),
]
# With this seed no activation is so close to a relu's kink that a sum in another order would cross it.
FAR_FROM_KINKS = 7


def check(
    trainings: Trainings,
    framework: str,
    mesh: str,
    levels: dict[str, Any],
    tolerance: float = 1e-4,
    of_formula: float = 1.0,
) -> None:
    ranks = int(np.prod([int(part[-1]) for part in mesh.split("-")]))
    of_mesh = {"parallelism": mesh, "nodes": ranks, "batch_scope": "global", "batch_size": BATCH}
    alone = {name: level for name, level in levels.items() if name not in REQUIRED_AXIS}
    folder, reference = (
        trainings.train(framework, **of_mesh, **levels),
        trainings.train("pytorch-single", batch_size=BATCH, **alone),
    )
    assert_alike(folder, reference, tolerance, 1e-3)
    assert_same_epoch(folder, reference)
    (row,) = epochs(folder)
    job = json.loads((folder / "rank_input.json").read_text())
    rank_demands = step_demands(
        from_json(job["model"]),
        mesh_from_spec(job["spec"]),
        job["spec"]["local_batch"],
        job["spec"]["levels"],
    )
    sent = sum(sum(demand.sent.values()) for demand in rank_demands) * ranks / len(rank_demands)
    assert float(row["sent_bytes"]) > 0.98 * of_formula * sent * float(row["n_allreduces"]), (
        "others may use the loopback, too"
    )


@pytest.mark.parametrize(("mesh", "levels"), FIRST)
def test_a_mesh_trains_as_one_rank_does(trainings: Trainings, mesh: str, levels: dict[str, Any]) -> None:
    check(trainings, "pytorch-mesh", mesh, levels)


@pytest.mark.every_framework
@pytest.mark.parametrize(("mesh", "levels"), FURTHER_MESHES)
def test_axes_and_levels_in_other_combinations_train_alike(
    trainings: Trainings, mesh: str, levels: dict[str, Any]
) -> None:
    keeps = mesh.startswith("sharded") and levels.get("sync_every", 1) > 1 and "sharding" not in levels
    check(
        trainings, "pytorch-mesh", mesh, levels, of_formula=0.4 if keeps else 1.0
    )  # FSDP its last unit, here the only one


@pytest.mark.every_framework
@pytest.mark.parametrize(("mesh", "levels"), TRANSFORMERS)
def test_transformers_train_alike(trainings: Trainings, mesh: str, levels: dict[str, Any]) -> None:
    check(trainings, "pytorch-mesh", mesh, levels, 5e-4)


@pytest.mark.every_framework
@pytest.mark.parametrize(("mesh", "levels"), OF_JAX)
def test_jax_trains_alike(trainings: Trainings, mesh: str, levels: dict[str, Any]) -> None:
    gathers_once = (
        2 / 3 if mesh.startswith("sharded") and "sharding" not in levels else 1.0
    )  # FSDP gathers twice
    tolerance = 5e-4 if "model" in levels else 1e-4
    check(trainings, "jax", mesh, {"seed": FAR_FROM_KINKS, **levels}, tolerance, gathers_once)


@pytest.mark.every_framework
@pytest.mark.parametrize(
    ("schedule", "n_forward", "n_backward"),
    [("1f1b", 2, 2), ("interleaved-1f1b", 4, 4), ("zero-bubble", 2, 4)],
)
def test_traced_stage_waits_between_its_microbatches(
    trainings: Trainings, schedule: str, n_forward: int, n_backward: int
) -> None:
    levels = {"parallelism": "pipeline2", "nodes": 2, "batch_size": BATCH, "microbatches": 2}
    levels |= {"schedule": schedule}
    folder, plain = (
        trainings.train("pytorch-mesh", **levels, **traced) for traced in ({"trace": "phases"}, {})
    )
    assert_alike(folder, plain, 1e-6)
    merge_phases(folder)
    phases = pd.read_csv(folder / "phases.csv").query("step > 0")
    for _, own in phases.groupby(["rank", "step"]):
        parts = own["phase"].value_counts()
        assert (parts["forward"], parts["backward"]) == (n_forward, n_backward)
        assert parts["communication"] == parts["wait"] == n_forward + n_backward + 1


CLIPPED = {
    "model": "gpt-nano",
    "dataset": "synthetic-tokens-32-16-256",
    "learning_rate": 1.0,
    "clip_norm": 0.1,
}


@pytest.mark.parametrize(
    ("framework", "mesh", "levels"),
    [
        ("pytorch-mesh", "sharded2", {}),
        *(
            pytest.param(*case, marks=pytest.mark.every_framework)
            for case in (
                ("pytorch-mesh", "tensor2", {}),
                ("pytorch-mesh", "pipeline2-tensor2", {"microbatches": 2}),  # which share a table
                ("pytorch-mesh", "pipeline2-sharded2", {"microbatches": 2}),
                ("pytorch-mesh", "pipeline2-sharded2", {"microbatches": 4, "schedule": "zero-bubble-v"}),
                ("pytorch-mesh", "data2-sharded2", {}),
                ("pytorch-mesh", "tensor2", {"tensor_sharding": "sequence"}),
                ("pytorch-mesh", "pipeline2-tensor2", {"microbatches": 2, "tensor_sharding": "vocabulary"}),
                ("pytorch-mesh", "data2-experts2", {"model": "llama-moe-nano"}),
                ("jax", "sharded2-tensor2", {}),
                ("jax", "sharded2", {"sharding": "optimizer"}),
                ("deepspeed", "sharded2", {"sharding": "optimizer"}),
                ("deepspeed", "sharded2", {"sharding": "gradients"}),
                ("deepspeed", "sharded2", {"sharding": "parameters"}),
            )
        ),
    ],
)
def test_clipping_counts_each_weight_once(
    trainings: Trainings, framework: str, mesh: str, levels: dict[str, Any]
) -> None:
    check(trainings, framework, mesh, {**CLIPPED, **levels}, 1e-4, 0.4)


@pytest.mark.every_framework
@pytest.mark.training
@pytest.mark.parametrize("checkpointing", ["none", "blocks"])
def test_tensor_axis_sends_and_keeps_what_formulas_say(
    real: Callable[[str], Any], tmp_path: Path, checkpointing: str
) -> None:
    """Compare with the collectives of one of two ranks, including those of the loss of a divided vocabulary."""
    samples, n_ranks = 4, 2
    models = ("gpt-nano", "llama-nano")  # with a table that is tied, and with two uses of one normalization
    graphs = {name: model_graph(name, "synthetic-tokens-128-32") for name in models}
    file = tmp_path / "graphs.json"
    file.write_text(json.dumps({name: graph.to_json() for name, graph in graphs.items()}))
    recorder = Path(__file__).with_name("tensor_collectives.py")
    recorded = printed(real("pytorch"), recorder, file, str(n_ranks), str(samples), checkpointing)
    for name, measured in json.loads(recorded).items():
        levels = {level: factor.get("default") for level, factor in factor_table().items()}
        for sharding, rank in measured.items():
            own = {"sync_every": 1, "tensor_sharding": sharding, "checkpointing": checkpointing}
            (demand,) = step_demands(graphs[name], Mesh(tensor=n_ranks), samples, levels | own)
            sent: Counter[str] = Counter()
            for message in demand.messages:
                sent[message.kind] += message.bytes * message.count
            assert {
                kind.removesuffix("_into_tensor").removesuffix("_tensor"): size
                for kind, size in rank["sent"].items()
            } == sent
            assert rank["parameters"] == demand.parameters
            if checkpointing == "none":  # Otherwise the backward pass has those of a block again.
                assert rank["activations"] == pytest.approx(demand.activations, rel=0.25)
        table = 128 * 64 * BYTES
        assert measured["vocabulary"]["embedding_gradient"] == table / n_ranks
        activations = [rank["activations"] for rank in measured.values()]
        assert activations[0] > activations[1] > activations[2]


STAGES = """
import json
from types import SimpleNamespace
from unittest.mock import MagicMock
import torch
from torch import nn
from models.mesh import Mesh
from ranks.libraries import pytorch_mesh

for name in ("join", "init_device_mesh", "make_output_contiguous", "Pipeline", "shared_tables"):  # what needs other ranks
    setattr(pytorch_mesh, name, MagicMock())

class Trainer(pytorch_mesh.MeshTrainer):
    def __init__(self, rank):
        mesh = Mesh(data=2, pipeline=2)
        self.context = SimpleNamespace(
            rank=rank, replica=mesh.replica(rank), mesh=mesh, graph=None, spec={"seed": 7},
            levels={"microbatches": 4, "sharding": "none", "schedule": "1f1b", "precision": "fp32"},
            phases=SimpleNamespace(is_traced=False),
        )
        self.module, self.rank_stage_graphs = nn.Sequential(nn.BatchNorm2d(3, momentum=0.1)), [None]
        self.loss = None
        self.stage_graphs = [None, None]
        self.graph, self.torch_device = None, torch.device("cpu")

    def shard(self, mesh): pass
    def load_shards(self): pass
    def make_shard_optimizer(self): pass

means, masks = set(), set()
for rank in range(4):
    trainer = Trainer(rank)
    trainer.distribute()
    masks.add(tuple(nn.functional.dropout(torch.ones(64)).tolist()))
    for _ in range(5 * 4):
        trainer.module(torch.full((4, 3, 2, 2), 2.0))
    means.add(trainer.module[0].running_mean[0].item())
print(json.dumps([list(means), len(masks)]))
"""


@pytest.mark.training
def test_stages_move_statistics_as_one_batch_and_draw_own_masks(real: Callable[[str], Any]) -> None:
    """Running statistics after 5 batches of 4 microbatches; dropout on 2 stages of 2 replicas."""
    assert json.loads(printed(real("pytorch"), "-c", STAGES)) == [[pytest.approx(2 * (1 - 0.9**5))], 4]
