"""Describe parallelization strategies (models.soap), and build those that need no search.

A strategy partitions each layer of a model and assigns each part to a device. Standard library only, like
models.graph.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from models.soap import SAMPLES, Degrees, Layer, Space


@dataclass(frozen=True)
class Part:
    """Degrees of a layer, and the device of each of its parts; the last dimension changes fastest."""

    degrees: Degrees
    devices: tuple[int, ...]


Strategy = Mapping[str, Part]  # parts by name of the layer


def to_json(strategy: Strategy) -> dict[str, dict[str, Any]]:
    """Return a strategy as a JSON object."""
    return {
        name: {key: list(value) for key, value in asdict(part).items()} for name, part in strategy.items()
    }


def from_json(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, Part]:
    """Return the strategy that `to_json` wrote."""
    return {name: Part(tuple(part["degrees"]), tuple(part["devices"])) for name, part in raw.items()}


def check_strategy(strategy: Strategy, space: Space, devices: int) -> Strategy:
    """Return a strategy if the space has it for this number of devices, or raise ValueError."""
    if [*strategy] != [layer.name for layer in space.layers]:
        raise ValueError(f"its layers are not those of {space.model}")
    for layer in space.layers:
        part = strategy[layer.name]
        if part.degrees not in layer.configurations(math.prod(part.degrees)):
            raise ValueError(f"{layer.name}: {layer.shape} cannot be cut into {part.degrees}")
        if len(part.devices) != math.prod(part.degrees) or not set(part.devices) <= set(range(devices)):
            raise ValueError(
                f"{layer.name}: its {math.prod(part.degrees)} parts are not on {devices} devices"
            )
    return strategy


def data_parallel(space: Space, devices: int) -> dict[str, Part]:
    """Return the strategy that partitions the samples of each layer over as many devices as divide them."""
    return {layer.name: cut_along(layer, SAMPLES, devices) for layer in space.layers}


def expert(space: Space, nodes: int, devices_per_node: int) -> dict[str, Part]:
    """Return the strategy that an expert would choose.

    Without recurrent layers, convolutions are partitioned by samples, and dense layers of vectors by units
    (Krizhevsky, arXiv:1404.5997). Otherwise each recurrent layer has its own device (Wu et al.,
    arXiv:1609.08144); with several devices per node, layers are assigned within a node, and nodes partition
    samples.
    """
    devices = nodes * devices_per_node
    n_stages = devices_per_node if devices_per_node > 1 else nodes
    chains = [layer.name for layer in space.layers if layer.chain]
    strategy: dict[str, Part] = {}
    stage = 0
    for layer in space.layers:
        if chains:
            stage = min(
                chains.index(layer.name) * n_stages // len(chains) if layer.chain else stage, n_stages - 1
            )
            strategy[layer.name] = _on_stage(layer, stage, n_stages, devices)
        elif layer.divides == 1 and 1 in layer.cut and layer.macs:
            strategy[layer.name] = cut_along(layer, 1, devices)
        else:
            strategy[layer.name] = cut_along(layer, SAMPLES, devices)
    return strategy


def random_strategy(space: Space, devices: int, seed: int) -> dict[str, Part]:
    """Return a random configuration of each layer, with each part on a random device."""
    generator = random.Random(seed)  # noqa: S311 (not for cryptography)
    strategy = {}
    for layer in space.layers:
        degrees = generator.choice(list(layer.configurations(devices)))
        strategy[layer.name] = Part(
            degrees, tuple(generator.randrange(devices) for _ in range(math.prod(degrees)))
        )
    return strategy


def cut_along(layer: Layer, dimension: int, devices: int) -> Part:
    """Cut a layer along one dimension, into one part per device if its size allows that, else into fewer."""
    degree = math.gcd(layer.shape[dimension], devices)
    return Part(
        _degrees_along(dimension, degree), tuple(part * (devices // degree) for part in range(degree))
    )


def _on_stage(layer: Layer, stage: int, n_stages: int, devices: int) -> Part:
    """Partition samples over groups of `n_stages` devices, on device `stage` of each group."""
    degree = math.gcd(layer.shape[SAMPLES], devices // n_stages)
    step = devices // n_stages // degree * n_stages
    return Part(_degrees_along(SAMPLES, degree), tuple(part * step + stage for part in range(degree)))


def _degrees_along(dimension: int, degree: int) -> Degrees:
    first, second, third, fourth = (degree if place == dimension else 1 for place in range(4))
    return first, second, third, fourth
