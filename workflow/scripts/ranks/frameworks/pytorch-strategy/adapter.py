"""PyTorch by a strategy that partitions each layer: parts on ranks, regions sent between them."""

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def trainer(context: Context) -> Trainer:
    """Return the library's trainer unchanged."""
    from ranks.libraries.pytorch_strategy import StrategyTrainer

    return StrategyTrainer(context)


def collectives(context: Context) -> Collectives:
    """Return collectives by the process groups of its trainings."""
    from ranks.libraries.pytorch_strategy import StrategyCollectives

    return StrategyCollectives(context)
