"""How a model is divided along the axes of a mesh: which operators a tensor axis divides, and the stages of a pipeline.

A tensor axis divides attention by heads, and pairs of dense operators with nothing but functions of single elements between them: the
first by columns, the second by rows of its kernel, as Shoeybi et al. (arXiv:1909.08053, section 3) do. All else is computed by every
rank of the axis. A pipeline is cut where one output alone is handed on; its largest stage has as few multiplications as can be.
Standard library only, as models.graph.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from models.graph import SHARED, Graph, Operator

COLUMNS, ROWS, HEADS = "columns", "rows", "heads"


def tensor_parts(graph: Graph, parts: int) -> dict[str, str]:
    """Operators that are divided among `parts` ranks -> how: by columns, rows or heads. ValueError where nothing can be."""
    found: dict[str, str] = {}
    for operator in graph.operators:
        if operator.kind == "attention":
            _check(graph, operator, "heads", parts)
            found[operator.name] = HEADS
        elif operator.kind == "dense" and operator.name not in found and (after := _next_dense(graph, operator)):
            _check(graph, operator, "units", parts)
            found |= {operator.name: COLUMNS, after.name: ROWS}
    if not found:
        raise ValueError(f"{graph.model} has neither attention nor two dense operators, one after the other, to divide")
    return found


def _check(graph: Graph, operator: Operator, of: str, parts: int) -> None:
    if operator[of] % parts:
        raise ValueError(f"{operator.name} of {graph.model} has {operator[of]} {of}, which {parts} ranks cannot divide")


def _next_dense(graph: Graph, first: Operator) -> Operator | None:
    """The dense operator that alone takes what `first` makes, through functions of single elements."""
    at = first
    while len(users := graph.users(at.name)) == 1:
        (at,) = users
        if at.kind == "dense":
            return at
        if not _is_elementwise(at):
            return None
    return None


def _is_elementwise(operator: Operator) -> bool:
    return operator.kind == "dropout" or (operator.kind == "activation" and operator["function"] != "softmax")


def stages(graph: Graph, count: int, tensor: int = 1) -> list[Graph]:
    """The parts of a model that follow each other in a pipeline, each a graph whose input is the output of the one before.

    A stage that uses the table of an embedding in another one has it, too, as an operator of kind SHARED. ValueError where there are
    too few places to cut.
    """
    undivided = divided_outputs(graph, tensor_parts(graph, tensor)) if tensor > 1 else ()
    places = [place for place in range(1, len(graph.operators) - 1) if _is_cut(graph, place, undivided)]
    ends = _balanced([operator.macs for operator in graph.operators], places, count)
    if ends is None:
        raise ValueError(f"{graph.model} cannot be cut into {count} stages that each multiply anything")
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [_stage(graph, start, end) for start, end in zip(starts, ends, strict=True)]


def divided_outputs(graph: Graph, parts: Mapping[str, str]) -> Collection[str]:
    """The operators whose outputs are divided: from one that is divided by columns until the one by rows."""
    found = {name for name, how in parts.items() if how == COLUMNS}
    for operator in graph.operators:
        if _is_elementwise(operator) and operator.inputs[0] in found:
            found.add(operator.name)
    return found


def _is_cut(graph: Graph, place: int, undivided: Collection[str]) -> bool:
    """Whether only the output of the operator at `place` is used behind it, and by nothing that has to know where it is from."""
    last = graph.operators[place]
    if last.name in undivided or any(user.kind == "final_state" for user in graph.users(last.name)):
        return False
    before = {operator.name for operator in graph.operators[:place]}
    if any(name in before for operator in graph.operators[place + 1 :] for name in operator.inputs):
        return False
    while last.kind in ("activation", "dropout"):
        last = graph.by_name[last.inputs[0]]
    return last.kind != "flatten"  # whose layout the dense operator behind it has to know


def _balanced(work: list[int], places: list[int], count: int) -> list[int] | None:
    """The last operator of each of `count` stages, with the least largest work; None where that many do not work."""
    ends = [*places, len(work) - 1]
    sums = [sum(work[: end + 1]) for end in ends]
    best: list[tuple[int, list[int]] | None] = [  # of stages until each end: their largest work, and where they end
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
    return best[-1][1] if best[-1] else None


def _stage(graph: Graph, start: int, end: int) -> Graph:
    operators = list(graph.operators[start : end + 1])
    own = {operator.name for operator in operators}
    for name in {operator["of"] for operator in operators if operator.kind == "tied_dense"} - own:
        operators.insert(0, replace(graph.by_name[name], kind=SHARED, inputs=(), macs=0))
    if start:
        before = graph.operators[start - 1]
        operators.insert(0, replace(before, kind="input", inputs=(), settings={}, weights={}, macs=0))
    return Graph(graph.model, graph.initializer, tuple(operators))
