"""PyTorch on one rank: the undistributed base."""

from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Nothing to set."""
    return {}


def trainer(context: Context) -> Trainer:
    """The library's own trainer as it stands."""
    from ranks.libraries.pytorch import PyTorchTrainer

    return PyTorchTrainer(context)
