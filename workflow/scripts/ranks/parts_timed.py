"""Time the parts of a model's layers on one rank.

A launcher starts `python -m ranks.parts_timed ATTEMPT_FOLDER` in the framework's environment. The rank writes
result.json, the measured part of timing.json, into the attempt's folder.

Of every configuration of every layer (models.soap), it computes one part as ranks.libraries.pytorch_strategy
does: the forward pass with the part's shard of the weights and with inputs as leaves, and the backward pass
for a given gradient. Parts with equal timing keys are timed once. Steps of the study's optimizer are timed
for each layer's shard of weights, and without any weights. Calls are repeated for at least MIN_REPETITION_S,
which covers several periods of a CPU quota.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.graph import Graph, is_decayed
from models.layout import dimensions, reads, regions_needed
from models.soap import HEADS_SUFFIX, POSITIONS, Degrees, Layer, Space, divide, part_of, region_of
from ranks.libraries.pytorch.device import configure_library, device_name, synchronize
from ranks.libraries.pytorch.model import build, tensors
from ranks.libraries.pytorch.optimizer import optimizer_of
from ranks.libraries.pytorch.trainer import cross_entropy
from ranks.libraries.pytorch_parts import Part, Shard, size_of, state_size
from ranks.worker.context import Context, from_environment
from ranks.worker.load import Load
from ranks.worker.node import memory_bytes
from ranks.worker.process import adapter_of, as_rank, leave_measurement

MIN_REPETITION_S = 0.02
N_REPETITIONS = 5
MIN_REPETITIONS = 2  # minimum even if the time budget is exceeded
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class InputSizes:
    """Shapes of a part's inputs: samples that it reads, outputs of other layers, and states of an LSTM."""

    reads: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    states: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Piece:
    """A part of a layer. Parts with the same `timing_key` take the same time."""

    place: int
    degrees: Degrees
    number: int
    inputs: InputSizes
    timing_key: tuple[Any, ...]


def input_sizes(graph: Graph, space: Space, place: int, degrees: Degrees, number: int) -> InputSizes:
    """Return the input sizes of the part with this number; see pytorch_strategy.Runner."""
    shape, computed = graph.operators[0].shape, region_of(space.layers[place], degrees, number)
    outputs, states = [], []
    for edge, needed, of_state in regions_needed(space, degrees, (place, number)):
        source = space.layers[place if edge is None else space.edges[edge].source]
        if of_state:
            states.append(state_size(needed[0], source))
        else:
            outputs.append(size_of(needed, dimensions(source, graph), source.cell))
    read = (size_of(region, len(shape), 1) for region in reads(space, shape, place, computed))
    return InputSizes(tuple(read), tuple(outputs), tuple(states))


def pieces(graph: Graph, space: Space, devices: int) -> Iterator[Piece]:
    """Yield the middle part of every configuration of every layer, since parts at edges can differ."""
    for place, layer in enumerate(space.layers):
        for degrees in layer.configurations(devices):
            number = math.prod(degrees) // 2
            inputs = input_sizes(graph, space, place, degrees, number)
            sizes = tuple(end - first for first, end in region_of(layer, degrees, number))
            settings = tuple(_settings(graph, name) for name in layer.operators)
            # The region decides about padding at edges, and about masks of positions.
            inner_region = region_of(layer, degrees, number)[1:3]
            last = layer.chain and part_of(number, degrees)[POSITIONS] == degrees[POSITIONS] - 1
            yield Piece(
                place,
                degrees,
                number,
                inputs,
                (settings, inner_region, _shares(layer, degrees), sizes, inputs, last),
            )


def _settings(graph: Graph, name: str) -> tuple[Any, ...]:
    """Return what distinguishes an operator except its name.

    The heads of an attention differ from the projection behind them.
    """
    heads = name not in graph.by_name
    operator = graph.by_name[name.removesuffix(HEADS_SUFFIX) if heads else name]
    return heads, operator.kind, repr(operator.settings), repr(operator.weights), operator.shape


class Work:
    """A part with its inputs and the gradient of its outputs; `forward` and `backward` can be repeated."""

    def __init__(self, graph: Graph, space: Space, piece: Piece, shard: Shard, device: torch.device) -> None:
        layer = space.layers[piece.place]
        self._part = Part(graph, space, piece.place, region_of(layer, piece.degrees, piece.number), shard)
        self._reads = [_samples(graph, size, device) for size in piece.inputs.reads]
        self._outputs, self._states = (
            [torch.randn(size, device=device).requires_grad_() for size in sizes]
            for sizes in (piece.inputs.outputs, piece.inputs.states)
        )
        self._leaves = [*self._outputs, *self._states, *shard.parameters()]
        self._labels: Tensor | None = None
        self._is_language_model = graph.is_language_model
        if not layer.operators:
            last = graph.operators[-1].shape
            size = [size // degree for size, degree in zip(layer.shape, piece.degrees, strict=True)][
                : len(last)
            ]
            self._labels = torch.randint(last[-1], size, device=device)
        self.forward()
        self._passes_state_on = (
            layer.chain and part_of(piece.number, piece.degrees)[POSITIONS] < piece.degrees[POSITIONS] - 1
        )
        self._gradients = [torch.randn_like(output) for output in self._all_outputs()]
        self.has_gradient = self._output.requires_grad

    def _all_outputs(self) -> list[Tensor]:
        """Return the output, and the state if another part needs it."""
        return [self._output, self._state] if self._passes_state_on else [self._output]

    def forward(self) -> None:
        """Run the forward pass, as Runner.forward does."""
        self._output, self._state = self._part([*self._reads, *self._outputs], self._states)
        if self._labels is not None:
            logits = self._output
            self._output = cross_entropy(logits, self._labels, "sum") / self._labels.numel()
            if not self._is_language_model:
                self._n_correct = (logits.argmax(-1) == self._labels).sum()

    def backward(self) -> None:
        """Run the backward pass of the last forward pass, as Runner.backward does."""
        for leaf in self._leaves:
            leaf.grad = None
        if self._labels is not None:
            self._output.backward(retain_graph=True)
            return
        torch.autograd.backward(self._all_outputs(), self._gradients, retain_graph=True)


def _samples(graph: Graph, size: tuple[int, ...], device: torch.device) -> Tensor:
    if graph.vocabulary is None:
        return torch.randn(size, device=device)
    # Samples of a model that masks tokens are numbers of positions, too.
    limit = min(graph.vocabulary, graph.shape[0] - graph.n_masked) if graph.n_masked else graph.vocabulary
    return torch.randint(limit, size, device=device)


class Clock:
    """Measure the times of `n_calls` different calls within a common time budget."""

    def __init__(self, device: torch.device, n_calls: int, budget_s: float) -> None:
        self._device, self._left, self._end = device, n_calls, time.perf_counter() + budget_s

    def times(self, call: Callable[[], object]) -> list[float]:
        """Return the seconds per call of each repetition.

        The first repetitions determine the number of calls in a repetition, and are not returned.
        """
        share = (self._end - time.perf_counter()) / max(1, self._left)
        self._left -= 1
        began, count = time.perf_counter(), 1
        while (seconds := self._repetition(call, count)) < MIN_REPETITION_S:
            count = max(
                2 * count, min(10 * count, math.ceil(1.2 * count * MIN_REPETITION_S / max(seconds, 1e-9)))
            )
        times: list[float] = []
        while len(times) < MIN_REPETITIONS or (
            len(times) < N_REPETITIONS and time.perf_counter() - began < share
        ):
            times.append(self._repetition(call, count) / count)
        return times

    def _repetition(self, call: Callable[[], object], count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            call()
        synchronize(self._device)
        return time.perf_counter() - began


def timed(context: Context, device: torch.device) -> dict[str, Any]:
    """Return the times of `parts`, the `layers` with the numbers of their parts, and optimizer steps.

    `updates` has the optimizer steps of layers' shards, `empty_update` the step without weights.
    """
    graph, spec = context.graph, context.spec
    space = divide(graph, spec["batch"])
    weights: Mapping[str, Tensor] = tensors(build(graph), graph)
    every = list(pieces(graph, space, spec["devices"]))
    distinct: dict[tuple[Any, ...], Piece] = {}
    for piece in every:
        distinct.setdefault(piece.timing_key, piece)
    numbers = {timing_key: number for number, timing_key in enumerate(distinct)}
    shares = [
        (place, count)
        for place, layer in enumerate(space.layers)
        for count in sorted({_shares(layer, degrees) for degrees in layer.configurations(spec["devices"])})
        if layer.parameters and layer.shared is None
    ]
    clock = Clock(device, 2 * len(distinct) + len(shares) + 1, spec["budget_s"])
    parts = []
    for piece in distinct.values():
        layer = space.layers[piece.place]
        shard = Shard(layer, graph, 0, _shares(layer, piece.degrees), weights).to(device)
        work = Work(graph, space, piece, shard, device)
        forward = clock.times(work.forward)
        parts.append(
            {"forward": forward, "backward": clock.times(work.backward) if work.has_gradient else []}
        )
    updates = []
    update_times: dict[tuple[Any, ...], list[float]] = {}
    for place, count in shares:
        trained = Shard(space.layers[place], graph, 0, count, weights).to(device).trained()
        level = context.levels["decayed_weights"]
        timing_key = tuple((tuple(weight.shape), is_decayed(name, level)) for name, weight in trained.items())
        if timing_key not in update_times:
            update_times[timing_key] = clock.times(
                _make_optimizer_step({name: [weight] for name, weight in trained.items()}, context.levels)
            )
        updates.append(
            {"layer": space.layers[place].name, "shares": count, "seconds": update_times[timing_key]}
        )
    return {
        "parts": parts,
        "layers": [
            {
                "layer": space.layers[piece.place].name,
                "degrees": piece.degrees,
                "part": numbers[piece.timing_key],
            }
            for piece in every
        ],
        "updates": updates,
        "empty_update": clock.times(_make_optimizer_step({}, context.levels)),
    }


def _shares(layer: Layer, degrees: Degrees) -> int:
    return 1 if layer.divides is None else degrees[layer.divides]


def _make_optimizer_step(parameters: dict[str, list[Any]], levels: dict[str, Any]) -> Callable[[], object]:
    """Return the `step` of an optimizer of these weights, after giving them random gradients."""
    optimizer = optimizer_of(parameters, levels, 0.0)
    for group in parameters.values():
        for parameter in group:
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer.step


def memory(device: torch.device, ranks: int) -> tuple[int, int]:
    """Return the bytes of memory that the `ranks` of a node share, and that this rank uses now."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return ranks * total, total - free
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS:"))
    return memory_bytes(), 1024 * int(line.split()[1])


def run(folder: Path) -> None:
    """Time all parts; write result.json at the end."""
    context = from_environment(folder)
    adapter_of(context)
    device = configure_library(context)
    torch.manual_seed(context.spec["seed"])
    (node_memory, resident), load = memory(device, context.spec["ranks_per_node"]), Load(context.group)
    measured = timed(context, device)
    measured |= {"node_memory_bytes": node_memory, "resident_bytes": resident}
    leave_measurement(context, load, device_name(device), measured)


if __name__ == "__main__":
    as_rank(run)
