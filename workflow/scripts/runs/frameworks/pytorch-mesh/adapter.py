"""PyTorch on a mesh of devices: layers divided by DTensor's styles, pipelines of stages, samples and parameters by FSDP2."""

from runs.worker.context import Context
from runs.worker.reducer import Reducer
from runs.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Gloo on the site's interface."""
    return {"GLOO_SOCKET_IFNAME": context.spec["interface"]}


def trainer(context: Context) -> Trainer:
    """The library's trainer as it stands."""
    from runs.libraries.pytorch_mesh import MeshTrainer

    return MeshTrainer(context)


def all_reducer(context: Context) -> Reducer:
    """Sums by the process group of all ranks."""
    from runs.libraries.pytorch_ddp import DDPReducer

    return DDPReducer(context)
