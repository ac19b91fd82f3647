"""What a mesh asks of a rank, by formula: memory for a step of training, the messages that it sends, and how long a pipeline idles.

Rings send 2 (n - 1) / n of what is all-reduced among n ranks, and (n - 1) / n of what is gathered, or reduced to shares (Patarasuk &
Yuan, J. Parallel Distrib. Comput. 69, 2009). Along a sharded axis ranks gather parameters and reduce gradients to shares once a step, and
where they keep shares of parameters they gather them for each batch, forward and backward (Rajbhandari et al., SC'20, section 7).
Along a tensor axis what a divided operator gives is summed in the forward pass, and the gradient of what it takes in the
backward pass (Shoeybi et al., arXiv:1909.08053, section 3). All numbers have 32 bits; libraries need more memory, and may send more.
Standard library only, as models.graph.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.collectives import ALL_GATHER, ALL_REDUCE, COLLECTIVES, OF_MESHES, POINT_TO_POINT, REDUCE_SCATTER
from models.division import COLUMNS, HEADS, ROWS, divided_outputs, stages, tensor_parts
from models.graph import BYTES, SHARED, Graph, Operator, is_trained
from models.mesh import Mesh

TIED = "tied"  # in place of an axis: the ranks of two stages that have one table
STATES = {"sgd": 1, "adam": 2}  # numbers that an optimizer keeps of each parameter; sgd's is its momentum


@dataclass(frozen=True)
class Message:
    """Alike messages of a rank in a step. `kind`: their collective; `axis`: along which its ranks lie, or TIED; `bytes`: its larger side on a rank, as
    sweeps count (models.collectives); `count` in a step; `ranks` that take part, neighbours of which lie `stride` ranks apart."""

    kind: str
    axis: str
    bytes: float
    count: int
    ranks: int
    stride: int

    @property
    def sent(self) -> float:
        """Bytes that a rank sends at least, of all of them."""
        return float(COLLECTIVES[self.kind].sent(self.ranks) * self.bytes * self.count)


@dataclass(frozen=True)
class Need:
    """Of one rank: bytes of memory, and its messages in a step. `work`, `calls`: its shares of the model's multiplications and operators."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    messages: tuple[Message, ...]
    work: float
    calls: float

    @property
    def sent(self) -> dict[str, float]:
        """Bytes that it sends in a step, by collective."""
        return {kind: sum(one.sent for one in self.messages if one.kind == kind) for kind in OF_MESHES}

    @property
    def memory(self) -> float:
        """All that it holds at once, bytes."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def bubble(mesh: Mesh, microbatches: int) -> float:
    """The share of a step in which a stage has nothing to do, where all take as long (Huang et al., NeurIPS 2019, section 2.3)."""
    return (mesh.pipeline - 1) / (microbatches + mesh.pipeline - 1)


def needs(graph: Graph, mesh: Mesh, batch: int, levels: Mapping[str, Any], unit_bytes: float = math.inf) -> list[Need]:
    """Of a rank of each stage. `batch`: samples of a replica; `levels`: of the factors, of which optimizer, momentum, sync_every,
    microbatches, schedule and sharding count; `unit_bytes`: layers are gathered and summed together until they have so many. ValueError
    where the mesh cannot divide the model."""
    parts = tensor_parts(graph, mesh.tensor) if mesh.tensor > 1 else {}
    cut = stages(graph, mesh.pipeline, mesh.tensor) if mesh.pipeline > 1 else [graph]
    shared = {operator.name for stage in cut for operator in stage.operators if operator.kind == SHARED}
    microbatches = levels["microbatches"] if mesh.pipeline > 1 else 1
    batches = levels["sync_every"] * microbatches
    made = [
        _Stage(stage, number, mesh, batch / microbatches, batches, levels, parts) for number, stage in enumerate(cut)
    ]
    return [
        Need(
            **stage.memory(microbatches),
            messages=(*stage.of_parameters(unit_bytes), *stage.of_layers(), *stage.of_tables(shared)),
            work=stage.macs / max(graph.macs, 1),
            calls=len(stage.graph.operators) / len(graph.operators),
        )
        for stage in made
    ]


@dataclass(frozen=True)
class _Stage:
    """A rank's part of a model, the stage of this `number`: of `batches` batches or microbatches a step, each of `samples`; `parts`: how a
    tensor axis divides operators."""

    graph: Graph
    number: int
    mesh: Mesh
    samples: float
    batches: int
    levels: Mapping[str, Any]
    parts: Mapping[str, str]

    @property
    def layers(self) -> list[float]:
        """Bytes of the weights of each operator."""
        return [_own_bytes(one, self.parts.get(one.name), self.mesh.tensor) for one in self.graph.operators]

    @property
    def macs(self) -> float:
        """Its multiplications for a sample."""
        return sum(one.macs / (self.mesh.tensor if one.name in self.parts else 1) for one in self.graph.operators)

    def memory(self, microbatches: int) -> dict[str, float]:
        """Bytes that it holds, by what they are."""
        mesh, levels, weights = self.mesh, self.levels, sum(self.layers)
        sharding = levels["sharding"]
        states = STATES[levels["optimizer"]] if levels["optimizer"] != "sgd" or levels["momentum"] else 0
        divided = divided_outputs(self.graph, self.parts)
        outputs = sum(_output_bytes(one) / (mesh.tensor if one.name in divided else 1) for one in self.graph.operators)
        in_flight = min(microbatches, mesh.pipeline - self.number) if levels["schedule"] == "1f1b" else microbatches
        return {
            "parameters": weights / (mesh.sharded if sharding == "parameters" else 1),
            "gradients": weights / (mesh.sharded if sharding != "optimizer" else 1),
            "optimizer": states * weights / mesh.sharded,
            "activations": outputs * self.samples * in_flight,
        }

    def of_parameters(self, unit_bytes: float) -> Iterator[Message]:
        """Messages of copies and shares of parameters: gradients of every unit, and parameters."""
        mesh, layers = self.mesh, self.layers
        gathered = 2 * self.levels["sync_every"] if self.levels["sharding"] == "parameters" else 1
        for unit in units(layers, unit_bytes):
            size = sum(layers[i] for i in unit)
            if mesh.sharded > 1:
                yield Message(ALL_GATHER, "sharded", size, gathered, mesh.sharded, mesh.tensor)
                yield Message(REDUCE_SCATTER, "sharded", size, 1, mesh.sharded, mesh.tensor)
            if mesh.data > 1:
                yield Message(ALL_REDUCE, "data", size / mesh.sharded, 1, mesh.data, mesh.sharded * mesh.tensor)

    def of_layers(self) -> Iterator[Message]:
        """Messages of outputs and their gradients."""
        mesh, operators = self.mesh, self.graph.operators
        for operator in operators if mesh.tensor > 1 else ():
            how = self.parts.get(operator.name)
            summed = [operator] * (how in (ROWS, HEADS))
            summed += _below(self.graph, operator, self.number > 0) if how in (COLUMNS, HEADS) else []
            for one in summed:
                yield Message(ALL_REDUCE, "tensor", _output_bytes(one) * self.samples, self.batches, mesh.tensor, 1)
        handed = [operators[-1]] * (self.number < mesh.pipeline - 1) + [operators[0]] * (self.number > 0)
        for one in handed:
            size, stride = _output_bytes(one) * self.samples, mesh.ranks // mesh.pipeline
            yield Message(POINT_TO_POINT, "pipeline", size, self.batches, mesh.pipeline, stride)

    def of_tables(self, shared: Collection[str]) -> Iterator[Message]:
        """Messages of the gradients of tables that another stage has, too."""
        stride = self.mesh.ranks // self.mesh.pipeline * (self.mesh.pipeline - 1)
        for one in self.graph.operators:
            if one.name in shared:
                yield Message(ALL_REDUCE, TIED, _own_bytes(one, None, 1) / self.mesh.sharded, 1, 2, stride)


def units(layers: Sequence[float], limit: float) -> list[list[int]]:
    """Numbers of the layers that travel together, by their bytes: a unit is closed in front of the layer that finds it at its limit.
    Those without bytes are in none."""
    made: list[list[int]] = []
    size = math.inf
    for number in (number for number, own in enumerate(layers) if own):
        if size >= limit or not made:
            made.append([])
            size = 0.0
        made[-1].append(number)
        size += layers[number]
    return made


def _below(stage: Graph, operator: Operator, handed_on: bool) -> list[Operator]:
    """What an operator takes that has a gradient: also what was `handed_on` to the stage, but not samples."""
    return [below for name in operator.inputs if (below := stage.by_name[name]).kind != "input" or handed_on]


def _output_bytes(operator: Operator) -> int:
    return BYTES * math.prod(operator.shape)


def _own_bytes(operator: Operator, how: str | None, tensor: int) -> float:
    """Of the trained weights of an operator on a rank of a tensor axis that divides it so: a bias that is added to a sum is whole."""
    whole = {"bias"} if how == ROWS else {"output_bias"} if how == HEADS else set()
    return sum(
        BYTES * math.prod(shape) / (tensor if how and name not in whole else 1)
        for name, shape in operator.weights.items()
        if is_trained(name)
    )
