"""PyTorch FSDP2 (Zhao et al., VLDB 2023): every rank keeps a share of parameters, gradients and optimizer state (ZeRO, stage 3).

Before a unit of layers is used its parameters are gathered; its gradients are reduced to the shares (reduce-scatter).
"""

from runs.worker.context import Context
from runs.worker.reducer import Reducer
from runs.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Gloo on the site's interface."""
    return {"GLOO_SOCKET_IFNAME": context.spec["interface"]}


def trainer(context: Context) -> Trainer:
    """A trainer whose model is sharded, layer after layer in units of 25 MiB; what is left at the end is the last unit."""
    from torch.distributed.device_mesh import init_device_mesh

    from runs.libraries.pytorch import join, make_optimizer
    from runs.libraries.pytorch_sharded import ShardedTrainer, mark_calls

    class FSDPTrainer(ShardedTrainer):
        def distribute(self) -> None:
            self.transport = join(context)
            self.shard(init_device_mesh(self.torch_device.type, (context.ranks,)))
            self.optimizer = make_optimizer(self.module, context.graph, context.levels, context.learning_rate(0))
            if context.phases.on:
                mark_calls(context, self.torch_device.type == "cuda")

    return FSDPTrainer(context)


def all_reducer(context: Context) -> Reducer:
    """Sums as FSDP makes them: reduced to shares (reduce-scatter), which all gather."""
    import torch
    import torch.distributed as dist

    from runs.libraries.pytorch import PyTorchReducer, join

    class FSDPReducer(PyTorchReducer):
        def __init__(self) -> None:
            super().__init__(context)
            self.transport = join(context)

        def all_reduce(self, tensor: torch.Tensor) -> None:
            padded = torch.nn.functional.pad(tensor, (0, -len(tensor) % context.ranks))
            share = padded.new_empty(len(padded) // context.ranks)
            dist.reduce_scatter_tensor(share, padded)
            dist.all_gather_into_tensor(padded, share)
            tensor.copy_(padded[: len(tensor)])

    return FSDPReducer()
