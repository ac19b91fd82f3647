"""Trainers on a CUDA device that computes nothing: where they put tensors, and in which order they compute."""

import collections
import csv
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.families.transformers import gpt, llama, vit
from models.graph import Builder, Graph, Rotary

IMAGES, GREY, TOKENS = "synthetic-32x32x3-10-64", "synthetic-28x28x1-10-32", "synthetic-tokens-100-32-64"


def shortened(model: str, blocks: int) -> Graph | None:
    """Return a transformer with this number of blocks of 64 units, None for other models."""
    if model == "vit-b-16":
        images = Builder(model, (32, 32, 3), "vit")
        vit(images, 10, layers=blocks, heads=2, units=64)
        return images.graph()
    if model == "gpt-nano":
        tokens = Builder(model, (32,), "gpt-2", 100)
        gpt(tokens, 100, layers=blocks, heads=4, units=64)
        return tokens.graph()
    if model in ("llama-nano", "llama-moe-nano"):
        tokens = Builder(model, (32,), "gpt-2", 100)
        sizes: dict[str, Any] = {"heads": 4, "key_heads": 2, "units": 64, "hidden": 128}
        sizes["experts"] = (4, 2) if model == "llama-moe-nano" else None
        llama(tokens, 100, layers=blocks, rotary=Rotary(10_000.0), **sizes)
        return tokens.graph()
    return None


@pytest.fixture(scope="module")
def trained(on_fake_cuda: Callable[..., Any], attempt: Callable[..., Path]) -> Callable[..., Any]:
    """A function that trains a rank on the device, each configuration once, and returns what was seen."""

    @functools.cache
    def train(framework: str, rank: int, ranks: int, items: tuple[tuple[str, Any], ...]) -> Any:
        levels = dict(items)
        graph = shortened(levels["model"], blocks=2 if "pipeline" in levels.get("parallelism", "") else 1)
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
    "llama": {"model": "llama-nano", "dataset": TOKENS, "batch_size": 32, "precision": "amp"},
    "bert": {"model": "bert-nano", "dataset": TOKENS, "batch_size": 32, "precision": "amp"},
    "dlrm": {
        "model": "dlrm-nano",
        "dataset": "synthetic-clicks-100-64",
        "batch_size": 32,
        "precision": "amp",
    },
    "unet": {
        "model": "unet-nano",
        "dataset": "synthetic-regions-16x16x3-3-64",
        "batch_size": 32,
        "memory_format": "channels-last",
        "precision": "tf32",
    },
    "experts": {"model": "llama-moe-nano", "dataset": TOKENS, "batch_size": 32},
    "lstm": {"model": "rnn-nano", "dataset": TOKENS, "batch_size": 32},
}


@pytest.mark.parametrize("model", MODELS)
def test_models_train_and_validate_on_the_gpu(model: str, trained: Callable[..., Any]) -> None:
    seen = trained("pytorch-single", **MODELS[model])
    assert seen.placed == ["cuda:0"]
    assert seen.calls[0] == ["set_device", 0]
    assert names(seen, "_optimizer_step", "close_epoch", "validate") == [
        "_optimizer_step",
        "_optimizer_step",
        "close_epoch",
        "validate",
    ]
    dtype = "bfloat16" if MODELS[model].get("precision") == "amp" else "float32"
    assert seen.product_dtypes == [f"torch.{dtype}"]
    assert seen.tf32 == [MODELS[model].get("precision") == "tf32"] * 2
    (measured,) = seen.result["ranks"]
    assert measured["device"] == "Fake GPU" and measured["weights_finite"]
    # Weights, gradients and momentum live at once, at least.
    assert 3 * seen.weights_bytes < measured["device_memory_peak_bytes"] <= seen.peak_bytes


BY_POSITION = {"tensor_sharding": "sequence"}
THREE_AXES = "data2-sharded2-tensor2"
GPT = {"model": "gpt-nano", "dataset": TOKENS, "batch_size": 4}
STRATEGY = {
    "model": "lenet-5",
    "dataset": GREY,
    "batch_size": 16,
    "batch_scope": "global",
    "parallelism": "random1",
}
TRAINERS = {
    "single": ("pytorch-single", 0, 1, {**GPT, "batch_size": 8, "find_races": True}),
    "ddp": ("pytorch-ddp", 0, 4, {**GPT, "sync_every": 2, "trace": "phases"}),
    "fsdp": ("pytorch-fsdp", 3, 8, {**GPT, "find_races": True, "precision": "amp"}),
    "fsdp, llama": ("pytorch-fsdp", 0, 2, {**GPT, "model": "llama-nano", "precision": "amp"}),
    "tensor": ("pytorch-mesh", 1, 2, {**GPT, "batch_size": 32, "parallelism": "tensor"}),
    "three axes": (
        "pytorch-mesh",
        5,
        8,
        {**GPT, "batch_size": 8, "parallelism": THREE_AXES, "trace": "phases"},
    ),
    "pipeline": (
        "pytorch-mesh",
        1,
        4,
        {**GPT, "batch_size": 32, "parallelism": "pipeline", "microbatches": 4},
    ),
    "two nodes": ("pytorch-mesh", 11, 16, {**GPT, "parallelism": "data4-sharded2-tensor2"} | BY_POSITION),
    "strategy": ("pytorch-strategy", 0, 2, STRATEGY),
    "strategy, rank 1": ("pytorch-strategy", 1, 2, STRATEGY),
    "hybrid": ("pytorch-hybrid", 0, 2, {**GPT, "batch_size": 16, "device": "hybrid", "shares": "0.7/0.3"}),
}


@pytest.fixture
def seen(request: pytest.FixtureRequest, trained: Callable[..., Any]) -> Any:
    """The calls of one of TRAINERS."""
    framework, rank, ranks, levels = TRAINERS[request.param]
    return trained(framework, rank, ranks, **levels)


def trainers(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seen", names, indirect=True)


@trainers(*TRAINERS)
def test_clocks_are_read_while_the_gpu_is_idle(seen: Any) -> None:
    busy = {(name, n) for name, n, *_ in seen.calls if name in ("open_epoch", "step", "close_epoch")}
    assert busy == {("open_epoch", 0), ("step", 0), ("close_epoch", 0)}
    # Reading the loss waits for its own stream only.
    assert "_optimizer_step synchronize close_epoch" in " ".join(
        names(seen, "_optimizer_step", "synchronize", "close_epoch")
    )
    assert any(call[0] == "_optimizer_step" and call[1] > 0 for call in seen.calls)


@trainers(*(name for name in TRAINERS if name not in ("single", "hybrid")))
def test_process_group_gets_the_device_of_the_rank(seen: Any) -> None:
    device = seen.local_rank
    assert names(seen, "set_device", "init_process_group")[:2] == ["set_device", "init_process_group"]
    assert seen.calls[0] == ["set_device", device]
    assert ["init_process_group", "nccl", f"cuda:{device}"] in seen.calls
    assert seen.placed == [f"cuda:{device}"]
    assert {call[1] for call in seen.calls if call[0] in ("set_device", "synchronize")} == {device}


@trainers("single", "fsdp")
def test_no_stream_reads_what_another_one_writes(seen: Any) -> None:
    assert seen.races == []
    epochs = itertools.dropwhile(lambda call: call[0] != "open_epoch", seen.calls)  # without initial weights
    copies = [call for call in epochs if call[0] == "to_device"]
    assert copies and {(is_async, stream > 0) for _, _, is_async, stream in copies} == {(True, True)}
    assert len([call for call in seen.calls if call[0] == "pin"]) <= 2 * 3  # buffers of three slots


@trainers("ddp")
def test_ddp_reduces_gradients_of_the_last_batch_of_a_group(seen: Any) -> None:
    order = [
        call[1] if call[0] == "collective" else call[0]
        for call in seen.calls
        if call[0] == "_optimizer_step" or call[1] == "allreduce_"
    ]
    assert order == ["allreduce_", "_optimizer_step"] * 2


def read_phases(seen: Any) -> list[dict[str, Any]]:
    """Return the intervals of a traced rank."""
    (file,) = seen.folder.glob("phases-*.csv")
    rows = csv.DictReader(file.read_text().splitlines())
    return [
        {"epoch": int(row["epoch"]), "step": int(row["step"]), "phase": row["phase"]}
        | {name: float(row[name]) for name in ("start", "end")}
        for row in rows
    ]


@trainers("ddp")
def test_phases_have_the_times_of_cuda_events(seen: Any) -> None:
    rows = read_phases(seen)
    steps = [row for row in rows if row["step"] > 0]
    assert {row["step"] for row in steps} == {1, 2, 3, 4}
    assert {row["phase"] for row in steps} == {
        "data",
        "forward",
        "backward",
        "wait",
        "metrics",
        "optimizer",
        "communication",
    }
    own = [row for row in rows if row["phase"] != "communication"]
    assert all(row["start"] <= row["end"] for row in rows)
    assert all(
        before["end"] == pytest.approx(after["start"], abs=1e-3)
        for before, after in itertools.pairwise(own)
        if before["step"] and after["step"]
    )
    for step in (2, 4):  # DDP reduces gradients of the last batch of a group alone.
        (sent,) = [row for row in steps if row["phase"] == "communication" and row["step"] == step]
        (backward,) = [row for row in steps if row["phase"] == "backward" and row["step"] == step]
        (wait,) = [row for row in steps if row["phase"] == "wait" and row["step"] == step]
        assert backward["start"] < sent["start"] <= sent["end"] <= wait["end"] + 1e-3
    with open(seen.folder / "epochs.csv") as table:
        (epoch,) = csv.DictReader(table)
    span = max(row["end"] for row in steps) - min(row["start"] for row in steps)
    assert span == pytest.approx(float(epoch["epoch_time_s"]), rel=0.2, abs=0.05)
    recorded = [call for call in seen.calls if call[0] == "record" and call[2] == 0]
    assert len(recorded) > len(own)


@trainers("three axes")
def test_fsdp_marks_its_collectives_and_the_waits_for_them(seen: Any) -> None:
    rows = read_phases(seen)
    order = [call[0] for call in seen.calls]
    opened, closed = order.index("open_epoch"), order.index("close_epoch")
    called = collections.Counter((name, *details[:1]) for name, *details in seen.calls[opened:closed])
    n_collectives = sum(n for (name, *_), n in called.items() if name == "collective")
    phases = collections.Counter(row["phase"] for row in rows if row["step"])
    # Parameters are gathered; gradients are reduce-scattered along one axis, and all-reduced along another one.
    assert phases["communication"] == n_collectives >= 2 * 3
    assert {row["step"] for row in rows if row["phase"] == "communication"} >= {1, 2}
    # The rank waits when its own stream does, for FSDP or, in phase data, for a batch.
    assert phases["wait"] == called["wait_event", 0] - phases["data"]
    waits, ends = (
        [row for row in rows if row["phase"] == "wait"],
        [row["end"] for row in rows if row["phase"] == "communication"],
    )
    assert not any(wait["start"] <= end <= wait["end"] for wait in waits for end in ends)


@trainers("fsdp")
def test_fsdp_gathers_bfloat16_and_reduces_float32(seen: Any) -> None:
    order = [call[0] for call in seen.calls]
    epoch = seen.calls[order.index("open_epoch") : order.index("close_epoch")]
    collectives = collections.Counter((call[1], call[3]) for call in epoch if call[0] == "collective")
    n_steps = sum(call[0] == "_optimizer_step" for call in epoch)
    assert collectives == {
        ("_allgather_base_", "torch.bfloat16"): 3 * n_steps,  # of the block again in the backward pass
        ("_reduce_scatter_base_", "torch.float32"): 2 * n_steps,
    }
    assert (seen.product_dtypes, seen.loss_dtypes) == (["torch.bfloat16"], ["torch.float32"])
