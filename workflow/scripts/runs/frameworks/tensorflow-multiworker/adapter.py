"""TensorFlow MultiWorkerMirroredStrategy: one worker a rank, gradients all-reduced by collective operations (ring or NCCL)."""

import json
from typing import Any

from runs.worker.context import Context
from runs.worker.group import free_port
from runs.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """TF_CONFIG with all workers' addresses; TensorFlow reads it when it is imported."""
    workers = context.group.all_gather(f"{context.group.address}:{free_port(context.group.address)}")
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": context.rank}}
    return {"TF_CPP_MIN_LOG_LEVEL": "1", "TF_CONFIG": json.dumps(cluster)}


def trainer(context: Context) -> Trainer:
    """A trainer whose model lives under the strategy."""
    import tensorflow as tf

    from runs.libraries.tensorflow import TensorFlowTrainer

    class MultiWorkerTrainer(TensorFlowTrainer):
        def make_strategy(self) -> Any:
            on_gpu = context.spec["device"] == "cuda"
            self.transport = "nccl" if on_gpu else "ring over grpc"
            kind = tf.distribute.experimental.CommunicationImplementation
            options = tf.distribute.experimental.CommunicationOptions(implementation=kind.NCCL if on_gpu else kind.RING)
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    return MultiWorkerTrainer(context)
