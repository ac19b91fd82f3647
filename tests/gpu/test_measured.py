"""What ranks measure besides training, on a CUDA device that computes nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RANKS, RANK = 8, 3
GREY = {"model": "lenet-5", "dataset": "synthetic-28x28x1-10-32", "batch_size": 4}


@pytest.fixture(scope="module")
def folder(attempt: Callable[..., Path]) -> Path:
    """The folder of a run of DDP on 8 GPUs."""
    return attempt("pytorch-ddp", RANKS, **GREY)


def test_collectives_end_with_an_idle_gpu(on_fake_cuda: Callable[..., Any], folder: Path) -> None:
    seen = on_fake_cuda("gpu.measured", "run_collectives", folder, RANK, RANKS)
    assert (seen.pop("transport"), seen.pop("device")) == ("nccl", "Fake GPU")
    assert {(row["busy"], row["result"]) for row in seen.values()} == {(0, f"cuda:{RANK}")}
    assert {name: row["calls"] for name, row in seen.items()} == {
        "all_reduce": ["allreduce_"],
        "all_gather": ["_allgather_base_"],
        "reduce_scatter": ["_reduce_scatter_base_"],
        "all_to_all": ["alltoall_base_"],
        "point_to_point": ["send", "recv_"],
    }
    assert [row["size"] for row in seen.values()] == [16, 16, 16 // RANKS, 16, 16]


def test_reference_benchmark_waits_for_the_gpu(
    on_fake_cuda: Callable[..., Any], attempt: Callable[..., Path]
) -> None:
    seen = on_fake_cuda("gpu.measured", "run_reference", attempt("pytorch-single", **GREY), 0, 1)
    assert seen["result"]["kind"] == "accelerator-1"
    clocks = [call[1] for call in seen["calls"] if call[0] == "clock"]
    assert clocks == [0, 0]
    assert [call[0] for call in seen["calls"]] == ["synchronize", "clock", "synchronize", "clock"]


def test_parts_of_layers_are_timed_on_the_gpu(
    on_fake_cuda: Callable[..., Any], attempt: Callable[..., Path]
) -> None:
    folder = attempt("pytorch-single", **GREY)
    content = json.loads((folder / "rank_input.json").read_text())
    content["spec"] |= {"batch": 4, "devices": 2, "budget_s": 1.0}
    (folder / "rank_input.json").write_text(json.dumps(content))
    seen = on_fake_cuda("gpu.measured", "time_parts", folder)
    finding, counting = seen["repetitions"][::2], seen["repetitions"][1::2]
    assert len(finding) == len(counting) > 50
    assert {after for _, after in finding} == {0} and {tuple(busy) for busy in counting} == {(0, 0)}
    assert seen["devices"] == [0]
    memory = seen["result"]["node_memory_bytes"]
    assert memory == 80 * 2**30 and seen["peak_bytes"] > 0
