"""Estimates of memory with tensors without content are close to what PyTorch allocates for real tensors."""

from dataclasses import replace
from typing import Any

import pytest

from declared.site import Site, load_site
from memory_estimates import measure
from plan.memory import memory_estimate_input
from runs.memory_estimates import estimate
from support.one_run import one_run

MAX_ERROR = 0.05
COMMON = {"nodes": 1, "sync_every": 1, "learning_rate": 0.01, "epochs": 2}
TOKENS = {"model": "gpt-nano", "dataset": "synthetic-tokens-32-16-256", "batch_size": 32, "optimizer": "adam"}
DDP = {**COMMON, **TOKENS, "framework": "pytorch-ddp", "nodes": 2}
MESH = {**COMMON, **TOKENS, "framework": "pytorch-mesh", "nodes": 4}


@pytest.fixture
def site() -> Site:
    return replace(load_site("local"), nodes=4, reference=False)


def test_estimates_are_near_what_is_allocated(real: Any, site: Site) -> None:
    real("pytorch")
    small_cnn = {"model": "small-cnn", "dataset": "digits", "batch_size": 64}
    for row in measure(site, ({**small_cnn, "framework": "pytorch-single"}, DDP)):
        sizes = row.estimate.tensor_bytes or {}
        estimated, is_alone = sum(sizes.values()), row.levels["framework"] == "pytorch-single"
        buckets = 0 if is_alone else sizes["parameters"]  # Gloo may hold those that it has just sent.
        assert is_alone or sizes["gradients"] == sizes["parameters"], "buckets live all the time"
        assert (1 - MAX_ERROR) * row.allocated_bytes - buckets <= estimated, row.levels
        assert estimated <= (1 + MAX_ERROR) * row.allocated_bytes, row.levels


@pytest.mark.every_framework
def test_axes_divide_what_they_should(real: Any, site: Site) -> None:
    """Each of 4 ranks holds a quarter of everything if sharded, and its layers in a pipeline."""
    strategies = ("data", "sharded", "tensor", "pipeline")
    levels = [
        MESH | {"parallelism": name, "microbatches": 4 if name == "pipeline" else 1} for name in strategies
    ]
    sequence = {"tensor_sharding": "sequence"}
    levels += [MESH | sequence | {"parallelism": "tensor"}]
    levels += [MESH | sequence | {"parallelism": "pipeline2-tensor2", "microbatches": 4}]
    levels += [DDP, DDP | {"sync_every": 4}]
    planned = [one_run(site, **own) for own in levels]
    inputs = [memory_estimate_input(run.framework, run.graph, spec) for run, spec in planned]
    entries = estimate(site, real("pytorch"), inputs)
    *divided, replicated, accumulated = (entry.tensor_bytes for entry in entries)
    data, sharded, tensor, pipeline, by_position, by_stage = divided
    assert data and sharded and tensor and pipeline and by_position and by_stage
    assert replicated and accumulated
    assert data["parameters"] == pytest.approx(4 * sharded["parameters"], rel=0.02)
    assert data["optimizer"] == pytest.approx(2 * data["parameters"], rel=0.01), "two moments of Adam"
    assert sharded["optimizer"] == pytest.approx(2 * sharded["parameters"], rel=0.01)
    assert tensor["parameters"] < 0.5 * data["parameters"] > pipeline["parameters"]
    assert by_position["parameters"] < tensor["parameters"]
    assert by_position["activations"] < 0.8 * tensor["activations"]
    assert by_stage["activations"] < by_position["activations"]
    assert sharded["framework"] > 0 < pipeline["framework"], "gathered parameters, received outputs"
    added = sum(accumulated.values()) - sum(replicated.values())
    assert added == pytest.approx(replicated["parameters"], rel=0.1), (
        "accumulated gradients lie beside buckets"
    )


@pytest.mark.every_framework
def test_checkpointing_and_bfloat16_need_less(real: Any, site: Site) -> None:
    fsdp = {**COMMON, **TOKENS, "framework": "pytorch-fsdp", "nodes": 2, "batch_size": 64}
    levels: list[dict[str, Any]] = [{"checkpointing": level} for level in ("none", "selective", "blocks")]
    levels += [{"precision": "amp"}, {"precision": "bf16"}]
    planned = [one_run(site, **fsdp, **own) for own in levels]
    pipeline = {"parallelism": "pipeline4", "microbatches": 4}
    planned += [
        one_run(site, **MESH, **pipeline, precision=level, checkpointing="blocks")
        for level in ("fp32", "amp")
    ]
    inputs = [memory_estimate_input(run.framework, run.graph, spec) for run, spec in planned]
    sizes = [entry.tensor_bytes or {} for entry in estimate(site, real("pytorch"), inputs)]
    stored, selective, blocks, amp, bf16, stage, mixed_stage = sizes
    assert blocks["activations"] < 0.9 * selective["activations"] < 0.81 * stored["activations"]
    assert amp["activations"] < 0.75 * stored["activations"]
    for category in ("parameters", "optimizer"):
        assert stored[category] == selective[category] == blocks[category] == amp[category]
        assert bf16[category] == pytest.approx(stored[category] / 2, rel=0.02)
    assert mixed_stage["activations"] < stage["activations"]
