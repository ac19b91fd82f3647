"""Collectives, and the minimum traffic of each.

The size of a message is the size of its larger side on a rank, as in nccl-tests (PERFORMANCE.md): the input
of a reduction, a scatter or an all-to-all, the output of a gather. Standard library only, like models.graph.
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
    """A collective and its minimum traffic, in units of the message size. Functions accept arrays, too.

    Attributes:
        title: Name in texts.
        does: Its result.
        factor: `sent` as a formula of n ranks.
        sent: Traffic that a rank sends, as a function of the number of ranks.
        leaves: Traffic that leaves the busiest node, as a function of the number of nodes and of ranks per
            node.
    """

    title: str
    does: str
    factor: str
    sent: Callable[[Any], Any]
    leaves: Callable[[Any, Any], Any]


# Reductions: Patarasuk & Yuan, J. Parallel Distrib. Comput. 69 (2009), section 3. In the others, each rank
# and each node sends the data that others do not have; an all-to-all keeps on the node the messages between
# its own ranks.
COLLECTIVES = {
    ALL_REDUCE: Collective(
        "all-reduce",
        "the sum over all ranks, on every rank",
        "2 (n − 1) / n",
        lambda ranks: 2 * (ranks - 1) / ranks,
        lambda nodes, _: 2 * (nodes - 1) / nodes,
    ),
    ALL_GATHER: Collective(
        "all-gather",
        "every rank's share, on every rank",
        "(n − 1) / n",
        lambda ranks: (ranks - 1) / ranks,
        lambda nodes, _: (nodes - 1) / nodes,
    ),
    REDUCE_SCATTER: Collective(
        "reduce-scatter",
        "the sum over all ranks, a share of it on each",
        "(n − 1) / n",
        lambda ranks: (ranks - 1) / ranks,
        lambda nodes, _: (nodes - 1) / nodes,
    ),
    ALL_TO_ALL: Collective(
        "all-to-all",
        "a share from every rank for every rank",
        "(n − 1) / n",
        lambda ranks: (ranks - 1) / ranks,
        lambda nodes, ranks_per_node: ranks_per_node * (nodes - 1) / nodes,
    ),
    POINT_TO_POINT: Collective(
        "point to point",
        "a message to the next rank and one from the rank before, around a ring, all at once",
        "1",
        lambda ranks: 1.0 + 0 * ranks,
        lambda nodes, _: 1.0 + 0 * nodes,
    ),
}

# Collectives among the ranks along an axis of a mesh (models.mesh).
AXIS_COLLECTIVES = {
    "data": (ALL_REDUCE,),
    "sharded": (ALL_GATHER, REDUCE_SCATTER),
    "experts": (ALL_REDUCE, ALL_TO_ALL),
    "tensor": (ALL_REDUCE,),
    "pipeline": (POINT_TO_POINT,),
}
MESH_COLLECTIVES = tuple(
    name for name in COLLECTIVES if any(name in used for used in AXIS_COLLECTIVES.values())
)


def titles(names: Iterable[str]) -> str:
    """Return titles as an enumeration in the order of COLLECTIVES, such as "all-reduce and all-gather"."""
    chosen = set(names)
    ordered = [collective.title for name, collective in COLLECTIVES.items() if name in chosen]
    return " and ".join(part for part in (", ".join(ordered[:-1]), *ordered[-1:]) if part)
