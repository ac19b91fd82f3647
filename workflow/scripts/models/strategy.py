"""A strategy: how each layer of a model is divided, and which device has which part (models.soap); and those that need no search.

Standard library only, as models.graph.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from models.soap import SAMPLES, Degrees, Layer, Space


@dataclass(frozen=True)
class Part:
    """How a layer is divided, and the device of each part, the last dimension changing fastest."""

    degrees: Degrees
    devices: tuple[int, ...]


Strategy = Mapping[str, Part]  # by layer


def to_json(strategy: Strategy) -> dict[str, dict[str, Any]]:
    """As JSON has it."""
    return {name: {key: list(value) for key, value in asdict(part).items()} for name, part in strategy.items()}


def from_json(told: Mapping[str, Mapping[str, Any]]) -> dict[str, Part]:
    """The inverse of `to_json`."""
    return {name: Part(tuple(part["degrees"]), tuple(part["devices"])) for name, part in told.items()}


def checked(strategy: Strategy, space: Space, devices: int) -> Strategy:
    """A strategy of this space for so many devices. ValueError in words where it is none."""
    if [*strategy] != [layer.name for layer in space.layers]:
        raise ValueError(f"its layers are not those of {space.model}")
    for layer in space.layers:
        part = strategy[layer.name]
        if part.degrees not in layer.configurations(math.prod(part.degrees)):
            raise ValueError(f"{layer.name}: {layer.shape} cannot be cut into {part.degrees}")
        if len(part.devices) != math.prod(part.degrees) or not set(part.devices) <= set(range(devices)):
            raise ValueError(f"{layer.name}: its {math.prod(part.degrees)} parts are not on {devices} devices")
    return strategy


def data_parallel(space: Space, devices: int) -> dict[str, Part]:
    """The samples of a batch divided among as many devices as divide them."""
    return {layer.name: _by(layer, SAMPLES, devices) for layer in space.layers}


def expert(space: Space, nodes: int, devices_per_node: int) -> dict[str, Part]:
    """Krizhevsky (arXiv:1404.5997): convolutions by samples, dense layers of vectors by units. Recurrent layers as Wu et al.
    (arXiv:1609.08144): each on a device of its own, within a node where nodes have several, and nodes then divide samples."""
    devices = nodes * devices_per_node
    inside = devices_per_node if devices_per_node > 1 else nodes
    chains = [layer.name for layer in space.layers if layer.chain]
    told: dict[str, Part] = {}
    stage = 0
    for layer in space.layers:
        if chains:
            stage = min(chains.index(layer.name) * inside // len(chains) if layer.chain else stage, inside - 1)
            told[layer.name] = _across(layer, stage, inside, devices)
        elif layer.divides == 1 and 1 in layer.cut and layer.macs:
            told[layer.name] = _by(layer, 1, devices)
        else:
            told[layer.name] = _by(layer, SAMPLES, devices)
    return told


def random_strategy(space: Space, devices: int, seed: int) -> dict[str, Part]:
    """A random configuration of each layer, each part on a random device."""
    drawn = random.Random(seed)  # noqa: S311 (nothing is kept secret by it)
    told = {}
    for layer in space.layers:
        degrees = drawn.choice(list(layer.configurations(devices)))
        told[layer.name] = Part(degrees, tuple(drawn.randrange(devices) for _ in range(math.prod(degrees))))
    return told


def _by(layer: Layer, dimension: int, devices: int) -> Part:
    """Cut along one dimension, a part for each device, as far as its size allows."""
    degree = math.gcd(layer.shape[dimension], devices)
    return Part(_along(dimension, degree), tuple(part * (devices // degree) for part in range(degree)))


def _across(layer: Layer, stage: int, inside: int, devices: int) -> Part:
    """Samples divided among groups of `inside` devices, on the device `stage` of each."""
    degree = math.gcd(layer.shape[SAMPLES], devices // inside)
    step = devices // inside // degree * inside
    return Part(_along(SAMPLES, degree), tuple(part * step + stage for part in range(degree)))


def _along(dimension: int, degree: int) -> Degrees:
    first, second, third, fourth = (degree if place == dimension else 1 for place in range(4))
    return first, second, third, fourth
