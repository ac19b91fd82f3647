"""Run inside PyTorch's environment: random strategies on some ranks against one rank, in double precision.

python -m any_strategy MODEL RANKS FIRST COUNT, with the seeds FIRST to FIRST + COUNT - 1; every rank prints
how far its weights moved, and how far they and the losses of three steps were from those of the one.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing

from models.initial import initial_weights
from models.layout import lay_out
from models.named import graph
from models.soap import divide
from models.strategy import Part, random_strategy
from ranks.libraries.pytorch.model import build, load, tensors
from ranks.libraries.pytorch_parts import share
from ranks.libraries.pytorch_strategy import Runner, make_host_group

STEPS = 3
BATCH = 8
MODELS: dict[
    str, tuple[Any, ...]
] = {  # with convolutions and halos, concatenations, attention of two kinds, LSTMs
    "lenet-5": ("lenet-5", (28, 28, 1), 10),
    "small-cnn": ("small-cnn", (8, 8, 1), 10),
    "alexnet": ("alexnet", (64, 64, 3), 10),
    "inception-v3": ("inception-v3", (80, 80, 3), 10),
    "dlrm-nano": ("dlrm-nano", (39,), 2, 260, "click"),
    "unet-nano": ("unet-nano", (8, 12, 3), 3, None, "pixel"),
    "wide-mlp": ("wide-mlp", (8, 8, 1), 10),
    "gpt-nano": ("gpt-nano", (12,), 20, 20, "next"),
    "bert-nano": ("bert-nano", (12,), 20, 20, "next"),
    "llama-nano": ("llama-nano", (12,), 20, 20, "next"),
    "vit-b-16": ("vit-b-16", (32, 32, 3), 10),
    "rnn-nano": ("rnn-nano", (12,), 20, 20, "next"),
    "rnn-text-nano": ("rnn-text-nano", (12,), 3, 20, "class"),
    "rnn-translation": ("rnn-translation", (8,), 20, 20, "next"),
}
SMALL_STEPS = {"alexnet": 1e-3, "inception-v3": 1e-3, "vit-b-16": 1e-3}  # of which larger ones lead nowhere


class Trained:
    """A rank after three steps of a strategy."""

    def __init__(
        self, name: str, strategy: Mapping[str, Part], rank: int, host_group: dist.ProcessGroup | None = None
    ) -> None:
        model = graph(*MODELS[name])
        module = build(model)
        load(module, model, initial_weights(model, 7))
        before = {name: tensor.detach().double() for name, tensor in tensors(module, model).items()}
        self.layout = lay_out(model, BATCH, strategy)
        weights = tensors(module.double(), model)
        self.runner = Runner(model, self.layout, rank, torch.device("cpu"), weights, host_group=host_group)
        for task in self.runner.tasks:
            task.part.training = False  # Each part draws its own dropout mask, so strategies would differ.
        parameters = [
            parameter
            for parameters_of_name in self.runner.parameters().values()
            for parameter in parameters_of_name
        ]
        optimizer = torch.optim.SGD([*parameters, torch.zeros(0)], SMALL_STEPS.get(name, 0.05), momentum=0.9)
        drawn, losses = np.random.default_rng(3), []
        for _ in range(STEPS):
            loss, _ = self.runner.forward(*_batch(model, drawn, self.runner.sample_range))
            self.runner.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
        self.losses = torch.stack(losses)
        self.moved = self.distance(before)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return all weights, on a rank that has them all."""
        weights_by_name = {}
        for shard in self.runner.shards.values():
            weights_by_name |= {name: weight.detach() for name, weight in shard.trained().items()}
        return weights_by_name

    def distance(self, weights: Mapping[str, torch.Tensor]) -> float:
        """Return the largest difference between this rank's weights and those of `whole`."""
        pairs = [
            (weight.detach(), share(name, weights[name], shard.number, shard.n_shares))
            for shard in self.runner.shards.values()
            for name, weight in shard.trained().items()
        ]
        return max(((mine - other_share).abs().max().item() for mine, other_share in pairs), default=0.0)


def _batch(model: Any, drawn: Any, sample_range: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples that a rank reads, and all labels of the batch."""
    if model.vocabulary is None:
        height, width, channels = model.shape
        samples = torch.from_numpy(drawn.standard_normal((BATCH, channels, height, width)))
    else:
        samples = torch.from_numpy(drawn.integers(0, model.vocabulary, (BATCH, *model.shape)))
        if n_masked := model.n_masked:
            samples[:, -n_masked:] %= model.shape[0] - n_masked
    *places, classes = model.operators[-1].shape
    return samples[slice(*sample_range)], torch.from_numpy(drawn.integers(0, classes, (BATCH, *places)))


def work(rank: int, ranks: int, name: str, seeds: range, port: int) -> None:
    """Run one rank: train with random strategies and on one rank, and print the differences."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    space = divide(graph(*MODELS[name]), BATCH)
    host_group = make_host_group("nccl")  # a group of its own, as on accelerators
    alone = {layer.name: Part((1, 1, 1, 1), (rank,)) for layer in space.layers}
    single = Trained(name, alone, rank, host_group)
    report: dict[str, Any] = {"rank": rank, "moved": single.moved, "far": {}}
    for seed in seeds:
        trained = Trained(name, _fold_devices(space, ranks, seed), rank, host_group)
        dist.all_reduce(trained.losses)
        apart = (trained.losses - single.losses).abs().max().item()
        report["far"][seed] = max(apart, trained.distance(single.weights()))
    os.write(sys.stdout.fileno(), f"{json.dumps(report)}\n".encode())  # whole: ranks write to one pipe
    dist.destroy_process_group()


def _fold_devices(space: Any, ranks: int, seed: int) -> dict[str, Part]:
    """Return a random strategy in which a layer can have more parts than there are ranks."""
    wide = random_strategy(space, 2 * ranks, seed)
    return {
        name: Part(part.degrees, tuple(device % ranks for device in part.devices))
        for name, part in wide.items()
    }


if __name__ == "__main__":
    model, count_of_ranks, first, count = sys.argv[1], *map(int, sys.argv[2:])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    multiprocessing.spawn(
        work, (count_of_ranks, model, range(first, first + count), free), nprocs=count_of_ranks
    )
