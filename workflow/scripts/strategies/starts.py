"""Strategies to begin with, and to compare with: data parallelism, what an expert would write, and random ones."""

import math

import numpy as np

from models.soap import SAMPLES, Degrees, Layer
from strategies.problem import Part, Posed, Strategy


def every(posed: Posed, seed: int) -> dict[str, Strategy]:
    """All of them, by name."""
    return {"data": data_parallel(posed), "expert": expert(posed), "random": random_strategy(posed, seed)}


def data_parallel(posed: Posed) -> Strategy:
    """The samples of a batch divided among as many devices as divide them."""
    return {layer.name: _by(layer, SAMPLES, posed.topology.devices) for layer in posed.space.layers}


def expert(posed: Posed) -> Strategy:
    """Krizhevsky (arXiv:1404.5997): convolutions by samples, dense layers of vectors by units. Recurrent layers as Wu et al.
    (arXiv:1609.08144): each on devices of its own within a node, which divide samples between nodes."""
    inside = posed.topology.levels[0].of
    chains = [layer.name for layer in posed.space.layers if layer.chain]
    told: dict[str, Part] = {}
    stage = 0
    for layer in posed.space.layers:
        if chains:
            stage = min(chains.index(layer.name) * inside // len(chains) if layer.chain else stage, inside - 1)
            told[layer.name] = _across(layer, stage, inside, posed.topology.devices)
        elif layer.divides == 1 and 1 in layer.cut and layer.macs:
            told[layer.name] = _by(layer, 1, posed.topology.devices)
        else:
            told[layer.name] = _by(layer, SAMPLES, posed.topology.devices)
    return told


def random_strategy(posed: Posed, seed: int) -> Strategy:
    """A random configuration of each layer, each part on a random device."""
    rng = np.random.default_rng(seed)
    told = {}
    for layer, configurations in zip(posed.space.layers, posed.configurations, strict=True):
        degrees = configurations[rng.integers(len(configurations))]
        devices = rng.integers(posed.topology.devices, size=math.prod(degrees))
        told[layer.name] = Part(degrees, tuple(devices.tolist()))
    return told


def _by(layer: Layer, dimension: int, devices: int) -> Part:
    """Cut along one dimension, a part for each device, as far as its size allows."""
    degree = math.gcd(layer.shape[dimension], devices)
    degrees: Degrees = tuple(degree if place == dimension else 1 for place in range(len(layer.shape)))  # type: ignore[assignment]
    return Part(degrees, tuple(part * (devices // degree) for part in range(degree)))


def _across(layer: Layer, stage: int, inside: int, devices: int) -> Part:
    """Samples divided between nodes, on the device `stage` of each."""
    degree = math.gcd(layer.shape[SAMPLES], devices // inside)
    step = devices // inside // degree * inside
    return Part((degree, 1, 1, 1), tuple(part * step + stage for part in range(degree)))
