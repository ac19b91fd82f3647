"""Trainers on a CUDA device that computes nothing: what they place where, and in which order."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.families.transformers import vit
from models.graph import Builder, Graph

IMAGES, TOKENS, TEXTS = "synthetic-32x32x3-10-64", "synthetic-tokens-100-32-64", "synthetic-text-100-32-4-64"


def small_vit() -> Graph:
    """Return ViT's operators in 2 blocks of 64 units."""
    builder = Builder("vit-b-16", (32, 32, 3), "vit")
    vit(builder, 10, layers=2, heads=2, units=64)
    return builder.graph()


@pytest.fixture(scope="module")
def trained(on_fake_cuda: Callable[..., Any], attempt: Callable[..., Path]) -> Callable[..., Any]:
    """A function that trains a rank on the device, each configuration once, and returns what was seen."""

    @functools.cache
    def train(framework: str, rank: int, ranks: int, items: tuple[tuple[str, Any], ...]) -> Any:
        levels = dict(items)
        graph = small_vit() if levels.get("model") == "vit-b-16" else None
        races = levels.pop("find_races", False)
        folder = attempt(framework, ranks, graph, **levels)
        local_rank = rank % min(ranks, 8)
        seen = SimpleNamespace(
            **on_fake_cuda("gpu.trained", "main", folder, rank, ranks, local_rank, 8, races)
        )
        seen.folder, seen.local_rank = folder, local_rank
        if rank == 0:
            seen.result = json.loads((folder / "result.json").read_text())
        return seen

    def trained(framework: str, rank: int = 0, ranks: int = 1, **levels: Any) -> Any:
        return train(framework, rank, ranks, tuple(sorted(levels.items())))

    return trained


def names(seen: Any, *kinds: str) -> list[str]:
    return [call[0] for call in seen.calls if call[0] in kinds]


MODELS = {
    "resnet-18": {"model": "resnet-18", "dataset": IMAGES, "batch_size": 32, "precision": "tf32"},
    "vit": {"model": "vit-b-16", "dataset": IMAGES, "batch_size": 32, "optimizer": "adam"},
    "gpt": {
        "model": "gpt-nano",
        "dataset": TOKENS,
        "batch_size": 32,
        "precision": "amp",
        "optimizer": "adam",
    },
    "lstm": {"model": "rnn-nano", "dataset": TOKENS, "batch_size": 32},
}


@pytest.mark.parametrize("model", MODELS)
def test_models_train_and_validate_on_the_gpu(model: str, trained: Callable[..., Any]) -> None:
    seen = trained("pytorch-single", **MODELS[model])
    assert seen.placed == ["cuda:0"]
    assert seen.calls[0] == ["set_device", 0]
    assert names(seen, "_step", "close_epoch", "validate") == ["_step", "_step", "close_epoch", "validate"]
    assert seen.tf32 == [MODELS[model].get("precision") == "tf32"] * 2
    (rank,) = seen.result["ranks"]
    assert (rank["device"], rank["device_memory_peak_bytes"]) == ("Fake GPU", seen.peak_bytes)
    assert rank["weights_finite"] and seen.peak_bytes > 3 * seen.weights_bytes
