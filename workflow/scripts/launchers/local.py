"""Start ranks as processes of this machine, on disjoint cores.

An adapter that needs mpirun calls it itself.
"""

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.notes import Note
from common.shell import Program
from declared.site import Site
from launchers.exit_reasons import first_failed_rank, rank_failure_reason
from launchers.processes import kill, spawn
from launchers.variables import local_variables


class Local:
    """Implement launchers.protocol.Launcher."""

    def __init__(self, site: Site, spec: Mapping[str, Any], _mpi: bool = False) -> None:
        self._setup, self._spec = site.setup, spec
        self._processes: list[subprocess.Popen[bytes]] = []
        self._mark = f"RINGSIDE_LAUNCH={secrets.token_hex(8)}"
        self.job = None
        # All nodes are emulated on this machine; Horovod needs distinct names.
        self.hosts = [f"node{i}" for i in range(1, spec["nodes"] + 1)]

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """See Launcher."""
        spec = self._spec
        core_counts = spec.get("rank_cores", [spec["cores_per_rank"]] * spec["ranks_per_node"])
        with open(log, "ab") as output:
            for rank in range(spec["ranks"]):
                cores = rank_cores(rank, spec["cores"], core_counts)
                identity = (
                    f"{self._mark} RINGSIDE_RANK={rank} RINGSIDE_LOCAL_RANK={rank % spec['ranks_per_node']}"
                )
                command = program.command_after(
                    self._setup, f"{identity} RINGSIDE_CORES={','.join(map(str, cores))}"
                )
                self._processes.append(spawn(command, local_variables(), output))
        return self._processes

    def raise_if_lost(self, _log: Path) -> None:
        """See Launcher. This machine is there as long as this process runs on it."""

    def explain(self, exit_statuses: Sequence[int | None], _log: Path) -> Note:
        """See Launcher."""
        rank, exit_status = first_failed_rank(exit_statuses)
        return rank_failure_reason(rank, exit_status)

    def kill_ranks(self) -> None:
        """See Launcher.

        The mark in the environment also finds processes that ranks started in other sessions.
        """
        kill(self._processes)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)


def rank_cores(rank: int, n_cores: int, core_counts: Sequence[int]) -> list[int]:
    """Return the cores of a rank: none that another rank has, or all cores if the site has too few for that.

    Args:
        rank: Global rank.
        n_cores: Number of cores that the site may use.
        core_counts: Number of cores of each rank of a node.
    """
    usable = sorted(os.sched_getaffinity(0))[:n_cores]
    node, local_rank = divmod(rank, len(core_counts))
    start = node * sum(core_counts) + sum(core_counts[:local_rank])
    stop = start + core_counts[local_rank]
    return usable[start:stop] if stop <= len(usable) else usable


launcher_class = Local
