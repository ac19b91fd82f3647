"""JAX on several processes: one program for all ranks, which XLA compiles with what they exchange."""

from runs.libraries.xla import variables
from runs.worker.collectives import Collectives
from runs.worker.context import Context
from runs.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """XLA's own variables."""
    return variables(context)


def trainer(context: Context) -> Trainer:
    """The library's trainer, of ranks that are joined."""
    from runs.libraries.divided_weights import divided
    from runs.libraries.jax_training import JaxTrainer, join

    class JoinedTrainer(JaxTrainer):
        def join(self) -> str:
            return join(context)

        def divided(self) -> dict[str, int]:
            return divided(context.graph, context.mesh.tensor)

    return JoinedTrainer(context)


def collectives(context: Context) -> Collectives:
    """Those of XLA."""
    from runs.libraries.jax_training import JaxCollectives, configured, join

    configured(context)
    return JaxCollectives(context, join(context))
