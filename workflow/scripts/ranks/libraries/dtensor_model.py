"""A model as a pure function of its weights, for TensorFlow's DTensor.

Weights, samples and shapes have the graph's own layout, channels last.

The functions do not refer to the mesh, except for the number of replicas, whose samples are consecutive in a
batch. DTensor derives the computation of each rank from the layouts of weights and samples. It lacks rules
for some operations, or for partitioned operands of others, which are therefore composed of operations that it
has.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from models.graph import Graph, Operator, pair
from models.initial import rotary_tables

Tensors = dict[str, Any]
Weights = Mapping[str, Any]

ACTIVATIONS = {
    "relu": tf.nn.relu,
    "silu": lambda x: x * tf.sigmoid(x),  # The gradient of tf.nn.silu is Python code.
    "sigmoid": tf.sigmoid,
    "tanh": tf.tanh,
    "gelu": partial(tf.nn.gelu, approximate=False),
    "gelu_tanh": partial(tf.nn.gelu, approximate=True),
    "softmax": tf.nn.softmax,
}


def forward(
    graph: Graph, weights: Weights, samples: Any, replicas: int, seed: Any = None
) -> tuple[Any, Tensors]:
    """Return logits and the running statistics after them.

    Logits are float32 [N, classes] or [N, positions, vocabulary], of images [N, H, W, C] or tokens [N,
    length] of `replicas` replicas. Running statistics [replicas, C] are each replica's own, like those of
    `weights`.

    With a `seed` for dropout, int32 [2], the result is that of training, which uses statistics of this batch.
    """
    outputs = {graph.operators[0].name: samples}
    statistics: Tensors = {}
    for number, operator in enumerate(graph.operators[1:]):
        inputs = [outputs[name] for name in operator.inputs]
        own = {name: weights[f"{operator.name}.{name}"] for name in operator.weights}
        match operator.kind:
            case "batch_norm":
                outputs[operator.name], batch_statistics = _batch_norm(
                    operator, inputs[0], own, replicas, training=seed is not None
                )
                statistics |= {f"{operator.name}.{name}": value for name, value in batch_statistics.items()}
            case "dropout":
                drawn_from = None if seed is None else seed + tf.constant([number, 0], tf.int32)
                outputs[operator.name] = _dropout(inputs[0], operator["rate"], drawn_from)
            case "tied_dense":
                outputs[operator.name] = _product(inputs[0], tf.transpose(weights[f"{operator['of']}.table"]))
            case _:
                outputs[operator.name] = _applied(operator, inputs, own)
    return outputs[graph.operators[-1].name], statistics


def _applied(operator: Operator, inputs: list[Any], own: Weights) -> Any:
    x = inputs[0]
    match operator.kind:
        case "conv":
            x = tf.nn.conv2d(_padded(operator, x), own["kernel"], operator["stride"], "VALID")
            return x + own["bias"] if operator["bias"] else x
        case "depthwise_conv":
            kernel = tf.reshape(own["kernel"], (-1, x.shape[-1]))
            x = tf.add_n([window * kernel[place] for place, window in enumerate(_windows(operator, x))])
            return x + own["bias"] if operator["bias"] else x
        case "up_conv":
            product = tf.einsum("nhwi,abio->nhawbo", x, own["kernel"])
            return tf.reshape(product, (x.shape[0], *operator.shape)) + own["bias"]
        case "dense":
            product = _product(x, own["kernel"])
            return product + own["bias"] if "bias" in own else product
        case "attention":
            return _attention(operator, x, inputs[-1], own)
        case "embedding":
            return tf.gather(own["table"], x)
        case "positions":
            return x + own["table"]
        case "add_vector":
            return x + own["vector"]
        case "class_token":
            return tf.concat([tf.zeros_like(x[:, :1]) + own["token"], x], 1)
        case "layer_norm":
            return _layer_norm(operator, x, own)
        case "rms_norm":
            mean = tf.reduce_mean(tf.square(x), -1, keepdims=True)
            return x * tf.math.rsqrt(mean + operator["epsilon"]) * own["scale"]
        case kind if kind in WITHOUT_WEIGHTS:
            return WITHOUT_WEIGHTS[kind](operator, *inputs)
    raise ValueError(f"DTensor has no operator {operator.kind}")


def _product(x: Any, kernel: Any) -> Any:
    """Return the product of [..., in] and [in, out]."""
    return tf.matmul(x, kernel) if len(x.shape) == 2 else tf.einsum("npi,io->npo", x, kernel)


def _padded(operator: Operator, x: Any) -> Any:
    """Return the input of a window, with the operator's zeros on all four sides."""
    (high, wide) = pair(operator["padding"])
    return tf.pad(x, [[0, 0], [high, high], [wide, wide], [0, 0]]) if high or wide else x


def _windows(operator: Operator, x: Any) -> list[Any]:
    """Return the values at each place of a window in all windows, each [N, H, W, C]."""
    (high, wide), (down, along), padded = (
        pair(operator["kernel"]),
        pair(operator["stride"]),
        _padded(operator, x),
    )
    rows, columns = operator.shape[:2]
    return [
        padded[:, i : i + down * (rows - 1) + 1 : down, j : j + along * (columns - 1) + 1 : along]
        for i in range(high)
        for j in range(wide)
    ]


def _attention(operator: Operator, x: Any, to: Any, own: Weights) -> Any:
    """Return attention by heads, which a tensor axis partitions, so kernels have three dimensions."""
    heads, size = operator["heads"], operator.head_size

    def projected(part: str, inputs: Any) -> Any:
        kernel, bias = own[f"{part}_kernel"], own.get(f"{part}_bias")
        product = tf.einsum("npi,ihd->nphd", inputs, tf.reshape(kernel, (kernel.shape[0], -1, size)))
        return product if bias is None else product + tf.reshape(bias, (-1, size))

    query, key, value = projected("query", x), projected("key", to), projected("value", to)
    if "rotary" in operator.settings:
        query, key = _rotated(operator, query), _rotated(operator, key)
    if (group := heads // operator.key_heads) > 1:
        key, value = (tf.repeat(heads_of, group, 2) for heads_of in (key, value))
    scores = tf.einsum("nphd,nqhd->nhpq", query, key) * query.shape[-1] ** -0.5
    if operator["causal"]:
        unseen = np.triu(np.full(scores.shape[2:], scores.dtype.min / 2, np.float32), 1)
        scores = scores + tf.constant(unseen)
    attended = tf.einsum("nhpq,nqhd->nphd", tf.nn.softmax(scores), value)
    kernel = tf.reshape(own["output_kernel"], (heads, -1, own["output_kernel"].shape[1]))
    product = tf.einsum("nphd,hdo->npo", attended, kernel)
    return product + own["output_bias"] if "output_bias" in own else product


def _rotated(operator: Operator, x: Any) -> Any:
    """Rotate pairs of units of [N, length, heads, units] by their position (models.initial)."""
    half = operator.head_size // 2
    cosines, sines = rotary_tables(operator)[:, :, None]
    first, second = x[..., :half], x[..., half:]
    return tf.concat([first * cosines - second * sines, second * cosines + first * sines], -1)


def _layer_norm(operator: Operator, x: Any, own: Weights) -> Any:
    """Normalize over the last axis (Ba et al. 2016)."""
    x = x - tf.reduce_mean(x, -1, keepdims=True)
    normal = x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + operator["epsilon"])
    return normal * own["scale"] + own["offset"]


def _batch_norm(
    operator: Operator, x: Any, own: Weights, replicas: int, training: bool
) -> tuple[Any, Tensors]:
    """Normalize over a replica's part of the batch in training, else by the running statistics.

    The running variance is unbiased (Ioffe & Szegedy 2015, algorithms 1 and 2).
    """
    shape, units = x.shape, x.shape[-1]
    x = tf.reshape(x, (replicas, shape[0] // replicas, *shape[1:]))
    broadcast_shape = (
        replicas,
        *[1] * (len(shape) - 1),
        units,
    )  # of a replica's statistics
    batch_statistics: Tensors = {}
    if training:
        axes, samples = list(range(1, len(shape))), math.prod(shape[:-1]) // replicas
        mean = tf.reduce_mean(x, axes)
        x = x - tf.reshape(mean, broadcast_shape)
        variance = tf.reduce_mean(tf.square(x), axes)
        share = operator["momentum"]
        batch_statistics = {
            "mean": share * own["mean"] + (1 - share) * mean,
            "variance": share * own["variance"] + (1 - share) * variance * (samples / (samples - 1)),
        }
    else:
        x, variance = x - tf.reshape(own["mean"], broadcast_shape), own["variance"]
    x = x * tf.reshape(tf.math.rsqrt(variance + operator["epsilon"]), broadcast_shape)
    return tf.reshape(x, shape) * own["scale"] + own["offset"], batch_statistics


def _dropout(x: Any, rate: float, seed: Any) -> Any:
    if seed is None or rate == 0:
        return x
    mask = tf.cast(tf.random.stateless_uniform(x.shape, seed) >= rate, x.dtype)
    return x * mask / (1 - rate)


def _join_products(x: Any, vectors: Any) -> Any:
    """Return vectors [N, units], and products of pairs among them and [N, count, units].

    Another product selects the pairs, since DTensor has no rule for gathering them.
    """
    joined = tf.concat([x[:, None], vectors], 1)
    n_vectors = joined.shape[1]
    pairs = np.flatnonzero(np.tri(n_vectors, k=-1))
    products = tf.reshape(tf.einsum("nau,nbu->nab", joined, joined), (x.shape[0], n_vectors**2))
    return tf.concat(
        [x, tf.matmul(products, tf.constant(np.eye(n_vectors**2, dtype=np.float32)[:, pairs]))], 1
    )


WITHOUT_WEIGHTS: dict[str, Callable[..., Any]] = {
    "activation": lambda operator, x: ACTIVATIONS[operator["function"]](x),
    "max_pool": lambda operator, x: tf.nn.max_pool2d(
        _padded(operator, x), operator["kernel"], operator["stride"], "VALID"
    ),
    "average_pool": lambda operator, x: tf.add_n(_windows(operator, x)) / math.prod(pair(operator["kernel"])),
    "global_average_pool": lambda _, x: tf.reduce_mean(x, [1, 2]),
    "add": lambda _, x, y: x + y,
    "multiply": lambda _, x, gate: x * gate,
    "multiply_channels": lambda _, x, gate: x * tf.reshape(gate, (gate.shape[0], 1, 1, gate.shape[1])),
    "concatenate": lambda _, *inputs: tf.concat(inputs, -1),
    "step": lambda operator, x: x[:, operator["index"]],
    "steps": lambda operator, x: x[:, operator["start"] : operator["stop"]],
    "gather": lambda _, x, positions: tf.einsum("nkp,npu->nku", tf.one_hot(positions, x.shape[1]), x),
    "log_counts": lambda _, x: tf.math.log1p(tf.cast(x, tf.float32)),
    "interactions": lambda _, x, vectors: _join_products(x, vectors),
    "flatten": lambda _, x: tf.reshape(x, (x.shape[0], -1)),
    "sequence": lambda operator, x: tf.reshape(x, (x.shape[0], *operator.shape)),
}
