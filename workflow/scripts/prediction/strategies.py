"""Predict a training step of a device mesh: computation of the slowest rank, and messages it waits for.

    T = S (sum over stages of t + (m - 1) t of the slowest + 2 (m + p - 2) handed) + X (u v + parameters)
    t = alpha q + beta b / m w + layers

alpha, beta and u are the costs of one rank alone (prediction.physics), for S batches of b samples of a
replica and X updates. Of a stage, w is its share of the multiplications, some of which a tensor axis
partitions (models.division), q its share of the operators, and v its share of the parameters that a rank
updates. m microbatches pass through p stages, forward and backward in t each: equal stages take m + p - 1
turns (Huang et al., NeurIPS 2019, section 2.3), and a mesh without a pipeline takes one. Messages
(models.messages) take the time of their collective by its benchmark's law, with the ranks of their group:

    layers       of a tensor axis, for every microbatch: later layers wait for each
    handed       an output forward and a gradient backward between two turns, not overlapped
    parameters   gradients and parameters of the data and sharded axes and of tied layers, one after the
                 other, for each update; a library that overlaps may hide a part

Groups whose messages leave a node at the same time share its link. Benchmarks do not measure groups within
one node.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import InputError
from declared.models import model_graph
from models.graph import Graph
from models.mesh import Mesh
from models.messages import Message, Need, needs
from prediction.law import Law

BLOCKING_AXES = ("tensor", "pipeline")
Laws = Callable[[str], Law | None]  # from a collective to its law, None if it was not benchmarked


@dataclass(frozen=True)
class Place:
    """Nodes and ranks of a cell, and its link rate in bytes/s (NaN: unknown)."""

    nodes: int
    ranks: int
    rate: float


@dataclass(frozen=True)
class Step:
    """Times of an optimizer step in seconds.

    Attributes:
        computed_s: Computation of its batches.
        update_s: The optimizer's update.
        waited_s: Messages that layers or stages wait for.
        parameters_s: Messages of gradients and parameters.
        divided: Number of messages within layers, one after the other.
    """

    computed_s: float
    update_s: float
    waited_s: float
    parameters_s: float
    divided: float


def predict_step(
    graph: Graph,
    mesh: Mesh,
    batch: int,
    levels: Mapping[str, Any],
    computation: np.ndarray,
    place: Place,
    laws: Laws,
    unit_bytes: float = math.inf,
) -> Step | None:
    """Return the step of a mesh, or None if some message was not benchmarked.

    Args:
        graph: The model.
        mesh: The device mesh.
        batch: Samples of a replica (see models.messages.needs, also for `levels` and `unit_bytes`).
        levels: Levels of the cell.
        computation: alpha, beta and u of one rank alone, [3].
        place: Where the cell runs.
        laws: Law of each collective.
        unit_bytes: Size limit of sharded units.

    Raises:
        ValueError: If the mesh cannot partition the model.
    """
    stages = needs(graph, mesh, batch, levels, unit_bytes)
    alpha, beta, update = map(float, computation)
    n_microbatches, n_batches = (levels["microbatches"] if mesh.pipeline > 1 else 1), levels["sync_every"]
    computation_s, layers, counts, handed, parameters = [], [], [], [], []
    for need in stages:
        timed = [(message, _message_s(message, place, laws)) for message in need.messages]
        measured = [(message, seconds) for message, seconds in timed if seconds is not None]
        if len(measured) < len(timed):
            return None
        computation_s.append(alpha * need.calls + beta * batch / n_microbatches * need.work)
        layers.append(
            sum(message.count * seconds for message, seconds in measured if message.axis == "tensor")
            / (n_batches * n_microbatches)
        )
        counts.append(
            sum(message.count for message in need.messages if message.axis == "tensor")
            / (n_batches * n_microbatches)
        )
        handed.append(
            max((seconds for message, seconds in measured if message.axis == "pipeline"), default=0.0)
        )
        parameters.append(
            sum(message.count * seconds for message, seconds in measured if message.axis not in BLOCKING_AXES)
        )
    slowest = int(np.argmax(np.add(computation_s, layers)))
    return Step(
        computed_s=n_batches * (sum(computation_s) + (n_microbatches - 1) * computation_s[slowest]),
        update_s=update * max(_updated_bytes(need, mesh, levels) for need in stages) / graph.gradient_bytes,
        waited_s=n_batches
        * (
            sum(layers)
            + (n_microbatches - 1) * layers[slowest]
            + 2 * (n_microbatches + mesh.pipeline - 2) * max(handed)
        ),
        parameters_s=max(parameters),
        divided=n_batches * (sum(counts) + (n_microbatches - 1) * counts[slowest]),
    )


def model_messages(
    model: str, dataset: str, mesh: Mesh, batch: int, levels: Mapping[str, Any]
) -> list[Message]:
    """Return all messages of a step; none for a model that Ringside does not describe."""
    try:
        graph = model_graph(model, dataset)
    except (InputError, KeyError, ValueError):
        return []
    return [message for need in needs(graph, mesh, batch, levels) for message in need.messages]


def _updated_bytes(need: Need, mesh: Mesh, levels: Mapping[str, Any]) -> float:
    """Return bytes of the parameters that a rank updates: its shard, whether or not it keeps the others."""
    return need.parameters / (1 if levels["sharding"] == "parameters" else mesh.sharded)


def _message_s(message: Message, place: Place, laws: Laws) -> float | None:
    """Return the time of one message; None without a benchmark, or if the ranks share one node."""
    network, per_node = laws(message.kind), max(place.ranks // place.nodes, 1)
    ranks_on_node = max(per_node // message.stride, 1)
    if network is None or (spanned_nodes := math.ceil(message.ranks / ranks_on_node)) < 2:
        return None
    concurrent_groups = per_node / ranks_on_node
    local_law = network.at(
        *(np.array([x]) for x in (float(spanned_nodes), float(message.ranks), place.rate / concurrent_groups))
    )
    return float(local_law.seconds(np.array([message.bytes]))[0])
