"""PyTorch on one rank: the single-device baseline."""

from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def trainer(context: Context) -> Trainer:
    """Return the library's own trainer unchanged."""
    from ranks.libraries.pytorch.trainer import PyTorchTrainer

    return PyTorchTrainer(context)
