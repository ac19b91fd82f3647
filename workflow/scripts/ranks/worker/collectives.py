"""What an adapter of a distributed framework gives beside its trainer: collectives by the framework's own library.

Which of them a framework has, its framework.yaml says (models/collectives.py). Of a collective a rank has a message of
float32, n of them as many as there are ranks:

                     loaded         result
    all_reduce       [elements]     [elements]      the sum over ranks
    all_gather       [elements / n] [elements]      the ranks' shares, one after the other
    reduce_scatter   [elements]     [elements / n]  this rank's share of the sum
    all_to_all       [elements]     [elements]      this rank's share of each rank's message, one after the other
    point_to_point   [elements]     [elements]      the message of the rank before, the last one's for the first
"""

import abc

import numpy as np


class Collectives(abc.ABC):
    """Exchanges arrays between all ranks as the framework's training does. Every method but `result` is collective."""

    #: what carries the messages between ranks, as Trainer.transport
    transport = "none"
    #: where messages lie, as Trainer.device
    device = "cpu"

    @abc.abstractmethod
    def load(self, values: np.ndarray) -> None:
        """Copy what this rank has, float32, to the device."""

    @abc.abstractmethod
    def do(self, collective: str) -> None:
        """Do the collective of this name with what was loaded, once; its result is there and the device idle on return.

        A sum may be made in place: what a second call without a new `load` sums is the library's affair.
        """

    @abc.abstractmethod
    def result(self) -> np.ndarray:
        """What the last `do` made, float32."""
