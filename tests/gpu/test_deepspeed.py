"""DeepSpeed on a CUDA device that computes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LEVELS = {"model": "gpt-nano", "dataset": "synthetic-tokens-100-32-64", "batch_size": 8}
RANKS = 4
# In ZeRO stage 3, other ranks compare settings with rank 0, which does not exist here.
STAGES = {
    "data": (1, {}),
    **{level: (1, {"parallelism": "sharded", "sharding": level}) for level in ("optimizer", "gradients")},
}
STAGES["parameters"] = (0, {"parallelism": "sharded", "sharding": "parameters"})


@pytest.fixture(scope="module")
def with_deepspeed(callers: Callable[..., Any]) -> Any:
    return callers("deepspeed")


@pytest.mark.every_framework
@pytest.mark.parametrize("stage", STAGES)
def test_all_stages_train_on_the_gpu(
    stage: str, with_deepspeed: Callable[..., Any], attempt: Callable[..., Path]
) -> None:
    rank, levels = STAGES[stage]
    seen = with_deepspeed("gpu.trained", "main", attempt("deepspeed", RANKS, **LEVELS, **levels), rank, RANKS)
    assert (seen["transport"], seen["device"], seen["placed"]) == ("nccl", "Fake GPU", [f"cuda:{rank}"])
    busy = [call[:2] for call in seen["calls"] if call[0] in ("open_epoch", "step", "close_epoch")]
    assert busy == [["open_epoch", 0], ["step", 0], ["close_epoch", 0]]
    names = [call[1] for call in seen["calls"] if call[0] == "collective"]
    assert ("_reduce_scatter_base_" in names) == (stage == "parameters")
    assert 0 < seen["peak_bytes"] < 2**24, "of weights of 0.8 MB, without a bucket of 2 GB"
