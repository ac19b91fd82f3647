"""Collectives of a framework's own library, which the adapter of a distributed framework provides.

`collectives` in framework.yaml lists those that a framework supports (models/collectives.py). Messages are
float32, and n is the number of ranks:

                     loaded         result
    all_reduce       [elements]     [elements]      the sum over ranks
    all_gather       [elements / n] [elements]      the shares of all ranks, in the order of ranks
    reduce_scatter   [elements]     [elements / n]  this rank's share of the sum
    all_to_all       [elements]     [elements]      this rank's share of all messages, in the order of ranks
    point_to_point   [elements]     [elements]      the previous rank's message; rank 0 gets the last rank's
"""

import abc

import numpy as np


class Collectives(abc.ABC):
    """Communicate arrays between all ranks as the framework's training does.

    Every method except `result` is collective.
    """

    #: transport of the messages between ranks, named as in TrainingProgram.transport
    transport = "none"
    #: name of the device whose memory holds the messages, as in TrainingProgram.device
    device = "cpu"

    @abc.abstractmethod
    def load(self, values: np.ndarray) -> None:
        """Copy this rank's message, float32, to the device."""

    @abc.abstractmethod
    def do(self, collective: str) -> None:
        """Run this collective once on the loaded message, and return when the device is idle.

        Sums can be computed in place: the result of a second call without a new `load` is undefined.
        """

    @abc.abstractmethod
    def result(self) -> np.ndarray:
        """Return the result of the last `do`, float32."""
