"""Train with JAX: one program for all ranks, compiled by XLA, on weights laid out over a device mesh.

Along the axes `data` and `sharded`, the step is written for one replica (shard_map), with the replica's batch
statistics and explicit collectives. Along `tensor`, only the layout of weights is given, from which XLA
derives the communication.
"""

import functools
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax._src import distributed, xla_bridge
from jax._src.lib import _jax
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from models.graph import Graph, is_decayed, is_trained
from models.precision import AMP, BF16, COMPUTES_IN_BFLOAT16, FP32, TF32
from ranks.libraries.jax_model import Arrays, Attend, forward, unfused_attention
from ranks.libraries.validation_batches import validation_batches
from ranks.worker.collectives import Collectives
from ranks.worker.context import Context, by_first_interface, interfaces
from ranks.worker.devices import count_visible, device_indices, vendor
from ranks.worker.epoch_timer import EpochSums, EpochTimer
from ranks.worker.group import free_port
from ranks.worker.operators import Event, moved, show_clock
from ranks.worker.phases import COMMUNICATION
from ranks.worker.process import at_end
from ranks.worker.trainer import CLIP_EPSILON, HEURISTIC, NONE, ON_DEMAND, RECOMPUTED, TIMED, UNFUSED, Trainer

REPLICAS = ("data", "sharded")  # axes along which samples are partitioned
# The phases that a traced step marks, in this order.
STEP_PHASES = ("backward", "wait", "optimizer", "metrics")
# JAX's names of accelerators.
PLATFORMS = {"nvidia": "cuda", "amd": "rocm"}
#: precision of float32 products, by the level of the factor precision. With amp and bf16 only routers of
#: experts have such products; PyTorch and TensorFlow compute them in float32, JAX on accelerators in TF32.
MATMUL_PRECISIONS = {FP32: "float32", TF32: "tensorfloat32", AMP: "tensorfloat32", BF16: "tensorfloat32"}
REDUCE_DTYPES = {FP32: jnp.float32, BF16: jnp.bfloat16}  # types by level of reduce_dtype
# What cuDNN's fused attention supports on all of its devices.
CUDNN_ATTENTION_CAPABILITY, MAX_CUDNN_HEAD = 8.0, 128
PRODUCTS = {"float32": "float32", "tensorfloat32": "TF32"}

State = dict[str, Any]


def configure_library(context: Context) -> None:
    """Set JAX's device and the precision of products; call it before JAX uses any device."""
    on_gpu = context.spec["device"] == "cuda"
    platform = PLATFORMS[vendor()]
    jax.config.update("jax_platforms", f"{platform},cpu" if on_gpu else "cpu")
    if on_gpu:
        (index,) = device_indices(context, count_visible())
        jax.config.update(f"jax_{platform}_visible_devices", str(index))
    precision = context.levels.get("precision", FP32)  # A benchmark's levels lack the factor.
    jax.config.update("jax_default_matmul_precision", MATMUL_PRECISIONS[precision])


def join(context: Context) -> str:
    """Join all ranks to one program, and return the transport of its communication.

    On CPUs it is Gloo. By default Gloo listens at the address of the host's name, and JAX has no option for
    the interface. So the client is created here, as in `xla_bridge.make_cpu_client`, with the site's
    interface.
    """
    jax.config.update("jax_enable_preemption_service", False)  # It would handle SIGTERM.
    address, port = context.group.broadcast([context.group.address, free_port(context.group.address)])
    place = f"{address}:{port}"
    on_gpu = context.spec["device"] == "cuda"
    devices = device_indices(context, count_visible()) if on_gpu else [context.local_rank]
    jax.distributed.initialize(place, context.ranks, context.rank, devices, coordinator_bind_address=place)
    # Otherwise other ranks treat the end of rank 0 as a failure.
    at_end.append(jax.distributed.shutdown)

    def client() -> Any:
        gloo = _jax.make_gloo_tcp_collectives(
            distributed.global_state.client, interface=interfaces(context.spec)[0]
        )
        return xla_bridge.make_cpu_client(gloo)

    if on_gpu:
        return "nccl"
    xla_bridge.register_backend_factory("cpu", client, fail_quietly=False)
    return by_first_interface(context.spec, "gloo")


def device_name() -> str:
    """Return the name of the device for the record."""
    (device,) = jax.local_devices()
    return "cpu" if device.platform == "cpu" else device.device_kind


def can_fuse_attention(levels: Mapping[str, Any], graph: Graph, tensor: int) -> bool:
    """Return whether cuDNN's fused kernel computes the model's attention, partitioned by heads over `tensor`.

    It needs bfloat16, a device since Ampere, and a head size that is a multiple of 8.
    """
    (device,) = jax.local_devices()
    return (
        levels["attention"] == "default"
        and levels["precision"] in COMPUTES_IN_BFLOAT16
        and device.platform in ("gpu", "cuda")
        and vendor() == "nvidia"
        and float(device.compute_capability) >= CUDNN_ATTENTION_CAPABILITY
        and all(size % 8 == 0 and size <= MAX_CUDNN_HEAD for size in graph.head_sizes)
        and all(
            operator.key_heads % tensor == 0 for operator in graph.operators if operator.kind == "attention"
        )
    )


def fused_attention(axes: Sequence[str]) -> Attend:
    """Return attention by cuDNN's fused kernel in a replica's step on a mesh with these axes.

    Heads are partitioned along `tensor` here, since the kernel's own partitioning fails within shard_map.
    """

    def attend(query: Array, key: Array, value: Array, causal: bool) -> Array:
        fused = functools.partial(jax.nn.dot_product_attention, is_causal=causal, implementation="cudnn")
        if "tensor" in axes:
            heads = P(None, None, "tensor")
            fused = jax.shard_map(
                fused, in_specs=(heads,) * 3, out_specs=heads, axis_names={"tensor"}, check_vma=False
            )
        return fused(query, key, value)

    return attend


def optimizer(levels: Mapping[str, Any]) -> optax.GradientTransformation:
    """Return SGD with momentum, Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019).

    It returns changes that are not yet multiplied by the learning rate. AdamW adds weight decay to the
    changes, the others add it to the gradients.
    """
    if levels["optimizer"] == "sgd":
        rule = optax.trace(levels["momentum"])
    else:
        rule = adam(levels["adam_beta1"], levels["adam_beta2"], levels["adam_epsilon"])

    def decayed(weights: Mapping[str, Any]) -> dict[str, bool]:
        return {name: is_decayed(name, levels["decayed_weights"]) for name in weights}

    decay = [optax.add_decayed_weights(levels["weight_decay"], decayed)] if levels["weight_decay"] else []
    return optax.chain(rule, *decay) if levels["optimizer"] == "adamw" else optax.chain(*decay, rule)


def adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Return optax.scale_by_adam with an exact 1 - b^t.

    In the first steps, optax's value has only 3 correct digits, so that weights would differ from PyTorch's.
    """

    def update(
        gradients: Any, state: optax.ScaleByAdamState, _weights: Any = None
    ) -> tuple[Any, optax.ScaleByAdamState]:
        count = state.count + 1
        mean = optax.tree.update_moment(gradients, state.mu, b1, 1)
        square = optax.tree.update_moment_per_elem_norm(gradients, state.nu, b2, 2)
        mean_correction, square_correction = (-jnp.expm1(count * math.log(b)) for b in (b1, b2))
        root = jnp.sqrt(square_correction)
        changes = jax.tree.map(lambda m, s: m / mean_correction / (jnp.sqrt(s) / root + eps), mean, square)
        return changes, optax.ScaleByAdamState(count, mean, square)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


class Layout:
    """Layout of the weights on a mesh: the parallelization strategy as data.

    The mesh axis `tensor` partitions each weight listed in `tensor` along the given axis. The mesh axis
    `sharded` partitions each weight along its first other axis with a length that the number of shards
    divides; weights without such an axis are replicated.
    """

    def __init__(
        self, graph: Graph, sizes: Mapping[str, int], sharding: str, tensor: Mapping[str, int]
    ) -> None:
        self.axes = (*REPLICAS, *(axis for axis in ("tensor",) if sizes[axis] > 1))
        self.mesh = Mesh(np.array(jax.devices()).reshape([sizes[axis] for axis in self.axes]), self.axes)
        self.replicas = sizes["data"] * sizes["sharded"]
        self.sharding, self.n_shards = sharding, sizes["sharded"]
        self._tensor = tensor
        self.shard_axes = {
            name: self._shard_axis(name, shape) for name, shape in graph.weights().items() if is_trained(name)
        }

    def _shard_axis(self, name: str, shape: Sequence[int]) -> int | None:
        """Return the axis along which `sharded` partitions a weight, None if it is replicated."""
        if self.n_shards == 1:
            return None
        return next(
            (i for i, n in enumerate(shape) if n % self.n_shards == 0 and i != self._tensor.get(name)), None
        )

    def spec(self, name: str, is_sharded: bool, with_tensor: bool = True) -> P:
        """Return the layout of a weight or of its optimizer state.

        Args:
            name: Name of the weight.
            is_sharded: Whether the mesh axis `sharded` partitions it.
            with_tensor: Whether the layout includes the axis `tensor`, which a replica's step does not name.
        """
        axes: dict[int, str] = {}
        if is_sharded and (axis := self.shard_axes[name]) is not None:
            axes[axis] = "sharded"
        if with_tensor and name in self._tensor:
            axes[self._tensor[name]] = "tensor"
        return P(*(axes.get(i) for i in range(1 + max(axes, default=-1))))

    def placed(self, value: np.ndarray, spec: P) -> Array:
        """Return an array that all ranks have in the given layout."""
        sharding = NamedSharding(self.mesh, spec)
        return jax.make_array_from_callback(
            value.shape, sharding, lambda part: np.ascontiguousarray(value[part])
        )

    def joined(self, mine: np.ndarray) -> Array:
        """Return the array [replicas * n, ...] that has `mine` [n, ...] on this rank's replica."""
        shape, (device,) = (self.replicas * len(mine), *mine.shape[1:]), jax.local_devices()
        sharding = NamedSharding(self.mesh, P(REPLICAS))
        return jax.make_array_from_single_device_arrays(shape, sharding, [jax.device_put(mine, device)])

    def on_replicas(
        self, step: Callable[..., Any], in_specs: Any, out_specs: Any, donate: Sequence[int] = ()
    ) -> Any:
        """Compile `step`, written for one replica, for all replicas; specs are trees of PartitionSpec."""
        mapped = jax.shard_map(
            step,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=set(REPLICAS),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=tuple(donate))

    def gather(self, weights: Arrays) -> Arrays:
        """Return whole weights from shards, in the step of a replica."""
        return {name: self._gather_weight(name, weight) for name, weight in weights.items()}

    def _gather_weight(self, name: str, weight: Array) -> Array:
        axis = self.shard_axes[name]
        return weight if axis is None else lax.all_gather(weight, "sharded", axis=axis, tiled=True)

    def shards(self, weights: Arrays) -> Arrays:
        """Return this replica's shards of whole weights, in the step of a replica."""
        return {name: self._shard(name, weight) for name, weight in weights.items()}

    def _shard(self, name: str, weight: Array) -> Array:
        if (axis := self.shard_axes[name]) is None:
            return weight
        length = weight.shape[axis] // self.n_shards
        return lax.dynamic_slice_in_dim(weight, lax.axis_index("sharded") * length, length, axis)

    def averaged(self, gradients: Arrays, dtype: Any = None) -> Arrays:
        """Return the means of gradients over all replicas, in the step of a replica.

        They are all-reduced, or reduce-scattered if the replica needs only its shard. Gradients are summed in
        `dtype`, by default in their data type.
        """
        if dtype is not None:
            summed = self.averaged({name: gradient.astype(dtype) for name, gradient in gradients.items()})
            return {name: summed[name].astype(gradient.dtype) for name, gradient in gradients.items()}
        scattered = {}
        for name, gradient in gradients.items():
            axis = self.shard_axes[name]
            if axis is not None and self.sharding != "optimizer":
                part = lax.psum_scatter(gradient, "sharded", scatter_dimension=axis, tiled=True)
                scattered[name] = lax.pmean(part, "data") / self.n_shards
        reduced = lax.pmean({name: gradients[name] for name in gradients if name not in scattered}, REPLICAS)
        return {
            name: scattered[name] if name in scattered else self._shard(name, reduced[name])
            for name in gradients
        }

    def norm(self, gradients: Arrays) -> Array:
        """Return the L2 norm of all gradients, given a replica's shards or copies of them."""
        squares = {
            name: jnp.sum(jnp.square(gradient.astype(jnp.float32))) for name, gradient in gradients.items()
        }
        shards = sum((square for name, square in squares.items() if self.shard_axes[name] is not None), 0.0)
        replicated = sum((square for name, square in squares.items() if self.shard_axes[name] is None), 0.0)
        return jnp.sqrt(replicated + lax.psum(shards, "sharded"))


def cross_entropy(logits: Array, labels: Array, label_smoothing: float) -> Array:
    """Return the loss of each label; a share of it, `label_smoothing`, is the mean over all classes."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    if not label_smoothing:
        return losses
    means = jax.nn.logsumexp(logits, axis=-1) - logits.mean(-1)
    return (1 - label_smoothing) * losses + label_smoothing * means


class Marks:
    """Marks in a compiled traced step: times at which arrays were computed, in s of this process's clock.

    A mark is a Python callback that depends on an element of each array and returns 1.0. Computation that
    must not begin before the mark is multiplied by this number.
    """

    def __init__(self, active: bool) -> None:
        self.active = active
        self.stamps: dict[str, float] = {}

    def __call__(self, phase: str, arrays: Any) -> Array:
        """Start a phase when these arrays are computed; return 1.0, available from then on."""
        if not self.active:
            return jnp.float32(1)
        firsts = jnp.stack([array.ravel()[0].astype(jnp.float32) for array in jax.tree.leaves(arrays)])

        def stamp(_: Any) -> np.float32:
            self.stamps[phase] = time.monotonic()
            return np.float32(1)

        return io_callback(stamp, jax.ShapeDtypeStruct((), jnp.float32), firsts)

    def hold_back(self, phase: str, arrays: Any) -> Any:
        """Mark, and return these arrays, available only after the mark."""
        if not self.active:
            return arrays
        factor = self(phase, arrays)
        return jax.tree.map(lambda array: array * factor.astype(array.dtype), arrays)

    def turn(self, phase: str, loss: Array) -> Array:
        """Return the loss; a phase starts when it is computed, and its gradient depends on the mark."""
        if not self.active:
            return loss
        turned = jax.custom_vjp(lambda value: value)
        turned.defvjp(
            lambda value: (value, self(phase, value)), lambda factor, gradient: (gradient * factor,)
        )
        return turned(loss)


class JaxProfiler:
    """JAX's profiler for ranks/worker/operators.py: operators, and kernels on an accelerator."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp()
        self._shown_at = 0.0

    def start(self) -> None:
        """Start profiling."""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        jax.profiler.start_trace(self._folder, profiler_options=options)
        self._shown_at = show_clock(jax.profiler.TraceAnnotation)

    def stop(self) -> None:
        """Stop profiling quickly, since an epoch is being timed."""
        jax.profiler.stop_trace()

    def events(self) -> list[Event]:
        """Return the events, in microseconds of time.monotonic, after the profiler has stopped."""
        (file,) = Path(self._folder).rglob("*.xplane.pb")
        return moved(list(_events(jax.profiler.ProfileData.from_file(str(file)))), self._shown_at)


def _events(profile: Any) -> Iterator[Event]:
    """Yield the events of a profile, in microseconds of the profiler's clock."""
    lines = ((plane, line) for plane in profile.planes for line in plane.lines)
    for thread, (plane, line) in enumerate(lines):
        yield {"ph": "M", "name": "thread_name", "tid": thread, "args": {"name": f"{plane.name} {line.name}"}}
        for event in line.events:
            spent = {"ts": event.start_ns / 1e3, "dur": event.duration_ns / 1e3}
            yield {"ph": "X", "name": event.name, "tid": thread, **spent}


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
        self._optimizer = optimizer(levels)
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


class JaxCollectives(Collectives):
    """XLA's collectives between all ranks, compiled for each collective and number of elements.

    The adapter joins the ranks before.
    """

    def __init__(self, context: Context, transport: str) -> None:
        self.transport, self.device, self._ranks = transport, device_name(), context.ranks
        self._mesh = jax.make_mesh((context.ranks,), ("ranks",))
        after = [(rank, (rank + 1) % context.ranks) for rank in range(context.ranks)]
        functions: dict[str, tuple[Callable[[Array], Array], P]] = {
            "all_reduce": (lambda mine: lax.psum(mine, "ranks"), P()),
            "all_gather": (lambda mine: lax.all_gather(mine, "ranks", tiled=True), P()),
            "reduce_scatter": (lambda mine: lax.psum_scatter(mine, "ranks", tiled=True), P("ranks")),
            "all_to_all": (lambda mine: lax.all_to_all(mine, "ranks", 0, 0, tiled=True), P("ranks")),
            "point_to_point": (lambda mine: lax.ppermute(mine, "ranks", after), P("ranks")),
        }
        self._functions = {
            name: jax.jit(
                jax.shard_map(does, mesh=self._mesh, in_specs=P("ranks"), out_specs=out, check_vma=False)
            )
            for name, (does, out) in functions.items()
        }
        self._loaded = self._done = jnp.zeros(0)

    def load(self, values: np.ndarray) -> None:
        """Copy this rank's message, float32, to the device."""
        (device,), sharding = jax.local_devices(), NamedSharding(self._mesh, P("ranks"))
        shape = (self._ranks * len(values),)
        self._loaded = jax.make_array_from_single_device_arrays(
            shape, sharding, [jax.device_put(values, device)]
        )

    def do(self, collective: str) -> None:
        """Run this collective once on the loaded message, and return when the device is idle."""
        self._done = jax.block_until_ready(self._functions[collective](self._loaded))

    def result(self) -> np.ndarray:
        """Return the result of the last `do`, float32."""
        return np.asarray(self._done.addressable_data(0))


def _count_correct(logits: Array, labels: Array, counts: Any = True) -> Array:
    """Return how many of the counted samples are classified correctly, float32: exact up to 2^24 samples."""
    return jnp.sum((logits.argmax(-1) == labels) & counts, dtype=jnp.float32)


def _as_32_bits(values: np.ndarray) -> np.ndarray:
    """Return tokens and labels as JAX's integers of 32 bits, and images unchanged."""
    return values if values.dtype == np.uint8 else values.astype(np.int32)
