"""Lay out weights and batches on a mesh of devices."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from models.graph import Graph, is_trained
from ranks.libraries.jax.model import Arrays

REPLICAS = ("data", "sharded")  # axes along which samples are partitioned


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
