"""Keras layers for operators that Keras lacks or computes differently; weights have the canonical names."""

from typing import Any

import numpy as np
import tensorflow as tf

from models.graph import Operator
from models.initial import rotary_tables


class Embedding(tf.keras.layers.Layer):
    """Embedding of tokens [N, length].

    The gradient of its table is dense, as in other libraries.
    """

    def __init__(self, vocabulary: int, units: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.table = self.add_weight("table", (vocabulary, units), experimental_autocast=False)

    def call(self, tokens: Any) -> Any:
        """See the class."""
        return tf.cast(_looked_up(tf.convert_to_tensor(self.table), tokens), self.compute_dtype)


class TiedDense(tf.keras.layers.Layer):
    """A dense layer without bias whose kernel is the table of an embedding, transposed."""

    def __init__(self, embedding: Embedding, **settings: Any) -> None:
        super().__init__(**settings)
        self.embedding = embedding

    def call(self, x: Any) -> Any:
        """Return logits [..., vocabulary] of vectors [..., units]."""
        table = tf.cast(tf.convert_to_tensor(self.embedding.table), self.compute_dtype)
        product = tf.matmul(tf.reshape(x, (-1, table.shape[1])), table, transpose_b=True)
        return tf.reshape(product, tf.concat([tf.shape(x)[:-1], table.shape[:1]], 0))


class RMSNorm(tf.keras.layers.Layer):
    """Divide vectors [..., units] by the root of their mean square, in float32 (Builder.rms_norm)."""

    def __init__(self, units: int, epsilon: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.epsilon = epsilon
        self.gamma = self.add_weight("gamma", (units,), experimental_autocast=False)

    def call(self, x: Any) -> Any:
        """See the class."""
        precise = tf.cast(x, tf.float32)
        mean = tf.reduce_mean(tf.square(precise), -1, keepdims=True)
        return tf.cast(precise * tf.math.rsqrt(mean + self.epsilon) * self.gamma, x.dtype)


class Positions(tf.keras.layers.Layer):
    """A sequence [N, length, units] plus a learned vector for each position."""

    def __init__(self, length: int, units: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.table = self.add_weight("table", (length, units))

    def call(self, x: Any) -> Any:
        """See the class."""
        return x + self.table


class AddVector(tf.keras.layers.Layer):
    """Vectors [..., units] plus a learned one."""

    def __init__(self, units: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.vector = self.add_weight("vector", (units,))

    def call(self, x: Any) -> Any:
        """See the class."""
        return x + self.vector


class ClassToken(tf.keras.layers.Layer):
    """A learned vector before a sequence [N, length, units]."""

    def __init__(self, units: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.token = self.add_weight("token", (units,))

    def call(self, x: Any) -> Any:
        """See the class."""
        return tf.concat([tf.broadcast_to(self.token, (tf.shape(x)[0], 1, self.token.shape[0])), x], 1)


class UpConv(tf.keras.layers.Layer):
    """A transposed convolution of images [N, H, W, C] whose windows do not overlap (Builder.up_conv)."""

    def __init__(self, operator: Operator, **settings: Any) -> None:
        super().__init__(**settings)
        self.stride, self.output_size = operator["stride"], operator.shape
        for weight, shape in operator.weights.items():
            setattr(self, weight, self.add_weight(weight, shape))

    def call(self, x: Any) -> Any:
        """See the class."""
        kernel = tf.transpose(tf.convert_to_tensor(self.kernel), (0, 1, 3, 2))
        size = (tf.shape(x)[0], *self.output_size)
        return tf.nn.conv2d_transpose(x, kernel, size, self.stride, "VALID") + self.bias


class Attention(tf.keras.layers.Layer):
    """Multi-head attention of sequences [N, length, units]."""

    def __init__(self, operator: Operator, **settings: Any) -> None:
        super().__init__(**settings)
        self.head_size, self.causal = operator.head_size, operator["causal"]
        self.group = operator["heads"] // operator.key_heads
        self.tables = rotary_tables(operator) if "rotary" in operator.settings else None
        for weight, shape in operator.weights.items():
            setattr(self, weight, self.add_weight(weight, shape))

    def call(self, x: Any, to: Any = None) -> Any:
        """Return the attention of each position of `x` to all of `to`, by default `x` (Builder.attention)."""
        to = x if to is None else to
        query, key, value = self._heads("query", x), self._heads("key", to), self._heads("value", to)
        if self.tables is not None:
            query, key = _rotated(query, self.tables), _rotated(key, self.tables)
        if self.group > 1:
            key, value = tf.repeat(key, self.group, 1), tf.repeat(value, self.group, 1)
        scores = tf.matmul(query, key, transpose_b=True) * query.shape[-1] ** -0.5
        if self.causal:
            visible = tf.linalg.band_part(tf.ones(scores.shape[2:], tf.bool), -1, 0)
            scores = tf.where(visible, scores, scores.dtype.min)
        product = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), (0, 2, 1, 3))
        return self._dense("output", tf.reshape(product, (-1, *x.shape[1:])))

    def _heads(self, part: str, x: Any) -> Any:
        product = self._dense(part, x)
        return tf.transpose(
            tf.reshape(product, (-1, product.shape[1], product.shape[2] // self.head_size, self.head_size)),
            (0, 2, 1, 3),
        )

    def _dense(self, part: str, x: Any) -> Any:
        product = tf.tensordot(x, getattr(self, f"{part}_kernel"), 1)
        bias = getattr(self, f"{part}_bias", None)
        return product if bias is None else product + bias


def join_products(x: Any, vectors: Any) -> Any:
    """Return vectors [N, units], and products of pairs among them and [N, count, units]."""
    joined = tf.concat([x[:, None], vectors], 1)
    n_vectors = joined.shape[1]
    products = tf.reshape(tf.matmul(joined, joined, transpose_b=True), (-1, n_vectors**2))
    return tf.concat([x, tf.gather(products, np.flatnonzero(np.tri(n_vectors, k=-1)), axis=1)], 1)


class Experts(tf.keras.layers.Layer):
    """A mixture of experts for sequences [N, length, units] (Builder.experts).

    Choices are copied to slots: `capacity` for each expert and sample, and a last one for what is dropped.
    """

    def __init__(self, operator: Operator, **settings: Any) -> None:
        super().__init__(**settings)
        self.operator = operator
        for weight, shape in operator.weights.items():
            if weight != "load":
                is_router = weight == "router_kernel"  # It computes in float32.
                weight_variable = self.add_weight(weight, shape, experimental_autocast=not is_router)
                setattr(self, weight, weight_variable)
        self.load = self.add_weight(
            "load",
            operator.weights["load"],
            dtype=tf.float32,
            trainable=False,
            experimental_autocast=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )

    def call(self, x: Any, training: bool = False) -> Any:
        """Return the sum of the outputs of each position's experts, without those that dropped it."""
        n_experts, top, capacity = (self.operator[name] for name in ("experts", "top", "capacity"))
        n, units = tf.shape(x)[0], x.shape[-1]
        logits = tf.tensordot(tf.cast(x, tf.float32), self.router_kernel, 1)
        scores, indices = tf.math.top_k(logits, top)
        chosen = tf.reshape(indices, (n, x.shape[1] * top))
        choices = tf.one_hot(chosen, n_experts, dtype=tf.int32)
        places = tf.gather(tf.cumsum(choices, 1), chosen, batch_dims=2) - 1
        is_kept, n_slots = places < capacity, n_experts * n * capacity
        slots = (chosen * n + tf.range(n)[:, None]) * capacity + places
        slots = tf.reshape(tf.where(is_kept, slots, n_slots), (-1, 1))
        copies = tf.repeat(tf.reshape(x, (-1, units)), top, 0)
        inputs = tf.scatter_nd(slots, copies, (n_slots + 1, units))[:-1]
        inputs = tf.reshape(inputs, (n_experts, n * capacity, units))
        hidden = tf.nn.silu(tf.matmul(inputs, self.gate_kernel)) * tf.matmul(inputs, self.up_kernel)
        computed = tf.reshape(tf.matmul(hidden, self.down_kernel), (-1, units))
        outputs = tf.gather_nd(tf.pad(computed, [[0, 1], [0, 0]]), slots)
        weights = tf.cast(tf.nn.softmax(scores), x.dtype)[..., None]
        output = tf.reduce_sum(tf.reshape(outputs, (n, *scores.shape[1:], units)) * weights, 2)
        if not training:
            return output
        counted = tf.cast(choices, tf.float32)
        loads = tf.reduce_mean(counted * tf.cast(is_kept, tf.float32)[..., None], (0, 1))
        self.load.assign_add(tf.concat([loads, [1 - tf.reduce_sum(loads)]], 0))
        products = tf.reduce_mean(counted, 1) * tf.reduce_mean(tf.nn.softmax(logits), 1)
        loss = self.operator["balance"] * n_experts * tf.reduce_mean(tf.reduce_sum(products, -1))
        return _with_loss(output, loss)


@tf.custom_gradient
def _with_loss(output: Any, loss: Any) -> Any:
    """Return the output; in the backward pass, the loss has the gradient 1, as if added to the model's."""
    return tf.identity(output), lambda gradient: (gradient, tf.ones_like(loss))


def _rotated(x: Any, tables: np.ndarray) -> Any:
    """Rotate pairs of units of [N, heads, length, units] by their position (models.initial), in float32."""
    cosines, sines = tables
    first, second = tf.split(tf.cast(x, tf.float32), 2, -1)
    pairs = [first * cosines - second * sines, second * cosines + first * sines]
    return tf.cast(tf.concat(pairs, -1), x.dtype)


@tf.custom_gradient
def _looked_up(table: Any, tokens: Any) -> Any:
    """Return the rows of a table [vocabulary, units] for tokens."""

    def back(gradient: Any) -> Any:
        rows = tf.reshape(gradient, (-1, table.shape[1]))
        return tf.math.unsorted_segment_sum(rows, tf.reshape(tokens, [-1]), table.shape[0]), None

    return tf.gather(table, tokens), back
