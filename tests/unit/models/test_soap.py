"""The space of strategies: layers contain the whole model, and parts get the inputs of their operators."""

import itertools
import math

import numpy as np
import pytest

from models.graph import Builder, Graph
from models.named import CLICKS, IMAGES, PIXELS, TEXTS, TOKENS, graph, models
from models.soap import LOSS, Degrees, Space, divide, region_needed, region_of
from support.planned_models import divisible_models

SAMPLES = {
    IMAGES: ((64, 64, 3), 10),
    PIXELS: ((64, 64, 3), 4, None, "pixel"),
    CLICKS: ((39,), 2, 260, "click"),
    TEXTS: ((12,), 5, 30),
    TOKENS: ((12,), 30, 30, "next"),
}
BATCH = 8


def small(name: str) -> Graph:
    model = models()[name]
    samples = SAMPLES[model.sample_kind]
    try:
        return graph(name, *samples)
    except ValueError:  # the images are too small
        return graph(name, (224, 224, 3), 10)


@pytest.mark.parametrize("name", divisible_models())
def test_layers_contain_all_work_and_parameters(name: str) -> None:
    model = small(name)
    space = divide(model, BATCH)
    assert sum(layer.macs for layer in space.layers) == BATCH * model.macs
    assert sum(layer.parameters for layer in space.layers if layer.shared is None) == model.parameters
    assert space.layers[-1].name == LOSS
    assert all(edge.source < edge.target for edge in space.edges)
    everything = [operator for layer in space.layers for operator in layer.operators]
    assert len(everything) == len(set(everything))
    with_weights = {operator.name for operator in model.operators if operator.weights}
    assert with_weights <= set(everything)


def overlap(first: tuple[tuple[int, int], ...], second: tuple[tuple[int, int], ...]) -> int:
    return math.prod(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in zip(first, second, strict=True))


def chosen(space: Space, seed: int) -> list[Degrees]:
    rng = np.random.default_rng(seed)
    every = [list(layer.configurations(8)) for layer in space.layers]
    return [own[rng.integers(len(own))] for own in every]


@pytest.mark.parametrize(
    "name", ["inception-v3", "gpt-nano", "vit-b-16", "rnn-translation", "efficientnet-b0"]
)
def test_parts_cover_outputs_once_and_inputs_fully(name: str) -> None:
    space = divide(small(name), BATCH)
    degrees = chosen(space, 1)
    regions = [
        [region_of(layer, own, part) for part in range(math.prod(own))]
        for layer, own in zip(space.layers, degrees, strict=True)
    ]
    for layer, own in zip(space.layers, regions, strict=True):
        assert sum(math.prod(end - first for first, end in region) for region in own) == math.prod(
            layer.shape
        )
        assert not any(overlap(first, second) for first, second in itertools.combinations(own, 2))
    for edge in space.edges:
        shape = space.layers[edge.source].shape
        for region in regions[edge.target]:
            needed = region_needed(edge.needed, region, shape)
            if needed is None:
                continue
            received = sum(overlap(needed, part) for part in regions[edge.source])
            assert received == math.prod(end - first for first, end in needed)


def test_a_window_needs_its_halo() -> None:
    builder = Builder("m", (8, 8, 3), "glorot")
    builder.dense(builder.flatten(builder.conv(builder.conv(builder.input, 4, 3, 1, 1), 4, 3, 2, 1)), 5)
    space = divide(builder.graph(), 4)
    (edge,) = [edge for edge in space.edges if space.layers[edge.target].name == "conv2"]
    top = region_of(space.layers[edge.target], (1, 2, 1, 1), 0)
    bottom = region_of(space.layers[edge.target], (1, 2, 1, 2), 3)
    assert top == ((0, 4), (0, 2), (0, 4), (0, 4)) and bottom == ((0, 4), (2, 4), (0, 4), (2, 4))
    shape = space.layers[edge.source].shape
    assert region_needed(edge.needed, top, shape) == ((0, 4), (0, 4), (0, 8), (0, 4)), (
        "padding belongs to no part"
    )
    assert region_needed(edge.needed, bottom, shape) == ((0, 4), (3, 8), (0, 8), (0, 4)), (
        "all channels, and a halo row"
    )


def test_a_tied_table_is_whole_and_attention_divides_by_heads() -> None:
    space = divide(small("gpt-nano"), BATCH)
    by_name = {layer.name: layer for layer in space.layers}
    (tied,) = [layer for layer in space.layers if layer.shared is not None]
    table = space.layers[tied.shared or 0]
    assert tied.divides is None and table.divides is None and 2 not in table.cut
    heads = next(layer for name, layer in by_name.items() if name.endswith("_heads"))
    cut = (1, 1, 2, 1)
    assert heads.part_parameters(cut) == heads.parameters // 2 and heads.part_macs(cut) == heads.macs // 2
    by_positions = (1, 2, 1, 1)
    assert heads.part_macs(by_positions) == (heads.macs + heads.repeated) // 2, (
        "each part makes all keys and values"
    )


def test_decoder_starts_with_the_final_state_of_its_encoder() -> None:
    space = divide(small("rnn-translation"), BATCH)
    names = [layer.name for layer in space.layers]
    (edge,) = [
        edge for edge in space.edges if edge.first_only and space.layers[edge.target].name == "decoder1"
    ]
    encoder = space.layers[edge.source]
    assert encoder.name == "encoder1" and encoder.chain and not any("state" in name for name in names)
    output = region_of(space.layers[edge.target], (2, 3, 1, 1), 3)
    needed = region_needed(edge.needed, output, encoder.shape)
    assert needed is not None and needed[1] == (encoder.shape[1] - 1, encoder.shape[1])
    assert edge.element_bytes == 8, "its output and its cell"
