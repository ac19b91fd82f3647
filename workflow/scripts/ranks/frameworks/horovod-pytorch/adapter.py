"""Horovod with PyTorch (Sergeev & Del Balso 2018).

A background thread all-reduces gradients as they become ready.
"""

import time
from typing import Any

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.phases import End, Untraced
from ranks.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Return the variables from which hvd.init() reads this rank's place."""
    from ranks.libraries.horovod import placement_variables

    return placement_variables(context)


def trainer(context: Context) -> Trainer:
    """Return a trainer with Horovod's optimizer.

    The optimizer sums the gradients of `backward_passes_per_step` batches, then averages over ranks.
    """
    import horovod.torch as hvd

    from ranks.libraries.horovod import Timeline, fusion_settings, transport
    from ranks.libraries.pytorch.trainer import PyTorchTrainer

    class HorovodTrainer(PyTorchTrainer):
        def distribute(self) -> None:
            hvd.init()
            self.transport = transport(context, hvd)
            context.phases.use_profiler(Timeline(hvd))
            # Horovod sums the gradients of a group's batches; the loop has divided each loss by their number.
            # With a shorter last group, step() itself reduces the gradients that were accumulated so far.
            self.optimizer = hvd.DistributedOptimizer(
                self.optimizer,
                named_parameters=self.module.named_parameters(),
                backward_passes_per_step=context.levels["sync_every"],
            )
            if context.phases.is_traced:
                mark_communication(context.phases, self.optimizer)

        def clip_and_update(self) -> None:
            self.optimizer.synchronize()
            with self.optimizer.skip_synchronize():
                super().clip_and_update()

        def settings(self) -> dict[str, str]:
            return super().settings() | fusion_settings()

    return HorovodTrainer(context)


def mark_communication(phases: Untraced, optimizer: Any) -> None:
    """Mark the all-reduces that Horovod's optimizer hands to the background thread, and the rank's waits.

    Horovod has no callback for a finished all-reduce. So earlier ones are polled whenever the next gradient
    is handed over, and the remaining ones are awaited in order at the end.
    """
    from horovod.torch import optimizer as module
    from horovod.torch import poll

    hand_over, wait_for, synchronize = module.allreduce_async_, module.synchronize, optimizer.synchronize
    under_way: dict[Any, End] = {}

    def handed_over(*args: Any, **named: Any) -> Any:
        for handle in list(under_way):  # The oldest is done first.
            if not poll(handle):
                break
            done(handle)
        end = phases.begin()
        handle = hand_over(*args, **named)
        under_way[handle] = end
        return handle

    def waited_for(handle: Any) -> Any:
        output = wait_for(handle)
        done(handle)
        return output

    def done(handle: Any) -> None:
        if end := under_way.pop(handle, None):
            end(time.monotonic())  # The CPU polls, also for gradients on an accelerator.

    def synchronized() -> None:
        go_on = phases.waits()
        synchronize()
        go_on()

    module.allreduce_async_, module.synchronize, optimizer.synchronize = handed_over, waited_for, synchronized


def collectives(context: Context) -> Collectives:
    """Return collectives by Horovod's background thread."""
    import horovod.torch as hvd

    from ranks.libraries.horovod import make_collectives
    from ranks.libraries.pytorch.collectives import PyTorchCollectives

    return make_collectives(PyTorchCollectives, context, hvd)
