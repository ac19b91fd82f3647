"""Initial weights, the same in every library: drawn here, handed over."""

import hashlib
import math

import numpy as np

from models.graph import Graph, Operator, Shape, is_kernel


def initial_weights(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Every weight of a graph, float32, in the canonical layout (models.graph), each drawn from the seed and its own name.

    Scales and running variances are 1. All else is 0 where the graph's initializer does not say how it is drawn:

        glorot     kernels are uniform (Glorot & Bengio 2010, eq. 16), tables normal with deviation 0.02
        he         kernels are normal (He et al. 2015, eq. 10), but for those that no relu follows: the last operator's, and those
                   of attention and LSTMs, which are as with glorot, as tables are
        gpt-2      kernels and tables are normal with deviation 0.02, but for kernels of what is added to a sequence: their
                   deviation is divided by the root of the number of such additions (Radford et al. 2019, section 2.3)
        vit        as glorot, but for a convolution's kernel: normal with variance 1 / fan in; and for the last operator's: 0.
                   Biases of all other dense operators have a deviation of 1e-6 (Dosovitskiy et al. 2021, their code)
        uniform    kernels and tables are uniform within 1 / sqrt(n); n is what an LSTM or a table has of units, and any other
                   kernel of inputs (as PyTorch draws LSTMs)
    """
    draw = INITIALIZERS[graph.initializer]
    made = {}
    for operator in graph.operators:
        for weight, shape in operator.weights.items():
            name = f"{operator.name}.{weight}"
            generator = np.random.default_rng([seed, *hashlib.sha256(name.encode()).digest()[:8]])
            drawn = draw(graph, operator, weight, generator)
            constant = np.full(shape, float(weight in ("scale", "variance")), np.float32)
            made[name] = constant if drawn is None else drawn
    return made


def _glorot(graph: Graph, operator: Operator, weight: str, generator: np.random.Generator) -> np.ndarray | None:
    if weight == "table":
        return normal(operator.weights[weight], 0.02, generator)
    return glorot_uniform(operator.weights[weight], fans(operator, weight), generator) if is_kernel(weight) else None


def _he(graph: Graph, operator: Operator, weight: str, generator: np.random.Generator) -> np.ndarray | None:
    if weight == "kernel" and operator.kind != "lstm" and operator != graph.operators[-1]:
        return he_normal(operator.weights[weight], fans(operator, weight), generator)
    return _glorot(graph, operator, weight, generator)


def _gpt_2(graph: Graph, operator: Operator, weight: str, generator: np.random.Generator) -> np.ndarray | None:
    if weight != "table" and not is_kernel(weight):
        return None
    gives = operator.kind == "dense" or weight == "output_kernel"
    added = gives and {user.kind for user in graph.users(operator.name)} == {"add"}
    additions = sum(other.kind == "add" for other in graph.operators)
    return normal(operator.weights[weight], 0.02 / math.sqrt(additions) if added else 0.02, generator)


def _vit(graph: Graph, operator: Operator, weight: str, generator: np.random.Generator) -> np.ndarray | None:
    shape = operator.weights[weight]
    if operator == graph.operators[-1]:
        return None
    if operator.kind == "conv" and weight == "kernel":
        return normal(shape, 1 / math.sqrt(fans(operator, weight)[0]), generator)
    if operator.kind == "dense" and weight == "bias":
        return normal(shape, 1e-6, generator)
    return _glorot(graph, operator, weight, generator)


def _uniform(graph: Graph, operator: Operator, weight: str, generator: np.random.Generator) -> np.ndarray | None:
    shape = operator.weights[weight]
    if weight != "table" and not is_kernel(weight):
        return None
    counted = (
        operator["units"] if operator.kind == "lstm" else shape[-1] if weight == "table" else math.prod(shape[:-1])
    )
    within = 1 / math.sqrt(counted)
    return generator.uniform(-within, within, shape).astype(np.float32)


INITIALIZERS = {"glorot": _glorot, "he": _he, "gpt-2": _gpt_2, "vit": _vit, "uniform": _uniform}


def glorot_uniform(shape: Shape, fans: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Uniform within sqrt(6 / (fan in + fan out))."""
    limit = np.sqrt(6.0 / sum(fans))
    return generator.uniform(-limit, limit, shape).astype(np.float32)


def he_normal(shape: Shape, fans: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Normal with variance 2 / fan in."""
    return normal(shape, np.sqrt(2.0 / fans[0]), generator)


def normal(shape: Shape, deviation: float, generator: np.random.Generator) -> np.ndarray:
    """Normal with this deviation."""
    return generator.standard_normal(shape, np.float32) * np.float32(deviation)


def fans(operator: Operator, weight: str = "kernel") -> tuple[int, int]:
    """On how many inputs an output of a kernel depends, and how many outputs an input reaches, but for strides."""
    shape = operator.weights[weight]
    window = math.prod(shape[:-2])
    if operator.kind == "depthwise_conv":
        return window, window
    return window * shape[-2], window * shape[-1]
