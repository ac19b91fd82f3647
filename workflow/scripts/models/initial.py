"""Draw initial weights and compute tables of rotary positions, the same for all libraries."""

import hashlib
import math
from collections.abc import Collection, Iterator

import numpy as np

from models.graph import Graph, Operator, Rotary, Shape, is_kernel

# Turns of slow and of quick pairs in Rotary.original_length positions, as in Meta's code of Llama 3.1.
SLOW_TURNS, QUICK_TURNS = 1.0, 4.0


def initial_weights(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Return all weights of a graph in float32 and the canonical layout (models.graph).

    Each weight depends only on the seed and its own name. Scales and running variances are 1; other weights
    are 0 unless the graph's initializer draws them:

        glorot     kernels uniform (Glorot & Bengio 2010, eq. 16), tables normal with standard deviation 0.02
        he         kernels normal (He et al. 2015, eq. 10); those that no relu follows (last operator,
                   attention, LSTMs) and tables as with glorot
        gpt-2      kernels and tables normal with standard deviation 0.02; for kernels whose output is added,
                   divided by the root of the number of additions (Radford et al. 2019, section 2.3)
        bert       kernels and tables normal with standard deviation 0.02 (Devlin et al. 2019; their
                   code draws again what lies beyond two deviations)
        vit        as glorot; convolutions normal with variance 1 / fan-in, the last operator 0, biases of
                   other dense operators normal with deviation 1e-6 (Dosovitskiy et al. 2021, their code)
        uniform    kernels and tables uniform within 1 / sqrt(n), where n is the number of units of an LSTM or
                   a table, and the number of inputs of other kernels (as PyTorch initializes LSTMs)
    """
    return dict(draw_weights(graph, seed, graph.weights()))


def draw_weights(graph: Graph, seed: int, names: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and initial value of the weights in `names`, one after the other (see initial_weights)."""
    draw = INITIALIZERS[graph.initializer]
    for operator in graph.operators:
        for weight, shape in operator.weights.items():
            name = f"{operator.name}.{weight}"
            if name not in names:
                continue
            generator = np.random.default_rng([seed, *hashlib.sha256(name.encode()).digest()[:8]])
            drawn = draw(graph, operator, weight, generator)
            constant = np.full(shape, float(weight in ("scale", "variance")), np.float32)
            yield name, constant if drawn is None else drawn


def _glorot(
    _graph: Graph, operator: Operator, weight: str, generator: np.random.Generator
) -> np.ndarray | None:
    if weight == "table":
        return normal(operator.weights[weight], 0.02, generator)
    return (
        glorot_uniform(operator.weights[weight], fans(operator, weight), generator)
        if is_kernel(weight)
        else None
    )


def _he(graph: Graph, operator: Operator, weight: str, generator: np.random.Generator) -> np.ndarray | None:
    if weight == "kernel" and operator.kind != "lstm" and operator != graph.operators[-1]:
        return he_normal(operator.weights[weight], fans(operator, weight), generator)
    return _glorot(graph, operator, weight, generator)


def _gpt_2(
    graph: Graph, operator: Operator, weight: str, generator: np.random.Generator
) -> np.ndarray | None:
    if weight != "table" and not is_kernel(weight):
        return None
    is_linear = operator.kind == "dense" or weight in ("output_kernel", "down_kernel")
    is_added = is_linear and {user.kind for user in graph.users(operator.name)} == {"add"}
    additions = sum(node.kind == "add" for node in graph.operators)
    return normal(operator.weights[weight], 0.02 / math.sqrt(additions) if is_added else 0.02, generator)


def _bert(
    _graph: Graph, operator: Operator, weight: str, generator: np.random.Generator
) -> np.ndarray | None:
    is_drawn = weight == "table" or is_kernel(weight)
    return normal(operator.weights[weight], 0.02, generator) if is_drawn else None


def _vit(graph: Graph, operator: Operator, weight: str, generator: np.random.Generator) -> np.ndarray | None:
    shape = operator.weights[weight]
    if operator == graph.operators[-1]:
        return None
    if operator.kind == "conv" and weight == "kernel":
        return normal(shape, 1 / math.sqrt(fans(operator, weight)[0]), generator)
    if operator.kind == "dense" and weight == "bias":
        return normal(shape, 1e-6, generator)
    return _glorot(graph, operator, weight, generator)


def _uniform(
    _graph: Graph, operator: Operator, weight: str, generator: np.random.Generator
) -> np.ndarray | None:
    shape = operator.weights[weight]
    if weight != "table" and not is_kernel(weight):
        return None
    n = (
        operator["units"]
        if operator.kind == "lstm"
        else shape[-1]
        if weight == "table"
        else math.prod(shape[:-1])
    )
    limit = 1 / math.sqrt(n)
    return generator.uniform(-limit, limit, shape).astype(np.float32)


INITIALIZERS = {
    "glorot": _glorot,
    "he": _he,
    "gpt-2": _gpt_2,
    "bert": _bert,
    "vit": _vit,
    "uniform": _uniform,
}


def glorot_uniform(shape: Shape, fans: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Draw from the uniform distribution within sqrt(6 / (fan-in + fan-out))."""
    limit = np.sqrt(6.0 / sum(fans))
    return generator.uniform(-limit, limit, shape).astype(np.float32)


def he_normal(shape: Shape, fans: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Draw from the normal distribution with variance 2 / fan-in."""
    return normal(shape, np.sqrt(2.0 / fans[0]), generator)


def normal(shape: Shape, deviation: float, generator: np.random.Generator) -> np.ndarray:
    """Draw from the normal distribution with mean 0 and standard deviation `deviation`."""
    return generator.standard_normal(shape, np.float32) * np.float32(deviation)


def fans(operator: Operator, weight: str = "kernel") -> tuple[int, int]:
    """Return fan-in and fan-out of a kernel, without regard to strides."""
    shape = operator.weights[weight]
    window = 1 if operator.kind == "experts" else math.prod(shape[:-2])
    if operator.kind == "depthwise_conv":
        return window, window
    if operator.kind == "up_conv":  # Every output is of one pixel.
        return shape[-2], window * shape[-1]
    return window * shape[-2], window * shape[-1]


def rotary_tables(operator: Operator) -> np.ndarray:
    """Return cosines and sines for an attention with rotary positions, float32 [2, length, head size / 2].

    A head [.., x, y] with halves x and y becomes [.., x cos - y sin, y cos + x sin].
    """
    rotary = Rotary(**operator["rotary"])
    angles = np.outer(np.arange(operator.shape[0]), _frequencies(rotary, operator.head_size))
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)


def _frequencies(rotary: Rotary, head_size: int) -> np.ndarray:
    """Return the angle between neighbouring positions of each pair of units, in radians."""
    plain = rotary.base ** (-np.arange(0, head_size, 2) / head_size)
    n_turns = rotary.original_length * plain / (2 * math.pi)
    unscaled = np.clip((n_turns - SLOW_TURNS) / (QUICK_TURNS - SLOW_TURNS), 0, 1)
    return plain * (unscaled + (1 - unscaled) / rotary.factor)
