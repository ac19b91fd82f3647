"""The strategies that need no search (models.strategy), of a problem that is posed: to begin with, and to compare with."""

from models import strategy
from models.strategy import Strategy
from strategies.problem import Posed


def every(posed: Posed, seed: int) -> dict[str, Strategy]:
    """All of them, by name."""
    return {"data": data_parallel(posed), "expert": expert(posed), "random": random_strategy(posed, seed)}


def data_parallel(posed: Posed) -> Strategy:
    """See models.strategy."""
    return strategy.data_parallel(posed.space, posed.topology.devices)


def expert(posed: Posed) -> Strategy:
    """See models.strategy."""
    inside = posed.topology.levels[0].of
    return strategy.expert(posed.space, posed.topology.devices // inside, inside)


def random_strategy(posed: Posed, seed: int) -> Strategy:
    """See models.strategy."""
    return strategy.random_strategy(posed.space, posed.topology.devices, seed)
