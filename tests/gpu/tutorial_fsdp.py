"""Train a GPT with FSDP2 on a CUDA device that computes nothing, as PyTorch's FSDP2 tutorial does it.

https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html. Nothing of Ringside is imported. The model
has the operators of `gpt-nano`. `main` prints the peaks of memory of construction, a training step and
validation.
"""

from itertools import pairwise

from gpu.fake_cuda import FakeCuda  # before any other module that imports PyTorch

import torch  # isort: skip
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

HEADS = 4


class Attention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(units, units) for _ in range(3))
        self.output = nn.Linear(units, units)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(units), nn.LayerNorm(units)
        self.attention = Attention(units)
        self.expand, self.project = nn.Linear(units, 4 * units), nn.Linear(4 * units, units)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.project(functional.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """A GPT whose head has the table of its embedding."""

    def __init__(self, vocabulary: int, length: int, units: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, units)
        self.positions = nn.Parameter(torch.empty(length, units))
        self.blocks = nn.ModuleList(Block(units) for _ in range(layers))
        self.norm = nn.LayerNorm(units)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embedding.weight)


def main(
    rank: int, ranks: int, batch: int, validation_batch: int, precision: str, model: dict[str, int]
) -> dict[str, int]:
    """Return the peaks of memory in bytes."""
    device = FakeCuda(rank=rank, ranks=ranks)
    # As ranks do: products of attention stay in bfloat16.
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (ranks,))
    policy = MixedPrecisionPolicy()
    if precision == "amp":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with torch.device("meta"):
        gpt = GPT(**model)
    for block in gpt.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(gpt, mesh=mesh, mp_policy=policy)
    blocks = [gpt, *gpt.blocks]
    for block, following in pairwise(blocks):
        block.set_modules_to_forward_prefetch([following])
    for block, following in pairwise([gpt, *reversed(gpt.blocks)]):
        block.set_modules_to_backward_prefetch([following])
    gpt.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter.to_local().fill_(0.02)
    peaks = {"construction": device.peak_bytes()}
    optimizer = torch.optim.Adam(gpt.parameters(), 1e-3)

    def loss_of(samples: int) -> Tensor:
        tokens = torch.zeros(samples, model["length"], dtype=torch.int64, device="cuda")
        logits = gpt(tokens)
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    for _ in range(2):
        device.reset_peak()
        loss_of(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    peaks["training"] = device.peak_bytes()
    device.reset_peak()
    gpt.eval()
    with torch.no_grad():
        loss_of(validation_batch)
    peaks["validation"] = device.peak_bytes()
    return peaks
