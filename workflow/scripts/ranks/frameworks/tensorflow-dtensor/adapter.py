"""TensorFlow DTensor on several processes.

All ranks run one program, which DTensor partitions by the layouts of weights and samples.
"""

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.group import free_port
from ranks.worker.trainer import Trainer


def environment(context: Context) -> dict[str, str]:
    """Return variables with all ranks' addresses, without log lines below warnings."""
    jobs = context.group.all_gather(f"{context.group.address}:{free_port(context.group.address)}")
    place = {
        "DTENSOR_JOBS": ",".join(jobs),
        "DTENSOR_JOB_NAME": "worker",
        "DTENSOR_CLIENT_ID": str(context.rank),
    }
    return {"TF_CPP_MIN_LOG_LEVEL": "1", **place}


def trainer(context: Context) -> Trainer:
    """Return the library's trainer unchanged."""
    from ranks.libraries.dtensor import DTensorTrainer

    return DTensorTrainer(context)


def collectives(context: Context) -> Collectives:
    """Return DTensor's collectives."""
    from ranks.libraries.dtensor import DTensorCollectives

    return DTensorCollectives(context)
