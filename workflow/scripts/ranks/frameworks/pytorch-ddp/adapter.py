"""PyTorch DistributedDataParallel (Li et al., VLDB 2020).

Gradients are all-reduced in buckets during the backward pass.
"""

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def trainer(context: Context) -> Trainer:
    """Return the library's trainer unchanged."""
    from ranks.libraries.pytorch_ddp import DDPTrainer

    return DDPTrainer(context)


def collectives(context: Context) -> Collectives:
    """Return collectives by the process group that carries DDP's buckets."""
    from ranks.libraries.pytorch.collectives import TorchDistributed

    return TorchDistributed(context)
