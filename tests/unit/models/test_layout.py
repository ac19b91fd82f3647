"""Strategies that need no search, and their messages: each part receives what it needs exactly once."""

import itertools
import math
from typing import Any

import pytest

from models import strategy
from models.layout import Region, lay_out
from models.named import graph
from models.soap import divide, region_needed
from models.strategy import Part, data_parallel, expert, random_strategy

MODELS: dict[str, tuple[Any, ...]] = {
    "lenet-5": ((28, 28, 1), 10),
    "inception-v3": ((80, 80, 3), 10),
    "gpt-nano": ((12,), 20, 20, "next"),
    "rnn-translation": ((8,), 20, 20, "next"),
}


def volume(region: Region) -> int:
    return math.prod(end - first for first, end in region)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [1, 2])
def test_each_part_receives_what_it_needs_once(name: str, seed: int) -> None:
    model = graph(name, *MODELS[name])
    space = divide(model, 8)
    layout = lay_out(model, 8, random_strategy(space, 6, seed))
    assert [message.number for message in layout.messages] == list(range(len(layout.messages)))
    received = set()
    for (target, edge), group in itertools.groupby(
        layout.messages, lambda message: (message.target, message.edge)
    ):
        messages = list(group)
        received.add((target, edge))
        for first, second in itertools.combinations(messages, 2):
            pairs = zip(first.region, second.region, strict=True)
            assert any(a[1] <= b[0] or b[1] <= a[0] for a, b in pairs), "regions do not overlap"
        needed_region = layout.input_region(messages[0])
        if messages[0].of_state:
            assert sum(end - first for message in messages for first, end in message.region[:1]) == volume(
                needed_region
            )
        else:
            assert sum(volume(message.region) for message in messages) == volume(needed_region)
    for layer, devices in enumerate(layout.devices):
        for number, edge in enumerate(space.edges):
            for part in range(len(devices)) if edge.target == layer and not edge.first_only else ():
                needed = region_needed(
                    edge.needed, layout.region((layer, part)), space.layers[edge.source].shape
                )
                assert (needed is not None) == (((layer, part), number) in received)


def test_expert_sends_outputs_of_dense_layers_only() -> None:
    model = graph("alexnet", (64, 64, 3), 10)
    space = divide(model, 32)
    of_data = lay_out(model, 32, data_parallel(space, 4))
    assert all(
        of_data.device(message.source) == of_data.device(message.target) for message in of_data.messages
    )
    of_expert = lay_out(model, 32, expert(space, 4, 1))
    names = {
        space.layers[message.target[0]].name
        for message in of_expert.messages
        if of_expert.device(message.source) != of_expert.device(message.target)
    }
    dense = {layer.name for layer in space.layers if layer.divides == 1 and layer.macs}
    assert names == dense | {"loss"}
    layer = next(place for place, layer in enumerate(space.layers) if layer.name in dense)
    assert [of_expert.holders(layer, number) for number in range(of_expert.shards(layer))] == [
        [0],
        [1],
        [2],
        [3],
    ]
    assert of_data.holders(layer, 0) == [0, 1, 2, 3]


def test_expert_puts_each_lstm_on_its_own_device() -> None:
    space = divide(graph("rnn-translation", (8,), 20, 20, "next"), 8)
    chains = [layer.name for layer in space.layers if layer.chain]
    on_one_node, on_nodes = expert(space, 1, 2), expert(space, 4, 1)
    assert [on_one_node[name].devices for name in chains] == [(0,), (0,), (1,), (1,)]
    assert [on_nodes[name].devices for name in chains] == [(0,), (1,), (2,), (3,)]
    of_nodes = expert(space, 2, 2)
    assert [of_nodes[name].devices for name in chains] == [(0, 2), (0, 2), (1, 3), (1, 3)], (
        "nodes divide samples"
    )


def test_strategy_survives_json_and_is_checked() -> None:
    space = divide(graph("lenet-5", (28, 28, 1), 10), 8)
    strategy_parts = random_strategy(space, 4, 7)
    assert strategy_parts == random_strategy(space, 4, 7) != random_strategy(space, 4, 8)
    assert (
        strategy.check_strategy(strategy.from_json(strategy.to_json(strategy_parts)), space, 4)
        == strategy_parts
    )
    first = space.layers[0].name
    for broken, message in (
        ({**strategy_parts, first: Part((3, 1, 1, 1), (0, 1, 2))}, f"{first}: .* cannot be cut into"),
        ({**strategy_parts, first: Part((2, 1, 1, 1), (0, 4))}, f"{first}: its 2 parts are not on 4 devices"),
        (
            {name: part for name, part in strategy_parts.items() if name != first},
            "its layers are not those of lenet-5",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            strategy.check_strategy(broken, space, 4)


def test_consecutive_layers_on_the_same_devices_share_a_bucket() -> None:
    model = graph("lenet-5", *MODELS["lenet-5"])
    space = divide(model, 8)
    data = data_parallel(space, 4)
    weighted = [place for place, layer in enumerate(space.layers) if layer.parameters]
    first, *middle, last = reversed(weighted)

    def sums(
        strategy: dict[str, Part], first_bytes: int = 2**20, bucket_bytes: int = 2**20
    ) -> list[tuple[tuple[int, ...], int]]:
        return list(lay_out(model, 8, strategy, (first_bytes, bucket_bytes)).sums())

    assert sums(data) == [((first, *middle, last), 0)]
    assert sums(data, 0, 0) == [((layer,), 0) for layer in (first, *middle, last)]
    assert sums(data, 0) == [((first,), 0), ((*middle, last), 0)], "the first bucket has a limit of its own"
    bytes_of = [4 * space.layers[layer].parameters for layer in (first, *middle)]
    assert sums(data, sum(bytes_of)) == [((first, *middle), 0), ((last,), 0)], "until there are so many bytes"
    halves = Part((2, 2, 1, 1), (0, 1, 2, 3))
    divided = {**data, space.layers[middle[0]].name: halves}
    assert sums(divided) == [((first,), 0), ((middle[0],), 0), ((middle[0],), 1), ((*middle[1:], last), 0)]
    alone = {**data, space.layers[middle[0]].name: Part((1, 1, 1, 1), (2,))}
    assert sums(alone) == [((first, *middle[1:], last), 0)], "a layer of one device sums nothing"
    two_devices = {**data, space.layers[middle[0]].name: Part((2, 1, 1, 1), (0, 1))}
    assert len(sums(two_devices)) == 3
