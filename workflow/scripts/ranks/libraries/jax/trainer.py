"""Train with JAX: one program for all ranks, compiled by XLA, on weights laid out over a device mesh.

Along the axes `data` and `sharded`, the step is written for one replica (shard_map), with the replica's batch
statistics and explicit collectives. Along `tensor`, only the layout of weights is given, from which XLA
derives the communication.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from models.graph import is_trained
from models.precision import BF16, COMPUTES_IN_BFLOAT16, FP32
from ranks.libraries.jax.attention import can_fuse_attention, fused_attention
from ranks.libraries.jax.device import JaxProfiler, Marks, configure_library, device_name
from ranks.libraries.jax.layout import REPLICAS, Layout
from ranks.libraries.jax.model import Arrays, forward, unfused_attention
from ranks.libraries.jax.optimizer import optax_rule
from ranks.libraries.validation_batches import validation_batches
from ranks.worker.context import Context
from ranks.worker.epoch_timer import EpochSums, EpochTimer
from ranks.worker.phases import COMMUNICATION
from ranks.worker.trainer import CLIP_EPSILON, HEURISTIC, NONE, ON_DEMAND, RECOMPUTED, TIMED, UNFUSED, Trainer

# The phases that a traced step marks, in this order.
STEP_PHASES = ("backward", "wait", "optimizer", "metrics")
REDUCE_DTYPES = {FP32: jnp.float32, BF16: jnp.bfloat16}  # types by level of reduce_dtype
PRODUCTS = {"float32": "float32", "tensorfloat32": "TF32"}

State = dict[str, Any]


def cross_entropy(logits: Array, labels: Array, label_smoothing: float) -> Array:
    """Return the loss of each label; a share of it, `label_smoothing`, is the mean over all classes."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    if not label_smoothing:
        return losses
    means = jax.nn.logsumexp(logits, axis=-1) - logits.mean(-1)
    return (1 - label_smoothing) * losses + label_smoothing * means


class JaxTrainer(Trainer):
    """The training loop of every JAX framework, on one device; the adapter of several ranks joins them."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        configure_library(context)
        context.phases.use_profiler(JaxProfiler())
        context.phases.enter("join")
        self.transport = self.join()
        context.phases.enter("build")
        self.device = device_name()
        levels, graph = context.levels, context.graph
        self.layout = Layout(graph, context.mesh.sizes, levels["sharding"], self.tensor_axes())
        self._product_dtype = jnp.bfloat16 if levels["precision"] in COMPUTES_IN_BFLOAT16 else jnp.float32
        self._is_fused = can_fuse_attention(levels, graph, context.mesh.tensor)
        self._attend = fused_attention(self.layout.axes) if self._is_fused else unfused_attention
        if graph.vocabulary is None:
            self._mean, self._std = (np.array(context.manifest[name], np.float32) for name in ("mean", "std"))
        self._optimizer = optax_rule(levels)
        # Weights are replicated, although optimizer state is sharded.
        self._is_replicated = context.mesh.sharded > 1 and levels["sharding"] != "parameters"
        self._batches = 0
        self.marks = Marks(context.phases.is_traced)
        self.state, self._specs = self._begun(context.initial_weights())
        self._steps = functools.cache(self._compiled)
        self._evaluate = self.layout.on_replicas(
            self._evaluation_step,
            (self._specs["weights"], P(REPLICAS), P(REPLICAS), P(REPLICAS), P(REPLICAS)),
            P(REPLICAS),
        )

    def join(self) -> str:
        """Connect the ranks, and return what carries their communication (a hook)."""
        return "none"

    def tensor_axes(self) -> dict[str, int]:
        """Return the axis along which the mesh axis `tensor` partitions a weight, by its name (a hook)."""
        return {}

    def _begun(self, initial: dict[str, np.ndarray]) -> tuple[State, State]:
        """Return the initial training state on the mesh, and its layout in the step of a replica."""
        layout = self.layout
        trained = {name: self._stored(name, value) for name, value in initial.items() if is_trained(name)}
        statistics = {name: initial[name] for name in self.context.graph.statistics}
        weights = {
            name: layout.placed(value, layout.spec(name, not self._is_replicated))
            for name, value in trained.items()
        }
        specs = {name: layout.spec(name, not self._is_replicated, with_tensor=False) for name in trained}
        shares = {name: layout.placed(value, layout.spec(name, True)) for name, value in trained.items()}
        moments = jax.jit(self._optimizer.init)(shares)
        state = {
            "weights": weights,
            "statistics": {name: layout.joined(value[None]) for name, value in statistics.items()},
            "optimizer": self._moments(
                moments, lambda name, value: jax.device_put(value, self._sharding(name))
            ),
            "sums": {},
        }
        if self.context.levels["sync_every"] > 1:
            state["sums"] = {
                name: layout.joined(np.zeros_like(value[None])) for name, value in trained.items()
            }
        return state, {
            "weights": specs,
            "statistics": P(REPLICAS),
            "optimizer": self._moments(
                moments, lambda name, _: P() if name is None else layout.spec(name, True, with_tensor=False)
            ),
            "sums": P(REPLICAS),
        }

    def _stored(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return a weight in its stored data type; weights of batch normalization stay in float32."""
        is_bfloat16 = self.context.levels["precision"] == BF16 and not self._is_of_batch_norm(name)
        return value.astype(jnp.bfloat16) if is_bfloat16 else value

    def _is_of_batch_norm(self, name: str) -> bool:
        return self.context.graph.by_name[name.rpartition(".")[0]].kind == "batch_norm"

    def _gather_weights(self, weights: Arrays) -> Arrays:
        """Return whole weights on a replica; shards are gathered in the data type of products, as in FSDP."""
        if self._is_replicated:
            return weights
        if self.context.mesh.sharded > 1:
            weights = {
                name: weight if self._is_of_batch_norm(name) else weight.astype(self._product_dtype)
                for name, weight in weights.items()
            }
        return self.layout.gather(weights)

    def _sharding(self, name: str | None) -> NamedSharding:
        return NamedSharding(self.layout.mesh, P() if name is None else self.layout.spec(name, True))

    def _moments(self, moments: Any, use: Callable[[str | None, Any], Any]) -> Any:
        """Return the optimizer's state, each array replaced by `use(name of its weight or None, array)`."""

        def replace(path: Any, value: Any) -> Any:
            names = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
            return use(names[-1] if names else None, value)

        return jax.tree_util.tree_map_with_path(replace, moments)

    def train_epoch(self, epoch: int, timer: EpochTimer) -> EpochSums:
        """Train this rank's batches of `epoch`; the device is idle on return.

        The gradients of a group's batches are accumulated; the last batch ends with an optimizer step.
        """
        batch_sums, phases, spec = [], self.context.phases, self.context.spec
        batches = self.context.epoch(epoch)
        for update, length in enumerate(
            self.context.accumulation_groups, (epoch - 1) * len(self.context.accumulation_groups)
        ):
            rate = np.float32(self.context.learning_rate(update))
            for i in range(length):
                phases.step()
                phases.enter("data")
                samples, labels = (self.layout.joined(_as_32_bits(array)) for array in next(batches))
                phases.enter("forward")
                step = self._steps(i == length - 1, phases.is_traced)
                self.state, sums = step(
                    self.state, samples, labels, rate, np.uint32(self._batches), np.float32(length)
                )
                self._batches += 1
                batch_sums.append(sums)
                if phases.is_traced:
                    self._enter_marked_phases(sums)
                if timer.wants_steps:
                    jax.block_until_ready(sums)
                    timer.step()
        jax.block_until_ready(self.state)
        loss, *correct = np.sum([self._local_entry(sums) for sums in batch_sums], axis=0)
        samples = len(batch_sums) * spec["local_batch"]
        return EpochSums(float(loss) * spec["local_batch"], int(correct[0]) if correct else None, samples)

    def _enter_marked_phases(self, sums: Array) -> None:
        """Enter the phases that a traced step has marked."""
        jax.block_until_ready((self.state, sums))
        phases, stamps = self.context.phases, self.marks.stamps
        for phase in STEP_PHASES:
            if phase in stamps:
                phases.enter(phase, stamps[phase])
        if "wait" in stamps:
            phases.put(COMMUNICATION, stamps["wait"], stamps["optimizer"])
        stamps.clear()

    def _compiled(self, last: bool, traced: bool) -> Any:
        """Return the compiled step of a batch; the `last` batch of a group includes the optimizer step."""
        step = functools.partial(
            self._training_step, last=last, mark=self.marks if traced else Marks(active=False)
        )
        in_specs = self._specs, P(REPLICAS), P(REPLICAS), P(), P(), P()
        return self.layout.on_replicas(step, in_specs, (self._specs, P(REPLICAS)), donate=[0])

    def _training_step(
        self,
        state: State,
        samples: Array,
        labels: Array,
        rate: Array,
        number: Array,
        length: Array,
        last: bool,
        mark: Marks,
    ) -> tuple[State, Array]:
        """Return a replica's state after batch `number` of the run, in a group of `length` batches.

        With the state, return loss and number of correct labels, [1, 2], or a language model's loss, [1, 1].
        """
        layout, graph, counts_correct = self.layout, self.context.graph, self.context.counts_correct
        levels = self.context.levels
        weights = self._gather_weights(state["weights"])
        statistics = {name: value[0] for name, value in state["statistics"].items()}
        key = self.key_of(lax.axis_index(REPLICAS), number)

        def loss_of(weights: Arrays) -> tuple[Array, Any]:
            inputs = {**weights, **statistics}, self._normalized(samples)
            logits, new_statistics = forward(
                graph, *inputs, key, self._product_dtype, self._attend, levels["checkpointing"]
            )
            loss = cross_entropy(logits, labels, levels["label_smoothing"]).mean()
            sums = jnp.stack([loss, *([_count_correct(logits, labels)] if counts_correct else [])])
            return mark.turn("backward", loss), (sums, new_statistics)

        gradients, (sums, new_statistics) = jax.grad(loss_of, has_aux=True)(weights)
        gradients = {
            name: gradient.astype(state["weights"][name].dtype) for name, gradient in gradients.items()
        }
        if state["sums"]:
            gradients = {
                name: state["sums"][name][0] + (gradient / length).astype(gradient.dtype)
                for name, gradient in gradients.items()
            }
        state = {**state, "statistics": {name: value[None] for name, value in new_statistics.items()}}
        if not last:
            mark("metrics", gradients)
            return {**state, "sums": {name: value[None] for name, value in gradients.items()}}, sums[None]
        if layout.replicas > 1:
            # XLA sums bfloat16 as float32 on CPUs, and fails to compile some of these sums (jax 0.10).
            is_on_cpu = jax.default_backend() == "cpu"
            reduce_dtype = jnp.float32 if is_on_cpu else REDUCE_DTYPES.get(levels["reduce_dtype"])
            gradients = layout.averaged(mark.hold_back("wait", gradients), reduce_dtype)
        gradients = mark.hold_back("optimizer", gradients)
        if limit := levels["clip_norm"]:
            factor = jnp.minimum(1.0, limit / (layout.norm(gradients) + CLIP_EPSILON))
            gradients = {
                name: gradient * factor.astype(gradient.dtype) for name, gradient in gradients.items()
            }
        shares = layout.shards(weights) if self._is_replicated else state["weights"]
        changes, moments = self._optimizer.update(gradients, state["optimizer"], shares)
        shares = {
            name: (weight - rate * changes[name]).astype(weight.dtype) for name, weight in shares.items()
        }
        state |= {
            "weights": layout.gather(shares) if self._is_replicated else shares,
            "optimizer": moments,
            "sums": {name: jnp.zeros_like(value) for name, value in state["sums"].items()},
        }
        mark("metrics", state["weights"])
        return state, sums[None]

    def key_of(self, replica: Array, number: Array) -> Array:
        """Return the key of a replica's dropout in batch `number`."""
        return jax.random.fold_in(
            jax.random.fold_in(jax.random.key(self.context.spec["seed"]), replica), number
        )

    def validate(self) -> EpochSums:
        """Evaluate this rank's share of the validation split."""
        layout, totals = self.layout, np.zeros(3)
        for samples, labels, count in validation_batches(self.context):
            batch_tensors = [
                layout.joined(array)
                for array in (_as_32_bits(samples), _as_32_bits(labels), np.array([count], np.int32))
            ]
            sums = self._evaluate(self.state["weights"], self.state["statistics"], *batch_tensors)
            totals += [*self._local_entry(sums), count]
        return EpochSums(float(totals[0]), int(totals[1]), int(totals[2]))

    def _evaluation_step(
        self, weights: Arrays, statistics: Arrays, samples: Array, labels: Array, count: Array
    ) -> Array:
        """Return loss sum and number of correct labels of a replica's first `count` samples, [1, 2]."""
        statistics = {name: value[0] for name, value in statistics.items()}
        inputs = {**self._gather_weights(weights), **statistics}, self._normalized(samples)
        logits, _ = forward(self.context.graph, *inputs, dtype=self._product_dtype, attend=self._attend)
        counts = (jnp.arange(len(labels)) < count).reshape(-1, *[1] * (labels.ndim - 1))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        loss_sum = jnp.where(counts, losses, 0).sum() / self.context.positions
        return jnp.stack([loss_sum, _count_correct(logits, labels, counts)])[None]

    def weights(self) -> dict[str, np.ndarray]:
        """Return all weights of the model in the canonical layout (models/graph.py)."""
        weights = self.state["weights"]
        if not all(weight.is_fully_replicated for weight in weights.values()):
            weights = jax.jit(lambda weights: weights, out_shardings=NamedSharding(self.layout.mesh, P()))(
                weights
            )
        arrays = {
            name: np.asarray(weight.addressable_data(0)).astype(np.float32)
            for name, weight in weights.items()
        } | self.statistics()
        return {name: arrays[name] for name in self.context.graph.weights()}

    def statistics(self) -> dict[str, np.ndarray]:
        """Return the untrained weights of this rank, such as running statistics."""
        return {name: self._local_entry(value) for name, value in self.state["statistics"].items()}

    def set_statistics(self, statistics: dict[str, np.ndarray]) -> None:
        """Replace the untrained weights."""
        self.state["statistics"] |= {
            name: self.layout.joined(np.asarray(value, np.float32)[None])
            for name, value in statistics.items()
        }

    def settings(self) -> dict[str, str]:
        """Return the settings of this rank by name, after the last epoch."""
        graph, on_gpu = self.context.graph, self.device != "cpu"
        is_mixed = self._product_dtype == jnp.bfloat16
        settings = {
            "optimizer implementation": "optax, compiled into the step",
            "compiler": "XLA, the whole step",
            "mixed precision": "bfloat16 from layer to layer" if is_mixed else NONE,
            **({"weights": "bfloat16"} if self.context.levels["precision"] == BF16 else {}),
            "float32 products": PRODUCTS[jax.config.jax_default_matmul_precision],
            "input pipeline": ON_DEMAND,
            "threads": os.environ.get("NPROC", str(os.cpu_count())),
        }
        if (level := self.context.levels["checkpointing"]) != NONE:
            settings["activations"] = RECOMPUTED[level]
        if graph.vocabulary is None:
            settings["memory format"] = "channels last"
        if on_gpu and graph.has_convolutions:
            is_tuned = "--xla_gpu_autotune_level=0" not in os.environ.get("XLA_FLAGS", "")
            settings["convolution algorithms"] = TIMED if is_tuned else HEURISTIC
        if graph.head_sizes:
            settings["attention"] = "cudnn attention" if self._is_fused else UNFUSED
        if self.layout.replicas > 1:
            settings["gradient messages"] = "as XLA combines them"
        if self.context.mesh.sharded > 1:
            settings["sharding"] = f"{self.context.levels['sharding']}, each weight separately"
        return settings

    def read_device_memory_peak(self) -> int | None:
        """Return the peak of device memory in bytes, None if the library does not report it.

        JAX cannot reset it.
        """
        memory = jax.local_devices()[0].memory_stats()
        return memory["peak_bytes_in_use"] if memory else None

    def device_memory_peak_bytes(self) -> int | None:
        """Return the peak device memory from construction to the first validation."""
        return self.device_memory_peaks[0]

    def _local_entry(self, value: Array) -> np.ndarray:
        """Return this rank's replica's entry of an array [replicas, ...]."""
        return np.asarray(value.addressable_data(0))[0]

    def _normalized(self, samples: Array) -> Array:
        """Return uint8 images as float32 with zero mean and unit variance, and tokens unchanged."""
        if self.context.graph.vocabulary is not None:
            return samples
        return (samples.astype(jnp.float32) - self._mean) / self._std


def _count_correct(logits: Array, labels: Array, counts: Any = True) -> Array:
    """Return how many of the counted samples are classified correctly, float32: exact up to 2^24 samples."""
    return jnp.sum((logits.argmax(-1) == labels) & counts, dtype=jnp.float32)


def _as_32_bits(values: np.ndarray) -> np.ndarray:
    """Return tokens and labels as JAX's integers of 32 bits, and images unchanged."""
    return values if values.dtype == np.uint8 else values.astype(np.int32)
