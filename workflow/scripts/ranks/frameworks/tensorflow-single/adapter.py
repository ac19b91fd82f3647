"""TensorFlow on one rank: the single-device baseline."""

from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def environment(_context: Context) -> dict[str, str]:
    """Return variables that suppress log lines below warnings."""
    return {"TF_CPP_MIN_LOG_LEVEL": "1"}


def trainer(context: Context) -> Trainer:
    """Return the library's own trainer unchanged."""
    from ranks.libraries.tensorflow.trainer import TensorFlowTrainer

    return TensorFlowTrainer(context)
