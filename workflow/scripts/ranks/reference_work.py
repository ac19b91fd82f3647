"""Run the reference benchmark: fixed work on all cores or accelerators of all ranks at the same time.

A launcher starts `python -m ranks.reference_work FOLDER` before and after a run. Rank 0 writes result.json:
the kind of work with its version, and host and seconds of each rank. The benchmark does not affect training,
so the module is not in ranks/worker/, which is part of a run's key.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# One thread per core calls these libraries. They read their number of threads when they are imported.
os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"))

import numpy as np

from ranks.worker.context import Context, from_environment
from ranks.worker.devices import device_indices
from ranks.worker.process import as_rank, bind_heterogeneous, leave_result

SIDE = 256  # side of square matrices on CPUs: three of them fit into a core's own cache
DEVICE_SIDE = 4096  # side of square matrices on accelerators
N_FLOATS_MIB = 2**18  # float32 numbers in 1 MiB
# make bench-reference selects another kind than DEFAULT_KIND with this variable.
KIND_VARIABLE = "RINGSIDE_REFERENCE"


@dataclass(frozen=True)
class WorkKind:
    """Work of one core or accelerator.

    Attributes:
        version: Incremented with every change of the work; only times of the same version are compared.
        steps: Number of repetitions.
        products: Matrix products per step.
        updated_mib: MiB of weights that a step updates with as many MiB of gradients.
    """

    version: int
    steps: int
    products: int
    updated_mib: int


KINDS = {  # each about 0.3 s on a core of a server of 2020
    "products": WorkKind(version=1, steps=840, products=1, updated_mib=0),
    "memory": WorkKind(version=1, steps=60, products=0, updated_mib=64),
    "mixed": WorkKind(version=1, steps=240, products=2, updated_mib=8),
    "accelerator": WorkKind(version=1, steps=60, products=1, updated_mib=512),
}
DEFAULT_KIND = "mixed"


def on_a_core(kind: WorkKind) -> Callable[[int], None]:
    """Return a function that runs steps of the work on one core: products with ReLU, then an update."""
    inputs, weights, outputs = (np.full((SIDE, SIDE), 1 / SIDE, np.float32) for _ in range(3))
    parameters, gradients = (np.ones(kind.updated_mib * N_FLOATS_MIB, np.float32) for _ in range(2))

    def steps(number: int) -> None:
        for _ in range(number):
            for _ in range(kind.products):
                np.matmul(inputs, weights, out=outputs)
                np.maximum(outputs, 0, out=outputs)
            np.subtract(parameters, gradients, out=parameters)

    return steps


def on_an_accelerator(kind: WorkKind, device: str) -> Callable[[int], None]:
    """Return a function that runs steps on an accelerator by PyTorch, and returns when they are done."""
    import torch

    inputs, weights, outputs = (
        torch.full((DEVICE_SIDE, DEVICE_SIDE), 1 / DEVICE_SIDE, device=device) for _ in range(3)
    )
    parameters, gradients = (torch.ones(kind.updated_mib * N_FLOATS_MIB, device=device) for _ in range(2))

    def steps(number: int) -> None:
        for _ in range(number):
            for _ in range(kind.products):
                torch.mm(inputs, weights, out=outputs)
                outputs.relu_()
            parameters.sub_(gradients)
        if device != "cpu":  # Tests run it on CPUs.
            torch.cuda.synchronize(device)

    return steps


def works_on_accelerators(context: Context) -> bool:
    """Return whether this rank's work runs on its accelerators, which needs PyTorch."""
    return context.spec["device"] == "cuda" and "torch" in context.rank_input["modules"]


def workers_of(context: Context, kind: WorkKind) -> list[Callable[[int], None]]:
    """Return a function for each accelerator, or core, of this rank that runs steps of the work."""
    if works_on_accelerators(context):
        import torch

        devices = device_indices(context, torch.cuda.device_count())
        return [on_an_accelerator(kind, f"cuda:{index}") for index in devices]
    return [on_a_core(kind) for _ in range(context.cores)]


def run(folder: Path) -> None:
    """Time the work once, after a warm-up step that initializes libraries and memory."""
    context = from_environment(folder)
    bind_heterogeneous(context)
    usual = os.environ.get(KIND_VARIABLE, DEFAULT_KIND)
    name = "accelerator" if works_on_accelerators(context) else usual
    workers = workers_of(context, KINDS[name])
    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(lambda steps: steps(1), workers))
        context.group.barrier()
        start = time.monotonic()
        list(pool.map(lambda steps: steps(KINDS[name].steps), workers))
        seconds = time.monotonic() - start
    ranks = context.group.all_gather([context.hosts[context.rank // context.spec["ranks_per_node"]], seconds])
    leave_result(context, {"kind": f"{name}-{KINDS[name].version}", "ranks": ranks})


if __name__ == "__main__":
    as_rank(run)
