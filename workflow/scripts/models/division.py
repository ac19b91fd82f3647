"""Partition a model along the axes of a mesh: operators by a tensor axis, stages by a pipeline.

A tensor axis divides attention by heads, and pairs of dense operators that only elementwise functions
separate: the first by columns, the second by rows of its kernel (Shoeybi et al., arXiv:1909.08053, section
3). Both factors of a gated product are divided by columns. Every rank of the axis computes the other
operators. With tensor_sharding: vocabulary the axis also divides the embedding of a language model by rows of
its table and the last operator by columns, both along the vocabulary; with sequence also operators that
compute each position independently, along the sequence (Korthikanti et al., MLSys 2023, section 4.2.2).

A pipeline is cut where a single output is passed on, so that its largest stage has as few multiplications as
possible. Standard library only, like models.graph.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from models.graph import SHARED, Graph, Operator

COLUMNS, ROWS, HEADS, POSITIONS = "columns", "rows", "heads", "positions"
# Levels of the factor tensor_sharding: each divides more than the one before.
LAYERS, VOCABULARY, SEQUENCE = "layers", "vocabulary", "sequence"
NORMS = ("layer_norm", "rms_norm")
# Kinds of operators that compute each position of a sequence independently.
BY_POSITION = ("embedding", "positions", "add", "dropout", *NORMS)


def tensor_parts(graph: Graph, parts: int, sharding: str = LAYERS) -> dict[str, str]:
    """Return how `parts` ranks of a tensor axis divide the weights of operators.

    Args:
        graph: The model.
        parts: Number of ranks.
        sharding: Level of the factor tensor_sharding.

    Returns:
        COLUMNS, ROWS, HEADS or POSITIONS by the name of an operator.

    Raises:
        ValueError: If no operator can be divided, or `parts` does not divide one that has to be divided.
    """
    divided: dict[str, str] = {}
    for operator in graph.operators:
        if operator.kind == "attention":
            _check_divisible(graph, operator, operator["heads"], "heads", parts)
            _check_divisible(graph, operator, operator.key_heads, "heads of keys", parts)
            divided[operator.name] = HEADS
        elif operator.kind == "dense":
            before = _dense_before(graph, operator.inputs[0])
            if not before or any(first.name in divided for first in before):
                continue
            for first in before:
                _check_divisible(graph, first, first["units"], "units", parts)
            divided |= {first.name: COLUMNS for first in before} | {operator.name: ROWS}
    if not divided:
        raise ValueError(
            f"{graph.model} has neither attention nor two dense operators, one after the other, to divide"
        )
    if sharding != LAYERS:
        divided |= _vocabulary_parts(graph, parts)
    if sharding == SEQUENCE:
        for name in sequence_outputs(graph, divided):
            operator = graph.by_name[name]
            _check_divisible(graph, operator, operator.shape[0], "positions", parts)
            divided |= {name: POSITIONS} if operator.kind == "positions" else {}
    return divided


def _vocabulary_parts(graph: Graph, parts: int) -> dict[str, str]:
    """Return the parts of a language model's embedding (by rows) and last operator (by columns)."""
    last, embeddings = graph.operators[-1], [node for node in graph.operators if node.kind == "embedding"]
    if not graph.is_language_model or len(embeddings) != 1:
        raise ValueError(f"{graph.model} does not predict tokens from one embedding of tokens")
    if last.kind not in ("dense", "tied_dense"):
        raise ValueError(f"{last.name} of {graph.model}, its last operator, is not dense")
    _check_divisible(graph, last, last.shape[-1], "tokens", parts)
    return {embeddings[0].name: ROWS, last.name: COLUMNS}


def sequence_outputs(graph: Graph, parts: Mapping[str, str]) -> list[str]:
    """Return the operators with outputs that ranks of a tensor axis divide along positions.

    Args:
        graph: The model, or a stage of it.
        parts: The operators that the axis divides in another way (see tensor_parts).

    Raises:
        ValueError: If an operator is neither divided nor computes positions independently.
    """
    columns, by_position = divided_outputs(graph, parts), []
    for operator in graph.operators:
        is_tokens = operator.kind == "input" and len(operator.shape) == 1
        if operator.name in columns or is_tokens or operator.kind == SHARED:
            continue
        if operator.kind not in (*BY_POSITION, "input") and parts.get(operator.name) not in (ROWS, HEADS):
            raise ValueError(f"{operator.name} of {graph.model} is not divided along positions")
        by_position.append(operator.name)
    return by_position


def _check_divisible(graph: Graph, operator: Operator, count: int, title: str, parts: int) -> None:
    if count % parts:
        raise ValueError(
            f"{operator.name} of {graph.model} has {count} {title}, which {parts} ranks cannot divide"
        )


def _dense_before(graph: Graph, name: str) -> list[Operator] | None:
    """Return the dense operators that an output is computed from by elementwise functions alone.

    Return None if other operators take part, or if other operators use one of the outputs on the way.
    """
    operator = graph.by_name[name]
    if len(graph.users(name)) != 1:
        return None
    if operator.kind == "dense":
        return [operator]
    if not _is_elementwise(operator):
        return None
    before = [_dense_before(graph, input_name) for input_name in operator.inputs]
    return None if None in before else [first for operators in before for first in operators or ()]


def check_experts(graph: Graph, parts: int) -> None:
    """Raise ValueError unless the model has experts, and `parts` ranks can divide them equally."""
    operators = [operator for operator in graph.operators if operator.kind == "experts"]
    if not operators:
        raise ValueError(f"{graph.model} has no experts to divide")
    for operator in operators:
        _check_divisible(graph, operator, operator["experts"], "experts", parts)


def shared_inputs(graph: Graph, parts: Mapping[str, str]) -> Collection[str]:
    """Return the normalizations with several users that are all divided by columns, as in SwiGLU."""
    columns = {name for name, part in parts.items() if part == COLUMNS}
    norms = [operator.name for operator in graph.operators if operator.kind in NORMS]
    users = {name: {user.name for user in graph.users(name)} for name in norms}
    return {name for name, user_names in users.items() if len(user_names) > 1 and user_names <= columns}


def _is_elementwise(operator: Operator) -> bool:
    return operator.kind in ("dropout", "multiply") or (
        operator.kind == "activation" and operator["function"] != "softmax"
    )


def stages(graph: Graph, count: int, tensor: int = 1, sharding: str = LAYERS) -> list[Graph]:
    """Return the stages of a pipeline, each a graph whose input is the output of the previous stage.

    A stage that uses the embedding table of another stage has its own copy, as an operator of kind SHARED.

    Args:
        graph: The model.
        count: Number of stages.
        tensor: Size of the tensor axis; the pipeline is not cut between operators that it divides.
        sharding: Level of the factor tensor_sharding.

    Raises:
        ValueError: If the model has too few places to cut.
    """
    divided = divided_outputs(graph, tensor_parts(graph, tensor, sharding)) if tensor > 1 else ()
    places = [place for place in range(1, len(graph.operators) - 1) if _is_cut(graph, place, divided)]
    ends = _balanced([operator.macs for operator in graph.operators], places, count)
    if ends is None:
        raise ValueError(f"{graph.model} cannot be cut into {count} stages that all have multiplications")
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [_stage(graph, start, end) for start, end in zip(starts, ends, strict=True)]


def divided_outputs(graph: Graph, parts: Mapping[str, str]) -> Collection[str]:
    """Return the operators with divided outputs: those by columns, and elementwise functions of them."""
    divided = {name for name, part in parts.items() if part == COLUMNS}
    for operator in graph.operators:
        if _is_elementwise(operator) and divided.issuperset(operator.inputs):
            divided.add(operator.name)
    return divided


def _is_cut(graph: Graph, place: int, divided: Collection[str]) -> bool:
    """Return whether later operators need only the output of the operator at `place`, not its kind."""
    last = graph.operators[place]
    if last.name in divided or any(user.kind == "final_state" for user in graph.users(last.name)):
        return False
    before = {operator.name for operator in graph.operators[:place]}
    if any(name in before for operator in graph.operators[place + 1 :] for name in operator.inputs):
        return False
    while last.kind in ("activation", "dropout"):
        last = graph.by_name[last.inputs[0]]
    # A dense operator after "flatten" depends on the layout of the image, so both belong to one stage.
    return last.kind != "flatten"


def _balanced(work: list[int], places: list[int], count: int) -> list[int] | None:
    """Return the last operator of each of `count` stages with the smallest maximum of work, or None.

    Dynamic programming: `best[i]` is the largest work of the stages up to `ends[i]`, and where these stages
    end.
    """
    ends = [*places, len(work) - 1]
    sums = [sum(work[: end + 1]) for end in ends]
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
    return best[-1][1] if best[-1] else None


def _stage(graph: Graph, start: int, end: int) -> Graph:
    operators = list(graph.operators[start : end + 1])
    in_block = {operator.name for operator in operators}
    for name in {operator["of"] for operator in operators if operator.kind == "tied_dense"} - in_block:
        operators.insert(0, replace(graph.by_name[name], kind=SHARED, inputs=(), macs=0))
    if start:
        before = graph.operators[start - 1]
        operators.insert(0, replace(before, kind="input", inputs=(), settings={}, weights={}, macs=0))
    return Graph(graph.model, graph.initializer, tuple(operators))
