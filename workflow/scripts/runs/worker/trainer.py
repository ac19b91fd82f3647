"""What an adapter gives: a trainer. The loop over epochs is here, once for all frameworks."""

import abc

import numpy as np

from runs.worker.context import Context
from runs.worker.meter import Meter, Seen


class Trainer(abc.ABC):
    """Trains one replica of the model on one rank."""

    #: what carries the gradients between ranks, as it goes into the record
    transport = "none"
    #: the device that trains, as it goes into the record
    device = "cpu"

    def __init__(self, context: Context) -> None:
        self.context = context

    def train(self, meter: Meter) -> None:
        """Train all epochs, each opened and closed by `meter`."""
        for epoch in range(1, self.context.levels["epochs"] + 1):
            meter.open_epoch()
            seen = self.train_epoch(epoch, meter)
            meter.close_epoch(seen, self.validate)

    @abc.abstractmethod
    def train_epoch(self, epoch: int, meter: Meter) -> Seen:
        """Train this rank's batches of `epoch`; the device is idle on return."""

    @abc.abstractmethod
    def validate(self) -> Seen:
        """Evaluate this rank's share of the validation split."""

    @abc.abstractmethod
    def weights(self) -> list[np.ndarray]:
        """The weights as they are now, in the canonical layout (runs/worker/model.py)."""

    def device_memory_peak_bytes(self) -> int | None:
        """Most memory that the device held for this rank; None where the library does not tell."""
        return None
