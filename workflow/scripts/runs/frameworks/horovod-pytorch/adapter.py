"""Horovod with PyTorch (Sergeev & Del Balso 2018): gradients are all-reduced by a background thread as they become ready."""

from runs.worker.context import Context
from runs.worker.reducer import Reducer
from runs.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """This rank's place, for hvd.init()."""
    from runs.libraries.horovod import placed

    return placed(context)


def trainer(context: Context) -> Trainer:
    """A trainer whose optimizer is Horovod's: it adds up `backward_passes_per_step` batches, then averages over ranks."""
    import horovod.torch as hvd

    from runs.libraries.horovod import transport
    from runs.libraries.pytorch import PyTorchTrainer

    class HorovodTrainer(PyTorchTrainer):
        def distribute(self) -> None:
            hvd.init()
            self.transport = transport(context, hvd)
            # Horovod adds up the passes of a group; the loop has divided each by their number already.
            # A shorter last group is flushed by step() itself, which reduces what has come so far.
            self.optimizer = hvd.DistributedOptimizer(
                self.optimizer,
                named_parameters=self.module.named_parameters(),
                backward_passes_per_step=context.levels["sync_every"],
            )

    return HorovodTrainer(context)


def all_reducer(context: Context) -> Reducer:
    """Sums by Horovod's background thread."""
    import horovod.torch as hvd
    import torch

    from runs.libraries.horovod import transport
    from runs.libraries.pytorch import PyTorchReducer

    class HorovodReducer(PyTorchReducer):
        def __init__(self) -> None:
            super().__init__(context)
            hvd.init()
            self.transport = transport(context, hvd)

        def all_reduce(self, tensor: torch.Tensor) -> None:
            hvd.allreduce_(tensor, op=hvd.Sum, name=f"sweep.{tensor.numel()}")

    return HorovodReducer()
