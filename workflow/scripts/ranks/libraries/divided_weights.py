"""Choose the axis along which ranks of a tensor axis partition each weight, for JAX."""

from models.division import COLUMNS, HEADS, LAYERS, ROWS, tensor_parts
from models.graph import Graph

# Axes of the weights of a dense operator or an embedding.
IN_COLUMNS, IN_ROWS = {"kernel": 1, "bias": 0}, {"kernel": 0, "table": 0}
DIVIDED = {
    COLUMNS: IN_COLUMNS,
    ROWS: IN_ROWS,
    HEADS: {
        **{
            f"{part}_{weight}": axis
            for part in ("query", "key", "value")
            for weight, axis in IN_COLUMNS.items()
        },
        "output_kernel": 0,
    },
}


def weight_axes(graph: Graph, parts: int, sharding: str = LAYERS) -> dict[str, int]:
    """Return the axis along which `parts` ranks partition a weight, by name, for each weight they partition.

    `sharding` is the level of the factor tensor_sharding.
    """
    axes: dict[str, int] = {}
    for name, kind in (tensor_parts(graph, parts, sharding) if parts > 1 else {}).items():
        weights = graph.by_name[name].weights
        axes |= {f"{name}.{weight}": axis for weight, axis in DIVIDED[kind].items() if weight in weights}
    return axes
