"""FSDP2 (Zhao et al., VLDB 2023): a model sharded in units of layers, with marks for traced runs."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from models.graph import Graph
from ranks.libraries.pytorch import PyTorchTrainer, make_optimizer
from ranks.worker.context import Context
from ranks.worker.epoch_timer import EpochSums, EpochTimer

UNIT_BYTES = 25 * 2**20  # as DDP's buckets
#: functions of torch.distributed that FSDP2 calls, in PyTorch 2.6 to 2.13
FSDP_COLLECTIVES = (
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_gather_single",
    "reduce_scatter_single",
    "all_reduce",
)


def units(module: nn.Module, graph: Graph) -> Iterator[list[nn.Module]]:
    """Yield units of consecutive layers whose parameters are gathered together, of UNIT_BYTES or more.

    Remaining layers, and a table that another layer uses, belong to the root module.
    """
    tied = {operator["of"] for operator in graph.operators if operator.kind == "tied_dense"}
    layers: list[nn.Module] = []
    size = 0
    for name, layer in module.named_children():
        own = sum(weight.nbytes for weight in layer.parameters())
        if name in tied:
            continue
        # A unit never begins with an activation, which would overwrite FSDP's output in place.
        if own and size >= UNIT_BYTES:
            yield layers
            layers, size = [], 0
        layers.append(layer)
        size += own


def mark_calls(context: Context, on_gpu: bool) -> None:
    """Mark every collective of FSDP, and the rank's waits for it.

    On CPUs a collective returns when it is done. On an accelerator it is marked on the stream that runs it;
    the rank waits when its own stream waits for an event.
    """
    phases = context.phases

    def marked(collective: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            end, go_on = phases.begin(), None if on_gpu else phases.waits()
            work = collective(*args, **named)
            end()
            if go_on:
                go_on()
            return work

        return called

    for name in FSDP_COLLECTIVES:
        if hasattr(dist, name):
            setattr(dist, name, marked(getattr(dist, name)))
    if on_gpu:
        wait_event, own = torch.cuda.Stream.wait_event, torch.cuda.default_stream()

        def wait(stream: torch.cuda.Stream, event: Any) -> None:
            go_on = phases.waits() if stream == own else None
            wait_event(stream, event)
            if go_on:
                go_on()

        torch.cuda.Stream.wait_event = wait


class ShardedTrainer(PyTorchTrainer):
    """A trainer whose model is sharded, once `shard` was called in `distribute`."""

    #: whether parameters are freed after the forward pass, and gathered again (ZeRO stage 3, not 2)
    regathers = True
    _own: list[tuple[DTensor, torch.Tensor]]

    def optimize_own(self) -> None:
        """Create an optimizer of this rank's shards, once parameters are sharded.

        It gets plain tensors that share memory with the shards. Optimizers are elementwise, so the result is
        the same, without the overhead of DTensor in every operation.
        """
        self._own = []

        def part(parameter: nn.Parameter) -> torch.Tensor:
            if not isinstance(parameter, DTensor):
                return parameter
            self._own.append((parameter, parameter.detach().to_local().requires_grad_()))
            return self._own[-1][1]

        levels, rate = self.context.levels, self.context.learning_rate(0)
        self.optimizer = make_optimizer(self.module, self.graph, levels, rate, part)

    def update(self) -> None:
        """See PyTorchTrainer."""
        for parameter, own in self._own:
            if parameter.grad is not None:
                own.grad, parameter.grad = parameter.grad.to_local(), None
        super().update()

    def shard(self, mesh: DeviceMesh) -> None:
        """Shard the model over a mesh of one axis, or of two, of which the outer one replicates.

        It replaces all parameters by this rank's shards.
        """
        for layers in units(self.module, self.graph):
            fully_shard(layers, mesh=mesh)
        fully_shard(self.module, mesh=mesh)

    @property
    def sharded(self) -> list[FSDPModule]:
        """Return the units, and the root module."""
        return [module for module in self.module.modules() if isinstance(module, FSDPModule)]

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """See PyTorchTrainer."""
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)
            self.module.set_reshard_after_backward(last)
        return contextlib.nullcontext()

    def train_epoch(self, epoch: int, timer: EpochTimer) -> EpochSums:
        """See Trainer."""
        for unit in self.sharded:
            unit.set_reshard_after_forward(self.regathers and unit is not self.module, recurse=False)
            unit.reshard()
        return super().train_epoch(epoch, timer)

    def settings(self) -> dict[str, str]:
        """See Training."""
        settings = super().settings()
        if self.sharded:
            state = self.module._get_fsdp_state()
            dtype = state._mp_policy.param_dtype
            settings["sharding units"] = f"{len(self.sharded) - 1} and the root module"
            if dtype is not None:
                settings["mixed precision"] = f"MixedPrecisionPolicy, {str(dtype).removeprefix('torch.')}"
        return settings

    def validate(self) -> EpochSums:
        """Validate with all parameters on every rank, since ranks have different numbers of batches."""
        for unit in self.sharded:
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()
        return super().validate()
