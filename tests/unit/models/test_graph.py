"""The description of models: sizes that were published, shapes, weights, and what is said of one that does not fit."""

import json
import math

import numpy as np
import pytest

from models.graph import Builder, Graph, from_json, is_trained
from models.initial import initial_weights
from models.named import graph, models

# Of the papers' models as torchvision has them: 224 x 224 pixels, 1,000 classes.
PUBLISHED = {
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "efficientnet-b0": 5_288_548,
    "alexnet": 61_100_840,
    "vgg-16": 138_357_544,
}
PUBLISHED_GMACS = {"resnet-18": 1.81, "resnet-34": 3.66, "resnet-50": 4.09, "efficientnet-b0": 0.39, "vgg-16": 15.47}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_the_number_of_parameters_is_the_published_one(name: str, parameters: int) -> None:
    assert graph(name, (224, 224, 3), 1000).parameters == parameters


@pytest.mark.parametrize(("name", "gmacs"), PUBLISHED_GMACS.items())
def test_multiplications_are_the_published_ones(name: str, gmacs: float) -> None:
    assert graph(name, (224, 224, 3), 1000).macs / 1e9 == pytest.approx(gmacs, abs=0.01)


def test_lenet_5_has_the_weights_of_the_paper_with_full_connections() -> None:
    assert graph("lenet-5", (28, 28, 1), 10).parameters == 61_706


@pytest.mark.parametrize("name", sorted(models()))
@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (64, 64, 3)])
def test_every_model_takes_the_images_of_the_studies(name: str, shape: tuple[int, int, int]) -> None:
    made = graph(name, shape, 10)
    assert made.shape == shape and made.operators[-1].shape == (10,)
    assert from_json(json.loads(json.dumps(made.to_json()))) == made
    weights = initial_weights(made, 1)
    assert {key: weight.shape for key, weight in weights.items()} == made.weights()
    assert sum(weight.size for key, weight in weights.items() if is_trained(key)) == made.parameters
    assert made.gradient_bytes == 4 * made.parameters


def test_small_images_get_the_small_stem() -> None:
    def stem(height: int, width: int | None = None) -> list[tuple[str, int, int]]:
        operators = graph("resnet-18", (height, width or height, 3), 10).operators[1:5]
        return [(o.kind, o["kernel"], o["stride"]) for o in operators if o.kind in ("conv", "max_pool")][:2]

    assert stem(32)[0] == ("conv", 3, 1) and stem(32)[1][0] == "conv", "no pooling below 64 pixels"
    assert stem(64) == [("conv", 3, 1), ("max_pool", 3, 2)]
    assert stem(224) == stem(8, 65) == stem(65, 8) == [("conv", 7, 2), ("max_pool", 3, 2)], "the longer side decides"
    assert stem(8, 64) == stem(64, 8) == stem(64)


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(
        ValueError, match="model lenet-5 cannot be built for images of 8 x 8 pixels: conv of 5 x 5 on 2 x 2"
    ):
        graph("lenet-5", (8, 8, 1), 10)


def test_weights_depend_on_the_seed_and_their_own_name_alone() -> None:
    wide, narrow = (initial_weights(graph("resnet-18", (32, 32, 3), classes), 7) for classes in (100, 10))
    assert np.array_equal(wide["stem_conv.kernel"], narrow["stem_conv.kernel"])
    other = initial_weights(graph("resnet-18", (32, 32, 3), 10), 8)
    assert not np.array_equal(other["stem_conv.kernel"], narrow["stem_conv.kernel"])
    assert not np.array_equal(narrow["stage1_block1_conv1.kernel"], narrow["stage1_block1_conv2.kernel"])


@pytest.mark.parametrize(("name", "expected"), [("he", 2 / (9 * 64)), ("glorot", 2 / (9 * 64 + 9 * 128))])
def test_kernels_have_the_variance_of_their_initializer(name: str, expected: float) -> None:
    builder = Builder("test", (8, 8, 64), name)
    builder.dense(builder.flatten(builder.conv(builder.input, 128, 3, padding=1)), 10)
    kernel = initial_weights(builder.graph(), 1)["conv1.kernel"]
    assert kernel.var() == pytest.approx(expected, rel=0.02) and abs(kernel.mean()) < 1e-3


def test_a_depthwise_kernel_counts_its_own_channel_only() -> None:
    builder = Builder("test", (8, 8, 64), "he")
    builder.dense(builder.flatten(builder.depthwise_conv(builder.input, 5, padding=2)), 10)
    made: Graph = builder.graph()
    assert made.operators[1].macs == 8 * 8 * 25 * 64 and made.weights()["depthwise_conv1.kernel"] == (5, 5, 64, 1)
    assert initial_weights(made, 1)["depthwise_conv1.kernel"].var() == pytest.approx(2 / 25, rel=0.1)


def test_operators_are_found_by_name_without_looking_through_them_again() -> None:
    made = graph("resnet-50", (224, 224, 3), 1000)
    assert made.by_name is made.by_name and list(made.by_name.values()) == list(made.operators)
    assert from_json(made.to_json()) == made, "what was looked up is no part of it"


def test_activations_are_the_outputs_of_all_operators() -> None:
    builder = Builder("test", (4, 4, 1), "he")
    builder.dense(builder.flatten(builder.conv(builder.input, 2, 3)), 10)
    assert builder.graph().activation_bytes == 4 * (16 + math.prod((2, 2, 2)) + 8 + 10)


def test_a_padded_pooling_wants_what_is_not_negative() -> None:
    builder = Builder("test", (8, 8, 1), "he")
    with pytest.raises(ValueError, match="wants a relu before it"):
        builder.max_pool(builder.conv(builder.input, 2, 3), 3, 2, 1)
