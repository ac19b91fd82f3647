"""A step of a mesh by formula: the computation of the rank that takes longest, and the messages that it waits for.

    T = S (sum over stages of t + (m - 1) t of the slowest + 2 (m + p - 2) handed) + X (u v + parameters)
    t = alpha q + beta b / m w + layers

alpha, beta and u are what one rank takes alone (prediction.physics), for S batches of b samples of a replica and X updates. Of a stage, w is its
share of the multiplications, of which a tensor axis divides some (models.division), q that of the operators, and v that of the parameters
that a rank updates. Through p stages m microbatches follow each other, forward and backward in t each: where stages are alike, they take
m + p - 1 turns (Huang et al., NeurIPS 2019, section 2.3); what has no pipeline takes one. Messages (models.messages) take the time of their collective
by the law of its sweeps, with the ranks of their group:

    layers       of a tensor axis, for every microbatch: what comes behind waits for each
    handed       an output forward and a gradient backward between two turns; nothing hides them
    parameters   of data, sharded and tied ones, one after the other, for each update; a library that streams may hide a part

Groups whose messages leave a node at once share its link. No sweep knows a group whose ranks all lie on one node.
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

WAITED = ("tensor", "pipeline")
Laws = Callable[[str], Law | None]  # collective -> its law, None where it was not swept


@dataclass(frozen=True)
class Place:
    """What a cell runs on: nodes, ranks, and the links' rate in bytes/s (NaN: not known)."""

    nodes: int
    ranks: int
    rate: float


@dataclass(frozen=True)
class Step:
    """Seconds of an optimizer step: computation of its batches, the update, messages that layers or stages wait for, and those of parameters.
    `divided`: how many messages there are within layers, one after the other."""

    computed_s: float
    update_s: float
    waited_s: float
    parameters_s: float
    divided: float


def step(
    graph: Graph,
    mesh: Mesh,
    batch: int,
    levels: Mapping[str, Any],
    computation: np.ndarray,
    place: Place,
    laws: Laws,
    unit_bytes: float = math.inf,
) -> Step | None:
    """A step of a mesh. `batch`, `levels`, `unit_bytes`: see models.messages.needs; `computation`: alpha, beta, u of one rank alone. None
    where the sweeps do not know some message. ValueError where the mesh cannot divide the model."""
    found = needs(graph, mesh, batch, levels, unit_bytes)
    alpha, beta, update = map(float, computation)
    parts, batches = (levels["microbatches"] if mesh.pipeline > 1 else 1), levels["sync_every"]
    worked, layers, counts, handed, parameters = [], [], [], [], []
    for need in found:
        told = [(one, _seconds(one, place, laws)) for one in need.messages]
        known = [(one, seconds) for one, seconds in told if seconds is not None]
        if len(known) < len(told):
            return None
        worked.append(alpha * need.calls + beta * batch / parts * need.work)
        layers.append(sum(one.count * seconds for one, seconds in known if one.axis == "tensor") / (batches * parts))
        counts.append(sum(one.count for one in need.messages if one.axis == "tensor") / (batches * parts))
        handed.append(max((seconds for one, seconds in known if one.axis == "pipeline"), default=0.0))
        parameters.append(sum(one.count * seconds for one, seconds in known if one.axis not in WAITED))
    slowest = int(np.argmax(np.add(worked, layers)))
    return Step(
        computed_s=batches * (sum(worked) + (parts - 1) * worked[slowest]),
        update_s=update * max(_updated(need, mesh, levels) for need in found) / graph.gradient_bytes,
        waited_s=batches
        * (sum(layers) + (parts - 1) * layers[slowest] + 2 * (parts + mesh.pipeline - 2) * max(handed)),
        parameters_s=max(parameters),
        divided=batches * (sum(counts) + (parts - 1) * counts[slowest]),
    )


def messages(model: str, dataset: str, mesh: Mesh, batch: int, levels: Mapping[str, Any]) -> list[Message]:
    """All that ranks send; nothing of a model that is not described here."""
    try:
        graph = model_graph(model, dataset)
    except (InputError, KeyError, ValueError):
        return []
    return [one for need in needs(graph, mesh, batch, levels) for one in need.messages]


def _updated(need: Need, mesh: Mesh, levels: Mapping[str, Any]) -> float:
    """Bytes of the parameters that a rank updates: its share, whether or not it keeps the others."""
    return need.parameters / (1 if levels["sharding"] == "parameters" else mesh.sharded)


def _seconds(one: Message, place: Place, laws: Laws) -> float | None:
    """One message of this kind; None where its collective was not swept, or its ranks share a node."""
    network, per_node = laws(one.kind), max(place.ranks // place.nodes, 1)
    together = max(per_node // one.stride, 1)  # ranks of a group on one node
    if network is None or (spanned := math.ceil(one.ranks / together)) < 2:
        return None
    beside = per_node / together  # groups that leave the node at once
    here = network.at(*(np.array([x]) for x in (float(spanned), float(one.ranks), place.rate / beside)))
    return float(here.seconds(np.array([one.bytes]))[0])
