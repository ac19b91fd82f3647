"""What an adapter gives: a trainer. The loop over epochs is here, once for all frameworks that let us have one."""

import abc
import resource
from typing import Any

import numpy as np

from ranks.worker.context import Context
from ranks.worker.meter import Meter, Seen
from ranks.worker.process import versions


class Training(abc.ABC):
    """What a run needs to know of how one rank trains, whoever has the loop over epochs."""

    #: what carries the gradients between ranks, as it goes into the record
    transport = "none"
    #: the device that trains, as it goes into the record
    device = "cpu"
    #: samples of each rank in a step and its measured speed (record.json, measured.shares), where these are unlike
    shares: list[dict[str, Any]] | None = None

    def __init__(self, context: Context) -> None:
        self.context = context

    @abc.abstractmethod
    def train(self, meter: Meter) -> None:
        """Train all epochs, and let `meter` know of each."""

    def weights_finite(self) -> bool | None:
        """Whether all weights are numbers; None where the framework does not show them."""
        return None

    def library_version(self) -> str:
        """Names and versions of what trains."""
        return versions(self.context.job["modules"])

    def told(self) -> dict[str, Any] | None:
        """What a program that trains by itself tells beside (record.json, measured.told)."""
        return None

    def memory_peak_bytes(self) -> int:
        """Most memory that this rank held."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def device_memory_peak_bytes(self) -> int | None:
        """Most memory that the device held for this rank; None where the library does not tell."""
        return None


class Trainer(Training):
    """Trains one replica of the model on one rank, in a loop of ours."""

    def train(self, meter: Meter) -> None:
        """Train all epochs, each opened and closed by `meter`."""
        for epoch in range(1, self.context.levels["epochs"] + 1):
            meter.open_epoch()
            seen = self.train_epoch(epoch, meter)
            meter.close_epoch(seen, self.evaluate)

    def evaluate(self) -> Seen:
        """Evaluate this rank's share of the validation split, with the running statistics of all ranks, averaged by samples.

        While they train, ranks keep batch statistics of their own: no library exchanges them, so that none pays for it.
        """
        context = self.context
        if context.spec["replicas"] > 1 and context.graph.statistics:
            mine = self.statistics()
            everyones = context.group.all_gather({name: value.tolist() for name, value in mine.items()})
            weights = [context.samples[context.mesh.replica(rank)] for rank in range(context.ranks)]
            averages = {}
            for name in mine:  # which other stages of a pipeline do not have
                having = [rank for rank, theirs in enumerate(everyones) if name in theirs]
                values = np.array([everyones[rank][name] for rank in having], np.float32)
                averages[name] = np.average(values, axis=0, weights=[weights[rank] for rank in having])
            self.set_statistics(averages)
        return self.validate()

    def weights_finite(self) -> bool:
        """See Training. Losses alone do not tell: in some libraries the relu of NaN is 0."""
        return all(np.isfinite(weight).all() for weight in self.weights().values())

    @abc.abstractmethod
    def train_epoch(self, epoch: int, meter: Meter) -> Seen:
        """Train this rank's batches of `epoch`; the device is idle on return."""

    @abc.abstractmethod
    def validate(self) -> Seen:
        """Evaluate this rank's share of the validation split."""

    @abc.abstractmethod
    def weights(self) -> dict[str, np.ndarray]:
        """Return all weights of the model in the canonical layout (models/graph.py).

        As this rank has them now, or put together of what ranks have: called by all ranks.
        """

    @abc.abstractmethod
    def statistics(self) -> dict[str, np.ndarray]:
        """The weights that are not trained, this rank's own; of a pipeline, those of its stage."""

    @abc.abstractmethod
    def set_statistics(self, statistics: dict[str, np.ndarray]) -> None:
        """Put others in their place."""
