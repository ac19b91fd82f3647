"""What a mesh asks of a rank, by formula: memory for a step of training, the messages that it sends, and how long a pipeline idles.

Rings send 2 (n - 1) / n of what is all-reduced among n ranks, and (n - 1) / n of what is gathered, or reduced to shares (Patarasuk &
Yuan, J. Parallel Distrib. Comput. 69, 2009). Along a sharded axis ranks gather parameters and reduce gradients to shares once a step, and
where they keep shares of parameters they gather them for each batch, forward and backward (Rajbhandari et al., SC'20, section 7).
Along a tensor axis what a divided operator gives is summed in the forward pass, and the gradient of what it takes in the
backward pass (Shoeybi et al., arXiv:1909.08053, section 3). All numbers have 32 bits; libraries need more memory, and may send more.
Standard library only, as models.graph.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.collectives import ALL_GATHER, ALL_REDUCE, COLLECTIVES, OF_MESHES, POINT_TO_POINT, REDUCE_SCATTER
from models.division import COLUMNS, HEADS, ROWS, SHARED, divided_outputs, stages, tensor_parts
from models.graph import BYTES, Graph, Operator, is_trained
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
    return [
        _need(graph, stage, number, mesh, batch, levels, parts, shared, unit_bytes) for number, stage in enumerate(cut)
    ]


def _need(
    graph: Graph,
    stage: Graph,
    number: int,
    mesh: Mesh,
    batch: int,
    levels: Mapping[str, Any],
    parts: Mapping[str, str],
    shared: set[str],
    unit_bytes: float,
) -> Need:
    layers = [_own_bytes(operator, parts.get(operator.name), mesh.tensor) for operator in stage.operators]
    weights = sum(layers)
    sharding = levels["sharding"]
    states = STATES[levels["optimizer"]] if levels["optimizer"] != "sgd" or levels["momentum"] else 0
    divided = divided_outputs(stage, parts)
    outputs = sum(_output_bytes(op) / (mesh.tensor if op.name in divided else 1) for op in stage.operators)
    microbatches = levels["microbatches"] if mesh.pipeline > 1 else 1
    in_flight = min(microbatches, mesh.pipeline - number) if levels["schedule"] == "1f1b" else microbatches
    micro = batch / microbatches
    tables = [_own_bytes(operator, None, 1) for operator in stage.operators if operator.name in shared]
    work = sum(op.macs / (mesh.tensor if op.name in parts else 1) for op in stage.operators)
    return Need(
        parameters=weights / (mesh.sharded if sharding == "parameters" else 1),
        gradients=weights / (mesh.sharded if sharding != "optimizer" else 1),
        optimizer=states * weights / mesh.sharded,
        activations=outputs * micro * in_flight,
        messages=(
            *_of_parameters(_units(layers, unit_bytes), mesh, levels),
            *_of_layers(stage, number, mesh, micro, levels["sync_every"] * microbatches, parts),
            *(
                Message(
                    ALL_REDUCE, TIED, table / mesh.sharded, 1, 2, mesh.ranks // mesh.pipeline * (mesh.pipeline - 1)
                )
                for table in tables
            ),
        ),
        work=work / max(graph.macs, 1),
        calls=len(stage.operators) / len(graph.operators),
    )


def _units(layers: Sequence[float], limit: float) -> list[float]:
    """Bytes of layers that travel together: a unit is closed in front of the layer that finds it at its limit."""
    made: list[float] = []
    for size in filter(None, layers):
        if not made or made[-1] >= limit:
            made.append(0.0)
        made[-1] += size
    return made


def _of_parameters(units: Sequence[float], mesh: Mesh, levels: Mapping[str, Any]) -> Iterator[Message]:
    """Of copies and shares of parameters: gradients of every unit, and parameters."""
    gathered = 2 * levels["sync_every"] if levels["sharding"] == "parameters" else 1
    for size in units:
        if mesh.sharded > 1:
            yield Message(ALL_GATHER, "sharded", size, gathered, mesh.sharded, mesh.tensor)
            yield Message(REDUCE_SCATTER, "sharded", size, 1, mesh.sharded, mesh.tensor)
        if mesh.data > 1:
            yield Message(ALL_REDUCE, "data", size / mesh.sharded, 1, mesh.data, mesh.sharded * mesh.tensor)


def _of_layers(
    stage: Graph, number: int, mesh: Mesh, micro: float, count: int, parts: Mapping[str, str]
) -> Iterator[Message]:
    """Of outputs and their gradients, of `count` batches or microbatches of `micro` samples."""
    for operator in stage.operators if mesh.tensor > 1 else ():
        how = parts.get(operator.name)
        summed = [operator] * (how in (ROWS, HEADS))
        summed += _below(stage, operator, number > 0) if how in (COLUMNS, HEADS) else []
        for one in summed:
            yield Message(ALL_REDUCE, "tensor", _output_bytes(one) * micro, count, mesh.tensor, 1)
    handed = [stage.operators[-1]] * (number < mesh.pipeline - 1) + [stage.operators[0]] * (number > 0)
    for one in handed:
        yield Message(
            POINT_TO_POINT,
            "pipeline",
            _output_bytes(one) * micro,
            count,
            mesh.pipeline,
            mesh.ranks // mesh.pipeline,
        )


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
