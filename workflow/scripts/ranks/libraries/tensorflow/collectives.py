"""Run collectives of TensorFlow for benchmarks."""

from typing import Any

import numpy as np
import tensorflow as tf

from ranks.libraries.tensorflow.device import configure_library
from ranks.worker.collectives import Collectives
from ranks.worker.context import Context


class TensorFlowCollectives(Collectives):
    """Collectives of tensors, in a graph for each collective and number of elements.

    Adapters join the ranks and define a method for each collective, with its name, that is traced into a
    graph: loaded tensor -> result.
    """

    def __init__(self, context: Context) -> None:
        self.device = configure_library(context)
        self._on_gpu = context.spec["device"] == "cuda"
        self._loaded: Any = None  # A tensor would initialize TensorFlow before the strategy.
        self._result: Any = None
        self._graphs: dict[str, Any] = {}

    def load(self, values: np.ndarray) -> None:
        """Copy this rank's message, float32, to the device."""
        self._loaded = tf.constant(values)

    def do(self, collective: str) -> None:
        """Run this collective once on the loaded message, and return when the device is idle."""
        if collective not in self._graphs:
            self._graphs[collective] = tf.function(getattr(self, collective), autograph=False)
        self._result = self._graphs[collective](self._loaded)
        if self._on_gpu:
            tf.test.experimental.sync_devices()

    def result(self) -> np.ndarray:
        """Return the result of the last `do`, float32."""
        return self._result.numpy()
