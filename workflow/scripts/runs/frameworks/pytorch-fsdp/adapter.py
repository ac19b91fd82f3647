"""PyTorch FSDP2 (Zhao et al., VLDB 2023): every rank keeps a share of parameters, gradients and optimizer state (ZeRO, stage 3).

Before a unit of layers is used its parameters are gathered; its gradients are reduced to the shares (reduce-scatter).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from runs.worker.collectives import Collectives
from runs.worker.context import Context
from runs.worker.trainer import Trainer

UNIT_BYTES = 25 * 2**20  # what DDP puts into a bucket
CALLED = (  # by FSDP2, of torch.distributed, to gather and to reduce to shares: their names in 2.6, and in 2.13
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_gather_single",
    "reduce_scatter_single",
)


def environment(context: Context) -> dict[str, str]:
    """Gloo on the site's interface."""
    return {"GLOO_SOCKET_IFNAME": context.spec["interface"]}


def trainer(context: Context) -> Trainer:
    """A trainer whose model is sharded, layer after layer in units of 25 MiB; what is left at the end is the last unit."""
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    from runs.libraries.pytorch import PyTorchTrainer, join, make_optimizer
    from runs.worker.meter import Meter, Seen

    def units(module: nn.Module) -> Iterator[list[nn.Module]]:
        layers: list[nn.Module] = []
        size = 0
        for layer in module.children():
            own = sum(weight.nbytes for weight in layer.parameters())
            if own and size >= UNIT_BYTES:  # not in front of an activation, which would overwrite what FSDP hands over
                yield layers
                layers, size = [], 0
            layers.append(layer)
            size += own

    class FSDPTrainer(PyTorchTrainer):
        def distribute(self) -> None:
            self.transport = join(context)
            mesh = init_device_mesh(self.torch_device.type, (context.ranks,))
            for layers in units(self.module):
                fully_shard(layers, mesh=mesh)
            fully_shard(self.module, mesh=mesh)
            # The parameters are others now: this rank's shares.
            self.optimizer = make_optimizer(self.module, context.graph, context.levels, context.learning_rate(0))
            self.sharded = [module for module in self.module.modules() if isinstance(module, FSDPModule)]
            if context.phases.on:
                mark_calls(context, self.torch_device.type == "cuda")

        def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
            self.module.set_requires_gradient_sync(last)
            self.module.set_reshard_after_backward(last)
            return contextlib.nullcontext()

        def train_epoch(self, epoch: int, meter: Meter) -> Seen:
            for unit in self.sharded:
                unit.set_reshard_after_forward(unit is not self.module, recurse=False)
                unit.reshard()
            return super().train_epoch(epoch, meter)

        def validate(self) -> Seen:
            """With all parameters on every rank, where they stay: ranks have unlike numbers of batches, and exchange nothing."""
            for unit in self.sharded:
                unit.set_reshard_after_forward(False, recurse=False)
                unit.unshard()
            return super().validate()

    return FSDPTrainer(context)


def mark_calls(context: Context, on_gpu: bool) -> None:
    """Mark every call by which FSDP gathers or reduces, and where the rank waits for it.

    On processors such a call returns when all is there. An accelerator's goes on to another stream, on which both marks are;
    the rank waits where its own stream is told to wait.
    """
    import torch
    import torch.distributed as dist

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

    for name in CALLED:
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


def collectives(context: Context) -> Collectives:
    """By the process group that carries FSDP's shares."""
    from runs.libraries.pytorch import TorchDistributed

    return TorchDistributed(context)
