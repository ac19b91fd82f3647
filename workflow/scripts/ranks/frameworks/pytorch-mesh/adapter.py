"""PyTorch on a device mesh: tensor parallelism by DTensor, pipelines of stages, FSDP2 for data."""

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def trainer(context: Context) -> Trainer:
    """Return the library's trainer unchanged."""
    from ranks.libraries.pytorch_mesh import MeshTrainer

    return MeshTrainer(context)


def collectives(context: Context) -> Collectives:
    """Return collectives by the process group of all ranks."""
    from ranks.libraries.pytorch.collectives import TorchDistributed

    return TorchDistributed(context)
