"""Train a small language model by data parallelism, and print what torchtitan prints.

    torchrun --nproc-per-node 2 titan-example.py --steps 20 --local-batch-size 4

An example of a command of your own (docs/how-to/own-command.md): it knows nothing of Ringside.
"""

import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger()


class Block(nn.Module):
    """Causal attention and a perceptron, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of all positions, [batch, length, width]."""
        batch, length, width = x.shape
        parts = (
            self.project_in(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.project_out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(self.norms[1](x))


class Transformer(nn.Module):
    """A language model: tokens in, logits of the next tokens out."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of all positions, [batch, length, vocabulary]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.logits(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "steps": 20, "local-batch-size": 4, "gradient-accumulation-steps": 1, "seed": 1, "log-freq": 1,
        "width": 128, "layers": 4, "seq-len": 128, "vocabulary": 256,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def main() -> None:
    """Train, and print a line every `log_freq` steps on rank 0."""
    options = parse_arguments()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    form = "[titan] %(asctime)s - %(name)s - %(levelname)s - %(message)s"
    logging.basicConfig(format=form, level=logging.INFO if rank == 0 else logging.ERROR)
    accumulation = options.gradient_accumulation_steps
    global_batch = options.local_batch_size * n_ranks * accumulation
    torch.manual_seed(options.seed)
    model = Transformer(options.vocabulary, options.seq_len, options.width, options.layers).to(device)
    parameters = sum(weight.numel() for weight in model.parameters())
    logger.info(
        f"Building device mesh with parallelism: pp=1, dp_replicate={n_ranks}, dp_shard=1, cp=1, tp=1"
    )
    logger.info(f"Model tiny gpt size: {parameters:,} total parameters")
    logger.info(
        f"Trainer is initialized with local batch size {options.local_batch_size}, global batch size "
        f"{global_batch}, gradient accumulation steps {accumulation}, sequence length {options.seq_len}, "
        f"total steps {options.steps} (warmup 0)"
    )
    parallel = DistributedDataParallel(model) if n_ranks > 1 else model
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(options.seed * 1000 + rank)
    shape = (options.local_batch_size, options.seq_len + 1)
    logger.info("Training starts at step 1")
    before, tokens = time.perf_counter(), 0
    for step in range(1, options.steps + 1):
        for micro_batch in range(accumulation):
            # Sums of two earlier tokens can be learned.
            noise = torch.randint(0, 8, shape, generator=draw)
            samples = (noise.cumsum(dim=1) % options.vocabulary).to(device)
            parallel.require_backward_grad_sync = micro_batch == accumulation - 1
            logits = parallel(samples[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten()) / accumulation
            loss.backward()
            tokens += options.local_batch_size * options.seq_len
        norm = nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % options.log_freq == 0 or step == 1:
            mean_loss = loss.detach() * accumulation
            dist.all_reduce(mean_loss)
            now = time.perf_counter()
            logger.info(
                f"step: {step:2}  loss: {mean_loss.item() / n_ranks:7.4f}  grad_norm: {norm.item():7.4f}  "
                f"memory:  0.00GiB(0.00%)  tps: {round(tokens / (now - before)):,}  tflops: 0.00  mfu: N/A"
            )
            before, tokens = now, 0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
