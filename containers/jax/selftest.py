"""One of two ranks that import JAX and add up a vector on loopback (see environments.two_ranks)."""

import json
import os
from pathlib import Path

RANK, SIZE = int(os.environ["RINGSIDE_RANK"]), int(os.environ["RINGSIDE_SIZE"])


def main() -> None:
    """Add up the ranks' vectors and write the result."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.config.update("jax_platforms", "cpu")
    first = os.environ["RINGSIDE_PORTS"].split(",")[0]
    jax.distributed.initialize(f"127.0.0.1:{first}", SIZE, RANK)
    mesh = jax.make_mesh((SIZE,), ("ranks",))
    mine = jnp.full((1, 1000), RANK + 1.0)
    vectors = jax.make_array_from_single_device_arrays((SIZE, 1000), NamedSharding(mesh, P("ranks")), [mine])
    total = jax.jit(
        jax.shard_map(lambda row: jax.lax.psum(row, "ranks"), mesh=mesh, in_specs=P("ranks"), out_specs=P())
    )
    vector = total(vectors).addressable_data(0)
    expected = SIZE * (SIZE + 1) / 2
    if not (vector == expected).all():
        raise SystemExit(f"psum gave {vector[0, 0]}, expected {expected}")
    result = {
        "framework": f"jax {jax.__version__}",
        "optax": optax.__version__,
        "all_reduce": float(vector[0, 0]),
    }
    (Path(os.environ["RINGSIDE_MEETING"]) / f"rank{RANK}.json").write_text(json.dumps(result))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
