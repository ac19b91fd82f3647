"""Choose the axis along which ranks partition each weight, for libraries that lay out whole weights."""

from models.division import COLUMNS, HEADS, ROWS, tensor_parts
from models.graph import Graph

# Axes of the weights of a dense operator.
IN_COLUMNS, IN_ROWS = {"kernel": 1, "bias": 0}, {"kernel": 0}
DIVIDED = {
    COLUMNS: IN_COLUMNS,
    ROWS: IN_ROWS,
    HEADS: {
        **{
            f"{part}_{weight}": axis
            for part in ("query", "key", "value")
            for weight, axis in IN_COLUMNS.items()
        },
        **{f"output_{weight}": axis for weight, axis in IN_ROWS.items()},
    },
}


def divided(graph: Graph, parts: int) -> dict[str, int]:
    """Return the axis along which `parts` ranks partition a weight, for each weight that they partition."""
    axes: dict[str, int] = {}
    for name, kind in (tensor_parts(graph, parts) if parts > 1 else {}).items():
        own = graph.by_name[name].weights
        axes |= {f"{name}.{weight}": axis for weight, axis in DIVIDED[kind].items() if weight in own}
    return axes
