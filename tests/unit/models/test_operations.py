"""Operations of a training step: those that PyTorch counts, published formulas, and products counted by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.families.transformers import gpt, vit
from models.graph import Builder, Graph
from models.named import graph
from models.operations import parameter_operations, training_operations
from support.programs import printed


def narrow_transformer(build: Any, shape: tuple[int, ...], vocabulary: int | None, **sizes: int) -> Graph:
    builder = Builder("narrow", shape, "glorot", vocabulary)
    build(builder, vocabulary or 10, **sizes)
    return builder.graph()


def even_experts(model: Builder, classes: int) -> None:
    """Add experts that take as many positions as choose them."""
    x = model.embedding(model.input, 6)
    model.dense(model.experts(x, 4, 5, top=2, capacity_factor=1.0), classes)


def test_operations_are_those_that_pytorch_counts(real: Callable[[str], Any], tmp_path: Path) -> None:
    graphs = {
        "small-cnn": graph("small-cnn", (28, 28, 1), 10),
        "wide-mlp": graph("wide-mlp", (8, 8, 1), 10),
        "resnet-18": graph("resnet-18", (32, 32, 3), 10),
        "gpt": narrow_transformer(gpt, (7,), 23, layers=2, heads=3, units=12),
        "bert": graph("bert-nano", (13,), 23, 23, "next"),
        "llama": graph("llama-nano", (7,), 23, 23, "next"),
        "unet": graph("unet-nano", (8, 12, 3), 3, None, "pixel"),
        "dlrm": graph("dlrm-nano", (39,), 2, 260, "click"),
        "experts": narrow_transformer(even_experts, (8,), 23),
        "vit": narrow_transformer(vit, (8, 12, 3), None, layers=2, heads=2, units=16),
    }
    (tmp_path / "graphs.json").write_text(
        json.dumps({name: model.to_json() for name, model in graphs.items()})
    )
    counter = Path(__file__).with_name("counted_flops.py")
    counted = json.loads(printed(real("pytorch"), counter, tmp_path / "graphs.json"))
    for name, (forward, backward) in counted.items():
        operations = training_operations(graphs[name])
        assert (operations.forward, operations.backward) == (forward, backward), name


def test_gpt_has_operations_of_the_published_formula() -> None:
    """The formula is that of Chowdhery et al. 2022, appendix B: 6 N + 12 L d T for each token."""
    layers, units, length, vocabulary = 4, 64, 32, 101
    model = narrow_transformer(gpt, (length,), vocabulary, layers=layers, heads=4, units=units)
    n_in_products = 12 * layers * units**2 + units * vocabulary
    expected = length * (6 * n_in_products + 12 * layers * units * length)
    operations = training_operations(model)
    assert operations.model == expected and operations.backward == 2 * operations.forward
    by_rule = parameter_operations(model.parameters, length)
    assert by_rule.model == pytest.approx(6 * model.parameters * length)
    assert by_rule.forward == pytest.approx(by_rule.backward / 2)


def test_lstm_on_images_needs_no_gradients_of_pixels() -> None:
    model = Builder("rows", (4, 3, 2), "glorot")
    states = model.lstm(model.sequence(model.input), 5)
    model.dense(model.step(states, -1), 10)
    operations = training_operations(model.graph())
    of_inputs, of_states, of_logits = 12 * 2 * 20, 12 * 5 * 20, 5 * 10
    assert operations.forward == 2 * (of_inputs + of_states + of_logits)
    assert operations.backward == 2 * (of_inputs + 2 * of_states + 2 * of_logits)
