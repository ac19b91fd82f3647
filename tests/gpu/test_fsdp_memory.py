"""Memory of FSDP on a CUDA device that computes nothing, in bytes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from declared.models import model_graph
from models.graph import BYTES

VOCABULARY, LENGTH, BATCH, VALIDATED = 16, 16, 8, 2  # of a rank
UNITS, LAYERS = 64, 4  # of gpt-nano
LABELLED_BATCH = 2 * 8 * LENGTH * BATCH  # tokens and labels are int64
LOGITS = BYTES * VOCABULARY * LENGTH * BATCH


@pytest.mark.parametrize(("ranks", "precision"), [(4, "fp32"), (8, "amp")])
def test_peaks_are_those_of_a_hand_written_script(
    ranks: int, precision: str, on_fake_cuda: Callable[..., Any], attempt: Callable[..., Path]
) -> None:
    """They differ by batches that are sent ahead, and by logits, from which accuracy is counted."""
    folder = attempt(
        "pytorch-fsdp",
        ranks,
        model="gpt-nano",
        dataset=f"synthetic-tokens-{VOCABULARY}-{LENGTH}-{2 * BATCH * ranks}",
        batch_size=BATCH,
        precision=precision,
        optimizer="adam",
        epochs=2,
        warmup_epochs=1,
    )
    peaks = on_fake_cuda("gpu.sharded_peaks", "main", folder, 1, ranks)
    model = {"vocabulary": VOCABULARY, "length": LENGTH, "units": UNITS, "layers": LAYERS}
    expected = on_fake_cuda("gpu.tutorial_fsdp", "main", 1, ranks, BATCH, VALIDATED, precision, model)
    assert peaks["construction"] == expected["construction"]
    assert 0 <= peaks["validation"] - expected["validation"] <= 3 * LABELLED_BATCH
    assert 0 <= peaks["training"] - expected["training"] <= 3 * LABELLED_BATCH + LOGITS


def test_peak_of_an_epoch_excludes_validation(
    on_fake_cuda: Callable[..., Any], attempt: Callable[..., Path]
) -> None:
    folder = attempt(
        "pytorch-single", model="gpt-nano", dataset=f"synthetic-tokens-{VOCABULARY}-{LENGTH}-16", epochs=2
    )
    epoch = ["reset_peak_memory_stats", "open_epoch", "close_epoch", "max_memory_allocated", "validate"]
    assert on_fake_cuda("gpu.sharded_peaks", "order", folder) == 2 * epoch


def test_model_that_is_larger_than_a_device_trains(
    on_fake_cuda: Callable[..., Any], attempt: Callable[..., Path]
) -> None:
    model, dataset, ranks = "vit-b-16", "synthetic-8x8x3-10-16", 8
    folder = attempt("pytorch-fsdp", ranks, model=model, dataset=dataset, batch_size=1)
    weights_bytes = model_graph(model, dataset).gradient_bytes
    assert on_fake_cuda("gpu.sharded_peaks", "train_within", folder, ranks - 1, ranks, weights_bytes) == 2
