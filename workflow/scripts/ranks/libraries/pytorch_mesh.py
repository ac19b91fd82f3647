"""Training on a device mesh: each axis is a short function that leaves the model's code unchanged.

tensor          DTensor's columnwise and rowwise styles, for the operators that models.division lists
data, sharded   FSDP2 on a mesh of both: parameters are sharded along `sharded`, and replicated along `data`
pipeline        a stage of the model on each rank (torch.distributed.pipelining): GPipe (Huang et al. 2019),
                or 1F1B (Narayanan et al., SOSP 2019)
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)

from models.division import COLUMNS, HEADS, divided_outputs, shared_inputs, stages, tensor_parts
from models.graph import SHARED, Graph
from models.mesh import AXES
from ranks.libraries.channels_first import canonical
from ranks.libraries.pytorch import cross_entropy, join, tensors
from ranks.libraries.pytorch_sharded import ShardedTrainer, gathered, mark_calls
from ranks.worker.context import Context

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def divide_layers(module: nn.Module, graph: Graph, parts: dict[str, str], mesh: DeviceMesh) -> None:
    """Partition layers along a tensor axis, in place.

    `parts` has the kind of partition of each operator, including operators of other pipeline stages.
    """
    plan: dict[str, ParallelStyle] = {}
    for name, kind in parts.items():
        if name not in graph.by_name:
            continue
        for user in graph.users(name):
            if user.kind == "activation":
                # An activation in place would overwrite DTensor's output.
                module.get_submodule(user.name).inplace = False
        if kind == HEADS:
            replicated = (Replicate(),) * len(graph.by_name[name].inputs)
            # The gradient of the common input is then summed once, not for each projection.
            plan[name] = PrepareModuleInput(input_layouts=replicated, desired_input_layouts=replicated)
            plan |= {f"{name}.{part}": ColwiseParallel() for part in ("query", "key", "value")}
            plan[f"{name}.output"] = RowwiseParallel()
        else:
            plan[name] = ColwiseParallel() if kind == COLUMNS else RowwiseParallel()
    for name in divided_outputs(graph, parts):
        if (operator := graph.by_name.get(name)) and operator.kind == "dropout":
            own = DividedDropout(operator["rate"], mesh.get_local_rank(), mesh.size())
            module.add_module(name, own)
    for name in shared_inputs(graph, parts):
        # The gradient of the common input is then summed once, as that of an attention.
        replicated = Replicate()
        plan[name] = PrepareModuleOutput(
            output_layouts=replicated, desired_output_layouts=replicated, use_local_output=False
        )
    parallelize_module(module, mesh, plan)


class DividedDropout(nn.Module):
    """Dropout of this rank's units, by its part of the mask that one device draws for all units.

    Ranks of a tensor axis have the same seed. By a mask of their own units alone, units at the same place of
    each rank would be dropped together.
    """

    def __init__(self, rate: float, number: int, n_ranks: int) -> None:
        super().__init__()
        self.rate, self.number, self.n_ranks = rate, number, n_ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the units [..., units / n_ranks], scaled or dropped."""
        if not self.training:
            return x
        mask = nn.functional.dropout(x.new_ones(*x.shape[:-1], x.shape[-1] * self.n_ranks), self.rate)
        return x * mask.chunk(self.n_ranks, -1)[self.number]


def keep_statistics_rate(module: nn.Module, n_microbatches: int) -> None:
    """Make running statistics forget as much in `n_microbatches` as batch normalization does in one batch.

    They are updated once for each microbatch. With the momentum m of a batch, the share 1 - m of the former
    value that is kept becomes (1 - m)^(1 / n_microbatches).
    """
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.momentum is not None:
            norm.momentum = 1 - (1 - norm.momentum) ** (1 / n_microbatches)


def hand_on(module: fx.GraphModule) -> None:
    """Make the outputs of a stage contiguous, as Gloo needs them to send."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_method("contiguous", output.args),)
    module.recompile()


def shared_tables(parts: list[Graph], mesh: DeviceMesh) -> Iterator[tuple[str, dist.ProcessGroup]]:
    """Yield each weight that this rank's stage shares with another one, and the group of ranks that hold it.

    A group has the ranks of both stages at the same coordinates along the other axes.
    """
    for number, part in enumerate(parts):
        for operator in part.operators:
            if operator.kind != SHARED:
                continue
            (first,) = (
                i
                for i, stage in enumerate(parts)
                if operator.name in stage.by_name and stage.by_name[operator.name].kind != SHARED
            )
            for ranks in mesh.mesh[[first, number]].flatten(1).T.tolist():
                group = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    yield f"{operator.name}.table", group


class Stage:
    """The work of a pipeline's rank for a batch, and its neighbours."""

    def __init__(
        self, context: Context, module: nn.Module, parts: list[Graph], mesh: DeviceMesh, device: torch.device
    ) -> None:
        self.group, self.number, self.device = (
            mesh.get_group("pipeline"),
            mesh.get_local_rank("pipeline"),
            device,
        )
        self.first, self.last = self.number == 0, self.number == len(parts) - 1
        self.module, self.graph = module, parts[self.number]
        self.microbatches, self.divisor = context.levels["microbatches"], 1
        size = context.spec["local_batch"] // self.microbatches
        stage = PipelineStage(
            module,
            self.number,
            len(parts),
            device,
            input_args=self.input(size).requires_grad_(not self.first),
            output_args=_empty(self.graph.operators[-1].shape, size, device).requires_grad_(),
            group=self.group,
        )
        # Joining the logits of all microbatches copies them, and a language model needs them no more. PyTorch
        # 2.6 cannot leave it out.
        step = SCHEDULES[context.levels["schedule"]].step
        can_leave_out = "return_outputs" in inspect.signature(step).parameters
        self._options = {"return_outputs": False} if can_leave_out and not context.counts_correct else {}
        self.phases = context.phases
        if self.phases.is_traced:
            stage.forward_one_chunk = self._marked("forward", stage.forward_one_chunk)
            stage.backward_one_chunk = self._marked("backward", stage.backward_one_chunk)
        self.schedule = SCHEDULES[context.levels["schedule"]](
            stage,
            self.microbatches,
            loss_fn=lambda logits, labels: (
                cross_entropy(logits, labels, label_smoothing=context.levels["label_smoothing"])
                / self.divisor
            ),
            scale_grads=False,
        )

    def input(self, size: int) -> torch.Tensor:
        """Return memory for this stage's inputs of `size` samples."""
        placeholder = _empty(self.graph.shape, size, self.device)
        return placeholder if self.graph.vocabulary is None else placeholder.long()

    def propagate(
        self, samples: torch.Tensor, labels: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run forward and backward pass of all microbatches; return loss and logits on the last stage.

        The logits of a language model are None.
        """
        self._wait()
        self.divisor = self.microbatches * length
        losses: list[torch.Tensor] = []
        arguments: dict[str, Any] = {"target": labels, "losses": losses} if self.last else {}
        logits = self.schedule.step(*([samples] if self.first else []), **arguments, **self._options)
        self._received()
        if not self.last:
            return labels.new_zeros((), dtype=torch.float32), None
        return torch.stack(losses).sum().detach() * length, None if logits is None else logits.detach()

    def _wait(self) -> None:
        """Mark a wait in a traced run: between microbatches a stage sends messages and waits for some."""
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
        if not self.first:
            samples = self.input(len(samples))
            dist.recv(samples, dist.get_global_rank(self.group, self.number - 1), self.group)
        outputs = self.module(samples)
        if self.last:
            return outputs
        dist.send(outputs, dist.get_global_rank(self.group, self.number + 1), self.group)
        return None


def _empty(shape: tuple[int, ...], size: int, device: torch.device) -> torch.Tensor:
    """Return memory for `size` outputs of a shape in a graph; PyTorch's images have channels first."""
    return torch.empty(size, *((shape[2], *shape[:2]) if len(shape) == 3 else shape), device=device)


class MeshTrainer(ShardedTrainer):
    """A trainer on the mesh of its run."""

    def part(self, context: Context) -> Graph:
        """See PyTorchTrainer. With a pipeline, it is a stage."""
        mesh = context.mesh
        self.parts = (
            stages(context.graph, mesh.pipeline, mesh.tensor) if mesh.pipeline > 1 else [context.graph]
        )
        return self.parts[mesh.coordinates(context.rank)["pipeline"]]

    def distribute(self) -> None:
        """See PyTorchTrainer."""
        context, sizes = self.context, self.context.mesh
        self.transport = join(context)
        mesh = init_device_mesh(self.torch_device.type, tuple(sizes.sizes.values()), mesh_dim_names=AXES)
        self.stage: Stage | None = None
        self.shared: list[tuple[str, dist.ProcessGroup]] = []
        self.regathers = context.levels["sharding"] == "parameters"
        if context.phases.is_traced:
            mark_calls(context, self.torch_device.type == "cuda")
        if sizes.pipeline > 1:
            hand_on(self.module)
            keep_statistics_rate(self.module, context.levels["microbatches"])
            # Otherwise the first dropout of each stage would draw the same mask.
            stage = sizes.coordinates(context.rank)["pipeline"]
            torch.manual_seed(context.spec["seed"] + context.replica + sizes.replicas * stage)
        if sizes.tensor > 1:
            divide_layers(self.module, self.graph, tensor_parts(context.graph, sizes.tensor), mesh["tensor"])
        if sizes.replicas > 1 or sizes.ranks == 1:  # One rank uses FSDP too, as its baseline.
            self.shard(mesh["data", "sharded"] if sizes.data > 1 else mesh["sharded"])
        self.load_shards()
        if sizes.pipeline > 1:
            self.stage = Stage(context, self.module, self.parts, mesh, self.torch_device)
            self.shared = list(shared_tables(self.parts, mesh))
        self.optimize_own()

    def propagate(
        self, images: torch.Tensor, labels: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See PyTorchTrainer."""
        if self.stage is None:
            return super().propagate(images, labels, length)
        return self.stage.propagate(images, labels, length)

    def predict(self, images: torch.Tensor) -> torch.Tensor | None:
        """See PyTorchTrainer."""
        return self.stage.predict(images) if self.stage else super().predict(images)

    @torch.no_grad()
    def weights(self) -> dict[str, np.ndarray]:
        """See Trainer. Shards are gathered, then each stage broadcasts its weights."""
        graph, tensors_by_name, arrays = self.context.graph, tensors(self.module, self.graph), {}
        for number, part in enumerate(self.parts):
            for name, shape in part.weights().items():
                value = torch.empty(shape, device=self.torch_device)
                if part is self.graph:
                    own = canonical(
                        gathered(tensors_by_name[name]), graph.by_name[name.rpartition(".")[0]], graph
                    )
                    value.copy_(torch.from_numpy(own))
                if self.stage:
                    dist.broadcast(value, dist.get_global_rank(self.stage.group, number), self.stage.group)
                arrays[name] = value.cpu().numpy()
        return {name: arrays[name] for name in graph.weights()}

    def n_copies(self, parameter: torch.Tensor) -> int:
        """See ShardedTrainer. A table of two stages is on twice as many ranks."""
        own = tensors(self.module, self.graph)
        stages_with_it = [
            dist.get_world_size(group) for table, group in self.shared if own[table] is parameter
        ]
        return super().n_copies(parameter) * max(stages_with_it, default=1)

    def _step(self) -> None:
        for table, group in self.shared:
            gradient = tensors(self.module, self.graph)[table].grad
            dist.all_reduce(gradient.to_local() if isinstance(gradient, DTensor) else gradient, group=group)
        super()._step()
