"""A model as a pure function of its weights, for JAX. Weights, images and shapes have the graph's own layout, channels last."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from models.graph import Graph, Operator

Array = jax.Array
Weights = Mapping[str, Array]

ACTIVATIONS = {"relu": jax.nn.relu, "silu": jax.nn.silu, "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}
CONVOLUTION = ("NHWC", "HWIO", "NHWC")  # batches, kernels, outputs


def forward(
    graph: Graph, weights: Weights, images: Array, key: Array | None = None, dtype: Any = jnp.float32
) -> tuple[Array, dict[str, Array]]:
    """Logits [N, classes], float32, of images [N, H, W, C], and the running statistics after them.

    With a `key`, from which dropout draws, as training computes it: with statistics of this batch. Products are computed in `dtype`.
    """
    made = {graph.operators[0].name: images}
    statistics: dict[str, Array] = {}
    for number, operator in enumerate(graph.operators[1:]):
        inputs = [made[name] for name in operator.inputs]
        own = {name: weights[f"{operator.name}.{name}"] for name in operator.weights}
        match operator.kind:
            case "batch_norm":
                made[operator.name], kept = _batch_norm(operator, inputs[0], own, training=key is not None)
                statistics |= {f"{operator.name}.{name}": value for name, value in kept.items()}
            case "dropout":
                drawn_from = None if key is None else jax.random.fold_in(key, number)
                made[operator.name] = _dropout(inputs[0], operator["rate"], drawn_from)
            case _:
                made[operator.name] = _applied(operator, inputs, own, dtype)
    return made[graph.operators[-1].name].astype(jnp.float32), statistics


def _applied(operator: Operator, inputs: list[Array], own: Weights, dtype: Any) -> Array:
    x = inputs[0]
    match operator.kind:
        case "conv" | "depthwise_conv":
            return _convolution(operator, x.astype(dtype), {name: weight.astype(dtype) for name, weight in own.items()})
        case "dense":
            return x.astype(dtype) @ own["kernel"].astype(dtype) + own["bias"].astype(dtype)
        case "activation":
            return ACTIVATIONS[operator["function"]](x)
        case "max_pool":
            return _windows(operator, x, -jnp.inf, lax.max)
        case "average_pool":
            return _windows(operator, x, 0.0, lax.add) / operator["kernel"] ** 2
        case "global_average_pool":
            return x.mean((1, 2))
        case "add":
            return functools.reduce(jnp.add, inputs)
        case "multiply_channels":
            return x * inputs[1][:, None, None, :]
        case "flatten":
            return x.reshape(len(x), -1)
    raise ValueError(f"JAX has no operator {operator.kind}")


def _convolution(operator: Operator, x: Array, own: Weights) -> Array:
    kernel, groups = own["kernel"], 1
    if operator.kind == "depthwise_conv":
        kernel, groups = kernel.transpose(0, 1, 3, 2), x.shape[-1]
    strides, padding = (operator["stride"],) * 2, [(operator["padding"],) * 2] * 2
    x = lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=CONVOLUTION, feature_group_count=groups
    )
    return x + own["bias"] if operator["bias"] else x


def _windows(operator: Operator, x: Array, first: float, combine: Any) -> Array:
    size, stride, padding = operator["kernel"], operator["stride"], operator["padding"]
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    around = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
    return lax.reduce_window(x, first, combine, window, strides, around)


def _batch_norm(operator: Operator, x: Array, own: Weights, training: bool) -> tuple[Array, dict[str, Array]]:
    """Normalized over this batch, with its variance kept unbiased (Ioffe & Szegedy 2015, algorithms 1 and 2); else by what was kept."""
    mean, variance, kept = own["mean"], own["variance"], {}
    if training:
        seen = x.astype(jnp.float32)
        axes, samples = tuple(range(x.ndim - 1)), math.prod(x.shape[:-1])
        mean, variance = seen.mean(axes), seen.var(axes)
        now = {"mean": mean, "variance": variance * (samples / (samples - 1))}
        share = operator["momentum"]
        kept = {name: share * own[name] + (1 - share) * lax.stop_gradient(value) for name, value in now.items()}
    scale = own["scale"] * lax.rsqrt(variance + operator["epsilon"])
    return ((x - mean) * scale + own["offset"]).astype(x.dtype), kept


def _dropout(x: Array, rate: float, key: Array | None) -> Array:
    if key is None or rate == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)
