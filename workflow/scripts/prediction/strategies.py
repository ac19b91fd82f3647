"""What a step costs on a device mesh: shares of one device's computation, and messages that ranks wait for.

Of a pipeline stage, w is its share of the multiplications, some of which a tensor axis partitions
(models.division), q its share of the operators, and v its share of the parameters that a rank updates. m
microbatches pass through p stages: equal stages take m + p - 1 turns (Huang et al., NeurIPS 2019, section
2.3; other schedules take a share of the p - 1, models.pipelines), and a mesh without a pipeline takes one.
The law of prediction multiplies these by alpha, beta and u of one device. Messages (models.messages) take the
time of their collective among the ranks of their group:

    layers       of a tensor axis, for every microbatch: later layers wait for each
    handed       an output forward and a gradient backward between two turns
    parameters   gradients and parameters of the data and sharded axes and of tied layers, for each update

Groups whose messages leave a node at the same time share its link. Groups within one node are not predicted,
because benchmarks do not measure them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.graph import Graph
from models.mesh import Mesh
from models.messages import Message, Need, needs, number_bytes
from models.pipelines import IDLE_TURNS, stages_per_rank

LAYER_AXES = ("tensor", "experts")  # whose messages lie between layers
BLOCKING_AXES = (*LAYER_AXES, "pipeline")
# From a collective, spanned nodes, ranks, link rate in bytes/s and bytes to seconds; None: not known.
Timer = Callable[[str, float, float, float, float], float | None]


@dataclass(frozen=True)
class Place:
    """Nodes and ranks of a cell, and its link rate in bytes/s (NaN: unknown)."""

    nodes: int
    ranks: int
    rate: float


@dataclass(frozen=True)
class MeshStep:
    """One optimizer step of a mesh.

    Attributes:
        calls: Operators of a batch in terms of those of one device, over all turns of a pipeline.
        work: The same for the multiplications of a replica's batch.
        updated: Share of the parameters that a rank updates.
        message_s: Seconds of all messages of the step.
        n_blocking: Number of messages within layers, one after the other.
    """

    calls: float
    work: float
    updated: float
    message_s: float
    n_blocking: float


def describe_step(
    graph: Graph,
    mesh: Mesh,
    batch: int,
    levels: Mapping[str, Any],
    place: Place,
    timer: Timer,
    unit_bytes: float = math.inf,
) -> MeshStep | None:
    """Return the step of a mesh, or None if the time of some message is not known.

    Args:
        graph: The model.
        mesh: The device mesh.
        batch: Samples of a replica (see models.messages.needs, also for `levels` and `unit_bytes`).
        levels: Levels of the cell.
        place: Where the cell runs.
        timer: Time of a message.
        unit_bytes: Size limit of sharded units.

    Raises:
        ValueError: If the mesh cannot partition the model.
    """
    stages = needs(graph, mesh, batch, levels, unit_bytes)
    n_microbatches, n_batches = (levels["microbatches"] if mesh.pipeline > 1 else 1), levels["sync_every"]
    layers, counts, handed, parameters = [], [], [], []
    for need in stages:
        seconds = [_message_s(message, place, timer) for message in need.messages]
        if None in seconds:
            return None
        timed = [(message, float(own or 0.0)) for message, own in zip(need.messages, seconds, strict=True)]
        in_layers = sum(message.count * own for message, own in timed if message.axis in LAYER_AXES)
        layers.append(in_layers / (n_batches * n_microbatches))
        n_in_layers = sum(message.count for message in need.messages if message.axis in LAYER_AXES)
        counts.append(n_in_layers / (n_batches * n_microbatches))
        handed.append(max((own for message, own in timed if message.axis == "pipeline"), default=0.0))
        parameters.append(
            sum(message.count * own for message, own in timed if message.axis not in BLOCKING_AXES)
        )
    calls, work = ([getattr(need, name) for need in stages] for name in ("calls", "work"))
    slowest = int(np.argmax(work))
    is_pipeline = mesh.pipeline > 1
    idle_turns = IDLE_TURNS[levels["schedule"]] if is_pipeline else 1.0
    n_passes = n_microbatches * (stages_per_rank(levels["schedule"]) if is_pipeline else 1)

    def turns(values: list[float]) -> float:
        return sum_over_turns(values, slowest, n_microbatches, idle_turns)

    return MeshStep(
        calls=turns(calls),
        work=turns(work) / n_microbatches,
        updated=max(_updated_bytes(need, mesh, levels) for need in stages)
        / (number_bytes(levels).stored * graph.parameters),
        n_blocking=n_batches * turns(counts),
        message_s=n_batches * (turns(layers) + 2 * (n_passes + mesh.pipeline - 2) * max(handed))
        + max(parameters),
    )


def sum_over_turns(values: Sequence[float], slowest: int, n_microbatches: int, idle_turns: float) -> float:
    """Return the sum over all turns of a pipeline of what each rank needs for a microbatch.

    `slowest` is the rank with most work, and `idle_turns` of models.pipelines.
    """
    return n_microbatches * values[slowest] + idle_turns * (sum(values) - values[slowest])


def _updated_bytes(need: Need, mesh: Mesh, levels: Mapping[str, Any]) -> float:
    """Return bytes of the parameters that a rank updates: its shard, whether or not it keeps the others."""
    return need.parameters / (1 if levels["sharding"] == "parameters" else mesh.sharded)


def _message_s(message: Message, place: Place, timer: Timer) -> float | None:
    """Return the time of one message; None if it is not known, or if the ranks share one node."""
    per_node = max(place.ranks // place.nodes, 1)
    ranks_on_node = max(per_node // message.stride, 1)
    if (spanned_nodes := math.ceil(message.ranks / ranks_on_node)) < 2:
        return None
    groups = per_node / ranks_on_node
    return timer(message.kind, float(spanned_nodes), float(message.ranks), place.rate / groups, message.bytes)
