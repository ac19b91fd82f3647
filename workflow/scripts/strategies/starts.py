"""Strategies of a problem that need no search (`models.strategy`): starts of searches, and baselines."""

from models import strategy
from models.strategy import Strategy
from strategies.problem import Posed


def all_strategies(posed: Posed, seed: int) -> dict[str, Strategy]:
    """Return all of them by name."""
    return {"data": data_parallel(posed), "expert": expert(posed), "random": random_strategy(posed, seed)}


def data_parallel(posed: Posed) -> Strategy:
    """Return data parallelism over all devices (`models.strategy`)."""
    return strategy.data_parallel(posed.space, posed.topology.devices)


def expert(posed: Posed) -> Strategy:
    """Return the strategy of an expert's rule (`models.strategy`)."""
    inside = posed.topology.levels[0].units
    return strategy.expert(posed.space, posed.topology.devices // inside, inside)


def random_strategy(posed: Posed, seed: int) -> Strategy:
    """Return a random strategy (`models.strategy`)."""
    return strategy.random_strategy(posed.space, posed.topology.devices, seed)
