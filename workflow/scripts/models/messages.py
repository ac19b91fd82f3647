"""What a mesh asks of a rank, by formula: memory for a step of training, bytes that it sends, and how long a pipeline idles.

Rings send 2 (n - 1) / n of what is all-reduced among n ranks, and (n - 1) / n of what is gathered, or reduced to shares (Patarasuk &
Yuan, J. Parallel Distrib. Comput. 69, 2009). Along a sharded axis ranks gather parameters and reduce gradients to shares once a step, and
where they keep shares of parameters they gather them for each batch, forward and backward (Rajbhandari et al., SC'20, section 7).
Along a tensor axis what a divided operator gives is summed in the forward pass, and the gradient of what it takes in the
backward pass (Shoeybi et al., arXiv:1909.08053, section 3). All numbers have 32 bits; libraries need more memory, and may send more.
Standard library only, as models.graph.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.division import COLUMNS, HEADS, ROWS, SHARED, divided_outputs, stages, tensor_parts
from models.graph import BYTES, Graph, Operator, is_trained
from models.mesh import Mesh

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "point_to_point")
STATES = {"sgd": 1, "adam": 2}  # numbers that an optimizer keeps of each parameter; sgd's is its momentum


@dataclass(frozen=True)
class Need:
    """Of one rank: bytes of memory, and bytes that it sends in a step, by kind (KINDS)."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    sent: Mapping[str, float]

    @property
    def memory(self) -> float:
        """All that it holds at once, bytes."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def bubble(mesh: Mesh, microbatches: int) -> float:
    """The share of a step in which a stage has nothing to do, where all take as long (Huang et al., NeurIPS 2019, section 2.3)."""
    return (mesh.pipeline - 1) / (microbatches + mesh.pipeline - 1)


def needs(graph: Graph, mesh: Mesh, batch: int, levels: Mapping[str, Any]) -> list[Need]:
    """Of a rank of each stage. `batch`: samples of a replica; `levels`: of the factors, of which optimizer, momentum, sync_every,
    microbatches, schedule and sharding count. ValueError where the mesh cannot divide the model."""
    parts = tensor_parts(graph, mesh.tensor) if mesh.tensor > 1 else {}
    cut = stages(graph, mesh.pipeline, mesh.tensor) if mesh.pipeline > 1 else [graph]
    shared = {operator.name for stage in cut for operator in stage.operators if operator.kind == SHARED}
    return [_need(stage, number, mesh, batch, levels, parts, shared) for number, stage in enumerate(cut)]


def _need(
    stage: Graph,
    number: int,
    mesh: Mesh,
    batch: int,
    levels: Mapping[str, Any],
    parts: Mapping[str, str],
    shared: set[str],
) -> Need:
    weights = sum(_own_bytes(operator, parts.get(operator.name), mesh.tensor) for operator in stage.operators)
    sharding = levels["sharding"]
    states = STATES[levels["optimizer"]] if levels["optimizer"] != "sgd" or levels["momentum"] else 0
    divided = divided_outputs(stage, parts)
    outputs = sum(_output_bytes(op) / (mesh.tensor if op.name in divided else 1) for op in stage.operators)
    microbatches = levels["microbatches"] if mesh.pipeline > 1 else 1
    in_flight = min(microbatches, mesh.pipeline - number) if levels["schedule"] == "1f1b" else microbatches
    return Need(
        parameters=weights / (mesh.sharded if sharding == "parameters" else 1),
        gradients=weights / (mesh.sharded if sharding != "optimizer" else 1),
        optimizer=states * weights / mesh.sharded,
        activations=outputs * batch * in_flight / microbatches,
        sent=_sent(stage, number, mesh, batch, levels, parts, shared, weights),
    )


def _sent(
    stage: Graph,
    number: int,
    mesh: Mesh,
    batch: int,
    levels: Mapping[str, Any],
    parts: Mapping[str, str],
    shared: set[str],
    weights: float,
) -> dict[str, float]:
    batches = levels["sync_every"]
    passed = sum(  # of a sample, along a tensor axis
        _output_bytes(operator) * (parts.get(operator.name) in (ROWS, HEADS))
        + sum(_output_bytes(below) for below in _below(stage, operator, number > 0))
        * (parts.get(operator.name) in (COLUMNS, HEADS))
        for operator in stage.operators
    )
    tables = sum(_own_bytes(operator, None, 1) for operator in stage.operators if operator.name in shared)
    share = (mesh.sharded - 1) / mesh.sharded * weights
    handed_on = (number < mesh.pipeline - 1) * _output_bytes(stage.operators[-1]) + (number > 0) * _output_bytes(
        stage.operators[0]
    )
    return {
        "all_reduce": _ring(mesh.data) * weights / mesh.sharded
        + _ring(mesh.tensor) * passed * batch * batches
        + _ring(2) * tables / mesh.sharded,
        "all_gather": share * (2 * batches if levels["sharding"] == "parameters" else 1),
        "reduce_scatter": share,
        "point_to_point": float(handed_on * batch * batches),
    }


def _ring(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


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
