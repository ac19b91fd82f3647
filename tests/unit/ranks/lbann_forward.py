"""Compute models as LBANN computes its layers, and compare with PyTorch; runs in PyTorch's environment.

python lbann_forward.py CASES.json OUT.npz

Each case is a graph, the prototext that was made of it, and its weights; numbers are float64, so that any
difference is an error. What a layer does, and how it takes its weights, was read in LBANN's sources (v0.104):
src/layers, src/operators, src/weights/initializer.cpp.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from models.graph import Graph, from_json, is_trained
from ranks.libraries.channels_first import canonical
from ranks.libraries.pytorch.model import build, load, tensors
from ranks.libraries.pytorch.trainer import cross_entropy
from support.prototexts import Fields, parsed

SAMPLES = 4
LISTS = (
    "dims",
    "scaling_factors",
    "kernel_size",
    "padding",
    "slice_points",
    "output_channel_dims",
    "num_neurons",
)
OPERATORS = {
    "SigmoidOperator": torch.sigmoid,
    "TanhOperator": torch.tanh,
    "GeluOperator": lambda x: functional.gelu(x, approximate="tanh"),
}
SIMPLE = {
    "input": lambda x: x,
    "relu": torch.relu,
    "sum": torch.add,
    "hadamard": lambda x, y: x * y.reshape(x.shape),  # entry by entry: nothing is broadcast
    "channelwise_mean": lambda x: x.mean((2, 3)),
    "log_softmax": lambda x: x.log_softmax(1),
    "channelwise_softmax": lambda x: x.flatten(2).softmax(2).reshape(x.shape),
    "categorical_accuracy": lambda x, labels: (x.argmax(1) == labels.argmax(1)).float(),
}


class Lbann:
    """The layers of a prototext; its `weights` are read from the files that it names."""

    def __init__(self, model: Fields) -> None:
        self.layers = {layer["name"][0]: layer for layer in model["layer"]}
        self.weights = {}
        for entry in model["weights"]:
            loaded = np.load(entry["initializer"][0]["numpy_initializer"][0]["file"][0])
            trained = entry.get("optimizer") != [{"no_optimizer": [{}]}]
            self.weights[entry["name"][0]] = torch.from_numpy(loaded).double().requires_grad_(trained)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor, training: bool) -> dict[str, torch.Tensor]:
        """Return every layer's output for images [N, C, H, W] and one-hot labels [N, classes]."""
        fields, outputs = {"samples": images, "labels": labels}, {}
        while len(outputs) < len(self.layers):
            before = len(outputs)
            for name, layer in self.layers.items():
                parents = layer.get("parents", [])
                if name not in outputs and all(parent in outputs for parent in parents):
                    (kind,) = set(layer) - {"name", "parents", "children", "weights"}
                    inputs = [self._layer_input(outputs[parent], parent, name) for parent in parents]
                    if kind == "input":
                        inputs = [fields[layer[kind][0]["data_field"][0]]]
                    if not inputs:  # what is the same for every sample
                        inputs = [images]
                    own = [self.weights[weight] for weight in layer.get("weights", [])]
                    settings = {
                        key: values if key in LISTS else values[0] for key, values in layer[kind][0].items()
                    }
                    outputs[name] = computed(kind, settings, inputs, own, training)
            assert len(outputs) > before, "parents that are not there"
        return outputs

    def _layer_input(self, output: Any, parent: str, child: str) -> torch.Tensor:
        """Return a layer's output for a child; if it has several outputs, the one at the child's position."""
        return output[self.layers[parent]["children"].index(child)] if isinstance(output, tuple) else output


def computed(
    kind: str, settings: dict[str, Any], inputs: list[Any], weights: list[Any], training: bool
) -> torch.Tensor:
    """Return the output of one layer from the outputs of its parents."""
    x = inputs[0]
    match kind:
        case "convolution":
            assert settings["num_dims"] == 2 and len(weights) == 1 + settings["has_bias"]["value"][0]
            groups = settings["groups"]["value"][0]
            size, padding = (
                2 * settings[key] if len(settings[key]) == 1 else settings[key]
                for key in ("kernel_size", "padding")
            )
            kernel = weights[0].reshape(settings["out_channels"], x.shape[1] // groups, *size)
            bias = weights[1] if len(weights) == 2 else None
            return functional.conv2d(x, kernel, bias, settings["stride"], padding, groups=groups)
        case "fully_connected":
            flat = x.flatten(1)
            assert len(weights) == 1 + settings["has_bias"] and weights[0].shape == (
                *settings["num_neurons"],
                flat.shape[1],
            )
            return flat @ weights[0].T + (weights[1] if settings["has_bias"] else 0)
        case "batch_normalization":
            scale, offset, mean, variance = (weight.reshape(-1, 1, 1) for weight in weights)
            assert settings["statistics_group_size"] == 1
            if training:
                samples = x.numel() / x.shape[1]
                mean = x.mean((0, 2, 3), keepdim=True)
                biased = (x * x).mean((0, 2, 3), keepdim=True) - mean * mean
                variance = samples * biased / (samples - (not settings["no_bessel_correction"]))
                variance = variance.clamp(min=settings["epsilon"])
            return scale * (x - mean) / torch.sqrt(variance + settings["epsilon"]) + offset
        case "pooling":
            pool = {"max": functional.max_pool2d, "average": functional.avg_pool2d}[settings["pool_mode"]]
            return pool(
                functional.pad(x, 4 * [settings["pool_pads_i"]]),
                settings["pool_dims_i"],
                settings["pool_strides_i"],
            )
        case "operator_layer":
            function = settings["ops"]["parameters"][0]["type_url"][0]
            return OPERATORS[function.rpartition(".")[2]](x)
        case "concatenation":
            return torch.cat(inputs, 1 + settings["axis"])  # its axes are those of a sample
        case "reshape":
            return x.reshape(-1, *settings["dims"])
        case "tessellate":
            return x.repeat(1, *(new // old for new, old in zip(settings["dims"], x.shape[1:], strict=True)))
        case "reduction":
            assert settings["mode"] == "sum"
            return x.flatten(1).sum(1, keepdim=True)
        case "weighted_sum":
            return sum(
                factor * value for factor, value in zip(settings["scaling_factors"], inputs, strict=True)
            )
        case "dropout":
            assert settings["keep_prob"] == 1.0, "nothing is random here"
            return x
    return SIMPLE[kind](*inputs) if kind in SIMPLE else of_sequences(kind, settings, inputs, weights)


def of_sequences(kind: str, settings: dict[str, Any], inputs: list[Any], weights: list[Any]) -> Any:
    """Return the output of a layer of models of sequences; a slice has several outputs."""
    x = inputs[0]
    match kind:
        case "channelwise_fully_connected":
            has_bias, transposed = settings["bias"]["value"][0], settings["transpose"]["value"][0]
            matrix = weights[0].T if transposed else weights[0]
            assert len(weights) == 1 + has_bias and matrix.shape == (
                *settings["output_channel_dims"],
                x[0, 0].numel(),
            )
            return x.flatten(2) @ matrix.T + (weights[1] if has_bias else 0)
        case "embedding":
            assert weights[0].shape == (settings["embedding_dim"], settings["num_embeddings"])
            return weights[0].T[x.long()]
        case "slice":
            points = settings["slice_points"]
            return tuple(x.narrow(1 + settings["axis"], at, to - at) for at, to in itertools.pairwise(points))
        case "weights_layer":
            return weights[0].reshape(1, *settings["dims"]).expand(len(x), *settings["dims"])
        case "constant":
            return torch.full((len(x), *settings["num_neurons"]), settings["value"], dtype=torch.float64)
        case "matmul":
            return (x.mT if settings["transpose_a"] else x) @ (
                inputs[1].mT if settings["transpose_b"] else inputs[1]
            )
        case "instance_norm":
            flat = x.flatten(2)
            centred = flat - flat.mean(2, keepdim=True)
            variance = (centred * centred).mean(2, keepdim=True)
            return (centred / torch.sqrt(variance + settings["epsilon"]["value"][0])).reshape(x.shape)
        case "layer_norm":
            assert settings["scale"] and settings["bias"]
            return functional.layer_norm(x, x.shape[1:], *weights, settings["epsilon"]["value"][0])
        case "one_hot":
            assert x[0].numel() == 1
            return functional.one_hot(x.flatten().long(), settings["size"]).double()
    raise AssertionError(f"nothing is known of {kind}")


def compare(graph: Graph, model: Fields, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return logits and losses of LBANN's layers and of PyTorch, and relative differences of gradients."""
    lbann, module = Lbann(model), build(graph).double()
    load(module, graph, weights)
    random = np.random.default_rng(0)
    *positions, classes = graph.operators[-1].shape
    labels = torch.from_numpy(random.integers(classes, size=(SAMPLES, *positions)))
    one_hot = functional.one_hot(labels, classes).double()
    if graph.vocabulary is None:
        inputs = images = torch.from_numpy(random.normal(size=(SAMPLES, *graph.shape))).permute(0, 3, 1, 2)
    else:
        inputs = images = torch.from_numpy(random.integers(graph.vocabulary, size=(SAMPLES, *graph.shape)))
        if positions:
            inputs = torch.cat([images, labels], 1)

    (term,) = model["objective_function"][0]["layer_term"]
    scores = "logits" if positions else "log_probabilities"
    with torch.no_grad():
        logits = lbann(inputs, one_hot, training=False)[lbann.layers[scores]["parents"][0]]
        expected = module.eval()(images)
    loss = term["scale_factor"][0] * lbann(inputs, one_hot, training=True)[term["layer"][0]].mean()
    loss.backward()
    expected_loss = cross_entropy(module.train()(images), labels)
    expected_loss.backward()

    errors = []
    weights_by_name = tensors(module, graph)
    for name in filter(is_trained, graph.weights()):
        operator = graph.by_name[name.rpartition(".")[0]]
        gradient = lbann.weights[name].grad.numpy()
        lbann_gradient = canonical(gradient.T if operator.kind == "embedding" else gradient, operator, graph)
        pytorch_gradient = canonical(weights_by_name[name].grad.numpy(), operator, graph)
        errors.append(
            np.abs(lbann_gradient - pytorch_gradient).max() / max(1e-6, np.abs(pytorch_gradient).max())
        )
    return {
        "logits": logits.numpy(),
        "expected_logits": expected.numpy(),
        "losses": np.array([loss.item(), expected_loss.item()]),
        "gradients": np.array(errors),
        "without_gradient": np.array([name for name, weight in lbann.weights.items() if weight.grad is None]),
    }


def main() -> None:
    results = {}
    for key, case in json.loads(Path(sys.argv[1]).read_text()).items():
        weights = dict(np.load(case["weights"]))
        model = parsed(Path(case["prototext"]).read_text())["model"][0]
        compared = compare(from_json(case["graph"]), model, weights)
        results |= {f"{key}.{part}": value for part, value in compared.items()}
    np.savez(sys.argv[2], **results)


if __name__ == "__main__":
    main()
