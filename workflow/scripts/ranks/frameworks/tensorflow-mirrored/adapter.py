"""TensorFlow MirroredStrategy.

One process has a replica on each of its node's devices and all-reduces gradients between them.
"""

from typing import Any

from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def environment(_context: Context) -> dict[str, str]:
    """Return variables that suppress log lines below warnings."""
    return {"TF_CPP_MIN_LOG_LEVEL": "1"}


def trainer(context: Context) -> Trainer:
    """Return a trainer whose model is created under MirroredStrategy."""
    import tensorflow as tf

    from ranks.libraries.tensorflow.trainer import TensorFlowTrainer

    class MirroredTrainer(TensorFlowTrainer):
        def make_strategy(self) -> Any:
            on_gpu = context.spec["device"] == "cuda"
            self.transport = "nccl" if on_gpu else "memory"
            kind, all_reduce = (
                ("GPU", tf.distribute.NcclAllReduce())
                if on_gpu
                else ("CPU", tf.distribute.ReductionToOneDevice())
            )
            devices = [f"{kind}:{i}" for i in range(context.spec["replicas_per_rank"])]
            self._all_reduce = type(all_reduce).__name__
            return tf.distribute.MirroredStrategy(devices, cross_device_ops=all_reduce)

        def settings(self) -> dict[str, str]:
            return super().settings() | {"gradient messages": f"one for each gradient, by {self._all_reduce}"}

    return MirroredTrainer(context)
