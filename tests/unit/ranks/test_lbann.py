"""LBANN's layers of our models compute the same function and gradients as PyTorch's modules."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datasets.prepare import prepare
from declared.frameworks import load_framework
from models.families.recurrent import translation
from models.graph import Builder, Graph, Rotary, is_trained
from models.initial import initial_weights
from models.named import CLICKS, IMAGES, PIXELS, TEXTS, TOKENS, graph, models
from ranks.frameworks.lbann import experiment
from ranks.frameworks.lbann.layers import _check_in_place, layers, model, save
from ranks.frameworks.lbann.prototext import Word, text
from ranks.frameworks.lbann.sequences import constants
from ranks.worker.batches import split_of
from support.programs import printed
from support.prototexts import Fields, parsed

THIS_FILE = Path(__file__)
CASES = {
    "lenet-5": ((28, 28, 1), "cpu"),
    "cnn-cifar10": ((32, 32, 3), "cpu"),
    "resnet-18": ((64, 64, 3), "cpu"),
    "efficientnet-b0": ((32, 32, 3), "cuda"),
    "branches": ((9, 8, 3), "cpu"),
    "gpt-nano": ((6,), "cpu"),
    "rnn-text-nano": ((6,), "cpu"),
    "translation": ((6,), "cpu"),
    "vectors": ((6,), "cpu"),
}
VOCABULARY = 9
# The fields of LBANN's .proto files that Ringside uses, for each kind of layer and other message. All texts of
# this project were parsed with these files, of v0.104 and October 2024. Look up a new field there.
CONVOLUTION = "num_dims out_channels kernel_size stride padding groups has_bias conv_tensor_op_mode"
KINDS = {
    "input": "data_field",
    "convolution": CONVOLUTION,
    "batch_normalization": "decay epsilon statistics_group_size no_bessel_correction",
    "concatenation": "axis",
    "pooling": "pool_mode num_dims pool_dims_i pool_strides_i pool_pads_i",
    "fully_connected": "num_neurons has_bias",
    "dropout": "keep_prob",
    "operator_layer": "ops",
    "reshape": "dims",
    "tessellate": "dims",
    "relu": "",
    "sum": "",
    "hadamard": "",
    "channelwise_mean": "",
    "log_softmax": "",
    "reduction": "mode",
    "weighted_sum": "scaling_factors",
    "categorical_accuracy": "",
    "embedding": "num_embeddings embedding_dim",
    "channelwise_fully_connected": "output_channel_dims bias transpose",
    "slice": "axis slice_points",
    "weights_layer": "dims",
    "constant": "value num_neurons",
    "matmul": "transpose_a transpose_b",
    "channelwise_softmax": "",
    "instance_norm": "epsilon",
    "layer_norm": "epsilon scale bias",
    "one_hot": "size",
}
FIELDS = KINDS | {
    "model": "disable_cuda objective_function metric layer weights",
    "objective_function": "layer_term l2_weight_regularization",
    "layer_term": "scale_factor layer",
    "l2_weight_regularization": "scale_factor weights",
    "metric": "layer_metric",
    "layer_metric": "layer name unit",
    "layer": " ".join(["name parents children weights", *KINDS]),
    "groups": "value",
    "has_bias": "value",
    "bias": "value",
    "transpose": "value",
    "epsilon": "value",
    "ops": "device_allocation parameters",
    "parameters": "type_url",
    "weights": "name optimizer initializer",
    "optimizer": "no_optimizer",
    "no_optimizer": "",
    "initializer": "numpy_initializer",
    "numpy_initializer": "file",
}


def branches(builder: Builder) -> None:
    """Add branches like those of Inception, and operators that other models do not use."""
    x = builder.activation(builder.conv(builder.input, 4, [1, 7], padding=[0, 3]), "gelu_tanh")
    y = builder.average_pool(builder.conv(builder.input, 5, [3, 1], padding=[1, 0]), 3, 1, 1)
    z = builder.global_average_pool(builder.concatenate(x, y))
    builder.dense(builder.concatenate(z, builder.dense(z, 3)), 10)


def vectors(builder: Builder) -> None:
    """Add operators that other models of sequences do not use."""
    x = builder.class_token(builder.embedding(builder.input, 8))
    x = builder.lstm(builder.dropout(builder.steps(builder.layer_norm(x), 1, 5), 0.5), 8)
    y = builder.layer_norm(builder.step(x, -1))
    builder.dense(builder.concatenate(y, builder.step(x, 0)), 4)


BUILT = {
    "branches": branches,
    "translation": partial(translation, classes=VOCABULARY, layers=2, units=8),
    "vectors": vectors,
}


def graph_named(name: str) -> Graph:
    """Return the graph of a case."""
    shape, _ = CASES[name]
    if name in models():
        return of_model(name, shape)
    builder = Builder(name, shape, "glorot", VOCABULARY if len(shape) == 1 else None)
    BUILT[name](builder)
    return builder.graph()


def of_model(name: str, shape: tuple[int, ...]) -> Graph:
    """Return a model for images of this shape, or for sequences of VOCABULARY."""
    label_shapes: dict[str, tuple[Any, ...]] = {
        CLICKS: (2, VOCABULARY, "click"),
        IMAGES: (10,),
        PIXELS: (4, None, "pixel"),
        TEXTS: (4, VOCABULARY),
        TOKENS: (VOCABULARY, VOCABULARY, "next"),
    }
    return graph(name, shape, *label_shapes[models()[name].sample_kind])


def perturbed(built_graph: Graph) -> dict[str, np.ndarray]:
    """Return weights that are nowhere 0 or 1 everywhere, so that swapped weights are noticed."""
    random = np.random.default_rng(5)
    weights = initial_weights(built_graph, 3)
    for name, weight in weights.items():
        if not name.endswith(".kernel"):
            weights[name] = (weight + random.uniform(0.1, 0.3, weight.shape)).astype(np.float32)
    return weights


def without_dropout(built_graph: Graph) -> Graph:
    operators = (
        replace(o, settings={"rate": 0.0}) if o.kind == "dropout" else o for o in built_graph.operators
    )
    return replace(built_graph, operators=tuple(operators))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, real: Any) -> dict[str, np.ndarray]:
    """Return the comparisons that lbann_forward.py prints."""
    folder = tmp_path_factory.mktemp("lbann")
    cases = {}
    for name, (_, device) in CASES.items():
        built_graph = without_dropout(graph_named(name))
        own = folder / name
        own.mkdir()
        weights = perturbed(built_graph)
        save(weights, built_graph, own)
        np.savez(folder / f"{name}.npz", **weights)
        (folder / f"{name}.prototext").write_text(text({"model": model(built_graph, own, device=device)}))
        files = {"weights": f"{folder / name}.npz", "prototext": f"{folder / name}.prototext"}
        cases[name] = {"graph": built_graph.to_json(), **files}
    (folder / "cases.json").write_text(json.dumps(cases))
    program = THIS_FILE.with_name("lbann_forward.py")
    printed(real("pytorch"), program, folder / "cases.json", folder / "out.npz")
    return dict(np.load(folder / "out.npz"))


@pytest.mark.parametrize("name", CASES)
def test_the_layers_compute_what_pytorch_computes(compared: dict[str, np.ndarray], name: str) -> None:
    lbann_values, pytorch_values = compared[f"{name}.logits"], compared[f"{name}.expected_logits"]
    np.testing.assert_allclose(
        lbann_values, pytorch_values, rtol=0, atol=1e-9 * float(np.abs(pytorch_values).max())
    )
    loss, expected = compared[f"{name}.losses"]
    assert loss == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_every_weight_gets_the_gradient_that_pytorch_gives_it(
    compared: dict[str, np.ndarray], name: str
) -> None:
    assert compared[f"{name}.gradients"].max() < 1e-6
    untrained = {weight for weight in graph_named(name).weights() if not is_trained(weight)}
    assert set(compared[f"{name}.without_gradient"]) == untrained | set(constants(graph_named(name)))


def assert_known(fields: Fields, message: str) -> None:
    assert set(fields) <= set(FIELDS[message].split()), message
    for field, values in fields.items():
        for value in values:
            if isinstance(value, dict):
                assert_known(value, field)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (name, shape)
        for name, entry in sorted(models().items())
        for shape in (
            [(28, 28, 1), (32, 32, 3), (64, 64, 3), (224, 224, 3)] if entry.sample_kind == IMAGES else [(6,)]
        )
        if not name.startswith(("bert", "dlrm", "unet", "vit", "llama", "mixtral", "gpt-2-", "mpt"))
    ],
)
def test_every_model_is_written_in_fields_that_lbann_has(name: str, shape: tuple[int, ...]) -> None:
    built_graph = of_model(name, shape)
    (written,) = parsed(text({"model": model(built_graph, Path("/w"), device="cuda", weight_decay=1e-4)}))[
        "model"
    ]
    assert_known(written, "model")
    masks = ["causal_mask.6"] if name.startswith("gpt") else []
    assert [entry["name"][0] for entry in written["weights"]] == [*built_graph.weights(), *masks]
    (decayed,) = written["objective_function"][0]["l2_weight_regularization"]
    assert all(weight.endswith("kernel") for weight in decayed["weights"])

    by_name = {layer["name"][0]: layer for layer in written["layer"]}
    assert len(by_name) == len(written["layer"]), "names are not given twice"
    used = [weight for layer in by_name.values() for weight in layer.get("weights", [])]
    assert set(used) == {*built_graph.weights(), *masks}, "every weight belongs to a layer"
    assert shape == (6,) or len(used) == len(set(used)), "to one"
    for layer_name, layer in by_name.items():
        assert len(set(layer) & set(KINDS)) == 1
        children = [
            child for child, other_layer in by_name.items() if layer_name in other_layer.get("parents", [])
        ]
        assert layer.get("children", []) == children


def settings_of(name: str, kind: str, device: str = "cpu") -> list[dict[str, Any]]:
    return [layer[kind] for layer in layers(graph(name, (32, 32, 3), 10), device) if kind in layer]


def test_what_only_training_shows_is_set_as_in_other_libraries() -> None:
    assert [settings["keep_prob"] for settings in settings_of("cnn-cifar10", "dropout")] == [0.75, 0.75, 0.5]
    assert {
        (settings["decay"], settings["epsilon"])
        for settings in settings_of("resnet-18", "batch_normalization")
    } == {(0.9, 1e-5)}
    norms = settings_of("efficientnet-b0", "batch_normalization", "cuda")
    assert {(settings["decay"], settings["epsilon"]) for settings in norms} == {(0.99, 1e-3)}


@pytest.mark.parametrize(("device", "named"), [("cpu", "CPU"), ("cuda", "GPU")])
def test_operators_are_on_the_device_of_their_layers(device: str, named: str) -> None:
    assert {
        settings["ops"]["device_allocation"] for settings in settings_of("lenet-5", "operator_layer", device)
    } == {named}
    assert model(graph("lenet-5", (32, 32, 3), 10), Path("/w"), device=device)["disable_cuda"] is (
        device == "cpu"
    )


@pytest.mark.parametrize("dataset", ["synthetic-tokens-9-6-32", "synthetic-text-9-6-4-32"])
def test_labels_of_positions_stand_behind_the_tokens(tmp_path: Path, dataset: str) -> None:
    """Samples are drawn as in the first epoch; the label of a text is the reader's label."""
    folder, data = tmp_path / "lbann", tmp_path / "data"
    folder.mkdir()
    prepare(dataset, data)
    manifest = json.loads((data / "manifest.json").read_text())
    built_graph = of_model("rnn-nano" if dataset.startswith("synthetic-tokens") else "rnn-text-nano", (6,))
    levels = {
        "weight_decay": 0.0,
        "momentum": 0.9,
        "optimizer": "sgd",
        "epochs": 1,
        "trace": "none",
        "parallelism": "data",
    }
    experiment.write(
        SimpleNamespace(
            graph=built_graph,
            levels=levels,
            manifest=manifest,
            rank_input={"data": str(data)},
            spec={"device": "cpu", "local_batch": 4, "replicas": 1, "seed": 5},
            positions=math.prod(built_graph.operators[-1].shape[:-1]),
            initial_weights=lambda: initial_weights(built_graph, 5),
            learning_rate=lambda update: 0.1,
        ),
        folder,
    )
    written = np.load(folder / "train.npz")
    tokens, labels = split_of(data, "train", manifest, 5).read(1, slice(0, 32), np.arange(32))
    np.testing.assert_array_equal(
        written["data"], tokens if labels.ndim == 1 else np.hstack([tokens, labels])
    )
    np.testing.assert_array_equal(written["labels"], labels if labels.ndim == 1 else np.zeros(32))
    assert written["data"].dtype == np.int16 and written["labels"].dtype == np.int32


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_plan_refuses_exactly_what_lbann_cannot_compute(device: str) -> None:
    refused = set(load_framework("lbann").missing_operators[device])
    for name, entry in models().items():
        if name.startswith("gpt-2-"):
            continue  # The heads of a larger GPT-2 would be thousands of layers.
        shapes = {IMAGES: (96, 96, 3), PIXELS: (96, 96, 3), CLICKS: (39,)}
        built_graph = of_model(
            name, (28, 28, 1) if name == "lenet-5" else shapes.get(entry.sample_kind, (6,))
        )
        if refused & {
            part for operator in built_graph.operators for part in (operator.kind, *operator.settings)
        }:
            with pytest.raises(ValueError, match=f"LBANN cannot compute .* of {name}: "):
                layers(built_graph, device)
        else:
            assert layers(built_graph, device)


def test_dense_layers_of_sequences_are_not_divided() -> None:
    with pytest.raises(
        ValueError, match=r"^LBANN cannot divide head of rnn-nano, which is of a sequence, among ranks"
    ):
        layers(of_model("rnn-nano", (6,)), parallelism="dense")
    divided = [
        layer_entry["name"]
        for layer_entry in layers(of_model("rnn-text-nano", (6,)), parallelism="dense")
        if "data_layout" in layer_entry
    ]
    assert divided == ["head"]


def overwriting(builder: Builder) -> None:
    x = builder.conv(builder.input, 4, 3)
    builder.dense(builder.flatten(builder.add(builder.activation(x, "relu"), x)), 10)


def summed(builder: Builder) -> None:
    """LBANN 0.104 dies in the second step of it."""
    x = builder.activation(builder.conv(builder.input, 4, 3), "relu")
    builder.dense(builder.flatten(builder.add(x, builder.conv(builder.input, 4, 3))), 10)


def named_twice(builder: Builder) -> None:
    gate = builder.activation(builder.global_average_pool(builder.input), "sigmoid")
    x = builder.multiply_channels(builder.input, gate, name="gate")
    builder.dense(builder.global_average_pool(x, name="gate.column"), 10)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (overwriting, r"activation1 of refused: .* the output of conv1,"),
        (summed, "activation1 of refused: its gradient is lost"),
        (named_twice, "gate.column of refused: another layer has the same name"),
        (lambda builder: builder.activation(builder.input, "gelu"), "known for the activation gelu"),
        (lambda builder: builder.batch_norm(builder.input, momentum=0.0), "a momentum or epsilon of 0"),
        (lambda builder: builder.depthwise_conv(builder.input, 3), "convolutions have one group, not 4"),
    ],
)
def test_models_that_lbann_cannot_compute_are_refused(build: Any, reason: str) -> None:
    builder = Builder("refused", (8, 8, 4), "he")
    build(builder)
    with pytest.raises(ValueError, match=f"^LBANN cannot compute .*{reason}"):
        layers(builder.graph())


@pytest.mark.parametrize("settings", [{"key_heads": 1}, {"rotary": Rotary(10.0)}])
def test_attention_with_settings_that_lbann_lacks_is_refused(settings: dict[str, Any]) -> None:
    builder = Builder("attending", (6,), "glorot", 9)
    builder.attention(builder.embedding(builder.input, 8), 2, causal=True, **settings)
    with pytest.raises(ValueError, match="LBANN cannot compute attention"):
        layers(builder.graph(), "cpu")


def test_reshape_is_overwritten_only_if_its_output_is_not_needed() -> None:
    """The reshape of a position views the output of a slice, which the slice does not need afterwards."""
    builder = Builder("viewed", (6,), "uniform", VOCABULARY)
    x = builder.step(builder.embedding(builder.input, 4), -1)
    builder.dense(builder.activation(x, "relu"), 4)
    built = layers(builder.graph())
    by_name = {entry["name"]: entry for entry in built}
    del by_name["step1.part"]["slice"]
    by_name["step1.part"]["operator_layer"] = {}
    with pytest.raises(ValueError, match=r"overwrite the output of step1.part, which may need it"):
        _check_in_place(built, builder.graph())


def test_text_is_quoted_and_enumerations_are_not() -> None:
    message = {
        "path": 'a "b" \\ ü',
        "mode": Word("CPU"),
        "on": True,
        "rate": 1e-05,
        "dims": [3, 4],
        "none": [],
        "sum": {},
    }
    written = text(message)
    assert written == (
        'path: "a \\"b\\" \\\\ ü"\nmode: CPU\non: true\nrate: 1e-05\ndims: 3\ndims: 4\nsum {\n}\n'
    )
    assert parsed(written) == {
        **{name: [value] for name, value in message.items() if name not in ("dims", "none")},
        "dims": [3, 4],
    }
    with pytest.raises(TypeError, match="None cannot stand in a prototext"):
        text({"name": None})
