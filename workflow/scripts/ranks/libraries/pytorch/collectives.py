"""Create PyTorch's group of ranks, and run collectives for benchmarks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ranks.libraries.pytorch.device import configure_library, device_name, synchronize
from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.group import free_port


def join(context: Context) -> str:
    """Create PyTorch's group of all ranks, and return its backend.

    NCCL gets the rank's device, so that it creates its communicator here and not in the first step, and a
    rank with a wrong device fails at once.
    """
    backend = "nccl" if context.spec["device"] == "cuda" else "gloo"
    address, port = context.group.broadcast([context.group.address, free_port(context.group.address)])
    store = dist.TCPStore(address, port, context.ranks, context.rank == 0, wait_for_workers=False)
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else None
    dist.init_process_group(
        backend, store=store, rank=context.rank, world_size=context.ranks, device_id=device
    )
    return backend


class PyTorchCollectives(Collectives):
    """Collectives of PyTorch tensors.

    Adapters join the ranks and define a method for each collective, with its name: loaded tensor -> result.
    """

    def __init__(self, context: Context) -> None:
        self.torch_device = configure_library(context)
        self.device = device_name(self.torch_device)
        self._loaded = self._result = torch.empty(0)

    def load(self, values: np.ndarray) -> None:
        """Copy this rank's message, float32, to the device."""
        self._loaded = torch.tensor(values, device=self.torch_device)

    def do(self, collective: str) -> None:
        """Run this collective once on the loaded message, and return when the device is idle."""
        self._result = getattr(self, collective)(self._loaded)
        synchronize(self.torch_device)

    def result(self) -> np.ndarray:
        """Return the result of the last `do`, float32."""
        return self._result.cpu().numpy()


class TorchDistributed(PyTorchCollectives):
    """Collectives of all ranks by torch.distributed, or by another `library` with the same functions.

    `start` creates the library's group and returns its transport. Results of the same size share a buffer.
    """

    def __init__(self, context: Context, start: Callable[[Context], str] = join, library: Any = dist) -> None:
        super().__init__(context)
        self.transport, self._library = start(context), library
        self._ranks, self._rank = context.ranks, context.rank
        self._buffer = torch.empty(0)

    def all_reduce(self, summand: torch.Tensor) -> torch.Tensor:
        """Sum in place."""
        self._library.all_reduce(summand)
        return summand

    def all_gather(self, share: torch.Tensor) -> torch.Tensor:
        """Gather shares as FSDP gathers parameters."""
        self._library.all_gather_into_tensor(self._received(len(share) * self._ranks), share)
        return self._buffer

    def reduce_scatter(self, summand: torch.Tensor) -> torch.Tensor:
        """Reduce and scatter a sum as FSDP does with gradients."""
        self._library.reduce_scatter_tensor(self._received(len(summand) // self._ranks), summand)
        return self._buffer

    def all_to_all(self, shares: torch.Tensor) -> torch.Tensor:
        """Send and receive equal shares."""
        self._library.all_to_all_single(self._received(len(shares)), shares)
        return self._buffer

    def point_to_point(self, message: torch.Tensor) -> torch.Tensor:
        """Send and receive at once, as the ranks of a pipeline do."""
        after, before = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        calls = [
            dist.P2POp(dist.isend, message, after),
            dist.P2POp(dist.irecv, self._received(len(message)), before),
        ]
        for call in dist.batch_isend_irecv(calls):
            call.wait()
        return self._buffer

    def _received(self, elements: int) -> torch.Tensor:
        if len(self._buffer) != elements:
            self._buffer = torch.empty(elements, device=self.torch_device)
        return self._buffer
