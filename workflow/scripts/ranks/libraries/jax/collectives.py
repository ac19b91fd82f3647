"""Run XLA's collectives for benchmarks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ranks.libraries.jax.device import device_name
from ranks.worker.collectives import Collectives
from ranks.worker.context import Context


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
