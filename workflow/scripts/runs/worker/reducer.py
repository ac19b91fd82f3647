"""What an adapter of a distributed framework gives beside its trainer: sums over ranks by the framework's own library."""

import abc

import numpy as np


class Reducer(abc.ABC):
    """Sums arrays over all ranks as the framework's training sums gradients. Every method but `result` is collective."""

    #: what carries the sums between ranks, as Trainer.transport
    transport = "none"
    #: where the summands lie, as Trainer.device
    device = "cpu"

    @abc.abstractmethod
    def load(self, values: np.ndarray) -> None:
        """Copy this rank's summands, float32 [elements], to the device."""

    @abc.abstractmethod
    def reduce(self) -> None:
        """Sum what was loaded over all ranks, once; the sum is there and the device idle on return.

        It may be done in place: what a second call without a new `load` sums is the library's affair.
        """

    @abc.abstractmethod
    def result(self) -> np.ndarray:
        """The sum of the last `reduce`, float32 [elements]."""
