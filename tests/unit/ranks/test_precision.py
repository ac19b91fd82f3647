"""Policies of precision: what is computed, summed and kept in bfloat16, and that training stays close to float32."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.graph import from_json
from models.mesh import mesh_from_spec
from models.messages import step_demands
from support.trainings import Trainings, assert_alike, epochs, weights

EVERY = pytest.mark.every_framework
TOKENS = {
    "model": "gpt-nano",
    "dataset": "synthetic-tokens-32-16-256",
    "learning_rate": 0.1,
    "batch_size": 64,
}
CLICKS = {**TOKENS, "model": "dlrm-nano", "dataset": "synthetic-clicks-20-256"}
N_STEPS = 4
BFLOAT16, FLOAT32 = "torch.bfloat16", "torch.float32"


def train(trainings: Trainings, framework: str, **levels: Any) -> Path:
    """Train on the ranks of the mesh, or on two ranks without a mesh."""
    mesh = levels.get("parallelism", "data2")
    ranks = int(np.prod([int(part[-1]) for part in mesh.split("-")]))
    return trainings.train(framework, nodes=ranks, batch_scope="global", **{**TOKENS, **levels})


def assert_close(folder: Path, reference: Path, tolerance: float = 0.01) -> None:
    """Assert that weights have moved, and much further than they are from those of the reference."""
    assert_alike(folder, reference, tolerance, 3 * tolerance)
    losses = [float(epochs(run)[0]["validation_loss"]) for run in (folder, reference)]
    assert losses[0] == pytest.approx(losses[1], abs=0.01)


def is_bfloat16(folder: Path) -> bool:
    """Return whether bfloat16 can represent all weights."""
    own = weights(folder / "after.npz").values()
    return not any((weight.view(np.uint32) & 0xFFFF).any() for weight in own)


@pytest.mark.parametrize(
    ("framework", "levels"),
    [
        ("pytorch-ddp", {}),
        *(
            pytest.param(*case, marks=EVERY)
            for case in (
                ("pytorch-fsdp", {"reduce_dtype": "fp32"}),
                ("pytorch-mesh", {"parallelism": "pipeline2-tensor2", "microbatches": 2}),
                ("pytorch-mesh", {"parallelism": "data2-sharded2", "clip_norm": 100.0}),
                ("deepspeed", {"parallelism": "sharded2", "sharding": "optimizer"}),
                ("deepspeed", {"parallelism": "sharded2", "sharding": "gradients"}),
                ("deepspeed", {"parallelism": "sharded2", "sharding": "parameters", "model": "llama-nano"}),
                ("jax", {"parallelism": "sharded2"}),
                ("jax", {"clip_norm": 100.0}),
            )
        ),
    ],
)
def test_bfloat16_weights_have_no_float32_copy(
    trainings: Trainings, framework: str, levels: dict[str, Any]
) -> None:
    folder = train(trainings, framework, **levels, precision="bf16")
    alone = {name: level for name, level in levels.items() if name in ("model", "clip_norm")}
    assert is_bfloat16(folder)
    assert_close(folder, trainings.train("pytorch-single", **{**TOKENS, **alone}))


@pytest.mark.parametrize(
    ("framework", "levels"),
    [
        ("pytorch-mesh", {"parallelism": "pipeline2", "microbatches": 2}),
        *(
            pytest.param(*case, marks=EVERY)
            for case in (
                ("pytorch-mesh", {"parallelism": "tensor2"}),
                ("pytorch-mesh", {"parallelism": "pipeline2-tensor2", "microbatches": 2}),
                ("pytorch-mesh", {"parallelism": "pipeline2-sharded2", "microbatches": 2}),
                ("pytorch-mesh", {"parallelism": "pipeline2", "microbatches": 4, "schedule": "zero-bubble"}),
                ("pytorch-ddp", {"reduce_dtype": "bf16"}),
                ("pytorch-ddp", {"reduce_dtype": "bf16", "trace": "phases"}),
                ("deepspeed", {"parallelism": "sharded2", "reduce_dtype": "bf16", "sharding": "optimizer"}),
                ("deepspeed", {"parallelism": "sharded2", "reduce_dtype": "fp32"}),
                ("jax", {"parallelism": "sharded2"}),
                ("jax", {"reduce_dtype": "bf16"}),
            )
        ),
    ],
)
def test_mixed_precision_keeps_weights_in_float32(
    trainings: Trainings, framework: str, levels: dict[str, Any]
) -> None:
    folder = train(trainings, framework, **levels, precision="amp")
    assert not is_bfloat16(folder)
    assert_close(folder, trainings.train("pytorch-single", **TOKENS))


@EVERY
@pytest.mark.parametrize(("framework", "precision"), [("pytorch-ddp", "bf16"), ("pytorch-fsdp", "amp")])
def test_counts_are_multiplied_in_bfloat16(trainings: Trainings, framework: str, precision: str) -> None:
    folder = train(trainings, framework, **CLICKS, precision=precision)
    assert_close(folder, trainings.train("pytorch-single", **CLICKS), 0.015)


@pytest.mark.parametrize(
    ("framework", "levels", "gathered", "reduced"),
    [
        ("pytorch-fsdp", {"precision": "amp", "reduce_dtype": "bf16"}, BFLOAT16, BFLOAT16),
        *(
            pytest.param(*case, marks=EVERY)
            for case in (
                ("pytorch-fsdp", {"precision": "amp"}, BFLOAT16, FLOAT32),
                ("pytorch-fsdp", {"precision": "bf16", "reduce_dtype": "fp32"}, BFLOAT16, FLOAT32),
                ("pytorch-fsdp", {"reduce_dtype": "bf16"}, FLOAT32, BFLOAT16),
                ("pytorch-mesh", {"precision": "amp", "parallelism": "sharded2"}, BFLOAT16, FLOAT32),
            )
        ),
    ],
)
def test_shards_travel_in_the_types_of_the_policy(
    trainings: Trainings, framework: str, levels: dict[str, Any], gathered: str, reduced: str
) -> None:
    folder = train(trainings, framework, **levels)
    job = json.loads((folder / "rank_input.json").read_text())
    mesh = mesh_from_spec({"mesh": {"sharded": 2}})
    (demand,) = step_demands(from_json(job["model"]), mesh, 32, job["spec"]["levels"])
    sizes = {message.kind: message.bytes for message in demand.messages}
    counts = json.loads((folder / "messages.0.json").read_text())
    assert {name.rpartition(" ")[2] for name in counts if name.startswith("all_gather")} == {gathered}
    (scattered,) = ((name, size) for name, size in counts.items() if name.startswith("reduce_scatter"))
    assert scattered[0].rpartition(" ")[2] == reduced
    assert scattered[1] == pytest.approx(N_STEPS * sizes["reduce_scatter"], rel=0.01), "but for padding"
    assert sum(counts.values()) - scattered[1] >= N_STEPS * sizes["all_gather"]
