"""Train with DistributedDataParallel (Li et al., VLDB 2020)."""

import contextlib
import inspect
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from models.precision import BF16
from ranks.libraries.pytorch.collectives import join
from ranks.libraries.pytorch.trainer import PyTorchTrainer
from ranks.worker.phases import End, Untraced

# PyTorch 2.13 has renamed the option.
BUFFERS_OPTION = "forward_sync_buffers"
if BUFFERS_OPTION not in inspect.signature(DistributedDataParallel).parameters:
    BUFFERS_OPTION = "broadcast_buffers"


class MarkedGroup(dist.ProcessGroup):
    """A process group for DDP in a traced run, which forwards its calls and marks the all-reduces.

    A communication hook could mark them too, but with a hook DDP divides gradients in a separate pass.
    """

    def __init__(self, inner: dist.ProcessGroup, phases: Untraced) -> None:
        super().__init__(inner.rank(), inner.size())
        self._inner, self._phases = inner, phases
        self._on_processor = dist.get_backend(inner) == "gloo"
        self._handed_over: Any = None
        self._ends: list[End] = []

    def getBackendName(self) -> str:  # noqa: N802 (PyTorch's name)
        """See ProcessGroup. If it were `gloo` or `nccl`, DDP would request a backend from this group."""
        return "marked"

    def allreduce(self, *arguments: Any) -> dist.Work:
        """See ProcessGroup."""
        self._handed_over = self._phases.stamp()
        end = self._phases.begin()
        self._ends.append(end)
        work = self._inner.allreduce(*arguments)
        # With Gloo, a CPU thread calls back when an all-reduce is done; with NCCL, the callback's stream has
        # the time.
        work.get_future().add_done_callback(lambda _: end(time.monotonic() if self._on_processor else None))
        return work

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Mark a backward pass and the wait at its end, which begins with the last all-reduce.

        All all-reduces are done when the backward pass returns, although their callbacks can run later.
        """
        yield
        self._phases.enter("wait", at=self._handed_over)
        while self._ends:
            self._ends.pop()()

    def allgather(self, *arguments: Any) -> dist.Work:
        """See ProcessGroup."""
        return self._inner.allgather(*arguments)

    def broadcast(self, *arguments: Any) -> dist.Work:
        """See ProcessGroup."""
        return self._inner.broadcast(*arguments)


def sum_in_bfloat16(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Return the mean of a bucket over all ranks, sent as bfloat16 by PyTorch's hook.

    DDP refuses that hook by its name without NCCL, although Gloo sums bfloat16, too.
    """
    return bf16_compress_hook(group, bucket)


class DDPTrainer(PyTorchTrainer):
    """A trainer whose model is wrapped in DDP.

    `no_sync` suppresses all-reduces before the last batch of a group.
    """

    def distribute(self) -> None:
        """Wrap `model` and `optimizer` so that optimizer steps average gradients over ranks."""
        self.transport = join(self.context)
        on_gpu, phases = self.torch_device.type == "cuda", self.context.phases
        self.group = MarkedGroup(dist.group.WORLD, phases) if phases.is_traced else None
        # static_graph stays off: it saves time only if a step leaves parameters unused, which none does, and
        # no_sync fails with it (https://github.com/pytorch/pytorch/issues/143580).
        # Running statistics are averaged at validation, in every framework (Trainer.evaluate).
        self.ddp = DistributedDataParallel(
            self.module,
            device_ids=[self.torch_device] if on_gpu else None,
            process_group=self.group,
            **{BUFFERS_OPTION: False},
            gradient_as_bucket_view=True,
        )
        if self.context.levels["reduce_dtype"] == BF16 and self.weight_dtype == torch.float32:
            self.ddp.register_comm_hook(self.group, sum_in_bfloat16)
        self.model = self.ddp

    def settings(self) -> dict[str, str]:
        """Return the settings of this rank by name, after the last epoch."""
        first, largest = dist._DEFAULT_FIRST_BUCKET_BYTES / 2**20, self.ddp.bucket_bytes_cap / 2**20
        return super().settings() | {
            "gradient messages": f"buckets of up to {largest:g} MiB, the first of {first:g} MiB",
            "gradients": "views of buckets" if self.ddp.gradient_as_bucket_view else "copied to buckets",
            "static graph": "yes" if self.ddp.static_graph else "no",
        }

    def gradient_sync(self, is_last_batch: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context manager of one batch's forward and backward pass."""
        if not is_last_batch:
            return self.ddp.no_sync()
        return contextlib.nullcontext() if self.group is None else self.group.backward()
