"""PyTorch on one rank: the undistributed base."""

from runs.worker.context import Context
from runs.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Nothing to set."""
    return {}


def trainer(context: Context) -> Trainer:
    """The library's own trainer as it stands."""
    from runs.libraries.pytorch import PyTorchTrainer

    return PyTorchTrainer(context)
