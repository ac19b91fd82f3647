"""Simulate a training step on a device mesh: its time, and the memory of the fullest device.

A device computes its share of each layer, and blocks once more if they are recomputed. Layers take the
roofline of strategies.costs. Only dense products and attention on devices whose topology states
`reached.large` take

    2 M N K / (large peak) + OPERAND_PASSES (bytes of both factors and of the result) / bandwidth

since products that are small in one of their dimensions reach less of the peak. Messages (models.messages)
take the time of strategies.collective_times:

    tensor, experts   computation waits for each
    pipeline          m microbatches on p stages take the turns of prediction.mesh_step
    data, sharded     overlap with a pass, as with FSDP2 and DDP: seconds c of computation and m of messages
                      take max(c + OVERLAP_COST m, m), since both share memory and multiprocessors; the
                      reduction of the first unit follows the last backward pass. A pipeline
                      gathers before its first microbatch and reduces after its last one, without overlap.

Memory is the sum of weights, gradients and optimizer states, gathered units, what autograd keeps (the sum of
strategies.memory over layers), and the loss. Not counted are the device's context, buffers of collectives and
workspaces of kernels.
"""

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any

from models.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from models.division import COLUMNS, SEQUENCE, divided_outputs, sequence_outputs, stages, tensor_parts
from models.graph import BYTES, Graph, Operator, is_trained
from models.mesh import Mesh
from models.messages import Message, StepDemand, n_optimizer_states, number_bytes, step_demands
from models.operations import FLOPS_PER_MAC
from models.pipelines import IDLE_TURNS, in_flight, own_stages, stages_per_rank
from models.soap import ATTENTION, DENSE, HEADS_SUFFIX, LOSS, Layer, Space, divide
from prediction.mesh_step import LAYER_AXES, sum_over_turns
from strategies.collective_times import message_seconds
from strategies.costs import PASSES, roofline
from strategies.memory import kept_bytes
from strategies.topology import DeviceRates, Topology

# Two numbers that were chosen, together with `reached.large` of `a100` and `h100`, on the public series of
# MPT (tests/unit/strategies/test_mpt_series.py): how often the operands of a product pass through the memory
# without overlap, and the share of the time of overlapped messages by which they delay computation.
OPERAND_PASSES = 2.5
OVERLAP_COST = 0.75
UNIT_BYTES = 25 * 2**20  # Sharded unit of a model without blocks, as in ranks.libraries.pytorch_sharded.
UNPARTITIONED = (1, 1, 1, 1)  # Degrees of a layer that is not partitioned.
# Copies of the logits in float32 during the backward pass of the loss: the logits and their gradient.
# Logarithms of probabilities are counted with the loss.
N_LOGIT_COPIES = 2


@dataclass(frozen=True)
class LayerCost:
    """Costs of a layer for the samples of a microbatch, on one device.

    Attributes:
        operators: Names of its operators.
        forward_s: Time of the forward pass, and `backward_s` of the backward pass.
        light_s: Time of the forward pass without products.
        undivided_s: Part of `forward_s` that does not shrink if a tensor axis divides the layer.
        kept_bytes: Memory that the backward pass needs, and `product_bytes` of its products alone.
        output_bytes: Memory of its output.
        logits_bytes: Memory of the logits in float32 and of their gradient while the loss is propagated.
    """

    operators: tuple[str, ...]
    forward_s: float
    backward_s: float
    light_s: float
    undivided_s: float
    kept_bytes: float
    product_bytes: float
    output_bytes: float
    logits_bytes: float


@dataclass(frozen=True)
class StageCost:
    """Sums over the layers of a pipeline stage: seconds of both passes, and bytes.

    Attributes:
        forward_s: Time of the forward pass, and `backward_s` of the backward pass.
        kept_bytes: Memory that the backward pass of a microbatch needs.
        recomputed_bytes: Memory of the largest recomputed block.
        loss_bytes: Memory of logits in float32 and of their gradient.
    """

    forward_s: float
    backward_s: float
    kept_bytes: float
    recomputed_bytes: float
    loss_bytes: float


@dataclass(frozen=True)
class MeshEstimate:
    """Time, memory and sent bytes of a step on a mesh.

    Attributes:
        seconds: Its time.
        memory_bytes: Memory of the fullest device, and `weight_bytes` its weights, gradients and optimizer
            states.
        output_bytes: Sent by all devices for outputs and their gradients.
        gradient_bytes: Sent by all devices for parameters and their gradients.
    """

    seconds: float
    memory_bytes: float
    weight_bytes: float
    output_bytes: float
    gradient_bytes: float


class StepSimulator:
    """Simulates steps of a model on the devices of a topology.

    Args:
        graph: The model.
        topology: Devices and links.
        element_bytes: Bytes of a number in outputs.
    """

    def __init__(self, graph: Graph, topology: Topology, element_bytes: int) -> None:
        self.graph, self.topology, self.element_bytes = graph, topology, element_bytes
        self.layer_costs = functools.cache(self._layer_costs)
        self.cut, self.divided = functools.cache(self._cut), functools.cache(self._divided)
        self._cached_demands: dict[tuple[object, ...], list[StepDemand]] = {}
        blocks = list(graph.blocks.values())
        self.block_of = {node.name: number for number, block in enumerate(blocks) for node in block}
        self.block_outputs = {node.name for block in blocks for node in graph.block_outputs(block)}
        self.block_weights = [sum(map(n_weights, block)) for block in blocks]
        self.parameters = graph.parameters
        self.root_weights = self.parameters - sum(self.block_weights)
        if not blocks:  # Units have UNIT_BYTES, or the bytes of the largest layer.
            largest = max(map(n_weights, graph.operators))
            self.block_weights, self.root_weights = [max(largest, UNIT_BYTES // BYTES)], 0

    def simulate(self, mesh: Mesh, batch: int, levels: Mapping[str, Any]) -> MeshEstimate:
        """Return time, memory and sent bytes of a step.

        Args:
            mesh: The mesh.
            batch: Samples of a replica per batch.
            levels: See models.messages.step_demands.

        Raises:
            ValueError: If the mesh cannot partition the model.
        """
        is_pipeline = mesh.pipeline > 1
        n_microbatches = levels["microbatches"] if is_pipeline else 1
        stage_demands = self._demands(mesh, batch // n_microbatches, levels)
        costs = self._stage_costs(mesh, batch // n_microbatches, levels)
        if is_pipeline:
            seconds = self._pipeline_seconds(mesh, levels, stage_demands, costs)
        else:
            seconds = self._passes_seconds(levels, stage_demands[0], costs[0])
        weights = [self._weights(mesh, levels, demand) for demand in stage_demands]
        saved = self._saved_bytes(mesh, levels, costs)
        number, n_numbers = number_bytes(levels), 2 + n_optimizer_states(levels)
        weight_bytes = [
            number.stored * n_numbers * n_rank_weights / mesh.sharded for n_rank_weights in weights
        ]
        working = [self._gathered_bytes(mesh, levels, n_rank_weights) for n_rank_weights in weights]
        if not is_pipeline and levels["sync_every"] == 1:
            # Gradients take the place of activations as the backward pass frees these.
            gradient_bytes = weight_bytes[0] / n_numbers
            saved = [max(saved[0] - gradient_bytes, costs[0].recomputed_bytes)]
        memory = [sum(parts) for parts in zip(weight_bytes, working, saved, strict=True)]
        fullest = max(range(len(memory)), key=memory.__getitem__)
        update_s = 2 * max(weight_bytes) / self.topology.device.memory_bytes_s
        n_copies = mesh.ranks // mesh.pipeline
        messages = [
            (message, _n_times(message, mesh, levels))
            for demand in stage_demands
            for message in demand.messages
        ]
        outputs, parameters = (
            n_copies * sum(m.sent * times for m, times in messages if _is_of_outputs(m) == is_output)
            for is_output in (True, False)
        )
        return MeshEstimate(seconds + update_s, memory[fullest], weight_bytes[fullest], outputs, parameters)

    def _layer_costs(self, samples: int) -> tuple[LayerCost, ...]:
        """Return the costs of all layers for a microbatch of `samples` samples."""
        space = divide(_without_experts(self.graph), samples, self.element_bytes)
        return tuple(self._layer_cost(space, layer_index) for layer_index in range(len(space.layers)))

    def _layer_cost(self, space: Space, layer_index: int) -> LayerCost:
        layer, device = space.layers[layer_index], self.topology.device
        output_bytes = float(space.element_bytes * layer.elements)
        forward_s, backward_s, undivided_s = layer_seconds(space, layer_index, device)
        light_s = forward_s
        if layer.macs:
            passes = [PASSES[kind][0] for kind in layer.fused]
            light_s = len(passes) * device.launch_s + sum(passes) * output_bytes / device.memory_bytes_s
        saved = float(kept_bytes(space, layer_index, UNPARTITIONED))
        if not layer.fused and layer.name != LOSS and self._is_only_added(layer):
            saved -= output_bytes
        product_bytes = saved if layer.name.endswith(HEADS_SUFFIX) else min(saved, output_bytes)
        names = layer.operators or (layer.name,)
        is_cast = space.element_bytes != BYTES  # Then the gradient has a copy in the type of outputs.
        number_bytes_of_logit = N_LOGIT_COPIES * BYTES + is_cast * space.element_bytes
        logits_bytes = number_bytes_of_logit * space.batch * math.prod(self.graph.operators[-1].shape)
        return LayerCost(
            tuple(name.removesuffix(HEADS_SUFFIX) for name in names),
            forward_s,
            backward_s,
            light_s,
            undivided_s,
            saved,
            product_bytes if layer.macs else 0.0,
            output_bytes,
            float(logits_bytes),
        )

    def _is_only_added(self, layer: Layer) -> bool:
        """Return whether a layer's output is only added to another: autograd does not keep it."""
        users = self.graph.users(layer.operators[-1])
        is_block_output = layer.operators[-1] in self.block_outputs
        return bool(layer.macs and users and not is_block_output) and all(
            user.kind == "add" for user in users
        )

    def _cut(self, n_stages: int, tensor: int, sharding: str) -> list[frozenset[str]]:
        """Return the operators of each stage of a pipeline."""
        parts = stages(self.graph, n_stages, tensor, sharding) if n_stages > 1 else [self.graph]
        names = [frozenset(node.name for node in part.operators) for part in parts]
        return [*names[:-1], names[-1] | {LOSS}]

    def _demands(self, mesh: Mesh, samples: int, levels: Mapping[str, Any]) -> list[StepDemand]:
        """Return `models.messages.step_demands` for one batch, with microbatches of `samples` samples.

        They are computed for one sample, and scaled: messages of outputs grow with the samples.
        """
        schedule = levels["schedule"] if mesh.pipeline > 1 else ""
        sends_twice = mesh.tensor > 1 and levels["checkpointing"] == "blocks"
        key = (mesh, schedule, sends_twice, levels["sharding"], levels["tensor_sharding"])
        if key not in self._cached_demands:
            one_pass = {**levels, "sync_every": 1, "microbatches": 1}
            unit_bytes = BYTES * max(self.block_weights)
            self._cached_demands[key] = [
                replace(demand, messages=_grouped(demand.messages))
                for demand in step_demands(self.graph, mesh, 1, one_pass, unit_bytes)
            ]
        count = levels["microbatches"] if mesh.pipeline > 1 else 1
        return [
            replace(demand, messages=tuple(_scaled(message, samples, count) for message in demand.messages))
            for demand in self._cached_demands[key]
        ]

    def _stage_costs(self, mesh: Mesh, samples: int, levels: Mapping[str, Any]) -> list[StageCost]:
        """Return the costs of each stage; on a mesh without pipeline there is one."""
        sharding, n_local = levels["tensor_sharding"], stages_per_rank(levels["schedule"])
        costs, divided = self.layer_costs(samples), self.divided(mesh.tensor, sharding)
        n_stages = mesh.pipeline * n_local if mesh.pipeline > 1 else 1
        return [
            self._stage_cost(
                [cost for cost in costs if cost.operators[0] in stage], divided, mesh.tensor, levels
            )
            for stage in self.cut(n_stages, mesh.tensor, sharding)
        ]

    def _divided(self, tensor: int, sharding: str) -> Collection[str]:
        """Return the operators with outputs or products that a tensor axis divides, and LOSS if it does."""
        if tensor == 1:
            return ()
        parts = tensor_parts(self.graph, tensor, sharding)
        by_position = sequence_outputs(self.graph, parts) if sharding == SEQUENCE else []
        loss = [LOSS] if parts.get(self.graph.operators[-1].name) == COLUMNS else []
        return {*parts, *divided_outputs(self.graph, parts), *by_position, *loss}

    def _stage_cost(
        self, costs: Sequence[LayerCost], divided: Collection[str], tensor: int, levels: Mapping[str, Any]
    ) -> StageCost:
        level = levels.get("checkpointing", "none")
        forward_s = backward_s = saved = loss_bytes = 0.0
        recomputed = [0.0] * len(self.block_weights)
        for cost in costs:
            share = 1 / tensor if cost.operators[0] in divided else 1.0
            number, own_s = self.block_of.get(cost.operators[0]), (1 - share) * cost.undivided_s
            forward_s += share * cost.forward_s + own_s
            backward_s += share * cost.backward_s + 2 * own_s
            if LOSS in cost.operators:
                loss_bytes = share * cost.logits_bytes
            if level == "none" or number is None:
                saved += share * cost.kept_bytes
                continue
            backward_s += share * cost.forward_s + own_s if level == "blocks" else share * cost.light_s
            recomputed[number] += share * cost.kept_bytes
            is_output = not self.block_outputs.isdisjoint(cost.operators)
            kept_output = cost.output_bytes if is_output else 0.0
            saved += share * max(kept_output, cost.product_bytes if level == "selective" else 0.0)
        return StageCost(forward_s, backward_s, saved, max(recomputed, default=0.0), loss_bytes)

    def _seconds(self, messages: Iterable[Message], count: float = 1.0) -> float:
        return count * sum(message.count * message_seconds(message, self.topology) for message in messages)

    def _passes_seconds(self, levels: Mapping[str, Any], demand: StepDemand, cost: StageCost) -> float:
        """Return the time of a step without pipeline, before the update."""
        n_batches = levels["sync_every"]
        layer_s = self._seconds(message for message in demand.messages if message.axis in LAYER_AXES) / 2
        gathers = [
            message for message in demand.messages if message.kind == ALL_GATHER and message.axis == "sharded"
        ]
        reductions = [message for message in demand.messages if _is_reduction(message)]
        # An upper bound with accumulation: here every pass gathers, as with FSDP1. Ranks of Ringside keep
        # parameters between batches (models.messages.count_gathers).
        both_passes = levels["sharding"] == "parameters"
        gather_s, reduce_s = self._seconds(gathers) / (2 if both_passes else 1), self._seconds(reductions)
        forward_s, backward_s = cost.forward_s + layer_s, cost.backward_s + layer_s
        if both_passes:
            forward = n_batches * overlap(forward_s, gather_s)
            backward = (n_batches - 1) * overlap(backward_s, gather_s) + overlap(
                backward_s, gather_s + reduce_s
            )
        else:
            forward = (n_batches - 1) * forward_s + overlap(forward_s, gather_s)
            backward = (n_batches - 1) * backward_s + overlap(backward_s, reduce_s)
        left = [self._seconds([replace(message, count=1)]) for message in reductions[:1]]
        return forward + backward + sum(left)

    def _pipeline_seconds(
        self,
        mesh: Mesh,
        levels: Mapping[str, Any],
        stage_demands: Sequence[StepDemand],
        costs: Sequence[StageCost],
    ) -> float:
        """Return the time of a step of a pipeline, before the update."""
        schedule, n_microbatches, n_batches = levels["schedule"], levels["microbatches"], levels["sync_every"]
        turns, handed, parameters = [], [0.0], []
        for rank, demand in enumerate(stage_demands):
            stages_of_rank = [costs[number] for number in own_stages(rank, schedule, mesh.pipeline)]
            in_layers = [message for message in demand.messages if message.axis in LAYER_AXES]
            layer_s = self._seconds(in_layers) / n_microbatches
            turns.append(sum(stage.forward_s + stage.backward_s for stage in stages_of_rank) + layer_s)
            handed += [message_seconds(m, self.topology) for m in demand.messages if m.axis == "pipeline"]
            parameters.append(self._seconds(m for m in demand.messages if not _is_of_outputs(m)))
        n_passes = n_microbatches * stages_per_rank(schedule)
        slowest = max(range(len(turns)), key=turns.__getitem__)
        batch_s = sum_over_turns(turns, slowest, n_microbatches, IDLE_TURNS[schedule])
        batch_s += 2 * (n_passes + mesh.pipeline - 2) * max(handed) + max(parameters)
        return n_batches * batch_s

    def _weights(self, mesh: Mesh, levels: Mapping[str, Any], demand: StepDemand) -> float:
        """Return the number of weights of a rank's part of the model, before sharding."""
        is_sharded = levels["sharding"] == "parameters"
        return demand.parameters * (mesh.sharded if is_sharded else 1) / number_bytes(levels).stored

    def _gathered_bytes(self, mesh: Mesh, levels: Mapping[str, Any], weights: float) -> float:
        """Return the memory of gathered parameters and of gradients that are not reduced yet."""
        number = number_bytes(levels)
        if mesh.sharded == 1 and number.computed == number.stored:
            return 0.0  # FSDP uses them where they are.
        share = weights / self.parameters
        unit, root = (share * size for size in (max(self.block_weights), self.root_weights))
        keeps_all = mesh.pipeline > 1 or levels["sync_every"] > 1
        if keeps_all or levels["sharding"] != "parameters":
            gathered = number.computed * weights
        else:
            gathered = number.computed * (2 * unit + root)
        if keeps_all:
            return gathered + number.reduced * weights
        return gathered + (number.computed + number.reduced) * unit

    def _saved_bytes(self, mesh: Mesh, levels: Mapping[str, Any], costs: Sequence[StageCost]) -> list[float]:
        """Return the peak memory of activations on each rank along the pipeline.

        The peak is reached while the loss is propagated, or later, when a block has been recomputed.
        """
        schedule, n_microbatches = levels["schedule"], levels["microbatches"]
        if mesh.pipeline == 1:
            return [costs[0].kept_bytes + max(costs[0].recomputed_bytes, costs[0].loss_bytes)]
        peaks = []
        for rank in range(mesh.pipeline):
            stages_of_rank = [costs[number] for number in own_stages(rank, schedule, mesh.pipeline)]
            sizes = [stage.kept_bytes for stage in stages_of_rank]
            moments = in_flight(schedule, mesh.pipeline, rank, n_microbatches)
            in_flight_bytes = max(sum(map(mul, counts, sizes)) for counts in moments)
            passing = max(max(stage.recomputed_bytes, stage.loss_bytes) for stage in stages_of_rank)
            peaks.append(in_flight_bytes + passing)
        return peaks


def layer_seconds(space: Space, layer_index: int, device: DeviceRates) -> tuple[float, float, float]:
    """Return the time of a layer's forward and of its backward pass on one device.

    The third number is the part of the forward pass that remains if a tensor axis divides the layer: launches
    of operators, and the factor or result of a product that is not divided.
    """
    layer = space.layers[layer_index]
    cost = roofline(space, layer_index, UNPARTITIONED, device, update_bytes=0)
    launches_s = (1 + len(layer.fused)) * device.launch_s
    if not (device.large_share and layer.macs and layer.product in (DENSE, ATTENTION)):
        return cost.forward, cost.backward, launches_s
    columns = layer.cell * next(size for size in reversed(layer.shape) if size > 1)
    rows = layer.elements / columns
    inner = layer.macs / (rows * columns)
    share = device.large_share * device.reached[layer.product] / device.reached[DENSE]
    operand_bytes = space.element_bytes * (rows * columns + rows * inner + columns * inner)
    product_s = FLOPS_PER_MAC * layer.macs / (share * device.flops)
    product_s += OPERAND_PASSES * operand_bytes / device.memory_bytes_s
    output_s = space.element_bytes * layer.elements / device.memory_bytes_s
    forward, backward = (sum(PASSES[kind][i] for kind in layer.fused) for i in (0, 1))
    undivided_bytes = space.element_bytes * rows * min(columns, inner)
    return (
        launches_s + product_s + forward * output_s,
        launches_s + 2 * product_s + backward * output_s,
        launches_s + OPERAND_PASSES * undivided_bytes / device.memory_bytes_s,
    )


def overlap(compute_s: float, message_s: float) -> float:
    """Return the time of a pass that computes and sends at once."""
    return max(compute_s + OVERLAP_COST * message_s, message_s)


def n_weights(operator: Operator) -> int:
    """Return the number of trained weights of an operator."""
    return sum(math.prod(shape) for name, shape in operator.weights.items() if is_trained(name))


def _is_of_outputs(message: Message) -> bool:
    return message.axis in (*LAYER_AXES, "pipeline")


def _grouped(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return the messages with equal ones merged into one with their count."""
    counts: dict[Message, int] = {}
    for message in messages:
        single = replace(message, count=1)
        counts[single] = counts.get(single, 0) + message.count
    return tuple(replace(message, count=count) for message, count in counts.items())


def _scaled(message: Message, samples: int, n_microbatches: int) -> Message:
    """Return a message of one sample as the message of `n_microbatches` microbatches of `samples` samples."""
    if not _is_of_outputs(message):
        return message
    return replace(message, bytes=samples * message.bytes, count=n_microbatches * message.count)


def _is_reduction(message: Message) -> bool:
    return message.kind in (REDUCE_SCATTER, ALL_REDUCE) and message.axis not in LAYER_AXES


def _n_times(message: Message, mesh: Mesh, levels: Mapping[str, Any]) -> int:
    """Return how often a message of one batch is sent in a step of several."""
    is_gather = message.kind == ALL_GATHER and message.axis == "sharded"
    repeats = _is_of_outputs(message) or mesh.pipeline > 1
    repeats |= is_gather and levels["sharding"] == "parameters"
    return int(levels["sync_every"]) if repeats else 1


def _without_experts(graph: Graph) -> Graph:
    """Return a graph with dense layers of as many products in place of mixtures of experts, for the roofline.

    An expert computes all of its slots, even if no position fills them.
    """
    operators = []
    for node in graph.operators:
        if node.kind == "experts":
            filled = node["top"] * node.shape[0]
            macs = node.macs * node["experts"] * node["capacity"] // filled
            weights = {name: shape for name, shape in node.weights.items() if is_trained(name)}
            settings = {"units": node.shape[-1]}
            node = replace(node, kind="dense", settings=settings, weights=weights, macs=macs)
        operators.append(node)
    return Graph(graph.model, graph.initializer, tuple(operators))
