"""Train with TensorFlow's DTensor: one program for all ranks, on weights and samples laid out over a mesh.

Samples are laid out along `data`, weights along `tensor`; DTensor derives the computation and communication
of each rank. A gradient must get the layout of its weight before use, otherwise steps are wrong without an
error (docs/development/decisions/0048-dtensor-without-keras.md).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from models.graph import Graph, is_decayed, is_trained
from models.mesh import Mesh
from ranks.libraries.divided_weights import divided
from ranks.libraries.dtensor_model import Tensors, forward
from ranks.libraries.together import validation
from ranks.worker.collectives import Collectives
from ranks.worker.context import Context, by_first_interface
from ranks.worker.epoch_timer import EpochSums, EpochTimer
from ranks.worker.process import at_end
from ranks.worker.trainer import CLIP_EPSILON, NONE, ON_DEMAND, UNFUSED, Trainer

TRANSPORT = "ring over grpc"
# Moments of every weight, by the optimizer.
MOMENTS = {"sgd": ("velocity",), "adam": ("mean", "square"), "adamw": ("mean", "square")}


def join(context: Context) -> None:
    """Join all ranks to one program, with as many threads per rank as it has cores."""
    tf.config.threading.set_intra_op_parallelism_threads(context.cores)
    tf.config.threading.set_inter_op_parallelism_threads(context.cores)
    tf.config.set_visible_devices([], "GPU")
    dtensor.initialize_accelerator_system("CPU", num_logical_cpu_devices=1)
    # Otherwise other ranks treat the end of a rank as a failure.
    at_end.append(context.group.barrier)


def rule(levels: Mapping[str, Any], update: int, rate: float) -> np.ndarray:
    """Return the factors of an optimizer's rule that change with the step, float32 [3].

    They are the rate and the factors by which Adam divides its moments; step 0 is the first.
    """
    betas = levels["adam_beta1"], levels["adam_beta2"]
    return np.array([rate, *(-math.expm1((update + 1) * math.log(beta)) for beta in betas)], np.float32)


def learned(
    levels: Mapping[str, Any], name: str, weight: Any, moments: Mapping[str, Any], gradient: Any, rule: Any
) -> tuple[Any, Tensors]:
    """Return a weight and its moments after an optimizer step.

    SGD with momentum, Adam (Kingma & Ba 2015), or AdamW (Loshchilov & Hutter 2019).
    """
    if levels["weight_decay"] and is_decayed(name, levels["decayed_weights"]):
        if levels["optimizer"] == "adamw":
            weight = weight - rule[0] * levels["weight_decay"] * weight
        else:
            gradient = gradient + levels["weight_decay"] * weight
    if levels["optimizer"] == "sgd":
        velocity = levels["momentum"] * moments["velocity"] + gradient
        return weight - rule[0] * velocity, {"velocity": velocity}
    beta1, beta2 = levels["adam_beta1"], levels["adam_beta2"]
    mean = beta1 * moments["mean"] + (1 - beta1) * gradient
    square = beta2 * moments["square"] + (1 - beta2) * tf.square(gradient)
    change = mean / rule[1] / (tf.sqrt(square / rule[2]) + levels["adam_epsilon"])
    return weight - rule[0] * change, {"mean": mean, "square": square}


def cross_entropy(labels: Any, logits: Any, label_smoothing: float) -> Any:
    """Return the loss of each label; a share of it, `label_smoothing`, is the mean over all classes."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not label_smoothing:
        return losses
    means = -tf.reduce_mean(tf.nn.log_softmax(logits), -1)
    return (1 - label_smoothing) * losses + label_smoothing * means


class Layout:
    """Layouts of arrays on a mesh of ranks."""

    def __init__(self, mesh: Mesh, graph: Graph) -> None:
        sizes = {"data": mesh.data, "tensor": mesh.tensor}
        self.mesh = dtensor.create_distributed_mesh(list(sizes.items()), device_type="CPU")
        self.replicas = mesh.data
        self._divided = divided(graph, mesh.tensor)

    def everywhere(self, dimensions: int) -> Any:
        """Return the layout of an array that all ranks have."""
        return dtensor.Layout.replicated(self.mesh, dimensions)

    def samples(self, dimensions: int) -> Any:
        """Return the layout of an array with one or more entries for each replica."""
        return dtensor.Layout(["data", *[dtensor.UNSHARDED] * (dimensions - 1)], self.mesh)

    def weight(self, name: str, dimensions: int) -> Any:
        """Return the layout of a weight and its moments; of a running statistic that of [replicas, C]."""
        if not is_trained(name):
            return self.samples(dimensions)
        axis = self._divided.get(name)
        return dtensor.Layout(
            ["tensor" if i == axis else dtensor.UNSHARDED for i in range(dimensions)], self.mesh
        )

    def placed(self, value: np.ndarray, layout: Any) -> Any:
        """Return an array that all ranks have in the given layout."""
        (device_place,) = self.mesh.local_device_locations()
        for axis, along in enumerate(layout.sharding_specs):
            if along != dtensor.UNSHARDED:
                value = np.split(value, self.mesh.dim_size(along), axis)[device_place[along]]
        return dtensor.pack([tf.constant(value)], layout)

    def joined(self, mine: np.ndarray) -> Any:
        """Return the array [replicas * n, ...] of which this rank's replica has `mine` [n, ...]."""
        return dtensor.pack([tf.constant(mine)], self.samples(mine.ndim))

    def own(self, value: Any) -> np.ndarray:
        """Return this rank's part of an array."""
        (part,) = dtensor.unpack(value)
        return part.numpy()

    def to_numpy(self, value: Any) -> np.ndarray:
        """Return all of an array; collective."""
        return self.own(dtensor.relayout(value, self.everywhere(len(value.shape))))


class DTensorTrainer(Trainer):
    """The training loop. A step computes all new values before it assigns any variable."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.transport = by_first_interface(context.spec, TRANSPORT)
        context.phases.enter("join")
        join(context)
        context.phases.enter("build")
        graph = context.graph
        self.layout = layout = Layout(context.mesh, graph)
        if graph.vocabulary is None:
            self._mean, self._std = (np.array(context.manifest[name], np.float32) for name in ("mean", "std"))
        initial = context.initial_weights()
        for name in graph.statistics:
            initial[name] = np.repeat(initial[name][None], layout.replicas, axis=0)
        self.variables = {name: self._variable(name, value) for name, value in initial.items()}
        self._moment_names = MOMENTS[context.levels["optimizer"]]
        self.moments = {
            (name, moment): self._variable(name, np.zeros_like(value))
            for name, value in initial.items()
            if is_trained(name)
            for moment in self._moment_names
        }
        self._updates = 0
        self._step = tf.function(self._training_step, autograph=False)
        self._evaluate = tf.function(self._evaluation_step, autograph=False)

    def _variable(self, name: str, value: np.ndarray) -> Any:
        return dtensor.DVariable(self.layout.placed(value, self.layout.weight(name, value.ndim)))

    def train_epoch(self, epoch: int, timer: EpochTimer) -> EpochSums:
        """See Trainer."""
        seen, phases, batch = [], self.context.phases, self.context.spec["local_batch"]
        for samples, labels in self.context.epoch(epoch):
            phases.step()
            phases.enter("data")
            batch_tensors = self.layout.joined(samples), self.layout.joined(labels)
            phases.enter("forward")
            sums = self._step(*batch_tensors, self.seed_of(self._updates), self._rule())
            self._updates += 1
            seen.append(sums)
            if timer.wants_steps:
                self.layout.own(sums)
                timer.step()
        loss, *correct = np.array([self.layout.own(sums)[0] for sums in seen], np.float64).sum(axis=0)
        return EpochSums(float(loss), int(correct[0]) if correct else None, len(seen) * batch)

    def seed_of(self, number: int) -> Any:
        """Return the seed of dropout in batch `number`, for all replicas."""
        seed = np.array([self.context.spec["seed"] % 2**31, number], np.int32)
        return self.layout.placed(seed, self.layout.everywhere(1))

    def _rule(self) -> Any:
        factors = rule(self.context.levels, self._updates, self.context.learning_rate(self._updates))
        return self.layout.placed(factors, self.layout.everywhere(1))

    def _training_step(self, samples: Any, labels: Any, seed: Any, rule: Any) -> Any:
        """Return each replica's loss sum and number of correct labels, float32 [replicas, 2].

        For a language model it is the loss sum only, [replicas, 1].
        """
        weights = {name: variable.read_value() for name, variable in self.variables.items()}
        trained = {name: weight for name, weight in weights.items() if is_trained(name)}
        with tf.GradientTape() as tape:
            tape.watch(list(trained.values()))
            logits, statistics = self._forward(weights, samples, seed)
            losses = cross_entropy(labels, logits, self.context.levels["label_smoothing"])
        # The mean is over the losses of all replicas.
        mean = tf.fill(losses.shape, 1 / math.prod(losses.shape))
        gradients = tape.gradient(losses, trained, output_gradients=mean)
        sums = self._sums(losses, self._right(logits, labels) if self.context.counts_correct else None)
        now = [(self.variables[name], value) for name, value in statistics.items()]
        gradients = {
            name: dtensor.relayout(
                tf.convert_to_tensor(gradient), self.layout.weight(name, len(gradient.shape))
            )
            for name, gradient in gradients.items()
        }
        if limit := self.context.levels["clip_norm"]:
            square = tf.add_n([tf.reduce_sum(tf.square(gradient)) for gradient in gradients.values()])
            factor = tf.minimum(1.0, limit / (tf.sqrt(square) + CLIP_EPSILON))
            gradients = {name: gradient * factor for name, gradient in gradients.items()}
        for name, gradient in gradients.items():
            moments = {moment: self.moments[name, moment].read_value() for moment in self._moment_names}
            weight, moments = learned(self.context.levels, name, weights[name], moments, gradient, rule)
            now += [
                (self.variables[name], weight),
                *((self.moments[name, moment], moments[moment]) for moment in moments),
            ]
        for variable, value in now:
            variable.assign(dtensor.relayout(value, variable.layout))
        return sums

    def _forward(self, weights: Mapping[str, Any], samples: Any, seed: Any = None) -> tuple[Any, Tensors]:
        return forward(self.context.graph, weights, self._normalized(samples), self.layout.replicas, seed)

    def _right(self, logits: Any, labels: Any) -> Any:
        """Return 1.0 for each label that is predicted correctly, else 0.0."""
        return tf.cast(tf.argmax(logits, -1) == labels, tf.float32)

    def _sums(self, losses: Any, right: Any = None, counts: Any = None) -> Any:
        """Return loss sums and correct labels of samples with 1.0 in `counts` [N], or of all samples.

        Without `right`, labels that are predicted correctly, loss sums only.
        """
        sums = []
        for value in (losses / self.context.positions, *(() if right is None else (right,))):
            of_samples = tf.reduce_sum(value, -1) if len(value.shape) > 1 else value
            if counts is not None:
                of_samples = of_samples * counts
            sums.append(tf.reduce_sum(tf.reshape(of_samples, (self.layout.replicas, -1)), 1))
        return dtensor.relayout(tf.stack(sums, 1), self.layout.samples(2))

    def settings(self) -> dict[str, str]:
        """See Training."""
        graph = self.context.graph
        settings = {
            "optimizer implementation": "written out in the step",
            "compiler": "tf.function's graph",
            "mixed precision": NONE,
            "float32 products": "float32",
            "input pipeline": ON_DEMAND,
            "threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
        }
        if graph.vocabulary is None:
            settings["memory format"] = "channels last"
        return settings | ({"attention": UNFUSED} if graph.head_sizes else {})

    def validate(self) -> EpochSums:
        """See Trainer."""
        layout, totals = self.layout, np.zeros(3)
        for samples, labels, count in validation(self.context):
            counts = (np.arange(len(labels)) < count).astype(np.float32)
            sums = self._evaluate(*(layout.joined(array) for array in (samples, labels, counts)))
            totals += [*layout.own(sums)[0], count]
        return EpochSums(float(totals[0]), int(totals[1]), int(totals[2]))

    def _evaluation_step(self, samples: Any, labels: Any, counts: Any) -> Any:
        weights = {name: variable.read_value() for name, variable in self.variables.items()}
        logits, _ = self._forward(weights, samples)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return self._sums(losses, self._right(logits, labels), counts)

    def weights(self) -> dict[str, np.ndarray]:
        """See Trainer."""
        statistics = self.statistics()
        return {
            name: statistics[name] if name in statistics else self.layout.to_numpy(variable.read_value())
            for name, variable in self.variables.items()
        }

    def statistics(self) -> dict[str, np.ndarray]:
        """See Trainer."""
        return {
            name: self.layout.own(self.variables[name].read_value())[0]
            for name in self.context.graph.statistics
        }

    def set_statistics(self, statistics: dict[str, np.ndarray]) -> None:
        """See Trainer."""
        for name, value in statistics.items():
            self.variables[name].assign(self.layout.joined(np.asarray(value, np.float32)[None]))

    def _normalized(self, samples: Any) -> Any:
        """Return uint8 images as float32 with zero mean and unit variance, and tokens unchanged."""
        if self.context.graph.vocabulary is not None:
            return samples
        return (tf.cast(samples, tf.float32) - self._mean) / self._std


class DTensorCollectives(Collectives):
    """Collectives that DTensor uses to change the layout of an array."""

    def __init__(self, context: Context) -> None:
        self.transport = by_first_interface(context.spec, TRANSPORT)
        join(context)
        self._mesh = dtensor.create_distributed_mesh([("ranks", context.ranks)], device_type="CPU")
        self._functions = {
            name: tf.function(getattr(self, f"_{name}"), autograph=False)
            for name in ("all_reduce", "all_gather")
        }
        self._loaded: Any = None
        self._done: Any = None

    def _all_reduce(self, summands: Any) -> Any:
        return dtensor.relayout(tf.reduce_sum(summands, 0), dtensor.Layout.replicated(self._mesh, 1))

    def _all_gather(self, shares: Any) -> Any:
        return dtensor.relayout(shares, dtensor.Layout.replicated(self._mesh, 2))

    def load(self, values: np.ndarray) -> None:
        """See Collectives."""
        layout = dtensor.Layout(["ranks", dtensor.UNSHARDED], self._mesh)
        self._loaded = dtensor.pack([tf.constant(values[None])], layout)

    def do(self, collective: str) -> None:
        """See Collectives."""
        (self._done,) = dtensor.unpack(self._functions[collective](self._loaded))
        tf.reshape(self._done, [-1])[:1].numpy()  # waits for the result

    def result(self) -> np.ndarray:
        """See Collectives."""
        return self._done.numpy().reshape(-1)
