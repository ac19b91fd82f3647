"""JAX on several processes: one program for all ranks, which XLA compiles with its communication."""

from ranks.libraries.xla import variables
from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Return XLA's variables."""
    return variables(context)


def trainer(context: Context) -> Trainer:
    """Return the library's trainer, for ranks of one JAX process group."""
    from ranks.libraries.divided_weights import weight_axes
    from ranks.libraries.jax.device import join
    from ranks.libraries.jax.trainer import JaxTrainer

    class JoinedTrainer(JaxTrainer):
        def join(self) -> str:
            return join(context)

        def tensor_axes(self) -> dict[str, int]:
            return weight_axes(context.graph, context.mesh.tensor, context.levels["tensor_sharding"])

    return JoinedTrainer(context)


def collectives(context: Context) -> Collectives:
    """Return XLA's collectives."""
    from ranks.libraries.jax.collectives import JaxCollectives
    from ranks.libraries.jax.device import configure_library, join

    configure_library(context)
    return JaxCollectives(context, join(context))
