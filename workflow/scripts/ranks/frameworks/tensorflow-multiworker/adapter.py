"""TensorFlow MultiWorkerMirroredStrategy.

Each rank is one worker; collective operations (ring or NCCL) all-reduce gradients.
"""

import json
from collections.abc import Callable
from typing import Any

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context, by_first_interface
from ranks.worker.group import free_port
from ranks.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Return TF_CONFIG with all workers' addresses; TensorFlow reads it when it is imported."""
    workers = context.group.all_gather(f"{context.group.address}:{free_port(context.group.address)}")
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": context.rank}}
    return {"TF_CPP_MIN_LOG_LEVEL": "1", "TF_CONFIG": json.dumps(cluster)}


def trainer(context: Context) -> Trainer:
    """Return a trainer whose model is created under MultiWorkerMirroredStrategy."""
    from ranks.libraries.tensorflow.trainer import TensorFlowTrainer

    class MultiWorkerTrainer(TensorFlowTrainer):
        one_message = True

        def make_strategy(self) -> Any:
            self.transport, strategy = join(context)
            return strategy

    return MultiWorkerTrainer(context)


def collectives(context: Context) -> Collectives:
    """Return collectives by the strategy's collective operations."""
    import tensorflow as tf

    from ranks.libraries.tensorflow.collectives import TensorFlowCollectives

    class MultiWorkerCollectives(TensorFlowCollectives):
        def __init__(self) -> None:
            super().__init__(context)
            self.transport, self.strategy = join(context)

        def all_reduce(self, summand: Any) -> Any:
            return self._on_replica(
                lambda replica, mine: replica.all_reduce(tf.distribute.ReduceOp.SUM, mine), summand
            )

        def all_gather(self, share: Any) -> Any:
            return self._on_replica(lambda replica, mine: replica.all_gather(mine, axis=0), share)

        def _on_replica(self, collective: Callable[[Any, Any], Any], loaded: Any) -> Any:
            def run(mine: Any) -> Any:
                # The strategy expects the message on the replica's device.
                message = tf.identity(mine)
                return collective(tf.distribute.get_replica_context(), message)

            return self.strategy.run(run, args=(loaded,))

    return MultiWorkerCollectives()


def join(context: Context) -> tuple[str, Any]:
    """Return the transport of the gradients, and the strategy.

    Call it before TensorFlow initializes its devices.
    """
    import tensorflow as tf

    on_gpu = context.spec["device"] == "cuda"
    kind = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=kind.NCCL if on_gpu else kind.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return "nccl" if on_gpu else by_first_interface(context.spec, "ring over grpc"), strategy
