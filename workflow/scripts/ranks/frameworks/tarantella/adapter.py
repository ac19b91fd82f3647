"""Tarantella (Fraunhofer ITWM).

Its optimizer averages gradients over ranks by one-sided messages of GASPI (GPI-2).

Tarantella's launch command needs ssh, so ranks are started without it and get their place from environment
variables. GPI-2's ports are fixed (12121, 12377, 19000, each plus the number of the rank on its machine), so
the second of two jobs on a machine waits for the first.
"""

import re
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.trainer import Trainer

HOSTS = "gaspi-hosts"
#: abstract socket address (unix(7)), which is local to a network namespace, as ports are
PORTS_LOCK = "\0ringside-gaspi"
PAUSE_S = 0.2


def lock_ports(name: str = PORTS_LOCK) -> socket.socket:
    """Wait until no other job on this machine uses GPI-2's ports, and lock them until this process ends."""
    lock = socket.socket(socket.AF_UNIX)
    waited = False
    while True:
        try:
            lock.bind(name)
        except OSError:
            if not waited:
                print(
                    "waiting for another job on this machine that uses GPI-2, whose ports are fixed",
                    flush=True,
                )
            waited = True
            time.sleep(PAUSE_S)
        else:
            return lock


_locks: list[socket.socket] = []


def environment(context: Context) -> dict[str, str]:
    """Return variables with this rank's place for GASPI, which `import tarantella` starts.

    The first rank on a machine also waits until GPI-2's ports are free there, and locks them.
    """
    # GPI-2 chooses the network interface by the addresses of hosts.
    addresses = context.group.all_gather(context.group.address)
    # The ports of a rank depend on it.
    place = addresses[: context.rank].count(context.group.address)
    if place == 0:
        _locks.append(lock_ports())
    context.group.barrier()
    file = context.folder / HOSTS
    if context.rank == 0:  # Only rank 0 reads the file.
        file.write_text("".join(f"{address}\n" for address in addresses))
    return {
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "TF_USE_LEGACY_KERAS": "1",
        "GASPI_RANK": str(context.rank),
        "GASPI_NRANKS": str(context.ranks),
        "GASPI_SOCKET": str(place),
        "GASPI_MFILE": str(file),
        "TNT_GPUS_PER_NODE": "0" if context.spec["device"] == "cpu" else str(context.spec["ranks_per_node"]),
    }


def trainer(context: Context) -> Trainer:
    """Return a trainer with Tarantella's optimizer, for both training loops."""
    import tarantella as tnt

    from ranks.libraries.tensorflow.trainer import TensorFlowTrainer

    class TarantellaTrainer(TensorFlowTrainer):
        transport = "gaspi" if context.ranks > 1 else "none"

        def library_version(self) -> str:
            return (
                super()
                .library_version()
                .replace("tarantella", f"tarantella {_version(Path(tnt.__file__))}".strip())
            )

        def make_optimizer(self, optimizer: Any) -> Any:
            return tnt.optimizers.Optimizer(optimizer, group=tnt.Group())

    return TarantellaTrainer(context)


def _version(package: Path) -> str:
    """Return the version in the file that an installation has next to the package, "" without that file."""
    file = package.parents[1] / "version.py"
    match = (
        re.search(r"""^tnt_version = ["'](.+)["']$""", file.read_text(), re.MULTILINE)
        if file.is_file()
        else None
    )
    return match[1] if match else ""


def collectives(context: Context) -> Collectives:
    """Return collectives by the library with which Tarantella averages gradients."""
    import tarantella as tnt

    from ranks.libraries.tensorflow.collectives import TensorFlowCollectives

    class TarantellaCollectives(TensorFlowCollectives):
        transport = "gaspi"

        def __init__(self) -> None:
            super().__init__(context)
            self._communicators: list[Any] = []  # one for each size, alive as long as its graph

        def all_reduce(self, summand: Any) -> Any:
            communicator = tnt.SynchCommunicator(tnt.Group())
            weighted = (
                context.ranks * summand,
                SimpleNamespace(name=f"benchmark.{summand.shape[0]}", shape=summand.shape),
            )
            communicator.setup_infrastructure([weighted])
            self._communicators.append(communicator)
            ((average, _),) = communicator.reduce_gradients([weighted])
            return average

    return TarantellaCollectives()
