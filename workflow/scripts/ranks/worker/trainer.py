"""Base classes of what an adapter's `trainer` returns.

A library whose training step can be called has Ringside's loop over epochs (`Trainer`). A program with a loop
of its own, such as LBANN or a user's command, is a `TrainingProgram`.
"""

import abc
import resource
from typing import Any

import numpy as np

from ranks.worker.context import Context
from ranks.worker.epoch_timer import EpochSums, EpochTimer
from ranks.worker.process import versions

# Values of settings that several libraries share.
ON_DEMAND = "each batch is read when it is needed"
UNFUSED = "two matrix products and a softmax"
# What the backward pass recomputes, by the level of checkpointing.
RECOMPUTED = {"blocks": "blocks are recomputed", "selective": "blocks are recomputed except products"}
TIMED = "the fastest of those timed in the first steps"
HEURISTIC = "by heuristics"
NONE = "none"
CLIP_EPSILON = 1e-6  # added to the norm that clips gradients, as in torch.nn.utils.clip_grad_norm_


class TrainingProgram(abc.ABC):
    """Training on one rank by a program with any loop over epochs."""

    #: transport of the gradients between ranks, for the record
    transport = "none"
    #: name of the device that trains, for the record
    device = "cpu"
    #: samples of each rank in a step and its speed (record.json, measured.shares), on heterogeneous ranks
    shares: list[dict[str, Any]] | None = None

    def __init__(self, context: Context) -> None:
        self.context = context

    @abc.abstractmethod
    def train(self, timer: EpochTimer) -> None:
        """Train all epochs, and report each to `timer`."""

    def weights_finite(self) -> bool | None:
        """Return whether all weights are finite; None if the framework does not expose them."""
        return None

    def dropped_token_shares(self) -> dict[str, float]:
        """Return the share of choices that experts dropped in training, by operator (Builder.experts)."""
        return {}

    def library_version(self) -> str:
        """Return names and versions of the libraries that train."""
        return versions(self.context.rank_input["modules"])

    def program_report(self) -> dict[str, Any] | None:
        """Return what only ranks can report (`measured.program_report` in record.json), if anything.

        Such reports are what a program with its own loop prints, and the size of a user's PyTorch module.
        """
        return None

    def settings(self) -> dict[str, str]:
        """Return the settings of this rank by name, after the last epoch (a hook).

        Values are what the library reports, or what was requested if it reports nothing. Trainers that extend
        it add entries to those of their base class: plain words as names, such as `optimizer
        implementation`, and as values what users of the library write, such as `torch.optim.Adam, fused`.
        A name means the same in all libraries, and libraries that do the same have the same value.
        """
        return {}

    def memory_peak_bytes(self) -> int:
        """Return the peak memory of this rank."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def device_memory_peak_bytes(self) -> int | None:
        """Return the peak device memory of this rank; None if the library does not report it."""
        return None


class Trainer(TrainingProgram):
    """Train one replica of the model on one rank, with Ringside's loop over epochs."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.device_memory_peaks: list[int | None] = []  # one of each epoch, read before its validation

    def train(self, timer: EpochTimer) -> None:
        """Train all epochs."""
        for epoch in range(1, self.context.levels["epochs"] + 1):
            self.open_epoch(timer)
            self.close_epoch(timer, self.train_epoch(epoch, timer))

    def open_epoch(self, timer: EpochTimer) -> None:
        """Open the next epoch, and restart the peak of device memory at the memory that training keeps."""
        self.reset_device_memory_peak()
        timer.open_epoch()

    def close_epoch(self, timer: EpochTimer, trained: EpochSums) -> None:
        """Close the epoch, record its peak of device memory, and validate."""

        def validate() -> EpochSums:
            self.device_memory_peaks.append(self.read_device_memory_peak())
            return self.evaluate()

        timer.close_epoch(trained, validate)

    def reset_device_memory_peak(self) -> None:
        """Restart the peak of device memory at its present use, if the library can (a hook)."""

    def read_device_memory_peak(self) -> int | None:
        """Return the peak of device memory in bytes, None if the library does not report it (a hook)."""
        return None

    def device_memory_peak_bytes(self) -> int | None:
        """Return the peak device memory of training in the timed epochs, without validation."""
        timed = self.device_memory_peaks[self.context.levels["warmup_epochs"] :]
        return max((peak for peak in timed if peak is not None), default=None)

    def evaluate(self) -> EpochSums:
        """Evaluate this rank's share of the validation split.

        First, running statistics are replaced by their averages over all ranks, weighted by samples. During
        training, each rank keeps its own in every library, so that no library spends time on sending them.
        """
        context = self.context
        has_statistics = context.graph.statistics or context.graph.module
        if context.spec["replicas"] > 1 and has_statistics:
            mine = self.statistics()
            everyones = context.group.all_gather({name: value.tolist() for name, value in mine.items()})
            weights = [context.sample_counts[context.mesh.replica(rank)] for rank in range(context.ranks)]
            averages = {}
            for name in mine:  # Other stages of a pipeline have other statistics.
                holders = [rank for rank, statistics in enumerate(everyones) if name in statistics]
                values = np.array([everyones[rank][name] for rank in holders], np.float32)
                averages[name] = np.average(values, axis=0, weights=[weights[rank] for rank in holders])
            self.set_statistics(averages)
        return self.validate()

    def dropped_token_shares(self) -> dict[str, float]:
        """Return the share of choices that experts dropped in training, by operator (Builder.experts).

        An operator's load sums the shares of each batch, the dropped share last.
        """
        if not any(name.endswith(".load") for name in self.context.graph.statistics):
            return {}
        loads = {name: load for name, load in self.statistics().items() if name.endswith(".load")}
        return {name.removesuffix(".load"): float(load[-1] / load.sum()) for name, load in loads.items()}

    def weights_finite(self) -> bool:
        """Return whether all weights are finite.

        A finite loss proves nothing: in some libraries the ReLU of NaN is 0.
        """
        return all(np.isfinite(weight).all() for weight in self.weights().values())

    @abc.abstractmethod
    def train_epoch(self, epoch: int, timer: EpochTimer) -> EpochSums:
        """Train this rank's batches of `epoch`; the device is idle on return."""

    @abc.abstractmethod
    def validate(self) -> EpochSums:
        """Evaluate this rank's share of the validation split."""

    @abc.abstractmethod
    def weights(self) -> dict[str, np.ndarray]:
        """Return all weights of the model in the canonical layout (models/graph.py).

        All ranks call this, since the weights may be assembled from several ranks.
        """

    @abc.abstractmethod
    def statistics(self) -> dict[str, np.ndarray]:
        """Return the untrained weights of this rank or pipeline stage, such as running statistics."""

    @abc.abstractmethod
    def set_statistics(self, statistics: dict[str, np.ndarray]) -> None:
        """Replace the untrained weights."""
