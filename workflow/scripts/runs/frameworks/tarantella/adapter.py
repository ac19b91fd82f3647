"""Tarantella (Fraunhofer ITWM): an optimizer that averages gradients over ranks by one-sided messages of GASPI (GPI-2).

It is started without its own command, which needs ssh: every rank is told its place. The last rank is its master.
"""

from typing import Any

from runs.worker.context import Context
from runs.worker.trainer import Trainer

HOSTS = "gaspi-hosts"


def environment(context: Context) -> dict[str, str]:
    """This rank's place, for GASPI, which `import tarantella` starts."""
    emulated = context.spec["placement"] == "emulated"
    hosts = ["localhost" if emulated else host for host in context.hosts for _ in range(context.spec["ranks_per_node"])]
    file = context.folder / HOSTS
    if context.rank == 0:
        file.write_text("".join(f"{host}\n" for host in hosts[: context.ranks]))
    context.group.barrier()
    return {
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "TF_USE_LEGACY_KERAS": "1",
        "GASPI_RANK": str(context.rank),
        "GASPI_NRANKS": str(context.ranks),
        "GASPI_SOCKET": str(
            context.rank if emulated else context.local_rank
        ),  # ports of a machine's ranks differ by it
        "GASPI_MFILE": str(file),
        "GASPI_MASTER": hosts[0],
        "GASPI_SET_NUMA_SOCKET": "0",
        "TNT_GPUS_PER_NODE": "0" if context.spec["device"] == "cpu" else str(context.spec["ranks_per_node"]),
    }


def trainer(context: Context) -> Trainer:
    """A trainer whose optimizer is Tarantella's; with `training_loop: fit` the model is, too."""
    import tarantella as tnt

    from runs.libraries.tensorflow import TensorFlowTrainer

    class TarantellaTrainer(TensorFlowTrainer):
        transport = "gaspi" if context.ranks > 1 else "none"

        def make_optimizer(self, optimizer: Any) -> Any:
            return tnt.optimizers.Optimizer(optimizer)

    return TarantellaTrainer(context)
