"""PyTorch by a strategy that divides each layer by itself: parts on their ranks, regions sent between them."""

from runs.worker.collectives import Collectives
from runs.worker.context import Context
from runs.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Gloo on the site's interface."""
    return {"GLOO_SOCKET_IFNAME": context.spec["interface"]}


def trainer(context: Context) -> Trainer:
    """The library's trainer as it stands."""
    from runs.libraries.pytorch_strategy import StrategyTrainer

    return StrategyTrainer(context)


def collectives(context: Context) -> Collectives:
    """By the process groups of its trainings."""
    from runs.libraries.pytorch_strategy import StrategyCollectives

    return StrategyCollectives(context)
