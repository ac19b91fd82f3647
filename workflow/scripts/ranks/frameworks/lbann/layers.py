"""Build LBANN's layers and weights of a model from the graph of operators that every library uses.

Images are channels first: `samples` of a reader must have the dimensions (channels, height, width), and
`labels` is one-hot. For tokens, `samples` has the tokens, followed by the labels if each position has one.
The sources are LBANN v0.104 and its version of October 2024: src/proto/*.proto for names, src/layers and
src/weights for behaviour.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from models.graph import Graph, Operator, is_decayed, is_trained
from ranks.frameworks.lbann import sequences
from ranks.frameworks.lbann.layer import Layer, activation, layer
from ranks.frameworks.lbann.output import LOSS, UNIT
from ranks.frameworks.lbann.prototext import Message, Word
from ranks.libraries.channels_first import channels_first

IN_PLACE = ("relu", "dropout")  # layers that can write their output over their input
# Layers that do not need their output, so that another layer can overwrite a reshape of it.
COPIED = ("slice", "concatenation")
NORMALIZATION = "normalization"  # the weights of the layer that normalizes pixels


def model(
    graph: Graph,
    folder: Path,
    *,
    device: str = "cpu",
    weight_decay: float = 0.0,
    normalized: bool = True,
    parallelism: str = "data",
) -> Message:
    """Return the fields of `model` that a graph determines: layers, weights, objective and accuracy.

    Weight decay is LBANN's L2 regularization of kernels. It yields the same gradients as in other libraries,
    but the printed objective includes weight_decay / 2 times the sum of squares. The loss without it is a
    metric.

    Args:
        graph: The model.
        folder: Folder into which `save` has written the weights, an absolute path.
        device: cpu or cuda.
        weight_decay: Factor of the regularization.
        normalized: Whether samples are normalized already; else they are pixels, and `save_normalization` has
            written their mean and deviation.
        parallelism: Level of the factor.

    Raises:
        ValueError: If LBANN cannot compute an operator as the graph defines it.
    """
    decayed = [name for name in graph.weights() if is_decayed(name, "kernels")]
    regularization = [{"scale_factor": weight_decay, "weights": decayed}] if weight_decay else []
    constant = [*sequences.constants(graph), *([] if normalized else [NORMALIZATION])]
    return {
        "disable_cuda": device == "cpu",
        "objective_function": {
            "layer_term": {"scale_factor": 1.0, "layer": "loss"},
            "l2_weight_regularization": regularization,
        },
        "metric": [
            {"layer_metric": {"layer": "loss", "name": LOSS, "unit": UNIT}},
            {"layer_metric": {"layer": "accuracy", "name": "accuracy", "unit": "%"}},
        ],
        "layer": layers(graph, device, normalized, parallelism),
        "weights": [
            {
                "name": name,
                "optimizer": [{"no_optimizer": {}}]
                if name in constant or not is_trained(name)
                else [],  # the experiment's own
                "initializer": {"numpy_initializer": {"file": str(file_of(name, folder))}},
            }
            for name in (*graph.weights(), *constant)
        ],
    }


def file_of(weight: str, folder: Path) -> Path:
    """Return the file to which `save` writes a weight."""
    return folder / f"{weight}.npy"


def save(weights: Mapping[str, np.ndarray], graph: Graph, folder: Path) -> None:
    """Write canonical weights to `folder`, one file each, in LBANN's layout (ranks.libraries.channels_first).

    LBANN reads float32 in row-major order: kernels [out, in, height, width] of convolutions, [out, in] of
    dense operators, vectors [channels] of all others, and tables of embeddings [units, vocabulary]. Constants
    that layers need in addition to the graph's weights are written too (sequences.constants).
    """
    for name, weight in weights.items():
        operator = graph.by_name[name.rpartition(".")[0]]
        array = channels_first(weight, operator, graph)
        np.save(
            file_of(name, folder), np.ascontiguousarray(array.T) if operator.kind == "embedding" else array
        )
    for name, constant in sequences.constants(graph).items():
        np.save(file_of(name, folder), constant)


def save_normalization(mean: Sequence[float], std: Sequence[float], folder: Path) -> None:
    """Write the constants that normalize pixels, x / std - mean / std, float32 [channels, 2]."""
    scale = 1 / np.asarray(std, np.float64)
    np.save(
        file_of(NORMALIZATION, folder),
        np.stack([scale, -np.asarray(mean) * scale], axis=1).astype(np.float32),
    )


def layers(
    graph: Graph, device: str = "cpu", normalized: bool = True, parallelism: str = "data"
) -> list[Layer]:
    """Return the layers of a graph and of its objective: log-probabilities, labels, loss, accuracy.

    Raises:
        ValueError: As in `model`.
    """
    built: list[Layer] = []
    outputs: dict[str, str] = {}  # layer with the output of each operator
    for operator in graph.operators:
        inputs = [outputs[name] for name in operator.inputs]
        # A dense layer flattens its input itself, channels first.
        if operator.kind == "flatten":
            outputs[operator.name] = inputs[0]
            continue
        try:
            built += _layers(operator, inputs, graph, device, normalized)
        except ValueError as error:
            raise ValueError(f"LBANN cannot compute {operator.name} of {graph.model}: {error}") from None
        outputs[operator.name] = operator.name
    logits = outputs[graph.operators[-1].name]
    built += sequences.objective(logits, graph) if sequences.labelled(graph) else _objective(logits)
    if parallelism == "dense":
        _divide(built, graph)
    _check_names(built, graph)
    _check_in_place(built, graph)
    return [
        {**entry, "children": [child["name"] for child in built if entry["name"] in child["parents"]]}
        for entry in built
    ]


def _objective(logits: str) -> list[Layer]:
    """Return the layers of loss and accuracy of a classifier."""
    return [
        layer("log_probabilities", [logits], "log_softmax"),
        layer("labels", [], "input", data_field="labels"),
        # LBANN's cross-entropy of a softmax is infinite if a probability rounds to 0.
        layer("labelled", ["log_probabilities", "labels"], "hadamard"),
        layer("log_likelihood", ["labelled"], "reduction", mode="sum"),
        layer("loss", ["log_likelihood"], "weighted_sum", scaling_factors=[-1.0]),
        layer("accuracy", ["log_probabilities", "labels"], "categorical_accuracy"),
    ]


def _divide(built: list[Layer], graph: Graph) -> None:
    """Partition the weights of dense layers among ranks.

    Raises:
        ValueError: If a dense layer is of a sequence.
    """
    dense = [operator.name for operator in graph.operators if operator.kind == "dense"]
    for entry in built:
        if entry["name"] in dense:
            if "fully_connected" not in entry:
                raise ValueError(
                    f"LBANN cannot divide {entry['name']} of {graph.model}, which is of a sequence, "
                    "among ranks"
                )
            entry["data_layout"] = "model_parallel"


def _layers(
    operator: Operator, inputs: list[str], graph: Graph, device: str, normalized: bool
) -> list[Layer]:
    """Return the layers of one operator; the last one has its name and is its output."""
    name, channels = operator.name, operator.shape[-1]
    weights = [f"{name}.{weight}" for weight in operator.weights]
    match operator.kind:
        case "input":
            return _input(name, normalized) if graph.vocabulary is None else sequences.tokens(name, graph)
        case "conv" | "depthwise_conv":
            groups = channels if operator.kind == "depthwise_conv" else 1
            if groups > 1 and device == "cpu":
                raise ValueError(f"on processors its convolutions have one group, not {groups}")
            return [
                layer(
                    name,
                    inputs,
                    "convolution",
                    weights,
                    num_dims=2,
                    out_channels=channels,
                    kernel_size=operator["kernel"],
                    stride=operator["stride"],
                    padding=operator["padding"],
                    groups={"value": groups},
                    has_bias={"value": operator["bias"]},
                    # Tensor cores would round to half precision.
                    conv_tensor_op_mode=Word("NO_TENSOR_OPS"),
                )
            ]
        case "batch_norm":
            decay, epsilon = operator["momentum"], operator["epsilon"]
            if not (decay and epsilon):
                raise ValueError("a momentum or epsilon of 0 means its own default there")
            # Each rank keeps its own statistics. Bessel's correction would also apply to the normalization.
            settings = {"statistics_group_size": 1, "no_bessel_correction": True}
            return [
                layer(name, inputs, "batch_normalization", weights, decay=decay, epsilon=epsilon, **settings)
            ]
        case "activation":
            return activation(name, inputs, operator["function"], device)
        case "max_pool" | "average_pool":
            return [
                layer(
                    name,
                    inputs,
                    "pooling",
                    pool_mode=operator.kind.removesuffix("_pool"),
                    num_dims=2,
                    pool_dims_i=operator["kernel"],
                    pool_strides_i=operator["stride"],
                    pool_pads_i=operator["padding"],
                )
            ]
        case "global_average_pool" | "add" | "multiply":
            kinds = {"add": "sum", "multiply": "hadamard"}
            return [layer(name, inputs, kinds.get(operator.kind, "channelwise_mean"))]
        case "concatenate":
            return [
                layer(
                    name,
                    inputs,
                    "concatenation",
                    axis=0 if len(operator.shape) == 3 else len(operator.shape) - 1,
                )
            ]
        case "multiply_channels":
            height, width, _ = operator.shape
            column, tiled = f"{name}.column", f"{name}.tiled"
            return [
                layer(column, inputs[1:], "reshape", dims=[channels, 1, 1]),
                layer(tiled, [column], "tessellate", dims=[channels, height, width]),
                layer(name, [inputs[0], tiled], "hadamard"),
            ]
        case "dense" if len(operator.shape) == 1:
            has_bias = "bias" in operator.weights
            return [layer(name, inputs, "fully_connected", weights, num_neurons=channels, has_bias=has_bias)]
        case "dropout":
            return [layer(name, inputs, "dropout", keep_prob=1.0 - operator["rate"])]
    return sequences.layers(operator, inputs, graph, device)


def _input(name: str, normalized: bool) -> list[Layer]:
    if normalized:
        return [layer(name, [], "input", data_field="samples")]
    pixels = f"{name}.pixels"
    normalize = layer(name, [pixels], "channelwise_scale_bias", [NORMALIZATION])
    return [layer(pixels, [], "input", data_field="samples"), normalize]


def _check_names(built: list[Layer], graph: Graph) -> None:
    """Raise ValueError if two layers have the same name, since references would be ambiguous."""
    (name, count), *_ = Counter(entry["name"] for entry in built).most_common(1)
    if count > 1:
        raise ValueError(
            f"LBANN cannot compute {name} of {graph.model}: another layer has the same name; "
            "rename the operator"
        )


def _check_in_place(built: list[Layer], graph: Graph) -> None:
    """Raise ValueError if a layer that works in place would overwrite values that another layer needs.

    LBANN checks only whether the parent needs its output. It does not check other layers, nor the source of a
    reshape. It crashes if only a sum uses the output, since a sum allocates no gradient to pass back.
    """
    by_name = {entry["name"]: entry for entry in built}
    users = Counter(parent for entry in built for parent in entry["parents"])
    summed = {
        parent for entry in built if "sum" in entry for parent in entry["parents"] if users[parent] == 1
    }
    for entry in built:
        if not any(kind in entry for kind in IN_PLACE):
            continue
        (below,) = entry["parents"]
        source = by_name[below]["parents"][0] if "reshape" in by_name[below] else None
        if source and not any(kind in by_name[source] for kind in COPIED):
            reason = f"it would overwrite the output of {source}, which may need it"
        elif users[below] > 1:
            reason = f"it would overwrite the output of {below}, which other layers use"
        elif entry["name"] in summed:
            reason = "its gradient is lost if only a sum uses its output"
        else:
            continue
        raise ValueError(f"LBANN cannot compute {entry['name']} of {graph.model}: {reason}")
