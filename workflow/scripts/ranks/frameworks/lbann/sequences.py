"""Build LBANN's layers of operators of sequences.

A sequence has the dimensions (length, units); LBANN treats the first one as channels. An LSTM is unrolled
into a few layers for each position, as in LBANN's module LSTMCell. Each head of an attention has its own
layers.
"""

import itertools
import math

import numpy as np

from models.graph import Graph, Operator
from ranks.frameworks.lbann.layer import Layer, activation, layer

MASKED = -1e9  # added to the scores of later positions
UNKNOWN_SETTINGS = {"key_heads", "rotary"}  # settings of attention that these layers do not support
MASK = "causal_mask.{}"  # name of the constant weights, by the length of the sequence


def constants(graph: Graph) -> dict[str, np.ndarray]:
    """Return the constant weights that the model lacks: causal masks, float32 [length, length]."""
    lengths = {
        operator.shape[0]
        for operator in graph.operators
        if operator.kind == "attention" and operator["causal"]
    }
    return {MASK.format(n): np.triu(np.full((n, n), MASKED, np.float32), 1) for n in sorted(lengths)}


def tokens(name: str, graph: Graph) -> list[Layer]:
    """Return the input layers of a graph of tokens.

    Samples hold the tokens, followed by the labels of positions, if there are any.
    """
    (length,) = graph.shape
    positions = labelled(graph)
    if not positions:
        return [layer(name, [], "input", data_field="samples")]
    samples, parts = f"{name}.samples", f"{name}.parts"
    return [
        layer(samples, [], "input", data_field="samples"),
        layer(parts, [samples], "slice", axis=0, slice_points=[0, length, length + positions]),
        layer(name, [parts], "reshape", dims=[length]),
        layer("labels", [parts], "reshape", dims=[positions]),
    ]


def labelled(graph: Graph) -> int:
    """Return the number of positions that have a label, 0 if a sample has one label."""
    return graph.operators[-1].shape[0] if len(graph.operators[-1].shape) == 2 else 0


def objective(logits: str, graph: Graph) -> list[Layer]:
    """Return the layers of loss and accuracy of a model with logits at each position (means)."""
    length, vocabulary = graph.operators[-1].shape
    numbers = range(length)
    log, hot, right = (
        [f"{kind}.{i}" for i in numbers] for kind in ("log_probabilities", "one_hot", "accuracy")
    )
    built = [
        layer("logits", [logits], "reshape", dims=[length * vocabulary]),
        layer(
            "logits.parts",
            ["logits"],
            "slice",
            axis=0,
            slice_points=[vocabulary * i for i in range(length + 1)],
        ),
        layer("labels.parts", ["labels"], "slice", axis=0, slice_points=list(range(length + 1))),
    ]
    for i in numbers:
        built += [
            layer(log[i], ["logits.parts"], "log_softmax"),
            layer(hot[i], ["labels.parts"], "one_hot", size=vocabulary),
            layer(right[i], [log[i], hot[i]], "categorical_accuracy"),
        ]
    return [
        *built,
        layer("log_probabilities", log, "concatenation", axis=0),
        layer("one_hot", hot, "concatenation", axis=0),
        layer("labelled", ["log_probabilities", "one_hot"], "hadamard"),
        layer("log_likelihood", ["labelled"], "reduction", mode="sum"),
        layer("loss", ["log_likelihood"], "weighted_sum", scaling_factors=[-1 / length]),
        layer("accuracy", right, "weighted_sum", scaling_factors=[1 / length] * length),
    ]


def layers(operator: Operator, inputs: list[str], graph: Graph, device: str) -> list[Layer]:
    """Return the layers of an operator of sequences; the last one has its name and is its output.

    Raises:
        ValueError: If LBANN lacks the operator.
    """
    name, shape = operator.name, operator.shape
    weights = [f"{name}.{weight}" for weight in operator.weights]
    below = graph.by_name[operator.inputs[0]].shape
    match operator.kind:
        case "embedding":
            vocabulary, units = operator.weights["table"]
            return [layer(name, inputs, "embedding", weights, num_embeddings=vocabulary, embedding_dim=units)]
        case "positions":
            table = f"{name}.learned"
            return [_weights(table, weights[0], shape), layer(name, [*inputs, table], "sum")]
        case "class_token":
            token = f"{name}.learned"
            return [
                _weights(token, weights[0], (1, shape[1])),
                layer(name, [token, *inputs], "concatenation", axis=0),
            ]
        case "dense":
            return [_dense(name, inputs, weights, shape[-1])]
        case "tied_dense" if len(shape) == 2:
            tables = [f"{operator['of']}.table"]
            settings = {"bias": {"value": False}, "transpose": {"value": True}}
            return [
                layer(
                    name,
                    inputs,
                    "channelwise_fully_connected",
                    tables,
                    output_channel_dims=shape[-1:],
                    **settings,
                )
            ]
        case "layer_norm":
            return _layer_norm(operator, inputs, weights)
        case "attention" if UNKNOWN_SETTINGS.isdisjoint(operator.settings):
            return _attention(operator, inputs)
        case "lstm":
            return _lstm(operator, inputs, below[0], device)
        case "final_state":
            (lstm,) = inputs
            last, units = below[0] - 1, shape[1]
            joined = f"{name}.joined"
            return [
                layer(joined, [f"{lstm}.output{last}", f"{lstm}.cell{last}"], "concatenation", axis=0),
                layer(name, [joined], "reshape", dims=[2, units]),
            ]
        case "step" | "steps":
            start = operator["index"] % below[0] if operator.kind == "step" else operator["start"]
            stop = start + 1 if operator.kind == "step" else operator["stop"]
            part = f"{name}.part"  # A slice has one child for each of its outputs.
            return [
                layer(part, inputs, "slice", axis=0, slice_points=[start, stop]),
                layer(name, [part], "reshape", dims=list(shape)),
            ]
    raise ValueError(f"no layer of LBANN is known for {operator.kind}")


def _dense(name: str, inputs: list[str], weights: list[str], units: int) -> Layer:
    """Return the layers of a dense operator at each position; without bias it has one weight."""
    settings = {"bias": {"value": len(weights) > 1}, "transpose": {"value": False}}
    return layer(
        name, inputs, "channelwise_fully_connected", weights, output_channel_dims=[units], **settings
    )


def _weights(name: str, weights: str, dims: tuple[int, ...]) -> Layer:
    """Return a layer whose output is weights, the same for every sample."""
    return layer(name, [], "weights_layer", [weights], dims=list(dims))


def _layer_norm(operator: Operator, inputs: list[str], weights: list[str]) -> list[Layer]:
    """Return a layer normalization by a channel for each position, since LBANN's normalizes whole samples."""
    name, epsilon, dims = operator.name, {"value": operator["epsilon"]}, list(operator.shape)
    if len(dims) == 1:
        return [layer(name, inputs, "layer_norm", weights, epsilon=epsilon, scale=True, bias=True)]
    built = [layer(f"{name}.plain", inputs, "instance_norm", epsilon=epsilon)]
    for weight in weights:
        built.append(_weights(weight, weight, (1, dims[1])))
        built.append(layer(f"{weight}.tiled", [weight], "tessellate", dims=dims))
    scale, offset = (f"{weight}.tiled" for weight in weights)
    return [
        *built,
        layer(f"{name}.scaled", [f"{name}.plain", scale], "hadamard"),
        layer(name, [f"{name}.scaled", offset], "sum"),
    ]


def _attention(operator: Operator, inputs: list[str]) -> list[Layer]:
    """Return the layers of an attention, head by head.

    Scores are [length, length of keys], and outputs [length, units of a head].
    """
    name, heads, (length, units) = operator.name, operator["heads"], operator.shape
    size = units // heads

    def projected(output: str, part: str, sources: list[str]) -> Layer:
        weights = [f"{part}_{weight}" for weight in ("kernel", "bias")]
        weight_names = [f"{name}.{weight}" for weight in weights if weight in operator.weights]
        return _dense(output, sources, weight_names, units)

    built = [
        projected(f"{name}.{part}", part, [source])
        for part, source in (("query", inputs[0]), ("key", inputs[-1]), ("value", inputs[-1]))
    ]
    built.append(
        layer(f"{name}.scaled", [f"{name}.query"], "weighted_sum", scaling_factors=[1 / math.sqrt(size)])
    )
    query, key, value = (f"{name}.{part}" for part in ("scaled", "key", "value"))
    if operator["causal"]:
        built.append(_weights(f"{name}.mask", MASK.format(length), (length, length)))
    if heads > 1:
        points = list(range(0, units + 1, size))
        built += [
            layer(f"{part}.heads", [part], "slice", axis=1, slice_points=points)
            for part in (query, key, value)
        ]
        query, key, value = (f"{part}.heads" for part in (query, key, value))
    for head in range(1, heads + 1):
        head_name = f"{name}.head{head}"
        scores = f"{head_name}.scores"
        built.append(layer(scores, [query, key], "matmul", transpose_a=False, transpose_b=True))
        if operator["causal"]:
            scores = f"{head_name}.masked"
            built.append(layer(scores, [f"{head_name}.scores", f"{name}.mask"], "sum"))
        built += [
            layer(f"{head_name}.shares", [scores], "channelwise_softmax"),
            layer(head_name, [f"{head_name}.shares", value], "matmul", transpose_a=False, transpose_b=False),
        ]
    heads_outputs = [f"{name}.head{head}" for head in range(1, heads + 1)]
    if heads > 1:
        built.append(layer(f"{name}.heads", heads_outputs, "concatenation", axis=1))
        heads_outputs = [f"{name}.heads"]
    return [*built, projected(name, "output", heads_outputs)]


def _lstm(operator: Operator, inputs: list[str], length: int, device: str) -> list[Layer]:
    """Return the layers of an LSTM.

    The products of inputs with the kernel are computed for all positions at once; then each position is a few
    layers of vectors.
    """
    name, units = operator.name, operator["units"]
    kernel, recurrent, bias = (f"{name}.{weight}" for weight in ("kernel", "recurrent_kernel", "bias"))
    of_inputs, parts = f"{name}.inputs", f"{name}.parts"
    built = [
        _dense(of_inputs, inputs[:1], [kernel, bias], 4 * units),
        layer(f"{of_inputs}.flat", [of_inputs], "reshape", dims=[length * 4 * units]),
        layer(
            parts,
            [f"{of_inputs}.flat"],
            "slice",
            axis=0,
            slice_points=[4 * units * i for i in range(length + 1)],
        ),
        *_begin(name, inputs[1:], units),
    ]
    output, cell = f"{name}.output", f"{name}.cell"
    for i in range(length):
        now, before = f"{name}.step{i}", "" if i == 0 else i - 1
        built += [
            layer(
                f"{now}.recurrent",
                [f"{output}{before}"],
                "fully_connected",
                [recurrent],
                num_neurons=4 * units,
                has_bias=False,
            ),
            layer(f"{now}.sum", [parts, f"{now}.recurrent"], "sum"),
            layer(
                f"{now}.gates",
                [f"{now}.sum"],
                "slice",
                axis=0,
                slice_points=[units * gate for gate in range(5)],
            ),
            *itertools.chain.from_iterable(
                activation(f"{now}.{gate}", [f"{now}.gates"], function, device)
                for gate, function in (
                    ("in", "sigmoid"),
                    ("forget", "sigmoid"),
                    ("candidate", "tanh"),
                    ("out", "sigmoid"),
                )
            ),
            layer(f"{now}.kept", [f"{now}.forget", f"{cell}{before}"], "hadamard"),
            layer(f"{now}.added", [f"{now}.in", f"{now}.candidate"], "hadamard"),
            layer(f"{cell}{i}", [f"{now}.kept", f"{now}.added"], "sum"),
            *activation(f"{now}.bounded", [f"{cell}{i}"], "tanh", device),
            layer(f"{output}{i}", [f"{now}.out", f"{now}.bounded"], "hadamard"),
        ]
    joined = f"{name}.joined"
    return [
        *built,
        layer(joined, [f"{output}{i}" for i in range(length)], "concatenation", axis=0),
        layer(name, [joined], "reshape", dims=[length, units]),
    ]


def _begin(name: str, states: list[str], units: int) -> list[Layer]:
    """Return output and cell before the first position: zeros, or the parts of an initial state."""
    output, cell = f"{name}.output", f"{name}.cell"
    if not states:
        return [layer(begin, [], "constant", value=0.0, num_neurons=[units]) for begin in (output, cell)]
    flat, parts = f"{name}.state", f"{name}.state.parts"
    return [
        layer(flat, states, "reshape", dims=[2 * units]),
        layer(parts, [flat], "slice", axis=0, slice_points=[0, units, 2 * units]),
        layer(output, [parts], "reshape", dims=[units]),
        layer(cell, [parts], "reshape", dims=[units]),
    ]
