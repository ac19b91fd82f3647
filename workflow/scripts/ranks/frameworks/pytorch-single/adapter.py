"""PyTorch on one rank: the single-device baseline."""

from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def environment(_context: Context) -> dict[str, str]:
    """Return no variables."""
    return {}


def trainer(context: Context) -> Trainer:
    """Return the library's own trainer unchanged."""
    from ranks.libraries.pytorch import PyTorchTrainer

    return PyTorchTrainer(context)
