"""A model as a pure function of its weights, for JAX.

Weights, samples and shapes have the graph's own layout, channels last.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from models.graph import Graph, Operator, pair
from models.initial import rotary_tables

Arrays = dict[str, Array]
Weights = Mapping[str, Array]
#: attention of queries to keys and values, each [N, length, heads, units]; causal or not
Attend = Callable[[Array, Array, Array, bool], Array]

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "softmax": jax.nn.softmax,
}
#: what JAX keeps of recomputed blocks, by the level of checkpointing: nothing, or results of products
POLICIES = {"blocks": None, "selective": jax.checkpoint_policies.dots_saveable}
CONVOLUTION = ("NHWC", "HWIO", "NHWC")  # batches, kernels, outputs


def unfused_attention(query: Array, key: Array, value: Array, causal: bool) -> Array:
    """Return attention (see Attend) by two matrix products and a softmax."""
    return jax.nn.dot_product_attention(query, key, value, is_causal=causal, implementation="xla")


def forward(
    graph: Graph,
    weights: Weights,
    samples: Array,
    key: Array | None = None,
    dtype: Any = jnp.float32,
    attend: Attend = unfused_attention,
    checkpointing: str = "none",
) -> tuple[Array, Arrays]:
    """Return logits and updated running statistics.

    Args:
        graph: The model.
        weights: Its weights, with running statistics.
        samples: Images [N, H, W, C] or tokens [N, length].
        key: Key of dropout in training, which also uses statistics of this batch; None in evaluation.
        dtype: Data type of products.
        attend: Function that computes attention.
        checkpointing: Level of the factor: what the backward pass recomputes.

    Returns:
        Logits, float32 [N, classes] or [N, positions, vocabulary], and statistics by name.
    """
    outputs, statistics = {graph.operators[0].name: samples}, dict[str, Array]()
    steps = list(enumerate(graph.operators[1:]))
    blocks = [] if checkpointing == "none" else list(graph.blocks.values())
    first_of_blocks = {block[0].name: block for block in blocks}
    in_blocks = {operator.name for block in blocks for operator in block}
    for step in steps:
        if block := first_of_blocks.get(step[1].name):
            in_block = {operator.name for operator in block}
            names = {name for operator in block for name in operator.inputs if name not in in_block}
            results = [operator.name for operator in graph.block_outputs(block)]
            block_steps = [step for step in steps if step[1].name in in_block]

            def apply_block(
                inputs: Arrays, steps: Sequence[tuple[int, Operator]], results: Sequence[str]
            ) -> Arrays:
                computed, _ = _apply_steps(steps, inputs, weights, key, dtype, attend)
                return {name: computed[name] for name in results}

            apply = functools.partial(apply_block, steps=block_steps, results=results)
            inputs = {name: outputs[name] for name in names}
            outputs |= jax.checkpoint(apply, policy=POLICIES[checkpointing])(inputs)
        elif step[1].name not in in_blocks:
            computed, batch_statistics = _apply_steps([step], outputs, weights, key, dtype, attend)
            outputs, statistics = computed, statistics | batch_statistics
    return outputs[graph.operators[-1].name].astype(jnp.float32), statistics


def _apply_steps(
    steps: Sequence[tuple[int, Operator]],
    inputs: Arrays,
    weights: Weights,
    key: Array | None,
    dtype: Any,
    attend: Attend,
) -> tuple[Arrays, Arrays]:
    """Return `inputs` with the outputs of numbered operators, and running statistics (see forward)."""
    outputs, statistics = dict(inputs), dict[str, Array]()
    for number, operator in steps:
        operator_inputs = [outputs[name] for name in operator.inputs]
        operator_weights = {name: weights[f"{operator.name}.{name}"] for name in operator.weights}
        match operator.kind:
            case "batch_norm":
                outputs[operator.name], batch_statistics = _batch_norm(
                    operator, operator_inputs[0], operator_weights, training=key is not None
                )
                statistics |= {f"{operator.name}.{name}": value for name, value in batch_statistics.items()}
            case "dropout":
                drawn_from = None if key is None else jax.random.fold_in(key, number)
                outputs[operator.name] = _dropout(operator_inputs[0], operator["rate"], drawn_from)
            case "experts":
                outputs[operator.name], load = _experts(
                    operator, operator_inputs[0], operator_weights, dtype, training=key is not None
                )
                statistics |= {f"{operator.name}.load": load} if key is not None else {}
            case "tied_dense":
                outputs[operator.name] = (
                    operator_inputs[0].astype(dtype) @ weights[f"{operator['of']}.table"].astype(dtype).T
                )
            case "lstm":
                outputs[operator.name], outputs[f"{operator.name}.state"] = _lstm(
                    operator_inputs, operator_weights, dtype
                )
            case "final_state":
                outputs[operator.name] = outputs[f"{operator.inputs[0]}.state"]
            case _:
                outputs[operator.name] = _apply(operator, operator_inputs, operator_weights, dtype, attend)
    return outputs, statistics


def _apply(operator: Operator, inputs: list[Array], weights: Weights, dtype: Any, attend: Attend) -> Array:
    x = inputs[0]
    match operator.kind:
        case "conv" | "depthwise_conv":
            return _convolution(operator, x, weights, dtype)
        case "up_conv":
            return _up_convolution(operator, x, weights, dtype)
        case "dense":
            return _dense(x, weights["kernel"], weights.get("bias"), dtype)
        case "attention":
            return _attention(operator, x, inputs[-1], weights, dtype, attend)
        case "embedding":
            return weights["table"].astype(dtype)[x]
        case "positions":
            return x + weights["table"].astype(x.dtype)
        case "add_vector":
            return x + weights["vector"].astype(x.dtype)
        case "class_token":
            return jnp.concatenate(
                [jnp.broadcast_to(weights["token"].astype(x.dtype), (len(x), 1, x.shape[-1])), x], 1
            )
        case "layer_norm":
            return _layer_norm(operator, x, weights)
        case "rms_norm":
            return _rms_norm(operator, x, weights)
        case kind if kind in WITHOUT_WEIGHTS:
            return WITHOUT_WEIGHTS[kind](operator, *inputs)
    raise ValueError(f"JAX has no operator {operator.kind}")


def _dense(x: Array, kernel: Array, bias: Array | None, dtype: Any) -> Array:
    product = x.astype(dtype) @ kernel.astype(dtype)
    return product if bias is None else product + bias.astype(dtype)


def _convolution(operator: Operator, x: Array, weights: Weights, dtype: Any) -> Array:
    kernel, groups = weights["kernel"].astype(dtype), 1
    if operator.kind == "depthwise_conv":
        kernel, groups = kernel.transpose(0, 1, 3, 2), x.shape[-1]
    padding = [(zeros, zeros) for zeros in pair(operator["padding"])]
    settings = {"dimension_numbers": CONVOLUTION, "feature_group_count": groups}
    x = x.astype(dtype)
    if jax.default_backend() == "cpu" and (kernel.shape[0] > x.shape[1] or kernel.shape[1] > x.shape[2]):
        x = _convolution_of_pixels(operator, x, kernel)
    else:
        x = lax.conv_general_dilated(x, kernel, pair(operator["stride"]), padding, **settings)
    return x + weights["bias"].astype(dtype) if operator["bias"] else x


def _convolution_of_pixels(operator: Operator, x: Array, kernel: Array) -> Array:
    """Return the convolution of images smaller than the kernel, one product for each pixel of the output.

    A product uses only the part of the kernel that lies on the image. XLA's own convolution on CPUs took 10
    to 100 times as long on such images (jax 0.10, 512 channels, 1 x 1 to 4 x 4 pixels).
    """
    (rows, columns), (down, right) = pair(operator["padding"]), pair(operator["stride"])
    height, width, _ = operator.shape
    pixels = []
    for top in range(-rows, height * down - rows, down):
        for left in range(-columns, width * right - columns, right):
            bottom, end = max(0, top + kernel.shape[0]), max(0, left + kernel.shape[1])
            window = x[:, max(0, top) : bottom, max(0, left) : end]
            above, before = max(0, -top), max(0, -left)
            kernel_part = kernel[above : above + window.shape[1], before : before + window.shape[2]]
            if operator.kind == "depthwise_conv":
                pixels.append((window * kernel_part[:, :, 0]).sum((1, 2)))
            else:
                pixels.append(window.reshape(len(x), -1) @ kernel_part.reshape(-1, kernel_part.shape[-1]))
    return jnp.stack(pixels, 1).reshape(len(x), height, width, -1)


def _up_convolution(operator: Operator, x: Array, weights: Weights, dtype: Any) -> Array:
    """Return a transposed convolution, computed as a product, since its windows do not overlap."""
    product = jnp.einsum("nhwi,abio->nhawbo", x.astype(dtype), weights["kernel"].astype(dtype))
    return product.reshape(len(x), *operator.shape) + weights["bias"].astype(dtype)


def _windows(operator: Operator, x: Array, first: float, combine: Any) -> Array:
    padding = [(0, 0), *((zeros, zeros) for zeros in pair(operator["padding"])), (0, 0)]
    window, strides = ((1, *pair(operator[setting]), 1) for setting in ("kernel", "stride"))
    return lax.reduce_window(x, first, combine, window, strides, padding)


def _attention(
    operator: Operator, x: Array, to: Array, weights: Weights, dtype: Any, attend: Attend
) -> Array:
    def projected(part: str, values: Array) -> Array:
        return _dense(values, weights[f"{part}_kernel"], weights.get(f"{part}_bias"), dtype)

    query, key, value = (
        projected(part, values).reshape(*values.shape[:2], -1, operator.head_size)
        for part, values in (("query", x), ("key", to), ("value", to))
    )
    if "rotary" in operator.settings:
        tables = rotary_tables(operator)
        query, key = _rotated(query, tables), _rotated(key, tables)
    return projected("output", attend(query, key, value, operator["causal"]).reshape(x.shape))


def _rotated(x: Array, tables: np.ndarray) -> Array:
    """Rotate pairs of units of [N, length, heads, units] by their position (models.initial), in float32."""
    cosines, sines = tables[:, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    pairs = [first * cosines - second * sines, second * cosines + first * sines]
    return jnp.concatenate(pairs, -1).astype(x.dtype)


def _experts(
    operator: Operator, x: Array, weights: Weights, dtype: Any, training: bool
) -> tuple[Array, Array]:
    """Return the outputs of a mixture of experts (Builder.experts) for sequences, and its load.

    Choices are copied to slots, `capacity` for each expert and sample. Dropped choices have no slot.
    """
    (n, _, units), (n_experts, capacity) = x.shape, (operator["experts"], operator["capacity"])
    logits = x.astype(jnp.float32) @ weights["router_kernel"].astype(jnp.float32)
    scores, indices = lax.top_k(logits, operator["top"])
    chosen = indices.reshape(n, -1)
    choices = jax.nn.one_hot(chosen, n_experts, dtype=jnp.int32)
    places = jnp.take_along_axis(jnp.cumsum(choices, 1), chosen[..., None], -1)[..., 0] - 1
    is_kept, n_slots = places < capacity, n_experts * n * capacity
    slots = (chosen * n + jnp.arange(n)[:, None]) * capacity + places
    slots = jnp.where(is_kept, slots, n_slots).ravel()
    copies = jnp.repeat(x.reshape(-1, units), operator["top"], 0).astype(dtype)
    buffer = (
        jnp.zeros((n_slots, units), dtype).at[slots].set(copies, mode="drop").reshape(n_experts, -1, units)
    )
    gate, up, down = (weights[f"{part}_kernel"].astype(dtype) for part in ("gate", "up", "down"))
    computed = ((jax.nn.silu(buffer @ gate) * (buffer @ up)) @ down).reshape(-1, units)
    outputs = computed.at[slots].get(mode="fill", fill_value=0).reshape(*scores.shape, units)
    output = (outputs * jax.nn.softmax(scores).astype(dtype)[..., None]).sum(2)
    if not training:
        return output, weights["load"]
    loads = (choices * is_kept[..., None]).astype(jnp.float32).mean((0, 1))
    shares, probabilities = choices.astype(jnp.float32).mean(1), jax.nn.softmax(logits).mean(1)
    loss = operator["balance"] * n_experts * (shares * probabilities).sum(-1).mean()
    return _with_loss(output, loss), weights["load"] + jnp.append(loads, 1 - loads.sum())


@jax.custom_vjp
def _with_loss(output: Array, _loss: Array) -> Array:
    """Return the output; in the backward pass, the loss has the gradient 1, as if added to the model's."""
    return output


_with_loss.defvjp(lambda output, _: (output, None), lambda _, gradient: (gradient, jnp.float32(1)))


def _lstm(inputs: list[Array], weights: Weights, dtype: Any) -> tuple[Array, Array]:
    """Return the outputs at all positions, and the final state [N, 2, units]: hidden, cell.

    The initial state is the second input, or zeros.
    """
    recurrent, units = weights["recurrent_kernel"].astype(dtype), weights["recurrent_kernel"].shape[0]
    projected = _dense(inputs[0], weights["kernel"], weights["bias"], dtype)
    begin = inputs[1].astype(dtype) if inputs[1:] else jnp.zeros((len(projected), 2, units), dtype)

    def step(state: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, cell = state
        input_gate, forget_gate, candidate, output_gate = jnp.split(now + hidden @ recurrent, 4, -1)
        cell = jax.nn.sigmoid(forget_gate) * cell + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
        hidden = jax.nn.sigmoid(output_gate) * jnp.tanh(cell)
        return (hidden, cell), hidden

    state, outputs = lax.scan(step, (begin[:, 0], begin[:, 1]), projected.swapaxes(0, 1))
    return outputs.swapaxes(0, 1), jnp.stack(state, 1)


def _layer_norm(operator: Operator, x: Array, weights: Weights) -> Array:
    """Normalize over the last axis (Ba et al. 2016)."""
    precise = x.astype(jnp.float32)
    precise = precise - precise.mean(-1, keepdims=True)
    normal = precise * lax.rsqrt((precise**2).mean(-1, keepdims=True) + operator["epsilon"])
    return (normal * weights["scale"] + weights["offset"]).astype(x.dtype)


def _rms_norm(operator: Operator, x: Array, weights: Weights) -> Array:
    """Divide by the root of the mean square over the last axis (Zhang & Sennrich 2019)."""
    precise = x.astype(jnp.float32)
    normal = precise * lax.rsqrt((precise**2).mean(-1, keepdims=True) + operator["epsilon"])
    return (normal * weights["scale"]).astype(x.dtype)


def _batch_norm(operator: Operator, x: Array, weights: Weights, training: bool) -> tuple[Array, Arrays]:
    """Normalize over this batch in training, else by the running statistics.

    The running variance is unbiased (Ioffe & Szegedy 2015, algorithms 1 and 2).
    """
    mean, variance = weights["mean"], weights["variance"]
    batch_statistics: Arrays = {}
    if training:
        precise = x.astype(jnp.float32)
        axes, samples = tuple(range(x.ndim - 1)), math.prod(x.shape[:-1])
        mean, variance = precise.mean(axes), precise.var(axes)
        now = {"mean": mean, "variance": variance * (samples / (samples - 1))}
        share = operator["momentum"]
        batch_statistics = {
            name: share * weights[name] + (1 - share) * lax.stop_gradient(value)
            for name, value in now.items()
        }
    scale = weights["scale"] * lax.rsqrt(variance + operator["epsilon"])
    return ((x - mean) * scale + weights["offset"]).astype(x.dtype), batch_statistics


def _dropout(x: Array, rate: float, key: Array | None) -> Array:
    if key is None or rate == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def _join_products(x: Array, vectors: Array) -> Array:
    """Return vectors [N, units], and products of pairs among them and [N, count, units]."""
    joined = jnp.concatenate([x[:, None], vectors], 1)
    rows, columns = np.tril_indices(joined.shape[1], -1)
    return jnp.concatenate([x, (joined @ joined.swapaxes(1, 2))[:, rows, columns]], 1)


WITHOUT_WEIGHTS: dict[str, Callable[..., Array]] = {
    "activation": lambda operator, x: ACTIVATIONS[operator["function"]](x),
    "max_pool": lambda operator, x: _windows(operator, x, -jnp.inf, lax.max),
    "average_pool": lambda operator, x: (
        _windows(operator, x, 0.0, lax.add) / math.prod(pair(operator["kernel"]))
    ),
    "global_average_pool": lambda _, x: x.mean((1, 2)),
    "add": lambda _, x, y: x + y,
    "multiply": lambda _, x, gate: x * gate,
    "multiply_channels": lambda _, x, gate: x * gate[:, None, None, :],
    "concatenate": lambda _, *inputs: jnp.concatenate(inputs, -1),
    "step": lambda operator, x: x[:, operator["index"]],
    "steps": lambda operator, x: x[:, operator["start"] : operator["stop"]],
    "gather": lambda _, x, positions: jnp.take_along_axis(x, positions[..., None], 1),
    "log_counts": lambda _, x: jnp.log1p(x.astype(jnp.float32)),
    "interactions": lambda _, x, vectors: _join_products(x, vectors),
    "flatten": lambda _, x: x.reshape(len(x), -1),
    "sequence": lambda operator, x: x.reshape(len(x), *operator.shape),
}
