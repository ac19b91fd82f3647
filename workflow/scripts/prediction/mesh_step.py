"""What an optimizer step costs on a device mesh: shares of one device's computation, and messages.

Each rank does shares of the multiplications (a tensor axis partitions some of them, models.division), of the
operators and of the update. A pipeline of p equal stages takes a turn for each microbatch and p - 1 more
(Huang et al., NeurIPS 2019, section 2.3; other schedules take a share of the p - 1, models.pipelines), and a
mesh without a pipeline takes one. The law multiplies the shares by sample_s, fixed_s and update_s of one
device. Messages (models.messages) take the time of their collective among the ranks of a group:

    layers       of the tensor and experts axes, for every microbatch: later layers wait for each
    handed       an output forward and a gradient backward between two pipeline stages
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
from models.messages import Message, StepDemand, number_bytes, step_demands
from models.pipelines import IDLE_TURNS, stages_per_rank

LAYER_AXES = ("tensor", "experts")  # Their messages are sent between layers.
BLOCKING_AXES = (*LAYER_AXES, "pipeline")
# (collective, spanned nodes, ranks, link rate in bytes/s, bytes) -> seconds; None: unknown.
Timer = Callable[[str, float, float, float, float], float | None]


@dataclass(frozen=True)
class NetworkScale:
    """The nodes and ranks of a cell, and the rate of its links in bytes/s (NaN: unknown)."""

    nodes: int
    ranks: int
    rate: float


@dataclass(frozen=True)
class MeshStep:
    """One optimizer step of a mesh.

    Attributes:
        calls: Operators that ranks run one after the other for a batch, relative to one device.
        work: Multiplications that ranks do one after the other for a replica's batch, relative to one device.
        updated: Share of the parameters that a rank updates.
        messages_s: Seconds of all messages of the step.
        n_blocking: Number of messages within layers, one after the other.
    """

    calls: float
    work: float
    updated: float
    messages_s: float
    n_blocking: float


def describe_step(
    graph: Graph,
    mesh: Mesh,
    batch: int,
    levels: Mapping[str, Any],
    scale: NetworkScale,
    timer: Timer,
    unit_bytes: float = math.inf,
) -> MeshStep | None:
    """Return the step of a mesh, or None if the time of any message is unknown.

    Args:
        graph: The model.
        mesh: The device mesh.
        batch: Samples of a replica (see models.messages.step_demands, also for `levels` and `unit_bytes`).
        levels: Levels of the cell.
        scale: Where the cell runs.
        timer: Time of a message.
        unit_bytes: Size limit of sharded units.

    Raises:
        ValueError: If the mesh cannot partition the model.
    """
    stage_demands = step_demands(graph, mesh, batch, levels, unit_bytes)
    stages: list[_StageMessages] = []
    for demand in stage_demands:
        if (messages := _stage_messages(demand, scale, timer)) is None:
            return None
        stages.append(messages)
    is_pipeline, batches_per_step = mesh.pipeline > 1, levels["sync_every"]
    n_microbatches = levels["microbatches"] if is_pipeline else 1
    n_stage_passes = n_microbatches * (stages_per_rank(levels["schedule"]) if is_pipeline else 1)
    idle_turns = IDLE_TURNS[levels["schedule"]] if is_pipeline else 1.0
    slowest = int(np.argmax([demand.work for demand in stage_demands]))

    def turns(values: list[float]) -> float:
        return sum_over_turns(values, slowest, n_microbatches, idle_turns)

    passes_per_step = batches_per_step * n_microbatches
    layers_s = turns([stage.layers_s / passes_per_step for stage in stages])
    # One after the other, n_stage_passes + p - 2 outputs are handed on, and as many gradients back.
    handed_s = 2 * (n_stage_passes + mesh.pipeline - 2) * max(stage.handed_s for stage in stages)
    updated_bytes = max(_updated_bytes(demand, mesh, levels) for demand in stage_demands)
    return MeshStep(
        calls=turns([demand.calls for demand in stage_demands]),
        work=turns([demand.work for demand in stage_demands]) / n_microbatches,
        updated=updated_bytes / (number_bytes(levels).stored * graph.parameters),
        n_blocking=batches_per_step * turns([stage.n_layers / passes_per_step for stage in stages]),
        messages_s=batches_per_step * (layers_s + handed_s) + max(stage.parameters_s for stage in stages),
    )


@dataclass(frozen=True)
class _StageMessages:
    """The messages of one pipeline stage in an optimizer step.

    Attributes:
        layers_s: Seconds of all messages between layers.
        n_layers: Number of messages between layers.
        handed_s: Seconds of one message to another stage.
        parameters_s: Seconds of all messages of gradients and parameters.
    """

    layers_s: float
    n_layers: int
    handed_s: float
    parameters_s: float


def _stage_messages(demand: StepDemand, scale: NetworkScale, timer: Timer) -> _StageMessages | None:
    """Return the messages of one stage, or None if the time of any is unknown."""
    layers_s = handed_s = parameters_s = 0.0
    n_layers = 0
    for message in demand.messages:
        if (seconds := _time_message(message, scale, timer)) is None:
            return None
        if message.axis in LAYER_AXES:
            layers_s += message.count * seconds
            n_layers += message.count
        elif message.axis == "pipeline":
            handed_s = max(handed_s, seconds)
        else:
            parameters_s += message.count * seconds
    return _StageMessages(layers_s, n_layers, handed_s, parameters_s)


def sum_over_turns(values: Sequence[float], slowest: int, n_microbatches: int, idle_turns: float) -> float:
    """Return the sum over all turns of a pipeline, given what each rank needs for one microbatch.

    Args:
        values: What each rank needs.
        slowest: The rank with the most work.
        n_microbatches: Microbatches of a batch.
        idle_turns: Share of the bubble that the schedule leaves (models.pipelines.IDLE_TURNS).
    """
    return n_microbatches * values[slowest] + idle_turns * (sum(values) - values[slowest])


def _updated_bytes(demand: StepDemand, mesh: Mesh, levels: Mapping[str, Any]) -> float:
    """Return the bytes of parameters that a rank updates: its shard, even if it keeps the other shards."""
    return demand.parameters / (1 if levels["sharding"] == "parameters" else mesh.sharded)


def _time_message(message: Message, scale: NetworkScale, timer: Timer) -> float | None:
    """Return the time of one message; None if it is unknown, or if the ranks share one node."""
    per_node = max(scale.ranks // scale.nodes, 1)
    ranks_on_node = max(per_node // message.stride, 1)
    if (spanned_nodes := math.ceil(message.ranks / ranks_on_node)) < 2:
        return None
    groups = per_node / ranks_on_node
    return timer(message.kind, float(spanned_nodes), float(message.ranks), scale.rate / groups, message.bytes)
