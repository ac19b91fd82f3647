"""JAX on one rank: the undistributed base."""

from ranks.libraries.xla import variables
from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """XLA's own variables."""
    return variables(context)


def trainer(context: Context) -> Trainer:
    """The library's own trainer as it stands."""
    from ranks.libraries.jax_training import JaxTrainer

    return JaxTrainer(context)
