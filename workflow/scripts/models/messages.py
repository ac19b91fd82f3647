"""Compute memory and messages of a rank in one step of training on a mesh.

A ring all-reduce among n ranks sends 2 (n - 1) / n of its payload, an all-gather or reduce-scatter (n - 1) /
n (Patarasuk & Yuan, J. Parallel Distrib. Comput. 69, 2009). Along a sharded axis, ranks gather parameters and
reduce-scatter gradients once a step; if parameters are sharded, ranks gather them more often
(`count_gathers`). PyTorch's pipelines gather and reduce once for each batch. Along a tensor axis, ranks
all-reduce outputs of divided operators in the forward pass and gradients of their inputs in the backward pass
(Shoeybi et al., arXiv:1909.08053, section 3); of a divided vocabulary also, for each position, the largest
logit, the sum of exponentials and the logit of the label. If activations are divided along positions, ranks
reduce-scatter outputs and gather inputs instead, and the reverse for gradients (Korthikanti et al., MLSys
2023, section 4.2.2); they gather inputs once, and keep them for the backward pass. Along an axis of experts,
ranks exchange the slots of all experts by an all-to-all, forth and back in each pass, and all-reduce the
gradients of everything except experts. Clipping all-reduces the norm of the gradients where ranks have parts
of them. Numbers have the types of the precision (`NumberBytes`); libraries need more memory, and may send
more. Standard library only, like models.graph.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

from models.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVES,
    MESH_COLLECTIVES,
    POINT_TO_POINT,
    REDUCE_SCATTER,
)
from models.division import (
    COLUMNS,
    HEADS,
    NORMS,
    ROWS,
    SEQUENCE,
    divided_outputs,
    sequence_outputs,
    shared_inputs,
    stages,
    tensor_parts,
)
from models.graph import BYTES, SHARED, Graph, Operator, is_trained
from models.mesh import Mesh
from models.pipelines import in_flight, own_stages, rank_of, stages_per_rank
from models.precision import BF16, COMPUTES_IN_BFLOAT16, FP32

N_LOSS_MESSAGES = 3  # numbers of a position that ranks all-reduce for the loss of a divided vocabulary
TIED = "tied"  # instead of an axis: the ranks of two stages that share an embedding table
ALL = "all"  # instead of an axis: all ranks
BFLOAT16_BYTES = 2
# Numbers of optimizer state per parameter; that of sgd is the momentum.
N_STATES = {"sgd": 1, "adam": 2, "adamw": 2}


def count_gathers(n_batches: Any) -> Any:
    """Return how often FSDP2 gathers each unit of sharded parameters in a step of `n_batches` batches.

    A unit is freed after each forward pass, and gathered again for the backward pass. Between two batches of
    a gradient accumulation it stays gathered (`set_reshard_after_backward`), so that only the first batch
    gathers it for its forward pass. Gradients are reduced once, in the last batch. DeepSpeed frees parameters
    after every pass, and gathers more often.

    Args:
        n_batches: Batches of an optimizer step, a number or an array.
    """
    return n_batches + 1


def n_optimizer_states(levels: Mapping[str, Any]) -> int:
    """Return the numbers of optimizer state per parameter; sgd without momentum has none."""
    return N_STATES[levels["optimizer"]] if levels["optimizer"] != "sgd" or levels["momentum"] else 0


@dataclass(frozen=True)
class NumberBytes:
    """Bytes per number of each kind in a cell, which follow from its precision and reduce_dtype.

    Attributes:
        stored: Of weights between steps, accumulated gradients and optimizer state.
        computed: Of gathered weights and of outputs of operators.
        reduced: Of gradients that are summed over replicas.
    """

    stored: int
    computed: int
    reduced: int


def number_bytes(levels: Mapping[str, Any]) -> NumberBytes:
    """Return the bytes of numbers as FSDP has them; other libraries may send float32 where it sends bfloat16.

    Batch normalization is counted like everything else.
    """
    precision = levels.get("precision", FP32)
    stored = BFLOAT16_BYTES if precision == BF16 else BYTES
    computed = BFLOAT16_BYTES if precision in COMPUTES_IN_BFLOAT16 else BYTES
    by_level = {FP32: BYTES, BF16: BFLOAT16_BYTES}
    return NumberBytes(stored, computed, by_level.get(str(levels.get("reduce_dtype")), stored))


@dataclass(frozen=True)
class Message:
    """Identical messages of a rank in one step.

    Attributes:
        kind: Their collective.
        axis: The mesh axis of the ranks that take part, or TIED.
        bytes: Size of one message, as in models.collectives.
        count: Number of messages in a step.
        ranks: Number of ranks that take part.
        stride: Distance between the numbers of neighbouring ranks that take part.
    """

    kind: str
    axis: str
    bytes: float
    count: int
    ranks: int
    stride: int

    @property
    def sent(self) -> float:
        """Minimum number of bytes that a rank sends, over all `count` messages."""
        return float(COLLECTIVES[self.kind].sent(self.ranks) * self.bytes * self.count)


@dataclass(frozen=True)
class StepDemand:
    """Memory, messages and work of one rank in a step of training.

    Attributes:
        parameters: Bytes of parameters; also of `gradients`, `optimizer` state and kept `activations`.
        messages: Messages that the rank sends in a step.
        work: Share of the model's multiplications that the rank computes.
        calls: Share of the model's operators that the rank computes.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    messages: tuple[Message, ...]
    work: float
    calls: float

    @property
    def sent(self) -> dict[str, float]:
        """Bytes sent in a step, by collective."""
        return {
            kind: sum(message.sent for message in self.messages if message.kind == kind)
            for kind in MESH_COLLECTIVES
        }

    @property
    def memory(self) -> float:
        """Bytes of memory in total."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def step_demands(
    graph: Graph, mesh: Mesh, batch: int, levels: Mapping[str, Any], unit_bytes: float = math.inf
) -> list[StepDemand]:
    """Return the demand of each rank along the pipeline.

    Args:
        graph: The model.
        mesh: The mesh that it is trained on.
        batch: Samples of a replica per batch.
        levels: Levels of optimizer, momentum, sync_every, microbatches, schedule, sharding and
            tensor_sharding; precision, reduce_dtype, clip_norm and checkpointing if they differ
            from their defaults.
        unit_bytes: Size at which a unit of layers, which is gathered and reduced at once, is closed.

    Raises:
        ValueError: If the mesh cannot divide the model.
    """
    sharding = levels["tensor_sharding"]
    parts = tensor_parts(graph, mesh.tensor, sharding) if mesh.tensor > 1 else {}
    n_local = stages_per_rank(levels["schedule"]) if mesh.pipeline > 1 else 1
    n_stages = n_local * mesh.pipeline
    cut = stages(graph, n_stages, mesh.tensor, sharding) if mesh.pipeline > 1 else [graph]
    shared = {operator.name for stage in cut for operator in stage.operators if operator.kind == SHARED}
    microbatches = levels["microbatches"] if mesh.pipeline > 1 else 1
    batches = levels["sync_every"] * microbatches
    on_ranks = [
        _Stage(stage, number, len(cut), mesh, batch / microbatches, batches, levels, parts)
        for number, stage in enumerate(cut)
    ]
    demands = []
    for rank in range(mesh.pipeline):
        rank_stages = on_ranks
        moments: list[tuple[int, ...]] = [(1,)]
        if mesh.pipeline > 1:
            rank_stages = [on_ranks[number] for number in own_stages(rank, levels["schedule"], mesh.pipeline)]
            moments = in_flight(levels["schedule"], mesh.pipeline, rank, microbatches)
        sizes = [stage.activation_bytes for stage in rank_stages]
        weights = [stage.memory() for stage in rank_stages]
        demands.append(
            StepDemand(
                **{name: sum(stage[name] for stage in weights) for name in weights[0]},
                activations=max(sum(map(mul, counts, sizes)) for counts in moments)
                + max(stage.recomputed_bytes for stage in rank_stages),
                messages=(
                    *(message for stage in rank_stages for message in stage.messages(unit_bytes, shared)),
                    *clipping_messages(mesh, levels),
                ),
                work=sum(stage.macs for stage in rank_stages) / max(graph.macs, 1),
                calls=sum(len(stage.graph.operators) for stage in rank_stages) / len(graph.operators),
            )
        )
    return demands


@dataclass(frozen=True)
class _Stage:
    """A rank's part of pipeline stage `number`, one of `n_stages`.

    A step has `batches` batches or microbatches of `samples` samples each; `parts` says how a tensor axis
    divides operators.
    """

    graph: Graph
    number: int
    n_stages: int
    mesh: Mesh
    samples: float
    batches: int
    levels: Mapping[str, Any]
    parts: Mapping[str, str]

    @property
    def bytes(self) -> NumberBytes:
        """Bytes of a number of each kind."""
        return number_bytes(self.levels)

    @property
    def layers(self) -> list[float]:
        """Number of weights of each operator on a rank."""
        tensor = self.mesh.tensor
        return [
            _own_weights(operator, self.parts.get(operator.name), tensor, self.mesh.experts)
            for operator in self.graph.operators
        ]

    @property
    def expert_weights(self) -> list[float]:
        """Number of a rank's weights that not all ranks of an axis of experts have, of each operator."""
        n = self.mesh.experts
        return [_expert_weights(operator) / n if n > 1 else 0.0 for operator in self.graph.operators]

    @property
    def macs(self) -> float:
        """Multiplications for one sample."""
        tensor = self.mesh.tensor
        return sum(node.macs / (tensor if node.name in self.parts else 1) for node in self.graph.operators)

    def memory(self) -> dict[str, float]:
        """Return bytes of memory besides activations, by the attributes of StepDemand."""
        mesh, levels, weights = self.mesh, self.levels, self.bytes.stored * sum(self.layers)
        sharding = levels["sharding"]
        return {
            "parameters": weights / (mesh.sharded if sharding == "parameters" else 1),
            "gradients": weights / (mesh.sharded if sharding != "optimizer" else 1),
            "optimizer": n_optimizer_states(levels) * weights / mesh.sharded,
        }

    @property
    def by_position(self) -> list[str]:
        """Operators whose outputs are divided along positions."""
        is_divided = self.mesh.tensor > 1 and self.levels["tensor_sharding"] == SEQUENCE
        return sequence_outputs(self.graph, self.parts) if is_divided else []

    @property
    def gathered(self) -> set[str]:
        """Inputs of operators that need all positions, or all units."""
        operators = [node for node in self.graph.operators if self.parts.get(node.name) in (COLUMNS, HEADS)]
        return {name for operator in operators for name in operator.inputs}

    @property
    def activation_bytes(self) -> float:
        """Bytes of the outputs that are kept of a batch or microbatch."""
        return self._sum_bytes(self.graph.operators) - sum(map(self._sum_bytes, self.recomputed))

    @property
    def recomputed_bytes(self) -> float:
        """Bytes of the outputs that one block has again in the backward pass."""
        return max(map(self._sum_bytes, self.recomputed), default=0.0)

    @property
    def recomputed(self) -> list[list[Operator]]:
        """Operators of each block whose outputs are not kept; none without activation checkpointing."""
        level, blocks = self.levels.get("checkpointing"), self.graph.blocks.values()
        if level not in ("blocks", "selective"):
            return []
        results = [{node.name for node in self.graph.block_outputs(block)} for block in blocks]
        return [
            [node for node in block if node.name not in names and (level == "blocks" or not node.macs)]
            for block, names in zip(blocks, results, strict=True)
        ]

    def _sum_bytes(self, operators: Sequence[Operator]) -> float:
        divided = {*divided_outputs(self.graph, self.parts), *self.by_position} - self.gathered
        return sum(
            self._output_bytes(node) / (self.mesh.tensor if node.name in divided else 1) for node in operators
        )

    def messages(self, unit_bytes: float, shared: Collection[str]) -> Iterator[Message]:
        """Yield all messages; `shared` are the tables that two stages have."""
        yield from self.parameter_messages(unit_bytes)
        yield from self.layer_messages()
        yield from self.table_messages(shared)

    def parameter_messages(self, unit_bytes: float) -> Iterator[Message]:
        """Yield the messages that carry gradients and parameters of units."""
        mesh, layers, number = self.mesh, self.layers, self.bytes
        n_batches = self.levels["sync_every"]
        gathered, reduced = (count_gathers(n_batches) if self.levels["sharding"] == "parameters" else 1), 1
        if mesh.pipeline > 1:
            gathered = reduced = n_batches
        experts = self.expert_weights
        layers = [
            n_weights - n_expert_weights for n_weights, n_expert_weights in zip(layers, experts, strict=True)
        ]
        for unit in units([number.stored * n_weights for n_weights in layers], unit_bytes):
            size = sum(layers[i] for i in unit)
            gathered_bytes, reduced_bytes = number.computed * size, number.reduced * size
            if mesh.sharded > 1:
                yield Message(ALL_GATHER, "sharded", gathered_bytes, gathered, mesh.sharded, mesh.tensor)
                yield Message(REDUCE_SCATTER, "sharded", reduced_bytes, reduced, mesh.sharded, mesh.tensor)
            if (n_ranks := mesh.data * mesh.experts) > 1:
                stride = mesh.sharded * mesh.tensor
                yield Message(ALL_REDUCE, "data", reduced_bytes / mesh.sharded, reduced, n_ranks, stride)
        for n_weights in filter(None, experts if mesh.data > 1 else ()):
            yield Message(ALL_REDUCE, "data", number.reduced * n_weights, reduced, mesh.data, mesh.experts)

    def layer_messages(self) -> Iterator[Message]:
        """Yield the messages that carry outputs of operators and their gradients."""
        mesh, operators, by_position = self.mesh, self.graph.operators, self.by_position
        shared, sent = shared_inputs(self.graph, self.parts), set[str]()
        recomputed = self.graph.blocks.values() if self.levels.get("checkpointing") == "blocks" else ()
        summed_twice = {node.name for block in recomputed for node in block}
        # With FSDP a pipeline reduces gradients after each batch.
        n_reduced = self.levels["sync_every"] if mesh.pipeline > 1 and mesh.replicas > 1 else 1
        # Divided along positions, an output is scattered and its gradient gathered, or the reverse.
        kinds = (REDUCE_SCATTER, ALL_GATHER) if by_position else (ALL_REDUCE,)
        for operator in operators if mesh.tensor > 1 else ():
            part = self.parts.get(operator.name) if operator.kind != SHARED else None
            summed = [operator] * (part in (ROWS, HEADS))
            summed += (
                _inputs_with_gradient(self.graph, operator, self.number > 0)
                if part in (COLUMNS, HEADS)
                else []
            )
            for output in summed:
                if output.name in sent:
                    continue
                if part == COLUMNS and output.name in shared:
                    sent.add(output.name)
                count = self.batches * (2 if output is operator and output.name in summed_twice else 1)
                size = self._output_bytes(output)
                yield from (Message(kind, "tensor", size, count, mesh.tensor, 1) for kind in kinds)
            if operator.name in by_position and operator.kind in NORMS:
                size = self.bytes.computed * _own_weights(operator)
                yield Message(ALL_REDUCE, "tensor", size, n_reduced, mesh.tensor, 1)
        if mesh.tensor > 1 and self.parts.get(operators[-1].name) == COLUMNS:
            size = BYTES * math.prod(operators[-1].shape[:-1]) * self.samples
            yield Message(ALL_REDUCE, "tensor", size, N_LOSS_MESSAGES * self.batches, mesh.tensor, 1)
        for operator in operators if mesh.experts > 1 else ():
            if operator.kind == "experts":  # Positions go to their experts and back, and so do gradients.
                n_slots = operator["experts"] * operator["capacity"] * self.samples
                size = self.bytes.computed * n_slots * operator.shape[-1]
                yield Message(ALL_TO_ALL, "experts", size, 4 * self.batches, mesh.experts, mesh.tensor)
        boundaries = [operators[-1]] * self._has_other_rank(self.number + 1)
        boundaries += [operators[0]] * self._has_other_rank(self.number - 1)
        for output in boundaries:
            size = self._output_bytes(output) / (mesh.tensor if by_position else 1)
            stride = mesh.ranks // mesh.pipeline
            yield Message(POINT_TO_POINT, "pipeline", size, self.batches, mesh.pipeline, stride)

    def _output_bytes(self, output: Operator) -> float:
        """Return the bytes of an operator's outputs for one batch or microbatch."""
        return self.bytes.computed * math.prod(output.shape) * self.samples

    def _has_other_rank(self, stage: int) -> bool:
        """Return whether there is a stage with this number, and another rank has it."""
        if not 0 <= stage < self.n_stages:
            return False
        ranks = {rank_of(i, self.levels["schedule"], self.mesh.pipeline) for i in (self.number, stage)}
        return len(ranks) > 1

    def table_messages(self, shared: Collection[str]) -> Iterator[Message]:
        """Yield the messages that carry gradients of tables that two stages share."""
        stride = self.mesh.ranks // self.mesh.pipeline * (self.mesh.pipeline - 1)
        for operator in self.graph.operators:
            if operator.name in shared and self._has_other_rank(self.n_stages - 1 - self.number):
                part = self.parts.get(operator.name)
                sent = self.bytes.stored * _own_weights(operator, part, self.mesh.tensor) / self.mesh.sharded
                yield Message(ALL_REDUCE, TIED, sent, 1, 2, stride)


def clipping_messages(mesh: Mesh, levels: Mapping[str, Any]) -> Iterator[Message]:
    """Yield the message that carries the norm of the gradients where each rank has parts of them."""
    if levels.get("clip_norm") and not mesh.is_plain:
        yield Message(ALL_REDUCE, ALL, BYTES, 1, mesh.ranks, 1)


def units(layers: Sequence[float], limit: float) -> list[list[int]]:
    """Return the indices of the layers of each unit that is communicated at once.

    A unit is closed once it has `limit` bytes; layers without weights belong to no unit.

    Args:
        layers: Bytes of the weights of each layer.
        limit: Bytes that close a unit.
    """
    groups: list[list[int]] = []
    size = math.inf
    for number in (number for number, layer_bytes in enumerate(layers) if layer_bytes):
        if size >= limit or not groups:
            groups.append([])
            size = 0.0
        groups[-1].append(number)
        size += layers[number]
    return groups


def _inputs_with_gradient(stage: Graph, operator: Operator, is_later_stage: bool) -> list[Operator]:
    """Return the inputs of an operator that have a gradient: all but samples, the first stage's input."""
    return [
        node for name in operator.inputs if (node := stage.by_name[name]).kind != "input" or is_later_stage
    ]


def _expert_weights(operator: Operator) -> int:
    """Return the number of weights of all experts, without the router."""
    shapes = operator.weights.values() if operator.kind == "experts" else ()
    return sum(math.prod(shape) for shape in shapes if len(shape) == 3)


def _own_weights(operator: Operator, part: str | None = None, tensor: int = 1, experts: int = 1) -> float:
    """Return the number of trained weights on a rank; biases after an all-reduce are not divided."""
    undivided = {"bias"} if part == ROWS else {"output_bias"} if part == HEADS else set()
    n_weights = sum(
        math.prod(shape) / (tensor if part and name not in undivided else 1)
        for name, shape in operator.weights.items()
        if is_trained(name)
    )
    return n_weights - _expert_weights(operator) * (1 - 1 / experts)
