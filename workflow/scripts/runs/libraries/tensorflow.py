"""Training with TensorFlow (Keras 2): the model, the data, the step. Adapters add a strategy or an exchange.

Two training loops: `custom`, one distributed iterator that lives as long as the run, a fixed number of steps an epoch and
the same code for every `sync_every`; and `fit`, Keras' own, timed by callbacks.
"""

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from runs.worker.context import Context
from runs.worker.meter import Meter, Seen
from runs.worker.model import Layer
from runs.worker.reducer import Reducer
from runs.worker.trainer import Trainer

keras = tf.keras


def build(layers: list[Layer]) -> Any:
    """The model as a Keras model that maps images [N, H, W, C] to logits [N, classes]."""
    model = keras.Sequential([keras.Input(layers[0].inputs)])
    for layer in layers:
        match layer.kind:
            case "conv":
                model.add(keras.layers.Conv2D(layer.units, layer.kernel, padding="same", activation=layer.activation))
            case "dense":
                model.add(keras.layers.Dense(layer.units, activation=layer.activation))
            case "flatten":
                model.add(keras.layers.Flatten())
    return model


def configured(context: Context) -> str:
    """The rank's device as it goes into a record, after TensorFlow has been given the rank's threads and device."""
    cores = context.spec["cores_per_rank"]
    tf.config.threading.set_intra_op_parallelism_threads(cores)
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    on_gpu = context.spec["device"] == "cuda"
    gpus = tf.config.list_physical_devices("GPU") if on_gpu else []
    mine = gpus[context.local_rank : context.local_rank + 1]
    tf.config.set_visible_devices(mine, "GPU")
    if not on_gpu:
        return "cpu"
    if not mine:
        raise RuntimeError(f"no GPU for local rank {context.local_rank}: TensorFlow sees {len(gpus)}")
    tf.config.experimental.set_memory_growth(mine[0], True)
    name: str = tf.config.experimental.get_device_details(mine[0]).get("device_name", "cuda")
    return name


class TensorFlowTrainer(Trainer):
    """The training loops of every TensorFlow framework. Undistributed as it stands; adapters override the hooks."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.device = configured(context)
        tf.config.experimental.enable_tensor_float_32_execution(context.levels["precision"] == "tf32")
        self.strategy = self.make_strategy()
        tf.random.set_seed(context.spec["seed"])
        self._mean = tf.constant(context.manifest["mean"], tf.float32)
        self._std = tf.constant(context.manifest["std"], tf.float32)
        self._validation = context.validation_arrays()
        with self.strategy.scope():
            self.model = build(context.layers)
            self.model.set_weights(context.initial_weights())
            sgd = keras.optimizers.legacy.SGD(context.learning_rate, momentum=context.levels["momentum"])
            self.optimizer = self.make_optimizer(sgd)
            self.optimizer._create_all_weights(self.model.trainable_variables)
            self.accumulated = self.make_accumulators()
        self._evaluate = tf.function(self._evaluation_step, autograph=False, reduce_retracing=True)

    def make_strategy(self) -> Any:
        """Hook: the tf.distribute strategy under which the model lives; made before anything else touches TensorFlow."""
        return tf.distribute.get_strategy()

    def make_optimizer(self, optimizer: Any) -> Any:
        """Hook: wrap the optimizer."""
        return optimizer

    def make_accumulators(self) -> list[Any]:
        """Hook: variables, local to each replica, that gather the gradients of the batches of a group."""
        if self.context.levels["sync_every"] == 1:
            return []
        local = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
        return [tf.Variable(tf.zeros_like(v), trainable=False, **local) for v in self.model.trainable_variables]

    def learn(self, tape: Any, loss: Any, length: int, last: bool) -> None:
        """Hook, on a replica: take in the gradients of one batch of a group of `length`; after the `last`, one optimizer step.

        Keras adds gradients up over replicas, so they are divided by their number here.
        """
        gradients = tape.gradient(loss, self.model.trainable_variables)
        if not last:
            for total, gradient in zip(self.accumulated, gradients, strict=True):
                total.assign_add(gradient)
            return
        parts = length * self.strategy.num_replicas_in_sync
        if length > 1:
            gradients = [total + gradient for total, gradient in zip(self.accumulated, gradients, strict=True)]
        if parts > 1:
            gradients = [gradient / parts for gradient in gradients]
        with tf.control_dependencies(gradients if length > 1 else []):
            for total in self.accumulated if length > 1 else []:
                total.assign(tf.zeros_like(total))
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))

    def train(self, meter: Meter) -> None:
        """See Trainer."""
        data = self._dataset()
        if self.context.levels["training_loop"] == "fit":
            self._fit(data, meter)
            return
        self._iterator = iter(self.strategy.distribute_datasets_from_function(lambda _: data))
        self._step = tf.function(self._train_batch, autograph=False)
        super().train(meter)

    def train_epoch(self, epoch: int, meter: Meter) -> Seen:
        """See Trainer. All batches of a group but the last are added up; the last one ends in an optimizer step."""
        seen = []
        for length in self.context.accumulation_groups():
            for i in range(length):
                seen.append(self._step(self._iterator, length, i == length - 1))
                if meter.wants_steps:
                    seen[-1][0].numpy()
                    meter.step()
        loss = sum(float(loss) for loss, _ in seen)
        correct = sum(int(correct) for _, correct in seen)
        batch = self.context.spec["local_batch"]
        return Seen(loss * batch, correct, len(seen) * batch)

    def validate(self) -> Seen:
        """See Trainer."""
        images, labels = self._validation
        loss, correct = 0.0, 0
        for first in range(0, len(labels), 256):
            part = slice(first, first + 256)
            batch_loss, batch_correct = self._evaluate(tf.constant(images[part]), tf.constant(labels[part]))
            loss, correct = loss + float(batch_loss), correct + int(batch_correct)
        return Seen(loss, correct, len(labels))

    def weights(self) -> list[np.ndarray]:
        """See Trainer."""
        return self.model.get_weights()

    def device_memory_peak_bytes(self) -> int | None:
        """See Trainer."""
        return (
            int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
            if self.context.spec["device"] == "cuda"
            else None
        )

    def _dataset(self) -> Any:
        """This rank's batches of all epochs, one after the other, for ever: (uint8 images, labels)."""
        images, labels = (tf.constant(part) for part in self.context.arrays("train"))
        spec = self.context.spec

        def batches_of(epoch: Any) -> Any:
            indices = tf.numpy_function(self.context.epoch_batches, [epoch], tf.int64)
            return tf.data.Dataset.from_tensor_slices(tf.ensure_shape(indices, [spec["steps"], spec["local_batch"]]))

        epochs = tf.data.Dataset.range(1, self.context.levels["epochs"] + 1).flat_map(batches_of)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        options.threading.private_threadpool_size = spec["cores_per_rank"]
        options.autotune.enabled = False
        # Without an end there is no exchange, step by step, about whether some rank has run dry.
        return (
            epochs.map(lambda i: (tf.gather(images, i), tf.gather(labels, i)))
            .repeat()
            .prefetch(1)
            .with_options(options)
        )

    def _normalized(self, images: Any) -> Any:
        return (tf.cast(images, tf.float32) - self._mean) / self._std

    def _train_batch(self, iterator: Any, length: int, last: bool) -> Any:
        def on_replica(batch: Any) -> Any:
            images, labels = batch
            with tf.GradientTape() as tape:
                logits = self.model(self._normalized(images), training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            self.learn(tape, loss, length, last)
            return loss, _count_correct(logits, labels)

        return self.strategy.run(on_replica, args=(next(iterator),))

    def _evaluation_step(self, images: Any, labels: Any) -> tuple[Any, Any]:
        logits = self.model(self._normalized(images), training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(losses), _count_correct(logits, labels)

    def _fit(self, data: Any, meter: Meter) -> None:
        trainer, spec = self, self.context.spec

        class Epochs(keras.callbacks.Callback):  # type: ignore[name-defined]
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                meter.open_epoch()

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if meter.wants_steps:
                    meter.step()

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                samples = spec["steps"] * spec["local_batch"]
                seen = Seen(logs["loss"] * samples, round(logs["accuracy"] * samples), samples)
                meter.close_epoch(seen, trainer.validate)

        self.model.compile(self.optimizer, _loss(), metrics=["accuracy"])
        self.model.fit(
            self.strategy.distribute_datasets_from_function(
                lambda _: data.map(lambda images, labels: (self._normalized(images), labels))
            ),
            epochs=self.context.levels["epochs"],
            steps_per_epoch=spec["steps"],
            callbacks=[Epochs()],
            verbose=0,
        )


class TensorFlowReducer(Reducer):
    """Sums of tensors in a graph, one for each number of elements. Adapters add how ranks are joined and what sums."""

    def __init__(self, context: Context) -> None:
        self.device = configured(context)
        self._on_gpu = context.spec["device"] == "cuda"
        self._loaded: Any = None  # a tensor made now would keep a strategy from being made later
        self._sum: Any = None
        self._reduce = tf.function(self.all_reduce, autograph=False)

    @abc.abstractmethod
    def all_reduce(self, values: Any) -> Any:
        """Hook, in a graph: `values` summed over all ranks."""

    def load(self, values: np.ndarray) -> None:
        """See Reducer."""
        self._loaded = tf.constant(values)

    def reduce(self) -> None:
        """See Reducer."""
        self._sum = self._reduce(self._loaded)
        if self._on_gpu:
            tf.test.experimental.sync_devices()

    def result(self) -> np.ndarray:
        """See Reducer."""
        return self._sum.numpy()


def _loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _count_correct(logits: Any, labels: Any) -> Any:
    return tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == labels, tf.int64))
