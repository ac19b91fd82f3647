"""PyTorch DistributedDataParallel (Li et al., VLDB 2020): gradients are all-reduced in buckets during backward."""

import contextlib

from runs.worker.context import Context
from runs.worker.reducer import Reducer
from runs.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Gloo on the site's interface."""
    return {"GLOO_SOCKET_IFNAME": context.spec["interface"]}


def trainer(context: Context) -> Trainer:
    """A trainer whose model is wrapped in DDP; `no_sync` keeps the batches of a group from being exchanged one by one."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    from runs.libraries.pytorch import PyTorchTrainer, join

    def marked(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DDP does with a bucket anyway, in a traced run; with the last one every gradient is computed."""
        end = context.phases.begin()
        if bucket.is_last():
            context.phases.enter("wait")

        def ended(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            end()
            return future.value()

        return allreduce_hook(state, bucket).then(ended)

    class DDPTrainer(PyTorchTrainer):
        def distribute(self) -> None:
            self.transport = join(context)
            on_gpu = self.torch_device.type == "cuda"
            # What ranks keep of their batches is averaged when they validate, in every framework (Trainer.evaluate).
            self.ddp = DistributedDataParallel(
                self.module, device_ids=[self.torch_device] if on_gpu else None, broadcast_buffers=False
            )
            if context.phases.on:
                self.ddp.register_comm_hook(None, marked)
            self.model = self.ddp

        def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext() if last else self.ddp.no_sync()

    return DDPTrainer(context)


def all_reducer(context: Context) -> Reducer:
    """Sums by the process group that carries DDP's buckets."""
    import torch
    import torch.distributed as dist

    from runs.libraries.pytorch import PyTorchReducer, join

    class DDPReducer(PyTorchReducer):
        def __init__(self) -> None:
            super().__init__(context)
            self.transport = join(context)

        def all_reduce(self, tensor: torch.Tensor) -> None:
            dist.all_reduce(tensor)

    return DDPReducer()
