"""DistributedDataParallel (Li et al., VLDB 2020) over what carries gradients: the trainer and the sums of its frameworks."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from runs.libraries.pytorch import PyTorchReducer, PyTorchTrainer, join
from runs.worker.context import Context


class DDPTrainer(PyTorchTrainer):
    """A trainer whose model is wrapped in DDP; `no_sync` keeps the batches of a group from being exchanged one by one."""

    def distribute(self) -> None:
        """See PyTorchTrainer."""
        self.transport = join(self.context)
        on_gpu = self.torch_device.type == "cuda"
        # What ranks keep of their batches is averaged when they validate, in every framework (Trainer.evaluate).
        self.ddp = DistributedDataParallel(
            self.module, device_ids=[self.torch_device] if on_gpu else None, broadcast_buffers=False
        )
        if self.context.phases.on:
            self.ddp.register_comm_hook(None, self._marked)
        self.model = self.ddp

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """See PyTorchTrainer."""
        return contextlib.nullcontext() if last else self.ddp.no_sync()

    def _marked(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DDP does with a bucket anyway, in a traced run; with the last one every gradient is computed."""
        end = self.context.phases.begin()
        if bucket.is_last():
            self.context.phases.enter("wait")

        def ended(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            end()
            return future.value()

        return allreduce_hook(state, bucket).then(ended)


class DDPReducer(PyTorchReducer):
    """Sums by the process group that carries DDP's buckets."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.transport = join(context)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """See PyTorchReducer."""
        dist.all_reduce(tensor)
