"""Compute parts of layers (models.soap) with PyTorch: shards of weights, and operators on regions.

Tensors of images are channels first. Regions are in the order of the model's graph, channels last.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from models.graph import Graph, Operator, is_trained, pair
from models.initial import rotary_tables
from models.layout import Region
from models.soap import HEADS_SUFFIX, Layer, Space
from ranks.libraries.pytorch.layers import LSTM, gather_positions, rotated
from ranks.libraries.pytorch.model import ACTIVATIONS, FUNCTIONS, LSTM_WEIGHTS

IMAGE = 3  # dimensions of an image

NO_STATE = torch.empty(0)


def size_of(region: Region, kind: int, cell: int) -> tuple[int, ...]:
    """Return PyTorch's shape of a region of samples with `kind` dimensions."""
    samples, *rest = [end - first for first, end in region[: 1 + kind]]
    if kind == IMAGE:
        height, width, channels = rest
        return samples, channels, height, width
    return samples, *rest[:-1], rest[-1] * cell


def state_size(samples: tuple[int, int], layer: Layer) -> tuple[int, int, int]:
    """Return the shape of an LSTM's state for a range of samples: hidden and cell."""
    return samples[1] - samples[0], 2, layer.state // 2


def slices(region: Region, within: Region, kind: int, cell: int) -> tuple[slice, ...]:
    """Return the slices of a region in a tensor of the region `within`."""
    samples, *rest = [
        slice(first - start, end - start)
        for (first, end), (start, _) in zip(region[: 1 + kind], within, strict=False)
    ]
    if kind == IMAGE:
        height, width, channels = rest
        return samples, channels, height, width
    last = rest[-1]
    return samples, *rest[:-1], slice(last.start * cell, last.stop * cell)


def names_of(layer: Layer, graph: Graph) -> Iterator[str]:
    """Yield the names of the weights that a layer needs: those of its operators, and a tied table.

    An attention is two layers: its heads, and the projection behind them.
    """
    for operator in layer.operators:
        heads = operator not in graph.by_name
        definition = graph.by_name[operator.removesuffix(HEADS_SUFFIX) if heads else operator]
        if definition.kind == "tied_dense":
            yield f"{definition['of']}.table"
        for weight in definition.weights:
            if definition.kind != "attention" or weight.startswith("output") != heads:
                yield f"{definition.name}.{weight}"


def share(name: str, weight: Tensor, number: int, n_shares: int) -> Tensor:
    """Return a shard of a weight: along the last axis of a table, along the first of others."""
    return weight.chunk(n_shares, axis(name))[number] if n_shares > 1 else weight


def axis(name: str) -> int:
    """Return the axis along which a weight is partitioned."""
    return -1 if name.endswith(".table") else 0


class Shard(nn.Module):
    """A shard of a layer's weights, from PyTorch's tensors of all weights by their names in the graph."""

    def __init__(
        self, layer: Layer, graph: Graph, number: int, n_shares: int, weights: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.number, self.n_shares, self.names = number, n_shares, list(names_of(layer, graph))
        self.lstm: LSTM | None = None
        for name in self.names:
            shard = share(name, weights[name].detach(), number, n_shares).clone(
                memory_format=torch.contiguous_format
            )
            if is_trained(name):
                self.register_parameter(_key(name), nn.Parameter(shard))
            else:
                self.register_buffer(_key(name), shard)
        if layer.chain:
            operator = graph.by_name[layer.operators[0]]
            self.lstm = LSTM(graph.by_name[operator.inputs[0]].shape[-1], operator["units"])
            for name, weight in LSTM_WEIGHTS.items():
                setattr(self.lstm, weight, self.weight(f"{operator.name}.{name}"))

    def weight(self, name: str) -> Tensor:
        """Return the shard of one weight."""
        tensor: Tensor = getattr(self, _key(name))
        return tensor

    def tie(self, owner: "Shard") -> None:
        """Use the same table as the shard `owner`."""
        (name,) = self.names
        self.register_parameter(_key(name), owner.get_parameter(_key(name)))

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the weights that are trained."""
        return {name: self.get_parameter(_key(name)) for name in self.names if is_trained(name)}


def _key(name: str) -> str:
    return name.replace(".", "__")


class Part:
    """A part of a layer, which computes a region of the layer's output from its inputs."""

    def __init__(self, graph: Graph, space: Space, place: int, region: Region, shard: Shard) -> None:
        self.layer, self.region, self.shard = space.layers[place], region, shard
        first, *following = self.layer.operators or [""]
        self.graph = graph
        self._steps = [self._following(graph.by_name[name]) for name in following]
        if first.removesuffix(HEADS_SUFFIX) in graph.by_name and first not in graph.by_name:
            self._first: Callable[..., Tensor] = self._heads(graph.by_name[first.removesuffix(HEADS_SUFFIX)])
        elif first and not self.layer.chain:
            self._first = self._make_call(graph.by_name[first], self._padding(space, place))
        self.training = True

    def __call__(self, inputs: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the output, and the final state of an LSTM or an empty tensor.

        `states` holds its initial state, if there is one.
        """
        state = NO_STATE
        if not self.layer.operators:
            return inputs[0], NO_STATE
        if self.shard.lstm is not None:
            # Copies make memory use the same for every part, regardless of where its states come from.
            starts = [state.transpose(0, 1).clone(memory_format=torch.contiguous_format) for state in states]
            begin = starts[0].transpose(0, 1) if starts else None
            x, state = (tensor.contiguous() for tensor in self.shard.lstm(inputs[0], begin))
        else:
            x = self._first(*inputs)
        for step in self._steps:
            x = step(x)
        return x, state

    def _following(self, operator: Operator) -> Callable[[Tensor], Tensor]:
        """Return the call of an operator that follows others in its layer."""
        weight = lambda name: self.shard.weight(f"{operator.name}.{name}")  # noqa: E731
        match operator.kind:
            case "activation":
                return ACTIVATIONS[operator["function"]]()
            case "dropout":
                return lambda x: nn.functional.dropout(x, operator["rate"], self.training)
            case "positions":
                return lambda x: x + weight("table")[slice(*self.region[1])]
            case "add_vector":
                return lambda x: x + weight("vector")
            case "interactions" | "log_counts":
                return FUNCTIONS[operator.kind]
            case "batch_norm":
                names = ("mean", "variance", "scale", "offset")
                settings = 1 - operator["momentum"], operator["epsilon"]
                return lambda x: nn.functional.batch_norm(x, *map(weight, names), self.training, *settings)
        raise ValueError(f"{operator.name}: {operator.kind} follows no layer")

    def _make_call(self, operator: Operator, padding: Sequence[int]) -> Callable[..., Tensor]:
        """Return the call of the first operator of a layer."""
        call = nn.functional
        weight = lambda name: self.shard.weight(f"{operator.name}.{name}")  # noqa: E731
        padding_value = -math.inf if operator.kind == "max_pool" else 0.0
        pad = (lambda x: call.pad(x, padding, value=padding_value)) if padding else lambda x: x
        match operator.kind:
            case "conv" | "depthwise_conv":
                is_depthwise = operator.kind == "depthwise_conv"
                return lambda x: call.conv2d(
                    pad(x),
                    weight("kernel"),
                    weight("bias") if operator["bias"] else None,
                    operator["stride"],
                    groups=x.shape[1] if is_depthwise else 1,
                )
            case "up_conv":
                kernel, bias = weight("kernel"), weight("bias")
                return lambda x: call.conv_transpose2d(x, kernel, bias, operator["stride"])
            case "max_pool":
                return lambda x: call.max_pool2d(pad(x), operator["kernel"], operator["stride"])
            case "average_pool":
                return lambda x: call.avg_pool2d(pad(x), operator["kernel"], operator["stride"])
            case "global_average_pool":
                return lambda x: x.mean((2, 3))
            case "flatten":
                return lambda x: x.flatten(1)
            case "dense":
                bias = "bias" in operator.weights
                return lambda x: call.linear(x, weight("kernel"), weight("bias") if bias else None)
            case "tied_dense":
                return lambda x: call.linear(x, self.shard.weight(f"{operator['of']}.table"))
        return self._of_sequences(operator)

    def _of_sequences(self, operator: Operator) -> Callable[..., Tensor]:
        """Return the call of a layer's first operator that takes sequences, or several inputs."""
        call = nn.functional
        weight = lambda name: self.shard.weight(f"{operator.name}.{name}")  # noqa: E731
        match operator.kind:
            case "layer_norm":
                epsilon = operator["epsilon"]
                return lambda x: call.layer_norm(x, x.shape[-1:], weight("scale"), weight("offset"), epsilon)
            case "rms_norm":
                epsilon = operator["epsilon"]
                return lambda x: call.rms_norm(x, x.shape[-1:], weight("scale"), epsilon)
            case "embedding":
                return lambda x: call.embedding(x.long(), weight("table"))
            case "attention":
                bias = "output_bias" in operator.weights
                return lambda x: call.linear(
                    x, weight("output_kernel"), weight("output_bias") if bias else None
                )
            case "class_token" if self.region[1][0] == 0:
                return lambda x: torch.cat([weight("token").expand(len(x), 1, -1), x], 1)
            case "class_token" | "steps":
                return lambda x: x
            case "add" | "multiply":
                return torch.add if operator.kind == "add" else torch.mul
            case "multiply_channels":
                return lambda x, gates: x * gates[:, :, None, None]
            case "concatenate":
                along = 1 if len(operator.shape) == IMAGE else -1
                return lambda *inputs: torch.cat(inputs, along)
            case "gather":  # Samples, which are read, come before outputs of other layers.
                return lambda positions, x: gather_positions(x, positions)
            case "step":
                return lambda x: x[:, 0]
            case "sequence":
                return lambda x: x.flatten(2).transpose(1, 2).contiguous()
        return self._following(operator)

    def _padding(self, space: Space, place: int) -> list[int]:
        """Return how far this part's input reaches beyond the image: left, right, above, below.

        A part inside the image has zeros, and pads nothing, so that all parts need the same memory.
        """
        operator = self.graph.by_name[self.layer.operators[0]]
        if not any(pair(operator.settings.get("padding", 0))):
            return []
        edge = next(edge for edge in (*space.edges, *space.reads) if edge.target == place)
        shape, sizes = self.graph.by_name[operator.inputs[0]].shape, []
        for dimension in (2, 1):
            rule, (first, end) = edge.needed[dimension], self.region[dimension]
            low = rule.stride * first - rule.padding
            high = rule.stride * (end - 1) - rule.padding + rule.kernel
            sizes += [max(0, -low), max(0, high - shape[dimension - 1])]
        return sizes

    def _heads(self, operator: Operator) -> Callable[..., Tensor]:
        """Return the attention of this part's heads and positions: [N, length, heads x units of a head]."""
        first, end = self.region[1]
        tables = torch.from_numpy(rotary_tables(operator)) if "rotary" in operator.settings else None

        def projected(part: str, inputs: Tensor, start: int = 0) -> Tensor:
            kernel, bias = (
                self.shard.weight(f"{operator.name}.{name}") if name in operator.weights else None
                for name in (f"{part}_kernel", f"{part}_bias")
            )
            heads = nn.functional.linear(inputs, kernel, bias).unflatten(-1, (-1, operator.head_size))
            heads = heads.transpose(1, 2)
            if tables is None or part == "value":
                return heads
            return rotated(heads, tables[:, start : start + inputs.shape[1]].to(heads))

        def attend(sequence: Tensor, *queries: Tensor) -> Tensor:
            x = queries[0] if queries else sequence[:, first:end]
            has_all_positions = end - first == sequence.shape[1]
            mask = None
            if operator["causal"] and not has_all_positions:
                places = torch.arange(sequence.shape[1], device=x.device)
                mask = places[None, :] <= places[first:end, None]
            attended = nn.functional.scaled_dot_product_attention(
                projected("query", x, first),
                projected("key", sequence),
                projected("value", sequence),
                mask,
                is_causal=operator["causal"] and has_all_positions,
                enable_gqa=operator.key_heads != operator["heads"],
            )
            return attended.transpose(1, 2).flatten(2)

        return attend
