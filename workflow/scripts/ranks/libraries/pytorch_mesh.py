"""Training on a device mesh: each axis is a short function that leaves the model's code unchanged.

tensor          DTensor's columnwise and rowwise styles for the operators that models.division lists, its
                loss_parallel for a divided vocabulary, and its sequence parallelism
data, sharded   FSDP2 on a mesh of both: parameters are sharded along `sharded`, and replicated along `data`
experts         each rank has some experts of a mixture (pytorch.layers); FSDP2 has another mesh
                for what is no expert, along `data` and `experts`
pipeline        stages of the model on each rank (torch.distributed.pipelining), by the schedules of
                models.pipelines
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from models.division import (
    COLUMNS,
    HEADS,
    LAYERS,
    NORMS,
    POSITIONS,
    SEQUENCE,
    divided_outputs,
    sequence_outputs,
    shared_inputs,
    stages,
    tensor_parts,
)
from models.graph import SHARED, Graph, Operator
from models.mesh import AXES
from models.pipelines import INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V, own_stages, rank_of, stages_per_rank
from models.precision import AMP, COMPUTES_IN_BFLOAT16
from ranks.libraries.channels_first import canonical
from ranks.libraries.pytorch.collectives import join
from ranks.libraries.pytorch.layers import Experts, FeedForwards, scale_auxiliary_losses
from ranks.libraries.pytorch.model import gather_array, tensors
from ranks.libraries.pytorch.trainer import cross_entropy
from ranks.libraries.pytorch_sharded import ShardedTrainer, mark_calls
from ranks.worker.context import Context

SCHEDULES = {  # PyTorch's class of each level
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    INTERLEAVED: "Interleaved1F1B",
    ZERO_BUBBLE: "InterleavedZeroBubble",
    ZERO_BUBBLE_V: "ZBVZeroBubble",
}


def divide_layers(
    module: nn.Module, graph: Graph, kinds: dict[str, str], mesh: DeviceMesh, sharding: str
) -> None:
    """Partition layers along a tensor axis, in place.

    Args:
        module: The model, or a stage of it.
        graph: The operators of the module.
        kinds: How each operator is partitioned (models.division), also operators of other pipeline stages.
        mesh: The ranks of the axis.
        sharding: Level of the factor tensor_sharding.
    """
    paths = {layer: path for path, layer in module.named_modules()}  # Checkpointed blocks have layers, too.
    by_position = sequence_outputs(graph, kinds) if sharding == SEQUENCE else []
    undivided, replicated = (Shard(1) if by_position else Replicate()), Replicate()
    # Several divided layers use each of these outputs. It is gathered once, and its gradient is summed once.
    gathered = set(shared_inputs(graph, kinds))
    gathered |= {
        node.inputs[0] for node in graph.operators if node.kind == "tied_dense" and node.name in kinds
    }
    plan: dict[str, ParallelStyle] = {
        name: SequenceParallel(use_local_output=True)
        for name in by_position
        if graph.by_name[name].kind in NORMS
    }
    for name, kind in kinds.items():
        if name not in graph.by_name:
            continue
        operator = graph.by_name[name]
        for user in graph.users(name):
            if user.kind == "activation":
                # An activation in place would overwrite DTensor's output.
                module.get_submodule(user.name).inplace = False
        if kind == HEADS:
            n_inputs = len(operator.inputs)
            # Then the gradient of the common input is summed once, and not for each projection.
            plan[name] = PrepareModuleInput(
                input_layouts=(undivided,) * n_inputs, desired_input_layouts=(replicated,) * n_inputs
            )
            plan |= {f"{name}.{part}": ColwiseParallel() for part in ("query", "key", "value")}
            plan[f"{name}.output"] = RowwiseParallel(output_layouts=undivided)
        elif kind == POSITIONS or operator.kind in ("embedding", SHARED):
            weight = distribute_tensor(module.get_submodule(name).weight, mesh, [Shard(0)])
            shard = PositionsShard(weight) if kind == POSITIONS else VocabularyShard(weight, mesh, undivided)
            module.add_module(name, shard)
        elif operator.kind == "dense" and kind == COLUMNS:
            plan[name] = ColwiseParallel(
                input_layouts=replicated if operator.inputs[0] in gathered else undivided,
                use_local_output=operator != graph.operators[-1],
            )
        elif operator.kind == "dense":
            plan[name] = RowwiseParallel(output_layouts=undivided)
    gather = PrepareModuleOutput(
        output_layouts=undivided, desired_output_layouts=replicated, use_local_output=False
    )
    for styles in (plan, dict.fromkeys(gathered, gather)):
        by_path = {paths[module.get_submodule(name)]: style for name, style in styles.items()}
        parallelize_module(module, mesh, by_path)
    divided = {**dict.fromkeys(divided_outputs(graph, kinds), -1), **dict.fromkeys(by_position, 1)}
    for operator in graph.operators:
        if operator.kind == "dropout" and (axis := divided.get(operator.name)):
            rank = mesh.get_local_rank()
            dropout = DividedDropout(operator["rate"], rank, mesh.size(), axis)
            module.set_submodule(paths[module.get_submodule(operator.name)], dropout)


class VocabularyShard(nn.Module):
    """Rows of an embedding's table, for this rank's tokens of the vocabulary.

    It replaces RowwiseParallel, with which every rank would hold the gradient of all rows (PyTorch 2.13).
    """

    def __init__(self, weight: DTensor, mesh: DeviceMesh, output: Placement) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.mesh, self.output = mesh, output

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the vectors of tokens [N, length], of all positions or of this rank's."""
        table = self.weight.to_local()
        rows = tokens - self.mesh.get_local_rank() * len(table)
        is_own = (rows >= 0) & (rows < len(table))
        vectors = nn.functional.embedding(rows * is_own, table) * is_own.unsqueeze(-1)
        summed = DTensor.from_local(vectors, self.mesh, [Partial()]).redistribute(placements=[self.output])
        return summed.to_local()


class PositionsShard(nn.Module):
    """Learned vectors of this rank's positions."""

    def __init__(self, weight: DTensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of `x`, [N, length / n_ranks, units], and the vectors."""
        return x + self.weight.to_local()


class DividedDropout(nn.Module):
    """Dropout of this rank's units or positions, by its part of the mask of all units or positions.

    Ranks of a tensor axis have the same seed, so each draws the whole mask. If each drew a mask of only its
    part, all ranks would drop units at the same places.
    """

    def __init__(self, rate: float, number: int, n_ranks: int, axis: int) -> None:
        super().__init__()
        self.rate, self.number, self.n_ranks, self.axis = rate, number, n_ranks, axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x`, divided along `axis`, with its elements scaled or dropped."""
        if not self.training:
            return x
        shape = list(x.shape)
        shape[self.axis] *= self.n_ranks
        mask = nn.functional.dropout(x.new_ones(shape), self.rate)
        return x * mask.chunk(self.n_ranks, self.axis)[self.number]


def keep_statistics_rate(module: nn.Module, n_microbatches: int) -> None:
    """Make running statistics forget as much in `n_microbatches` as batch normalization does in one batch.

    They are updated once for each microbatch. A batch keeps the share 1 - m of the former value, with
    PyTorch's momentum m, so a microbatch keeps (1 - m)^(1 / n_microbatches) of it. Loads of experts are sums,
    to which a microbatch adds its share.
    """
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.momentum is not None:
            layer.momentum = 1 - (1 - layer.momentum) ** (1 / n_microbatches)
        if isinstance(layer, Experts):
            layer.batch_share = 1 / n_microbatches


def make_output_contiguous(module: fx.GraphModule) -> None:
    """Make the output of a stage contiguous, as Gloo requires of tensors to send."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_method("contiguous", output.args),)
    module.recompile()


def shared_tables(
    stage_graphs: list[Graph], schedule: str, mesh: DeviceMesh
) -> Iterator[tuple[str, dist.ProcessGroup]]:
    """Yield each table that this rank's stage shares with another stage, and the group of ranks that hold it.

    A group has the ranks of both stages with the same coordinates along the other axes. Creating it is
    collective.
    """
    for number, stage_graph in enumerate(stage_graphs):
        for operator in stage_graph.operators:
            if operator.kind != SHARED:
                continue
            (first,) = (
                i
                for i, graph in enumerate(stage_graphs)
                if operator.name in graph.by_name and graph.by_name[operator.name].kind != SHARED
            )
            holders = [rank_of(stage, schedule, len(mesh.mesh)) for stage in (first, number)]
            if holders[0] == holders[1]:
                continue
            for ranks in mesh.mesh[holders].flatten(1).T.tolist():
                group = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    yield f"{operator.name}.table", group


class StageList(nn.ModuleList):
    """Several stages of a rank, in which layers are found by their names in the model."""

    def get_submodule(self, target: str) -> nn.Module:
        """Return a layer of the stage that has it."""
        layer = target.partition(".")[0]
        return next(stage.get_submodule(target) for stage in self if layer in dict(stage.named_children()))


class Pipeline:
    """The stages of one rank of a pipeline, their schedule, and messages to neighbouring stages."""

    def __init__(
        self,
        context: Context,
        stages_by_number: dict[int, tuple[nn.Module, Graph]],
        n_stages: int,
        mesh: DeviceMesh,
        device: torch.device,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        self.group, self.device = mesh.get_group("pipeline"), device
        self.stages_by_number, self.n_stages = stages_by_number, n_stages
        self.ranks = [
            dist.get_global_rank(self.group, rank_of(number, context.levels["schedule"], mesh.size(0)))
            for number in range(n_stages)
        ]
        self.first, self.last = 0 in stages_by_number, n_stages - 1 in stages_by_number
        is_divided = context.levels["tensor_sharding"] == SEQUENCE
        # A stage passes on the positions of its tensor rank only.
        self.n_position_shares = context.mesh.tensor if is_divided else 1
        self.microbatches, self.divisor = context.levels["microbatches"], 1
        self.precision = context.levels["precision"]
        self.message_dtype = torch.bfloat16 if self.precision in COMPUTES_IN_BFLOAT16 else torch.float32
        size = context.spec["local_batch"] // self.microbatches
        rank_stages = [
            PipelineStage(
                module,
                number,
                n_stages,
                device,
                input_args=self.input(number, size).requires_grad_(number > 0),
                output_args=self.output(number, size).requires_grad_(),
                group=self.group,
            )
            for number, (module, _) in stages_by_number.items()
        ]
        kind = get_schedule_class(SCHEDULES[context.levels["schedule"]])
        # By default a step concatenates the logits of all microbatches, a copy that a language model does not
        # need. PyTorch 2.6 has no option to omit it.
        has_option = "return_outputs" in inspect.signature(kind.step).parameters
        self._options = {"return_outputs": False} if has_option and not context.counts_correct else {}
        self.phases = context.phases
        if self.phases.is_traced:
            for stage in rank_stages:
                stage.forward_one_chunk = self._marked("forward", stage.forward_one_chunk)
                stage.backward_one_chunk = self._marked("backward", stage.backward_one_chunk)
                if context.levels["schedule"] in (ZERO_BUBBLE, ZERO_BUBBLE_V):
                    of_weights = self._marked("backward", stage.backward_weight_one_chunk)
                    stage.backward_weight_one_chunk = of_weights
        self.schedule: Any = kind(
            rank_stages if issubclass(kind, PipelineScheduleMulti) else rank_stages[0],
            self.microbatches,
            loss_fn=lambda logits, labels: loss(logits, labels) / self.divisor,
            scale_grads=False,
        )

    def input(self, number: int, size: int) -> torch.Tensor:
        """Return memory for the inputs of `size` samples of a stage."""
        graph = self.stages_by_number[number][1]
        placeholder = self._empty(
            graph.shape, size, self.n_position_shares if number > 0 else 1, self.message_dtype
        )
        return placeholder if graph.vocabulary is None else placeholder.long()

    def output(self, number: int, size: int) -> torch.Tensor:
        """Return memory for the outputs of `size` samples of a stage."""
        shape, is_last = self.stages_by_number[number][1].operators[-1].shape, number == self.n_stages - 1
        # In mixed precision FSDP returns logits in float32.
        dtype = torch.float32 if is_last and self.precision == AMP else self.message_dtype
        return self._empty(shape, size, 1 if is_last else self.n_position_shares, dtype)

    def _empty(self, shape: tuple[int, ...], size: int, n_parts: int, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for `size` outputs of a graph's shape, if ranks divide positions into `n_parts`."""
        if len(shape) == 3:  # PyTorch's images have channels first.
            return torch.empty(size, shape[2], *shape[:2], dtype=dtype, device=self.device)
        return torch.empty(size, shape[0] // n_parts, *shape[1:], dtype=dtype, device=self.device)

    def propagate(
        self, inputs: torch.Tensor, labels: torch.Tensor, n_batches: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run forward and backward pass of all microbatches; return loss and logits on the last stage.

        The logits of a language model are None.
        """
        self._wait()
        self.divisor = self.microbatches * n_batches
        losses: list[torch.Tensor] = []
        arguments: dict[str, Any] = {"target": labels, "losses": losses} if self.last else {}
        logits = self.schedule.step(*([inputs] if self.first else []), **arguments, **self._options)
        self._received()
        if not self.last:
            return labels.new_zeros((), dtype=torch.float32), None
        return torch.stack(losses).sum().detach() * n_batches, None if logits is None else logits.detach()

    def _wait(self) -> None:
        """Mark a wait in a traced run: between microbatches, a stage sends and receives messages."""
        self.phases.enter("wait")
        self._received = self.phases.begin()

    def _marked(self, phase: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return `work` on a microbatch, marked as this phase."""

        def marked(*args: Any, **named: Any) -> Any:
            self._received()
            self.phases.enter(phase)
            result = work(*args, **named)
            self._wait()
            return result

        return marked

    def predict(self, samples: torch.Tensor) -> torch.Tensor | None:
        """Return the logits of a batch on the last stage, after passing outputs from stage to stage."""
        size = len(samples)
        for number, (module, _) in self.stages_by_number.items():
            if number > 0 and number - 1 not in self.stages_by_number:
                samples = self.input(number, size)
                dist.recv(samples, self.ranks[number - 1], self.group)
            samples = module(samples)
            if number == self.n_stages - 1:
                return samples
            if number + 1 not in self.stages_by_number:
                dist.send(samples, self.ranks[number + 1], self.group)
        return None


class MeshTrainer(ShardedTrainer):
    """A trainer on the mesh of its run."""

    divides_vocabulary = False  # True: logits are divided along a tensor axis.
    #: group of ranks that have different experts, and the layers that they divide
    experts_group: Any = None
    feed_forwards: Sequence[Any] = ()

    def rank_graph(self, context: Context) -> Graph:
        """Return the graph that this rank trains.

        In a pipeline, it has the operators of one stage or of several.
        """
        mesh, graph = context.mesh, context.graph
        n_stages = mesh.pipeline * stages_per_rank(context.levels["schedule"])
        sharding = context.levels["tensor_sharding"]
        self.stage_graphs = stages(graph, n_stages, mesh.tensor, sharding) if mesh.pipeline > 1 else [graph]
        rank, schedule = mesh.coordinates(context.rank)["pipeline"], context.levels["schedule"]
        numbers = own_stages(rank, schedule, mesh.pipeline) if mesh.pipeline > 1 else [0]
        self.rank_stage_graphs = [self.stage_graphs[number] for number in numbers]
        if len(self.rank_stage_graphs) == 1:
            return self.rank_stage_graphs[0]
        operators: dict[str, Operator] = {}
        for stage_graph in self.rank_stage_graphs:
            for operator in stage_graph.operators:
                # Another operator of this name is the input of the next stage, or a copy of a table.
                operators.setdefault(operator.name, operator)
        return Graph(graph.model, graph.initializer, tuple(operators.values()))

    def make_module(self) -> nn.Module:
        """Return this rank's model or stages on the meta device, which `load_shards` allocates and loads."""
        modules = [self.make_graph_module(stage_graph) for stage_graph in self.rank_stage_graphs]
        return modules[0] if len(modules) == 1 else StageList(modules)

    @property
    def roots(self) -> list[tuple[nn.Module, Graph]]:
        """Modules that this rank calls separately, with their graphs; by default only the model.

        They are the stages.
        """
        is_list = isinstance(self.module, StageList)
        return list(zip(self.module if is_list else [self.module], self.rank_stage_graphs, strict=True))

    def distribute(self) -> None:
        """Wrap `model` and `optimizer` so that optimizer steps average gradients over ranks."""
        context, axes = self.context, self.context.mesh
        self.transport = join(context)
        mesh = init_device_mesh(self.torch_device.type, tuple(axes.sizes.values()), mesh_dim_names=AXES)
        self.pipeline: Pipeline | None = None
        self.shared: list[tuple[str, dist.ProcessGroup]] = []
        self.copies: list[tuple[nn.Parameter, nn.Parameter]] = []
        # In a pipeline each microbatch would gather parameters again, and the separate backward pass of
        # weights (zero bubble) would not find them.
        self.regathers = context.levels["sharding"] == "parameters" and axes.pipeline == 1
        if context.phases.is_traced:
            mark_calls(context, self.torch_device.type == "cuda")
        if axes.pipeline > 1:
            self._prepare_stages()
        if axes.tensor > 1:
            self._divide_layers(mesh)
        # FSDP also casts in mixed precision, and a single rank uses it as the baseline of sharded ranks.
        if axes.replicas > 1 or axes.ranks == 1 or context.levels["precision"] == AMP:
            self._shard_replicas(mesh)
        self.load_shards()
        if axes.pipeline > 1:
            self._connect_stages(mesh)
        self.make_shard_optimizer()

    def _prepare_stages(self) -> None:
        """Adapt this rank's stages to messages, microbatches and the random numbers of a pipeline."""
        context, axes = self.context, self.context.mesh
        for root, _ in self.roots:
            make_output_contiguous(root)
        keep_statistics_rate(self.module, context.levels["microbatches"])
        # Otherwise the first dropout of each stage would draw the same mask.
        stage = axes.coordinates(context.rank)["pipeline"]
        torch.manual_seed(context.spec["seed"] + context.replica + axes.replicas * stage)

    def _divide_layers(self, mesh: DeviceMesh) -> None:
        """Partition layers, and with them the loss of a divided vocabulary, along the tensor axis."""
        graph, sharding = self.context.graph, self.context.levels["tensor_sharding"]
        kinds = tensor_parts(graph, self.context.mesh.tensor, sharding)
        for root, stage_graph in self.roots:
            divide_layers(root, stage_graph, kinds, mesh["tensor"], sharding)
        if sharding != LAYERS:
            self.divides_vocabulary = True
            self.loss = lambda logits, labels: cross_entropy(logits, labels).to_local()

    def _shard_replicas(self, mesh: DeviceMesh) -> None:
        """Shard the model by FSDP over the axes that divide samples; experts are separate units."""
        axes = self.context.mesh
        replicas = mesh["data", "sharded"] if axes.data > 1 else mesh["sharded"]
        if axes.experts > 1:
            self.divide_experts(mesh.get_group("experts"), replicas)
            shape = (axes.data * axes.experts, 1)
            replicas = init_device_mesh(self.torch_device.type, shape, mesh_dim_names=("data", "sharded"))
        self.shard(replicas)

    def _connect_stages(self, mesh: DeviceMesh) -> None:
        """Create the pipeline of this rank's loaded stages, and let stages that share a table start equal."""
        context, axes, schedule = self.context, self.context.mesh, self.context.levels["schedule"]
        stage = axes.coordinates(context.rank)["pipeline"]
        rank_roots = dict(zip(own_stages(stage, schedule, axes.pipeline), self.roots, strict=True))
        self.pipeline = Pipeline(
            context, rank_roots, len(self.stage_graphs), mesh, self.torch_device, self.loss
        )
        self.shared = list(shared_tables(self.stage_graphs, schedule, mesh))
        self.copies = list(self._copies_of_tables())
        self._copy_tables()

    def divide_experts(self, group: dist.ProcessGroup, replicas: DeviceMesh) -> None:
        """Keep this rank's experts, as units of FSDP over the ranks that have the same ones."""
        self.experts_group = group
        self.feed_forwards = [layer for layer in self.module.modules() if isinstance(layer, FeedForwards)]
        for layer in self.feed_forwards:
            layer.divide(group)
            fully_shard(layer, mesh=replicas, mp_policy=self.policy, reshard_after_forward=self.regathers)
        self.sharded = [*self.feed_forwards]

    def rank_experts(self, weight: torch.Tensor) -> torch.Tensor:
        """Return this rank's experts of a weight, or all of a weight that has none."""
        group = self.experts_group
        return weight.chunk(group.size())[group.rank()] if group and weight.ndim == 3 else weight

    def propagate(
        self, inputs: torch.Tensor, labels: torch.Tensor, n_batches: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run forward and backward pass of one of `n_batches` batches before an optimizer step."""
        with loss_parallel() if self.divides_vocabulary else contextlib.nullcontext():
            if self.pipeline is None:
                return super().propagate(inputs, labels, n_batches)
            scale_auxiliary_losses(self.module, n_batches)
            return self.pipeline.propagate(inputs, labels, n_batches)

    def predict(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Return the logits of a validation batch, None if another rank has them."""
        logits = self.pipeline.predict(inputs) if self.pipeline else super().predict(inputs)
        return logits.full_tensor() if isinstance(logits, DTensor) else logits

    @torch.no_grad()
    def weights(self) -> dict[str, np.ndarray]:
        """Return all weights of the model in the canonical layout (models/graph.py).

        Shards are gathered, then each stage broadcasts its weights.
        """
        graph, tensors_by_name, arrays = self.context.graph, tensors(self.module, self.graph), {}
        for number, stage_graph in enumerate(self.stage_graphs):
            for name, shape in stage_graph.weights().items():
                value = torch.empty(shape, device=self.torch_device)
                if any(stage_graph is rank_graph for rank_graph in self.rank_stage_graphs):
                    weight = canonical(
                        gather_array(tensors_by_name[name]), graph.by_name[name.rpartition(".")[0]], graph
                    )
                    self.fill(value, torch.from_numpy(weight))
                if self.pipeline:
                    dist.broadcast(value, self.pipeline.ranks[number], self.pipeline.group)
                arrays[name] = value.cpu().numpy()
        return {name: arrays[name] for name in graph.weights()}

    def fill(self, value: torch.Tensor, share: torch.Tensor) -> None:
        """Fill a weight with this rank's share of it and the shares of ranks that have other experts."""
        if share.shape == value.shape:
            value.copy_(share)
        else:
            shares = list(value.chunk(self.experts_group.size()))
            dist.all_gather(shares, share.to(value.device), self.experts_group)

    def n_copies(self, parameter: torch.Tensor) -> int:
        """Return the number of ranks that have the same shard of a parameter.

        A table of two stages is on twice as many ranks.
        """
        weight_tensors = tensors(self.module, self.graph)
        stages_with_it = [
            dist.get_world_size(group) for table, group in self.shared if weight_tensors[table] is parameter
        ]
        n_copies = super().n_copies(parameter) * max(stages_with_it, default=1)
        is_expert = any(parameter is weight for layer in self.feed_forwards for weight in layer.parameters())
        return n_copies // self.experts_group.size() if is_expert else n_copies

    def _copies_of_tables(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Yield each table that two stages of this rank have, and its copy in the later one."""
        for module, stage_graph in self.roots[1:]:
            for operator in stage_graph.operators:
                if operator.kind == SHARED and self.graph.by_name[operator.name].kind != SHARED:
                    table = tensors(self.module, self.graph)[f"{operator.name}.table"]
                    yield table, module.get_submodule(operator.name).weight

    @torch.no_grad()
    def _copy_tables(self) -> None:
        for table, copy in self.copies:
            copy.copy_(table)

    def _optimizer_step(self) -> None:
        for table, group in self.shared:
            gradient = tensors(self.module, self.graph)[table].grad
            dist.all_reduce(gradient.to_local() if isinstance(gradient, DTensor) else gradient, group=group)
        for table, copy in self.copies:
            table.grad, copy.grad = table.grad + copy.grad, None
        for weight in (weight for layer in self.feed_forwards for weight in layer.parameters()):
            # It sums over the ranks that sent positions, while FSDP's gradients of other weights are means.
            weight.grad.to_local().div_(self.experts_group.size())
        super()._optimizer_step()
        self._copy_tables()
