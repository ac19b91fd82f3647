"""Weights with channels first, and back."""

import numpy as np
import pytest

from models.graph import Builder, Graph
from models.initial import initial_weights
from models.named import graph
from ranks.libraries.channels_first import canonical, channels_first


@pytest.mark.parametrize(
    "model",
    [
        *(graph(name, (32, 32, 3), 10) for name in ("lenet-5", "resnet-18", "efficientnet-b0")),
        graph("gpt-nano", (6,), 9, 9, "next"),
    ],
    ids=lambda model: model.model,
)
def test_channels_first_and_back_is_where_one_began(model: Graph) -> None:
    for key, weight in initial_weights(model, 1).items():
        operator = model.by_name[key.rpartition(".")[0]]
        turned = channels_first(weight, operator, model)
        assert turned.flags.c_contiguous and np.array_equal(canonical(turned, operator, model), weight)


def test_a_dense_kernel_takes_what_was_flattened_channels_first() -> None:
    builder = Builder("test", (3, 4, 2), "he")
    dense = builder.dense(builder.dropout(builder.flatten(builder.input), 0.5), 5)
    model = builder.graph()
    image = np.random.default_rng(1).normal(size=model.shape)
    kernel = initial_weights(model, 1)[f"{dense}.kernel"]
    turned = channels_first(kernel, model.by_name[dense], model)
    np.testing.assert_allclose(turned @ image.transpose(2, 0, 1).ravel(), image.ravel() @ kernel, rtol=1e-5)
