"""Train a small network by tensor and data parallelism, and print what Megatron-LM prints.

    torchrun --nproc-per-node 2 megatron-example.py --tensor-model-parallel-size 2 --global-batch-size 8

An example of a command of your own (docs/how-to/own-command.md): it knows nothing of Ringside.
"""

import argparse
import os
import time
from datetime import datetime
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class _CopyToGroup(torch.autograd.Function):
    """Identity whose gradient is the sum over a tensor-parallel group."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _SumOverGroup(torch.autograd.Function):
    """Sum over a tensor-parallel group, whose gradient is the identity."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Perceptron(nn.Module):
    """Two layers behind a layer norm, whose hidden units are divided among the ranks of a group."""

    def __init__(self, width: int, size: int, group: Any) -> None:
        super().__init__()
        self.norm, self.group = nn.LayerNorm(width), group
        self.columns, self.rows = nn.Linear(width, 4 * width // size), nn.Linear(4 * width // size, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return outputs of the inputs' shape."""
        hidden = functional.gelu(self.columns(_CopyToGroup.apply(self.norm(x), self.group)))
        return x + _SumOverGroup.apply(self.rows(hidden), self.group)


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "tensor-model-parallel-size": 1, "micro-batch-size": 4, "global-batch-size": 8, "train-iters": 20,
        "log-interval": 1, "seed": 1, "hidden-size": 128, "num-layers": 4, "seq-length": 128,
        "vocab-size": 256,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def make_groups(size: int) -> tuple[Any, Any]:
    """Return the tensor-parallel and the data-parallel group of this rank; tensor ranks are neighbours."""
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    mine: dict[str, Any] = {}
    for first in range(0, n_ranks, size):
        ranks = list(range(first, first + size))
        group = dist.new_group(ranks)
        mine |= {"tensor": group} if rank in ranks else {}
    for first in range(size):
        ranks = list(range(first, n_ranks, size))
        group = dist.new_group(ranks)
        mine |= {"data": group} if rank in ranks else {}
    return mine["tensor"], mine["data"]


def print_arguments(options: argparse.Namespace, n_ranks: int) -> None:
    """Print options as Megatron-LM does."""
    sizes = {"data_parallel_size": n_ranks // options.tensor_model_parallel_size, "world_size": n_ranks}
    print("------------------------ arguments ------------------------")
    for name, value in sorted({**vars(options), **sizes}.items()):
        print(f"  {name} {'.' * max(2, 48 - len(name))} {value}")
    print("-------------------- end of arguments ---------------------", flush=True)


def main() -> None:
    """Train, and print a line every `log_interval` iterations on the last rank."""
    options = parse_arguments()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, n_ranks, size = dist.get_rank(), dist.get_world_size(), options.tensor_model_parallel_size
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    tensor_group, data_group = make_groups(size)
    if rank == 0:
        print_arguments(options, n_ranks)
    torch.manual_seed(options.seed)
    model = nn.Sequential(
        nn.Embedding(options.vocab_size, options.hidden_size),
        *(Perceptron(options.hidden_size, size, tensor_group) for _ in range(options.num_layers)),
        nn.Linear(options.hidden_size, options.vocab_size),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    n_replicas = n_ranks // size
    n_micro_batches = options.global_batch_size // (options.micro_batch_size * n_replicas)
    draw = torch.Generator().manual_seed(options.seed * 1000 + rank // size)
    shape = (options.micro_batch_size, options.seq_length + 1)
    before, consumed = time.perf_counter(), 0
    for iteration in range(1, options.train_iters + 1):
        for _ in range(n_micro_batches):
            tokens = (torch.randint(0, 8, shape, generator=draw).cumsum(dim=1) % options.vocab_size).to(
                device
            )
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / n_micro_batches
            loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad, group=data_group)
            weight.grad /= n_replicas
        optimizer.step()
        optimizer.zero_grad()
        consumed += options.global_batch_size
        if iteration % options.log_interval == 0 and rank == n_ranks - 1:
            now = time.perf_counter()
            step_ms = 1000 * (now - before) / options.log_interval
            print(
                f" [{datetime.now():%Y-%m-%d %H:%M:%S}] iteration {iteration:8}/{options.train_iters:8} | "
                f"consumed samples: {consumed:12} | elapsed time per iteration (ms): {step_ms:.1f} | "
                f"learning rate: 1.000000E-03 | global batch size: {options.global_batch_size:5} | "
                f"lm loss: {loss.item() * n_micro_batches:E} | loss scale: 1.0 | grad norm: 0.000 | "
                "number of skipped iterations:   0 | number of nan iterations:   0 |",
                flush=True,
            )
            before = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
