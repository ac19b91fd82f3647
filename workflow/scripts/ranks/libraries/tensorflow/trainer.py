"""Train with TensorFlow (Keras 2) on one device. Adapters add a strategy or an optimizer.

There are two training loops. `custom` has one distributed iterator for the whole run, a fixed number of steps
per epoch, and the same code for every `sync_every`. `fit` is Keras' own loop, timed by callbacks.
"""

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models.graph import is_decayed
from models.precision import AMP, FP32, TF32
from ranks.libraries.tensorflow.device import Marks, TensorFlowProfiler, configure_library, seconds
from ranks.libraries.tensorflow.model import build, variables
from ranks.libraries.tensorflow.optimizer import keras_optimizer
from ranks.worker.context import Context
from ranks.worker.epoch_timer import EpochSums, EpochTimer
from ranks.worker.phases import COMMUNICATION
from ranks.worker.trainer import CLIP_EPSILON, HEURISTIC, NONE, TIMED, UNFUSED, Trainer

keras = tf.keras

BLOCK_BATCHES = 8
N_PREFETCHED = 1  # batches that wait for training
BLOCK_BYTES = 2**24  # size of a block of images, with one byte per pixel value; 2**27 with tokens of 8 bytes


class TensorFlowTrainer(Trainer):
    """The training loops of every TensorFlow framework, on one device; adapters override the hooks."""

    #: whether all gradients are communicated as one message, instead of each as soon as it is computed
    one_message = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.device = configure_library(context)
        context.phases.use_clock(time.monotonic, seconds)
        context.phases.use_profiler(TensorFlowProfiler())
        context.phases.enter("join")
        self.strategy = self.make_strategy()
        context.phases.enter("build")
        # tf.function calls a step once for each replica, in a thread of its own, to build its graph.
        self._replica_marks = threading.local()
        # A stateful generator, so that different graphs of a step draw different masks.
        keras.backend.experimental.enable_tf_random_generator()
        # Dropout draws from it.
        keras.utils.set_random_seed(context.spec["seed"] + context.rank)
        self.set_precision(context.levels["precision"])
        self._has_tokens = context.graph.vocabulary is not None
        if not self._has_tokens:
            self._mean = tf.constant(context.manifest["mean"], tf.float32)
            self._std = tf.constant(context.manifest["std"], tf.float32)
        with self.strategy.scope():
            self.model = build(context.graph)
            self.variables = variables(self.model, context.graph)
            for name, weight in context.initial_weights().items():
                self.variables[name].assign(weight)
            self.optimizer = self.make_optimizer(keras_optimizer(context.levels, context.learning_rate(0)))
            self.optimizer._create_all_weights(self.model.trainable_variables)
            self.accumulated = self.make_accumulators()
            if context.levels["optimizer"] != "sgd":
                self.optimizer.epsilon = tf.Variable(0.0, trainable=False)
        level = context.levels["decayed_weights"]
        self._decayed = {
            _identity(variable) for name, variable in self.variables.items() if is_decayed(name, level)
        }
        self._is_decoupled = context.levels["optimizer"] == "adamw"
        # Keras calls it with the gradients of all ranks.
        self.optimizer.gradient_transformers = [self.transform_gradients]
        if self._is_decoupled:
            self.optimizer.weight_decay_of = self.weight_decay_of
        if context.phases.is_traced:
            self.mark_communication()
        self.updates, self._rate = 0, context.learning_rate(0)
        self._forward: Callable[[Any, Any], Sequence[Any]] = self._forward_pass
        self._is_compiled = context.levels["compiler"] == "xla"
        if self._is_compiled:
            # A tape differentiates a compiled function by another compiled function.
            self._forward = tf.function(self._forward_pass, autograph=False, jit_compile=True)
        self._evaluate = tf.function(self._evaluation_step, autograph=False, reduce_retracing=True)
        self._scale_velocities = tf.function(self._scale, autograph=False)

    def set_precision(self, level: str) -> None:
        """Set Keras' policy of layers built from now on, and TensorFlow's switch for TF32, by `precision`.

        Raises:
            ValueError: If the trainers of TensorFlow do not have the level.
        """
        if level not in (FP32, TF32, AMP):
            raise ValueError(f"TensorFlow cannot train with precision {level}")
        tf.config.experimental.enable_tensor_float_32_execution(level == TF32)
        keras.mixed_precision.set_global_policy("mixed_bfloat16" if level == AMP else "float32")

    def make_strategy(self) -> Any:
        """Return the tf.distribute strategy (a hook), before anything else uses TensorFlow's devices."""
        return tf.distribute.get_strategy()

    def make_optimizer(self, optimizer: Any) -> Any:
        """Return the wrapped optimizer (a hook)."""
        return optimizer

    def make_accumulators(self) -> list[Any]:
        """Return variables, local to each replica, that accumulate the gradients of a group (a hook)."""
        if self.context.levels["sync_every"] == 1:
            return []
        local = {
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.SUM,
        }
        return [
            tf.Variable(tf.zeros_like(v), trainable=False, **local) for v in self.model.trainable_variables
        ]

    def mark_communication(self) -> None:
        """Let the optimizer mark its communication in a traced run (a hook)."""
        add_up = self.optimizer.gradient_aggregator

        def marked(pairs: Any) -> Any:
            gradients, learned = zip(*pairs, strict=True)
            summands = zip(self.mark_computed(gradients), learned, strict=True)
            reduced, learned = zip(*add_up(list(summands)), strict=True)
            return list(zip(self.mark_reduced(reduced), learned, strict=True))

        self.optimizer.gradient_aggregator = marked

    @property
    def mark(self) -> Marks:
        """Marks of the replica whose step is being traced into a graph."""
        marks: Marks = self._replica_marks.marks
        return marks

    def mark_computed(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Mark the time at which these gradients are computed, and return them."""
        if self.context.spec["replicas"] == 1:
            return gradients
        if self.one_message:
            return self.mark.before("wait", gradients)
        self.mark("wait", gradients)
        return gradients

    def mark_reduced(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Mark the time at which these gradients are reduced over all ranks, and return them."""
        if self.one_message:
            return self.mark.before("optimizer", gradients)
        self.mark("optimizer", gradients)
        return gradients

    def accumulate_or_update(self, tape: Any, loss: Any, n_batches: int, is_last_batch: bool) -> None:
        """Accumulate the gradients of one of `n_batches` batches, on a replica (a hook).

        The last batch ends with the optimizer step. Keras sums gradients over replicas, so they are divided
        by the number of replicas here.
        """
        gradients = tape.gradient(loss, self.model.trainable_variables)
        if not is_last_batch:
            sums = [
                total.assign_add(gradient)
                for total, gradient in zip(self.accumulated, gradients, strict=True)
            ]
            self.mark("metrics", sums)
            return
        n_summands = n_batches * self.strategy.num_replicas_in_sync
        if n_batches > 1:
            gradients = [
                total + gradient for total, gradient in zip(self.accumulated, gradients, strict=True)
            ]
        if n_summands > 1:
            gradients = [gradient / n_summands for gradient in gradients]
        with tf.control_dependencies(gradients if n_batches > 1 else []):
            for total in self.accumulated if n_batches > 1 else []:
                total.assign(tf.zeros_like(total))
        self.mark_updated(
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        )

    def mark_updated(self, update: Any) -> None:
        """Mark the time at which `update`, the result of apply_gradients, is done."""
        if self.mark.active:
            with tf.control_dependencies([update]):
                self.mark("metrics", [tf.identity(self.model.trainable_variables[0])])

    def transform_gradients(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return pairs of gradients and variables after clipping and adding weight decay (not for AdamW)."""
        if limit := self.context.levels["clip_norm"]:
            norm = tf.linalg.global_norm([gradient for gradient, _ in pairs])
            factor = tf.minimum(1.0, limit / (norm + CLIP_EPSILON))
            pairs = [(gradient * factor, variable) for gradient, variable in pairs]
        if self._is_decoupled:
            return list(pairs)
        decays = [self.weight_decay_of(variable) for _, variable in pairs]
        return [(g + decay * v if decay else g, v) for (g, v), decay in zip(pairs, decays, strict=True)]

    def weight_decay_of(self, variable: Any) -> float:
        """Return the weight decay of a trainable variable."""
        return self.context.levels["weight_decay"] if _identity(variable) in self._decayed else 0.0

    def train(self, timer: EpochTimer) -> None:
        """Train all epochs."""
        data = self._dataset()
        if self.context.levels["training_loop"] == "fit":
            self._fit(data, timer)
            return
        self._iterator = iter(self.strategy.distribute_datasets_from_function(lambda _: data))
        self._compiled_batch = tf.function(self._train_batch, autograph=False)
        super().train(timer)

    def train_epoch(self, _epoch: int, timer: EpochTimer) -> EpochSums:
        """Train this rank's batches of the next epoch; the device is idle on return.

        The iterator over all epochs continues where the last epoch ended.

        The gradients of a group's batches are accumulated; the last batch ends with an optimizer step.
        """
        batch_sums, phases = [], self.context.phases
        for n_batches in self.context.accumulation_groups:
            for i in range(n_batches):
                phases.step()
                if i == 0:
                    phases.enter("optimizer")
                    self.set_learning_rate()
                phases.enter("data")
                *sums, marks = self._compiled_batch(
                    self._iterator, n_batches, i == n_batches - 1, phases.is_traced
                )
                batch_sums.append(sums)
                self._enter_marked_phases(marks)
                if timer.wants_steps:
                    batch_sums[-1][0].numpy()
                    timer.step()
        loss = sum(float(loss) for loss, *_ in batch_sums)
        counts = self.context.counts_correct
        correct = sum(int(correct) for _, correct in batch_sums) if counts else None
        batch, replicas = self.context.spec["local_batch"], self.context.spec["replicas_per_rank"]
        return EpochSums(loss * batch, correct, len(batch_sums) * batch * replicas)

    def _enter_marked_phases(self, marks: dict[str, Any]) -> None:
        """Enter the phases that a traced step has marked.

        Unless gradients are one message, communication begins with the backward pass, since the gradient of
        the last layer's bias is sent at once.
        """
        phases = self.context.phases
        for phase in ("forward", "backward", "wait", "optimizer", "metrics"):
            if phase in marks:
                phases.enter(phase, marks[phase])
        if "wait" in marks:
            phases.put(COMMUNICATION, marks["wait" if self.one_message else "backward"], marks["optimizer"])

    def set_learning_rate(self) -> None:
        """Set the rate of the optimizer's next step, and make Keras' optimizers equal to PyTorch's.

        Keras' velocity includes the rate, so it is scaled when the rate changes (Goyal et al. 2017, section
        3, remark 3). Keras' Adam adds epsilon before the bias correction of the second moment (Kingma & Ba
        2015, end of section 2), so epsilon is corrected instead.
        """
        rate = self.context.learning_rate(self.updates)
        if rate != self._rate:
            keras.backend.set_value(self.optimizer.learning_rate, rate)
            if self.context.levels["optimizer"] == "sgd" and self.context.levels["momentum"]:
                self._scale_velocities(tf.constant(rate / self._rate))
        self.updates, self._rate = self.updates + 1, rate
        if (levels := self.context.levels)["optimizer"] != "sgd":
            correction = (1 - levels["adam_beta2"] ** self.updates) ** 0.5
            self.optimizer.epsilon.assign(levels["adam_epsilon"] * correction)

    def _scale(self, ratio: Any) -> None:
        for variable in self.model.trainable_variables:
            for velocity in self.local_values(self.optimizer.get_slot(variable, "momentum")):
                velocity.assign(velocity * ratio)

    def validate(self) -> EpochSums:
        """Evaluate this rank's share of the validation split."""
        loss, correct, samples = 0.0, 0, 0
        for inputs, labels in self.context.validation():
            batch_loss, batch_correct = self._evaluate(self._distribute(inputs), self._distribute(labels))
            loss, correct, samples = (
                loss + float(batch_loss),
                correct + int(batch_correct),
                samples + len(labels),
            )
        return EpochSums(loss, correct, samples)

    def weights(self) -> dict[str, np.ndarray]:
        """Return all weights of the model in the canonical layout (models/graph.py)."""
        return {name: self.local_values(variable)[0].numpy() for name, variable in self.variables.items()}

    def statistics(self) -> dict[str, np.ndarray]:
        """Return the untrained weights of this rank, such as running statistics."""
        values_by_name = {
            name: self.local_values(self.variables[name]) for name in self.context.graph.statistics
        }
        return {
            name: np.mean([value.numpy() for value in values], axis=0)
            for name, values in values_by_name.items()
        }

    def set_statistics(self, statistics: dict[str, np.ndarray]) -> None:
        """Replace the untrained weights."""
        for name, value in statistics.items():
            for variable in self.local_values(self.variables[name]):
                variable.assign(value)

    def local_values(self, value: Any) -> tuple[Any, ...]:
        """Return the local values of this rank's replicas, without communication."""
        values: tuple[Any, ...] = self.strategy.experimental_local_results(value)
        return values

    def _distribute(self, samples: np.ndarray) -> Any:
        """Return samples [N, ...] distributed to this rank's replicas."""
        replicas = self.context.spec["replicas_per_rank"]
        if replicas == 1:
            return tf.constant(samples)
        return self.strategy.experimental_distribute_values_from_function(
            lambda replica: tf.constant(samples[replica.replica_id_in_sync_group % replicas :: replicas])
        )

    def settings(self) -> dict[str, str]:
        """Return the settings of this rank by name, after the last epoch."""
        graph, optimizer = self.context.graph, self.optimizer
        kind = next(
            base for base in type(optimizer).__mro__ if base.__module__.startswith(("tf_keras", "keras"))
        )
        policy = keras.mixed_precision.global_policy().name
        is_tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        threads = str(tf.config.threading.get_intra_op_parallelism_threads())
        settings = {
            "optimizer implementation": f"Keras {kind.__name__}, one operation for each weight",
            "compiler": "XLA, forward and backward pass" if self._is_compiled else "tf.function's graph",
            "mixed precision": NONE if policy == "float32" else f"Keras policy {policy}",
            "float32 products": "TF32" if is_tf32 else "float32",
            "input pipeline": f"tf.data reads {N_PREFETCHED} batch ahead",
            "threads": threads,
        }
        if self.one_message:
            settings["gradient messages"] = "one of all gradients"
        if graph.vocabulary is None:
            settings["memory format"] = keras.backend.image_data_format().replace("_", " ")
        if self.context.spec["device"] == "cuda" and graph.has_convolutions:
            is_tuned = os.environ.get("TF_CUDNN_USE_AUTOTUNE", "1") != "0"
            settings["convolution algorithms"] = TIMED if is_tuned else HEURISTIC
        if graph.head_sizes:
            settings["attention"] = UNFUSED
        return settings

    def reset_device_memory_peak(self) -> None:
        """Restart the peak of device memory at its present use."""
        if self.context.spec["device"] == "cuda":
            tf.config.experimental.reset_memory_stats("GPU:0")

    def read_device_memory_peak(self) -> int | None:
        """Return the peak of device memory in bytes, None if the library does not report it."""
        return (
            int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
            if self.context.spec["device"] == "cuda"
            else None
        )

    def _dataset(self) -> Any:
        """Return this rank's batches of all epochs as an endless data set: (uint8 images or tokens, labels).

        TensorFlow itself gathers samples that are in memory, since the order is known beforehand. Other
        samples come from NumPy in blocks of batches, since each call of Python from TensorFlow's threads
        costs as much as a small step.
        """
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        options.threading.private_threadpool_size = self.context.cores
        options.autotune.enabled = False
        in_memory = self.context.samples_in_memory()
        data = self._blocks().unbatch() if in_memory is None else self._batches_in_memory(*in_memory)
        # Without an end, ranks need not communicate in each step whether one has run dry.
        return data.repeat().prefetch(N_PREFETCHED).with_options(options)

    def _batches_in_memory(self, inputs: np.ndarray, labels: np.ndarray) -> Any:
        """Return batches of samples in memory; tokens keep the data type of the file."""
        with tf.device("CPU"):
            inputs, labels = tf.constant(inputs), tf.constant(labels)
        orders = [self.context.order(epoch) for epoch in range(1, self.context.levels["epochs"] + 1)]

        def gather(samples: Any) -> Any:
            batch_inputs, batch_labels = tf.gather(inputs, samples), tf.gather(labels, samples)
            return (
                (tf.cast(batch_inputs, tf.int64), tf.cast(batch_labels, tf.int64))
                if self._has_tokens
                else (batch_inputs, batch_labels)
            )

        return tf.data.Dataset.from_tensor_slices(np.concatenate(orders)).map(gather)

    def _blocks(self) -> Any:
        """Return batches from NumPy in blocks; the next block is computed while one is trained."""
        batch, shape = self.context.spec["local_batch"], self.context.graph.shape
        length = max(1, min(BLOCK_BATCHES, BLOCK_BYTES // (batch * math.prod(shape))))

        def blocks() -> Any:
            for epoch in range(1, self.context.levels["epochs"] + 1):
                batches = self.context.epoch(epoch)
                while block := list(itertools.islice(batches, length)):
                    inputs, labels = zip(*block, strict=True)
                    yield np.stack(inputs), np.stack(labels)

        label_shape = (self.context.positions,) if len(self.context.graph.operators[-1].shape) > 1 else ()
        signature = (
            tf.TensorSpec((None, batch, *shape), tf.int64 if self._has_tokens else tf.uint8),
            tf.TensorSpec((None, batch, *label_shape), tf.int64),
        )
        return tf.data.Dataset.from_generator(blocks, output_signature=signature).prefetch(1)

    def _normalized(self, inputs: Any) -> Any:
        """Return images in uint8 as normalized ones in float32; return tokens as they are."""
        return inputs if self._has_tokens else (tf.cast(inputs, tf.float32) - self._mean) / self._std

    def _train_batch(self, iterator: Any, n_batches: int, is_last_batch: bool, is_traced: bool) -> Any:
        """Return loss and correct labels of a batch, and the marks of this rank's first replica.

        Correct labels of a language model are not counted.
        """

        def on_replica(batch: Any) -> Any:
            mark = self._replica_marks.marks = Marks(is_traced, self.context.spec["device"] == "cuda")
            inputs, labels = mark.before("forward", list(batch))
            with tf.GradientTape() as tape:
                loss, *correct = self._forward(self._normalized(inputs), labels)
                loss = mark.turn("backward", loss)
            self.accumulate_or_update(tape, loss, n_batches, is_last_batch)
            return loss, *correct, mark.stamps

        *sums, stamps = self.strategy.run(on_replica, args=(next(iterator),))
        return *self._sum_over_replicas(sums), {
            phase: self.local_values(mark)[0] for phase, mark in stamps.items()
        }

    def _forward_pass(self, inputs: Any, labels: Any) -> list[Any]:
        """Return the loss of a batch and its number of correct labels, for a language model only the loss."""
        logits = self.model(inputs, training=True)
        smoothing = self.context.levels["label_smoothing"]
        loss = tf.reduce_mean(cross_entropy(labels, logits, smoothing))
        return [loss, *([_count_correct(logits, labels)] if self.context.counts_correct else [])]

    def _sum_over_replicas(self, values: Sequence[Any]) -> list[Any]:
        """Return the sums of losses and counts over this rank's replicas."""
        return [tf.add_n(self.local_values(value)) for value in values]

    def _evaluation_step(self, inputs: Any, labels: Any) -> Any:
        # Each replica evaluates with its own running statistics.
        def on_replica(inputs: Any, labels: Any) -> Any:
            logits = self.model(self._normalized(inputs), training=False)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            return tf.reduce_sum(losses) / self.context.positions, _count_correct(logits, labels)

        return self._sum_over_replicas(self.strategy.run(on_replica, args=(inputs, labels)))

    def _fit(self, data: Any, timer: EpochTimer) -> None:
        trainer, spec = self, self.context.spec

        class Epochs(keras.callbacks.Callback):  # type: ignore[name-defined]
            def on_epoch_begin(self, _epoch: int, _logs: Any = None) -> None:
                trainer.open_epoch(timer)

            def on_train_batch_begin(self, _batch: int, _logs: Any = None) -> None:
                trainer.set_learning_rate()

            def on_train_batch_end(self, _batch: int, _logs: Any = None) -> None:
                if timer.wants_steps:
                    timer.step()

            def on_epoch_end(self, _epoch: int, logs: Any = None) -> None:
                samples = spec["steps"] * spec["local_batch"]
                labels = samples * trainer.context.positions
                correct = round(logs["accuracy"] * labels) if metrics else None
                trainer.close_epoch(timer, EpochSums(logs["loss"] * samples, correct, samples))

        metrics = ["accuracy"] if self.context.counts_correct else []
        self.model.compile(self.optimizer, _loss(), metrics=metrics, jit_compile=self._is_compiled)
        self.model.fit(
            self.strategy.distribute_datasets_from_function(
                lambda _: data.map(lambda inputs, labels: (self._normalized(inputs), labels))
            ),
            epochs=self.context.levels["epochs"],
            steps_per_epoch=spec["steps"],
            callbacks=[Epochs()],
            verbose=0,
        )


def _identity(variable: Any) -> str:
    """Return the identifier that all replicas' copies of a variable share."""
    distributed = getattr(variable, "_distributed_container", lambda: None)()
    identity: str = (variable if distributed is None else distributed)._unique_id
    return identity


def cross_entropy(labels: Any, logits: Any, label_smoothing: float) -> Any:
    """Return the loss of each label; a share of it, `label_smoothing`, is the mean over all classes."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not label_smoothing:
        return losses
    means = tf.reduce_logsumexp(logits, -1) - tf.reduce_mean(logits, -1)
    return (1 - label_smoothing) * losses + label_smoothing * means


def _loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _count_correct(logits: Any, labels: Any) -> Any:
    return tf.reduce_sum(tf.cast(tf.argmax(logits, -1) == labels, tf.int64))
