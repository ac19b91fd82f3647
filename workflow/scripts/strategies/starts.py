"""Strategies of a problem that need no search (`models.strategy`): starts of searches, and baselines."""

import itertools

from models import strategy
from models.soap import SAMPLES
from models.strategy import Part, Strategy
from strategies.problem import Posed

SMALL = ("stages", "units")  # Starts that need little memory.


def all_strategies(posed: Posed, seed: int) -> dict[str, Strategy]:
    """Return all these strategies by name."""
    return {
        "data": data_parallel(posed),
        "expert": expert(posed),
        "random": random_strategy(posed, seed),
        "stages": stages(posed),
        "units": units(posed),
    }


def data_parallel(posed: Posed) -> Strategy:
    """Return data parallelism over all devices (`models.strategy`)."""
    return strategy.data_parallel(posed.space, posed.topology.devices)


def expert(posed: Posed) -> Strategy:
    """Return the strategy of an expert's rule (`models.strategy`)."""
    inside = posed.topology.tiers[0].units
    return strategy.expert(posed.space, posed.topology.devices // inside, inside)


def random_strategy(posed: Posed, seed: int) -> Strategy:
    """Return a random strategy (`models.strategy`)."""
    return strategy.random_strategy(posed.space, posed.topology.devices, seed)


def stages(posed: Posed) -> Strategy:
    """Return whole layers on one device after the other, each with about the same memory."""
    unpartitioned = [choices.index((1, 1, 1, 1)) for choices in posed.configurations]
    problem = posed.arrays
    memory = (problem.memory + problem.weight_bytes)[problem.first_config[:-1] + unpartitioned].tolist()
    total, devices = sum(memory), posed.topology.devices
    ends = itertools.accumulate(memory)
    return {
        layer.name: Part((1, 1, 1, 1), (int(devices * (end - layer_bytes / 2) / total),))
        for layer, layer_bytes, end in zip(posed.space.layers, memory, ends, strict=True)
    }


def units(posed: Posed) -> Strategy:
    """Return weights partitioned over all devices; samples of layers that cannot partition their weights."""
    return {
        layer.name: strategy.cut_along(
            layer, layer.divides if layer.divides in layer.cut else SAMPLES, posed.topology.devices
        )
        for layer in posed.space.layers
    }
