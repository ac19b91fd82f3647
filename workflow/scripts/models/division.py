"""How a model is divided along the axes of a mesh: which operators a tensor axis divides, and the stages of a pipeline.

A tensor axis divides pairs of dense operators with nothing but functions of single elements between them, the first by
columns, the second by rows of its kernel, as Shoeybi et al. (arXiv:1909.08053, section 3) do; all else is computed by every
rank of the axis. A pipeline is cut where one output alone is handed on; its stages have about as many multiplications.
Standard library only, as models.graph.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from models.graph import Graph, Operator

COLUMNS, ROWS = "columns", "rows"
ELEMENTWISE = ("activation", "dropout")


def tensor_parts(graph: Graph, parts: int) -> dict[str, str]:
    """Operators that are divided among `parts` ranks -> how: columns or rows. ValueError where nothing can be."""
    found: dict[str, str] = {}
    for first in graph.operators:
        if first.kind != "dense" or first.name in found:
            continue
        if (second := _next_dense(graph, first)) is None:
            continue
        if first["units"] % parts:
            raise ValueError(
                f"{first.name} of {graph.model} has {first['units']} units, which {parts} ranks cannot divide"
            )
        found |= {first.name: COLUMNS, second.name: ROWS}
    if not found:
        raise ValueError(f"{graph.model} has no two dense operators, one after the other, for a tensor axis to divide")
    return found


def _next_dense(graph: Graph, first: Operator) -> Operator | None:
    """The dense operator that alone takes what `first` makes, through functions of single elements."""
    at = first
    while len(users := graph.users(at.name)) == 1:
        (at,) = users
        if at.kind == "dense":
            return at
        if at.kind not in ELEMENTWISE:
            return None
    return None


def stages(graph: Graph, count: int, tensor: int = 1) -> list[Graph]:
    """The parts of a model that follow each other in a pipeline, each a graph whose input is the output of the one before.

    Of all cuts those whose largest stage has the fewest multiplications. ValueError where there are too few places.
    """
    undivided = _between(graph, tensor_parts(graph, tensor)) if tensor > 1 else ()
    places = [place for place in range(1, len(graph.operators) - 1) if _is_cut(graph, place, undivided)]
    work = [operator.macs for operator in graph.operators]
    ends = _balanced(work, places, count)
    if ends is None:
        raise ValueError(f"{graph.model} cannot be cut into {count} stages that each multiply anything")
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [_stage(graph, start, end) for start, end in zip(starts, ends, strict=True)]


def _between(graph: Graph, parts: Mapping[str, str]) -> Collection[str]:
    """The operators whose outputs are divided: from one that is divided by columns until the one by rows."""
    found = {name for name, how in parts.items() if how == COLUMNS}
    for operator in graph.operators:
        if operator.kind in ELEMENTWISE and operator.inputs[0] in found:
            found.add(operator.name)
    return found


def _is_cut(graph: Graph, place: int, undivided: Collection[str]) -> bool:
    """Whether only the output of the operator at `place` is used behind it, as what it is."""
    last = graph.operators[place]
    if last.name in undivided:
        return False
    after = graph.operators[place + 1 :]
    before = {operator.name for operator in graph.operators[:place]}
    if any(name in before for operator in after for name in operator.inputs):
        return False
    while last.kind in ELEMENTWISE:
        last = graph.by_name[last.inputs[0]]
    return last.kind != "flatten"  # whose layout the dense operator behind it has to know


def _balanced(work: list[int], places: list[int], count: int) -> list[int] | None:
    """The last operator of each of `count` stages, with the least largest work; None where that many do not work."""
    ends = [*places, len(work) - 1]
    sums = [sum(work[: end + 1]) for end in ends]
    # best[i]: stages that end at ends[i]: their largest work, and where they end
    best: list[tuple[int, list[int]] | None] = [
        (total, [end]) if total else None for total, end in zip(sums, ends, strict=True)
    ]
    for _ in range(count - 1):
        best = [
            min(
                (
                    (max(before[0], sums[i] - sums[j]), [*before[1], ends[i]])
                    for j, before in enumerate(best[:i])
                    if before and sums[i] > sums[j]
                ),
                default=None,
            )
            for i in range(len(ends))
        ]
    return best[-1][1] if best and best[-1] else None


def _stage(graph: Graph, start: int, end: int) -> Graph:
    operators = graph.operators[start : end + 1]
    if start:
        before = graph.operators[start - 1]
        operators = (replace(before, kind="input", inputs=(), settings={}, weights={}, macs=0), *operators)
    return Graph(graph.model, graph.initializer, operators)
