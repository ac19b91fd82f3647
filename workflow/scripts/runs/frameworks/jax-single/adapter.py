"""JAX on one rank: the undistributed base."""

from runs.libraries.xla import variables
from runs.worker.context import Context
from runs.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """XLA's own variables."""
    return variables(context)


def trainer(context: Context) -> Trainer:
    """The library's own trainer as it stands."""
    from runs.libraries.jax_training import JaxTrainer

    return JaxTrainer(context)
