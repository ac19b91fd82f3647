"""Initial weights, the same in every library: drawn here, handed over."""

import hashlib
import math

import numpy as np

from models.graph import Graph, Operator, Shape


def initial_weights(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Every weight of a graph, float32, in the canonical layout (models.graph).

    Kernels, by the graph's initializer: `glorot` is uniform (Glorot & Bengio 2010, eq. 16); `he` is normal (He et al. 2015,
    eq. 10), but for the last operator, which no relu follows. Each is drawn from the seed and its own name. Biases,
    offsets and running means are 0, scales and running variances 1.
    """
    made = {}
    for operator in graph.operators:
        for weight, shape in operator.weights.items():
            name = f"{operator.name}.{weight}"
            if weight == "kernel":
                draw = he_normal if graph.initializer == "he" and operator != graph.operators[-1] else glorot_uniform
                generator = np.random.default_rng([seed, *hashlib.sha256(name.encode()).digest()[:8]])
                made[name] = draw(shape, fans(operator), generator)
            else:
                made[name] = np.full(shape, float(weight in ("scale", "variance")), np.float32)
    return made


def glorot_uniform(shape: Shape, fans: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Uniform within sqrt(6 / (fan in + fan out))."""
    limit = np.sqrt(6.0 / sum(fans))
    return generator.uniform(-limit, limit, shape).astype(np.float32)


def he_normal(shape: Shape, fans: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Normal with variance 2 / fan in."""
    return generator.standard_normal(shape, np.float32) * np.float32(np.sqrt(2.0 / fans[0]))


def fans(operator: Operator) -> tuple[int, int]:
    """On how many inputs an output of the operator depends, and how many outputs an input reaches, but for strides."""
    shape = operator.weights["kernel"]
    window = math.prod(shape[:-2])
    if operator.kind == "depthwise_conv":
        return window, window
    return window * shape[-2], window * shape[-1]
