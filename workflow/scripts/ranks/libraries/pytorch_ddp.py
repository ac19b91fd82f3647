"""DistributedDataParallel (Li et al., VLDB 2020) over any transport: the trainer of its frameworks."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ranks.libraries.pytorch import PyTorchTrainer, join
from ranks.worker.phases import End, Untraced


class MarkedGroup(dist.ProcessGroup):
    """A process group for DDP in a traced run, which forwards its calls and marks sums of gradients.

    A communication hook would tell as much, but DDP divides gradients in a pass of its own where it has one.
    """

    def __init__(self, carries: dist.ProcessGroup, phases: Untraced) -> None:
        super().__init__(carries.rank(), carries.size())
        self._carries, self._phases = carries, phases
        self._on_processor = dist.get_backend(carries) == "gloo"
        self._handed_over: Any = None
        self._ends: list[End] = []

    def getBackendName(self) -> str:  # noqa: N802 (PyTorch's name)
        """See ProcessGroup. Of gloo and nccl DDP asks for a backend of this group's own."""
        return "marked"

    def allreduce(self, *arguments: Any) -> dist.Work:
        """See ProcessGroup."""
        self._handed_over = self._phases.stamp()
        end = self._phases.begin()
        self._ends.append(end)
        work = self._carries.allreduce(*arguments)
        # What Gloo has carried a thread of the processor says; of NCCL's, the stream that the callback is
        # called on.
        work.get_future().add_done_callback(lambda _: end(time.monotonic() if self._on_processor else None))
        return work

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Mark a backward pass: it waits from the last sum on, and all sums are done when it returns.

        The thread that has to say that a sum is there may say so later.
        """
        yield
        self._phases.enter("wait", at=self._handed_over)
        while self._ends:
            self._ends.pop()()

    def allgather(self, *arguments: Any) -> dist.Work:
        """See ProcessGroup."""
        return self._carries.allgather(*arguments)

    def broadcast(self, *arguments: Any) -> dist.Work:
        """See ProcessGroup."""
        return self._carries.broadcast(*arguments)


class DDPTrainer(PyTorchTrainer):
    """A trainer whose model is wrapped in DDP.

    `no_sync` suppresses the all-reduce of all but the last batch of a group.
    """

    def distribute(self) -> None:
        """See PyTorchTrainer."""
        self.transport = join(self.context)
        on_gpu, phases = self.torch_device.type == "cuda", self.context.phases
        self.group = MarkedGroup(dist.group.WORLD, phases) if phases.is_traced else None
        # What ranks keep of their batches is averaged when they validate, in every framework
        # (Trainer.evaluate).
        self.ddp = DistributedDataParallel(
            self.module,
            device_ids=[self.torch_device] if on_gpu else None,
            process_group=self.group,
            broadcast_buffers=False,
        )
        self.model = self.ddp

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """See PyTorchTrainer."""
        if not last:
            return self.ddp.no_sync()
        return contextlib.nullcontext() if self.group is None else self.group.backward()
