"""Memory of ranks on a CUDA device that computes nothing, in bytes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from declared.models import model_graph


def test_peak_of_an_epoch_excludes_validation(
    on_fake_cuda: Callable[..., Any], attempt: Callable[..., Path]
) -> None:
    folder = attempt("pytorch-single", model="gpt-nano", dataset="synthetic-tokens-16-16-16", epochs=2)
    epoch = ["reset_peak_memory_stats", "open_epoch", "close_epoch", "max_memory_allocated", "validate"]
    assert on_fake_cuda("gpu.watched_memory", "order", folder) == 2 * epoch


def test_model_that_is_larger_than_a_device_trains(
    on_fake_cuda: Callable[..., Any], attempt: Callable[..., Path]
) -> None:
    model, dataset, ranks = "vit-b-16", "synthetic-8x8x3-10-16", 8
    folder = attempt("pytorch-fsdp", ranks, model=model, dataset=dataset, batch_size=1)
    weights_bytes = model_graph(model, dataset).gradient_bytes
    assert on_fake_cuda("gpu.watched_memory", "train_within", folder, ranks - 1, ranks, weights_bytes) == 2
