"""Horovod with TensorFlow (Sergeev & Del Balso 2018).

A background thread all-reduces gradients as they become ready.
"""

from typing import Any

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Return the variables from which hvd.init() reads this rank's place."""
    from ranks.libraries.horovod import placement_variables

    return {"TF_CPP_MIN_LOG_LEVEL": "1", **placement_variables(context)}


def trainer(context: Context) -> Trainer:
    """Return a trainer with Horovod's optimizer.

    The optimizer averages over `backward_passes_per_step` batches and over ranks.
    """
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf

    from ranks.libraries.horovod import Timeline, fusion_settings, transport
    from ranks.libraries.tensorflow.trainer import TensorFlowTrainer

    sync_every, adam = context.levels["sync_every"], context.levels["optimizer"] != "sgd"

    class HorovodTrainer(TensorFlowTrainer):
        def make_strategy(self) -> Any:
            hvd.init()
            self.transport = transport(context, hvd)
            context.phases.use_profiler(Timeline(hvd))
            return super().make_strategy()

        def settings(self) -> dict[str, str]:
            return super().settings() | fusion_settings()

        def make_optimizer(self, optimizer: Any) -> Any:
            return hvd.DistributedOptimizer(
                optimizer, backward_passes_per_step=sync_every, average_aggregated_gradients=True
            )

        def make_accumulators(self) -> list[Any]:
            return []

        def set_learning_rate(self) -> None:
            super().set_learning_rate()
            # Adam needs the number of optimizer steps, but Horovod counts every batch.
            if adam and sync_every > 1:
                self.optimizer.iterations.assign(self.updates - sync_every)

        def mark_communication(self) -> None:
            pass  # Horovod has reduced the gradients that the optimizer aggregates.

        def accumulate_or_update(self, tape: Any, loss: Any, n_batches: int, is_last_batch: bool) -> None:
            # Horovod always divides by sync_every, and counts batches itself.
            with tape:
                scaled = loss * (sync_every / n_batches)
            missing = sync_every - n_batches if is_last_batch else 0
            self._pass(tape, scaled, reduces=is_last_batch and not missing)
            self._flush(missing)

        def _flush(self, passes: int) -> None:
            """Complete a shorter last group with batches of zero loss."""
            for left in reversed(range(passes)):
                with tf.GradientTape() as tape:
                    zero_loss = 0.0 * tf.add_n([tf.reduce_sum(v) for v in self.model.trainable_variables])
                self._pass(tape, zero_loss, reduces=left == 0)

        def _pass(self, tape: Any, loss: Any, reduces: bool) -> None:
            compute = tape.gradient

            def marked(*args: Any, **named: Any) -> Any:
                return self.mark_computed(compute(*args, **named))

            if reduces:
                tape.gradient = marked  # Horovod calls it before it reduces.
            reduced = self.optimizer.compute_gradients(loss, self.model.trainable_variables, tape=tape)
            gradients, learned = zip(*reduced, strict=True)
            if reduces:
                self.mark_reduced(gradients)
            self.mark_updated(self.optimizer.apply_gradients(list(zip(gradients, learned, strict=True))))

    return HorovodTrainer(context)


def collectives(context: Context) -> Collectives:
    """Return collectives by Horovod's background thread."""
    import horovod.tensorflow as hvd

    from ranks.libraries.horovod import make_collectives
    from ranks.libraries.tensorflow.collectives import TensorFlowCollectives

    return make_collectives(TensorFlowCollectives, context, hvd)
