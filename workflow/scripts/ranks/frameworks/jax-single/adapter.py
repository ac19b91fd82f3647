"""JAX on one rank: the single-device baseline."""

from ranks.libraries.xla import variables
from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Return XLA's variables."""
    return variables(context)


def trainer(context: Context) -> Trainer:
    """Return the library's own trainer unchanged."""
    from ranks.libraries.jax.trainer import JaxTrainer

    return JaxTrainer(context)
