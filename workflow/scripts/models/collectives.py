"""The collectives that ranks exchange by, and what each of them has to send: the one place that knows.

A message's size is that of its larger side on a rank, as in NCCL's tests (PERFORMANCE.md): all that is summed, all that has
been gathered, all that is scattered, dealt out or sent on. With p ranks a share is a p-th of it.
Standard library only, as models.graph.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_TO_ALL = "all_to_all"
POINT_TO_POINT = "point_to_point"


@dataclass(frozen=True)
class Collective:
    """One of them. `sent`: ranks -> messages that a rank sends at least; `factor` is it as a formula of n ranks. `leaves`:
    nodes, ranks of a node -> messages that leave the node that sends most, at least. Both take arrays, too."""

    title: str
    does: str
    factor: str
    sent: Callable[[Any], Any]
    leaves: Callable[[Any, Any], Any]


# Of sums: Patarasuk & Yuan, J. Parallel Distrib. Comput. 69 (2009), section 3. Of the others each rank, and so each node, has
# to send what others lack: of all to all its own ranks' messages but for what stays on the node.
COLLECTIVES = {
    ALL_REDUCE: Collective(
        "all-reduce",
        "the sum over all ranks, on every rank",
        "2 (n − 1) / n",
        lambda ranks: 2 * (ranks - 1) / ranks,
        lambda nodes, each: 2 * (nodes - 1) / nodes,
    ),
    ALL_GATHER: Collective(
        "all-gather",
        "every rank's share, on every rank",
        "(n − 1) / n",
        lambda ranks: (ranks - 1) / ranks,
        lambda nodes, each: (nodes - 1) / nodes,
    ),
    REDUCE_SCATTER: Collective(
        "reduce-scatter",
        "the sum over all ranks, a share of it on each",
        "(n − 1) / n",
        lambda ranks: (ranks - 1) / ranks,
        lambda nodes, each: (nodes - 1) / nodes,
    ),
    ALL_TO_ALL: Collective(
        "all-to-all",
        "a share from every rank for every rank",
        "(n − 1) / n",
        lambda ranks: (ranks - 1) / ranks,
        lambda nodes, each: each * (nodes - 1) / nodes,
    ),
    POINT_TO_POINT: Collective(
        "point to point",
        "a message to the next rank and one from the rank before, around a ring, all at once",
        "1",
        lambda ranks: 1.0 + 0 * ranks,
        lambda nodes, each: 1.0 + 0 * nodes,
    ),
}

# What the ranks along an axis of a mesh send each other (models.mesh).
OF_AXES = {
    "data": (ALL_REDUCE,),
    "sharded": (ALL_GATHER, REDUCE_SCATTER),
    "tensor": (ALL_REDUCE,),
    "pipeline": (POINT_TO_POINT,),
}
OF_MESHES = tuple(name for name in COLLECTIVES if any(name in sent for sent in OF_AXES.values()))


def titles(names: Iterable[str]) -> str:
    """Some of them in words, in the order of COLLECTIVES: all-reduce, all-gather and reduce-scatter."""
    wanted = set(names)
    said = [one.title for name, one in COLLECTIVES.items() if name in wanted]
    return " and ".join(part for part in (", ".join(said[:-1]), *said[-1:]) if part)
