"""Trainers on a CUDA device that computes nothing: what they place where, and in which order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

IMAGES, TEXT = "synthetic-32x32x3-10-64", "wikitext-2-small"


@pytest.mark.parametrize(
    ("framework", "ranks", "levels"),
    [
        ("pytorch-single", 1, {"model": "resnet-18", "dataset": IMAGES}),
        ("pytorch-ddp", 4, {"model": "gpt-nano", "dataset": TEXT, "batch_size": 160, "precision": "amp"}),
    ],
)
def test_device_is_idle_when_an_epoch_is_timed(
    framework: str,
    ranks: int,
    levels: dict[str, Any],
    on_fake_cuda: Callable[..., Any],
    attempt: Callable[..., Path],
) -> None:
    seen = on_fake_cuda("gpu.trained", "main", attempt(framework, ranks, **levels), 0, ranks)
    busy = [call[1] for call in seen["calls"] if call[0] in ("step", "close_epoch")]
    assert busy == [0, 0]
    assert seen["device"] == "Fake GPU"
