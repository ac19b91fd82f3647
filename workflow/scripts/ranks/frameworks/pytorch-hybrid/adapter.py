"""DistributedDataParallel whose ranks are unlike: each has as many samples of a step as its share is.

DDP averages the gradients of ranks; a rank's loss is weighted by its samples, so that the average is the
gradient of the whole block's mean loss, whatever the shares. Batch normalization sees the rank's own samples,
as in every framework.
"""

import contextlib
import copy
import itertools
import statistics
import time
from collections.abc import Generator
from typing import Any

from ranks.worker import sampling
from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.meter import Meter, Seen
from ranks.worker.trainer import Trainer

ROUNDS = 2  # of measuring: in the second, ranks have the samples that the first one gives them
WARM_UP = 2  # steps of a round that do not count
TIMED = 7


def environment(context: Context) -> dict[str, str]:
    """Return variables for Gloo on the site's interface."""
    return {"GLOO_SOCKET_IFNAME": context.spec["interface"]}


def trainer(context: Context) -> Trainer:
    """A trainer that balances samples between heterogeneous ranks.

    It measures speeds if the study asks for it, and weights gradients by samples.
    """
    import torch

    from ranks.libraries.pytorch import make_optimizer, synchronize
    from ranks.libraries.pytorch_ddp import DDPTrainer

    class HybridTrainer(DDPTrainer):
        def distribute(self) -> None:
            self._divide()
            self.weight = context.samples[context.rank] * context.ranks / sum(context.samples)
            mean = self.loss
            self.loss = lambda logits, labels: self.weight * mean(logits, labels)
            super().distribute()

        def train_epoch(self, epoch: int, meter: Meter) -> Seen:
            seen = super().train_epoch(epoch, meter)
            samples = context.spec["steps"] * context.samples[context.rank]
            return Seen(seen.loss_sum / self.weight, seen.correct, samples)

        def _divide(self) -> None:
            """Set the number of samples of each rank by the level of `shares`, equally on all ranks."""
            shares = context.levels["shares"]
            if shares == "equal":
                return
            block, fewest, speeds = sum(context.samples), context.graph.fewest_samples, None
            if shares != "measured":
                context.divide(sampling.divided(block, [float(share) for share in shares.split("/")], fewest))
            else:
                context.phases.enter("speeds")
                for _ in range(ROUNDS):
                    speeds = context.group.all_gather(context.samples[context.rank] / self._step_s())
                    context.divide(sampling.divided(block, speeds, fewest))
                context.phases.enter("join")
            self.shares = [
                {"samples": samples, "samples_s": speeds[rank] if speeds else None}
                for rank, samples in enumerate(context.samples)
            ]

        def _step_s(self) -> float:
            """Return the median time in s of a step of this rank, without all-reduce, on all ranks at once.

            It trains a copy, so that nothing of it is left.
            """
            module = copy.deepcopy(self.module).train()
            optimizer = make_optimizer(module, context.graph, context.levels, context.learning_rate(0))
            times = []
            context.group.barrier()
            with contextlib.closing(self._all_batches()) as batches:
                for _ in range(WARM_UP + TIMED):
                    started = time.monotonic()
                    images, labels = next(batches)
                    with self._precision():
                        loss = self.loss(module(images), labels)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    synchronize(self.torch_device)
                    times.append(time.monotonic() - started)
            torch.manual_seed(context.spec["seed"] + context.rank)  # of dropout
            if self.torch_device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.torch_device)
            return statistics.median(times[WARM_UP:])

        def _all_batches(self) -> Generator[tuple[Any, Any]]:
            """This rank's batches, epoch after epoch."""
            for epoch in itertools.count(1):
                yield from self._batches(epoch)

    return HybridTrainer(context)


def collectives(context: Context) -> Collectives:
    """Return collectives by the process group that carries DDP's buckets."""
    from ranks.libraries.pytorch import TorchDistributed

    return TorchDistributed(context)
