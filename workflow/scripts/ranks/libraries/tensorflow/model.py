"""Build a model as layers of Keras from its graph."""

from functools import partial
from typing import Any

import tensorflow as tf

from models.graph import Graph, Operator, pair
from ranks.libraries.tensorflow.layers import (
    AddVector,
    Attention,
    ClassToken,
    Embedding,
    Experts,
    Positions,
    RMSNorm,
    TiedDense,
    UpConv,
    join_products,
)

keras = tf.keras

ACTIVATIONS = {
    "gelu": tf.nn.gelu,
    "gelu_tanh": partial(tf.nn.gelu, approximate=True),
}  # Keras knows the others by name
#: names of a layer's weights that differ from those in a graph, except for depthwise kernels
WEIGHTS = {"scale": "gamma", "offset": "beta", "mean": "moving_mean", "variance": "moving_variance"}


def build(graph: Graph) -> Any:
    """Return the model as a Keras model.

    It maps images [N, H, W, C] or tokens [N, length] to logits [N, classes] or [N, positions, vocabulary],
    float32.
    """
    inputs, *operators = graph.operators
    samples = keras.Input(graph.shape, name=inputs.name, dtype=None if graph.vocabulary is None else "int64")
    outputs = {inputs.name: samples}
    for operator in operators:
        outputs[operator.name] = _apply_operator(operator, outputs)
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(outputs[operators[-1].name])
    return keras.Model(samples, logits, name=graph.model)


def _apply_operator(operator: Operator, outputs: dict[str, Any]) -> Any:
    """Return the output of an operator from `outputs`; a final_state has a list: hidden, cell."""
    layers, name, inputs = keras.layers, operator.name, [outputs[below] for below in operator.inputs]
    x = inputs[0]
    match operator.kind:
        case "conv" | "depthwise_conv":
            x, padding = _padded(operator, x)
            window = {
                "strides": operator["stride"],
                "padding": padding,
                "use_bias": operator["bias"],
                "name": name,
            }
            if operator.kind == "conv":
                return layers.Conv2D(operator["filters"], operator["kernel"], **window)(x)
            return layers.DepthwiseConv2D(operator["kernel"], **window)(x)
        case "up_conv":
            return UpConv(operator, name=name)(x)
        case "batch_norm":
            norm = layers.BatchNormalization(
                epsilon=operator["epsilon"], momentum=operator["momentum"], name=name
            )
            return norm(x)
        case "activation":
            return layers.Activation(ACTIVATIONS.get(operator["function"], operator["function"]), name=name)(
                x
            )
        case "max_pool" | "average_pool":
            x, padding = _padded(operator, x)
            pool = layers.MaxPooling2D if operator.kind == "max_pool" else layers.AveragePooling2D
            return pool(operator["kernel"], operator["stride"], padding, name=name)(x)
        case "global_average_pool":
            return layers.GlobalAveragePooling2D(name=name)(x)
        case "add" | "multiply" | "concatenate":
            return getattr(layers, operator.kind.capitalize())(name=name)(inputs)
        case "multiply_channels":
            gate = layers.Reshape((1, 1, operator.shape[-1]), name=f"{name}_gate")(inputs[1])
            return layers.Multiply(name=name)([x, gate])
        case "flatten":
            return layers.Flatten(name=name)(x)
        case "dense":
            return layers.Dense(operator["units"], use_bias="bias" in operator.weights, name=name)(x)
        case "dropout":
            return layers.Dropout(operator["rate"], name=name)(x)
    return _apply_to_sequences(operator, inputs, outputs)


def _apply_to_sequences(operator: Operator, inputs: list[Any], outputs: dict[str, Any]) -> Any:
    layers, name, x = keras.layers, operator.name, inputs[0]
    match operator.kind:
        case "layer_norm":
            return layers.LayerNormalization(epsilon=operator["epsilon"], name=name)(x)
        case "rms_norm":
            return RMSNorm(x.shape[-1], operator["epsilon"], name=name)(x)
        case "embedding":
            return Embedding(*operator.weights["table"], name=name)(x)
        case "tied_dense":
            return TiedDense(outputs[operator["of"]].node.layer, name=name)(x)
        case "add_vector":
            return AddVector(x.shape[-1], name=name)(x)
        case "positions":
            return Positions(*operator.shape, name=name)(x)
        case "class_token":
            return ClassToken(operator.shape[-1], name=name)(x)
        case "attention" | "experts":
            layer = Attention if operator.kind == "attention" else Experts
            return layer(operator, name=name)(*inputs)
        case "lstm":
            lstm = layers.LSTM(operator["units"], return_sequences=True, return_state=True, name=name)
            return lstm(x, initial_state=inputs[1] if inputs[1:] else None)[0]
        case "final_state":
            return x.node.outputs[1:]
        case "step" | "steps" | "gather" | "log_counts" | "interactions":
            return _without_layer(operator, x, *inputs[1:])
        case "sequence":
            return layers.Reshape(operator.shape, name=name)(x)
    raise ValueError(f"TensorFlow has no operator {operator.kind}")


def _without_layer(operator: Operator, x: Any, operand: Any = None) -> Any:
    """Return the output of an operator that needs no Keras layer."""
    match operator.kind:
        case "log_counts":
            return tf.math.log1p(tf.cast(x, tf.float32))
        case "interactions":
            return join_products(x, operand)
        case "step":
            return x[:, operator["index"]]
        case "steps":
            return x[:, operator["start"] : operator["stop"]]
    return tf.gather(x, operand, axis=1, batch_dims=1)


def _padded(operator: Operator, x: Any) -> tuple[Any, str]:
    """Return the padded input of a convolution or pooling, and Keras' name of its padding.

    Keras' "same" is asymmetric with a stride, and Keras' pooling ignores the zeros that "same" adds.
    """
    padding, kernel = pair(operator["padding"]), pair(operator["kernel"])
    pools = operator.kind in ("max_pool", "average_pool")
    if not pools and operator["stride"] == 1 and kernel == tuple(2 * zeros + 1 for zeros in padding):
        return x, "same"
    if any(padding):
        x = keras.layers.ZeroPadding2D(padding, name=f"{operator.name}_padding")(x)
    return x, "valid"


def variables(model: Any, graph: Graph) -> dict[str, Any]:
    """Return the variables of a graph's weights, by their names in it."""
    variables_by_name = {}
    for name in graph.weights():
        operator, _, weight = name.rpartition(".")
        layer, kind = model.get_layer(operator), graph.by_name[operator].kind
        depthwise = weight == "kernel" and kind == "depthwise_conv"
        owner = layer.cell if kind == "lstm" else layer
        variables_by_name[name] = getattr(
            owner, "depthwise_kernel" if depthwise else WEIGHTS.get(weight, weight)
        )
    return variables_by_name
