"""DistributedDataParallel on heterogeneous ranks, with samples of a step in proportion to each rank's share.

DDP averages the gradients of ranks. A rank's loss is weighted by its number of samples, so that the average
is the gradient of the mean loss over all samples of the step. Batch normalization uses only the samples of
its rank, as in every framework.
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
from ranks.worker.epoch_timer import EpochSums, EpochTimer
from ranks.worker.trainer import Trainer

N_ROUNDS = 2  # The second measurement uses the shares that result from the first.
N_WARM_UP_STEPS = 2  # per round
N_TIMED_STEPS = 7  # per round


def trainer(context: Context) -> Trainer:
    """Return a trainer that divides samples among heterogeneous ranks, and weights losses by samples.

    With `shares: measured`, it first measures the speed of each rank.
    """
    import torch

    from ranks.libraries.pytorch.device import synchronize
    from ranks.libraries.pytorch.optimizer import make_optimizer
    from ranks.libraries.pytorch_ddp import DDPTrainer

    class HybridTrainer(DDPTrainer):
        def distribute(self) -> None:
            self._divide()
            self.weight = context.sample_counts[context.rank] * context.ranks / context.step_samples
            mean = self.loss
            self.loss = lambda logits, labels: self.weight * mean(logits, labels)
            super().distribute()

        def train_epoch(self, epoch: int, timer: EpochTimer) -> EpochSums:
            sums = super().train_epoch(epoch, timer)
            samples = context.spec["steps"] * context.sample_counts[context.rank]
            return EpochSums(sums.loss_sum / self.weight, sums.correct, samples)

        def _divide(self) -> None:
            """Set the number of samples of each rank from the level of `shares`; collective."""
            shares = context.levels["shares"]
            if shares == "equal":
                return
            n_samples, fewest, speeds = context.step_samples, context.graph.fewest_samples, None
            if shares != "measured":
                rank_shares = [float(share) for share in shares.split("/")]
                context.divide(sampling.divide_step(n_samples, rank_shares, fewest))
            else:
                context.phases.enter("speeds")
                for _ in range(N_ROUNDS):
                    speeds = context.group.all_gather(context.sample_counts[context.rank] / self._step_s())
                    context.divide(sampling.divide_step(n_samples, speeds, fewest))
                context.phases.enter("join")
            self.shares = [
                {"samples": samples, "samples_s": speeds[rank] if speeds else None}
                for rank, samples in enumerate(context.sample_counts)
            ]

        def _step_s(self) -> float:
            """Return this rank's median step time without all-reduce, in s; all ranks measure at once.

            It trains a copy of the model, and restores the random state and the peak of device memory, so
            that the run's training is unaffected.
            """
            module = copy.deepcopy(self.module).train()
            optimizer = make_optimizer(module, context.graph, context.levels, context.learning_rate(0))
            times = []
            context.group.barrier()
            with contextlib.closing(self._all_batches()) as batches:
                for _ in range(N_WARM_UP_STEPS + N_TIMED_STEPS):
                    started = time.monotonic()
                    images, labels = next(batches)
                    with self.autocast():
                        loss = self.loss(module(images), labels)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    synchronize(self.torch_device)
                    times.append(time.monotonic() - started)
            torch.manual_seed(context.spec["seed"] + context.rank)  # Dropout draws from it.
            if self.torch_device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.torch_device)
            return statistics.median(times[N_WARM_UP_STEPS:])

        def _all_batches(self) -> Generator[tuple[Any, Any]]:
            """Yield this rank's batches, epoch after epoch."""
            for epoch in itertools.count(1):
                yield from self._batches(epoch)

    return HybridTrainer(context)


def collectives(context: Context) -> Collectives:
    """Return collectives by the process group that carries DDP's buckets."""
    from ranks.libraries.pytorch.collectives import TorchDistributed

    return TorchDistributed(context)
